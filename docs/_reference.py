"""Makes the reference while the site is built: a page a room, the command line, the lessons, the CHANGELOG.

Run by mkdocs (gen-files plugin); nothing is written into docs/.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

import mkdocs_gen_files
from typer import Context

import gluontune
from benchmarks.scripts.preparing import read as read_strangers
from gluontune.cli._help import option_record
from gluontune.cli.main import build_app
from gluontune.core import lazy
from gluontune.course.lessons import find_lessons
from gluontune.course.website import page_files

ROOT = Path(__file__).resolve().parents[1]

#: For authors of gluontune, not for users.
INNER = {"stats", "errors", "course"}
#: The reference's last pages and their titles.
LAST = {
    "json": "JSON", "examples": "Examples", "strangers": "Scripts that others wrote",
}  # fmt: skip


def write(path: str, text: str) -> None:
    """One page of the site."""
    with mkdocs_gen_files.open(path, "w") as file:
        file.write(text)


def examples_page() -> str:
    """The scripts of ``examples/``, whole."""
    folder = ROOT / "examples"
    lines = [(folder / "README.md").read_text(encoding="utf-8").rstrip(), ""]
    for path in sorted(folder.glob("*.py")):
        lines += [f"## {path.name}", "", "```python", path.read_text(encoding="utf-8").rstrip(), "```", ""]
    return "\n".join(lines)


def strangers_page() -> str:
    """The scripts that others wrote, with repository, commit and command."""
    repositories, scripts = read_strangers()
    lines = [
        "# Scripts that others wrote",
        "",
        "Gluon training scripts as they are in their repositories, with made-up data where they look for data. A",
        "chapter or notebook is the program of its cells. `make scripts FROM=PATH` takes them out of checkouts, runs",
        "them; `gluontune bench scripts --list FILE` does the same with scripts of yours.",
        "",
        "| repository | commit |",
        "|---|---|",
        *(f"| {each['repository']} | `{each['commit']}` |" for each in repositories.values()),
        "",
        "| name | script and arguments | uses |",
        "|---|---|---|",
    ]
    for script in scripts:
        words = shlex.join([script["path"], *map(str, script.get("argv", ()))])
        name = repositories[script["from"]]["repository"].split("/")[1]
        lines.append(f"| {script['name']} | {name}: `{words}` | {script['uses']} |")
    return "\n".join(lines) + "\n"


def room_page(room: str) -> str:
    """The public functions and classes of a room, from their docstrings."""
    module = importlib.import_module(f"gluontune.{room}")
    homes = lazy.homes(module.__file__ or "")
    doc = re.sub(
        r":(?:mod|data|func|class):(?=`)", "", inspect.cleandoc(module.__doc__ or "").split("\n>>>")[0].strip()
    )
    lines = [f"# gt.{room}", "", doc, ""]
    if not homes:
        lines += [f"::: gluontune.{room}.{name}" for name in module.__all__]
    for name, (home, attribute) in homes.items():
        target = f"{home}.{attribute}"
        if name[0].islower() or not name.isupper():
            lines += [f"::: {target}", ""]
    return "\n".join(lines) + "\n"


def command_pages(command: Any, path: str) -> dict[str, str]:
    """A page for a command, or for each of those below it, by the command's words."""
    below = getattr(command, "commands", None)
    if below:
        shown = [name for name in command.list_commands(None) if not below[name].hidden]
        return {words: page for name in shown for words, page in command_pages(below[name], f"{path} {name}").items()}
    lines = [f"# {path}", "", inspect.cleandoc(command.help or ""), "", "| option | meaning |", "|---|---|"]
    lines += [f"| {flags} | {meaning} |" for flags, meaning in option_rows(command)]
    lines += (
        ["", "## Examples", *[f"    gluontune {example}" for example in command.examples]] if command.examples else []
    )
    return {path: "\n".join([*lines, ""])}


def write_commands() -> None:
    """A page for each command, and their list."""
    from typer.main import get_command

    index = ["# The command line", "", "`gluontune COMMAND --help` says the same.", ""]
    nav = ["* [All commands](index.md)"]
    for words, page in command_pages(get_command(build_app()), "gluontune").items():
        name = "-".join(words.split()[1:])
        write(f"reference/cli/{name}.md", page)
        nav.append(f"* [{words}]({name}.md)")
        index.append(f"- [`{words}`]({name}.md): {page.splitlines()[2]}")
    write("reference/cli/index.md", "\n".join(index) + "\n")
    write("reference/cli/SUMMARY.md", "\n".join(nav) + "\n")


