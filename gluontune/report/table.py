"""Terminal tables of ladders and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gluontune.core.events import deciding
from gluontune.report import formatting as fmt
from gluontune.report.read import Source, check_ladder, check_row, reason_of, row_of
from gluontune.report.sentence import ladder_sentence, revisited_lines
from gluontune.report.study import text_table

# Widths of the terminal from which on accuracy and utilization, intervals, and predictions are shown.
_MEDIUM, _WIDE, _WIDEST = 76, 100, 118


class _Ladder:
    """The ladder's table, with columns for the console's width."""

    def __init__(self, rows: Sequence[dict[str, Any]], unit: str, best: str | None, again: Sequence[str]):
        self.rows, self.unit, self.best, self.again = rows, unit, best, again

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide, medium = options.max_width >= _WIDE, options.max_width >= _MEDIUM
        table = text_table("rung")
        table.columns[0].no_wrap = True
        gains = ["(95 %)", "× naive (95 %)", "× before"] if wide else ["× naive"]
        headings = [self.unit, *gains, "accuracy", "busy"]
        shown = len(headings) if medium else 2
        for heading in headings[:shown]:
            table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
        predicts = options.max_width >= _WIDEST and any(row["predicted"] for row in self.rows)
        if predicts:
            table.add_column("predicted", justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        for row in self.rows:
            style = "" if row["in_best"] else "dim"
            name = Text(fmt.clean(row["name"], 16), style="bold" if row["name"] == self.best else style)
            cells = rung_cells(row, wide)[:shown] + ([fmt.prediction(row)] if predicts else [])
            table.add_row(name, *cells, verdict_text(row), style=style)
        yield table
        yield from _remarks(self.rows)
        if self.again:
            yield Text("\nOn top of the best recipe, at the end:")
            yield from (Text(f"  {line}") for line in self.again)


def ladder_table(ladder: Mapping[str, Any]) -> Any:
    """The table of a finished, interrupted or half-failed ladder, ready for ``Console.print``.

    Args:
        ladder: the document of ``ladder.json``.

    >>> row = {"name": "naive", "status": "ran", "kept": True, "val_accuracy": [0.81],
    ...        "samples_per_sec": {"median": 500.0, "ci95": [490.0, 510.0], "n": 9}}
    >>> from rich.console import Console
    >>> Console(width=80).print(ladder_table({"schema_version": 1, "rungs": [row]}))
    rung   samples/s  × naive  accuracy    busy  verdict
    naive        500        —    81.0 %       —  start
    """
    ladder = check_ladder(ladder)
    return _Ladder(ladder["rungs"], fmt.unit(ladder), ladder["best"].get("name"), revisited_lines(ladder))


def runs_table(runs: Mapping[str, Mapping[str, Any]]) -> Any:
    """One line for each run; ``runs`` maps labels to rows of :func:`gluontune.report.read.row_of`.

    >>> from rich.console import Console
    >>> from gluontune.report.read import check_row
    >>> rate = {"median": 500.0, "ci95": [490.0, 510.0], "n": 9}
    >>> row = check_row({"name": "run", "status": "ok", "samples_per_sec": rate, "val_accuracy": [0.8],
    ...                  "elapsed_seconds": [12.5]})
    >>> Console(width=80).print(runs_table({"monday": row}))
    run     samples/s  accuracy  busy  time  status
    monday        500    80.0 %     —  12 s  ok
    """
    table = text_table("run|>samples/s|>accuracy|>busy|>time|status")
    table.columns[0].overflow = table.columns[5].overflow = "fold"
    for label, row in runs.items():
        cells = rung_cells(row, wide=False)
        trained = row["elapsed_seconds"][-1] if row["elapsed_seconds"] else None
        status = Text(fmt.clean(row["status"], 20) + (f": {reason_of(row)}" if reason_of(row) else ""))
        table.add_row(Text(fmt.clean(label, 80)), cells[0], cells[2], cells[3], fmt.duration(trained), status)
    return table


def rung_cells(row: Mapping[str, Any], wide: bool) -> list[str]:
    """The figures of a rung in the order of the table's columns."""
    speed, gain = row["samples_per_sec"] or {}, row["speedup_vs_naive"]
    previous: Mapping[str, Any] = deciding(row) or {}
    gains = [fmt.ratio(gain)]
    if wide:
        around = fmt.rates(speed["ci95"]) if speed.get("ci95") else ""
        with_interval = fmt.ratio_with_interval(gain, row["speedup_ci95"]).replace("95 %: ", "")
        gains = [around, with_interval, fmt.ratio(previous.get("median"))]
    busy = fmt.number(row["steadiness"].get("mean_pct"))
    reached = fmt.reached(row) or fmt.accuracy(None)
    return [fmt.rate(speed.get("median")), *gains, reached, "—" if busy is None else f"{busy:.0f} %"]


