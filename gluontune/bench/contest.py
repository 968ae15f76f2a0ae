"""Contenders side by side: each in a process of its own, one at work at a time, in interleaved rounds.

How to add a benchmark (see ``gluontune/bench/loading.py`` for a whole one):

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

>>> ours = Entrant("fast", OURS, "gluontune.bench.sample:make", {"units": 64, "sleep_s": 0.001})
>>> peer = Entrant("slow", "them", "gluontune.bench.sample:make", {"units": 64, "sleep_s": 0.004})
>>> fast, slow = hold([ours, peer], rounds=2, seconds=0.02)
>>> len(fast.rates), fast.rates[0] > slow.rates[0]
(2, True)
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import psutil

from gluontune import runtime
from gluontune.errors import GluontuneError
from gluontune.journal import Journal
from gluontune.ladder.measure import interleave
from gluontune.parallel.piped import PipedProcess, end_message
from gluontune.runtime.packages import to_make

__all__ = ["LIMIT", "OURS", "Contender", "ContenderFailed", "Entrant", "hold"]

OURS = "gluontune"
LIMIT = "limit"  # no contender: what the machine could do at most

LEAD = 0.25  # of a slice goes untimed before it, so that queues filled during the pause are used up
_CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Entrant:
    """One row of a benchmark: what runs, and where.

    Args:
        name: the row's name, unlike all others.
        peer: whose it is: ``OURS``, ``LIMIT``, or the peer's name. The best row of each is compared.
        target: ``"module:function"``, called with ``settings`` in the process.
        settings: keyword arguments; plain values.
        python: the interpreter; None: this one.
        env: variables that are added to the environment as the user has it (without gluontune's own).
        slices: ``seconds``: steps until the slice is over; ``steps``: as many as fill one, counted in the
            warm-up, for work that runs on after ``step`` returned; ``once``: one step is the slice.
        note: what a reader must know to compare (sizes, formats).
    """

    name: str
    peer: str
    target: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    python: Optional[Path] = None
    env: Mapping[str, str] = field(default_factory=dict)
    slices: str = "seconds"
    note: str = ""


class ContenderFailed(GluontuneError):
    """A contender could not be measured. ``status`` is ``missing`` (not installed) or ``failed``."""

    def __init__(self, reason: str, status: str = "failed", log: str = ""):
        super().__init__(reason)
        self.status, self.log = status, log


class Contender:
    """An entrant in its process, paused between its turns. It ends with the process that started it.

    Args:
        entrant: what it is.
        time_limit: seconds that building or one command may take before it counts as hung.

    Attributes:
        rates: units a second of each slice.
        info: what its work said about itself.
        memory_mib: most resident memory, without pages shared with files or other processes, that its
            processes had at the end of a slice.
        failure: why it could not be measured, or None.
    """

    def __init__(self, entrant: Entrant, time_limit: float = 300.0):
        self.entrant, self.time_limit = entrant, time_limit
        self.rates: list[float] = []
        self.info: dict[str, Any] = {}
        self.memory_mib = 0.0
        self.failure: ContenderFailed | None = None
        self._process: PipedProcess | None = None
        self._seconds, self._steps = 0.0, 1

    def launch(self) -> None:
        """Start the process, wait until its work is built, and pause it."""
        if self._process is not None or self.failure is not None:
            return
        with self._guarded():
            python = self.entrant.python or Path(sys.executable)
            if not python.is_file():
                raise ContenderFailed(f"not installed: {to_make('peers')}", "missing")
            setup = {
                "target": self.entrant.target,
                "settings": dict(self.entrant.settings),
                "parent": os.getpid(),
            }
            env = runtime.child_env("as-installed", self.entrant.env)
            self._process = PipedProcess([str(python), str(_CHILD)], setup, env)
            self.info = self._wait("ready")["info"]
            self._process.signal(signal.SIGSTOP)

    def warm_up(self, slice_s: float) -> None:
        """Work untimed, and find how many steps fill a slice of ``slice_s`` seconds."""
        self._seconds = slice_s
        with self._turn():
            if self.entrant.slices == "once":
                self._command(do="run", steps=1)
            elif self.entrant.slices == "seconds":
                self._command(do="run", seconds=slice_s)
            else:
                self._command(do="run", steps=2)
                seen = self._command(do="run", steps=2)
                for _ in range(2):  # the first estimate still holds some warming up
                    self._steps = max(2, round(slice_s / max(seen["seconds"], 1e-6) * seen["steps"]))
                    seen = self._command(do="run", steps=self._steps)

    def slice(self) -> None:
        """One turn: awake, an untimed lead-in, a timed slice, asleep again."""
        with self._turn():
            if self.entrant.slices == "once":
                seen = self._command(do="run", steps=1)
            elif self.entrant.slices == "seconds":
                seen = self._command(do="run", lead=LEAD * self._seconds, seconds=self._seconds)
            else:
                seen = self._command(do="run", lead=1e-9, steps=self._steps)
            self.rates.append(seen["units"] / seen["seconds"])
            self.memory_mib = max(self.memory_mib, self._memory())

    def ask(self, name: str, **arguments: Any) -> Any:
        """Call a method of its work there, and return the result; None if it has failed."""
        answer: dict[str, Any] = {}
        with self._turn():
            answer = self._command(do="call", name=name, arguments=arguments)
        return answer.get("value")

    def close(self) -> None:
        """End the process and all that it started; safe to call twice."""
        if self._process is not None:
            self._process.close()
            self._process = None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with self._guarded():
            if self._process is not None:
                self._process.signal(signal.SIGCONT)
            yield
            if self._process is not None:
                self._process.signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn a failure into a finding about this contender; nothing happens once it has failed."""
        try:
            yield
        except ContenderFailed as failure:
            self.failure = self.failure or failure
            self.close()
        except OSError as error:
            self.failure = self.failure or ContenderFailed(f"cannot be started: {error}")
            self.close()

    def _command(self, **command: Any) -> dict[str, Any]:
        if self._process is None:
            raise self.failure or ContenderFailed("was not started")
        self._process.say(command)
        return self._wait("done")

    def _wait(self, wanted: str) -> dict[str, Any]:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + self.time_limit
        with selectors.DefaultSelector() as selector:
            selector.register(process.reading, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ContenderFailed(f"no answer for {self.time_limit:.0f} s", log=process.tail())
                selector.select(left)
                event = process.poll()
                if event is None:
                    continue
                if event["event"] == wanted:
                    return event
                raise self._explain(event, process)

    def _explain(self, event: dict[str, Any], process: PipedProcess) -> ContenderFailed:
        if event["event"] != "error":
            return ContenderFailed(end_message(process, "its process"), log=process.tail())
        if event["missing"]:
            cure = to_make("peers") if self.entrant.python is not None else f"pip install {event['missing']}"
            return ContenderFailed(f"{event['missing']} is not installed: {cure}", "missing")
        return ContenderFailed(f"{event['type']}: {event['message']}", log=process.tail())

    def _memory(self) -> float:
        """MiB of resident memory without shared pages (of files, or shared memory), all its processes."""
        assert self._process is not None
        total = 0
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(self._process.process.pid)
            for process in [parent, *parent.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    seen = process.memory_info()
                    total += seen.rss - seen.shared
        return total / 2**20


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
