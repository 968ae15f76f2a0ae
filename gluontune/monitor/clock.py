"""Times that neither run backwards nor drift."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

__all__ = ["Clock", "ticks"]


class Clock:
    """Seconds since it was made, that never run backwards, whatever the source does."""

    def __init__(self, source: Callable[[], float] = time.monotonic):
        self._source = source
        self._last = source()
        self._passed = 0.0

    def now(self) -> float:
        """Seconds. A jump back of the source counts as no time."""
        value = self._source()
        self._passed += max(0.0, value - self._last)
        self._last = value
        return self._passed


def ticks(now: Callable[[], float], period_s: float) -> Iterator[float]:
    """Seconds to wait until each next multiple of the period; multiples that have passed are left out.

    >>> clock = iter([0.0, 0.26, 1.1])
    >>> delays = ticks(lambda: next(clock), 0.25)
    >>> next(delays), round(next(delays), 2), round(next(delays), 2)
    (0.25, 0.24, 0.15)
    """
    place = 0
    while True:
        at = now()
        place = max(place + 1, math.floor(at / period_s + 1e-9) + 1)
        yield min(period_s, max(0.0, place * period_s - at))
