"""The figures of a ladder's page, each with its caption and legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluontune.report import figures, utilization_figures, words

__all__ = ["figures_of", "score", "utilization_of"]

Row = dict[str, Any]


def score(steadiness: Mapping[str, Any]) -> str:
    score = words.number(steadiness.get("score"))
    return "" if score is None else f"{score:.2f}"


def figures_of(key: str, rows: Sequence[Row], unit: str) -> list[dict[str, Any]]:
    ladder = any(row["name"] == "naive" for row in rows)
    phases = [phase for phase in words.PHASES if any(row["phases_pct"].get(phase) for row in rows)]
    others = sorted({p for row in rows for p in row["phases_pct"] if p not in words.PHASES})
    legend = [(f"{p}: {words.PHASES[p]}", figures.PHASE_SERIES[p]) for p in phases]
    legend += [(words.clean(p, 40), 7) for p in others]
    drawn = [
        (
            "Throughput",
            figures.throughput(f"{key}-throughput", rows, unit),
            _BARS_SAY
            + (_KEPT_SAY if ladder else "")
            + (_PREDICTED_SAY if any(row["predicted"] for row in rows) else ""),
            [],
        ),
        ("What each rung brought", figures.gains(f"{key}-gains", rows), _GAINS_SAY, []),
        ("Where a step's time goes", figures.phases(f"{key}-phases", rows), _PHASES_SAY, legend),
        (
            "Accuracy against time",
            figures.accuracy(f"{key}-accuracy", rows),
            _CURVES_SAY + (" Dashed: not kept." if ladder else ""),
            [],
        ),
    ]
    return [{"title": t, "svg": svg, "caption": c, "legend": g} for t, svg, c, g in drawn if svg]


_BARS_SAY = "Training throughput, loading included. Whiskers: 95 % interval."
_KEPT_SAY = (
    " Blue: kept; grey: not kept. Dashed: naive. In brackets: the speed against naive measured in the same "
    "minutes, which counts where the machine's own speed drifts."
)
_PREDICTED_SAY = " Hollow diamonds: predicted before it was measured."
_GAINS_SAY = (
    "Measured in turn with the best rung before it. A whisker that crosses the dashed line shows no certain "
    "gain. Dots: kept; diamonds: not kept."
)
_PHASES_SAY = "Percent of one training step. A phase that shrinks gives its time to the others."
_CURVES_SAY = "The clock counts training alone."


def utilization_of(key: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for place, row in enumerate(rows):
        svg = utilization_figures.utilization(f"{key}-util{place}", row)
        if svg is None:
            continue
        steady = row["steadiness"]
        said = [("mean", "mean_pct", "{:.0f} %"), ("below half", "below_50_pct", "{:.0f} % of the time")]
        said += [("longest idle gap", "longest_idle_gap_s", "{:.1f} s")]
        values = [(title, words.number(steady.get(name)), form) for title, name, form in said]
        caption = [f"{title} {form.format(value)}" for title, value, form in values if value is not None]
        if score(steady):
            caption.insert(1, f"steadiness {score(steady)}")
        legend = utilization_figures.utilization_series(row)
        found.append(
            {"name": words.clean(row["name"], 60), "svg": svg, "caption": ", ".join(caption), "legend": legend}
        )
    return found
