"""The time budget of a climb and its distribution over rungs, trainings and the proof."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gluontune.core.errors import UsageError

PROOF = 0.22  # of the budget at most, reserved for the proof at the end
NAIVE = 0.11  # of the budget, for one training of the naive script
PATIENCE = 0.05  # of the budget, for waiting until background load ends
#: Relative time of a rung; 1.0 by default. Each candidate of large-batch is trained.
WEIGHTS = {
    "together": 6.0,
    "multi-worker": 1.3, "records": 1.2, "hybridized": 1.8, "mixed-precision": 2.5, "large-batch": 4.0,
    "multi-device": 3.0, "modern-engine": 2.0, "methods": 4.0,
}  # fmt: skip
#: Part of a rung's share for slices; the rest is for its training, if its accuracy is in question.
_LOOK_BACK = {
    "together": 0.7, "mixed-precision": 0.5, "large-batch": 0.3, "multi-device": 0.4, "modern-engine": 0.5,
    "methods": 0.3,
}  # fmt: skip
_STARTING = 0.5  # of a rung's share, for starting its variants
FEWEST_UPDATES = 40  # the seed decides the accuracy of a shorter training


@dataclass(frozen=True)
class Pace:
    """How long a ladder may take.

    Args:
        name: ``quick``, ``full`` or another. rounds: slices of each contender, in studies other than a climb.
        slice_s: seconds of a slice. epochs: of a training. budget_s: seconds of the whole climb.
    """

    name: str
    rounds: int
    slice_s: float
    epochs: float
    budget_s: float = 300.0


FEW_VALIDATE = 2000  # validation images of a short climb
QUICK = Pace("quick", rounds=9, slice_s=0.3, epochs=1, budget_s=300.0)
FULL = Pace("full", rounds=12, slice_s=1.0, epochs=2, budget_s=3600.0)


class BudgetSpent(Exception):
    pass


class Budget:
    """The remaining seconds of a climb, and the share of each rung.

    >>> now = [0.0]
    >>> budget = Budget(100.0, clock=lambda: now[0])
    >>> now[0] = 40.0
    >>> budget.left_s, round(budget.free_s)
    (60.0, 38)
    """

    def __init__(self, total_s: float, clock: Callable[[], float] = time.monotonic):
        self.total_s, self._clock = float(total_s), clock
        self._began = clock()
        self._patience_s = PATIENCE * self.total_s
        self.reserved_s = PROOF * self.total_s

    @property
    def spent_s(self) -> float:
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        return self.total_s - self.spent_s

    @property
    def free_s(self) -> float:
        """The time left, less the time reserved for the proof."""
        return self.left_s - self.reserved_s

    def release_proof(self) -> None:
        self.reserved_s = 0.0

    def share_s(self, rung: str, still: Sequence[str]) -> float:
        names = [*still, *([] if rung in still else [rung])]
        whole = sum(WEIGHTS.get(name, 1.0) for name in names) + 1.0  # one part for the revisit at the end
        return max(0.0, self.free_s) * WEIGHTS.get(rung, 1.0) / whole

    def slices_s(self, rung: str, still: Sequence[str], starting_s: float = 0.0) -> float:
        """The part of a rung's share for measuring its variants after their start, which takes ``starting_s``."""
        return max(0.0, self.share_s(rung, still) - starting_s) * _LOOK_BACK.get(rung, 1.0)

    def variants(self, rung: str, still: Sequence[str], starts_s: float) -> int:
        """The number of variants that there is time to start, at ``starts_s`` seconds each; at least two."""
        part = min(_STARTING, _LOOK_BACK.get(rung, 1.0))
        return max(2, int(part * self.share_s(rung, still) / starts_s))

    def reserve(self, seconds: float) -> None:
        self.reserved_s = min(PROOF * self.total_s, seconds)

    def affords(self, seconds: float, part: float = 1.0) -> bool:
        return seconds <= part * self.free_s

    def wait(self, disturbed: Callable[[], bool], sleep: Callable[[float], None] | None = None) -> bool:
        """Wait while the machine is disturbed, at most ``PATIENCE`` of the climb. Returns whether it is calm."""
        while disturbed():
            if self._patience_s <= 0 or self.free_s <= 0:
                return False
            began, pause = self._clock(), min(2.0, self._patience_s)
            (sleep or time.sleep)(pause)
            self._patience_s -= max(self._clock() - began, pause)
        return True

    def deadline(self, seconds: float) -> Callable[[], None]:
        """A function that raises :class:`BudgetSpent` after ``seconds``, or at the end of the budget."""
        until = self._clock() + min(seconds, self.left_s)

        def check() -> None:
            if self._clock() > until:
                raise BudgetSpent

        return check


def fit_epochs(
    epochs: float, *, batches_per_epoch: int, step_s: float, validation_s: float, budget_s: float
) -> float | None:
    """Epochs of a training, at most ``epochs``, that fit into its part of the budget; None if they are too few steps.

    >>> fit_epochs(1.0, batches_per_epoch=781, step_s=0.15, validation_s=3.0, budget_s=300)
    0.25
    >>> fit_epochs(1.0, batches_per_epoch=156, step_s=2.0, validation_s=30.0, budget_s=300) is None
    True
    """
    room = NAIVE * budget_s - validation_s * max(1, round(epochs))
    most = room / (step_s * batches_per_epoch)
    if most >= epochs:
        return epochs
    room = NAIVE * budget_s - validation_s
    fitted = int(100 * room / (step_s * batches_per_epoch)) / 100
    return fitted if fitted * batches_per_epoch >= FEWEST_UPDATES else None


def parse_budget(text: str) -> float:
    """Seconds from a ``text`` such as ``5m``, ``300s``, ``1.5h``; a number alone is minutes.

    Raises:
        UsageError: not of that form, or less than half a minute.

    >>> parse_budget("5m"), parse_budget("90s"), parse_budget("1h")
    (300.0, 90.0, 3600.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)(?:in|ec|ours?)?\s*", text)
    if match is None:
        raise UsageError(f"--budget {text!r}: write a time such as 5m, 90s or 1h")
    seconds = float(match.group(1)) * {"s": 1, "m": 60, "": 60, "h": 3600}[match.group(2)]
    if seconds < 30:
        raise UsageError(f"--budget {text!r}: give at least 30s; starting the processes alone takes a part of it")
    return seconds
