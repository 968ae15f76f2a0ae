"""Progress of studies that train many times: a bar on a terminal, a line for each piece in a log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gluontune.cli._common import stderr
from gluontune.cli._progress import progress_line
from gluontune.core.events import OnProgress, Progress

__all__ = ["pieces_progress", "study_progress"]


@contextlib.contextmanager
def study_progress(piece: str) -> Iterator[OnProgress]:
    """A function that shows the events of a study.

    Args:
        piece: what the study consists of, such as ``repeat``. Events carry ``stage``, ``done`` and ``detail``
            of the run that is on, ``recipe``, and how many pieces there are; a finished piece carries ``row``.
    """
    with progress_line() as line:

        def show(event: Progress) -> None:
            name = f"{event['recipe']}, {piece} {event['repeat']}/{event['repeats']}"
            if "row" in event:
                stderr.print(f"{name}: {event['detail']}", markup=False, highlight=False, soft_wrap=True)
                return
            line({**event, "stage": f"{name}: {event['stage']}"})

        yield show


@contextlib.contextmanager
def pieces_progress() -> Iterator[OnProgress]:
    """A function that shows the events of an analysis: ``set``, ``piece`` of ``pieces``, and a run's own."""
    with progress_line() as line:

        def show(event: Progress) -> None:
            name = f"{event['piece']}/{event['pieces']} {event['set']}"
            if "rows" in event:
                for found in event["rows"]:
                    said = " + ".join(found["set"]) or "base"
                    stderr.print(f"{said}: {_outcome(found)}", markup=False, highlight=False, soft_wrap=True)
                return
            line({**event, "stage": f"{name}: {event['stage']}"})

        yield show


def _outcome(found: dict[str, Any]) -> str:
    """
    >>> _outcome({"kind": "tta", "reason": None, "seconds": [3.21, None], "best_accuracy": 0.8})
    '3.2 s, DNC (best accuracy 80.0 %)'
    """
    if found["reason"]:
        return found["reason"]
    if found["kind"] == "throughput":
        return f"{found['samples_per_sec']['median']:,.0f} img/s, {found['ratio']['median']:.2f} × base"
    times = ", ".join("DNC" if s is None else f"{s:.1f} s" for s in found["seconds"])
    return f"{times} (best accuracy {100 * (found['best_accuracy'] or 0):.1f} %)"
