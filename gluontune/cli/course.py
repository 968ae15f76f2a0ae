"""``gluontune course``: list, open, run and export the lessons, and the learner's progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import JSON_OPTION, emit, parse_settings, stderr, stdout

__all__ = ["register"]

FOLDER = typer.Option(None, "--folder", help="The notebooks [default: ./notebooks, or those of gluontune].")
NAMES = typer.Argument(None, metavar="[LESSON…]", help="02, or 02_multi_worker; none: all.")
OUT = typer.Option(Path("runs/course"), "--out", help="Folder of executed notebooks, results, summary.json.")
SET = typer.Option([], "--set", "-p", help="A parameter of the lessons, NAME=VALUE; repeatable.")
SOLVED = typer.Option(
    False, "--solved", help="Answer the exercises too; a solution that is not right fails its lesson."
)
TIME_LIMIT = typer.Option(1800.0, "--time-limit", help="Seconds for one lesson.")


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="List, open, run and export the lessons; see how far you are.", no_args_is_help=True)
    group.command("list")(list_command)
    group.command("open")(open_command)
    group.command("status")(status_command)
    group.command("run")(run_command)
    group.command("export")(export_command)
    app.add_typer(group, name="course")


def list_command(folder: Optional[Path] = FOLDER, as_json: bool = JSON_OPTION) -> None:
    """Show the lessons, and the question of each."""
    from gluontune.course.lessons import find_lessons

    lessons = find_lessons(folder)
    if as_json:
        emit({"lessons": [lesson.to_dict() for lesson in lessons]})
        return
    from rich.table import Table

    table = Table("lesson", "question")
    for lesson in lessons:
        table.add_row(lesson.title, lesson.question)
    stdout.print(table)


def status_command(folder: Optional[Path] = FOLDER, as_json: bool = JSON_OPTION) -> None:
    """Show how far you are: cells run, predictions made and exercises right, from the notebooks as you saved them."""
    from gluontune.course.lessons import find_lessons
    from gluontune.course.progress import progress_of

    found = progress_of(find_lessons(folder))
    after = next((p for p in found if p.state != "done"), None)
    if as_json:
        emit({"lessons": [p.to_dict() for p in found], "next": after.name if after else None})
        return
    from rich.table import Table

    table = Table("lesson", "", "cells run", "predicted", "exercises right")
    for p in found:
        table.add_row(
            p.name,
            p.state,
            f"{p.cells_run} of {p.cells}",
            f"{p.predicted} of {p.predictions}",
            f"{p.right} of {p.exercises}",
        )
    stdout.print(table)
    done = sum(p.state == "done" for p in found)
    go_on = f"; go on with: gluontune course open {after.name}" if after else ""
    stdout.print(f"{done} of {len(found)} lessons done{go_on}", highlight=False, soft_wrap=True)


def open_command(
    lesson: Optional[str] = typer.Argument(None, metavar="[LESSON]", help="Open this one; default: the folder."),
    folder: Optional[Path] = FOLDER,
    port: int = typer.Option(8888, "--port", help="Of JupyterLab on 127.0.0.1; the next free one is taken."),
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open a browser."),
) -> None:
    """Open JupyterLab on this machine only, with a token, our kernel and our launch settings.

    The lessons of an installed wheel are first copied into ./notebooks; a file that is there is kept.
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
    fresh: bool = typer.Option(False, "--fresh", help="Run again what has passed before."),
    solved: bool = SOLVED,
    time_limit: float = TIME_LIMIT,
    as_json: bool = JSON_OPTION,
) -> None:
    """Execute lessons by papermill; a stopped run goes on where it was. Exit 1 if one fails."""
    outcomes = _execute(names or [], folder, out, settings, fresh, solved, time_limit)
    failed = [outcome for outcome in outcomes if outcome.status != "passed"]
    if as_json:
        emit({"lessons": [o.to_dict() for o in outcomes], "passed": len(outcomes) - len(failed), "failed": len(failed)})
    else:
        _show(outcomes, out)
    if any(outcome.status == "interrupted" for outcome in failed):
        raise typer.Exit(130)
    raise typer.Exit(1 if failed else 0)


def export_command(
    names: Optional[list[str]] = NAMES,
    folder: Optional[Path] = FOLDER,
    site: Path = typer.Option(Path("course-site"), "--site", help="Folder of the site."),
    out: Path = OUT,
    settings: list[str] = SET,
    solved: bool = SOLVED,
    time_limit: float = TIME_LIMIT,
    as_json: bool = JSON_OPTION,
) -> None:
    """Make one static site that needs no server; runs the lessons that have not been run."""
    from gluontune.course.lessons import find_lessons, pick
    from gluontune.course.website import broken_links, write_site

    outcomes = _execute(names or [], folder, out, settings, False, solved, time_limit)
    failed = [outcome for outcome in outcomes if outcome.status != "passed"]
    if failed:
        _show(outcomes, out, console=stderr)
        raise typer.Exit(1)
    written = write_site(pick(find_lessons(folder), names or []), out, site)
    broken = broken_links(site)
    if as_json:
        emit({"index": str(site / "index.html"), "files": [str(path) for path in written], "broken_links": broken})
    else:
        stdout.print(f"{site / 'index.html'}: {len(outcomes)} lessons", highlight=False, soft_wrap=True)
        for link in broken:
            stderr.print(f"broken link: {link}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1 if broken else 0)


def _execute(
    names: list[str],
    folder: Optional[Path],
    out: Path,
    settings: list[str],
    fresh: bool,
    solved: bool,
    time_limit: float,
) -> list[Any]:
    from gluontune.course.lessons import find_lessons, pick
    from gluontune.course.running import run_lessons

    lessons = pick(find_lessons(folder), names)

    def tell(name: str, outcome: Any) -> None:
        if outcome is None:
            stderr.print(f"{name} …", highlight=False)
        else:
            again = ", from the run before" if outcome.resumed else ""
            stderr.print(f"{name}: {outcome.status}, {outcome.seconds:.0f} s{again}", highlight=False)

    return run_lessons(
        lessons,
        out,
        parameters=parse_settings(settings),
        fresh=fresh,
        solved=solved,
        time_limit=time_limit,
        on_event=tell,
    )


def _show(outcomes: list[Any], out: Path, console: Any = stdout) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("lesson", "status", "seconds", "figures", "")
    for outcome in outcomes:
        note = "from the run before" if outcome.resumed else outcome.error or ""
        table.add_row(outcome.name, outcome.status, f"{outcome.seconds:.0f}", str(outcome.figures), Text(note))
    console.print(table)
    total = sum(outcome.seconds for outcome in outcomes)
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    console.print(f"{passed} of {len(outcomes)} passed, {total:.0f} s; results in {out}", highlight=False)
