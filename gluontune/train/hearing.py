"""What the ranks of a group say: their answers, their signs of life, and who is at fault when one does not come."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Any

from gluontune.runtime import doctor
from gluontune.train.faults import RunFailed, second_hand

__all__ = ["Hearing"]

_TICK_S = 0.5
_GRACE_S = 3.0  # for the rank at fault to be heard, after another that lost its connection to it
_SILENT_S = 15.0  # a rank's process shows signs of life every 2 s while it works, even while it waits


class Hearing:
    """Waits for the ranks' answers.

    Args:
        site: where the ranks are: their helpers may fail, too. ranks: in order. world: their number.
        time_limit: seconds without an answer after which a run counts as hung.
        job: the job's file, for messages. on_log: called with rank and line for each line that a rank prints.

    Attributes:
        notes: what learners that were started again had to say.
    """

    def __init__(
        self,
        site: Any,
        ranks: list[Any],
        world: int,
        time_limit: float,
        job: str | None = None,
        on_log: Callable[[int, str], None] | None = None,
    ):
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
