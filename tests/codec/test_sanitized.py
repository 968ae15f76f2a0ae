"""The codec under sanitizers: it is clean, and what is broken on purpose is found."""

from __future__ import annotations

import os
import shutil
import sys

import numpy as np
import pytest

from gluontune.codec import building
from gluontune.core.errors import GluontuneError
from tools import sanitize
from tools.sanitize import CASES, build, main, run
from tools.sanitized import corpus, damaged


@pytest.fixture(scope="module")
def sanitizers(tmp_path_factory):
    try:
        return build(tmp_path_factory.mktemp("built"))
    except GluontuneError as error:
        pytest.skip(f"wants sanitizers (gcc or clang): {error}")


@pytest.fixture
def broken(tmp_path, sanitizers):
    """The package's C files, of which a word may be replaced."""

    def break_it(name, before, after):
        folder = tmp_path / "csrc"
        shutil.copytree(building.SOURCES[0].parent, folder)
        text = (folder / name).read_text()
        assert before in text
        (folder / name).write_text(text.replace(before, after))
        return folder

    return break_it


@pytest.mark.slow
def test_images_that_end_right_behind_their_header_are_no_finding(sanitizers):
    """They were one of the cases' own: nothing was left to damage."""
    assert run(CASES, seed=395087765, first=240, built=sanitizers)["findings"] == 0


@pytest.mark.slow  # eight seconds of compiling; make asan runs 20,000 cases, and other tests compare with libjpeg-turbo
def test_the_codec_is_clean_and_some_images_are_made(sanitizers):
    found = run(3 * CASES, seed=5, built=sanitizers)
    assert found["findings"] == 0 and found["cases"] == 48 and found["made"] > 5 and found["refused"] > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, before, after, word, cases",
    [
        ("decode.c", "for (; x + 2 < n; x += 2)", "for (; x + 2 <= n; x += 2)", "heap-buffer-overflow", "320"),
        ("encode.c", "+ 2 * (size_t)(w->next", "+ 1 * (size_t)(w->next", "heap-buffer-overflow", "160"),
        ("scan.c", "SPARE = 512", "SPARE = 8", "heap-buffer-overflow", "160"),
        ("batch.c", "int parts = p[sof + 9],", "int parts = p[sof + 9] << 24 << 6,", "runtime error", "16"),
    ],
)  # fmt: skip
def test_a_fault_that_is_put_in_is_found_and_named(broken, capfd, name, before, after, word, cases):
    """One byte beyond the last row of a batch; a shift out of an int."""
    folder = broken(name, before, after)
    assert main(["--cases", cases, "--seed", "5", "--sources", str(folder)]) == 1
    said = capfd.readouterr().err
    assert word in said and name in said
    assert "finding (code 99): python -m tools.sanitize --cases 16 --seed 5 --first " in said


@pytest.mark.parametrize("work, code", [("time.sleep(900)", -1), ("sum(range(9)) < 0", 0)])
def test_a_process_that_sleeps_is_stuck_and_one_that_waits_for_the_processor_is_not(tmp_path, monkeypatch, work, code):
    monkeypatch.setattr(sanitize, "LOOK_S", 1.5)
    (tmp_path / "at").write_text("16")
    text = f"import time\nwhile time.process_time() < 2.5:\n    {work}"
    assert sanitize._answer([sys.executable, "-c", text], dict(os.environ), tmp_path / "at")[0] == code


def test_no_compiler_is_a_sentence(monkeypatch, capfd):
    monkeypatch.setattr(building, "compilers", list)
    assert main(["--cases", "16"]) == 2
    assert "no C compiler here" in capfd.readouterr().err


def test_the_same_number_is_the_same_case():
    files = corpus()
    once, again = (damaged(np.random.default_rng([3, 7]), files) for _ in range(2))
    assert once == again and len({damaged(np.random.default_rng([3, k]), files) for k in range(50)}) > 40
