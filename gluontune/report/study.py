"""Studies: a headline, tiles, figures and tables of any command; as a self-contained HTML page, and as text."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from gluontune.core.files import atomic_write, write_json
from gluontune.report import formatting as fmt

INTERRUPTED = "This was interrupted: it shows what was measured until then."
_IDS = re.compile(r'(\bid="|\bhref="#|url\(#)')
_HERE = Path(__file__).parent / "templates"
_SERIES_POINTS = 120  # of each series in the page's data; the JSON file has them all


def cell(
    text: str, *small: str, tip: str = "", mark: str = "", sign: str = "", badge: str = "", code: bool = False
) -> dict[str, Any]:
    """A cell with small lines below its text; ``tip`` is of the last one, ``mark`` and ``sign`` are of a verdict."""
    small = tuple(line for line in small if line)
    return {"text": text, "small": small, "tip": tip, "mark": mark, "sign": sign, "badge": badge, "code": code}


def row(*cells: Any, why: Any = None, dim: bool = False, chosen: bool = False) -> dict[str, Any]:
    """One row of a study's table: texts, or cells of :func:`cell`; ``why`` is a remark below it, or several.

    >>> row("a", 1, why="because")
    {'cells': ['a', '1'], 'why': ['because'], 'dim': False, 'chosen': False}
    """
    remarks = [why] if isinstance(why, str) else why or ()
    return {
        "cells": [each if isinstance(each, Mapping) else fmt.clean(each, 120) for each in cells],
        "why": [fmt.clean(remark, 600) for remark in remarks if remark], "dim": dim, "chosen": chosen,
    }  # fmt: skip


def table(
    title: str, head: Iterable[Any], rows: Sequence[Mapping[str, Any]], caption: str = "", *, cards: bool = False,
    left: Iterable[int] = (0,),
) -> dict[str, Any]:  # fmt: skip
    """A table of a study, without columns that have no value; ``left``: columns that are aligned to the left.

    ``cards``: rows become cards on a narrow screen.
    """

    def says(value: Any) -> bool:
        return (value if isinstance(value, str) else value["text"] or "".join(value["small"])) not in ("", "—")

    names, aligned = list(head), set(left)
    full = [n for n in range(len(names)) if n == 0 or any(says(each["cells"][n]) for each in rows)]
    return {"title": title, "head": [names[n] for n in full], "caption": caption, "cards": cards,
            "rows": [{**each, "cells": [each["cells"][n] for n in full]} for each in rows],
            "left": {place for place, n in enumerate(full) if n in aligned}}  # fmt: skip


def section(
    title: str, *, tables: Sequence[Mapping[str, Any]] = (), hint: str = "", lists: Sequence[Any] = (),
    recipe: str = "", facts: Sequence[tuple[str, str]] = (), folded: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """A part of a page under one title: tables, lists of sentences (title, hint, items), a recipe to copy, facts."""
    return {"title": title, "tables": tables, "hint": hint, "lists": lists, "recipe": recipe, "facts": facts,
            "folded": folded}  # fmt: skip


def figure(title: str, svg: str | None, caption: str, legend: Sequence[tuple[str, int]] = ()) -> dict[str, Any]:
    """A figure of a study; ``legend``: texts with the numbers of their colours."""
    return {"title": title, "svg": svg, "caption": caption, "legend": legend}


def study(
    *, key: str, headline: str, over: str = "", of: Mapping[str, Any] | None = None, warn: str = "",
    remarks: Sequence[str] = (), tiles: Sequence[tuple[str, str, str]] = (), figures: Sequence[Mapping[str, Any]] = (),
    tables: Sequence[Mapping[str, Any]] = (), recipes: Mapping[str, Mapping[str, Any]] | None = None,
    machine: Mapping[str, Any] | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A study for a page and a terminal.

    Args:
        key: prefix of its ids; :func:`keyed` changes it. headline: the result in a line. over: data set and the like.
        of: the document, for its date, its machine, and a warning if it was interrupted.
        tiles: ``(name, value, remark)``. figures, tables: those without a drawing, or without rows, are dropped.
        more: ``advice``, ``first`` (sections before the figures), ``small`` (figures of one size below the others) and
            ``last`` (sections before the recipes).
    """
    shown = [section(each["title"], tables=[{"cards": False, "left": {0}, **each}]) for each in tables if each["rows"]]
    if of is not None:
        over, machine = f"{over} · {of['created'][:16].replace('T', ' ')} UTC", of["machine"]
        warn = warn or ("" if of["complete"] else INTERRUPTED)
    copied = [section(title, recipe=fmt.as_yaml(recipe)) for title, recipe in (recipes or {}).items()]
    facts = [section("The machine", facts=fmt.fact_pairs(machine))] if machine else []
    return {
        "key": key, "headline": fmt.clean(headline, 300), "over": fmt.clean(over, 300), "warn": warn,
        "remarks": [fmt.clean(remark, 600) for remark in remarks if remark], "tiles": tiles,
        "figures": [{"legend": (), **figure} for figure in figures if figure["svg"]],
        "small": [], "advice": None, "first": [], **more,
        "sections": [*shown, *more.get("last", ()), *copied, *facts],
    }  # fmt: skip


