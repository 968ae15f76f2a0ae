"""Operators against the roofline: the page of ``gluontune bench operators``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluontune.report import words
from gluontune.report.study import row, study
from gluontune.report.svg import INK, SERIES, draw, label

__all__ = ["operators_view", "roofline"]

_SHAPES = {"product": "o", "convolution": "s", "recurrent": "D"}
_COLOURS = {"float32": 4, "bfloat16": 2, "float16": 5}


def operators_view(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study of a document of ``gluontune bench operators``."""
    said, peaks, rows = document["conditions"], document["peaks"], document["rows"]
    own = [r for r in rows if r["source"] == "job" and r["dtype"] == "float32" and r["share_of_peak"]]
    worst = min((r for r in own if r["kind"] != "all-reduce"), key=_share, default=None)
    flops, moved = (peaks[k]["median"] / 1e9 for k in ("flops_per_sec", "bytes_per_sec"))
    headline = f"{said['net']} on this machine's roofline: {flops:,.0f} GFLOP/s, {moved:,.1f} GB/s"
    tiles = [
        ("peak", f"{flops:,.0f} GFLOP/s", "a large float32 product"),
        ("bandwidth", f"{moved:,.1f} GB/s", "a large sum"),
    ]
    if worst is not None:
        tiles.append(("farthest from the peak", f"{100 * _share(worst):.0f} %", worst["name"]))
    failed = sorted({(r["kind"], r["dtype"]) for r in rows if r["status"] != "ok"})
    figure = {
        "title": "The roofline",
        "svg": roofline("roofline", rows, peaks),
        "caption": "Each mark is one size. The line is what this machine can do at most: by its memory where it rises, "
        "by its arithmetic where it is level. Large: sizes of the job. "
        "A mark above the line found its numbers in a cache.",
    }
    kinds = list(dict.fromkeys(r["kind"] for r in rows))
    return study(
        key=key,
        headline=headline,
        over=f"{said['dataset']} · batch {said['batch_size']} · {said['threads']} threads · {said['rounds']} rounds",
        remarks=[f"{kind} does not run in {dtype} here" for kind, dtype in failed],
        tiles=tiles,
        figures=[figure],
        tables=[_table(kind, [r for r in rows if r["kind"] == kind]) for kind in kinds],
        machine=document["machine"],
    )


def _share(r: Mapping[str, Any]) -> float:
    return float(r["share_of_peak"]["median"])


def _table(kind: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    unit, name = ("GB/s", "bytes_per_sec") if kind == "all-reduce" else ("GFLOP/s", "flops_per_sec")
    shown = []
    for r in rows:
        count = f"{r['count']}" if r["source"] == "job" else "—"
        if r["status"] != "ok":
            shown.append(row(r["name"], count, r["dtype"], r["status"], "—", "—", why=r["reason"]))
            continue
        low, high = (bound / 1e9 for bound in r[name]["ci95"])
        rate = f"{words.rate(r[name]['median'] / 1e9)} ({words.rate(low)}–{words.rate(high)})"
        shares = (f"{100 * r[k]['median']:.0f} %" for k in ("share_of_peak", "share_of_roofline"))
        shown.append(row(r["name"], count, r["dtype"], rate, *shares))
    return {
        "title": kind.capitalize(),
        "head": ["Size", "Layers of the job", "Type", f"{unit} (95 %)", "Of the peak", "Of the roofline"],
        "rows": shown,
        "caption": "Training: forward and both gradients. The peak is that of float32, measured in the same rounds.",
    }


def roofline(name: str, rows: Sequence[Mapping[str, Any]], peaks: Mapping[str, Any]) -> str | None:
    """FLOP/s against FLOP a byte, on logarithmic axes, below the two roofs.

    Source of the form: Williams, Waterman, Patterson, *Roofline*, CACM 52(4), 2009.
    """
    shown = [r for r in rows if r["flops_per_sec"] and r["kind"] in _SHAPES]
    if not shown:
        return None
    peak, speed = (peaks[k]["median"] for k in ("flops_per_sec", "bytes_per_sec"))
    ends = [min(r["intensity"] for r in shown), max(r["intensity"] for r in shown)]
    said = [f"{r['name']} {r['dtype']}: {100 * _share(r):.0f} %" for r in shown if r["source"] == "job"][:12]

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.13, 0.13, 0.85, 0.68))
        xs = [ends[0] / 2, peak / speed, ends[1] * 2]
        axes.plot(
            sorted(xs), [min(peak, x * speed) / 1e9 for x in sorted(xs)], color=INK["fg"], linewidth=1.6
        )
        seen = set()
        for r in shown:
            group = f"{r['kind']}, {r['dtype']}"
            axes.plot(
                [r["intensity"]],
                [r["flops_per_sec"]["median"] / 1e9],
                marker=_SHAPES[r["kind"]],
                color=SERIES[_COLOURS.get(r["dtype"], 6)],
                markersize=6 if r["source"] == "job" else 3.5,
                linestyle="none",
                alpha=0.8,
                label=label(group) if group not in seen else None,
            )
            seen.add(group)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("FLOP for each byte that must be moved")
        axes.set_ylabel("GFLOP a second")
        axes.grid()
        axes.legend(loc="lower left", bbox_to_anchor=(-0.12, 1.01), ncols=2, fontsize=8.5)

    return draw(name, (4.8, 4.6), plot, f"Roofline; shares of the peak: {'; '.join(said)}.")
