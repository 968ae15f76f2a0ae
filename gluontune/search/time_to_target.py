"""The time at which a run reached its target, and statistics over repeats. Pure functions."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from typing import Any

from gluontune.core import stats
from gluontune.core.errors import GluontuneError
from gluontune.recipe.result import RunResult

POINTS = 0.02  # of final accuracy, as in the ladder's gate
EPOCHS = 0.1  # of the epochs to target: a smaller difference is not marked


def first_crossing(accuracies: Sequence[float], target: float) -> int | None:
    """Place of the first validation whose accuracy is at least ``target``; None if there is none.

    Source: DAWNBench reads its time off the first entry that reaches the threshold.

    >>> first_crossing([0.5, 0.9, 0.8, 0.91], 0.9), first_crossing([0.5], 0.9)
    (1, None)
    """
    return next((place for place, value in enumerate(accuracies) if value >= target), None)


def sustained_crossing(accuracies: Sequence[float], target: float) -> int | None:
    """Place of the validation from which on all, to the run's end, are at least ``target``.

    A first crossing may be luck: an accuracy that moves by a point between epochs crosses early and falls back.

    >>> sustained_crossing([0.5, 0.9, 0.8, 0.91, 0.92], 0.9), sustained_crossing([0.95, 0.8], 0.9)
    (3, None)
    """
    if not accuracies or accuracies[-1] < target:
        return None
    below = [place for place, value in enumerate(accuracies) if value < target]
    return below[-1] + 1 if below else 0


def summarize(reached: Sequence[float], spent_in_vain: Sequence[float] = ()) -> dict[str, Any]:
    """Statistics of repeats on the time to a target.

    Mean, median and coefficient of variation are of the seconds of repeats that ``reached`` it, as in DAWNBench's
    analysis. Two figures count failures, too: ``median_of_all``, where a failure is longer than any time, and
    ``expected_seconds``, until a success if failed runs are started again.

    Returns:
        ``repeats``, ``reached``, ``failed``, and figures that are None if no repeat reached the target; an interval is
        None if fewer than three did.

    Source: Coleman et al., *Analysis of DAWNBench*, 2019 (coefficient of variation, share of runs);
    Hansen et al., *Real-parameter black-box optimization benchmarking*, 2010 (expected running time).

    >>> found = summarize([10.0, 11.0, 12.0], [30.0])
    >>> found["mean"], found["median"], found["failed"], found["expected_seconds"], round(found["cv_pct"], 1)
    (11.0, 11.0, 1, 21.0, 9.1)
    >>> summarize([], [30.0])["median"] is None
    True
    """
    times, count = list(reached), len(reached) + len(spent_in_vain)
    unknown = ("mean", "mean_ci95", "median", "ci95", "cv_pct", "median_of_all", "expected_seconds")
    found: dict[str, Any] = {"repeats": count, "reached": len(times), "failed": len(spent_in_vain)}
    found.update(dict.fromkeys(unknown))
    if not times:
        return found
    middle = stats.interval(times)
    found["median"], found["mean"] = middle["median"], statistics.fmean(times)
    found["expected_seconds"] = (math.fsum(times) + math.fsum(spent_in_vain)) / len(times)
    places, ordered = ((count - 1) // 2, count // 2), sorted(times)
    if places[1] < len(ordered):
        found["median_of_all"] = (ordered[places[0]] + ordered[places[1]]) / 2
    if len(times) > 1:
        found["cv_pct"] = 100 * statistics.stdev(times) / found["mean"]
    if len(times) >= stats.LEAST:
        from scipy import stats as tables

        # Student's interval of the mean on the logarithmic scale (delta method): never below zero.
        reach = float(tables.t.ppf(0.975, len(times) - 1)) * found["cv_pct"] / 100 / math.sqrt(len(times))
        found["mean_ci95"] = [found["mean"] * math.exp(-reach), found["mean"] * math.exp(reach)]
        found["ci95"] = middle["ci95"]
    return found


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


def parity(
    mine: Sequence[float | None], reference: Sequence[float | None], *, accuracy: Sequence[float] = (),
    reference_accuracy: Sequence[float] = (),
) -> dict[str, Any]:  # fmt: skip
    """Whether a recipe converges as its reference does, or suspiciously better or worse.

    As MLPerf's reference convergence points: a run that needs clearly fewer epochs than the reference, at the same
    target, differs in more than speed.

    Args:
        mine, reference: epochs to the target of each repeat; None where it was not reached.

    Returns:
        ``verdict``, ``suspicious`` (faster, or more accurate: look for a change beyond speed), ``epochs_ratio``, ``p``
        of Welch's two-sided t-test on the epochs (None where all repeats are alike), ``reason``.

    Source: MLCommons, ``rcp_checker`` (t-test on the epochs to converge, 5 %).

    >>> parity([8, 9, 8, 9], [8, 9, 9, 8])["verdict"]
    'as the reference'
    >>> parity([4, 4, 5, 4], [8, 9, 9, 8])["verdict"]
    'converges faster'
    """
    mine, reference = ([None if e is None or not math.isfinite(e) else e for e in side] for side in (mine, reference))
    reached, theirs = [e for e in mine if e is not None], [e for e in reference if e is not None]
    found: dict[str, Any] = {"verdict": "too few repeats", "suspicious": False, "epochs_ratio": None, "p": None}
    if len(reference) >= 2 and len(mine) >= 2 and _rate(mine) < _rate(reference) - 0.25:
        of = f"{len(theirs)} of {len(reference)}"
        text = f"{len(reached)} of {len(mine)} repeats reached the target; the reference {of}"
        return {**found, "verdict": "fails more often", "reason": text}
    if len(reached) < 2 or len(theirs) < 2:
        found["reason"] = "parity needs two repeats of each that reached the target"
        return found
    mean, p = statistics.fmean, _welch(reached, theirs)
    ratio = mean(reached) / mean(theirs)
    found.update(epochs_ratio=ratio, p=p, verdict="as the reference")
    found["reason"] = f"{mean(reached):.1f} epochs to the target, the reference {mean(theirs):.1f}"
    if abs(ratio - 1) > EPOCHS and (p is None or p < 0.05):
        found["verdict"] = "converges faster" if ratio < 1 else "converges slower"
        found["suspicious"] = ratio < 1
    elif accuracy and reference_accuracy and not abs(gap := mean(accuracy) - mean(reference_accuracy)) <= POINTS:
        found["verdict"] = "more accurate" if gap > 0 else "less accurate"
        found["suspicious"] = gap > 0
        found["reason"] += f"; final accuracy {100 * gap:+.1f} points"
    return found


def _rate(epochs: Sequence[float | None]) -> float:
    return sum(e is not None for e in epochs) / len(epochs)


def _welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """p of Welch's t-test; None where neither varies, as epochs often do not."""
    if len(set(a)) == 1 and len(set(b)) == 1:
        return None
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of samples that do not vary
        return float(stats.ttest_ind(a, b, equal_var=False).pvalue)
