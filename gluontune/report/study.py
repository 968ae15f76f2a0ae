"""A study as the page shows it: a headline, tiles, figures and tables, whatever command it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gluontune.report import facts as plain
from gluontune.report import formatting as words

__all__ = ["keyed", "over", "row", "study"]

_IDS = re.compile(r'(\bid="|\bhref="#|url\(#)')


def row(*cells: Any, why: str | None = None) -> dict[str, Any]:
    """One row of a study's table; ``why`` is a remark below it.

    >>> row("a", 1, why="because")
    {'cells': ['a', '1'], 'why': 'because'}
    """
    return {"cells": [words.clean(cell, 120) for cell in cells], "why": words.clean(why or "", 400)}


def over(document: Mapping[str, Any], *facts: str) -> str:
    """The line above a study's headline: data set, ``facts``, and when it was made."""
    made = document["created"][:16].replace("T", " ") + " UTC"
    return " · ".join([str(document["dataset"]["name"]), *facts, made])


def study(
    *,
    key: str,
    headline: str,
    over: str,
    warn: str = "",
    remarks: Sequence[str] = (),
    tiles: Sequence[tuple[str, str, str]] = (),
    figures: Sequence[Mapping[str, Any]] = (),
    tables: Sequence[Mapping[str, Any]] = (),
    recipes: Mapping[str, Mapping[str, Any]] | None = None,
    machine: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What the template shows of a study.

    Args:
        key: begins its ids; :func:`keyed` gives another.
        headline: what was found, in a line. over: data set, date and the like.
        tiles: ``(name, value, remark)``. figures: ``{"title", "svg", "caption"}``; those without a drawing go.
        tables: ``{"title", "head", "rows", "caption"}`` with rows from :func:`row`.
        recipes: title to recipe, for copying.
    """
    return {
        "key": key,
        "headline": words.clean(headline, 300),
        "over": words.clean(over, 300),
        "warn": warn,
        "remarks": [words.clean(remark, 600) for remark in remarks if remark],
        "tiles": tiles,
        "figures": [figure for figure in figures if figure["svg"]],
        "tables": [table for table in tables if table["rows"]],
        "recipes": [(title, plain.as_yaml(recipe)) for title, recipe in (recipes or {}).items()],
        "machine": plain.pairs(machine or {}),
    }


def keyed(view: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The same study with ids of its own, for a page with several.

    >>> view = study(key="a", headline="", over="", figures=[{"svg": '<g id="x"/><use href="#x"/>'}])
    >>> keyed(view, "b")["figures"][0]["svg"]
    '<g id="b-x"/><use href="#b-x"/>'
    """
    figures = [{**figure, "svg": _IDS.sub(rf"\g<1>{key}-", figure["svg"])} for figure in view["figures"]]
    return {**view, "key": key, "figures": figures}
