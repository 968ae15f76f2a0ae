"""The lessons: pairs in step, executed by papermill with their exercises solved."""

from __future__ import annotations

import inspect
import json
import re
from operator import attrgetter

import numpy as np
import pytest
from course_small import FOLDER, small

import gluontune
from gluontune import report
from gluontune.core.errors import GluontuneError
from gluontune.course.exercises import EXERCISES
from gluontune.course.figures import picture
from gluontune.course.running import SOLUTIONS, solved_notebook
from gluontune.course.website import with_formulas
from tools.build_notebooks import LARGEST, PUBLISHED, notebook_text, with_outputs
from tools.pictures import BOOK, drawn

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
# The others run in `make course`.
RUN_HERE = ("01_naive", "11_lr_schedules")


def ids(path):
    return path.stem


def cells(script):
    import nbformat  # takes a second: only where it is used

    return nbformat.reads(notebook_text(script), as_version=4).cells


def test_lessons_name_the_language_of_their_kernel_so_that_opening_one_does_not_change_it():
    from gluontune.course.kernel import LessonKernel

    for script in LESSONS:
        assert json.loads(notebook_text(script))["metadata"]["language_info"] == LessonKernel.language_info


def test_the_rubric_has_ten_questions_with_answers_for_each_lesson():
    rubric = (FOLDER.parent / "docs" / "course-rubric.md").read_text(encoding="utf-8")
    parts = dict(part.split("\n", 1) for part in rubric.split("\n## ")[1:])
    titles = [re.search(r"^# # (.+)$", script.read_text(encoding="utf-8"), re.M)[1] for script in LESSONS]
    assert list(parts) == titles
    for title, questions in parts.items():
        asked = re.findall(r"^(\d+)\. [^?\n]+\?.* [^\n]+\.$", questions, re.M)
        assert [int(n) for n in asked] == list(range(1, 11)), title


def test_there_are_lessons():
    assert [int(p.stem[:2]) for p in LESSONS] == [*range(16), 99], "each lesson has a number of its own"


@pytest.mark.parametrize("script", LESSONS, ids=ids)
def test_the_notebook_is_the_scripts_and_light(script):
    import nbformat

    pair = script.with_suffix(".ipynb")
    text = pair.read_text()
    assert text == notebook_text(script), f"run: python -m tools.build_notebooks {FOLDER.name}"
    assert len(text) <= 60_000
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    tagged = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1 and all(f"{name} = " in tagged[0].source for name in PARAMETERS)
    assert max(c.source.count("\n") + 1 for c in notebook.cells if c.cell_type == "code") <= 21


@pytest.mark.parametrize("script", LESSONS, ids=ids)
def test_a_lesson_asks_first_and_ends_with_exercises(script):
    prose = "\n".join(c.source for c in cells(script) if c.cell_type == "markdown")
    parts = (
        "**Question.**",
        "**You will be able to**",
        "**Before this:**",
        "**Time:**",
        "## By hand",
        "## With gluontune",
        "| by hand | with gluontune | what it adds |",
        "## Summary: what to remember",
        "## Exercises",
        "**Reference:**",
        "**Next:**",
    )
    order = [prose.index(part) for part in parts]
    assert order == sorted(order)
    code = "\n".join(c.source for c in cells(script) if c.cell_type == "code")
    assert next(c.source for c in cells(script) if c.cell_type == "code").endswith('")')  # the picture
    assert code.index("picture(") < code.index("dataset = ") < code.index("# Try this: ")
    for name in re.findall(r"`gt\.([a-zA-Z_.]+)\?`", prose):
        assert callable(attrgetter(name)(gluontune)) or inspect.ismodule(attrgetter(name)(gluontune))
    assert code.index("predict(") < code.index("compare(")
    assert len(re.findall(r'check\("[a-z0-9-]+", \.\.\.', code)) in (3, 4)


@pytest.mark.parametrize("script", LESSONS, ids=ids)
def test_a_lesson_runs_gluon_of_its_own_before_it_calls_gluontune(script):
    found = cells(script)
    begins = next(n for n, c in enumerate(found) if c.cell_type == "markdown" and "## By hand" in c.source)
    ends = next(n for n, c in enumerate(found) if c.cell_type == "markdown" and "## With gluontune" in c.source)
    code = "\n".join(c.source for c in found[begins:ends] if c.cell_type == "code")
    assert begins < ends and len([line for line in code.splitlines() if line.strip()]) >= 10
    assert re.search(r"gluon|nn\.|recordio", code) and not re.search(
        r"gt\.(train|ladder|compute)\.(run|climb|hybridize)", code
    )


def test_an_exercise_of_each_lesson_asks_for_code():
    for script in LESSONS:
        names = re.findall(r'check\("([a-z0-9-]+)"', script.read_text())
        assert any(EXERCISES[name].takes == "function" for name in names), script.stem
    assert sum(entry.takes == "function" for _, entry in EXERCISES.items()) >= 20


def test_formulas_can_be_drawn_on_the_site_and_papers_are_linked():
    with_one = [p.stem for p in LESSONS if "$" in "".join(c.source for c in cells(p) if c.cell_type == "markdown")]
    assert len(with_one) >= 12
    for script in LESSONS:
        for cell in cells(script):
            if cell.cell_type == "markdown":
                drawn = with_formulas(cell.source)
                assert "$" not in re.sub(r"`[^`]*`|```.*?```", "", drawn, flags=re.S), cell.source
    text = "".join(p.read_text() for p in LESSONS)
    assert len(set(re.findall(r"https://(?:arxiv|doi)\.org/[^)\s]+", text))) >= 20


def test_lessons_that_are_named_are_there():
    named = {n for p in LESSONS for n in re.findall(r"`(\d\d_[a-z0-9_]+)`", p.read_text())}
    assert len(named) >= len(LESSONS) - 1 and named <= {p.stem for p in LESSONS}


