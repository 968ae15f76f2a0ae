"""What one batch gave: the loss of each sample, and the output beside its label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gluontune.job.arrays import described

__all__ = ["Outcome"]


@dataclass
class Outcome:
    """Of one batch on one context.

    Args:
        loss: one value for each sample, shape (N,). output: what the net gave, or None where a job's step keeps it.
        label: what it should have given, or None.
    """

    loss: Any
    output: Any = None
    label: Any = None

    def shapes(self) -> str:
        """For messages."""
        return f"output {described(self.output)}; label {described(self.label)}"
