"""What users write stays: every command, option, argument and public name stands in ``surface.txt``, and is here.

``python tests/project/test_surface.py`` adds what is new, and takes out what is gone: a removal is made on purpose.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import gluontune
from gluontune.cli import main as cli

LIST = Path(__file__).with_name("surface.txt")


def surface() -> list[str]:
    """One line for each command, each of its options and arguments, and each public name of the package."""
    return sorted({*_commands(typer.main.get_command(cli.build_app()), "gluontune"), *_names(gluontune)})


def _commands(command: Any, path: str) -> Iterator[str]:
    if command.hidden:
        return
    yield path
    for parameter in command.params:
        flags = (*parameter.opts, *parameter.secondary_opts)
        argument = parameter.param_type_name == "argument"
        if argument or not parameter.hidden:
            yield from (f"{path} {flag.upper() if argument else flag}" for flag in flags)
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{path} {name}")


def _names(room: types.ModuleType) -> Iterator[str]:
    """The public names of a room, and of the rooms and modules among them."""
    for name in room.__all__:
        path = f"{room.__name__}.{name}"
        yield path
        try:
            inner = importlib.import_module(path)
        except ModuleNotFoundError:
            continue
        if inner is not room and hasattr(inner, "__all__"):
            yield from _names(inner)


def gone(listed: list[str], here: list[str]) -> list[str]:
    """What is listed and no longer here."""
    return sorted(set(listed) - set(here))


def test_every_command_option_and_public_name_is_still_there():
    lost = gone(LIST.read_text(encoding="utf-8").splitlines(), surface())
    assert not lost, "gone (on purpose? python tests/project/test_surface.py):\n- " + "\n- ".join(lost)


def test_the_list_is_of_all_kinds_and_what_goes_is_seen():
    here = surface()
    for line in (
        "gluontune ladder", "gluontune train --epochs", "gluontune export onnx", "gluontune pack SRC",
        "gluontune.records.pack", "gluontune.optim.schedules.cosine", "gluontune.Recipe",
    ):  # fmt: skip
        assert line in here
        assert gone(here, [other for other in here if other != line]) == [line]


if __name__ == "__main__":
    LIST.write_text("\n".join(surface()) + "\n", encoding="utf-8")