def option_rows(command: Any) -> list[tuple[str, str]]:
    """Each option as `--help` shows it, ready for a table."""
    found = []
    for parameter in command.params:
        record = option_record(parameter, Context(command))
        if record is not None:
            flags, meaning = record
            meaning = " ".join(meaning.split()).replace("|", "\\|").replace("<", "&lt;")
            found.append((f"`{flags}`".replace("|", "\\|"), meaning))
    return found


def rooms_of(package: Any) -> list[str]:
    """The names of the package that are modules."""
    return [name for name in package.__all__ if inspect.ismodule(getattr(package, name))]


def write_course() -> None:
    """The lessons and their questions; a page of each with its outputs: of ``make course``, or as published."""
    lessons = find_lessons(ROOT / "notebooks")
    fresh = ROOT / "runs" / "course"
    executed = (
        fresh if all((fresh / f"{lesson.name}.ipynb").is_file() for lesson in lessons) else ROOT / "docs" / "lessons"
    )
    for lesson in lessons:
        for name, content in page_files(lesson, executed, {other.name for other in lessons}):
            with mkdocs_gen_files.open(f"course/{name}", "wb") as file:
                file.write(content)
    for name, asset in (("site.css", "lessons.css"), ("iframe-worker.js", "iframe-worker.js")):
        text = (resources.files("gluontune.course") / "templates" / name).read_text(encoding="utf-8")
        write(f"assets/{asset}", text)
    lines = [
        "# The lessons",
        "",
        "`make lab` opens them in JupyterLab ([how](../how-to/jupyterlab.md)). Each opens with its question, a picture",
        "and what you will be able to do, and ends with exercises. Read here, they have the outputs of one machine,",
        "named at the end of each.",
        "",
        "| lesson | question |",
        "|---|---|",
        *(f"| [{lesson.title}]({lesson.name}.md) | {lesson.question} |" for lesson in lessons),
    ]
    write("course/index.md", "\n".join([*lines, ""]))
    nav = ["* [The lessons](index.md)", *(f"* [{lesson.title}]({lesson.name}.md)" for lesson in lessons)]
    write("course/SUMMARY.md", "\n".join([*nav, ""]))


def main() -> None:
    """All generated pages."""
    rooms = [room for room in rooms_of(gluontune) if room not in INNER | {"recipe", "result"}]
    nav = ["* [Python](index.md)", "* [Command line](cli/)"]
    index = ["# Python modules", "", "`import gluontune as gt` imports each module when it is first used.", ""]
    write(
        "reference/recipe.md",
        "# Recipe and RunResult\n\n::: gluontune.recipe.recipe.Recipe\n\n::: gluontune.recipe.result.RunResult\n",
    )
    write(
        "reference/around.md",
        "# Around your own loop\n\n::: gluontune.training.existing_loop.tuned\n\n"
        "::: gluontune.training.existing_loop.applied\n",
    )
    for name, page in (("Recipe and RunResult", "recipe.md"), ("Around your own loop", "around.md")):
        nav.append(f"* [{name}]({page})")
        index.append(f"- [{name}]({page})")
    for room in rooms:
        write(f"reference/{room}.md", room_page(room))
        nav.append(f"* [gt.{room}]({room}.md)")
        summary = (importlib.import_module(f"gluontune.{room}").__doc__ or "").splitlines()[0]
        index.append(f"- [gt.{room}]({room}.md): {summary}")
    write_commands()
    write("reference/examples.md", examples_page())
    write("reference/strangers.md", strangers_page())
    write("reference/index.md", "\n".join(index) + "\n")
    write(
        "reference/SUMMARY.md", "\n".join([*nav, *(f"* [{title}]({page}.md)" for page, title in LAST.items())]) + "\n"
    )
    guides = ["* [All guides](index.md)"]
    listed = (ROOT / "docs" / "how-to" / "index.md").read_text(encoding="utf-8")
    for name in re.findall(r"\]\((\w[\w-]*)\.md\)", listed):
        title = (ROOT / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8").splitlines()[0][2:]
        guides.append(f"* [{title}]({name}.md)")
    write("how-to/SUMMARY.md", "\n".join(guides) + "\n")
    write_course()
    unsearched = "---\nsearch:\n  exclude: true\n---\n"
    write("changelog.md", unsearched + (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


main()
