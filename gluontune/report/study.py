"""One self-contained page for a study: time to accuracy, a factor analysis."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from gluontune.files import atomic_write
from gluontune.report import views, words
from gluontune.report.page import _HERE, _json_for_html, _light, _template, _version

__all__ = ["row", "write_study"]


def row(*cells: Any, why: str | None = None) -> dict[str, Any]:
    """One row of a study's table; ``why`` is a remark below it.

    >>> row("a", 1, why="because")
    {'cells': ['a', '1'], 'why': 'because'}
    """
    return {"cells": [words.clean(cell, 120) for cell in cells], "why": words.clean(why or "", 400)}


def write_study(
    path: str | os.PathLike[str],
    *,
    headline: str,
    over: str,
    warn: str = "",
    remarks: Sequence[str] = (),
    tiles: Sequence[tuple[str, str, str]] = (),
    figures: Sequence[Mapping[str, Any]] = (),
    tables: Sequence[Mapping[str, Any]] = (),
    recipes: Mapping[str, Mapping[str, Any]] | None = None,
    machine: Mapping[str, Any] | None = None,
    data: Any = None,
) -> None:
    """Write the page of a study.

    Args:
        headline: what was found, in a line. over: data set, date and the like.
        tiles: ``(name, value, remark)``. figures: ``{"title", "svg", "caption"}``.
        tables: ``{"title", "head", "rows", "caption"}`` with rows from :func:`row`.
        recipes: title to recipe, for copying. data: embedded as JSON.
    """
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    text = _template().get_template("study.html.j2").render(
        title=words.clean(f"gluontune: {headline}", 160),
        headline=words.clean(headline, 300),
        over=words.clean(over, 300),
        warn=warn,
        remarks=[words.clean(remark, 600) for remark in remarks],
        tiles=tiles,
        figures=[figure for figure in figures if figure["svg"]],
        tables=tables,
        recipes=[(title, views._yaml(recipe)) for title, recipe in (recipes or {}).items()],
        machine=views._pairs(machine or {}),
        style=(_HERE / "style.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=_json_for_html(_light(data)),
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        version=_version(),
    )  # fmt: skip
    with atomic_write(path, "wb") as stream:
        stream.write(text.encode("utf-8", errors="replace"))
