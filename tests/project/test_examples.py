"""Each script of examples/ runs as it stands, and says what it promises."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"
#: Script: arguments that keep it short, and what it must print.
SCRIPTS = {
    "records": ([], ["packed 120 images, left out 0", "120 of 120 records are whole", "(16, 64, 64, 3) uint8"]),
    "fastest_mode": (["1"], ["→ ", "chosen: "]),
    "own_loop": ([], ["validation accuracy after one epoch: 0."]),
    "why_slow": (["12"], ["share of a step: {'data': ", ": "]),
    "text": (["--epochs", "1"], ["epoch 1: loss 1.", ", accuracy 0."]),
    "detection": (["--epochs", "1"], ["epoch 1: loss 0.0", ", found 0."]),
    "compare": (["page.html"], ["as installed: ", "with gluontune: ", "wrote page.html"]),
}


def test_the_list_names_each_script():
    assert sorted(SCRIPTS) == sorted(path.stem for path in FOLDER.glob("*.py"))
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{name}.py` |" in listed for name in SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs(name, tmp_path, monkeypatch, capfd):
    arguments, promised = SCRIPTS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    space = runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    printed = capfd.readouterr().out
    assert all(words in printed for words in promised), printed
    if name == "own_loop":
        assert space["right"].get()[1] > 0.5
    if name == "compare":
        assert "with gluontune" in (tmp_path / "page.html").read_text(encoding="utf-8")
