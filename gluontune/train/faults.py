"""What goes wrong in training processes, and whose fault it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluontune.errors import GluontuneError

__all__ = ["FAULTS", "RunFailed", "difference_between", "second_hand"]

# Kinds of failures that come from outside: a new start may well go through.
FAULTS = ("ProcessDied", "ClusterFailed", "TimeLimit", "RankSilent", "ConnectionLost", "HostLost")

_LOST = (
    "Horovod", "gloo", "Connection reset", "Connection closed", "Broken pipe", "No route to host",
    "Network is unreachable", "Connection timed out",
)  # fmt: skip


class RunFailed(GluontuneError):
    """A training process failed; carries what a failed RunResult says.

    Args:
        log: the last that the process printed. traceback: of the process, where it could still tell one.
        kind: of the error, such as ``Diverged``. message: what happened. phase: when.
    """

    def __init__(self, kind: str, message: str, phase: str, log: str = "", traceback: str = ""):
        super().__init__(f"{message} (while {phase})")
        self.kind, self.message, self.phase, self.log, self.traceback = kind, message, phase, log, traceback

    def to_dict(self) -> dict[str, str]:
        found = {"type": self.kind, "message": self.message, "phase": self.phase}
        return {**found, "traceback": self.traceback} if self.traceback else found


def second_hand(event: dict[str, Any]) -> bool:
    """Whether an error only says that another rank is gone."""
    return event["event"] == "error" and any(word in event["message"] for word in _LOST)


def difference_between(ready: list[dict[str, Any]], where: Callable[[int], str] = lambda rank: "") -> str | None:
    """How the ranks' versions or data differ; ranks that differ would train something else than they say.

    Args:
        ready: what each rank told of itself. where: of a rank: words that say on which host it is.

    >>> difference_between([{"data": "8 images"}, {"data": "9 images"}])
    'rank 1 has data 9 images, rank 0 has 8 images: bring them to the same'
    """
    for field in ("versions", "data", "batches_per_epoch"):
        for place, rank in enumerate(ready):
            theirs, first = rank.get(field), ready[0].get(field)
            if theirs != first:
                return (
                    f"rank {place}{where(place)} has {field} {theirs}, rank 0{where(0)} has {first}: "
                    "bring them to the same"
                )
    return None
