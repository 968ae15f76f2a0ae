"""Contenders side by side: each in its own process, one running at a time, in interleaved rounds.

A benchmark (``gluontune/search/bench/loading.py`` is a whole one) has:

1. *The work*: a function that returns an object with ``step()``, which does one step (a batch, a whole job) and returns
   its number of units (images); optionally ``sync()``, which waits for all that ``step`` has started; ``close()``; and
   ``info``, a dict for the report. :meth:`Contender.ask` calls other methods. The module is imported in the contender's
   process. A peer's imports no more than the standard library and rooms of gluontune that need numpy alone, and the
   peer inside of the function (``importlib.import_module``), because tests and linters read every module here.
2. *The entrants*: one :class:`Entrant` a row. ``python=None`` is our own interpreter, ``peer_python(...)`` the peers'.
3. *The contest*: ``hold(entrants, ...)`` runs it; a failed or missing contender becomes a row with its reason.
   ``document(...)`` makes the JSON, ``show(...)`` the table.
4. *The command*, which calls the module's ``run(...)`` and passes the common options to :class:`Terms`.

>>> ours = Entrant("fast", OURS, "gluontune.search.bench._loaders_torch:Sleeper", {"units": 64, "sleep_s": 0.001})
>>> peer = Entrant("slow", "them", "gluontune.search.bench._loaders_torch:Sleeper", {"units": 64, "sleep_s": 0.004})
>>> fast, slow = hold([ours, peer], rounds=2, seconds=0.02)
>>> len(fast.rates), fast.rates[0] > slow.rates[0]
(2, True)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluontune.core import stats
from gluontune.core.errors import UsageError
from gluontune.core.journal import Journal
from gluontune.runtime import machine_facts
from gluontune.search.bench.contender import LIMIT, OURS, Contender, ContenderFailed, Entrant
from gluontune.search.measure import STARTS, interleave

UNIT = "images_per_sec"


def hold(
    entrants: Sequence[Entrant],
    *,
    rounds: int = 9,
    seconds: float = 2.0,
    time_limit: float = 300.0,
    say: Callable[[str], None] | None = None,
    finish: Callable[[list[Contender]], None] | None = None,
    journal: Journal | None = None,
    key: str = "",
) -> list[Contender]:
    """Measure all entrants in interleaved rounds, in rotating order; those that fail carry their ``failure``.

    Each has a start of its process for three slices, three at most; one where slices are whole works of their own.

    Args:
        entrants: see :class:`Entrant`; the contenders that are returned have their order.
        rounds: slices of each; from nine on the interval omits the smallest and largest. seconds: length of a slice.
        time_limit: seconds after which a silent contender has failed. say: called with lines of progress.
        finish: called with the contenders before their processes are ended.
        journal: saves each round, under ``key``; its rounds are not measured again.
    """
    tell = say or (lambda line: None)
    field = [Contender(entrant, time_limit, tell) for entrant in entrants]

    def name_of(number: int) -> str:
        return f"{key} round {number}".strip()

    kept: list[dict[str, Any]] = []
    while journal is not None and name_of(len(kept) + 1) in journal.pieces:
        kept.append(journal.pieces[name_of(len(kept) + 1)])
    for contender in field if kept else ():
        if failure := kept[-1]["failed"].get(contender.entrant.name):
            contender.failure = ContenderFailed(*failure)

    def on_round(done: int, of: int) -> None:
        by_name = {c.entrant.name: c for c in field}
        if journal is not None:
            rates = {n: c.rates[-1] for n, c in by_name.items() if c.failure is None and c.rates}
            failed = {n: [str(c.failure), c.failure.status] for n, c in by_name.items() if c.failure}
            memory = {n: c.memory_mib for n, c in by_name.items()}
            seen = {"rates": rates, "memory_mib": memory, "failed": failed}
            journal.keep(name_of(len(kept) + done), seen)
        tell(f"round {len(kept) + done} of {len(kept) + of} is done")

    try:
        starts = 1 if any(entrant.slices == "once" for entrant in entrants) else max(1, min(STARTS, rounds // 3))
        interleave(field, rounds=max(0, rounds - len(kept)), slice_s=seconds, on_round=on_round, starts=starts)
        for contender in field:
            name = contender.entrant.name
            contender.rates[:0] = [r["rates"][name] for r in kept if name in r["rates"]]
            contender.memory_mib = max([contender.memory_mib, *(r["memory_mib"].get(name, 0.0) for r in kept)])
        if finish is not None:
            finish(field)
    finally:
        for contender in field:
            contender.close()
    return field


@dataclass(frozen=True)
class Terms:
    """Options of all benchmarks: those of :func:`hold`, and

    Args:
        only: keep the contenders whose name contains one of these. peers: their environment, see ``peer_python``.
        out: the document; a journal beside it saves rounds and parts. resume: go on with the journal.
    """

    rounds: int = 9
    seconds: float = 1.0
    only: Sequence[str] | None = None
    peers: str | os.PathLike[str] | None = None
    out: Path | None = None
    resume: bool = False
    say: Callable[[str], None] | None = None
    contest: Callable[..., list[Contender]] = hold

    @property
    def pace(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "seconds": self.seconds}

    def journal(self, kind: str, given: Mapping[str, Any]) -> Journal:
        return Journal(self.out, kind, given, machine_facts, resume=self.resume)

    def tell(self, line: str, of: str = "") -> None:
        if self.say is not None:
            self.say(f"{of}: {line}" if of else line)

    def kept(self, entrants: Sequence[Entrant]) -> list[Entrant]:
        names = selected((e.name for e in entrants), self.only)
        return [e for e in entrants if e.name in names]


def document(
    contenders: Sequence[Contender], *, conditions: Mapping[str, Any], limit: str = "limit", unit: str = UNIT
) -> dict[str, Any]:
    """The JSON document of a benchmark.

    Args:
        contenders: of ``hold``. conditions: of the measurement: sizes, rounds, seconds.
        limit: name of the LIMIT row, before the unit. unit: of the rates.

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
    peers = dict.fromkeys(c.entrant.peer for c in whole)
    best = {peer: _best([c for c in whole if c.entrant.peer == peer]) for peer in peers}
    rivals = [c for peer, c in best.items() if peer not in (OURS, LIMIT)]
    rival, mine, most = _best(rivals), best.get(OURS), best.get(LIMIT)
    rows = [_row(c, c in whole, rival, unit) for c in contenders if c.entrant.peer != LIMIT]
    found: dict[str, Any] = {"rows": rows, "limit": {}, "ours": {}}
    if most is not None:
        found["limit"] = {f"{limit}_{unit}": stats.interval(most.rates)}
        if mine is not None:
            found["limit"]["share"] = stats.ratio_interval(mine.rates, most.rates)
        found["limit"]["how"] = most.entrant.name
    elif failed := [c.failure for c in contenders if c.entrant.peer == LIMIT and c.failure is not None]:
        found["limit"] = {"status": failed[0].status, "reason": str(failed[0])}
    if mine is not None:
        ratios = {c.entrant.peer: {**stats.ratio_interval(mine.rates, c.rates), "row": c.entrant.name} for c in rivals}
        found["ours"] = {"name": mine.entrant.name, "ratio_to": ratios}
    versions = {name: text for c in contenders for name, text in c.info.get("versions", {}).items()}
    return {**found, "machine": machine_facts(), "versions": versions, "conditions": dict(conditions)}


