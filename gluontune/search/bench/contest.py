"""Contenders side by side: each in a process of its own, one at work at a time, in interleaved rounds.

How to add a benchmark (see ``gluontune/search/bench/loading.py`` for a whole one):

1. *The work.* A function that builds what is measured and returns an object with ``step()``, which does
   one step (a batch, a training step, a whole job) and returns how many units (images) it was; perhaps
   ``sync()``, which waits for all that ``step`` has started (``waitall``); ``close()``; and ``info``, a
   dict for the report (versions, loss, …). Other methods can be called with :meth:`Contender.ask`. The
   module that holds the function is imported in the contender's process. That of a peer may import the
   standard library and rooms of gluontune that need no more than numpy; the peer itself it imports inside
   of the function, with ``importlib.import_module("torch")``: tests and linters read every module here.
2. *The entrants.* One :class:`Entrant` for each row of the table. ``python=None`` is our own interpreter,
   ``places.peer_python(...)`` that of ``make peers``.
3. *The contest.* ``hold(entrants, rounds=..., seconds=...)`` runs it; what failed or is missing becomes a
   row with its reason. ``outcome.document(...)`` makes the JSON, ``outcome.show(...)`` the table.

>>> from gluontune.search.bench.contender import OURS
>>> ours = Entrant("fast", OURS, "gluontune.search.bench.sample:make", {"units": 64, "sleep_s": 0.001})
>>> peer = Entrant("slow", "them", "gluontune.search.bench.sample:make", {"units": 64, "sleep_s": 0.004})
>>> fast, slow = hold([ours, peer], rounds=2, seconds=0.02)
>>> len(fast.rates), fast.rates[0] > slow.rates[0]
(2, True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gluontune.core.journal import Journal
from gluontune.search.bench.contender import Contender, ContenderFailed, Entrant
from gluontune.search.measure import interleave

__all__ = ["hold"]


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
    """Measure all entrants in interleaved rounds, whose order turns; those that fail carry their ``failure``.

    Args:
        rounds: slices of each; from nine on the interval leaves out the smallest and largest.
        seconds: length of a slice.
        say: called with a line about what is going on.
        finish: called with the contenders before their processes are ended.
        journal: keeps each round, under ``key``; rounds that it has are not measured again.
        entrants: what to measure, see :class:`Entrant`.
        time_limit: seconds after which a silent contender has failed.

    Returns:
        a contender for each entrant, in their order.
    """
    tell = say or (lambda line: None)
    field = [_Told(entrant, time_limit, tell) for entrant in entrants]
    before = _Rounds(journal, key, field)

    def on_round(done: int, of: int) -> None:
        before.keep(before.count + done)
        tell(f"round {before.count + done} of {before.count + of} is done")

    try:
        interleave(field, rounds=max(0, rounds - before.count), slice_s=seconds, on_round=on_round)
        before.put_in_front()
        if finish is not None:
            finish(list(field))
    finally:
        for contender in field:
            contender.close()
    return list(field)


class _Rounds:
    """The rounds that a journal has kept of a contest, and those that it keeps from now on."""

    def __init__(self, journal: Journal | None, key: str, field: Sequence[Contender]):
        self.journal, self.key, self.field = journal, key, field
        self.kept: list[dict[str, Any]] = []
        while journal is not None and self._name(len(self.kept) + 1) in journal.pieces:
            self.kept.append(journal.pieces[self._name(len(self.kept) + 1)])
        self.count = len(self.kept)
        for contender in field if self.kept else ():
            if told := self.kept[-1]["failed"].get(contender.entrant.name):
                contender.failure = ContenderFailed(*told)

    def _name(self, number: int) -> str:
        return f"{self.key} round {number}".strip()

    def keep(self, number: int) -> None:
        """Keep what has just been measured: the round ``number``."""
        if self.journal is None:
            return
        there = {c.entrant.name: c for c in self.field}
        self.journal.keep(
            self._name(number),
            {
                "rates": {n: c.rates[-1] for n, c in there.items() if c.failure is None and c.rates},
                "memory_mib": {n: c.memory_mib for n, c in there.items()},
                "failed": {n: [str(c.failure), c.failure.status] for n, c in there.items() if c.failure},
            },
        )

    def put_in_front(self) -> None:
        """Give the contenders the rates of the rounds before."""
        for contender in self.field:
            name = contender.entrant.name
            contender.rates[:0] = [r["rates"][name] for r in self.kept if name in r["rates"]]
            known = [r["memory_mib"].get(name, 0.0) for r in self.kept]
            contender.memory_mib = max([contender.memory_mib, *known])


class _Told(Contender):
    """A contender that says what it is about to do."""

    def __init__(self, entrant: Entrant, time_limit: float, say: Callable[[str], None]):
        super().__init__(entrant, time_limit)
        self._say = say

    def launch(self) -> None:
        self._say(f"building {self.entrant.name}")
        super().launch()

    def warm_up(self, slice_s: float) -> None:
        self._say(f"warming up {self.entrant.name}")
        super().warm_up(slice_s)

    def slice(self) -> None:
        self._say(f"measuring {self.entrant.name}")
        super().slice()
