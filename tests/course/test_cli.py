"""``gluontune course``: list, run (and resume), export, open."""

from __future__ import annotations

import json
import os
import re
import socket
import sys

import pytest

from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.course import lessons as lessons_module
from gluontune.course.lessons import MOVED, find_lessons, pick, progress_of
from gluontune.course.running import SOLUTIONS, parameters_of, run_lessons, solved
from gluontune.course.website import page_files, write_site

MARKDOWN = """# {number} · Lesson {number}

**Question.** What is *it*, in
`two` lines?

## Measure `it`
Some words about throughput, $r = n / t$, not `$r$`. Then `{other}`, or [`{other}`]({other}.ipynb).
"""


def write(folder, name, code, other):
    import nbformat  # takes a second: only where it is used

    folder.mkdir(exist_ok=True)
    new = nbformat.v4
    notebook = new.new_notebook(
        cells=[
            new.new_markdown_cell(MARKDOWN.format(number=name[:2], other=other)),
            new.new_code_cell('out_dir = "x"\nepochs = 1', metadata={"tags": ["parameters"]}),
            new.new_code_cell(code),
        ],
        metadata={"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
    )
    nbformat.write(notebook, folder / f"{name}.ipynb")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "notebooks"
    figure = "from gluontune.course import bars\nbars({'a': epochs}, unit='images/s', caption='One & only')"
    write(place, "00_first", figure, "01_second")
    write(place, "01_second", "import os\nprint('threads', os.environ.get('OMP_NUM_THREADS'))", "00_first")
    return place


def test_status_reads_how_far_a_learner_is_from_the_saved_notebooks(folder, capfd):
    import nbformat

    new = nbformat.v4
    lesson = nbformat.read(folder / "00_first.ipynb", as_version=4)
    for source, said in (
        ('predict("a", 3)\npredict("b", ...)', "written down"),
        ('check("feed-rate", ...)', "feed-rate: not answered yet."),
        ('check("feed-rate", 256 / 0.025)', "feed-rate: right."),
        ("check('step-serial',", ""),
    ):
        output = new.new_output("stream", name="stdout", text=said)
        lesson.cells.append(new.new_code_cell(source, outputs=[output], execution_count=7))
    nbformat.write(lesson, folder / "00_first.ipynb")
    begun, untouched = map(progress_of, find_lessons(folder))
    assert (begun.state, begun.predicted, begun.predictions, begun.right, begun.exercises) == ("begun", 1, 2, 1, 1)
    assert (begun.cells_run, begun.cells, untouched.state) == (4, 6, "not begun")
    for cell in lesson.cells:
        if cell.cell_type == "code":
            cell.execution_count = 1
    nbformat.write(lesson, folder / "00_first.ipynb")
    assert main(["course", "status", "--folder", str(folder), "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["lessons"][0]["state"] == "done" and shown["next"] == "01_second"
    assert main(["course", "status", "--folder", str(folder)]) == 0
    assert "1 of 2 lessons done; go on with: gluontune course open 01_second" in capfd.readouterr().out


def test_lessons_are_found_with_their_questions(folder):
    first, second = find_lessons(folder)
    assert (first.name, first.title, first.question) == ("00_first", "00 · Lesson 00", "What is it, in two lines?")
    assert parameters_of(second) == {"out_dir", "epochs"}
    assert [x.name for x in pick([first, second], ["1"])] == ["01_second"]
    assert pick([first, second], ["01_second", "00"]) == [first, second] == pick([first, second], [])
    with pytest.raises(UsageError, match="did you mean '00_first'"):
        pick([first, second], ["00_frist"])
    with pytest.raises(UsageError, match="'07_scaling': it is 08_scaling now; there are 00_first"):
        pick([first, second], ["07_scaling"])
    now = {lesson.name for lesson in find_lessons()}
    assert not now & set(MOVED) and {name for names in MOVED.values() for name in names.split(" and ")} <= now
    with pytest.raises(UsageError, match="--folder"):
        find_lessons(folder / "none")


def test_the_source_trees_lessons_are_listed(capfd):
    assert main(["course", "list", "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)["lessons"]
    assert {"00_your_machine", "04_hybridize"} <= {lesson["name"] for lesson in listed}
    assert all("?" in lesson["question"] for lesson in listed)


def test_a_wheels_lessons_are_copied_before_they_are_opened(folder, tmp_path, monkeypatch):
    site_packages = tmp_path / "site-packages" / "gluontune"
    site_packages.mkdir(parents=True)
    folder.rename(site_packages / "_notebooks")
    monkeypatch.setattr(lessons_module.gluontune, "__file__", str(site_packages / "__init__.py"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    lessons = find_lessons()
    assert [lesson.name for lesson in lessons] == ["00_first", "01_second"]
    mine = lessons_module.unpack(lessons)
    assert [str(lesson.path) for lesson in mine] == ["notebooks/00_first.ipynb", "notebooks/01_second.ipynb"]
    mine[0].path.write_text("worked in", encoding="utf-8")
    lessons_module.unpack(lessons)
    assert mine[0].path.read_text(encoding="utf-8") == "worked in", "what a learner wrote is kept"
    assert lessons_module.unpack(mine) == mine


def test_lessons_are_listed_without_the_notebook_tools_and_run_says_what_is_missing(folder, monkeypatch, capfd):
    for name in ("nbformat", "papermill", "jupyterlab"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("gluontune.course.running.module_exists", lambda name: False)
    assert main(["course", "list", "--folder", str(folder)]) == 0
    for command in ("run", "open"):
        assert main(["course", command, "--folder", str(folder)]) == 1
        assert "pip install 'gluontune[notebooks]'" in capfd.readouterr().err
    (folder / "02_broken.ipynb").write_text("{}", encoding="utf-8")
    assert main(["course", "list", "--folder", str(folder)]) == 1
    assert "02_broken.ipynb: not a notebook" in capfd.readouterr().err


@pytest.mark.slow
def test_a_run_sums_up_resumes_and_is_exported(folder, tmp_path, capfd):
    import nbformat

    out, site = tmp_path / "out", tmp_path / "site"
    arguments = ["course", "run", "--folder", str(folder), "--out", str(out), "-p", "epochs=3", "--json"]
    assert main(arguments) == 0
    found = json.loads(capfd.readouterr().out)
    assert [x["status"] for x in found["lessons"]] == ["passed", "passed"] and found["failed"] == 0
    assert [x["figures"] for x in found["lessons"]] == [1, 0]
    assert '"epochs": 3' in (out / "00_first.ipynb").read_text() or "epochs = 3" in (out / "00_first.ipynb").read_text()
    threads = nbformat.read(out / "01_second.ipynb", 4).cells[-1].outputs[0].text
    assert threads.split()[-1].isdigit(), "the kernel has the launch settings"

    write(folder, "01_second", "raise ValueError('no <data>')", "00_first")
    assert main(arguments) == 1
    found = json.loads(capfd.readouterr().out)
    assert [x["resumed"] for x in found["lessons"]] == [True, False]
    assert found["lessons"][1]["status"] == "failed" and "ValueError: no <data>" in found["lessons"][1]["error"]
    with pytest.raises(GluontuneError, match="ValueError"):
        write_site(find_lessons(folder), out, site)

    write(folder, "01_second", "1 + 1", "00_first")
    export = ["course", "export", "--folder", str(folder), "--out", str(out), "--site", str(site), "-p", "epochs=3"]
    assert main([*export, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["broken_links"] == []
    page = (site / "00_first.html").read_text()
    assert 'aria-label="One &amp; only. a 3' in page and '<a href="01_second.html"><code>01_second</code></a>' in page
    assert 'alt="r = n / t"' in page and "<code>$r$</code>" in page and ".ipynb" not in page
    asked = re.findall(r'(?:src|href)="(https?:[^"]+)', page)
    assert set(asked) <= {"https://squidfunk.github.io/mkdocs-material/"}, "the site asks nobody for anything"
    index = (site / "search" / "search_index.js").read_text()
    assert "throughput" in index and "#measure-it" in page and 'id="measure-it"' in page

    notebook = out / "01_second.ipynb"
    notebook.write_text(notebook.read_text().replace("## Measure `it`", "## Measure [it](gone.md)"))
    assert main([*export, "--json"]) == 1
    assert "gone.md" in json.loads(capfd.readouterr().out)["broken_links"][0]


def test_a_page_has_each_exercise_once_and_nothing_that_only_a_learner_can_do(folder, tmp_path):
    import nbformat

    new = nbformat.v4
    lesson = nbformat.read(folder / "00_first.ipynb", as_version=4)
    parameters = new.new_code_cell("epochs = 9", metadata={"tags": ["injected-parameters"]})
    stub = 'check("step-serial", ...)'
    for cell, text in (
        (parameters, ""),
        (new.new_code_cell('predict("images a second", ...)'), "images a second: no prediction yet. Put a number.\n"),
        (new.new_code_cell("print(compare())"), "Measured is 3; nothing was predicted for images a second.\n"),
        (new.new_code_cell(stub), "step-serial: not answered yet. Put your answer in place of the three dots.\n"),
        (new.new_code_cell(solved(stub)), "step-serial: right.\n"),
    ):
        cell.outputs = [new.new_output("stream", name="stdout", text=text)] * bool(text)
        lesson.cells.append(cell)
    nbformat.write(lesson, folder / "00_first.ipynb")
    (name, content), *_ = page_files(find_lessons(folder)[0], folder, {"00_first"})
    text = content.decode()
    assert name == "00_first.md" and text.count("step-serial") == 2
    assert "Measured, images a second: 3.\n" in text
    assert not re.search(
        "no prediction|not answered|was predicted|epochs = 9|, \\.\\.\\.\\)", text.replace('second", ...)', "")
    )


def test_solutions_that_are_not_right_fail_their_lesson(folder, tmp_path, monkeypatch, capfd):
    write(folder, "00_first", 'from gluontune.course import check\ncheck("step-serial", ...)', "01_second")
    arguments = ["course", "run", "00", "--folder", str(folder), "--out", str(tmp_path / "out"), "--json"]
    assert main(arguments) == 0
    assert main([*arguments, "--solved"]) == 0
    text = (tmp_path / "out" / "00_first.ipynb").read_text()
    assert "not answered yet" in text and "step-serial: right." in text and "False" not in text
    monkeypatch.setitem(SOLUTIONS, "step-serial", "1")
    assert main([*arguments, "--solved", "--fresh"]) == 1
    assert "0 of 1 solutions are right" in capfd.readouterr().out


def test_a_lesson_that_takes_too_long_is_ended(folder, tmp_path):
    write(folder, "01_second", "import time\ntime.sleep(60)", "00_first")
    late = run_lessons(pick(find_lessons(folder), ["01"]), tmp_path / "out", time_limit=4)
    assert [(x.status, x.error) for x in late] == [("timed out", "took longer than 4 s")]


@pytest.mark.parametrize("command", ["run", "export"])
def test_an_interruption_ends_the_command_with_its_own_code(command, folder, tmp_path):
    write(folder, "00_first", f"import os, time\nos.kill({os.getpid()}, 2)\ntime.sleep(60)", "01_second")
    where = ["--folder", str(folder), "--out", str(tmp_path / "out")]
    site = ["--site", str(tmp_path / "site")] if command == "export" else []
    assert main(["course", command, *where, *site]) == 130
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["lessons"][0]["status"] == "interrupted"


def test_a_parameter_that_no_lesson_has_is_refused(folder, tmp_path, capfd):
    arguments = ["course", "run", "--folder", str(folder), "--out", str(tmp_path / "out"), "-p", "epoch=3"]
    assert main(arguments) == 2
    assert "epochs, out_dir" in capfd.readouterr().err


def test_a_site_takes_no_folder_with_other_files(folder, tmp_path, capfd):
    """mkdocs empties the folder: ``--site .`` would remove all that is there, after an hour of lessons."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "thesis.txt").write_text("mine")
    export = ["course", "export", "--folder", str(folder), "--out", str(tmp_path / "out")]
    assert main([*export, "--site", str(tmp_path / "site")]) == 2
    assert "site: holds other files" in capfd.readouterr().err
    assert (tmp_path / "site" / "thesis.txt").exists() and not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="holds other files"):
        write_site(find_lessons(folder), folder, tmp_path / "site")


def test_a_notebook_writes_no_figure_outside_of_the_site(folder, monkeypatch):
    """A figure may bring a name; nbconvert before 7.17 took it as it is."""
    from nbconvert import MarkdownExporter

    made = "text", {"outputs": {"../../.bashrc": b"1", "/etc/passwd": b"2", "a.png": b"3"}}
    monkeypatch.setattr(MarkdownExporter, "from_notebook_node", lambda *_, **__: made)
    names = [name for name, _ in page_files(find_lessons(folder)[0], folder, {})]
    assert names == ["00_first.md", ".bashrc", "passwd", "a.png"]


def test_an_export_needs_executed_lessons(folder, tmp_path):
    with pytest.raises(GluontuneError, match="gluontune course run 00"):
        write_site(find_lessons(folder), tmp_path, tmp_path / "site")


def test_jupyterlab_listens_here_only_and_its_token_is_no_argument(folder, monkeypatch, capfd):
    seen, kernels = {}, []

    class Server:
        def __init__(self, command, env):
            seen.update(command=command, env=env)

        def wait(self, timeout=None):
            if "ended" not in seen:
                raise KeyboardInterrupt
            return 0

        def terminate(self):
            seen["ended"] = True

        def kill(self):
            seen["gone"] = True

    monkeypatch.setattr(lessons_module.subprocess, "Popen", Server)
    monkeypatch.setattr(lessons_module.runtime, "install_kernel", lambda *given, **options: kernels.append(given))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["course", "open", "01", "--folder", str(folder), "--no-browser", "--port", str(port)]) == 0
    assert seen["ended"] and seen["gone"], "Ctrl-C leaves no server behind"
    token = seen["env"]["JUPYTER_TOKEN"]
    assert len(token) >= 32 and not any(token in part for part in seen["command"]) and kernels == [(), ("python3",)]
    assert seen["command"][0] == sys.executable and "-m jupyterlab --ServerApp" in " ".join(seen["command"])
    assert "--ServerApp.ip=127.0.0.1" in seen["command"] and "OMP_NUM_THREADS" in seen["env"]
    used = int(re.search(r"--ServerApp.port=(\d+)", " ".join(seen["command"]))[1])
    assert used > port, "the port that is said is the one that is free"
    assert f"http://127.0.0.1:{used}/lab/tree/01_second.ipynb?token={token}" in capfd.readouterr().out
