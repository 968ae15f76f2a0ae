"""The space of legal recipes: its axes, random draws from it, and a small set that covers all pairs of values.

The axes come from the registries and the recipe's choices: a new optimizer or loader is drawn here, too.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from gluontune.compute import REWRITES, bfloat16_support
from gluontune.core.errors import UsageError
from gluontune.loading import AUGMENTS, LOADERS
from gluontune.optim import OPTIMIZERS, SCHEDULES
from gluontune.parallel import horovod
from gluontune.recipe import Recipe, rules
from gluontune.runtime import gpu_count

Values = dict[str, Any]

#: Six batches at most, so that a recipe trains in about a second.
BASE: Values = {"dataset": "sample", "train_samples": 44, "val_samples": 20, "batch_size_per_device": 8}

# Expensive values stand last; a covering set uses them only where it must.
_ENGINES = ("local", "shared-memory", "async", "horovod", "kvstore")
_RESIDUAL = "cifar_resnet20_v1"
_NONE = object()  # no value, because None is one


def axes() -> dict[str, tuple[Any, ...]]:
    """The drawn fields with their values, cheap and usual ones first."""
    rewrites = REWRITES.names()
    return {
        "net": ("mlp", "small_cnn", _RESIDUAL),
        "batch_size_per_device": (8, 7),
        "accumulate": (1, 3),
        "loader": tuple(sorted(LOADERS.names(), key="gluon".__eq__)),
        "num_workers": (0, 1, 2),
        "prefetch": (None, 0, 2),
        "last_batch": rules.CHOICES["last_batch"],
        "augment": (None, *AUGMENTS.names()),
        "stochastic_depth": (0.0, 0.2),
        "hybridize": rules.CHOICES["hybridize"],
        "rewrites": ((), *((name,) for name in rewrites), tuple(rewrites)),
        "dtype": rules.CHOICES["dtype"],
        "optimizer": tuple(OPTIMIZERS.names()),
        "optimizer_params": ({}, {"clip_gradient": 0.5}),
        "lr_scaling": (None, *rules.LR_SCALING),
        "base_batch_size": (None, 64),
        "momentum": (0.9, 0.0),
        "wd": (None, 0.0),
        "clip_global_norm": (None, 1.0),
        "schedule": tuple(SCHEDULES.names()),
        "schedule_params": ({}, {"pwr": 1.5}, {"unit": "epochs"}),
        "warmup_epochs": (0.0, 0.5),
        "methods": ({}, {"label-smoothing": True, "mixup": True, "ema": True}, {"cutout": True, "lookahead": {"k": 2}}),
        "devices": ("auto", "cpu", "gpu"),
        "num_devices": (1, 2),
        "engine": tuple(sorted(set(rules.CHOICES["engine"]) - {"ddp"}, key=_ENGINES.index)),
        "partition": rules.CHOICES["partition"],
        "exchange_every": (1, 2),
        "compression": rules.CHOICES["compression"],
        "seconds": (None, 60.0),
        "target_accuracy": (None, 0.99),
        "seed": (0, 7),
        "runtime": rules.CHOICES["runtime"],
        "env": ({}, {"MXNET_ENGINE_TYPE": "NaiveEngine"}),
    }


def unavailable() -> dict[str, tuple[Any, ...]]:
    """Values that this machine cannot run: each has to be refused, whatever the other values are."""
    missing: dict[str, tuple[Any, ...]] = {}
    if not gpu_count():
        missing.update(devices=("gpu",), dtype=("float16",))
        if bfloat16_support().level == "none":
            missing["dtype"] = ("float16", "bfloat16")
    if horovod.installed() is None:
        missing["engine"] = ("horovod",)
    return missing


def draw(rng: random.Random) -> Values:
    """One legal recipe's values, drawn independently until they do not contradict each other.

    >>> draw(random.Random(3)) == draw(random.Random(3))
    True
    """
    missing = unavailable()
    while True:
        values: Values = {}
        for name, of in axes().items():
            available = [value for value in of if value not in missing.get(name, ())]
            values[name] = rng.choice(list(of) if rng.random() < 0.05 else available)
            if name in ("stochastic_depth", "env") and rng.random() < 0.7:
                values[name] = of[0]
        if values["net"] == _RESIDUAL and rng.random() < 0.7:  # it costs more than the others
            values["net"] = "small_cnn"
        if values["stochastic_depth"] and rng.random() < 0.8:
            values["net"] = _RESIDUAL
        if _legal(values):
            return {**BASE, **values}


def _legal(values: Mapping[str, Any]) -> bool:
    try:
        Recipe(**{**BASE, **values})
    except UsageError:
        return False
    return True


def pairs_of(values: Mapping[str, Any], of: Mapping[str, Iterable[Any]]) -> set[tuple[Any, ...]]:
    """The pairs of values in a recipe, as indices into the axes ``of``.

    >>> sorted(pairs_of({"a": 5, "b": 7, "c": 1}, {"a": (4, 5), "b": (7,), "c": (1,)}))
    [('a', 1, 'b', 0), ('a', 1, 'c', 0), ('b', 0, 'c', 0)]
    """
    places = {name: list(values_of).index(values[name]) for name, values_of in of.items() if name in values}
    return {(a, places[a], b, places[b]) for a, b in combinations(places, 2)}


@functools.lru_cache(maxsize=4)
def covering(seed: int = 0) -> tuple[list[Values], list[Values]]:
    """Recipes in which each compatible pair of values occurs: those that train, and those to be refused.

    Greedy, one recipe at a time, as in AETG: begin with an open pair, then give each other field the value that
    closes most pairs. (Cohen et al., *The AETG System*, IEEE Transactions on Software Engineering 23 (7), 1997.)
    """
    rng = random.Random(seed)
    missing = unavailable()
    of = {n: [v for v in vs if v not in missing.get(n, ())] for n, vs in axes().items()}
    open_pairs: dict[tuple[Any, ...], None] = {}
    refused: list[Values] = [{name: value} for name, values in missing.items() for value in values]
    for a, b in combinations(of, 2):
        for i, first in enumerate(of[a]):
            for j, second in enumerate(of[b]):
                values = {a: first, b: second}
                if _complete(values, of) is not None:
                    open_pairs[a, i, b, j] = None
                else:
                    refused.append(values)
    trains: list[Values] = []
    while open_pairs:
        row = _row(next(iter(open_pairs)), open_pairs, of, rng)
        for pair in pairs_of(row, of):
            open_pairs.pop(pair, None)
        trains.append({**BASE, **row})
    return trains, [{**BASE, **values} for values in refused]


def _trains(values: Values) -> bool:
    """Whether neither the recipe nor the net refuses ``values``."""
    depth = values.get("stochastic_depth") and values.get("net", _RESIDUAL) != _RESIDUAL
    return not depth and _legal(values)


def _complete(values: Values, of: Mapping[str, list[Any]]) -> Values | None:
    """``values``, with one field added if that makes them legal; else None."""
    if _trains(values):
        return values
    others = ((name, value) for name, all_of in of.items() if name not in values for value in all_of)
    return next(({**values, n: v} for n, v in others if _trains({**values, n: v})), None)


def _row(
    start: tuple[Any, ...], open_pairs: Mapping[Any, None], of: Mapping[str, list[Any]], rng: random.Random
) -> Values:
    a, i, b, j = start
    row = _complete({a: of[a][i], b: of[b][j]}, of)
    assert row is not None
    names = [name for name in of if name not in row]
    rng.shuffle(names)
    for name in names:
        gains = []
        for place, value in enumerate(of[name]):
            gain = sum(
                ((other, of[other].index(row[other]), name, place) in open_pairs)
                + ((name, place, other, of[other].index(row[other])) in open_pairs)
                for other in row
            )
            gains.append((-gain, place, value))  # of equal gain, the cheaper value
        ranked = (value for _, _, value in sorted(gains, key=lambda g: g[:2]))
        best = next((value for value in ranked if _trains({**row, name: value})), _NONE)
        if best is not _NONE:
            row[name] = best
    return row
