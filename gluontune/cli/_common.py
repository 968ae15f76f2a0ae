"""What the commands share: the ``--json`` option, the consoles, a recipe from a file and flags."""

from __future__ import annotations

import contextlib
import json
import sys
import time
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
    "status_line",
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


#: Seconds between two lines in a log, where a terminal would show a moving one.
LOG_EVERY = 30.0


def _in_log() -> Callable[[str], None]:
    """Prints a line, stamped, if the last one, or the start, is :data:`LOG_EVERY` seconds ago."""
    last = time.monotonic()

    def say(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_EVERY:
            last = time.monotonic()
            stderr.print(time.strftime("%H:%M:%S"), line, markup=False, highlight=False, soft_wrap=True)

    return say


@contextlib.contextmanager
def status_line(start: str = "starting") -> Iterator[Callable[[str], None]]:
    """A function that says on stderr what goes on: one moving line, or now and then a line in a batch job's log."""
    if not stderr.is_terminal:
        yield _in_log()
        return
    from rich.markup import escape

    with stderr.status(start) as status:
        yield lambda line: status.update(escape(line))


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that shows the events of one training run on stderr, as a bar or, in a log, as lines."""
    from rich.progress import BarColumn, Progress, TextColumn

    if not stderr.is_terminal:
        say = _in_log()
        yield lambda event: say(f"{event['stage']} {100 * event['done']:.0f} %: {_detail(event)}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"))
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task("starting", total=1.0, detail="")

        def show(event: dict[str, Any]) -> None:
            bar.update(task, completed=event["done"], description=event["stage"], detail=_detail(event))

        yield show


def _detail(event: dict[str, Any]) -> str:
    """
    >>> _detail({"detail": "epoch 1/3", "samples_per_sec": 1234.5, "val_accuracy": 0.8, "seconds_left": None})
    'epoch 1/3, 1,234 img/s, accuracy 80.0 %'
    """
    rate, accuracy, left = (event[k] for k in ("samples_per_sec", "val_accuracy", "seconds_left"))
    detail = [event["detail"]]
    detail += [f"{rate:,.0f} img/s"] if rate else []
    detail += [f"accuracy {100 * accuracy:.1f} %"] if accuracy is not None else []
    detail += [f"{left:.0f} s left"] if left else []
    return ", ".join(detail)
