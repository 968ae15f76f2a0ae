"""When a run reached its target, and what repeats of it say together. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gluontune.core import stats
from gluontune.core.errors import GluontuneError
from gluontune.recipe.result import RunResult

__all__ = ["first_crossing", "summarize", "sustained_crossing"]


def first_crossing(accuracies: Sequence[float], target: float) -> int | None:
    """Place of the first validation whose accuracy is at least ``target``; None if there is none.

    Source: DAWNBench reads its time off the first entry that reaches the threshold.

    >>> first_crossing([0.5, 0.9, 0.8, 0.91], 0.9), first_crossing([0.5], 0.9)
    (1, None)
    """
    return next((place for place, value in enumerate(accuracies) if value >= target), None)


def sustained_crossing(accuracies: Sequence[float], target: float) -> int | None:
    """Place of the validation from which on every one, to the run's end, is at least ``target``.

    A first crossing may be luck: an accuracy that moves by a point between epochs crosses early and falls
    back. The sustained one cannot come before the run has ended, and so needs the whole run.

    >>> sustained_crossing([0.5, 0.9, 0.8, 0.91, 0.92], 0.9), sustained_crossing([0.95, 0.8], 0.9)
    (3, None)
    """
    if not accuracies or accuracies[-1] < target:
        return None
    below = [place for place, value in enumerate(accuracies) if value < target]
    return below[-1] + 1 if below else 0


def summarize(reached: Sequence[float], spent_in_vain: Sequence[float] = ()) -> dict[str, Any]:
    """What repeats say about the time to a target.

    The mean, the median and the coefficient of variation are of the repeats that reached it, as
    DAWNBench's analysis has them; because that flatters a recipe which fails at times, the share that
    reached it stands beside them, with two figures into which the failures go: ``median_of_all``, where a
    failure counts as longer than any time, and ``expected_seconds``, the mean time until a success if a
    failed run is started over (all time spent ÷ the number of successes).

    Args:
        reached: seconds of each repeat that reached the target.
        spent_in_vain: seconds spent by each repeat that did not.

    Returns:
        ``repeats``, ``reached``, ``failed``; ``mean``, ``mean_ci95`` (Student's, of the logarithm), ``median``,
        ``ci95`` (of the median), ``cv_pct`` (sample standard deviation ÷ mean), ``median_of_all``,
        ``expected_seconds``.
        What cannot be said is None: all if nothing reached the target, an interval if fewer than three did.

    Source: Coleman et al., *Analysis of DAWNBench*, 2019 (coefficient of variation, share of runs);
    Hansen et al., *Real-parameter black-box optimization benchmarking*, 2010 (expected running time).

    >>> found = summarize([10.0, 11.0, 12.0], [30.0])
    >>> found["mean"], found["median"], found["failed"], found["expected_seconds"], round(found["cv_pct"], 1)
    (11.0, 11.0, 1, 21.0, 9.1)
    >>> summarize([], [30.0])["median"] is None
    True
    """
    times, count = list(reached), len(reached) + len(spent_in_vain)
    found: dict[str, Any] = {"repeats": count, "reached": len(times), "failed": len(spent_in_vain)}
    found.update(dict.fromkeys(("mean", "mean_ci95", "median", "ci95", "cv_pct", "median_of_all")))
    found["expected_seconds"] = None
    if not times:
        return found
    middle = stats.interval(times)
    found["median"], found["mean"] = middle["median"], math.fsum(times) / len(times)
    found["expected_seconds"] = (math.fsum(times) + math.fsum(spent_in_vain)) / len(times)
    found["median_of_all"] = _median_with_failures(sorted(times), count)
    if len(times) > 1:
        found["cv_pct"] = 100 * _deviation(times) / found["mean"]
    if len(times) >= stats.LEAST:
        found["ci95"], found["mean_ci95"] = middle["ci95"], _around_mean(times)
    return found


def _median_with_failures(ordered: list[float], count: int) -> float | None:
    places = ((count - 1) // 2, count // 2)
    return None if places[1] >= len(ordered) else (ordered[places[0]] + ordered[places[1]]) / 2


def _deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def _around_mean(values: Sequence[float]) -> list[float]:
    """Student's interval of the mean on the logarithmic scale (delta method): never below zero."""
    from scipy import stats as tables

    n, mean = len(values), math.fsum(values) / len(values)
    reach = float(tables.t.ppf(0.975, n - 1)) * _deviation(values) / math.sqrt(n) / mean
    return [mean * math.exp(-reach), mean * math.exp(reach)]


def accuracies(result: RunResult) -> list[float]:
    """A run's validation accuracies by epoch.

    Raises:
        GluontuneError: its job measures something else.
    """
    name = result.val_metric.get("name", "accuracy")
    if name != "accuracy":
        raise GluontuneError(
            f"{result.recipe.get('job')}: this job measures {name}, so it has no time to an accuracy; train with "
            f"target_accuracy=VALUE ends at that value of {name}"
        )
    return list(result.val_accuracy)
