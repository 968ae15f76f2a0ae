"""``gluontune tta --against-torch``: time to accuracy beside a careful PyTorch script, repeat by repeat.

The repeats, their order, the statistics and the pages are :mod:`gluontune.search.tta`'s; this module trains one
repeat by PyTorch, in the peers' environment, with the mode and the allocator that were the fastest for this net in
a short trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gluontune import runtime
from gluontune.core import stats
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.events import OnProgress, progress
from gluontune.core.reading import parse_json, read_text
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.runtime.packages import to_make
from gluontune.search.bench.benchmark import hold
from gluontune.search.bench.contender import Contender, Entrant, peer_python
from gluontune.search.bench.training import allocator_of, allocators, torch_entrants, with_allocator
from gluontune.search.study import Clocks, begun
from gluontune.search.tta import time_to_accuracy
from gluontune.training.group import RunFailed

MODES = ("eager", "eager channels_last", "compile", "compile channels_last")

_WORK = "gluontune.search.bench._torch_tta:make"


def run(
    recipe: Recipe, *, changes: Mapping[str, Any] | None = None, mode: str | None = None, peers: Path | None = None,
    out: Path | None = None, resume: bool = False, say: Callable[[str], None] | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Time to accuracy of ``recipe`` and of its PyTorch twin; see :func:`gluontune.ladder.time_to_accuracy`.

    Args:
        recipe: ours; the twin has its data, net, batch, ranks, augmentation, optimizer, schedule and seeds.
        changes: fields of the twin that differ, such as a rate or an optimizer that suits it better.
        mode: of PyTorch, such as ``compile channels_last``; None tries all of them and takes the fastest.
        peers: the peers' environment. say: called with lines about the trial that chooses PyTorch's mode.
        options: further arguments of ``time_to_accuracy``.

    Raises:
        UsageError: a net without a twin, or a recipe that PyTorch's script cannot follow (names the field).
        GluontuneError: PyTorch is not installed, or none of its modes works.
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

    def trained(each: Recipe, **how: Any) -> tuple[RunResult, Clocks]:
        return train_once(each, settings, python, **how)

    options.update(against=twin, trainers={"against": (settings["name"], trained)}, facts={"torch": settings})
    return time_to_accuracy(recipe, out=out, resume=resume, **options)


def _check(recipe: Recipe) -> None:
    """Refuse fields that the twin does not have."""
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
    if mode is None:
        name, env = allocator_of(modes, say, contest)
    else:
        name, env = "glibc", allocators()["glibc"]
    modes = with_allocator(modes, name, env)
    if mode is not None:
        return _settings(modes[MODES.index(mode)], recipe, name, {})
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


def train_once(
    recipe: Recipe, settings: Mapping[str, Any], python: Path, *, on_event: OnProgress | None = None,
    time_limit: float = 600.0, machine: dict[str, Any] | None = None,
) -> tuple[RunResult, Clocks]:  # fmt: skip
    """Train the twin once, in a fresh process; never raises for a failed run. ``settings`` are of :func:`fastest`."""
    facts = {name: value for name, value in recipe.to_dict().items() if name != "env"}
    how = {name: settings[name] for name in ("threads", "channels_last", "compiled")}
    entrant = Entrant(settings["name"], "PyTorch", _WORK, {"recipe": facts, **how}, python, settings["env"])
    process = Contender(entrant, time_limit=time_limit)
    with begun(recipe, machine) as (result, clocks):
        try:
            process.launch()
            result.warmup_seconds = clocks.run_at = clocks.now()
            clocks.warmup_seconds = process.info.get("warmup_seconds", 0.0)
            clocks.start_seconds = clocks.run_at - clocks.warmup_seconds
            if process.failure is None:
                _train(process, recipe, result, clocks, on_event)
            if process.failure is not None:
                raise RunFailed("PyTorch", str(process.failure), "training" if result.steps else "starting")
        finally:
            process.close()
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
