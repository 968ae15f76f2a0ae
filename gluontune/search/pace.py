"""How long a ladder may take: its slices, its trainings, its budget."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FEW_VALIDATE", "FULL", "QUICK", "Pace"]


@dataclass(frozen=True)
class Pace:
    """How long a ladder may take.

    Args:
        rounds: slices of each contender, where something else than a climb measures by this pace.
        slice_s: seconds of a slice. epochs: of a training. budget_s: seconds of the whole climb.
        name: ``quick``, ``full`` or another.
    """

    name: str
    rounds: int
    slice_s: float
    epochs: float
    budget_s: float = 300.0


FEW_VALIDATE = 2000  # images that a short climb validates on
QUICK = Pace("quick", rounds=9, slice_s=0.3, epochs=1, budget_s=300.0)
FULL = Pace("full", rounds=12, slice_s=1.0, epochs=2, budget_s=3600.0)
