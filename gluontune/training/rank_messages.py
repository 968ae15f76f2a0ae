"""Messages of a group's ranks: answers, heartbeats, and the culprit of a missing answer."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.runtime import doctor

# Kinds of external failures, after which a restart may succeed.
FAULTS = ("ProcessDied", "ClusterFailed", "TimeLimit", "RankSilent", "ConnectionLost")

_LOST = (
    "Horovod", "gloo", "Connection reset", "Connection closed", "Broken pipe", "No route to host",
    "Network is unreachable", "Connection timed out",
)  # fmt: skip


class RunFailed(GluontuneError):
    """A training process failed; has the fields of a failed RunResult's error.

    Args:
        log: the process's last output. traceback: of the process, if it sent one.
        kind: of the error, such as ``Diverged``. message, phase: of the failure.
    """

    def __init__(self, kind: str, message: str, phase: str, log: str = "", traceback: str = ""):
        super().__init__(f"{message} (while {phase})")
        self.kind, self.message, self.phase, self.log, self.traceback = kind, message, phase, log, traceback

    def to_dict(self) -> dict[str, str]:
        found = {"type": self.kind, "message": self.message, "phase": self.phase}
        return {**found, "traceback": self.traceback} if self.traceback else found


def second_hand(event: dict[str, Any]) -> bool:
    """Whether an error is only the consequence of another rank's end."""
    return event["event"] == "error" and any(word in event["message"] for word in _LOST)


def difference_between(ready: list[dict[str, Any]], where: Callable[[int], str] = lambda rank: "") -> str | None:
    """A sentence on a difference of the ranks' versions or data, or None.

    >>> difference_between([{"data": "8 images"}, {"data": "9 images"}])
    'rank 1 has data 9 images, rank 0 has 8 images: bring them to the same'
    """
    for field in ("versions", "data", "batches_per_epoch"):
        for place, rank in enumerate(ready):
            theirs, first = rank.get(field), ready[0].get(field)
            if theirs != first:
                return (
                    f"rank {place}{where(place)} has {field} {theirs}, rank 0{where(0)} has {first}: "
                    "bring them to the same"
                )
    return None


_TICK_S = 0.5
_GRACE_S = 3.0  # to wait for the culprit's message, after one of a rank that lost its connection to it
_SILENT_S = 15.0  # without a heartbeat; a working or waiting rank sends one every 2 s


