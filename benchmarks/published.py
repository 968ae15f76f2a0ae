"""Published figures: the documents of ``benchmarks/`` behind each table of the README and the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluontune.core import stats
from gluontune.core.errors import GluontuneError
from gluontune.report import figures
from gluontune.report.study import row, study

__all__ = ["cell", "chart", "check_published", "published_view", "rounded"]

_TEXTS = ("id", "title", "command", "date", "machine", "n", "provenance")


def check_published(document: Mapping[str, Any], source: str = "document") -> None:
    """Refuse a document without the facts behind its figure.

    Raises:
        GluontuneError: names the key that is missing or has the wrong shape.

    >>> check_published({"kind": "published"}, "x.json")
    Traceback (most recent call last):
    gluontune.errors.GluontuneError: x.json: 'id' is missing: a published figure has id, title, command, ...
    """
    wanted = f"a published figure has {', '.join(_TEXTS)}, versions, columns and rows"
    for key in _TEXTS:
        if not isinstance(document.get(key), str) or not document[key]:
            raise GluontuneError(f"{source}: {key!r} is missing: {wanted}")
    if not isinstance(document.get("versions"), Mapping) or not document["versions"]:
        raise GluontuneError(f"{source}: 'versions' is missing: {wanted}")
    columns, rows = document.get("columns"), document.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list) or not rows:
        raise GluontuneError(f"{source}: 'columns' or 'rows' is missing: {wanted}")
    for place, values in enumerate(rows):
        if not isinstance(values, list) or len(values) != len(columns):
            raise GluontuneError(f"{source}: rows[{place}] does not have {len(columns)} cells")


def cell(value: Any) -> str:
    """A value for a table.

    >>> cell({"median": 1204, "ci95": [950, 1459]}), cell(1.5), cell(None)
    ('1,204 (950–1,459)', '1.5', '')
    """
    if value is None:
        return ""
    if isinstance(value, Mapping):
        around = stats.bounds(value)
        places = max(len(str(v).partition(".")[2]) for v in (value["median"], *(around or ())))
        note = f" {value['note']}" if "note" in value else ""
        shown = f" ({around[0]:,.{places}f}–{around[1]:,.{places}f})" if around else ""
        return f"{value['median']:,.{places}f}{shown}{note}"
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def parts(
    document: Mapping[str, Any], columns: Sequence[str] | None = None, rows: Sequence[int] | None = None
) -> list[tuple[str, list[str], list[list[Any]]]]:
    """Title, column names and rows of each table of a figure: one for each ``part``, without the columns empty there.

    Args:
        columns, rows: to take, rows counted from 1; all if None.

    >>> parts({"columns": ["part", "net", "gain"], "rows": [["Speed", "vgg", 2.0], ["Size", "vgg", ""]]})
    [('Speed', ['net', 'gain'], [['vgg', 2.0]]), ('Size', ['net'], [['vgg']])]
    """
    names = document["columns"]
    plain = [name.replace("**", "") for name in names]
    places = [plain.index(name) for name in columns] if columns else list(range(len(names)))
    kept = [document["rows"][number - 1] for number in rows] if rows else document["rows"]
    if plain[places[0]] != "part":
        return [("", [names[place] for place in places], [[values[place] for place in places] for values in kept])]
    found = []
    for title in dict.fromkeys(values[places[0]] for values in kept):
        own = [values for values in kept if values[places[0]] == title]
        shown = [place for place in places[1:] if any(cell(values[place]) for values in own)]
        found.append((title, [names[place] for place in shown], [[values[place] for place in shown] for values in own]))
    return found


def published_view(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study of a published figure: its table, its picture if it has one, its conditions."""
    check_published(document, key)
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    conditions = f"{document['command']}; n: {document['n']}; {document['provenance']}."
    tables = [
        {
            "title": part or document["title"],
            "head": [name.replace("**", "") for name in names],
            "rows": [row(*(cell(value).replace("**", "") for value in values)) for values in cells],
            "caption": conditions,
        }
        for part, names, cells in parts(document)
    ]
    drawn = chart(document)
    pictures: Sequence[Mapping[str, Any]] = [{"title": document["title"], "svg": drawn, "caption": ""}]
    return study(
        key=key,
        headline=document["title"],
        over=f"{document['date']} · {document['machine']} · {versions}",
        remarks=document.get("notes") or (),
        figures=pictures if drawn else (),
        tables=tables,
    )


def chart(document: Mapping[str, Any]) -> str | None:
    """Bars of the column that ``chart`` of the document names, or None.

    ``chart`` is ``{"label", "value", "unit"}``, and for a ladder ``ratio`` and ``kept`` beside them: names of columns.
    """
    roles = document.get("chart")
    if not roles:
        return None
    place = {name.replace("**", ""): at for at, name in enumerate(document["columns"])}
    kept, ratio = roles.get("kept"), roles.get("ratio")
    rows = []
    for values in document["rows"]:
        value = values[place[roles["value"]]]
        entry: dict[str, Any] = {
            "name": str(values[place[roles["label"]]]).replace("**", ""),
            "samples_per_sec": value if isinstance(value, Mapping) else None,
            "kept": "not kept" not in str(values[place[kept]]) if kept else True,
            "speedup_vs_naive": values[place[ratio]]["median"] if ratio and values[place[ratio]] else None,
            "predicted": None,
            "status": "not measured",
        }
        rows.append(entry)
    return figures.throughput(f"chart-{document['id']}", rows, roles["unit"])


def rounded(measured: Any, places: int) -> Any:
    """A measured value without digits that say nothing; bounds below and above all that is possible are left out."""
    if not measured:
        return ""
    digits = places or None
    low, high = (round(bound, digits) for bound in measured["ci95"] or (0.0, 1e6))
    found = {"median": round(measured["median"], digits), "n": measured.get("n")}
    return {**found, "ci95": [low, high]} if measured["ci95"] and high < 1e6 else found
