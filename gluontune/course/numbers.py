"""Number formats of 16 bits: their range and precision, and their effect on a net's gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune.recipe.registry import Registry


@dataclass(frozen=True)
class Format:
    """A binary number format: bits of the exponent and of the significand (without the implicit leading one).

    >>> FORMATS["float16"].largest, FORMATS["bfloat16"].next_after_one - 1
    (65504.0, 0.0078125)
    """

    exponent: int
    significand: int

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    @property
    def largest(self) -> float:
        return float((2 - 2.0**-self.significand) * 2.0**self.bias)

    @property
    def smallest_normal(self) -> float:
        """Smaller numbers lose digits."""
        return float(2.0 ** (1 - self.bias))

    @property
    def smallest(self) -> float:
        """Numbers below half of it become zero."""
        return float(2.0 ** (1 - self.bias - self.significand))

    @property
    def next_after_one(self) -> float:
        return 1 + 2.0**-self.significand

    def relative_step(self, values: Any) -> np.ndarray:
        """Distance to the next number ÷ the number, for positive values; NaN beyond the largest."""
        x = np.asarray(values, float)
        power = np.floor(np.log2(np.maximum(x, self.smallest_normal)))
        step = 2.0 ** (power - self.significand)
        return np.where(x <= self.largest, step / x, np.nan)


FORMATS: Registry[Format] = Registry("number format")
FORMATS.add("float32", Format(8, 23))
FORMATS.add("float16", Format(5, 10))
FORMATS.add("bfloat16", Format(8, 7))


def round_to(values: Any, format: str) -> np.ndarray:
    """Round to the nearest number of a format (ties to even), and return float32.

    >>> round_to([2049.0, 1e-8, 70000.0], "float16").tolist()
    [2048.0, 0.0, inf]
    >>> round_to([1.003, 1.005], "bfloat16").tolist()
    [1.0, 1.0078125]
    """
    FORMATS[format]
    x = np.asarray(values, np.float32)
    if format == "float32":
        return x
    if format == "float16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    bits = x.view(np.uint32).astype(np.uint64)  # bfloat16 is the upper half of a float32
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).reshape(x.shape)


def lost_shares(gradients: np.ndarray, scales: Any, format: str = "float16") -> dict[str, list[float]]:
    """Percent of gradients that lose precision in a format, for each loss scale.

    ``vanish``: become zero; ``digits``: below the smallest normal number, with fewer digits; ``overflow``: infinite.
    """
    shares: dict[str, list[float]] = {"vanish": [], "digits": [], "overflow": []}
    normal = FORMATS[format].smallest_normal
    for scale in scales:
        scaled = round_to(gradients.astype(np.float64) * scale, format)
        shares["vanish"].append(100 * float(np.mean(scaled == 0)))
        shares["digits"].append(100 * float(np.mean((scaled != 0) & (np.abs(scaled) < normal))))
        shares["overflow"].append(100 * float(np.mean(~np.isfinite(scaled))))
    return shares
