"""The monitor's figures: its overhead, the sum of its phases, and how often its verdicts are right."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import overhead, predicting, verdict_runs
from gluontune import runtime
from gluontune.core import stats
from gluontune.core.errors import UsageError
from gluontune.core.files import set_aside, write_json
from gluontune.core.journal import earlier

__all__ = ["PARTS", "ROUNDS", "run", "show"]

#: Parts of the benchmark, with the bar of each.
PARTS = {
    "slowdown": f"median ratio of the time of a step, and the waits, at most {overhead.SLOWDOWN_BAR_PCT:g} %",
    "attribution": f"phases and wall clock within {overhead.ATTRIBUTION_BAR_PCT:g} %",
    "whatif": f"median error at most {predicting.BAR_PCT:g} %",
    "verdicts": f"{100 * verdict_runs.BAR:g} % of the runs of each situation right",
}
#: Default of ``rounds``: pairs of slices, and runs of each situation.
ROUNDS = {"slowdown": 150, "verdicts": 20}
_SECONDS = {"attribution": 8.0, "whatif": 2.5}


def run(
    *,
    parts: Sequence[str] | None = None,
    rounds: int | None = None,
    only: list[str] | None = None,
    dataset: str = "sample",
    out: Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure the parts and return the document; with ``out`` it is saved after each step.

    Args:
        parts: names of :data:`PARTS`; None measures all.
        rounds: pairs of slices, or runs of each situation; None takes :data:`ROUNDS`.
        only: situations of ``verdicts``; None takes all.
        dataset: of the real trainings.
        out: file of the document.
        resume: keep the finished parts, and the finished runs, that ``out`` holds.

    Returns:
        ``{"parts": {name: {"rows", "bar", "holds", "summary"}}, "machine", "conditions"}``.

    Raises:
        UsageError: an unknown part or situation.
        GluontuneError: ``out`` cannot be read or written; a training failed.
    """
    names = list(PARTS) if parts is None else list(parts)
    for name in names:
        if name not in PARTS:
            raise UsageError(f"--part {name!r}: choose from {', '.join(PARTS)}")
    for kind in only or ():
        if kind not in verdict_runs.SITUATIONS:
            raise UsageError(f"--only {kind!r}: choose from {', '.join(verdict_runs.SITUATIONS)}")
    conditions = {"dataset": dataset, "rounds": rounds, "only": only}
    document: dict[str, Any] = {"parts": {}, "machine": runtime.machine_facts(), "conditions": conditions}
    if resume:
        document["parts"] = _taken_up(out)
    else:
        set_aside(out)

    def save() -> None:
        if out is not None:
            write_json(out, document)

    for name in names:
        if name != "verdicts" and name in document["parts"]:
            continue
        pairs = rounds or ROUNDS.get(name, 0)

        def tell(line: str, name: str = name) -> None:
            say(f"{name}: {line}")

        if name == "verdicts":
            _verdicts(document, pairs, only, tell, save)
        elif name == "slowdown":
            document["parts"][name] = _part(name, overhead.slowdown(dataset, pairs, tell))
        elif name == "attribution":
            document["parts"][name] = _part(name, overhead.attribution(dataset, _SECONDS[name], tell))
        else:
            rows = predicting.measure(dataset, _SECONDS[name], tell)
            errors = sorted(abs(row["error_pct"]) for row in rows)
            real = [abs(row["error_pct"]) for row in rows if not row["simulated"]]
            median, worst = statistics.median(real), errors[-1]
            part = {"median_error_pct": median, "worst_error_pct": worst, "comparisons": len(rows)}
            document["parts"][name] = {
                "rows": rows, "bar": PARTS[name], "holds": median <= predicting.BAR_PCT, "summary": part
            }  # fmt: skip
        save()
    return document


def _part(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rows": rows, "bar": PARTS[name], "holds": all(row["holds"] for row in rows), "summary": {}}


def _verdicts(
    document: dict[str, Any], rounds: int, only: list[str] | None, say: Callable[[str], None], save: Any
) -> None:
    part = document["parts"].setdefault("verdicts", {"runs": []})

    def keep() -> None:
        rows = verdict_runs.summarize(part["runs"])
        part.update(rows=rows, bar=PARTS["verdicts"], holds=all(row["holds"] for row in rows), summary={})
        save()

    verdict_runs.measure(part["runs"], rounds=rounds, only=only, say=say, on_run=keep)
    keep()


def _taken_up(out: Path | None) -> dict[str, Any]:
    return earlier(out, "benchmarks monitor", lambda found: dict(found["parts"])) or {}


def show(found: Mapping[str, Any], console: Any) -> None:
    """Print a table for each part, with its bar."""
    from rich.table import Table

    for name, part in found["parts"].items():
        headings, cells = _TABLES[name]
        table = Table(*headings, title=f"{name} ({part['bar']})", title_justify="left")
        for row in part["rows"]:
            table.add_row(*cells(row))
        console.print(table)
        summary = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in part["summary"].items())
        console.print(f"{'holds' if part['holds'] else 'DOES NOT HOLD'}{': ' + summary if summary else ''}\n")


def _ratio(found: Mapping[str, Any], key: str = "median") -> str:
    """A ratio for the table; two pairs have no interval to show.

    >>> _ratio({"median": 1.01, "ci95": [0.5, 2.0], "n": 2}), _ratio({"mean": 1.0, "ci95": [0.9, 1.1], "n": 3}, "mean")
    ('1.0100', '1.0000 (0.9000-1.1000)')
    """
    return stats.said({**found, "median": found[key]}, ".4f")


def _slowdown_cells(row: Mapping[str, Any]) -> list[str]:
    off, on = row["step_time_ms"]["off"]["median"], row["step_time_ms"]["on"]["median"]
    ratios = [_ratio(row["ratio"]), _ratio(row["mean_ratio"], "mean"), _ratio(row["cpu_ratio"], "mean")]
    return [row["name"], f"{off:.2f}", f"{on:.2f}", *ratios, f"{row['waits_pct']:.2f}", str(row["pairs"])]


def _attribution_cells(row: Mapping[str, Any]) -> list[str]:
    figures = ("wall_ms_per_step", "accounted_ms_per_step", "sum_vs_wall_pct", "between_phases_pct", "overlap_pct")
    return [row["name"], *("" if row[key] is None else f"{row[key]:.2f}" for key in figures)]


def _whatif_cells(row: Mapping[str, Any]) -> list[str]:
    rates = [f"{row[f'{key}_samples_per_sec']:,.0f}" for key in ("predicted", "measured")]
    return [row["name"], *rates, f"{row['error_pct']:+.1f}", row["bound_by"]]


def _verdict_cells(row: Mapping[str, Any]) -> list[str]:
    instead = ", ".join(f"{kind} {count}" for kind, count in row["instead"].items())
    what = row["what"] + (f" ({row['simulated']})" if row["simulated"] else "")
    return [row["name"], f"{row['right']} of {row['runs']}", instead, str(row["disturbed"]), what]


_TABLES: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], list[str]]]] = {
    "slowdown": (
        ("training", "ms a step, off", "on", "ratio (95 %)", "of all time", "of CPU time", "waits %", "pairs"),
        _slowdown_cells,
    ),
    "attribution": (
        ("training", "wall ms a step", "accounted", "difference %", "in no phase %", "overlap %"),
        _attribution_cells,
    ),
    "whatif": (("training", "predicted", "measured samples/s", "error %", "bound by"), _whatif_cells),
    "verdicts": (("situation", "right", "instead", "disturbed", "how it is built"), _verdict_cells),
}
