"""What the commands share: the ``--json`` option, the consoles, a recipe from a file and flags."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import typer
from rich.console import Console

from gluontune.errors import UsageError

__all__ = [
    "JSON_OPTION",
    "TIME_LIMIT_OPTION",
    "emit",
    "parse_settings",
    "progress_line",
    "stderr",
    "stdout",
    "stdout_reserved",
]

JSON_OPTION = typer.Option(False, "--json", help="One JSON document on stdout; all else goes to stderr.")

TIME_LIMIT_OPTION = typer.Option(
    600.0, "--time-limit", help="Seconds after which a silent training process counts as hung."
)

stdout = Console()
stderr = Console(stderr=True)


def emit(document: Any) -> None:
    """Print the one JSON document of a ``--json`` command."""
    sys.__stdout__.write(json.dumps(document, indent=2, allow_nan=False) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


@contextlib.contextmanager
def stdout_reserved() -> Iterator[None]:
    """While it lasts, whatever a library prints goes to stderr, so that stdout holds JSON alone."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def parse_settings(settings: list[str], option: str = "--set") -> dict[str, Any]:
    """``["epochs=3", "dtype=bfloat16"]`` as a mapping; values are read as YAML.

    >>> parse_settings(["epochs=3", "train_samples=null", "dtype=bfloat16"])
    {'epochs': 3, 'train_samples': None, 'dtype': 'bfloat16'}
    """
    import yaml

    values = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {setting!r}: write FIELD=VALUE, such as {option} epochs=3")
        try:
            values[name.strip()] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UsageError(f"{option} {setting!r}: the value is not valid YAML") from error
    return values


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[dict[str, Any]], None]]:
    """A progress bar on stderr that follows the events of one training run."""
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"))
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task("starting", total=1.0, detail="")

        def show(event: dict[str, Any]) -> None:
            rate, accuracy, left = (event[k] for k in ("samples_per_sec", "val_accuracy", "seconds_left"))
            detail = [event["detail"]]
            detail += [f"{rate:,.0f} img/s"] if rate else []
            detail += [f"accuracy {100 * accuracy:.1f} %"] if accuracy is not None else []
            detail += [f"{left:.0f} s left"] if left else []
            bar.update(task, completed=event["done"], description=event["stage"], detail=", ".join(detail))

        yield show
