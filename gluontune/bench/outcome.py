"""What came of a contest: one row for each contender, ratios within rounds, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluontune import stats
from gluontune.bench.contender import LIMIT, OURS, Contender
from gluontune.runtime import machine_facts

__all__ = ["combine", "document", "show"]

UNIT = "images_per_sec"


def document(
    contenders: Sequence[Contender], *, conditions: Mapping[str, Any], limit: str = "limit", unit: str = UNIT
) -> dict[str, Any]:
    """The JSON document of a benchmark.

    Args:
        contenders: what ``hold`` returned.
        conditions: what was measured, and how: sizes, rounds, seconds.
        limit: what the LIMIT row is called, before the unit.
        unit: of the rates.

    Returns:
        ``{"rows": [{"name", "peer", unit: {"median", "ci95", "n"} | None, "ratio_to_best_peer", "status",
        "reason", "memory_mib", "note", "info"}], "limit": {limit + unit, "share"}, "ours": {"name",
        "ratio_to": {peer: {"median", "ci95", "n", "row"}}}, "machine", "versions", "conditions"}``. Ratios
        are medians, with 95 % intervals, of those within each round; above 1 the row is faster.

    >>> from gluontune.bench import Entrant
    >>> one = Contender(Entrant("threads", "gluontune", "math:sqrt"))  # as after a contest of three rounds
    >>> two = Contender(Entrant("processes", "DALI", "math:sqrt"))
    >>> one.rates, two.rates = [200.0, 204.0, 208.0], [100.0, 102.0, 104.0]
    >>> found = document([one, two], conditions={"image": "224x224"}, unit="images_per_sec")
    >>> found["rows"][0]["images_per_sec"]["median"], found["ours"]["ratio_to"]["DALI"]["median"]
    (204.0, 2.0)
    """
    rounds = max((len(c.rates) for c in contenders), default=0)
    whole = [c for c in contenders if c.failure is None and c.rates and len(c.rates) == rounds]
    best = {peer: _best([c for c in whole if c.entrant.peer == peer]) for peer in _peers(whole)}
    rivals = [c for peer, c in best.items() if peer not in (OURS, LIMIT)]
    rival, mine, most = _best(rivals), best.get(OURS), best.get(LIMIT)
    rows = [_row(c, c in whole, rival, unit) for c in contenders if c.entrant.peer != LIMIT]
    found: dict[str, Any] = {"rows": rows, "limit": {}, "ours": {}}
    if most is not None:
        found["limit"] = {f"{limit}_{unit}": stats.interval(most.rates)}
        if mine is not None:
            found["limit"]["share"] = stats.ratio_interval(mine.rates, most.rates)
        found["limit"]["how"] = most.entrant.name
    else:
        failed = [c.failure for c in contenders if c.entrant.peer == LIMIT and c.failure is not None]
        found["limit"] = {"status": failed[0].status, "reason": str(failed[0])} if failed else {}
    if mine is not None:
        ratios = {c.entrant.peer: {**stats.ratio_interval(mine.rates, c.rates), "row": c.entrant.name} for c in rivals}
        found["ours"] = {"name": mine.entrant.name, "ratio_to": ratios}
    versions: dict[str, Any] = {}
    for contender in contenders:
        versions.update(contender.info.get("versions", {}))
    return {**found, "machine": machine_facts(), "versions": versions, "conditions": dict(conditions)}


def combine(parts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """One document of several contests: ``rows`` of all, each with its ``part``; the rest by part.

    ``limit``, ``ours`` and ``conditions`` at the top are those of the first part.
    """
    first = next(iter(parts.values()))
    rows = [{"part": name, **row} for name, part in parts.items() for row in part["rows"]]
    versions = {name: text for part in parts.values() for name, text in part["versions"].items()}
    own = ("limit", "ours", "conditions")
    by_part = {name: {key: part[key] for key in own} for name, part in parts.items()}
    return {**first, "rows": rows, "versions": versions, "parts": by_part}


def show(found: Mapping[str, Any], console: Any, title: str = "", unit: str = UNIT) -> None:
    """Print the table of a document (one for each part), our ratios to each peer, and the limit.

    Args:
        found: of :func:`document`. console: a ``rich`` console.
        title: above the table. unit: the key of each row's figure, such as ``images_per_sec``.

    >>> from rich.console import Console
    >>> from gluontune.bench import Contender, Entrant, document
    >>> one = Contender(Entrant("threads", "gluontune", "math:sqrt"))
    >>> one.rates, one.memory_mib = [200.0, 204.0, 208.0], 61.0
    >>> show(document([one], conditions={}, unit="images_per_sec"), Console(width=80), unit="images_per_sec")
    ┏━━...
    ┃ contender ┃ images per sec ┃ 95 %    ┃ ÷ best peer ┃ MiB ┃
    ┡━━...
    │ threads   │ 204            │ 194-214 │             │ 61  │
    └──...
    """
    if "parts" not in found:
        _show(found, console, title, unit)
        return
    for name, part in found["parts"].items():
        _show({**part, "rows": [row for row in found["rows"] if row["part"] == name]}, console, name, unit)


def _show(found: Mapping[str, Any], console: Any, title: str, unit: str) -> None:
    from rich.table import Table

    failed = any(row["status"] != "ok" for row in found["rows"])
    table = Table("contender", unit.replace("_", " "), "95 %", "÷ best peer", "MiB", title=title)
    if failed:
        table.add_column("")
    for row in found["rows"]:
        if row["status"] != "ok":
            table.add_row(row["name"], row["status"], "", "", "", row["reason"])
            continue
        rate, ratio = row[unit], row["ratio_to_best_peer"]
        around = stats.bounds(rate)
        table.add_row(
            row["name"],
            f"{rate['median']:,.0f}",
            f"{around[0]:,.0f}-{around[1]:,.0f}" if around else "",
            f"{ratio['median']:.2f}" if ratio else "",
            f"{row['memory_mib']:,.0f}",
        )
    console.print(table)
    for line in _lines(found):
        console.print(line, highlight=False, soft_wrap=True)


def _lines(found: Mapping[str, Any]) -> list[str]:
    """What the table does not say."""
    limit = found["limit"]
    notes = {(row["peer"], row["note"]) for row in found["rows"] if row.get("note")}
    lines = [f"{peer}: {note}" for peer, note in sorted(notes)]
    for ratio in found["ours"].get("ratio_to", {}).values():
        lines.append(f"{found['ours']['name']} ÷ {ratio['row']}: {stats.said(ratio, '.2f')}")
    if limit.get("reason"):
        lines.append(f"limit not measured: {limit['reason']}")
    for name, value in limit.items():
        if isinstance(value, dict) and name != "share":
            lines.append(f"limit, {limit['how']}, a second: {stats.said(value)}")
    if "share" in limit:
        lines.append(f"share of it that is reached, %: {stats.said(limit['share'], '.0f', 100)}")
    return lines


def _row(contender: Contender, whole: bool, rival: Contender | None, unit: str) -> dict[str, Any]:
    entrant, failure = contender.entrant, contender.failure
    row: dict[str, Any] = {
        "name": entrant.name,
        "peer": entrant.peer,
        unit: stats.interval(contender.rates) if whole else None,
        "ratio_to_best_peer": None,
        "status": "ok" if whole else failure.status if failure else "failed",
        "reason": str(failure) if failure else "",
        "memory_mib": round(contender.memory_mib, 1) if whole else None,
        "note": entrant.note,
        "info": {k: v for k, v in contender.info.items() if k != "versions"},
    }
    if whole and rival is not None:
        row["ratio_to_best_peer"] = stats.ratio_interval(contender.rates, rival.rates)
    return row


def _peers(contenders: Sequence[Contender]) -> list[str]:
    return list(dict.fromkeys(c.entrant.peer for c in contenders))


def _best(contenders: Sequence[Any]) -> Any:
    """The contender with the largest median, or None."""
    return max(contenders, key=lambda c: stats.interval(c.rates)["median"], default=None)
