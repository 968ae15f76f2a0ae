"""What ``make fresh`` prepares before it needs root: the order of its parts, and what comes along of pip's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from fresh_root import FILL, PARTS, WHEEL, WHEELS, in_order, pip_settings


@pytest.mark.parametrize("given", [["offline"], ["alone", "offline"], ["py312", "offline", "first"]])
def test_offline_finds_its_wheels_whatever_parts_are_asked_for(given):
    parts = in_order(given)
    assert parts[-len(given) :] == given and parts[0] in FILL


def test_parts_stay_as_they_are_where_one_fills_the_wheels_or_none_needs_them():
    for given in (list(PARTS), ["small", "offline"], ["alone", "py312"]):
        assert in_order(given) == given


def test_files_that_pips_settings_name_come_along(tmp_path, monkeypatch):
    caps, wheels = tmp_path / "caps.txt", tmp_path / "wheels"
    caps.touch()
    wheels.mkdir()
    monkeypatch.setenv("PIP_CONSTRAINT", str(caps))
    monkeypatch.setenv("PIP_FIND_LINKS", f"{wheels} {tmp_path / 'absent'}")
    settings, folders, files = pip_settings()
    assert settings["PIP_CONSTRAINT"] == str(caps)
    assert str(caps) in files and str(wheels) in folders
    assert str(tmp_path / "absent") not in [*folders, *files]


def test_the_docs_fill_the_folder_of_wheels_as_the_trial_does():
    docs = (Path(__file__).parents[2] / "docs" / "how-to" / "install.md").read_text()
    assert WHEEL.replace(" -q", "").replace("/wheels/", "").replace("/wheels", "wheels") in docs
    listing = WHEELS.partition(" >")[0]  # with -q pip lists nothing
    assert f"{listing} > list.txt" in docs
