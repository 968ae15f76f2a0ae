"""Operators against the roofline: the page of ``python -m benchmarks operators``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluontune.core import stats
from gluontune.report import formatting as words
from gluontune.report.study import row, study
from gluontune.report.svg import INK, SERIES, draw, label

__all__ = ["operators_view", "roofline"]

_SHAPES = {"product": "o", "convolution": "s", "recurrent": "D"}
_COLOURS = {"float32": 4, "bfloat16": 2, "float16": 5}


def operators_view(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study of a document of ``python -m benchmarks operators``."""
    facts, peaks, rows = document["conditions"], document["peaks"], document["rows"]
    own = [r for r in rows if r["source"] == "job" and r["dtype"] == "float32" and r["share_of_peak"]]
    worst = min((r for r in own if r["kind"] != "all-reduce"), key=_share, default=None)
    flops, moved = (peaks[k]["median"] / 1e9 for k in ("flops_per_sec", "bytes_per_sec"))
    headline = f"{facts['net']} on this machine's roofline: {flops:,.0f} GFLOP/s, {moved:,.1f} GB/s"
    tiles = [
        ("peak", f"{flops:,.0f} GFLOP/s", "a large float32 product"),
        ("bandwidth", f"{moved:,.1f} GB/s", "a large sum"),
    ]
    if worst is not None:
        tiles.append(("farthest from the peak", _percent(worst["share_of_peak"]), worst["name"]))
    figure = {
        "title": "The roofline",
        "svg": roofline("roofline", rows, peaks),
        "caption": "Each mark is one size. The line is what this machine can do at most: by its memory where it rises, "
        "by its arithmetic where it is level. Large: sizes of the job. Hollow: training, with both gradients. "
        "A mark above the line found its numbers in a cache.",
    }
    kinds = list(dict.fromkeys(r["kind"] for r in rows))
    return study(
        key=key,
        headline=headline,
        over=f"{facts['dataset']} · batch {facts['batch_size']} · threads: {facts['threads']} · "
        f"rounds: {facts['rounds']}",
        remarks=_remarks(rows),
        tiles=tiles,
        figures=[figure],
        tables=[_table(kind, [r for r in rows if r["kind"] == kind]) for kind in kinds],
        machine=document["machine"],
    )


def _share(r: Mapping[str, Any]) -> float:
    return float(r["share_of_peak"]["median"])


def _percent(share: Mapping[str, Any]) -> str:
    value = 100 * share["median"]
    return f"{value:.0f} %" if value >= 9.5 else f"{value:.1f} %"


def _remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The operators that do not run in a type, with the reasons."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for r in rows:
        groups.setdefault((r["kind"], r["dtype"]), []).append(r)
    found = []
    for (kind, dtype), some in groups.items():
        lost = [r for r in some if r["status"] != "ok"]
        if lost:
            which = "" if len(lost) == len(some) else f"{len(lost)} of {len(some)} sizes of "
            found.append(f"{which}{kind} in {dtype} did not run here: {lost[0]['reason']}")
    return found


def _table(kind: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    unit, name = ("GB/s", "bytes_per_sec") if kind == "all-reduce" else ("GFLOP/s", "flops_per_sec")
    types = [d for d in _COLOURS if any(r["dtype"] == d and r["status"] == "ok" for r in rows)]
    sizes: dict[str, dict[str, Any]] = {}
    for r in rows:
        sizes.setdefault(r["name"], {})[r["dtype"]] = r
    shown = []
    for size, typed in sizes.items():
        ran = [typed.get(d) for d in types]
        first = next((r for r in ran if r and r["status"] == "ok"), None)
        if first is not None:
            count = first["count"] if first["source"] == "job" else "—"
            cells = [_cell(r, name) for r in ran]
            shown.append(row(size, count, *cells, _percent(first["share_of_roofline"]), first["bound_by"]))
    return {
        "title": kind.capitalize(),
        "head": ["Size", "Layers", *(f"{d}: {unit} (95 %), of the peak" for d in types), "Of the roofline", "Bound by"],
        "rows": shown,
        "caption": "Layers: how many of the job's have this size. Training: forward and both gradients. The peak: "
        "that of float32, measured in the same rounds.",
    }


def _cell(r: Mapping[str, Any] | None, name: str) -> str:
    if r is None or r["status"] != "ok":
        return "—"
    bounds = stats.bounds(r[name])
    around = f" ({words.rate(bounds[0] / 1e9)}–{words.rate(bounds[1] / 1e9)})" if bounds else ""
    return f"{words.rate(r[name]['median'] / 1e9)}{around}, {_percent(r['share_of_peak'])}"


def roofline(name: str, rows: Sequence[Mapping[str, Any]], peaks: Mapping[str, Any]) -> str | None:
    """FLOP/s against FLOP a byte, on logarithmic axes, below the two roofs.

    Source of the form: Williams, Waterman, Patterson, *Roofline*, CACM 52(4), 2009.
    """
    shown = [r for r in rows if r["flops_per_sec"] and r["kind"] in _SHAPES]
    if not shown:
        return None
    peak, speed = (peaks[k]["median"] for k in ("flops_per_sec", "bytes_per_sec"))
    ends = [min(r["intensity"] for r in shown), max(r["intensity"] for r in shown)]
    texts = [f"{r['name']} {r['dtype']}: {100 * _share(r):.0f} %" for r in shown if r["source"] == "job"][:12]

    def plot(figure: Any) -> None:
        from matplotlib.ticker import FuncFormatter

        axes = figure.add_axes((0.13, 0.13, 0.85, 0.72))
        xs = [ends[0] / 2, peak / speed, ends[1] * 2]
        axes.plot(sorted(xs), [min(peak, x * speed) / 1e9 for x in sorted(xs)], color=INK["fg"], linewidth=1.6)
        seen = set()
        for r in shown:
            group = f"{r['kind']}, {r['dtype']}"
            axes.plot(
                [r["intensity"]],
                [r["flops_per_sec"]["median"] / 1e9],
                marker=_SHAPES[r["kind"]],
                color=SERIES[_COLOURS.get(r["dtype"], 6)],
                markerfacecolor="none" if r["pass"] == "training" else None,
                markersize=6 if r["source"] == "job" else 3.5,
                linestyle="none",
                alpha=0.8,
                label=label(group) if group not in seen else None,
            )
            seen.add(group)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel("FLOP for each byte that must be moved")
        axes.set_ylabel("GFLOP a second")
        axes.grid()
        axes.legend(loc="lower left", bbox_to_anchor=(-0.12, 1.01), ncols=2, fontsize=8.5)

    return draw(name, (4.8, 4.6), plot, f"Roofline; shares of the peak: {'; '.join(texts)}.")
