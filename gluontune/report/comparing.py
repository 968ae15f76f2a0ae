"""Runs against a baseline: differences of recipe and machine, and regressions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.text import Text

from gluontune.core.errors import UsageError
from gluontune.report import formatting as fmt
from gluontune.report.read import Source, check_row, reason_of, row_of
from gluontune.report.study import text_table

ACCURACY_POINTS = 2.0  # as in the ladder's parity gate


@dataclass
class Comparison:
    """One run against the baseline.

    Args:
        name, baseline: labels of the two.
        speed_ratio: ``{"median", "ci95"}`` of throughput ÷ the baseline's; None if one was not measured.
        accuracy_points: percentage points of final validation accuracy above the baseline's, or None.
        memory_ratio: peak resident memory ÷ the baseline's, or None.
        recipe, machine: ``{field: [baseline's value, this run's value]}`` of fields that differ.
        regressions: beyond the threshold, one sentence each.
        remarks: further facts, one sentence each.
    """

    name: str
    baseline: str
    speed_ratio: dict[str, Any] | None = None
    accuracy_points: float | None = None
    memory_ratio: float | None = None
    recipe: dict[str, list[Any]] = field(default_factory=dict)
    machine: dict[str, list[Any]] = field(default_factory=dict)
    regressions: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(sources: Sequence[Source], threshold_pct: float = 5.0) -> list[Comparison]:
    """Compare each source with the first; of a ladder, its best rung.

    A run has regressed if it failed; if its throughput is more than ``threshold_pct`` percent below the
    baseline's and the 95 % interval of the ratio lies wholly below 1; or if its accuracy at equal epochs is
    more than two points lower. The interval is that of two independent runs: the half-widths of both
    intervals on the logarithmic scale, added in quadrature.

    Args:
        sources: of :func:`collect`; the first is the baseline.

    Raises:
        UsageError: fewer than two, a threshold outside 0 … 100, or runs of different data sets.
    """
    if len(sources) < 2:
        raise UsageError(f"a comparison needs two or more results, not {len(sources)}: the first is the baseline")
    if not 0 <= threshold_pct < 100:
        raise UsageError(f"--threshold {threshold_pct:g}: give a percentage of at least 0 and below 100")
    for source in sources:
        if source.study is not None:
            raise UsageError(
                f"{source.path}: --compare takes runs and ladders, not a document of {source.study['key']}; leave it "
                "out, or make a page of it without --compare"
            )
    rows = [_row(source) for source in sources]
    first, *others = [(row["recipe"].get("dataset"), row["recipe"].get("job")) for row in rows]
    for source, data in zip(sources[1:], others):
        if data != first:
            mine, theirs = (" with job ".join(str(part) for part in pair if part) for pair in (data, first))
            raise UsageError(
                f"{source.path} trained on {fmt.clean(mine, 80)} but {sources[0].path} on {fmt.clean(theirs, 80)}: "
                "runs of different data cannot be compared"
            )
    return [_against(rows[0], row, threshold_pct) for row in rows[1:]]


def comparison_table(found: Sequence[Comparison]) -> Any:
    """The comparisons as a terminal table, with differences and regressions below each name.

    Args:
        found: of :func:`compare`.

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from rich.console import Console
    >>> from gluontune.recipe import Recipe
    >>> from gluontune.report import collect, compare
    >>> from gluontune.recipe.result import RunResult
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, rate in ("before", 100.0), ("after", 150.0):
    ...     speed = {"median": rate, "ci95": [rate - 1, rate + 1], "n": 9}
    ...     run = RunResult(recipe=Recipe().to_dict(), samples_per_sec=speed, val_accuracy=[0.8])
    ...     _ = (folder / f"{name}.json").write_text(json.dumps(run.to_dict()))
    >>> sources = collect([folder / "before.json", folder / "after.json"]).sources
    >>> Console(width=80).print(comparison_table(compare(sources)))
    against before       speed (95 %)     accuracy  memory
    after           1.50× (1.48–1.52)  +0.0 points       —
    """
    table = text_table("run|>speed (95 %)|>accuracy|>memory")
    table.columns[0].overflow, table.columns[0].ratio = "fold", 1
    if found:
        table.columns[0].header = f"against {fmt.clean(found[0].baseline, 60)}"
    for one in found:
        gain, moved = fmt.gain(one.speed_ratio).replace("95 %: ", ""), one.accuracy_points
        points = "—" if moved is None else f"{moved:+.1f} points"
        table.add_row(Text(fmt.clean(one.name, 80), style="bold"), gain, points, fmt.ratio(one.memory_ratio))
        for kind, differences in (("recipe", one.recipe), ("machine", one.machine)):
            for name, (before, after) in differences.items():
                line = f"  {kind} {name}: {' → '.join('—' if v is None else str(v) for v in (before, after))}"
                table.add_row(Text(fmt.clean(line, 300), style="dim"))
        for style, text in [*(("red", f"▼ {text}") for text in one.regressions), *(("", text) for text in one.remarks)]:
            table.add_row(Text(f"  {text}", style=style))
    return table


def _row(source: Source) -> dict[str, Any]:
    if source.run is not None:
        return row_of(source.run, source.label, str(source.path))
    ladder = source.ladder or {}
    name = (ladder.get("best") or {}).get("name")
    best = next((row for row in ladder.get("rungs", ()) if row["name"] == name), None)
    if best is None:
        raise UsageError(f"{source.path}: this ladder has no best rung to compare")
    return check_row({**best, "name": f"{source.label} ({name})", "machine": ladder["machine"]}, str(source.path))


def _against(base: dict[str, Any], row: dict[str, Any], threshold_pct: float) -> Comparison:
    found = Comparison(fmt.clean(row["name"], 120), fmt.clean(base["name"], 120))
    found.recipe = _differences(base["recipe"], row["recipe"])
    found.machine = _differences(base.get("machine") or {}, row.get("machine") or {})
    if base["peak_rss_mib"] and row["peak_rss_mib"]:
        found.memory_ratio = row["peak_rss_mib"] / base["peak_rss_mib"]
    if row["status"] == "failed":
        found.regressions.append(f"it failed: {reason_of(row) or 'no reason given'}")
    if found.machine:
        found.remarks.append("the machines differ, so a difference in speed need not come from the recipe")
    if base["samples_per_sec"] and row["samples_per_sec"]:
        found.speed_ratio = speed = _ratio(row["samples_per_sec"], base["samples_per_sec"])
        lost = f"{100 * (1 - speed['median']):.1f} % slower (limit: {threshold_pct:g} %)"
        if speed["median"] < 1 - threshold_pct / 100 and (speed["ci95"] is None or speed["ci95"][1] < 1):
            found.regressions.append(lost)
        elif speed["median"] < 1 - threshold_pct / 100:
            found.remarks.append(f"{lost}, but the interval reaches 1: measure longer to be sure")
    else:
        found.remarks.append("no throughput in both, so the speed cannot be compared")
    before, after = base["val_accuracy"], row["val_accuracy"]
    if before and after and before[-1] is not None and after[-1] is not None:
        found.accuracy_points = 100 * (after[-1] - before[-1])
        if len(before) != len(after):
            found.remarks.append(f"accuracy after {len(after)} epochs stands against {len(before)} epochs")
        elif found.accuracy_points < -ACCURACY_POINTS:
            lost = f"accuracy is {-found.accuracy_points:.1f} points lower at equal epochs"
            found.regressions.append(f"{lost} (limit: {ACCURACY_POINTS:g})")
    return found


def _ratio(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Ratio of two medians, with the interval for independent runs; None if an interval is missing."""
    median = mine["median"] / theirs["median"]
    if not mine["ci95"] or not theirs["ci95"] or min(*mine["ci95"], *theirs["ci95"]) <= 0:
        return {"median": median, "ci95": None}
    up = math.hypot(math.log(mine["ci95"][1] / mine["median"]), math.log(theirs["median"] / theirs["ci95"][0]))
    down = math.hypot(math.log(mine["median"] / mine["ci95"][0]), math.log(theirs["ci95"][1] / theirs["median"]))
    return {"median": median, "ci95": [median * math.exp(-down), median * math.exp(up)]}


def _differences(base: dict[str, Any], other: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [base.get(name), other.get(name)] for name in {**base, **other} if base.get(name) != other.get(name)}
