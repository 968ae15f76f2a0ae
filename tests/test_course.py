"""The lessons: pairs in step, executed by papermill, exercises that hint."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from gluontune import report, runtime
from gluontune.course import EXERCISES, check, show
from gluontune.course.pairing import notebook_text
from gluontune.errors import UsageError
from gluontune.recipe import Recipe
from gluontune.result import RunResult

FOLDER = Path(__file__).parent.parent / "notebooks"
LESSONS = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
PARAMETERS = (
    "dataset",
    "epochs",
    "batch_size_per_device",
    "dtype",
    "num_workers",
    "devices",
    "quick",
    "out_dir",
    "seed",
)


def ids(path):
    return path.stem


def test_there_are_lessons():
    assert [p.stem for p in LESSONS] == ["00_your_machine", "01_naive"]


@pytest.mark.parametrize("script", LESSONS, ids=ids)
def test_the_notebook_is_the_scripts_and_light(script):
    pair = script.with_suffix(".ipynb")
    text = pair.read_text()
    assert text == notebook_text(script), f"run: python -m gluontune.course.pairing {FOLDER.name}"
    assert len(text) <= 60_000
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    tagged = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1 and all(f"{name} = " in tagged[0].source for name in PARAMETERS)
    assert max(c.source.count("\n") + 1 for c in notebook.cells if c.cell_type == "code") <= 20


@pytest.mark.parametrize("script", LESSONS, ids=ids)
def test_the_lesson_runs_without_a_person(script, tmp_path):
    import papermill

    out = tmp_path / "out"
    done = papermill.execute_notebook(
        str(script.with_suffix(".ipynb")),
        str(tmp_path / "done.ipynb"),
        parameters={"out_dir": str(out), "quick": True},
        cwd=str(tmp_path),
        progress_bar=False,
    )
    outputs = [o for c in done.cells if c.cell_type == "code" for o in c.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    shown = json.dumps(outputs)
    assert "<svg" in shown and "You predicted" in shown and "not answered yet" in shown
    assert report.collect([out]).sources


def result():
    return RunResult(
        recipe=Recipe(batch_size_per_device=64).to_dict(),
        samples_per_sec={"median": 320.0, "ci95": [300.0, 340.0], "n": 9},
        phases_pct={"data": 60.0, "forward": 40.0},
        val_accuracy=[0.5],
        elapsed_seconds=[2.0],
        utilization={"t_s": [0.0, 1.0, 2.0], "cpu_pct": [50.0, 60.0, 70.0]},
    )


ANSWERS = {
    "usable-cores": ({}, lambda: runtime.usable_cores(), {-1: "machine", 99_999: "machine", 0.5: "machine"}),
    "omp-threads": (
        {},
        lambda: int(runtime.launch_settings(processes=2).env["OMP_NUM_THREADS"]),
        {-1: "launch_settings", 77_777: "launch_settings", 0: "launch_settings"},
    ),
    "epoch-seconds": (
        {"result": result(), "num_train": 10_000},
        lambda: 31.25,
        {31.25 / 60: "minutes", 0.032: "fraction", 156.25: "steps", 7: "Divide"},
    ),
    "step-time-ms": (
        {"result": result()},
        lambda: 200.0,
        {0.2: "seconds", 3.125: "one image", 5: "batch size divided"},
    ),
}


@pytest.mark.parametrize("name", EXERCISES.names())
def test_exercises_know_the_answer_and_hint_at_each_mistake(name, capsys):
    given, truth, mistakes = ANSWERS[name]
    assert check(name, truth(), **given)
    assert not check(name, ..., **given)
    assert not check(name, "three", **given)
    capsys.readouterr()
    assert len(mistakes) >= 3
    for wrong, hint in mistakes.items():
        assert not check(name, wrong, **given)
        assert hint in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["throughput", "phases", "utilization", "accuracy"])
def test_figures_are_drawn_and_escaped(kind):
    text = str(show(kind, {"<b>naive</b>": result()}))
    assert "<svg" in text and "<b>naive" not in text and "prefers-color-scheme" in text


def test_an_unknown_figure_is_named():
    with pytest.raises(UsageError, match="phases"):
        show("phase", {"naive": result()})
