"""``python -m benchmarks operators``: products, convolutions, recurrent layers and all-reduce, after DeepBench.

The sizes are those of the recipe's net, traced, and a default list; each in float32, bfloat16 and float16 where
it runs. In every round the machine's peaks are measured, too (a large float32 product, a large sum), so that the
share of the peak is a ratio of neighbours in time. The roofline is the limit of each size.

Source: Baidu's DeepBench; Williams, Waterman, Patterson, *Roofline*, CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks._operator_list import KINDS, default_list
from gluontune import datasets, monitor, runtime
from gluontune.core import stats
from gluontune.core.errors import GluontuneError, UsageError, nearest
from gluontune.recipe import Recipe
from gluontune.runtime.launch import launch_settings
from gluontune.search.bench.contender import OURS, Contender, Entrant

__all__ = ["run", "show"]

_WORK = "benchmarks._operators:make"
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

Case = dict[str, Any]


def run(
    recipe: Recipe,
    *,
    kinds: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    sizes: str = "both",
    devices: int = 2,
    rounds: int = 9,
    seconds: float = 0.3,
    quick: bool = False,
    time_limit: float = 120.0,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure the operators, and return the document.

    Args:
        recipe: its net, data, batch size give the job's sizes.
        kinds: of ``product``, ``convolution``, ``recurrent``, ``all-reduce``; all by default.
        dtypes: ``float32``, ``bfloat16``, ``float16``; all by default.
        sizes: ``job``, ``list`` or ``both``.
        devices: contexts of one process whose gradients the all-reduce adds.
        rounds: slices of each case. seconds: length of one. quick: a short list, three short rounds.
        time_limit: seconds of one slice after which a case counts as hung.

    Returns:
        ``{"kind": "operators", "rows": [{"name", "kind", "pass", "dtype", "source", "count", "status", "reason",
        "flops_per_sec", "bytes_per_sec", "microseconds", "share_of_peak", "share_of_roofline", "intensity",
        "bound_by"}], "peaks", "ours", "machine", "versions", "conditions"}``. Rates have ``median``, ``ci95``
        and ``n``; an all-reduce has bytes a second and its share of the peak bandwidth.

    Raises:
        UsageError: an unknown kind or type, a number below 1. GluontuneError: the job cannot be traced.
    """
    kinds, dtypes = _known("kind", kinds, KINDS), _known("dtype", dtypes, tuple(_BYTES))
    if sizes not in ("job", "list", "both"):
        raise UsageError(f"--sizes {sizes}: choose job, list or both")
    if min(rounds, devices) < 1 or not seconds > 0:
        raise UsageError("benchmarks operators: rounds, devices and seconds must be above 0")
    if quick:
        rounds, seconds = min(rounds, 3), min(seconds, 0.05)
    tell = say or (lambda line: None)
    if recipe.job is None:
        datasets.open(recipe.dataset)
    field = {dtype: _Typed(dtype, time_limit) for dtype in dict.fromkeys(["float32", *dtypes])}
    try:
        cases = _cases(field["float32"], recipe, kinds, sizes, devices, quick, tell)
        found = _measure(field, cases, dtypes, rounds, seconds, tell)
    finally:
        for typed in field.values():
            typed.close()
    conditions = {
        "net": recipe.job or recipe.net, "dataset": recipe.dataset, "batch_size": recipe.batch_size_per_device,
        "rounds": rounds, "seconds": seconds, "threads": runtime.usable_cores(), "devices": devices,
        "sizes": sizes, "quick": quick,
    }  # fmt: skip
    ran = [row for row in found["rows"] if row["status"] == "ok"]
    return {
        "kind": "operators",
        **found,
        "ours": {"name": OURS, "measured": len(ran), "failed": len(found["rows"]) - len(ran)} if ran else {},
        "machine": runtime.machine_facts(),
        "versions": field["float32"].versions,
        "conditions": conditions,
    }


