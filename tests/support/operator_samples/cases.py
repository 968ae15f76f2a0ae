"""A drawn case of an operator of the bridge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Draw(Protocol):
    """The source of a sample's choices: hypothesis in the tests."""

    def pick(self, values: Sequence[Any]) -> Any: ...

    def shape(self, least: int = 1, most: int = 4) -> tuple[int, ...]: ...

    def int(self, low: int, high: int) -> int: ...


@dataclass(frozen=True)
class Sample:
    """One drawn case.

    Args:
        inputs: content and shape of each: ``("normal", (2, 3))``; also ``positive``, ``unit`` (-0.9 … 0.9),
            ``distinct`` (no two alike), ``boxes`` (…, 4), ``("index", shape, high)``.
        attrs: as in MXNet's text. train: whether MXNet runs in training mode.
        grads: whether gradients are compared too. dtype: float32 if MXNet computes in no other.
        random: a draw, whose replacement number is compared (``stand_ins``, ``drawing.STEADY``).
    """

    inputs: Sequence[tuple[Any, ...]]
    attrs: Mapping[str, Any]
    train: bool = False
    grads: bool = True
    dtype: str = "float64"
    random: bool = False
