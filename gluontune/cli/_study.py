"""Progress of studies that train many times: a bar on a terminal, a line for each piece in a log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from gluontune.cli._common import progress_line, stderr

__all__ = ["study_progress"]


@contextlib.contextmanager
def study_progress(piece: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that shows the events of a study.

    Args:
        piece: what the study consists of, such as ``repeat``. Events carry ``stage``, ``done`` and ``detail``
            of the run that is on, ``recipe``, and how many pieces there are; a finished piece carries ``row``.
    """
    with progress_line() as line:

        def show(event: dict[str, Any]) -> None:
            name = f"{event['recipe']}, {piece} {event['repeat']}/{event['repeats']}"
            if "row" in event:
                stderr.print(f"{name}: {event['detail']}", markup=False, highlight=False, soft_wrap=True)
                return
            line(
                {
                    "samples_per_sec": None,
                    "val_accuracy": None,
                    "seconds_left": None,
                    **event,
                    "stage": f"{name}: {event['stage']}",
                }
            )

        yield show
