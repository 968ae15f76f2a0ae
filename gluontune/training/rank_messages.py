"""What the ranks of a group answer, their signs of life, and who is at fault when an answer does not come."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.runtime import doctor

# Kinds of failures that come from outside: a new start may well go through.
FAULTS = ("ProcessDied", "ClusterFailed", "TimeLimit", "RankSilent", "ConnectionLost", "HostLost")

_LOST = (
    "Horovod", "gloo", "Connection reset", "Connection closed", "Broken pipe", "No route to host",
    "Network is unreachable", "Connection timed out",
)  # fmt: skip


class RunFailed(GluontuneError):
    """A training process failed; carries what a failed RunResult says.

    Args:
        log: the last that the process printed. traceback: of the process, where it could still tell one.
        kind: of the error, such as ``Diverged``. message: what happened. phase: when.
    """

    def __init__(self, kind: str, message: str, phase: str, log: str = "", traceback: str = ""):
        super().__init__(f"{message} (while {phase})")
        self.kind, self.message, self.phase, self.log, self.traceback = kind, message, phase, log, traceback

    def to_dict(self) -> dict[str, str]:
        found = {"type": self.kind, "message": self.message, "phase": self.phase}
        return {**found, "traceback": self.traceback} if self.traceback else found


def second_hand(event: dict[str, Any]) -> bool:
    """Whether an error only says that another rank is gone."""
    return event["event"] == "error" and any(word in event["message"] for word in _LOST)


def difference_between(ready: list[dict[str, Any]], where: Callable[[int], str] = lambda rank: "") -> str | None:
    """How the ranks' versions or data differ; ranks that differ would train something else than they say.

    Args:
        ready: what each rank told of itself. where: of a rank: words that say on which host it is.

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
_GRACE_S = 3.0  # for the rank at fault to be heard, after another that lost its connection to it
_SILENT_S = 15.0  # a rank's process shows signs of life every 2 s while it works, even while it waits


class RankMessages:
    """Waits for the ranks' answers.

    Args:
        site: where the ranks are: their helpers may fail, too. ranks: in order. world: their number.
        time_limit: seconds without an answer after which a run counts as hung.
        job: the job's file, for messages. on_log: called with rank and line for each line that a rank prints.

    Attributes:
        notes: what learners that were started again had to say.
    """

    def __init__(
        self, site: Any, ranks: list[Any], world: int, time_limit: float, job: str | None = None,
        on_log: Callable[[int, str], None] | None = None,
    ):  # fmt: skip
        self.site, self.ranks, self.world, self.time_limit = site, ranks, world, time_limit
        self.job, self.on_log = job, on_log
        self.notes: list[str] = []
        self._heard: dict[int, float] = {}  # when each rank was last heard of
        self._at: dict[int, int] = {}  # the step that each was at

    def gather(self, wanted: str, asked: list[Any] | None = None) -> list[dict[str, Any]]:
        """One ``wanted`` event from each rank; anything else, or silence, is a failure.

        Args:
            wanted: ``opened``, ``ready`` or ``done``. asked: the first ranks; None: all.

        Raises:
            RunFailed: a rank raised, died, hung or fell silent; the message says which, and where.
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
                # This process was stopped itself (Ctrl-Z): such time is nobody's silence.
                if (stopped := time.monotonic() - began - _TICK_S) > 1:
                    deadline += stopped
                    self._heard = {place: heard + stopped for place, heard in self._heard.items()}
                for key, _ in found:
                    self._hear(key.data, wanted, answers)
                    if key.data in answers:
                        selector.unregister(key.fd)
                self.pass_on_logs()
                self._check_site(wanted)
                self._check_silence(sorted(set(waiting) - set(answers)), wanted, deadline)
        return [answers[place] for place in sorted(answers)]

    def _hear(self, place: int, wanted: str, answers: dict[int, dict[str, Any]]) -> None:
        """Take what a rank has said: signs of life, then the answer."""
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
        """Tell what the ranks have printed since the last time."""
        if self.on_log is not None:
            for place, rank in enumerate(self.ranks):
                for line in rank.new_lines():
                    self.on_log(place, line)

    def _fail(self, place: int, event: dict[str, Any], wanted: str) -> None:
        place, event = self._culprit(place, event)
        rank, name = self.ranks[place], f"rank {place}{self.site.where(place)}: " if self.world > 1 else ""
        if event["event"] == "error":
            kind = "ConnectionLost" if second_hand(event) else event["type"]
            told, trace = name + event["message"], event.get("traceback", "")
            raise RunFailed(kind, told, event["phase"], rank.tail(), trace)
        message = rank.how_ended("the training process")
        if reason := doctor.prevents():
            message += f" ({reason})"
        lines = rank.tail().strip().splitlines()
        raise RunFailed("ProcessDied", f"{name}{message}", _phase(wanted), "\n".join(lines[-20:]))

    def _culprit(self, place: int, event: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The rank at fault: one that lost its connection to another may be heard before that other's end."""
        until = time.monotonic() + _GRACE_S + self.site.notices_after_s
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
    """What a run was doing when this answer was waited for."""
    return "training" if wanted == "done" else "starting"
