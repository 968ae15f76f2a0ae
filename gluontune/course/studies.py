"""Studies of factors and of time to accuracy in a lesson: their figures, and a table."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from gluontune.course.figures import Markup, framed, table
from gluontune.errors import UsageError
from gluontune.report import factor_figures, tta_figures, words

__all__ = ["accuracy_bands", "composition", "race_table"]


def composition(rows: Sequence[Mapping[str, Any]], *, caption: str) -> Markup:
    """A dot for each pair of factors, and for all: what they give ÷ what their gains promise.

    Args:
        rows: one list of ``interactions`` in ``factors.json``.
    """
    return _captioned(factor_figures.interaction_dots("lesson-composition", rows), caption)


def accuracy_bands(study: Mapping[str, Any], titles: Mapping[str, str], *, caption: str) -> Markup:
    """Validation accuracy over training time: all seeds of each recipe, and the band between them.

    Args:
        study: what ``tta.json`` holds. titles: its recipes (``this``, ``against``) to what they are called.
    """
    groups = {title: [row for row in study["done"] if row["recipe"] == name] for name, title in titles.items()}
    target = study["given"]["target"]
    return _captioned(tta_figures.accuracy_band("lesson-bands", groups, target), caption)


def race_table(study: Mapping[str, Any], titles: Mapping[str, str]) -> Markup:
    """Time, spread and cost to the target, by recipe; a dash where no run reached it."""
    rows = []
    for name, title in titles.items():
        found = study["summary"][name]
        times = found["train_seconds"]
        rows.append(
            {
                "recipe": title,
                "reached the target": f"{times['reached']} of {times['repeats']}",
                "seconds of training, median": _or_dash(times["median"], ".1f"),
                "spread over seeds, percent": _or_dash(times["cv_pct"], ".1f"),
                "all seconds, median": _or_dash(found["wall_seconds"]["median"], ".1f"),
                "dollars, median run": _or_dash(found["usd"], ".5f"),
                "dollars for a success, failed runs paid": _or_dash(found["usd_with_failures"], ".5f"),
            }
        )
    return table(rows)


def _or_dash(value: float | None, form: str) -> str:
    return "—" if value is None else format(value, form)


def _captioned(svg: str | None, caption: str) -> Markup:
    if svg is None:
        raise UsageError(f"{words.clean(caption, 80)}: nothing was measured that could be drawn")
    return framed([f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"])