class RankMessages:
    """Waits for the ranks' answers.

    Args:
        site: of the ranks, whose helpers may fail, too. ranks: in order. world: their number.
        time_limit: seconds without an answer after which a run counts as hung.
        job: the job's file, for messages. on_log: called with rank and line for each line that a rank prints.
    """

    def __init__(
        self, site: Any, ranks: list[Any], world: int, time_limit: float, job: str | None = None,
        on_log: Callable[[int, str], None] | None = None,
    ):  # fmt: skip
        self.site, self.ranks, self.world, self.time_limit = site, ranks, world, time_limit
        self.job, self.on_log = job, on_log
        self.notes: list[str] = []
        self._heard: dict[int, float] = {}  # time of each rank's last message
        self._at: dict[int, int] = {}  # each rank's last known step

    def gather(self, wanted: str, asked: list[Any] | None = None) -> list[dict[str, Any]]:
        """One ``wanted`` event from each rank; another event, or silence, is a failure.

        Args:
            wanted: ``opened``, ``ready`` or ``done``. asked: the first ranks; None: all.
        """
        waiting = dict(enumerate(self.ranks if asked is None else asked))
        answers: dict[int, dict[str, Any]] = {}
        now = time.monotonic()
        deadline, self._heard = now + self.time_limit, dict.fromkeys(waiting, now)
        with selectors.DefaultSelector() as selector:
            for place, rank in waiting.items():
                selector.register(rank.reading, selectors.EVENT_READ, place)
            while len(answers) < len(waiting):
                began = time.monotonic()
                found = selector.select(_TICK_S)
                # Time in which this process was stopped (Ctrl-Z) does not count.
                if (stopped := time.monotonic() - began - _TICK_S) > 1:
                    deadline += stopped
                    self._heard = {place: heard + stopped for place, heard in self._heard.items()}
                for key, _ in found:
                    self._read_events(key.data, wanted, answers)
                    if key.data in answers:
                        selector.unregister(key.fd)
                self.pass_on_logs()
                self._check_site(wanted)
                self._check_silence(sorted(set(waiting) - set(answers)), wanted, deadline)
        return [answers[place] for place in sorted(answers)]

    def _read_events(self, place: int, wanted: str, answers: dict[int, dict[str, Any]]) -> None:
        """Read a rank's events: heartbeats and notes, then the answer."""
        while place not in answers and (event := self.ranks[place].poll()) is not None:
            self._heard[place] = time.monotonic()
            if event["event"] == "beat":
                self._at[place] = event["step"]
            elif event["event"] == "note":
                self.notes.append(event["text"])
            elif event["event"] == wanted:
                answers[place] = event
            else:
                self._fail(place, event, wanted)

    def _check_site(self, wanted: str = "done") -> None:
        if trouble := self.site.trouble():
            kind, message = trouble
            raise RunFailed(kind, message, _phase(wanted))

    def pass_on_logs(self) -> None:
        """Pass the ranks' new lines to ``on_log``."""
        if self.on_log is not None:
            for place, rank in enumerate(self.ranks):
                for line in rank.new_lines():
                    self.on_log(place, line)

    def _fail(self, place: int, event: dict[str, Any], wanted: str) -> None:
        place, event = self._culprit(place, event)
        rank, name = self.ranks[place], f"rank {place}{self.site.where(place)}: " if self.world > 1 else ""
        if event["event"] == "error":
            kind = "ConnectionLost" if second_hand(event) else event["type"]
            message, trace = name + event["message"], event.get("traceback", "")
            raise RunFailed(kind, message, event["phase"], rank.tail(), trace)
        message = rank.how_ended("the training process")
        if reason := doctor.prevents():
            message += f" ({reason})"
        lines = rank.tail().strip().splitlines()
        raise RunFailed("ProcessDied", f"{name}{message}", _phase(wanted), "\n".join(lines[-20:]))

    def _culprit(self, place: int, event: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The culprit: the message of a rank that lost its connection may arrive before the other rank's end."""
        until = time.monotonic() + _GRACE_S
        while second_hand(event) and time.monotonic() < until:
            time.sleep(0.05)
            self._check_site()
            for other in set(range(len(self.ranks))) - {place}:
                heard = self.ranks[other].poll()
                if heard is not None and heard["event"] in ("end", "error") and not second_hand(heard):
                    return other, heard
        return place, event

    def _check_silence(self, missing: list[int], wanted: str, deadline: float) -> None:
        now = time.monotonic()
        if self.world > 1 and wanted == "done":
            silent = [place for place in missing if now - self._heard[place] > _SILENT_S]
            if silent:
                who = f"rank {', '.join(map(str, silent))}{self.site.where(silent[0])}"
                message = f"{who} has given no sign of life for {_SILENT_S:.0f} s: stopped, swapped out or cut off?"
                raise RunFailed("RankSilent", message, "training", self.ranks[silent[0]].tail())
        if missing and now > deadline:
            behind = min((self._at.get(place, 0) for place in missing), default=0)
            self._hung([place for place in missing if self._at.get(place, 0) == behind], wanted)

    def _hung(self, places: list[int], wanted: str) -> None:
        where = self.site.where(places[0])
        who = f"rank {', '.join(map(str, places))}{where} has" if self.world > 1 else "the training process has"
        job = f"; does {self.job} ever end?" if self.job else ""
        message = f"{who} not answered for {self.time_limit:.0f} s{job} (--time-limit sets the limit)"
        raise RunFailed("TimeLimit", message, _phase(wanted), self.ranks[places[0]].tail())


def _phase(wanted: str) -> str:
    """The phase of a run while it waits for this answer."""
    return "training" if wanted == "done" else "starting"
