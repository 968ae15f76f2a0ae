"""The proof of a program: computed again by another engine, it gives the same losses, gradients and weights."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune.capture.events import Op
from gluontune.capture.program import StepProgram
from gluontune.capture.replay import MXNetReplay, TorchReplay, leaves_of
from gluontune.convert.bridge.registry import OPERATORS
from gluontune.core.arrays import gap, size

#: The largest gaps that count as agreement, by precision: of losses, of gradients (MXNet's sums round more than most),
#: of new weights from the same gradients.
BOUNDS = {"float64": (1e-8, 1e-8, 1e-8), "float32": (1e-4, 1e-2, 1e-3)}


@dataclass(frozen=True)
class Gaps:
    """Largest differences between two engines' results of one step.

    Args:
        losses: relative to the largest value of each. gradients: to the largest gradient. weights: to the largest
            change of a weight, or the weight itself.
    """

    losses: float
    gradients: float
    weights: float

    def agree(self, dtype: str = "float32") -> bool:
        """Whether none is larger than its bound.

        >>> Gaps(1e-6, 1e-5, 1e-5).agree(), Gaps(1e-6, 1e-5, 1e-5).agree("float64")
        (True, False)
        """
        return all(gap <= bound for gap, bound in zip((self.losses, self.gradients, self.weights), BOUNDS[dtype]))

    def to_dict(self) -> dict[str, float | None]:
        """For JSON; None where a result is infinite, no number, or of another size.

        >>> Gaps(float("inf"), 1e-6, 0.0).to_dict()
        {'losses': None, 'gradients': 1e-06, 'weights': 0.0}
        """
        return {name: number if math.isfinite(number) else None for name, number in vars(self).items()}

    def __str__(self) -> str:
        return f"losses {self.losses:.0e}, gradients {self.gradients:.0e}, weights {self.weights:.0e}"


def compare(program: StepProgram, mine: Mapping[int, Any], theirs: Mapping[int, Any]) -> Gaps:
    """The gaps of one engine's results to those of another; values that ``theirs`` lacks are left out."""

    def worst(numbers: Any, scale: float = 0.0) -> float:
        pairs = [(mine[number], theirs.get(number)) for number in numbers]
        return max((gap(_like(a, b), b, scale) for a, b in pairs if b is not None), default=0.0)

    gradients = program.gradients
    largest = max((size(g) for g in (theirs.get(number) for number in gradients) if g is not None), default=0.0)
    changes = [0.0]
    before = {value.name: value.array for value in program.values[: program.leaves] if value.name in program.writes}
    for name, number in program.writes.items():
        new, old = theirs.get(number), before.get(name)
        if new is not None and old is not None:
            changes.append(size(new - old))
    return Gaps(worst(program.heads), worst(gradients, largest), worst(program.writes.values(), max(changes)))


def gaps_of_the_script(program: StepProgram) -> Gaps:
    """PyTorch's gaps, in the precision of the script, to what MXNet computed in it."""
    recorded = {number: program.values[number].array for number in program.shown}
    return compare(program, TorchReplay(program)(leaves_of(program), recorded), recorded)


def gaps_in_float64(mx: Any, program: StepProgram) -> Gaps:
    """The gaps where both compute again in float64. mx: the mxnet module, without hooks."""
    leaves = leaves_of(program)
    theirs = MXNetReplay(mx, program)(leaves)
    return compare(program, TorchReplay(program, "float64")(leaves, theirs), theirs)


def _like(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.reshape(b.shape).astype(b.dtype) if a.size == b.size else a


def rounded(program: StepProgram) -> bool:
    """Whether MXNet computes an operator of it with seven digits whatever the arrays' type."""
    importlib.import_module("gluontune.convert.bridge.operators")
    known = [i for i in program.instructions if isinstance(i, Op) and i.name in OPERATORS]
    leaky = ("LeakyReLU", "leaky")  # which the replay has in another way
    return any(
        OPERATORS[i.name].is_rounded(i.attrs) and (i.name, i.attrs.get("act_type", "leaky")) != leaky for i in known
    )
