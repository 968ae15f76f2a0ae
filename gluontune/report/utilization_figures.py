"""How busy CPU and GPUs were, against time."""

from __future__ import annotations

from typing import Any

from gluontune.report import formatting as words
from gluontune.report.figures import WIDTH, Row
from gluontune.report.svg import SERIES, draw

__all__ = ["utilization", "utilization_series"]

_POINTS = 240  # of a utilization series: more cannot be seen at its size


def utilization(name: str, row: Row, wide: bool = False) -> str | None:
    """Utilization over time: CPU and each GPU; the one that computes is filled. ``wide``: not one of many."""
    series = _series(row["utilization"])
    if not series:
        return None
    device = str(row["utilization"].get("device", "")).lower()
    mine = [title for title, *_ in series if len(series) == 1 or title.lower().startswith(device or "gpu")]
    said = [f"{title} on average {_mean(ys):.0f} %" for title, _, _, ys in series]

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.135, 0.24, 0.84, 0.7) if wide else (0.14, 0.28, 0.83, 0.65))
        for title, colour, xs, ys in series:
            axes.plot(xs, ys, color=SERIES[colour], linewidth=1.3)
            if mine == [title]:  # several fillings over each other are mud
                axes.fill_between(xs, 0, ys, color=SERIES[colour], alpha=0.25, linewidth=0)
        axes.set_ylim(0, 103)
        axes.set_yticks([0, 50, 100])
        axes.set_xlim(series[0][2][0], max(series[0][2][-1], series[0][2][0] + 1e-3))
        axes.set_xlabel("seconds", labelpad=1)
        if wide:
            axes.set_ylabel("busy, percent")
        axes.grid(axis="y")

    return draw(
        name,
        (WIDTH, 2.2) if wide else (3.2, 1.65),
        plot,
        f"Utilization of {words.clean(row['name'], 44)}: {', '.join(said)}.",
    )


def utilization_series(row: Row) -> list[tuple[str, int]]:
    """Names and colours of a row's series, for the page's legend."""
    return [(title, colour) for title, colour, _, _ in _series(row["utilization"])]


def _series(found: dict[str, Any]) -> list[tuple[str, int, list[float], list[float]]]:
    clock = found.get("t_s")
    times = [words.number(t) for t in clock] if isinstance(clock, list) else []
    named = [("CPU", 4, found.get("cpu_pct"))]
    gpus = found.get("gpu_util_pct")
    if isinstance(gpus, dict):
        palette = (5, 2, 6, 1, 3, 0)
        named += [(f"GPU {words.clean(k, 12)}", palette[n % 6], v) for n, (k, v) in enumerate(gpus.items())]
    series = []
    for title, colour, values in named:
        if not isinstance(values, list) or not any(words.number(v) is not None for v in values):
            continue
        xs, ys = _thinned([(t, words.number(v)) for t, v in zip(times, values) if t is not None])
        if len(xs) >= 2 and any(y == y for y in ys):
            series.append((title, colour, xs, ys))
    return series


def _thinned(points: list[tuple[float, float | None]]) -> tuple[list[float], list[float]]:
    """At most ``_POINTS`` means of neighbours; a reading that is missing (N/A) leaves a gap."""
    step = max(1, -(-len(points) // _POINTS))
    xs, ys = [], []
    for start in range(0, len(points), step):
        part = points[start : start + step]
        known = [y for _, y in part if y is not None]
        xs.append(sum(x for x, _ in part) / len(part))
        ys.append(sum(known) / len(known) if known else float("nan"))
    return xs, ys


def _mean(values: list[float]) -> float:
    known = [v for v in values if v == v]
    return sum(known) / len(known)
