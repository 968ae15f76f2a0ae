"""What a kind of training step is, and what those share whose forward pass the session records."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from gluontune.errors import GluontuneError, UsageError
from gluontune.train.arrays import described, first
from gluontune.train.outcome import Outcome

if TYPE_CHECKING:
    from gluontune.train.session import Session

__all__ = ["Part", "Phase", "Recorded", "StepKind", "check_loss"]

Part = tuple[Any, ...]
Phase = Callable[[str], contextlib.AbstractContextManager[Any]]


class StepKind(Protocol):
    """How a batch becomes losses and gradients.

    Attributes:
        name: ``usual``, ``step`` or ``updates``. updates: whether it updates the parameters itself.
        loss: the loss block, where the kind has one.
    """

    name: str
    updates: bool
    loss: Any

    def train(self, parts: list[Part], phase: Phase) -> list[Any]:
        """The losses by context, shape (N,) each; the gradients lie in the parameters (or have been used)."""

    def evaluate(self, place: int, part: Part) -> Outcome:
        """One context's part of a validation batch. Changes no parameter."""

    def select(self, place: int, part: Part) -> Part:
        """The samples of a training batch that the recipe's methods choose by their losses."""

    def evaluate_views(self, place: int, part: Part, outcome: Outcome, score: Any) -> bool:
        """Score the mean over an image's views, where the recipe's methods ask for it; whether they do."""

    def explore(self, parts: list[Part]) -> None:
        """A pass that fixes the shapes of parameters that did not know them, and changes nothing else."""

    def begin(self, training: bool) -> None:
        """An epoch, or a validation, begins."""

    def state(self) -> list[Any]:
        """Recurrent state between two training batches, as arrays; nothing where there is none."""

    def state_parts(self) -> list[int]:
        """Samples of each context that :meth:`state` belongs to."""

    def set_state(self, arrays: list[Any], parts: list[int]) -> None:
        """Put back what :meth:`state` and :meth:`state_parts` gave."""


class Recorded(ABC):
    """What the kinds share whose forward pass is recorded by the session."""

    updates = False
    loss: Any = None

    def __init__(self, session: Session):
        self.session = session
        self.job = session.job

    @abstractmethod
    def forward(self, place: int, part: Part, training: bool) -> Outcome:
        """One context's part through the nets, to the loss."""

    def train(self, parts: list[Part], phase: Phase) -> list[Any]:
        autograd, scaler = self.session.mx.autograd, self.session.scaler
        with autograd.record():
            with phase("forward"):
                losses = [self.forward(place, part, True).loss for place, part in enumerate(parts)]
            with phase("backward"):
                autograd.backward([scaler.scale(v) for v in losses] if scaler else losses)
        return losses

    def evaluate(self, place: int, part: Part) -> Outcome:
        return self.forward(place, part, False)

    def select(self, place: int, part: Part) -> Part:
        raise UsageError(f"{self.job.place('step')}the job's step() computes its own loss, which cannot choose samples")

    def evaluate_views(self, place: int, part: Part, outcome: Outcome, score: Any) -> bool:
        return False

    def explore(self, parts: list[Part]) -> None:
        for place, part in enumerate(parts):
            self.forward(place, part, False)

    def begin(self, training: bool) -> None:
        return None

    def state(self) -> list[Any]:
        return []

    def state_parts(self) -> list[int]:
        return []

    def set_state(self, arrays: list[Any], parts: list[int]) -> None:
        return None


def check_loss(loss: Any, part: Part, output: Any, what: str) -> None:
    count = len(first(part))
    if getattr(loss, "shape", None) != (count,):
        shape = getattr(loss, "shape", type(loss).__name__)
        given = f"; the net's output has shape {described(output)}" if output is not None else ""
        raise GluontuneError(
            f"{what} has shape {shape} for a batch of {count}: it must give one value per sample, ({count},){given}"
        )
