"""A folder in which every script of the list runs: its sources at the commit, its data, and a list of commands."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

import benchmarks.scripts.data  # noqa: F401 - enters the makers
from benchmarks.scripts.extraction import Checkout, checkout, program
from benchmarks.scripts.place import MAKERS, Place
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import write_json

__all__ = ["command", "prepare", "read"]

HERE = Path(__file__).parent


def read() -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The repositories by their short names, and the entries of the list."""
    text = yaml.safe_load((HERE / "strangers.yaml").read_text(encoding="utf-8"))
    return text["repositories"], text["scripts"]


def prepare(
    checkouts: Path, out: Path, names: list[str] | None = None, say: Callable[[str], None] = lambda line: None
) -> Path:
    """Write the scripts of the list with their data below ``out``. Returns the list for ``gluontune bench scripts``.

    Args:
        checkouts: a folder of git repositories. names: of the scripts to write; all if None.
    """
    repositories, entries = read()
    out = out.absolute()
    known = {entry["name"] for entry in entries}
    if unknown := sorted(set(names or ()) - known):
        raise UsageError(f"--only {','.join(unknown)}: not in the list; there are {', '.join(sorted(known))}")
    commands = []
    for entry in entries:
        source = repositories[entry["from"]]
        if names is None or entry["name"] in names:
            say(entry["name"])
            shutil.rmtree(out / entry["name"], ignore_errors=True)
            for name in source.get("needs", ()):
                needed = repositories[name]
                checkout(checkouts, needed["repository"], needed["commit"]).extract(
                    needed["files"], out / entry["name"] / "src"
                )
            _make(entry, source, checkout(checkouts, source["repository"], source["commit"]), out / entry["name"])
        if (out / entry["name"]).is_dir():
            commands.append(command(entry, source, out))
    (out / "list.yaml").write_text(yaml.safe_dump(commands, sort_keys=False, width=110), encoding="utf-8")
    return out / "list.yaml"


def _make(entry: Mapping[str, Any], source: Mapping[str, Any], given: Checkout, root: Path) -> None:
    """Write one script's sources and data."""
    path = Path(entry["path"])
    shutil.copytree(HERE / "site", root / "site", ignore=shutil.ignore_patterns("__pycache__"))
    write_json(root / "site" / "stand_ins.json", {})
    alone = path.suffix != ".py" or path.parent == Path()
    own = [str(path if alone else path.parent)]
    lacking = given.extract([*entry.get("files", own), *source.get("files", ())], root / "src")
    if unknown := [name for name in lacking if name.endswith(".py")]:
        raise GluontuneError(f"{given.folder}: {entry['name']}: lacks the content of {', '.join(unknown)}")
    if path.suffix != ".py":
        text = (root / "src" / path).read_text(encoding="utf-8")
        (root / "src" / path.with_suffix(".py")).write_text(program(text, path.suffix), encoding="utf-8")
    place = Place(root, root / "src" / path.parent)
    for needed in entry.get("data", ()):
        options = dict(needed)
        MAKERS[options.pop("maker")](place, **options)


def command(entry: Mapping[str, Any], source: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """What runs a script that :func:`prepare` has written below ``out``; ``run.sh`` in its folder does so, too."""
    root = out / entry["name"]
    script = root / "src" / Path(entry["path"]).with_suffix(".py")
    libraries = [root / "src" / name for name in source.get("pythonpath", ())]
    environment = {
        "HOME": str(root), "PYTHONPATH": ":".join(map(str, [root / "site", *libraries])), "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": str(out / ".matplotlib"), **entry.get("env", {}),
    }  # fmt: skip
    argv = [str(word) for word in entry.get("argv", ())]
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    text = f"# sh run.sh [COMMAND…]: the script, by python or COMMAND\ncd {shlex.quote(str(script.parent))} || exit\n"
    text += f'[ $# -gt 0 ] || set -- {sys.executable}\nexec env {words} "$@" {shlex.join([str(script), *argv])}\n'
    (root / "run.sh").write_text(text, encoding="utf-8")
    return {
        "name": entry["name"], "path": str(script), "argv": argv, "cwd": str(script.parent), "env": environment,
        "note": entry["uses"],
    }  # fmt: skip
