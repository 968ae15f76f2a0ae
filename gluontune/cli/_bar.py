"""A progress bar with rate and remaining time on stderr; in a log file a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gluontune.cli import _common

__all__ = ["progress_bar"]

LOG_EVERY_S = 15.0


@contextlib.contextmanager
def progress_bar(title: str, unit: str, scale: float = 1.0) -> Iterator[Callable[[int, int], None]]:
    """A function of (done, total) that shows how far the work is.

    Args:
        title: what is being done. unit: of done and total after they are divided by ``scale``.
    """
    if not _common.stderr.is_terminal:
        yield _logger(title, unit, scale)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_common.stderr, transient=True) as bar:
        task = bar.add_task(title, total=1, rate="", start=False)
        first: list[float] = []

        def show(done: int, total: int) -> None:
            if not first:
                first[:] = [time.monotonic(), done]
                bar.start_task(task)
            seconds = time.monotonic() - first[0]
            rate = f"{(done - first[1]) / scale / seconds:,.0f} {unit}/s" if seconds > 0.5 else ""
            bar.update(task, total=total / scale, completed=done / scale, rate=rate)

        yield show


def _logger(title: str, unit: str, scale: float) -> Callable[[int, int], None]:
    last: list[float] = []

    def show(done: int, total: int) -> None:
        now = time.monotonic()
        if not last:
            last[:] = [now, now, done]  # last line, start, done at the start
        if now - last[0] >= LOG_EVERY_S and done < total:
            last[0] = now
            rate = (done - last[2]) / (now - last[1])
            left = f", {(total - done) / rate:,.0f} s left" if rate > 0 else ""
            line = f"{title}: {done / scale:,.0f} of {total / scale:,.0f} {unit}{left}"
            _common.stderr.print(line, highlight=False, soft_wrap=True)

    return show