def verdict_text(row: Mapping[str, Any]) -> Text:
    """The outcome of a rung, with its sign."""
    word = fmt.outcome(row)
    if row["status"] == "ran" and word in ("start", "measured"):
        return Text(word)
    sign, style = fmt.MARKS.get(word, ("", ""))
    kept = ", kept" if row["in_best"] else ", not kept" if row["status"] == "ran" else ""
    kept = "" if word == "not measurable" and not row["in_best"] else kept
    return Text(f"{sign} {fmt.clean(word, 20)}{kept}".strip(), style=style)


def _remarks(rows: Sequence[dict[str, Any]]) -> RenderResult:
    """The reasons and notes, as sentences below the table."""
    said = [(row["name"], text) for row in rows for text in [reason_of(row), *map(fmt.clean, row["notes"])] if text]
    if said:
        yield Text("")
    for name, reason in said:
        yield Text.assemble((f"{fmt.clean(name, 24)}: ", "bold"), reason)


def log_line(row: Mapping[str, Any], unit: str) -> str:
    """A finished rung on one line, for logs.

    >>> log_line({"name": "records", "status": "ran", "verdict": "helped", "kept": True,
    ...     "samples_per_sec": {"median": 1200.0, "ci95": [1180.0, 1230.0], "n": 9}, "speedup_vs_naive": 2.4,
    ...     "val_accuracy": [0.7, 0.8]}, "img/s")
    'records: ▲ helped, kept; 1,200 img/s (95 %: 1,180–1,230); 2.4× naive; accuracy 80.0 %'
    """
    row = check_row(row)
    parts = [str(verdict_text(row))]
    if speed := row["samples_per_sec"]:
        around = f" (95 %: {fmt.rates(speed['ci95'])})" if speed["ci95"] else ""
        parts.append(f"{fmt.rate(speed['median'])} {unit}{around}")
        if row["predicted"]:
            parts.append(f"predicted {fmt.prediction(row)}")
    if row["speedup_vs_naive"] is not None and row["name"] != "naive":
        parts.append(f"{fmt.ratio(row['speedup_vs_naive'])} naive")
    parts += filter(None, [fmt.reached(row, named=True), reason_of(row)])
    return f"{fmt.clean(row['name'], 24)}: " + "; ".join(parts)


def print_sources(console: Console, sources: Sequence[Source]) -> None:
    """Print each ladder with its sentence, then the runs in one table, then the headlines of studies.

    Args:
        console: a ``rich`` console. sources: of :func:`collect`.

    >>> import json, pathlib, tempfile
    >>> from gluontune.report import collect
    >>> rate = {"median": 500.0, "ci95": [490.0, 510.0], "n": 9}
    >>> naive = {"name": "naive", "status": "ran", "kept": True, "samples_per_sec": rate}
    >>> ladder = {"schema_version": 1, "rungs": [naive], "best": {"name": "naive"}}
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "ladder.json").write_text(json.dumps(ladder))
    >>> print_sources(Console(width=80), collect([folder]).sources)
    rung   samples/s  × naive  accuracy     busy  verdict
    naive        500        —         —     —  start
    <BLANKLINE>
    only naive was measured: 500 samples/s
    <BLANKLINE>
    """
    for source in sources:
        if source.ladder is not None:
            console.print(ladder_table(source.ladder))
            console.print(Text(f"\n{ladder_sentence(source.ladder)}\n", style="bold"))
    if runs := {s.label: row_of(s.run, s.label, str(s.path)) for s in sources if s.run is not None}:
        console.print(runs_table(runs))
    for source in sources:
        if source.study is not None:
            line = f"{source.label}: {source.study['headline']}"
            console.print(Text(fmt.clean(line)), highlight=False, soft_wrap=True)


def summary(source: Source) -> dict[str, Any]:
    """One source in a few plain values, for ``gluontune report --json``."""
    if source.ladder is not None:
        best = source.ladder["best"]
        return {
            "path": str(source.path), "kind": "ladder", "complete": source.ladder["complete"],
            "sentence": ladder_sentence(source.ladder),
            "best": {key: best.get(key) for key in ("name", "samples_per_sec", "speedup_vs_naive")},
        }  # fmt: skip
    if source.study is not None:
        return {"path": str(source.path), "kind": source.study["key"], "sentence": source.study["headline"]}
    row = row_of(source.run, source.label, str(source.path)) if source.run is not None else {}
    kept = ("status", "samples_per_sec", "val_accuracy", "val_metric", "peak_rss_mib", "error")
    return {"path": str(source.path), "kind": "run", **{key: row.get(key) for key in kept}}
