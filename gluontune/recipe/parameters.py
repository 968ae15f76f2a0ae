"""The allowed values of a parameter: the one check of recipes' fields and of parameters of optimizers and methods."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parameter:
    """A number in bounds, true or false, or one of some choices.

    Args:
        kind: ``float``, ``int`` or ``bool``.
        low, high: smallest and largest value, or None.
        above, below: exclusive bounds.
        optional: None is allowed, ``none`` in a text.
        choices: the allowed texts, in place of a number.

    >>> rate = Parameter(low=0, below=1)
    >>> rate.fault(0.5), rate.fault(1), Parameter(int, 1).fault(2.0)
    ('', 'a number of at least 0 and below 1', 'a whole number of at least 1')
    """

    kind: type = float
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    optional: bool = False
    choices: tuple[str, ...] = ()

    def fault(self, value: Any) -> str:
        """A description of the allowed values, or "" if ``value`` is one of them."""
        if self.choices:
            return "" if value in self.choices else f"one of {', '.join(self.choices)}"
        if self.kind is bool:
            return "" if isinstance(value, bool) else "true or false"
        if value is None and self.optional:
            return ""
        kinds = (int,) if self.kind is int else (int, float)
        right = isinstance(value, kinds) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        if (
            right
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        ):
            return ""
        noun = "a whole number" if self.kind is int else "a number"
        if self.low is not None and self.high is not None:
            return f"{noun} from {self.low:g} to {self.high:g}"
        least = f" of at least {self.low:g}" if self.above is None else f" above {self.above:g}"
        return f"{noun}{least}{'' if self.below is None else f' and below {self.below:g}'}"
