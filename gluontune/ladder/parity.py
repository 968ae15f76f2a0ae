"""Parity: does a recipe converge as its reference does, or suspiciously better or worse?

MLPerf's reference convergence points ask it of each submission: a run that needs clearly fewer epochs than
the reference, at the same target, has changed more than its speed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

__all__ = ["POINTS", "parity"]

POINTS = 0.02  # of final accuracy, as in the ladder's gate
EPOCHS = 0.1  # of the epochs to target: a smaller difference is not worth a mark, however certain


def parity(
    mine: Sequence[float | None],
    reference: Sequence[float | None],
    *,
    accuracy: Sequence[float] = (),
    reference_accuracy: Sequence[float] = (),
) -> dict[str, Any]:
    """Compare the convergence of repeats with that of a reference's repeats.

    Args:
        mine, reference: epochs to the target of each repeat; None where it was not reached.
        accuracy, reference_accuracy: final accuracies of the repeats, 0 … 1.

    Returns:
        ``verdict``: ``as the reference``, ``converges faster``, ``converges slower``, ``less accurate``,
        ``more accurate``, ``fails more often`` or ``too few repeats``; ``suspicious``: whether a reader
        should look for a change beyond speed (faster, or more accurate); ``epochs_ratio``; ``p``: of
        Welch's two-sided t-test on the epochs (None where all repeats are alike); ``reason``.

    Source: MLCommons, ``rcp_checker`` (t-test on the epochs to converge, 5 %).

    >>> parity([8, 9, 8, 9], [8, 9, 9, 8])["verdict"]
    'as the reference'
    >>> parity([4, 4, 5, 4], [8, 9, 9, 8])["verdict"]
    'converges faster'
    """
    mine, reference = ([None if e is None or not math.isfinite(e) else e for e in side] for side in (mine, reference))
    own, ours = [e for e in mine if e is not None], [e for e in reference if e is not None]
    found: dict[str, Any] = {"verdict": "too few repeats", "suspicious": False, "epochs_ratio": None, "p": None}
    if len(reference) >= 2 and len(mine) >= 2 and _rate(mine) < _rate(reference) - 0.25:
        found["verdict"] = "fails more often"
        found["reason"] = (
            f"{len(own)} of {len(mine)} repeats reached the target; the reference {len(ours)} of {len(reference)}"
        )
        return found
    if len(own) < 2 or len(ours) < 2:
        found["reason"] = "parity needs two repeats of each that reached the target"
        return found
    ratio, p = _mean(own) / _mean(ours), _welch(own, ours)
    found.update(epochs_ratio=ratio, p=p, verdict="as the reference")
    found["reason"] = f"{_mean(own):.1f} epochs to the target, the reference {_mean(ours):.1f}"
    if abs(ratio - 1) > EPOCHS and (p is None or p < 0.05):
        found["verdict"] = "converges faster" if ratio < 1 else "converges slower"
        found["suspicious"] = ratio < 1
    elif accuracy and reference_accuracy and not abs(_mean(accuracy) - _mean(reference_accuracy)) <= POINTS:
        gap = _mean(accuracy) - _mean(reference_accuracy)
        found["verdict"] = "more accurate" if gap > 0 else "less accurate"
        found["suspicious"] = gap > 0
        found["reason"] += f"; final accuracy {100 * gap:+.1f} points"
    return found


def _rate(epochs: Sequence[float | None]) -> float:
    return sum(e is not None for e in epochs) / len(epochs)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """p of Welch's t-test; None where neither varies, as epochs often do not."""
    if len(set(a)) == 1 and len(set(b)) == 1:
        return None
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of samples that do not vary; epochs often do not
        return float(stats.ttest_ind(a, b, equal_var=False).pvalue)
