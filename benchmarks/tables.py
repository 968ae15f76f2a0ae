"""Fills the tables of README.md and docs/ from the documents in this folder: ``python -m benchmarks tables``.

The text between ``<!-- figures: ID -->`` and ``<!-- /figures -->`` is made from ``ID.json``.
``<!-- figures: ID | columns: a; b | rows: 1; 3 -->`` takes some columns and rows (counted from 1) only.
The README's picture is made in the same way. With ``--check`` nothing is written: it exits with 1 if one is out of
date.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.published import cell, chart, check_published, parts
from gluontune.report.svg import standalone

__all__ = ["PICTURES", "filled", "load", "main", "table", "texts"]

HERE = Path(__file__).resolve().parent
PICTURES = {"docs/images/ladder.svg": "ladder-sample"}  # each with its document
BLOCK = re.compile(r"(<!-- figures: (?P<what>[^>]+?) -->\n)(?P<body>.*?)(<!-- /figures -->)", re.S)


def texts() -> list[Path]:
    """README.md and every page of docs/."""
    return [HERE.parent / "README.md", *sorted((HERE.parent / "docs").rglob("*.md"))]


def load(name: str) -> dict[str, Any]:
    """The document ``name``.json of this folder."""
    path = HERE / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in HERE.glob("*.json")))
        raise SystemExit(f"{path.name}: no such document in benchmarks/; there are {known}")
    document = json.loads(path.read_text(encoding="utf-8"))
    check_published(document, path.name)
    return document


def table(document: dict[str, Any], columns: list[str] | None = None, rows: list[int] | None = None) -> str:
    """The Markdown tables of a document, and one line with its conditions."""
    lines: list[str] = []
    for part, names, cells in parts(document, columns, rows):
        lines += [f"**{part}**", ""] if part else []
        lines += ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
        lines += ["| " + " | ".join(map(cell, row)) + " |" for row in cells] + [""]
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    when = f"{document['date']}, commit {document['commit']}" if document.get("commit") else document["date"]
    conditions = f"`{document['command']}`, n: {document['n']}; {document['machine']}; {versions}; {when}"
    return "\n".join([*lines, f"<sub>{conditions}.</sub>", ""])


def filled(text: str) -> str:
    """``text`` with every block regenerated."""

    def block(match: re.Match[str]) -> str:
        name, *options = [part.strip() for part in match["what"].split("|")]
        given = dict(option.split(":", 1) for option in options)
        columns = [c.strip() for c in given["columns"].split(";")] if "columns" in given else None
        rows = [int(r) for r in given["rows"].split(";")] if "rows" in given else None
        return match[1] + table(load(name), columns, rows) + match[4]

    return BLOCK.sub(block, text)


def main(check: bool = False) -> int:
    """Write the tables and pictures, or with ``check`` name the files that are out of date."""
    made = {path: filled(path.read_text(encoding="utf-8")) for path in texts()}
    made.update({HERE.parent / path: standalone(chart(load(name)) or "") for path, name in PICTURES.items()})
    stale = [path for path, new in made.items() if path.read_text(encoding="utf-8") != new]
    for path in stale:
        if not check:
            path.write_text(made[path], encoding="utf-8")
        text = "out of date: run python -m benchmarks tables" if check else "made anew"
        print(f"{path.relative_to(HERE.parent)}: {text}")
    return 1 if check and stale else 0
