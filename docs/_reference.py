"""Makes the reference while the site is built: a page a room, the command line, the JSON, the CHANGELOG.

Run by mkdocs (gen-files plugin); nothing is written into docs/.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import mkdocs_gen_files

import gluontune
from gluontune import lazy
from gluontune.cli.main import build_app
from gluontune.recipe import Recipe
from gluontune.result import RunResult

ROOT = Path(__file__).resolve().parents[1]
#: For authors of gluontune, not for users.
INNER = {"stats", "errors", "course"}
HOWTO = ("own-job", "import", "batch", "several-machines", "jupyterlab", "pytorch", "gpu", "records")


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


def room_page(room: str) -> str:
    """The public functions and classes of a room, from their docstrings."""
    module = importlib.import_module(f"gluontune.{room}")
    homes = lazy.homes(module.__file__ or "")
    doc = re.sub(
        r":(?:mod|data|func|class):(?=`)",
        "",
        inspect.cleandoc(module.__doc__ or "").split("\n>>>")[0].strip(),
    )
    lines = [f"# gt.{room}", "", doc, ""]
    if not homes:
        lines += [f"::: gluontune.{room}.{name}" for name in module.__all__]
    for name, (home, attribute) in homes.items():
        target = f"{home}.{attribute}"
        if name[0].islower() or not name.isupper():
            lines += [f"::: {target}", ""]
    return "\n".join(lines) + "\n"


def command_pages(command: Any, path: str) -> list[str]:
    """Usage, help and options of a command and of those below it."""
    lines = []
    below = getattr(command, "commands", None)
    if below:
        for name in command.list_commands(None):
            lines += command_pages(below[name], f"{path} {name}")
        return lines
    lines += [f"## {path}", "", inspect.cleandoc(command.help or ""), "", "| option | meaning |", "|---|---|"]
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        flags = ", ".join(f"`{o}`" for o in parameter.opts) if parameter.opts else parameter.name
        if parameter.param_type_name == "argument":
            flags = f"`{parameter.metavar or parameter.name.upper()}`"
        help_text = " ".join((getattr(parameter, "help", "") or "").split())
        lines.append(f"| {flags} | {help_text.replace('|', chr(92) + '|').replace('<', '&lt;')} |")
    return [*lines, ""]


def rooms_of(package: Any) -> list[str]:
    """The names of the package that are modules."""
    return [name for name in package.__all__ if inspect.ismodule(getattr(package, name))]


def main() -> None:
    """All generated pages."""
    rooms = [room for room in rooms_of(gluontune) if room not in INNER | {"recipe", "result"}]
    nav = ["* [Python](index.md)"]
    index = [
        "# Python modules",
        "",
        "`import gluontune as gt` imports each module when it is first used.",
        "",
    ]
    write(
        "reference/recipe.md",
        "# Recipe and RunResult\n\n::: gluontune.recipe.Recipe\n\n::: gluontune.result.RunResult\n",
    )
    write(
        "reference/around.md",
        "# Around your own loop\n\n::: gluontune.existing_loop.tuned\n\n::: gluontune.existing_loop.applied\n",
    )
    for name, page in (("Recipe and RunResult", "recipe.md"), ("Around your own loop", "around.md")):
        nav.append(f"* [{name}]({page})")
        index.append(f"- [{name}]({page})")
    for room in rooms:
        write(f"reference/{room}.md", room_page(room))
        nav.append(f"* [gt.{room}]({room}.md)")
        summary = (importlib.import_module(f"gluontune.{room}").__doc__ or "").splitlines()[0]
        index.append(f"- [gt.{room}]({room}.md): {summary}")
    from typer.main import get_command

    cli = ["# The command line", "", "`gluontune COMMAND --help` says the same.", ""]
    write("reference/cli.md", "\n".join(cli + command_pages(get_command(build_app()), "gluontune")))
    write("reference/json.md", json_page())
    write("reference/examples.md", examples_page())
    write("reference/index.md", "\n".join(index) + "\n")
    write(
        "reference/SUMMARY.md",
        "\n".join([*nav, "* [Command line](cli.md)", "* [JSON](json.md)", "* [Examples](examples.md)"])
        + "\n",
    )
    guides = ["* [All guides](index.md)"]
    for name in HOWTO:
        title = (ROOT / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8").splitlines()[0][2:]
        guides.append(f"* [{title}]({name}.md)")
    write("how-to/SUMMARY.md", "\n".join(guides) + "\n")
    write("changelog.md", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


def json_page() -> str:
    """The documents that other programs read."""
    import dataclasses

    recipe = ", ".join(f"`{f.name}`" for f in dataclasses.fields(Recipe))
    result = "\n".join(f"- `{f.name}`" for f in dataclasses.fields(RunResult))
    return f"""# The JSON
Every command takes `--json`: one document on stdout.

## RunResult
`gluontune train --json` prints one. Its keys are explained at [RunResult](recipe.md).

{result}

## Recipe
A mapping of {recipe}.

## ladder.json
`schema_version`, `machine`, `rungs` and `best`. Each rung has `name`, `status` (ran, skipped,
failed), `reason`, `verdict` (helped, no gain, hurt, n/a), `kept`, `samples_per_sec` (`median`, `ci95`),
`speedup_vs_naive`, `epoch_seconds`, `val_accuracy`, `steadiness`, `phases_pct`, `peak_rss_mib` and `recipe`.
`best` has `name` and `recipe`; `budget` has `seconds` and `spent_seconds`.

`revisited`, what was asked again on top of the best recipe: `rung`, `kind` (`asked again`, `left out`), `changes`,
`first` and `ratio` (`median`, `ci95`, `n`: as climbed, and now), `verdict`, `adopted`, `reason`, `interaction`.

`proof`, naive and best trained in turn to one accuracy: `target`, `pairs` (`naive` and `best`: `seconds`, `accuracy`),
`seconds`, `ratio`, `same_accuracy`, `lost` (for certain: then it is taken back), `reached`.

`files`: `yaml` and `script`, names beside the document, and `reason` where there is no script.

## Others
| command | document |
|---|---|
| `bench loading`, `packing`, `training` | `rows` (`name`, `images_per_sec`, `ratio_to_best_peer`, `status`), `ours` |
| `verify` | `records`, `whole`, `damaged` (`index`, `offset`, `reason`) |
| `pack` | `packed`, `skipped` (`path`, `reason`), `images_per_sec` |
| `doctor` | `findings` (`id`, `severity`, `message`, `evidence`, `fix`) |
"""


main()