def keyed(view: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study with unique ids, for a page of several.

    >>> view = study(key="a", headline="", over="", figures=[{"svg": '<g id="x"/><use href="#x"/>'}])
    >>> keyed(view, "b")["figures"][0]["svg"]
    '<g id="b-x"/><use href="#b-x"/>'
    """
    figures = [{**figure, "svg": _IDS.sub(rf"\g<1>{key}-", figure["svg"])} for figure in view["figures"]]
    return {**view, "key": key, "figures": figures}


def text_table(headings: str, rows: Iterable[Iterable[Any]] = (), **options: Any) -> Any:
    """A table for a terminal; headings are separated by ``|``, and ``>`` before one aligns its column to the right."""
    shown = Table(box=None, pad_edge=False, header_style="bold", **options)
    for heading in headings.split("|"):
        right = heading.startswith(">")
        shown.add_column(heading.lstrip(">"), justify="right" if right else "left", no_wrap=right)
    for cells in rows:
        shown.add_row(*(cell if hasattr(cell, "plain") else str(cell) for cell in cells))
    return shown


def text_tables(tables: Iterable[Mapping[str, Any]]) -> list[Any]:
    """The tables of a study for a terminal."""
    shown = []
    for found in tables:
        lines = text_table("|>".join(found["head"]), title=found["title"], title_justify="left")
        for column in lines.columns:
            column.no_wrap, column.overflow = False, "fold"
        for entry in found["rows"]:
            lines.add_row(*entry["cells"])
            for why in entry["why"]:
                lines.add_row(Text(f"  ↳ {why}", style="dim"))
        shown.append(lines)
    return shown


def finish(
    document: dict[str, Any], folder: str | os.PathLike[str], name: str,
    sentence: Callable[[Mapping[str, Any]], str], view: Callable[[Mapping[str, Any], str], Mapping[str, Any]],
) -> None:  # fmt: skip
    """Add a document's sentence; write ``NAME.json`` and then ``NAME.html``.

    The page comes last, so that the measurements are on disk if a figure fails.
    """
    document["sentence"] = sentence(document)
    write_json(Path(folder) / f"{name}.json", fmt.finite(document))
    write_study(Path(folder) / f"{name}.html", view(document, name), document)


def page(title: str, data: Any, views: Sequence[Mapping[str, Any]]) -> str:
    """The HTML of one page of studies; ``data`` is embedded as JSON."""
    import gluontune

    script = (_HERE / "page.js").read_text(encoding="utf-8")
    text = json.dumps(data, allow_nan=False)  # ASCII: U+2028 and its kind are escaped, too
    for character in "&<>":  # which could end a <script> element
        text = text.replace(character, f"\\u{ord(character):04x}")
    return _template("page.html.j2").render(
        style=(_HERE / "style.css").read_text(encoding="utf-8"), script=script, data=text, title=title, views=views,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), version=gluontune.__version__,
    )  # fmt: skip


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write HTML, atomically."""
    with atomic_write(path, "wb") as stream:
        stream.write(text.encode("utf-8", errors="replace"))  # lone surrogates cannot be written


@lru_cache(maxsize=1)
def _template(name: str) -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(name)  # fmt: skip


def write_study(path: str | os.PathLike[str], view: Mapping[str, Any], document: Any) -> None:
    """Write the page of one study; ``document`` is embedded as JSON."""
    title = fmt.clean(f"gluontune: {view['headline']}", 160)
    write_page(path, page(title, light(document), [view]))


def light(document: Any) -> Any:
    """The data with thinned time series."""
    if isinstance(document, Mapping):
        return {key: light(value) for key, value in document.items()}
    if isinstance(document, list):
        if len(document) > _SERIES_POINTS and all(v is None or fmt.number(v) is not None for v in document):
            document = document[:: -(-len(document) // _SERIES_POINTS)]
        return [light(value) for value in document]
    return fmt.finite(document)
