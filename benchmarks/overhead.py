"""The monitor's overhead on a training, and the sum of a step's phases against the wall clock."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gluontune import monitor
from gluontune.core import stats
from gluontune.monitor.tree import ProcessTree
from gluontune.recipe import Recipe
from gluontune.training.group import Group

__all__ = ["ATTRIBUTION_BAR_PCT", "SLOWDOWN_BAR_PCT", "attribution", "slowdown"]

SLOWDOWN_BAR_PCT = 1.0
ATTRIBUTION_BAR_PCT = 3.0
_BATCH = 32  # short steps, so that a slice holds several
_PERIOD_S = 0.25  # as `gluontune train` and the ladder sample
_REAL: dict[str, Any] = {"net": "cifar_resnet20_v1", "runtime": "tuned", "hybridize": "static"}
_FAST: dict[str, Any] = {**_REAL, "loader": "resident", "rewrites": ["pool-to-mean", "pad-channels"]}

THREADS: dict[str, dict[str, str]] = {"all threads": {}, "one thread": {"OMP_NUM_THREADS": "1"}}

#: The trainings whose phases are added up: a naive script, and the ladder's usual result.
RECIPES: dict[str, dict[str, Any]] = {
    "naive": {"net": "cifar_resnet20_v1"},
    "hybridized, Gluon loader": _REAL,
    "hybridized, 2 Gluon workers": {**_REAL, "num_workers": 2},
    "hybridized, threaded loader": {**_REAL, "loader": "threaded", "num_workers": 2},
    "rewritten, resident loader": _FAST,
    "small net, Gluon loader": {**_REAL, "net": "small_cnn"},
    "small net, resident loader": {**_FAST, "net": "small_cnn", "rewrites": []},
}


def slowdown(
    dataset: str, rounds: int, say: Callable[[str], None] = lambda line: None, *,
    training: Mapping[str, Any] = _FAST, threads: Mapping[str, Mapping[str, str]] = THREADS, slice_s: float = 0.4,
) -> list[dict[str, Any]]:  # fmt: skip
    """The same training with monitor and attribution on and off, in short slices in turn.

    Both halves of a pair run in one process, so that nothing but the monitor differs: not the layout of its
    memory, not the machine's minute. The order within a pair is drawn. CPU time is that of the training and
    of the monitor's thread together.

    Args:
        dataset: of the training. rounds: pairs of slices, of ``slice_s`` seconds. training: fields of the recipe.

    Returns:
        A row for all OpenMP threads and one for a single thread: ``ratio`` of the time of a step (median of
        the pairs, 95 % interval), ``mean_ratio`` (of all time, bootstrapped), ``cpu_ratio`` (of all CPU
        time), ``waits_pct`` (time lost by sampled steps, in percent of all time), and ``holds``.
    """
    rows = []
    for name, env in threads.items():
        recipe = Recipe.from_dict({**training, "dataset": dataset, "batch_size_per_device": _BATCH, "env": env})
        with Group(recipe) as group:
            say(name)
            rows.append({"name": name, **_pairs(group, rounds, slice_s, say)})
    return rows


def _pairs(group: Group, rounds: int, slice_s: float, say: Callable[[str], None]) -> dict[str, Any]:
    group.steps(5)
    seen = group.steps(10)
    count = max(2, round(slice_s / (seen["seconds"] / 10)))
    tree = ProcessTree([os.getpid(), *group.pids])
    rng = random.Random(0)
    step_ms: dict[bool, list[float]] = {True: [], False: []}
    cpu_ms: dict[bool, list[float]] = {True: [], False: []}

    def turn(on: bool) -> None:
        group.attribution(on)
        watch = monitor.Monitor([os.getpid(), *group.pids], period_s=_PERIOD_S) if on else None
        tree.read()
        if watch is not None:
            watch.start()
        seen = group.steps(count)
        if watch is not None:
            watch.stop()
        used = tree.read().cpu_s or 0.0
        step_ms[on].append(1e3 * seen["seconds"] / count)
        cpu_ms[on].append(1e3 * used / count)

    for number in range(rounds):
        first = rng.random() < 0.5
        for on in (first, not first):
            turn(on)
        if number % 5 == 4:
            say(f"pair {number + 1} of {rounds}: {1e3 / step_ms[True][-1]:.1f} steps/s")
    ratio = stats.ratio_interval(step_ms[True], step_ms[False])
    report = group.phases()
    waits = _waits_pct(report)
    return {
        "step_time_ms": {"on": stats.interval(step_ms[True]), "off": stats.interval(step_ms[False])},
        "ratio": ratio,
        "mean_ratio": _mean_ratio(step_ms[True], step_ms[False]),
        "cpu_ms_per_step": {"on": statistics.fmean(cpu_ms[True]), "off": statistics.fmean(cpu_ms[False])},
        "cpu_ratio": _mean_ratio(cpu_ms[True], cpu_ms[False]),
        "pairs": rounds,
        "steps_per_slice": count,
        "steps_sampled": report["steps_sampled"],
        "waits_pct": waits,
        "holds": max(100 * (ratio["median"] - 1), waits) <= SLOWDOWN_BAR_PCT,
    }


def _waits_pct(report: dict[str, Any]) -> float:
    """The time that sampled steps lost to their waits, in percent of all time.

    A median over slices does not show it, because most slices have no sampled step.
    """
    usual, n, others = report["step_time_ms"]["unsampled"], report["steps_sampled"], report["steps_unsampled"]
    extra = max(0.0, (report["step_time_ms"]["sampled"] or 0.0) - usual)
    return 100 * n * 2 * extra / (usual * (n + others))


def _mean_ratio(on: Sequence[float], off: Sequence[float]) -> dict[str, Any]:
    """Ratio of the sums, with the 95 % percentile interval of 2,000 bootstrapped sets of pairs."""
    rng, n = random.Random(0), len(on)
    found = []
    for _ in range(2000):
        picked = [rng.randrange(n) for _ in range(n)]
        found.append(sum(on[i] for i in picked) / sum(off[i] for i in picked))
    found.sort()
    return {"mean": sum(on) / sum(off), "ci95": [found[49], found[1949]], "n": n}


def attribution(
    dataset: str, seconds: float, say: Callable[[str], None] = lambda line: None, *,
    recipes: Mapping[str, Mapping[str, Any]] = RECIPES,
) -> list[dict[str, Any]]:  # fmt: skip
    """The phases of real trainings against the wall clock, which a different clock outside of them reads.

    Args:
        dataset: of the trainings. seconds: of each of the ``recipes``, about.

    Returns:
        A row for each recipe. ``sum_vs_wall_pct``: all time that the phases, the waits before sampled
        steps and the unsampled steps account for, against the wall time of the whole training.
        ``between_phases_pct``: what of a sampled step lies in no phase. ``overlap_pct``: by how much the
        sampled steps, which wait, are longer than the others, whose work overlaps.
    """
    rows = []
    for name, changes in recipes.items():
        say(name)
        recipe = Recipe.from_dict({**changes, "dataset": dataset})
        with Group(recipe) as group:
            warm = group.steps(8)
            group.attribution(True)
            before = group.phases()
            count = max(40, round(seconds / (warm["seconds"] / 8)))
            wall_ms = 1e3 * group.steps(count)["seconds"]
            rows.append({"name": name, **_added_up(before, group.phases(), count, wall_ms)})
    return rows


def _added_up(before: dict[str, Any], after: dict[str, Any], count: int, wall_ms: float) -> dict[str, Any]:
    accounted = _accounted_ms(after) - _accounted_ms(before)
    times = after["step_time_ms"]
    error = 100 * (accounted / wall_ms - 1)
    return {
        "steps": count,
        "wall_ms_per_step": wall_ms / count,
        "accounted_ms_per_step": accounted / count,
        "sum_vs_wall_pct": error,
        "between_phases_pct": after["phases_pct"].get("rest", 0.0),
        "overlap_pct": after["sum_check_pct"],
        "sampled_ms": times["sampled"],
        "unsampled_ms": times["unsampled"],
        "steps_sampled": after["steps_sampled"],
        "phases_pct": after["phases_pct"],
        "holds": abs(error) <= ATTRIBUTION_BAR_PCT,
    }


def _accounted_ms(report: dict[str, Any]) -> float:
    """All time that a report accounts for: the phases of the sampled steps, and the others as a whole."""
    sampled = sum(report["phases_ms"].values()) * report["steps_sampled"]
    return sampled + (report["step_time_ms"]["unsampled"] or 0.0) * report["steps_unsampled"]
