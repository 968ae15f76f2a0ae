"""The method that makes the batch larger while the training goes on."""

from __future__ import annotations

import math

__all__ = ["UpdatePlan"]


class UpdatePlan:
    """How many steps make an update, at each place of a training; updates are whole at each change.

    Args:
        total: steps of the training. accumulate: steps of an update at its start.
        start: share of the training after which the batch first grows. factor: by what, each time.
        times: how often, at equal distances from ``start`` to the end; 0 never.

    Source: Smith et al., Don't Decay the Learning Rate, Increase the Batch Size, 2018.

    >>> plan = UpdatePlan(12, 1, start=0.5, factor=2, times=2)
    >>> [plan.size(step) for step in range(12)]
    [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4]
    >>> [plan.updates(steps) for steps in (0, 6, 7, 8, 10, 12)]
    [0, 6, 6, 7, 8, 8]
    """

    def __init__(self, total: int, accumulate: int = 1, start: float = 0.5, factor: int = 2, times: int = 0) -> None:
        self._parts = [(0, accumulate)]  # first step, steps of an update
        for k in range(times):
            begun, size = self._parts[-1]
            wanted = total * (start + (1 - start) * k / times)
            whole = begun + max(0, math.ceil((wanted - begun) / size - 1e-9)) * size
            self._parts.append((whole, size * factor))

    def size(self, step: int) -> int:
        """Steps of the update that step ``step`` (from 0) is one of."""
        return next(size for first, size in reversed(self._parts) if step >= first)

    def updates(self, steps: int) -> int:
        """Whole updates after so many steps."""
        ends = [first for first, _ in self._parts[1:]] + [max(steps, self._parts[-1][0])]
        return sum(max(0, min(end, steps) - first) // size for (first, size), end in zip(self._parts, ends))

    def complete(self, steps: int) -> bool:
        """Whether the last of so many steps ended an update."""
        first, size = next(part for part in reversed(self._parts) if steps > part[0])
        return (steps - first) % size == 0

    def growth(self) -> list[tuple[int, int]]:
        """For :func:`gluontune.optim.schedules.stretch`: updates, and how many of the first ones each later one is."""
        usual = self._parts[0][1]
        return [(self.updates(first), size // usual) for first, size in self._parts[1:]]
