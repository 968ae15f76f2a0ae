"""Progress of a long command: a moving line or bar on a terminal, a line now and then in a batch job's log."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress as Bar, TextColumn, TimeRemainingColumn

from gluontune.cli import _common
from gluontune.core.events import OnProgress, Progress

#: Seconds between two lines in a log, in place of a terminal's moving line.
LOG_EVERY = 30.0


def _quiet(work: Callable[..., Iterator[Any]]) -> Callable[..., contextlib.AbstractContextManager[Any]]:
    """A context manager of ``work``, meanwhile with libraries' output on stderr: stdout has only the result."""

    @contextlib.contextmanager
    @functools.wraps(work)
    def quiet(*given: Any, **how: Any) -> Iterator[Any]:
        with _common.stdout_reserved():
            yield from work(*given, **how)

    return quiet


def _in_log() -> Callable[[str], None]:
    """Prints a line with a timestamp, at most every :data:`LOG_EVERY` seconds."""
    last = time.monotonic()

    def say(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_EVERY:
            last = time.monotonic()
            _common.stderr.print(time.strftime("%H:%M:%S"), line, markup=False, highlight=False, soft_wrap=True)

    return say


@_quiet
def status_line(start: str = "starting") -> Iterator[Callable[[str], None]]:
    """A function that shows a status on stderr: a moving line, or a line now and then in a batch job's log."""
    if not _common.stderr.is_terminal:
        yield _in_log()
        return
    with _common.stderr.status(start) as status:
        yield lambda line: status.update(escape(line))


@_quiet
def progress_line() -> Iterator[OnProgress]:
    """A function that shows the events of one training run on stderr, as a bar or, in a log, as lines."""
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


@_quiet
def progress_bar(title: str, unit: str, scale: float = 1.0) -> Iterator[Callable[[int, int], None]]:
    """A function of (done, total), in ``unit`` after division by ``scale``, that shows how far the work is."""
    first: list[float] = []

    def rate(done: int) -> float:
        """Rate since the first call, per second."""
        if not first:
            first[:] = [time.monotonic(), done]
        seconds = time.monotonic() - first[0]
        return (done - first[1]) / seconds if seconds > 0 else 0.0

    if not _common.stderr.is_terminal:
        say = _in_log()

        def tell(done: int, total: int) -> None:
            left = f", {(total - done) / rate(done):,.0f} s left" if rate(done) > 0 else ""
            if done < total:
                say(f"{title}: {done / scale:,.0f} of {total / scale:,.0f} {unit}{left}")

        yield tell
        return
    count = TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit)
    name, speed = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[rate]}")
    with Bar(name, BarColumn(), count, speed, TimeRemainingColumn(), console=_common.stderr, transient=True) as bar:
        task = bar.add_task(title, total=1, rate="", start=False)

        def show(done: int, total: int) -> None:
            bar.start_task(task)
            text = f"{rate(done) / scale:,.0f} {unit}/s" if rate(done) and time.monotonic() - first[0] > 0.5 else ""
            bar.update(task, total=total / scale, completed=done / scale, rate=text)

        yield show


def _detail(event: Progress) -> str:
    """
    >>> from gluontune.core.events import progress
    >>> _detail(progress("training", 0.3, "epoch 1/3", samples_per_sec=1234.5, val_accuracy=0.8))
    'epoch 1/3, 1,234 img/s, accuracy 80.0 %'
    """
    rate, accuracy, left = event["samples_per_sec"], event["val_accuracy"], event["seconds_left"]
    detail = [event["detail"]]
    detail += [f"{rate:,.0f} img/s"] if rate else []
    detail += [f"accuracy {100 * accuracy:.1f} %"] if accuracy is not None else []
    detail += [f"{left:.0f} s left"] if left else []
    return ", ".join(detail)


@contextlib.contextmanager
def study_progress(piece: str) -> Iterator[OnProgress]:
    """A function that shows the events of a study, whose pieces are named so; that of a finished one has ``row``."""
    with progress_line() as line:

        def show(event: Progress) -> None:
            name = f"{event['recipe']}, {piece} {event['repeat']}/{event['repeats']}"
            if "row" in event:
                _common.say(f"{name}: {event['detail']}", to=_common.stderr)
                return
            line({**event, "stage": f"{name}: {event['stage']}"})

        yield show


@contextlib.contextmanager
def pieces_progress() -> Iterator[OnProgress]:
    """A function that shows the events of an analysis: ``set``, ``piece`` of ``pieces``, and a run's events."""
    with progress_line() as line:

        def show(event: Progress) -> None:
            name = f"{event['piece']}/{event['pieces']} {event['set']}"
            if "rows" in event:
                for found in event["rows"]:
                    text = " + ".join(found["set"]) or "base"
                    _common.say(f"{text}: {_outcome(found)}", to=_common.stderr)
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
