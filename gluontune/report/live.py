"""The progress of a climb: a live table on a terminal, lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gluontune.report import formatting as fmt
from gluontune.report.read import check_row
from gluontune.report.sentence import ladder_sentence
from gluontune.report.study import text_table
from gluontune.report.table import ladder_table, log_line, rung_cells, verdict_text

_EVENTS = ("ladder-start", "rung-start", "progress", "rung-end", "ladder-end")  # each has a method of its name
_LINE_EVERY_S = 15.0  # in a log, between two lines of progress of the same stage


class LiveLadder:
    """Shows the events of a climb.

    On a terminal it updates one table; elsewhere (a pipe, CI, papermill) each event with news is a line. Events
    are mappings; unknown ones are ignored. ``seconds_left`` of ``rung-start`` is that of the whole ladder, of
    ``progress`` that of its stage.

    Args:
        console: for the output; ``gluontune``'s commands pass that of stderr under ``--json``.
        final: print the final table and the sentence when the ladder ends.
        clock: seconds, for elapsed and remaining time.

    >>> with LiveLadder(Console(width=80)) as live:
    ...     live.on_event({"event": "ladder-start", "rungs": ["naive"], "mode": "quick", "dataset": "sample"})
    ...     live.on_event({"event": "rung-start", "name": "naive", "sentence": "as written", "seconds_left": 90})
    gluontune ladder (quick) on sample: 1 rung
    [1/1] naive: as written (about 1 min 30 s left)
    """

    def __init__(self, console: Console, *, final: bool = False, clock: Callable[[], float] = time.monotonic):
        self.console, self._final, self._clock = console, final, clock
        self._order: list[str] = []
        self._rows: dict[str, dict[str, Any]] = {}
        self._sentences: dict[str, str] = {}
        self._current: dict[str, Any] | None = None
        self._title = "gluontune ladder"
        self._unit = "img/s"
        self._left: tuple[float, float] | None = None  # seconds left, and the time of that event
        self._began = clock()
        self._said: tuple[Any, float] = (None, 0.0)
        self._finished = False
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal and not console.is_jupyter:
            self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveLadder:
        self._began = self._clock()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            if not self._finished and self._rows:  # interrupted: the measured rungs stay on the screen
                self._current = None
                self.console.print(self._table())

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Show one event of the climb."""
        if event.get("event") in _EVENTS:
            getattr(self, f"_{event['event'].replace('-', '_')}")(event)

    def _ladder_start(self, event: Mapping[str, Any]) -> None:
        self._order = [str(name) for name in event.get("rungs") or ()]
        mode, dataset = fmt.clean(event.get("mode") or "", 20), event.get("dataset")
        name = fmt.clean(dataset.get("name") if isinstance(dataset, Mapping) else dataset or "", 60)
        if isinstance(dataset, Mapping) and not dataset.get("image_shape"):
            self._unit = "samples/s"
        self._began = self._clock()
        n = len(self._order)
        self._title = f"gluontune ladder{f' ({mode})' if mode else ''}{f' on {name}' if name else ''}"
        self._line(f"{self._title}: {n} rung{'' if n == 1 else 's'}")

    def _rung_start(self, event: Mapping[str, Any]) -> None:
        name = self._known(event)
        self._current = {"name": name, "stage": "starting", "done": 0.0, "detail": ""}
        self._sentences[name] = fmt.clean(event.get("sentence") or "", 200)
        seconds = fmt.number(event.get("seconds_left"))
        self._left = None if seconds is None else (max(0.0, seconds), self._clock())
        self._said = (None, self._clock())
        place = f"[{self._order.index(name) + 1}/{len(self._order)}] "
        text = f": {self._sentences[name]}" if self._sentences[name] else ""
        left = f" (about {fmt.duration(self._left[0])} left)" if self._left else ""
        self._line(f"{place}{fmt.clean(name, 24)}{text}{left}")

    def _progress(self, event: Mapping[str, Any]) -> None:
        name = self._known(event)
        self._current = {**event, "name": name, "at": self._clock()}
        stage, now = str(event.get("stage") or ""), self._clock()
        if stage == self._said[0] and now - self._said[1] < _LINE_EVERY_S:
            return
        self._said = (stage, now)
        self._line(f"  {self._progress_text()}")

    def _progress_text(self) -> str:
        current = self._current or {}
        done = fmt.number(current.get("done")) or 0.0
        parts = [f"{fmt.clean(current.get('stage') or '', 20)} {100 * min(1.0, max(0.0, done)):.0f} %"]
        detail = fmt.clean(current.get("detail") or "", 100)
        speed, reached = fmt.number(current.get("samples_per_sec")), fmt.number(current.get("val_accuracy"))
        if detail:
            parts.append(detail)
        if speed is not None and "/s" not in detail:
            parts.append(f"{fmt.rate(speed)} {self._unit}")
        if reached is not None:
            parts.append(f"accuracy {fmt.accuracy(reached)}")
        if (left := fmt.number(current.get("seconds_left"))) is not None:  # of this stage
            left -= self._clock() - current.get("at", self._clock())
            parts.append(f"{fmt.duration(left)} to go" if left >= 1 else "nearly done")
        return " · ".join(parts)

    def _rung_end(self, event: Mapping[str, Any]) -> None:
        row = check_row(event["row"])
        self._known(row)
        self._rows[row["name"]] = row
        self._current = None
        self._line(f"  {log_line(row, self._unit)}")

    def _ladder_end(self, event: Mapping[str, Any]) -> None:
        ladder = event["ladder"]
        self._finished, self._current = True, None
        if self._live is not None:
            self._live.stop()
        if not self._final:
            return
        sentence = ladder.get("sentence") or ladder_sentence(ladder)
        for shown in ("", ladder_table(ladder), "", Text(fmt.clean(sentence, 2000), style="bold")):
            self.console.print(shown)

    def _known(self, event: Mapping[str, Any]) -> str:
        if (name := str(event.get("name"))) not in self._order:
            self._order.append(name)
        return name

    def _line(self, text: str) -> None:
        if self._live is None:
            self.console.print(Text(text), soft_wrap=True)

    def _render(self) -> Group:
        return Group(self._table(), Text(""), self._footer())

    def _table(self) -> Table:
        table = text_table("rung", title=Text(self._title, style="bold"), title_justify="left")
        table.columns[0].no_wrap = True
        for heading in (self._unit, "× naive", "accuracy", "busy"):
            table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
        table.add_column("", no_wrap=True)
        for name in self._order:
            shown = fmt.clean(name, 24)
            if name in self._rows:
                row = self._rows[name]
                style = "" if row["in_best"] else "dim"
                table.add_row(Text(shown), *rung_cells(row, wide=False), verdict_text(row), style=style)
            elif self._current is not None and self._current["name"] == name:
                speed = fmt.number(self._current.get("samples_per_sec"))
                reached = fmt.number(self._current.get("val_accuracy"))
                cells = [fmt.rate(speed) if speed else "", "", fmt.accuracy(reached) if reached else "", ""]
                stage = fmt.clean(self._current.get("stage") or "", 20)
                table.add_row(Text(shown, style="bold cyan"), *cells, Text(f"◀ {stage}", style="cyan"))
            else:
                table.add_row(Text(shown, style="dim"), "", "", "", "", "")
        return table

    def _footer(self) -> Group:
        """The current stage, its progress, and the time passed and left."""
        current = self._current
        share = min(1.0, max(0.0, fmt.number(current.get("done")) or 0.0)) if current else 0.0
        total = (len(self._rows) + share) / max(1, len(self._order))
        now = self._clock()
        times = f"{fmt.duration(now - self._began)} passed"
        if self._left is not None:
            left = self._left[0] - (now - self._left[1])
            times += f", about {fmt.duration(left)} left" if left >= 1 else ", nearly done"
        bar = Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(total=1.0, completed=total, width=24), Text(times))
        lines: list[Any] = [bar]
        if current:
            text = self._sentences.get(current["name"])
            name = fmt.clean(current["name"], 24)
            lines.append(Text(f"{name}: {text}" if text else name))
            lines.append(Text(f"  {self._progress_text()}", style="dim"))
        return Group(*lines)
