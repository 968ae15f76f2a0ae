"""``python -m benchmarks devices``: one recipe on several ranks against the same machine as one process.

The cores are the same for all: one process with all of them, or ranks that share them. The global batch is the same,
too, so that all do the same training. Loading counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.published import rounded
from gluontune.compute import bfloat16_support
from gluontune.core import stats
from gluontune.core.errors import UsageError
from gluontune.parallel import horovod
from gluontune.recipe import Recipe
from gluontune.runtime.packages import to_make
from gluontune.search.bench import benchmark
from gluontune.search.bench.contender import OURS, Entrant

__all__ = ["ENGINES", "best_recipe", "entrants", "figure", "run", "show"]

ENGINES = ("shared-memory", "horovod", "kvstore", "ddp")

UNIT = "samples_per_sec"
_ALONE, _ALONE_ON_TORCH = "1 process", "1 process, PyTorch"
_STEPS = 8  # of training in one step() of a contender: between them a group sleeps


def best_recipe(dataset: str = "cifar10", net: str = "cifar_resnet20_v1", global_batch_size: int = 128) -> Recipe:
    """The ladder's usual result on a CPU: all rungs that need no second device.

    >>> best_recipe().hybridize
    'static'
    """
    native = bfloat16_support().level == "native"
    rewrites = ("pool-to-mean", "pad-channels", "fuse-bn-relu") if native else ("pool-to-mean", "fuse-bn-relu")
    return Recipe(
        dataset=dataset, net=net, loader="resident", hybridize="static", rewrites=rewrites, runtime="tuned",
        dtype="bfloat16" if native else "float32", batch_size_per_device=global_batch_size, devices="cpu",
        epochs=1000,
    )  # fmt: skip


def entrants(recipe: Recipe, ranks: int, engines: Sequence[str]) -> list[Entrant]:
    """One process, then ``ranks`` ranks with each engine, all with the recipe's global batch.

    ``ddp`` trains on PyTorch's engine, and has one process of that beside it.

    Raises:
        UsageError: the batch cannot be shared out evenly.
    """
    batch = recipe.global_batch_size
    if batch % ranks:
        raise UsageError(f"a global batch of {batch} cannot be shared evenly by {ranks} ranks: choose another")
    alone = recipe.override(engine="local", num_devices=1, batch_size_per_device=batch)
    found = [_entrant(_ALONE, "one process", alone)]
    names = {
        "shared-memory": f"shared memory, {ranks} ranks",
        "horovod": f"Horovod, {ranks} ranks",
        "kvstore": f"dist_sync, {ranks} workers and 1 server",
    }
    for engine in (engine for engine in engines if engine != "ddp"):
        shared = recipe.override(engine=engine, num_devices=ranks, batch_size_per_device=batch // ranks)
        found.append(_entrant(names[engine], OURS, shared))
    if "ddp" in engines:  # two ranks that compile would do so at once: channels-last is as fast
        torch_alone = alone.override(backend="torch", hybridize="hybridized", rewrites=())
        shared = torch_alone.override(engine="ddp", num_devices=ranks, batch_size_per_device=batch // ranks)
        found.append(_entrant(_ALONE_ON_TORCH, "one process", torch_alone))
        found.append(_entrant(f"DistributedDataParallel, {ranks} ranks", OURS, shared))
    return found


def _entrant(name: str, peer: str, recipe: Recipe) -> Entrant:
    settings = {"recipe": recipe.to_dict(), "steps": _STEPS}
    return Entrant(name, peer, "benchmarks._devices_work:make", settings)


def run(recipe: Recipe, *, ranks: int = 2, engines: Sequence[str] = ENGINES, **terms: Any) -> dict[str, Any]:
    """Measure, and return the document.

    Args:
        recipe: its engine and number of devices are replaced. ranks: of the engines.
        terms: of :class:`gluontune.search.bench.benchmark.Terms`, with slices of four seconds.

    Returns:
        the document of :func:`gluontune.search.bench.benchmark.document`; ``ratios``: each engine ÷ one process of its
        backend, median and 95 % interval of the ratios within rounds.

    Raises:
        UsageError: Horovod is not installed; a batch that cannot be shared out.
    """
    if "horovod" in engines and horovod.installed() is None:
        raise UsageError(
            "Horovod is not installed: leave it out with --only shared-memory --only kvstore, or: " + to_make("horovod")
        )
    field, how = entrants(recipe, ranks, engines), benchmark.Terms(**{"seconds": 4.0, **terms})
    conditions = {"recipe": recipe.to_dict(), "ranks": ranks, **how.pace}
    with how.journal("benchmarks devices", {**conditions, "engines": list(engines)}) as journal:
        contenders = how.contest(field, say=how.say, journal=journal, **how.pace)
    found = benchmark.document(contenders, conditions=conditions, unit=UNIT)
    rates = {c.entrant.name: c.rates for c in contenders if c.failure is None and len(c.rates) == how.rounds}
    ratios = {}
    for name, own in rates.items():
        alone = rates.get(_alone_of(name))
        if alone and name != _alone_of(name):
            ratios[name] = stats.ratio_interval(own, alone)
    return {**found, "kind": "devices", "ratios": ratios}


def _alone_of(name: str) -> str:
    """The row of one process on the engine of the row ``name``."""
    on_torch = name == _ALONE_ON_TORCH or name.startswith("DistributedDataParallel")
    return _ALONE_ON_TORCH if on_torch else _ALONE


def show(found: Mapping[str, Any], console: Any) -> None:
    """Print the table, and each engine ÷ one process."""
    recipe = found["conditions"]["recipe"]
    benchmark.show({**found, "ours": {}}, console, f"{recipe['net']}, {recipe['dataset']}, {recipe['dtype']}", UNIT)
    for name, ratio in found["ratios"].items():
        console.print(f"{name} ÷ {_alone_of(name)}: {stats.said(ratio, '.2f')}", highlight=False)


def figure(found: Mapping[str, Any]) -> dict[str, Any]:
    """What ``python -m benchmarks publish`` makes of the document: a row for each way."""
    recipe, ratios = found["conditions"]["recipe"], found["ratios"]
    rows = []
    for row in found["rows"]:
        rate = rounded(row[UNIT], 0) if row.get(UNIT) else row["status"]
        rows.append([row["name"], rate, rounded(ratios.get(row["name"]), 2)])
    ranks = found["conditions"]["ranks"]
    return {
        "title": f"What {ranks} ranks bring on this machine: {recipe['net']}, {recipe['dataset']}",
        "command": "python -m benchmarks devices",
        "n": f"{found['conditions']['rounds']} interleaved slices",
        "columns": ["way", "samples a second", "÷ one process"],
        "rows": rows,
        "notes": [],
    }