def combine(parts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """One document of several contests: ``rows`` of all, each with its ``part``; the top is the first part's."""
    first = next(iter(parts.values()))
    rows = [{"part": name, **row} for name, part in parts.items() for row in part["rows"]]
    versions = {name: text for part in parts.values() for name, text in part["versions"].items()}
    by_part = {name: {key: part[key] for key in ("limit", "ours", "conditions")} for name, part in parts.items()}
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
    from rich.table import Table

    for name, part in found.get("parts", {}).items():
        show({**part, "rows": [row for row in found["rows"] if row["part"] == name]}, console, name, unit)
    if "parts" in found:
        return
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
            row["name"], f"{rate['median']:,.0f}", f"{around[0]:,.0f}-{around[1]:,.0f}" if around else "",
            f"{ratio['median']:.2f}" if ratio else "", f"{row['memory_mib']:,.0f}",
        )  # fmt: skip
    console.print(table)
    for line in _lines(found):
        console.print(line, highlight=False, soft_wrap=True)


def _lines(found: Mapping[str, Any]) -> list[str]:
    """Notes, ratios and limits that the table omits."""
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
        "name": entrant.name, "peer": entrant.peer, unit: stats.interval(contender.rates) if whole else None,
        "ratio_to_best_peer": None, "status": "ok" if whole else failure.status if failure else "failed",
        "reason": str(failure) if failure else "", "memory_mib": round(contender.memory_mib, 1) if whole else None,
        "note": entrant.note, "info": {k: v for k, v in contender.info.items() if k != "versions"},
    }  # fmt: skip
    if whole and rival is not None:
        row["ratio_to_best_peer"] = stats.ratio_interval(contender.rates, rival.rates)
    return row


def _best(contenders: Sequence[Any]) -> Any:
    return max(contenders, key=lambda c: stats.interval(c.rates)["median"], default=None)


def selected(names: Iterable[str], only: Sequence[str] | None) -> list[str]:
    """The names that ``only`` selects, in their order; a word that equals a name selects that one alone.

    >>> selected(["sgd", "lbsgd", "nag"], ["sgd"]), selected(["sgd", "lbsgd", "nag"], ["gd"])
    (['sgd'], ['sgd', 'lbsgd'])
    """
    every = list(dict.fromkeys(names))
    if not only:
        return every
    kept = set()
    for word in only:
        if not (meant := {word} & set(every) or {name for name in every if word in name}):
            raise UsageError(f"--only {word!r}: no name holds this; there are {', '.join(every)}")
        kept |= meant
    return [name for name in every if name in kept]
