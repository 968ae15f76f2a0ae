"""RunResult and the files it lives in."""

from __future__ import annotations

import errno
import json
import os

import pytest

from gluontune import files
from gluontune.errors import GluontuneError
from gluontune.recipe import Recipe
from gluontune.result import RunResult


def test_save_and_load(tmp_path):
    result = RunResult(recipe=Recipe().to_dict(), val_accuracy=[0.1, 0.9], peak_rss_mib=12.5)
    result.save(tmp_path / "deep" / "r.json")
    assert RunResult.load(tmp_path / "deep" / "r.json") == result


def test_other_schema_is_refused(tmp_path):
    document = {**RunResult(recipe={}).to_dict(), "schema_version": 99}
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(GluontuneError, match=r"r\.json.*99"):
        RunResult.load(tmp_path / "r.json")


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_what_is_no_result(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(GluontuneError, match=r"r\.json"):
        RunResult.load(tmp_path / "r.json")


def test_nan_is_not_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        RunResult(recipe={}, val_accuracy=[float("nan")]).save(tmp_path / "r.json")
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), files.atomic_write(path, "w") as stream:
        stream.write("half of the new")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EDQUOT, "quota")]
)
def test_a_full_or_read_only_disk_is_explained(tmp_path, monkeypatch, code, words):
    def fail(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(GluontuneError, match=words) as caught, files.atomic_write(tmp_path / "a", "w") as stream:
        stream.write("x")
    assert str(tmp_path) in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(GluontuneError, match="out"):
        files.writable_folder(tmp_path / "out" / "deeper")


def test_cache_dir_follows_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "d"))
    assert files.cache_dir() == tmp_path / "d"
