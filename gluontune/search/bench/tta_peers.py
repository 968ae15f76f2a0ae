"""The peers of ``gluontune tta``: a careful PyTorch script in the peers' environment, or a script of the user's.

The user's script trains once, by any library and with any validation rule. After each validation it prints a line of
JSON: ``{"seconds": 61.5, "accuracy": 0.912}``, seconds of training so far without validation, and accuracy 0 … 1;
``"flipped"``, the accuracy with test-time flips, is kept, too. Other lines are ignored. The seed of the repeat is in
the environment variable ``GLUONTUNE_SEED``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from gluontune import runtime
from gluontune.core import stats
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.events import OnProgress, progress
from gluontune.core.processes import how_it_ended, session
from gluontune.core.reading import parse_json, read_text
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.runtime.packages import to_make
from gluontune.search.bench.benchmark import hold
from gluontune.search.bench.contender import Contender, Entrant, peer_python
from gluontune.search.bench.training import MODES, allocator_of, allocators, torch_entrants, with_allocator
from gluontune.search.study import Clocks, begun
from gluontune.search.tta import time_to_accuracy
from gluontune.training.group import RunFailed

_WORK = "gluontune.search.bench._torch_tta:make"


def against_torch(
    recipe: Recipe, *, changes: Mapping[str, Any] | None = None, mode: str | None = None, peers: Path | None = None,
    out: Path | None = None, resume: bool = False, say: Callable[[str], None] | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Time to accuracy of ``recipe`` and of its PyTorch twin; see :func:`gluontune.ladder.time_to_accuracy`.

    The twin has its data, net, batch, ranks, augmentation, optimizer, schedule and seeds, but for ``changes``. ``mode``
    is of PyTorch, such as ``compile channels_last``; None tries all of them and takes the fastest.
    """
    for name in ("dataset", "net", "val_samples", "seed"):
        if name in (changes or {}):
            raise UsageError(f"--torch-set {name}=…: both must have the same; set it for both by --set")
    twin = recipe.override(**(changes or {})).resolved()  # PyTorch's process knows no cards
    _check(twin)
    if mode is not None and mode not in MODES:
        raise UsageError(f"--torch-mode {mode!r}: choose from {', '.join(map(repr, MODES))}")
    python = peer_python(peers)
    if not python.is_file():
        raise GluontuneError(f"--against-torch: no PyTorch at {python}: {to_make('peers')}")
    settings = _earlier(out) if resume else None
    if settings is None:
        settings = fastest(twin, python, say or (lambda line: None), mode)

    trainers = {"against": (settings["name"], partial(train_torch, settings=settings, python=python))}
    options.update(against=twin, trainers=trainers, facts={"torch": settings})
    return time_to_accuracy(recipe, out=out, resume=resume, **options)


def _check(recipe: Recipe) -> None:
    if recipe.job is not None or not (recipe.net.startswith("cifar_resnet") and recipe.net.endswith("_v1")):
        text = f"there is no PyTorch twin of {recipe.job or recipe.net!r}; use a cifar_resnet…_v1"
        raise UsageError(f"--against-torch: {text}")
    alike: dict[str, tuple[Any, ...]] = {
        "optimizer": ("nag", "sgd", "muon"), "dtype": ("float32", "bfloat16"), "accumulate": (1,),
        "engine": ("local", "shared-memory", "kvstore", "horovod"), "exchange_every": (1,), "compression": ("none",),
        "stochastic_depth": (0.0,), "last_batch": ("discard",), "seconds": (None,),
        "optimizer_params": ({},), "schedule_params": ({},), "clip_global_norm": (None,),
    }  # fmt: skip
    for name, known in alike.items():
        if (value := getattr(recipe, name)) not in known:
            raise UsageError(f"--against-torch: recipe field {name}={value!r} has no twin; use {known[0]!r}")


def _earlier(out: Path | None) -> dict[str, Any] | None:
    """The mode of the interrupted run, which a resume keeps; else None."""
    try:
        return parse_json(read_text(Path(out or "") / "tta.json")).get("torch")
    except (OSError, ValueError, AttributeError):
        return None  # time_to_accuracy raises the error


