"""The course: ``course`` lists, opens, runs and exports lessons, ``assess`` grades a learner's script."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any, Optional

import typer

from gluontune.cli._common import deliver, say, say_table, stderr, stdout, stdout_reserved
from gluontune.cli._options import JSON_OPTION, argument, option
from gluontune.cli._recipe import parse_settings
from gluontune.core.errors import UsageError
from gluontune.course import assessment

FOLDER = option(None, "The notebooks [default: ./notebooks, or those of gluontune].", "--folder")
NAMES = argument(None, "02, or 02_multi_worker; none: all.", metavar="[LESSON…]")
OUT = option(Path("runs/course"), "Folder of executed notebooks, results, summary.json.", "--out")
SET = option([], "A parameter of the lessons, NAME=VALUE; repeatable.", "--set", "-p")
SOLVED = option(False, "Answer the exercises too; a solution that is not right fails its lesson.", "--solved")
TIME_LIMIT = option(1800.0, "Seconds for one lesson.", "--time-limit")


def list_command(folder: Optional[Path] = FOLDER, as_json: bool = JSON_OPTION) -> None:
    """Show the lessons, and the question of each."""
    from gluontune.course.lessons import find_lessons

    lessons = find_lessons(folder)
    rows = [(lesson.title, lesson.question) for lesson in lessons]
    document = {"lessons": [{**vars(lesson), "path": str(lesson.path)} for lesson in lessons]}
    deliver(document, as_json, lambda: say_table(("lesson", "question"), rows))


def status_command(folder: Optional[Path] = FOLDER, as_json: bool = JSON_OPTION) -> None:
    """Show your progress: executed cells, predictions and right exercises, from your saved notebooks."""
    from gluontune.course.lessons import find_lessons, progress_of

    found = [progress_of(lesson) for lesson in find_lessons(folder)]
    after = next((p for p in found if p.state != "done"), None)

    def show() -> None:
        rows = [(p.name, p.state, f"{p.cells_run} of {p.cells}", f"{p.predicted} of {p.predictions}",
                 f"{p.right} of {p.exercises}") for p in found]  # fmt: skip
        say_table(("lesson", "", "cells run", "predicted", "exercises right"), rows)
        done = sum(p.state == "done" for p in found)
        go_on = f"; go on with: gluontune course open {after.name}" if after else ""
        say(f"{done} of {len(found)} lessons done{go_on}")

    deliver({"lessons": [vars(p) for p in found], "next": after.name if after else None}, as_json, show)


def open_command(
    lesson: Optional[str] = argument(None, "Open this one; default: the folder.", metavar="[LESSON]"),
    folder: Optional[Path] = FOLDER,
    port: int = option(8888, "Of JupyterLab on 127.0.0.1; the next free one is taken."),
    browser: bool = option(True, "Open a browser."),
) -> None:
    """Open JupyterLab on this machine only, with a token, our kernel and our launch settings.

    The lessons of an installed wheel are first copied into ./notebooks; existing files are kept.
    """
    from gluontune.course.lessons import find_lessons, lab, pick, unpack
    from gluontune.course.running import need

    need("jupyterlab")
    lessons = unpack(find_lessons(folder))
    first = pick(lessons, [lesson])[0] if lesson else None
    raise typer.Exit(lab(lessons, first=first, port=port, browser=browser))


def run_command(
    names: Optional[list[str]] = NAMES,
    folder: Optional[Path] = FOLDER,
    out: Path = OUT,
    settings: list[str] = SET,
    fresh: bool = option(False, "Run passed lessons again, too."),
    solved: bool = SOLVED,
    time_limit: float = TIME_LIMIT,
    as_json: bool = JSON_OPTION,
) -> None:
    """Execute lessons by papermill; a stopped run goes on where it stopped. Exit 1 if one fails."""
    outcomes = _execute(names or [], folder, out, settings, fresh=fresh, solved=solved, time_limit=time_limit)
    failed = [outcome for outcome in outcomes if outcome.status != "passed"]
    counts = {"passed": len(outcomes) - len(failed), "failed": len(failed)}
    deliver({"lessons": [vars(o) for o in outcomes], **counts}, as_json, lambda: _show(outcomes, out))
    raise typer.Exit(_exit_code(outcomes))


def export_command(
    names: Optional[list[str]] = NAMES,
    folder: Optional[Path] = FOLDER,
    site: Path = option(Path("course-site"), "Folder of the site."),
    out: Path = OUT,
    settings: list[str] = SET,
    solved: bool = SOLVED,
    time_limit: float = TIME_LIMIT,
    as_json: bool = JSON_OPTION,
) -> None:
    """Make a static site that needs no server; runs lessons that have not been run."""
    from gluontune.course.lessons import find_lessons, pick
    from gluontune.course.website import site_folder, write_site

    site_folder(site)  # before lessons run for an hour
    outcomes = _execute(names or [], folder, out, settings, solved=solved, time_limit=time_limit)
    if any(outcome.status != "passed" for outcome in outcomes):
        _show(outcomes, out, console=stderr)
        raise typer.Exit(_exit_code(outcomes))
    written, broken = write_site(pick(find_lessons(folder), names or []), out, site)

    def show() -> None:
        say(f"{site / 'index.html'}: {len(outcomes)} lessons")
        say(*(f"broken link: {link}" for link in broken), to=stderr)

    files = {"files": [str(path) for path in written], "broken_links": broken}
    deliver({"index": str(site / "index.html"), **files}, as_json, show)
    raise typer.Exit(1 if broken else 0)


def _execute(names: list[str], folder: Path | None, out: Path, settings: list[str], **how: Any) -> list[Any]:
    from gluontune.course.lessons import find_lessons, pick
    from gluontune.course.running import run_lessons

    lessons = pick(find_lessons(folder), names)

    def tell(name: str, outcome: Any) -> None:
        if outcome is None:
            say(f"{name} …", to=stderr)
        else:
            again = ", from the run before" if outcome.resumed else ""
            say(f"{name}: {outcome.status}, {outcome.seconds:.0f} s{again}", to=stderr)

    return run_lessons(lessons, out, parameters=parse_settings(settings), on_event=tell, **how)


def _exit_code(outcomes: list[Any]) -> int:
    found = {outcome.status for outcome in outcomes}
    return 130 if "interrupted" in found else int(found != {"passed"})


def _show(outcomes: list[Any], out: Path, console: Any = stdout) -> None:
    notes = ["from the run before" if outcome.resumed else outcome.error or "" for outcome in outcomes]
    rows = [(o.name, o.status, f"{o.seconds:.0f}", str(o.figures), note) for o, note in zip(outcomes, notes)]
    say_table(("lesson", "status", "seconds", "figures", ""), rows, to=console)
    total = sum(outcome.seconds for outcome in outcomes)
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    say(f"{passed} of {len(outcomes)} passed, {total:.0f} s; results in {out}", to=console)


def assess(
    script: Optional[Path] = argument(None, "The training script.", metavar="[SCRIPT.py]"),
    new: Optional[Path] = option(None, "Write the naive script to begin with, and stop.", metavar="FILE"),
    ranks: Optional[int] = option(None, "Try this part alone; default: one rank, then two.", min=1, max=2),
    quick: bool = option(False, "A third of the data: for a try."),
    engine: str = option("kvstore", "How two ranks talk: kvstore or horovod."),
    out: Path = option(Path("runs/assessment"), "Folder of assessment.json and reference.json."),
    fresh: bool = option(False, "Measure the reference again, though --out has it."),
    runtime: str = option("tuned", "Environment of the script: tuned or as-installed."),
    memory_mib: Optional[int] = option(
        None, "Limit for the script's processes; default: 3/4 of the free memory.", min=256
    ),
    as_json: bool = JSON_OPTION,
) -> int:
    """Grade a training script: accuracy, time, steadiness and correctness, on one rank and then on two.

    Begin with `gluontune assess --new my_script.py`: a naive, serial script. Make it reach the accuracy of a reference
    solution, less 5 points, within twice the reference's time on this machine; then on two ranks. The script calls
    gt.course.task(), trains on task.train, and each rank ends with task.save(net, samples). The classes are drawn anew
    each time and the test images made after the script's end; it runs under limits of time, memory and files, and what
    it leaves running is ended. Exit 0: passed, 1: not passed, 2: wrong usage.
    """
    if (script is None) == (new is None):
        raise UsageError("assess: give the script to grade, or --new FILE to get one to begin with")
    if new is not None:
        written = assessment.new_script(new)
        begin = f"{written}: begin here; `gluontune assess {quote(str(written))}` grades it"
        deliver({"written": str(written)}, as_json, lambda: say(begin))
        return 0
    if engine not in ("kvstore", "horovod"):
        raise UsageError(f"--engine {engine!r}: choose kvstore or horovod")
    assert script is not None
    with stdout_reserved():
        found = assessment.assess(
            script, ranks=ranks, quick=quick, engine=engine, out=out, fresh=fresh, settings=runtime,
            memory_mib=memory_mib,
            on_event=lambda text: say(text, to=stderr),
        )  # fmt: skip
    deliver(found.to_dict(), as_json, lambda: _graded(found))
    return 0 if found.passed else 1


def _graded(found: Any) -> None:
    from gluontune.report.study import text_table

    for part in found.parts:
        rows = [
            (c.name, f"{c.points:g} of {c.max_points}", "ok" if c.passed else "no", c.feedback) for c in part.criteria
        ]
        stdout.print(text_table(f"on {'one rank' if part.ranks == 1 else 'two ranks'}|points||feedback", rows))
        stdout.print()
    if found.skipped:
        say(found.skipped)
    if not found.isolated:
        say("this kernel cannot keep a script from other files (no Landlock)")
    if not found.secluded:
        say("this system cannot keep a script from the network (no namespaces)")
    say(f"{'passed' if found.passed else 'not passed'}: {found.points:g} of {found.max_points} points")


COMMANDS = (assess,)
GROUPS = {
    "course": (
        "List, open, run and export the lessons; see how far you are.",
        (list_command, open_command, status_command, run_command, export_command),
    )
}