@pytest.mark.parametrize("name", BOOK)
def test_a_picture_is_the_one_that_its_tool_draws(name):
    numbers = r"(?<![\w#])-?\d+\.?\d*"  # versions of matplotlib round differently
    stored, now = str(picture(name)).split("<figure>")[1].split("<figcaption>")[0], drawn(name)
    stored = re.sub(r' style="width:\d+px"', "", stored)
    assert re.sub(numbers, "", stored) == re.sub(numbers, "", now), "run: python -m tools.pictures"
    sizes = [np.array(re.findall(numbers, text), float) for text in (stored, now)]
    np.testing.assert_allclose(*sizes, atol=0.5)


def test_every_lesson_has_its_picture_and_no_other_is_stored():
    named = {n for p in LESSONS for n in re.findall(r'picture\("([a-z-]+)"\)', p.read_text())}
    assert named <= set(BOOK) == {path.stem for path in (FOLDER / "pictures").glob("*.svg")}


def test_every_exercise_has_a_lesson_and_a_solution():
    used = [n for p in LESSONS for n in re.findall(r'check\("([a-z0-9-]+)"', p.read_text())]
    assert sorted(used) == sorted(EXERCISES.names()) == sorted(SOLUTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN_HERE)
def test_the_lesson_runs_without_a_person_and_its_solutions_are_right(name, tmp_path):
    import papermill

    lesson = tmp_path / "lesson.ipynb"
    exercises = solved_notebook(FOLDER / f"{name}.ipynb", lesson)
    done = papermill.execute_notebook(
        str(lesson),
        str(tmp_path / "done.ipynb"),
        parameters={"out_dir": str(tmp_path / "out"), **small(name)},
        cwd=str(tmp_path),
        progress_bar=False,
    )
    outputs = [o for c in done.cells if c.cell_type == "code" for o in c.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    shown = json.dumps(outputs)
    assert "<svg" in shown and "no prediction yet" in shown and "nothing was predicted for" in shown
    assert shown.count("not answered yet") == shown.count(": right.") == exercises
    assert "not yet. " not in shown and '"False' not in shown
    assert report.collect([tmp_path / "out"]).sources


@pytest.mark.parametrize("script", LESSONS, ids=ids)
def test_the_published_lesson_has_the_outputs_of_todays_text(script):
    """``make course``, then ``python -m tools.build_notebooks notebooks --outputs runs/course`` publishes anew."""
    import nbformat

    text = (PUBLISHED / f"{script.stem}.ipynb").read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code) and any(cell.outputs for cell in code)
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert "cores of" in notebook.cells.pop().source
    for cell in code:
        cell.outputs, cell.execution_count = [], None
    assert nbformat.writes(notebook, version=4) + "\n" == notebook_text(script)
    assert len(text.encode()) <= LARGEST
    assert not re.search(r"/(?:work|root|home|tmp|Users)/", text)


def test_outputs_are_published_of_what_was_run_and_of_nothing_else(tmp_path):
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook, new_output

    script = tmp_path / "01_small.py"
    script.write_text("# %%\nprint('a')\n\n# %%\ncheck('b', ...)\n")
    done = new_output("stream", name="stdout", text="in /work/here/runs/course/01/x.rec and /tmp/lesson-abc/y\n")
    noise = new_output("stream", name="stderr", text="a warning\n")
    page = '<style>a</style><svg aria-label="A &lt; B"><path d="M 1.23456 2"/></svg><figcaption>It grows</figcaption>'
    figure = new_output("display_data", data={"text/html": page, "application/x": "1"}, metadata={"transient": 1})
    solution = new_code_cell("check('b', 3)", execution_count=4, outputs=[done])
    cells = [
        new_code_cell("dataset = 'sample'", execution_count=1, outputs=[done]),  # papermill's parameters
        new_code_cell("print('a')", execution_count=2, outputs=[done, noise]),
        new_code_cell("check('b', ...)", execution_count=3, outputs=[figure]),
    ]
    executed = tmp_path / "ran.ipynb"
    executed.write_text(nbformat.writes(new_notebook(cells=[*cells, solution])))
    text = with_outputs(script, executed, "2 cores of this")
    first, second, note = nbformat.reads(text, as_version=4).cells
    assert first.outputs == [
        {"output_type": "stream", "name": "stdout", "text": "in runs/course/01/x.rec and /lesson-abc/y\n"}
    ]
    drawn_one, words = second.outputs
    assert 'd="M 1.23 2"' in drawn_one.data["image/svg+xml"] and "xmlns=" in drawn_one.data["image/svg+xml"]
    assert drawn_one.data["text/plain"] == "It grows" and words.data["text/markdown"] == "*It grows*"
    assert second.execution_count == 2
    assert "2 cores of this" in note.source and "check('b', 3)" not in text

    script.write_text("# %%\nprint('changed')\n")
    with pytest.raises(GluontuneError, match=r"cell 1 of 01_small.py was not run as it is today: make course"):
        with_outputs(script, executed, "")
    script.write_text("# %%\nprint('a')\n")
    cells[1].outputs = [new_output("display_data", data={"image/png": "x" * 60_001})]
    executed.write_text(nbformat.writes(new_notebook(cells=cells)))
    with pytest.raises(GluontuneError, match="an output of 60,001 bytes"):
        with_outputs(script, executed, "")
    cells[1].outputs = [new_output("error", ename="ValueError", evalue="no", traceback=[])]
    executed.write_text(nbformat.writes(new_notebook(cells=cells)))
    with pytest.raises(GluontuneError, match="cell 1 failed: ValueError: no"):
        with_outputs(script, executed, "")
