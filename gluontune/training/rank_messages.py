"""Ranks: their messages and the culprit of a missing answer; their facts, and shares of processors and devices."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune import __version__, runtime
from gluontune.core.errors import GluontuneError
from gluontune.parallel.environment import Place
from gluontune.parallel.mpi import is_loopback, own_addresses, own_name_stands_for
from gluontune.recipe import Recipe
from gluontune.runtime import doctor
from gluontune.runtime.system import System

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
        """One ``wanted`` event (``opened``, ``ready``, ``done``) from each rank; another, or silence, is a failure."""
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
            behind = min(self._at.get(place, 0) for place in missing)
            hung = [place for place in missing if self._at.get(place, 0) == behind]
            where = self.site.where(hung[0])
            who = f"rank {', '.join(map(str, hung))}{where} has" if self.world > 1 else "the training process has"
            job = f"; does {self.job} ever end?" if self.job else ""
            message = f"{who} not answered for {self.time_limit:.0f} s{job} (--time-limit sets the limit)"
            raise RunFailed("TimeLimit", message, _phase(wanted), self.ranks[hung[0]].tail())


def _phase(wanted: str) -> str:
    """The phase of a run while it waits for this answer."""
    return "training" if wanted == "done" else "starting"


def fingerprint(recipe: Mapping[str, Any]) -> str:
    """A hash of the recipe's fields that all ranks must share: all but their number.

    >>> fingerprint({"net": "mlp", "num_devices": 2}) == fingerprint({"num_devices": 3, "net": "mlp"})
    True
    """
    same = {key: value for key, value in recipe.items() if key != "num_devices"}
    return f"{zlib.crc32(json.dumps(same, sort_keys=True).encode()):08x}"


def versions() -> dict[str, str]:
    """What all ranks must share to understand each other; the checksum of the source tells two checkouts apart."""
    folder, crc = Path(__file__).parents[1], 0
    for path in sorted(folder.rglob("*.py")):
        crc = zlib.crc32(path.relative_to(folder).as_posix().encode() + path.read_bytes(), crc)
    return {"gluontune": f"{__version__} (source {crc:08x})", "python": "{}.{}".format(*sys.version_info)}


def _machine() -> str:
    """This host as its own processes see it: two containers on one are two."""
    seen = [socket.gethostname()]
    with contextlib.suppress(OSError):
        seen += [os.readlink("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    return " ".join(seen)


def hello_of(place: Place, alike: str, address: str) -> dict[str, Any]:
    """What a rank tells rank 0 about itself; ``address`` is its own one in their connection."""
    interface = next((name for name, own in own_addresses() if own == address), "lo")
    return {
        "rank": place.rank, "world": place.world, "job": place.job, "recipe": alike, "host": socket.gethostname(),
        "machine": _machine(), "network": [interface, address], "cpus": list(System().affinity()),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"), "versions": versions(), "named": own_name_stands_for(),
    }  # fmt: skip


def nameless(hellos: Sequence[Mapping[str, Any]]) -> str | None:
    """The reason why Horovod's ranks on several hosts would not find each other, or None.

    Horovod 0.28 ignores HOROVOD_GLOO_IFACE for process sets, and takes the address of the host's name.

    >>> hello = {"host": "b", "network": ["eth0", "10.0.0.2"], "named": ["127.0.1.1"]}
    >>> nameless([hello]).split(": put")[0], nameless([{**hello, "named": ["10.0.0.2"]}])
    ('host b: its own name stands for 127.0.1.1, where other hosts would not find its ranks', None)
    """
    for hello in hellos:
        (_, address), named = hello["network"], hello["named"]
        if not is_loopback(address) and all(is_loopback(other) for other in named):
            return (
                f"host {hello['host']}: its own name stands for {', '.join(named) or 'no address'}, where other hosts "
                f"would not find its ranks: put '{address} {hello['host']}' into its /etc/hosts, "
                "or use --engine kvstore"
            )
    return None


def shares(hellos: Sequence[Mapping[str, Any]]) -> list[dict[str, int]]:
    """Each rank's part of what it sees: ``part`` of ``parts`` of its processors, and its ``device``.

    Ranks share processors, or GPUs, if they are on one host and see the same ones.

    >>> alike = {"machine": "a", "cpus": [0, 1], "devices": None}
    >>> shares([alike, alike, {**alike, "machine": "b"}])[1:]
    [{'part': 1, 'parts': 2, 'device': 1}, {'part': 0, 'parts': 1, 'device': 0}]
    >>> shares([{**alike, "cpus": [0], "devices": "0"}, {**alike, "cpus": [1], "devices": "1"}])[1]
    {'part': 0, 'parts': 1, 'device': 0}
    """
    found = []
    for rank, hello in enumerate(hellos):
        same = {
            name: [k for k, h in enumerate(hellos) if (h["machine"], h[name]) == (hello["machine"], hello[name])]
            for name in ("cpus", "devices")
        }
        cpus = same["cpus"]
        found.append({"part": cpus.index(rank), "parts": len(cpus), "device": same["devices"].index(rank)})
    return found


def resources(recipe: Recipe, limit: int | None, share: Mapping[str, int]) -> tuple[dict[str, str], Any]:
    """Environment and processors of a rank's process, before mxnet is imported.

    Args:
        limit: processors that the scheduler allows without binding the process to them. share: of :func:`shares`.
    """
    part, parts = share["part"], share["parts"]
    cores = max(1, System().compute_cores() // parts)
    few = limit is not None and limit < cores
    env = runtime.child_env(recipe.runtime, recipe.env, cores=limit if few else cores)
    if few:
        env.setdefault("OMP_NUM_THREADS", str(limit))  # as installed, MXNet takes half of all that it sees
    return env, runtime.cpus_for_rank(part, parts) if parts > 1 and not few else None