def fastest(
    recipe: Recipe, python: Path, say: Callable[[str], None], mode: str | None = None, *, contest: Any = hold
) -> dict[str, Any]:
    """PyTorch's fastest mode and allocator for a rank's step of this net, by a short interleaved trial.

    A given ``mode`` is taken without a trial, with glibc's allocator, tuned.
    """
    threads = max(1, runtime.usable_cores() // recipe.num_devices)
    modes = torch_entrants(recipe.net, recipe.batch_size_per_device, 32, threads, python, recipe.dtype)
    if mode is not None:
        tuned = with_allocator(modes, "glibc", allocators()["glibc"])
        return _settings(tuned[list(MODES).index(mode)], recipe, "glibc", {})
    name, env = allocator_of(modes, say, contest)
    modes = with_allocator(modes, name, env)
    field = contest(modes, rounds=3, seconds=1.0, say=lambda line: say(f"PyTorch's modes: {line}"))
    rates = {c.entrant.name: stats.interval(c.rates)["median"] for c in field if c.failure is None}
    if not rates:
        raise GluontuneError(f"--against-torch: PyTorch failed: {field[0].failure}")
    best = max(rates, key=lambda each: rates[each])
    return _settings(next(e for e in modes if e.name == best), recipe, name, rates)


def _settings(chosen: Entrant, recipe: Recipe, allocator: str, rates: Mapping[str, float]) -> dict[str, Any]:
    ranks = f", {recipe.num_devices} ranks" if recipe.num_devices > 1 else ""
    kept = {name: chosen.settings[name] for name in ("threads", "channels_last", "compiled")}
    found = {"name": chosen.name + ranks, **kept, "allocator": allocator, "env": dict(chosen.env)}
    return {**found, "samples_per_sec": dict(rates)}


def train_torch(
    recipe: Recipe, settings: Mapping[str, Any], python: Path, *, on_event: OnProgress | None = None,
    time_limit: float = 600.0, machine: dict[str, Any] | None = None,
) -> tuple[RunResult, Clocks]:  # fmt: skip
    """Train the twin once, in a fresh process; never raises for a failed run. ``settings`` are of :func:`fastest`."""
    facts = {name: value for name, value in recipe.to_dict().items() if name != "env"}
    how = {name: settings[name] for name in ("threads", "channels_last", "compiled")}
    entrant = Entrant(settings["name"], "PyTorch", _WORK, {"recipe": facts, **how}, python, settings["env"])
    process = Contender(entrant, time_limit=time_limit)
    with begun(recipe, machine) as (result, clocks), contextlib.closing(process):
        process.launch()
        result.warmup_seconds = clocks.run_at = clocks.now()
        clocks.warmup_seconds = process.info.get("warmup_seconds", 0.0)
        clocks.start_seconds = clocks.run_at - clocks.warmup_seconds
        if process.failure is None:
            _train(process, recipe, result, clocks, on_event)
        if process.failure is not None:
            raise RunFailed("PyTorch", str(process.failure), "training" if result.steps else "starting")
    return result, clocks


def _train(process: Contender, recipe: Recipe, result: RunResult, clocks: Clocks, on_event: OnProgress | None) -> None:
    per_epoch = process.info["batches_per_epoch"]
    total, rates = max(1, round(recipe.epochs * per_epoch)), []
    while result.steps < total:
        seen = process.ask("train_epoch", steps=min(per_epoch, total - result.steps))
        begin = clocks.now()
        checked = process.ask("validate") if seen is not None else None
        if checked is None:
            return
        clocks.evaluations.append((begin, clocks.now(), None))
        accuracy = checked["accuracy"]
        result.steps += seen["steps"]
        result.train_loss.append(seen["loss"])
        result.epoch_seconds.append(seen["seconds"])
        result.elapsed_seconds.append(sum(result.epoch_seconds))
        result.val_accuracy.append(accuracy)
        rates.append(seen["samples"] / seen["seconds"])
        if on_event is not None:
            detail, done = f"epoch {len(result.epoch_seconds)}/{recipe.epochs:g}", result.steps / total
            on_event(progress("training", done, detail, samples_per_sec=rates[-1], val_accuracy=accuracy))
        if recipe.target_accuracy is not None and accuracy >= recipe.target_accuracy:
            break
    result.samples_per_sec = stats.interval(rates)


SEED_VARIABLE = "GLUONTUNE_SEED"
_LINE = 1_000_000  # bytes of a line at most


def against_script(recipe: Recipe, script: str, *, python: Path | None = None, **options: Any) -> dict[str, Any]:
    """Time to accuracy of ``recipe`` and of a script: its path, with arguments as a shell takes them."""
    command = command_of(script, python)
    trainers = {"against": (Path(command[1]).name, partial(train_script, command=command))}
    return time_to_accuracy(recipe, against=recipe, trainers=trainers, **options)


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


def train_script(
    recipe: Recipe, command: Sequence[str], *, on_event: OnProgress | None = None, time_limit: float = 600.0,
    machine: dict[str, Any] | None = None,
) -> tuple[RunResult, Clocks]:  # fmt: skip
    """Run the script once, in a fresh process; never raises for a failed run.

    ``recipe`` has the seed, and the target at which the run ends; ``time_limit``: seconds without a line.
    """
    with begun(recipe, machine) as (result, clocks):
        try:
            for line in printed(command, recipe.seed, time_limit):
                if (seen := _read(line)) is None:
                    continue
                before = result.elapsed_seconds[-1] if result.elapsed_seconds else 0.0
                if seen["seconds"] < before:
                    raise GluontuneError(f"its seconds went back, from {before:g} to {seen['seconds']:g}")
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


def printed(command: Sequence[str], seed: int, time_limit: float) -> Iterator[bytes]:
    """The lines that a script prints; it is killed when the caller has enough, and must not fail or be silent."""
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
