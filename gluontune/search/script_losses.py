"""The first losses of a script that is run in two ways: do they differ by more than rounding?"""

from __future__ import annotations

from collections.abc import Sequence

_ROUNDING = 1e-5  # between the first losses of two ways that compute the same, relative; it grows with the steps
_GROWTH, _MOST = 2.0, 1e-2  # by which it may grow with each step, and never above


def gap_of(naive: Sequence[float | None], other: Sequence[float | None]) -> tuple[float | None, float, int]:
    """The largest relative gap of two series of first losses, what rounding explains, and of how many losses.

    Rounding is carried from step to step: what it explains doubles with each. The largest gap is the one that exceeds
    it most.

    >>> gap_of([2.0, 1.0], [2.0, 1.0 + 1e-6])[0] <= 1e-5
    True
    >>> gap, allowed, count = gap_of([2.0, 1.0, 0.5], [2.0, 1.1, 0.5])
    >>> round(gap, 3), allowed, count
    (0.1, 2e-05, 3)
    """
    pairs = [(k, a, b) for k, (a, b) in enumerate(zip(naive, other)) if a is not None and b is not None]
    gaps = [(abs(a - b) / max(abs(a), 1e-6), min(_MOST, _ROUNDING * _GROWTH**k)) for k, a, b in pairs]
    if not gaps:
        return None, _ROUNDING, 0
    gap, allowed = max(gaps, key=lambda each: each[0] / each[1])
    return gap, allowed, len(gaps)


def told_of(gap: float, count: int) -> str:
    """A gap of the first ``count`` losses in words.

    >>> told_of(0.0, 12), told_of(0.0312, 12)
    ("its first 12 losses equal naive's", "its first 12 losses differ from naive's by 3.1 %")
    """
    if not gap:
        return f"its first {count} losses equal naive's"
    much = f"{100 * gap:.1f} %" if gap >= 5e-4 else f"{gap:.0e} (relative)"
    return f"its first {count} losses differ from naive's by {much}"
