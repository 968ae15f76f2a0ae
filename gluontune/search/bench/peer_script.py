"""``gluontune tta --against-peer``: time to accuracy beside a script of the user's, repeat by repeat.

The script trains once, by any library and with any validation rule. After each validation it prints a line of JSON:
``{"seconds": 61.5, "accuracy": 0.912}``, seconds of training so far without validation, and accuracy 0 … 1;
``"flipped"``, the accuracy with test-time flips, is kept, too. Other lines are ignored. The seed of the repeat is in
the environment variable ``GLUONTUNE_SEED``.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.events import OnProgress, progress
from gluontune.core.processes import how_it_ended, session
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.study import Clocks, begun
from gluontune.search.tta import time_to_accuracy
from gluontune.training.group import RunFailed

SEED_VARIABLE = "GLUONTUNE_SEED"
_LINE = 1_000_000  # bytes of a line at most


def run(recipe: Recipe, script: str, *, python: Path | None = None, **options: Any) -> dict[str, Any]:
    """Time to accuracy of ``recipe`` and of a script; see :func:`gluontune.ladder.time_to_accuracy`.

    Args:
        script: path of a Python file, with arguments as a shell takes them. python: its interpreter; None: this one.
        options: further arguments of ``time_to_accuracy``.

    Raises:
        UsageError: no such file.
    """
    command = command_of(script, python)

    def trained(each: Recipe, **how: Any) -> tuple[RunResult, Clocks]:
        return train_once(each, command, **how)

    name = Path(command[1]).name
    return time_to_accuracy(recipe, against=recipe, trainers={"against": (name, trained)}, **options)


def command_of(script: str, python: Path | None = None) -> list[str]:
    """
    >>> command_of(shlex.quote(__file__) + " --epochs 8")[-2:]
    ['--epochs', '8']
    """
    try:
        path, *arguments = shlex.split(script)
    except ValueError as error:
        raise UsageError(f"--against-peer {script!r}: {error}; give a path, and arguments after it") from None
    if not Path(path).is_file():
        raise UsageError(
            f"--against-peer {path}: no such file; give the path of a Python script that trains once and prints "
            'a line {"seconds": …, "accuracy": …} after each validation'
        )
    if python is not None and not python.is_file():
        raise UsageError(f"--peers: no interpreter at {python}")
    return [str(python or sys.executable), path, *arguments]


def train_once(
    recipe: Recipe, command: Sequence[str], *, on_event: OnProgress | None = None, time_limit: float = 600.0,
    machine: dict[str, Any] | None = None,
) -> tuple[RunResult, Clocks]:  # fmt: skip
    """Run the script once, in a fresh process; never raises for a failed run.

    ``recipe`` has the seed, and the target at which the run ends; ``time_limit``: seconds without a line.
    """
    with begun(recipe, machine) as (result, clocks):
        try:
            for seen in _validations(command, recipe.seed, time_limit):
                before = result.elapsed_seconds[-1] if result.elapsed_seconds else 0.0
                if not result.elapsed_seconds:
                    clocks.run_at = max(0.0, clocks.now() - seen["seconds"])
                    result.warmup_seconds = clocks.start_seconds = clocks.run_at
                result.elapsed_seconds.append(seen["seconds"])
                result.epoch_seconds.append(seen["seconds"] - before)
                result.val_accuracy.append(seen["accuracy"])
                if "flipped" in seen:
                    result.val_metric = {"flipped": [seen["flipped"]]}
                clocks.evaluations.append((clocks.now(), clocks.now(), None))
                if on_event is not None:
                    detail = f"validation {len(result.val_accuracy)}"
                    on_event(progress("training", 0.5, detail, val_accuracy=seen["accuracy"]))
                if recipe.target_accuracy is not None and seen["accuracy"] >= recipe.target_accuracy:
                    break
            if not result.val_accuracy:
                raise GluontuneError('it printed no line {"seconds": …, "accuracy": …}')
        except GluontuneError as error:
            raise RunFailed("Peer", f"{command[1]}: {error}", "training") from error
    return result, clocks


def _validations(command: Sequence[str], seed: int, time_limit: float) -> Iterator[dict[str, Any]]:
    """The script's validations, as it prints them."""
    last = 0.0
    for line in printed(command, seed, time_limit):
        seen = _read(line)
        if seen is None:
            continue
        if seen["seconds"] < last:
            raise GluontuneError(f"its seconds went back, from {last:g} to {seen['seconds']:g}")
        last = seen["seconds"]
        yield seen


def printed(command: Sequence[str], seed: int, time_limit: float) -> Iterator[bytes]:
    """The lines that a script prints; it is killed when the caller has enough.

    Raises:
        GluontuneError: it failed, or was silent for too long.
    """
    environment = {**os.environ, SEED_VARIABLE: str(seed), "PYTHONUNBUFFERED": "1"}
    with (
        tempfile.TemporaryFile() as errors,
        session(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as process,
    ):
        assert process.stdout is not None
        with process.stdout:
            yield from _lines(process.stdout, time_limit)
        if process.wait(time_limit) != 0:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - 2000))
            raise GluontuneError(how_it_ended("it", process.returncode, errors.read().decode(errors="replace")))


def _lines(stream: BinaryIO | Any, time_limit: float) -> Iterator[bytes]:
    rest, until = b"", time.monotonic() + time_limit
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, until - time.monotonic())):
                raise GluontuneError(f"no line for {time_limit:g} s (--time-limit)")
            chunk = os.read(stream.fileno(), 65536)
            if not chunk:
                return
            until = time.monotonic() + time_limit
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_LINE:]
            yield from lines


def _read(line: bytes) -> dict[str, Any] | None:
    """The seconds and the accuracy of a line, or None if it is another line.

    >>> _read(b'{"seconds": 2, "accuracy": 0.5, "flipped": 0.6}'), _read(b"epoch 3 of 8")
    ({'seconds': 2.0, 'accuracy': 0.5, 'flipped': 0.6}, None)
    """
    if not line.strip().startswith(b"{"):
        return None
    try:
        seen = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(seen, dict) or not {"seconds", "accuracy"} <= seen.keys():
        return None
    for name, highest in (("seconds", math.inf), ("accuracy", 1.0), ("flipped", 1.0)):
        value = seen.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= highest:
            raise GluontuneError(f"{name}={value!r} in a line it printed: give a number from 0 to {highest:g}")
    return {name: float(seen[name]) for name in ("seconds", "accuracy", "flipped") if name in seen}
