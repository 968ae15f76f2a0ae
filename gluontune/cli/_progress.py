"""How far a long command is: a moving line or bar on a terminal, a line now and then in a batch job's log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from gluontune.cli import _common
from gluontune.events import OnProgress, Progress

__all__ = ["progress_bar", "progress_line", "status_line"]

#: Seconds between two lines in a log, where a terminal would show a moving one.
LOG_EVERY = 30.0


def _in_log() -> Callable[[str], None]:
    """Prints a line, stamped, if the last one, or the start, is :data:`LOG_EVERY` seconds ago."""
    last = time.monotonic()

    def say(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_EVERY:
            last = time.monotonic()
            _common.stderr.print(time.strftime("%H:%M:%S"), line, markup=False, highlight=False, soft_wrap=True)

    return say


@contextlib.contextmanager
def status_line(start: str = "starting") -> Iterator[Callable[[str], None]]:
    """A function that says on stderr what goes on: one moving line, or now and then a line in a batch job's log."""
    if not _common.stderr.is_terminal:
        yield _in_log()
        return
    from rich.markup import escape

    with _common.stderr.status(start) as status:
        yield lambda line: status.update(escape(line))


@contextlib.contextmanager
def progress_line() -> Iterator[OnProgress]:
    """A function that shows the events of one training run on stderr, as a bar or, in a log, as lines."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    if not _common.stderr.is_terminal:
        say = _in_log()
        yield lambda event: say(f"{event['stage']} {100 * event['done']:.0f} %: {_detail(event)}")
        return
    title, detail = (TextColumn(f"{{task.{of}}}", markup=False) for of in ("description", "fields[detail]"))
    with Bar(title, BarColumn(), detail, console=_common.stderr, transient=True) as bar:
        task = bar.add_task("starting", total=1.0, detail="")

        def show(event: Progress) -> None:
            bar.update(task, completed=event["done"], description=event["stage"], detail=_detail(event))

        yield show


@contextlib.contextmanager
def progress_bar(title: str, unit: str, scale: float = 1.0) -> Iterator[Callable[[int, int], None]]:
    """A function of (done, total) that shows how far the work is.

    Args:
        title: what is being done. unit: of done and total after they are divided by ``scale``.
    """
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    if not _common.stderr.is_terminal:
        yield _counted(_in_log(), title, unit, scale)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=_common.stderr, transient=True) as bar:
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


def _counted(say: Callable[[str], None], title: str, unit: str, scale: float) -> Callable[[int, int], None]:
    first: list[float] = []

    def show(done: int, total: int) -> None:
        if not first:
            first[:] = [time.monotonic(), done]
        seconds = time.monotonic() - first[0]
        rate = (done - first[1]) / seconds if seconds > 0 else 0.0
        left = f", {(total - done) / rate:,.0f} s left" if rate > 0 else ""
        if done < total:
            say(f"{title}: {done / scale:,.0f} of {total / scale:,.0f} {unit}{left}")

    return show


def _detail(event: Progress) -> str:
    """
    >>> from gluontune.events import progress
    >>> _detail(progress("training", 0.3, "epoch 1/3", samples_per_sec=1234.5, val_accuracy=0.8))
    'epoch 1/3, 1,234 img/s, accuracy 80.0 %'
    """
    rate, accuracy, left = event["samples_per_sec"], event["val_accuracy"], event["seconds_left"]
    detail = [event["detail"]]
    detail += [f"{rate:,.0f} img/s"] if rate else []
    detail += [f"accuracy {100 * accuracy:.1f} %"] if accuracy is not None else []
    detail += [f"{left:.0f} s left"] if left else []
    return ", ".join(detail)