def _known(name: str, given: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    for one in given or ():
        if one not in known:
            close = nearest(one, list(known), n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UsageError(f"benchmarks operators: unknown {name} {one!r}: {hint}Known: {', '.join(known)}")
    return list(dict.fromkeys(given or known))


class _Typed:
    """The process of one data type; it is restarted after a case ended it."""

    def __init__(self, dtype: str, time_limit: float):
        env = launch_settings(cores=runtime.usable_cores()).env
        self._entrant = Entrant(dtype, OURS, _WORK, {"dtype": dtype}, env=env)
        self._time_limit, self._contender = time_limit, None  # type: tuple[float, Contender | None]
        self.versions: dict[str, Any] = {}

    def ask(self, name: str, **arguments: Any) -> Any:
        """The result of a method in the process.

        Raises:
            GluontuneError: the process failed; the next call starts another.
        """
        if self._contender is None:
            self._contender = Contender(self._entrant, self._time_limit)
            self._contender.launch()
            self.versions = self._contender.info.get("versions", {})
        answer = self._contender.ask(name, **arguments) if self._contender.failure is None else None
        failure = self._contender.failure
        if failure is not None:
            self.close()
            raise failure
        return answer

    def close(self) -> None:
        if self._contender is not None:
            self._contender.close()
            self._contender = None


def _cases(
    typed: _Typed,
    recipe: Recipe,
    kinds: Sequence[str],
    sizes: str,
    devices: int,
    quick: bool,
    tell: Callable[[str], None],
) -> list[Case]:
    found: list[Case] = []
    if sizes != "list":
        tell(f"tracing {recipe.job or recipe.net}")
        found += typed.ask("layers", recipe=recipe.to_dict(), arrays=devices)
    if sizes != "job":
        known = {(case["kind"], case["name"]) for case in found}
        found += [c for c in default_list(devices, quick) if (c["kind"], c["name"]) not in known]
    found = [case for case in found if case["kind"] in kinds]
    if not found:
        raise GluontuneError(
            f"benchmarks operators: the net {recipe.job or recipe.net} has no {' or '.join(kinds)}; "
            "choose other kinds, or --sizes list"
        )
    return sorted(found, key=lambda case: KINDS.index(case["kind"]))


def _measure(
    field: Mapping[str, _Typed],
    cases: Sequence[Case],
    dtypes: Sequence[str],
    rounds: int,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Measure every case in every type, each round beside that round's peaks."""
    rates: dict[tuple[int, str], list[float]] = {(i, d): [] for i in range(len(cases)) for d in dtypes}
    reasons: dict[tuple[int, str], str] = {}
    peaks: list[dict[str, float]] = []
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}: the machine's peaks")
        peaks.append(field["float32"].ask("peaks"))
        for place, case in enumerate(cases):
            for dtype in dtypes:
                key = (place, dtype)
                if key in reasons:
                    continue
                tell(f"round {number + 1} of {rounds}: {place + 1}/{len(cases)} {case['kind']} {case['name']} {dtype}")
                try:
                    seen = field[dtype].ask("measure", case=case, seconds=seconds)
                except GluontuneError as error:
                    seen = {"error": str(error)}
                if "error" in seen:
                    reasons[key] = seen["error"]
                else:
                    rates[key].append(seen["per_second"])
    rows = [
        _row(case, dtype, rates[place, dtype], reasons.get((place, dtype)), peaks)
        for place, case in enumerate(cases)
        for dtype in dtypes
    ]
    names = ("flops_per_sec", "bytes_per_sec")
    return {"rows": rows, "peaks": {name: stats.interval([p[name] for p in peaks]) for name in names}}


def _row(
    case: Case, dtype: str, per_second: Sequence[float], reason: str | None, peaks: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    named = {key: case[key] for key in ("name", "kind", "pass", "source", "count", "sizes", "flops")}
    moved = case["values"] * _BYTES[dtype]
    row: dict[str, Any] = {**named, "dtype": dtype, "bytes": moved, "status": "failed" if reason else "ok"}
    row.update(reason=reason or "", intensity=case["flops"] / moved)
    row.update(dict.fromkeys(("flops_per_sec", "bytes_per_sec", "microseconds", "share_of_peak",
                              "share_of_roofline", "bound_by")))  # fmt: skip
    if reason:
        return row
    flops, speed = ([value * rate for rate in per_second] for value in (case["flops"], moved))
    roofs = [monitor.attainable_flops(case["flops"], moved, p["flops_per_sec"], p["bytes_per_sec"]) for p in peaks]
    reduced = case["kind"] == "all-reduce"
    shared, peak = (speed, "bytes_per_sec") if reduced else (flops, "flops_per_sec")
    row.update(
        flops_per_sec=stats.interval(flops),
        bytes_per_sec=stats.interval(speed),
        microseconds=stats.interval([1e6 / rate for rate in per_second]),
        share_of_peak=stats.ratio_interval(shared, [p[peak] for p in peaks]),
        share_of_roofline=stats.ratio_interval(flops, [roof["flops_per_sec"] for roof in roofs]),
        bound_by=roofs[len(roofs) // 2]["bound_by"],
    )
    return row


def show(found: Mapping[str, Any], console: Any) -> None:
    """Print a table for each kind of operator, a column for each type; a type that never ran is a line."""
    from rich.table import Table

    for kind in KINDS:
        rows = [row for row in found["rows"] if row["kind"] == kind]
        ran = [d for d in _BYTES if any(row["dtype"] == d and row["status"] == "ok" for row in rows)]
        unit = "GB/s" if kind == "all-reduce" else "GFLOP/s"
        table = Table("size", "job", title=f"{kind}: {unit}, share of the peak")
        for dtype in ran:
            table.add_column(dtype, justify="right")
        table.add_column("bound by")
        sizes: dict[str, dict[str, Any]] = {}
        for row in rows:
            sizes.setdefault(row["name"], {})[row["dtype"]] = row
        for name, typed in sizes.items():
            first = next(iter(typed.values()))
            count = str(first["count"]) if first["source"] == "job" else ""
            bound = next((row["bound_by"] for row in typed.values() if row["bound_by"]), "")
            table.add_row(name, count, *(_figure(typed.get(dtype), kind) for dtype in ran), bound)
        if ran:
            console.print(table)
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            lost = [row for row in rows if row["dtype"] == dtype and row["status"] != "ok"]
            if lost:
                what = "does not run" if dtype not in ran else f"{len(lost)} sizes do not run"
                text = f"{kind} in {dtype}: {what}: {lost[0]['reason']}"
                console.print(text, markup=False, highlight=False, soft_wrap=True)
    peaks = found["peaks"]
    console.print(
        f"measured peaks: {peaks['flops_per_sec']['median'] / 1e9:,.0f} GFLOP/s (float32 product), "
        f"{peaks['bytes_per_sec']['median'] / 1e9:,.1f} GB/s; job: how many of the net's layers have the size",
        highlight=False,
        soft_wrap=True,
    )


def _figure(row: Mapping[str, Any] | None, kind: str) -> str:
    if row is None or row["status"] != "ok":
        return "—"
    rate = row["bytes_per_sec" if kind == "all-reduce" else "flops_per_sec"]["median"] / 1e9
    return f"{_digits(rate)}, {100 * row['share_of_peak']['median']:.0f} %"


def _digits(value: float) -> str:
    """
    >>> _digits(0.123), _digits(12.34), _digits(1234)
    ('0.12', '12.3', '1,234')
    """
    return f"{value:,.{max(0, 2 - max(0, math.floor(math.log10(value)) if value > 0 else 0))}f}"
