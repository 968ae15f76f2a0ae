"""The ranks of a run that something else started: they meet at rank 0, which drives the run."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import select
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gluontune import runtime
from gluontune.core.interpreter import python
from gluontune.core.processes import Heard, PipedProcess
from gluontune.core.reading import parse_json
from gluontune.parallel.environment import Place
from gluontune.parallel.mpi import is_loopback
from gluontune.recipe import Recipe
from gluontune.training.rank_messages import (
    RunFailed,
    difference_between,
    hello_of,
    nameless,
    resources,
    shares,
    versions,
)
from gluontune.training.starting import CHILD, EngineHelpers, LocalRanks, or_failed

_ARRIVE_S = 120.0  # a scheduler starts all ranks at once; imports from a network folder take their time
_HELLO_S = 5.0
_MOST_HELLO = 65536  # bytes


class MetRank(Heard):
    """A connected rank, with the interface of :class:`PipedProcess`."""

    def __init__(self, line: socket.socket, hello: Mapping[str, Any]):
        self.line, self.hello, self.host = line, hello, str(hello["host"])
        super().__init__(line.fileno(), tempfile.TemporaryFile())  # noqa: SIM115 - lives as long as the rank

    def say(self, command: Mapping[str, Any]) -> None:
        data = json.dumps(command).encode() + b"\n"
        with contextlib.suppress(OSError):  # the reader detects the end, with a better message
            self.line.setblocking(True)
            self.line.sendall(data)
            self.line.setblocking(False)

    def poll(self) -> dict[str, Any] | None:
        """The next event; a broken connection is its end."""
        try:
            return super().poll()
        except OSError:
            return {"event": "end"}

    def signal(self, number: int) -> None:
        """Do nothing: it ends with its connection, or by its launcher."""

    def has_left(self) -> bool:
        """Whether its connection is closed at either end; reads nothing."""
        look = select.poll()
        try:
            look.register(self.line, select.POLLIN)
            return bool(look.poll(0)) and self.line.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):  # ValueError: it was closed here
            return True

    def how_ended(self, name: str) -> str:
        """A sentence on its end, whose cause is unknown here."""
        return f"{name} was killed, ended by itself, or was cut off"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.line.close()
        self.log.close()


class Meeting:
    """Rank 0's listener for the other ranks.

    Args:
        address: to listen at; "": all, until the ranks are there. ports: the first free one of them is taken.
        world: ranks. alike: the fingerprint of the recipe. job: :attr:`Place.job`, which the others must know.
    """

    def __init__(self, address: str, ports: Sequence[int], world: int, alike: str, job: str = ""):
        self.address, self.world, self.alike, self.job = address, world, alike, job
        self.ranks: dict[int, MetRank] = {}
        for port in ports:
            try:
                self._listener = socket.create_server((address, port))
                return
            except OSError as error:
                failure = error
        raise RunFailed("MeetingFailed", f"no port of {list(ports)} is free: {failure.strerror}", "starting")

    def gather(self, limit: float = _ARRIVE_S) -> None:
        """Wait until all other ranks have connected, at most ``limit`` seconds; nobody else can connect then."""
        until = time.monotonic() + limit
        while len(self.ranks) < self.world - 1:
            self._listener.settimeout(max(0.1, until - time.monotonic()))
            try:
                line, _ = self._listener.accept()
            except OSError:
                missing = sorted(set(range(1, self.world)) - set(self.ranks))
                text = f"rank {', '.join(map(str, missing))} did not call within {limit:.0f} s"
                raise RunFailed("ConnectionLost", text, "starting") from None
            self._welcome(line)
        self._listener.close()
        mine = {"host": socket.gethostname(), "versions": versions()}
        hellos = [mine, *(dict(met.hello) for _, met in sorted(self.ranks.items()))]
        if difference := difference_between(hellos, lambda rank: f" on host {hellos[rank]['host']}"):
            raise RunFailed("RanksDiffer", difference, "starting")
        for rank, met in sorted(self.ranks.items()):
            if met.hello["recipe"] != self.alike:
                text = f"rank {rank} on host {met.host} has another recipe: give all machines the same command"
                raise RunFailed("RanksDiffer", text, "starting")

    def _welcome(self, line: socket.socket) -> None:
        line.settimeout(_HELLO_S)
        try:
            hello = parse_json(read_line(line))
            rank = int(hello["rank"])
            known = hmac.compare_digest(str(hello["job"]).encode(), self.job.encode())
            if hello["world"] != self.world or not 0 < rank < self.world or rank in self.ranks or not known:
                raise ValueError("of another run")
            keep_alive(line)
            line.sendall(b"welcome\n")
            if self.address in ("", "0.0.0.0"):
                self.address = line.getsockname()[0]
            self.ranks[rank] = MetRank(line, hello)
        except (OSError, ValueError, KeyError, TypeError, OverflowError):  # a stranger, or a rank of an earlier round
            line.close()

    def someone_left(self) -> bool:
        return any(met.has_left() for met in self.ranks.values())

    def finish(self, result: Mapping[str, Any], code: int) -> None:
        """Send the run's result, and their exit code, to all connected ranks, which end after this process.

        A scheduler kills all ranks when the first ends with an error: that must be rank 0, with its result written.
        """
        for met in self.ranks.values():
            met.say({"do": "result", "result": result, "code": code})
            with contextlib.suppress(OSError):
                os.dup(met.line.fileno())  # stays open until the process ends

    def close(self) -> None:
        self._listener.close()
        for met in self.ranks.values():
            met.close()


def read_line(line: socket.socket) -> bytes:
    """The next line of a connection, and not a byte more; ValueError if it is closed, or the line too long."""
    text = b""
    while not text.endswith(b"\n") and len(text) < _MOST_HELLO:
        piece = line.recv(1)
        if not piece:
            raise ValueError("hung up")
        text += piece
    return text


def keep_alive(line: socket.socket) -> None:
    """Have the kernel end a connection whose other end is silent for some 20 s, such as a host that lost its power."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 20_000)):
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class MetSite(LocalRanks):
    """Rank 0, which is started and ended here, and the connected ranks; all hosts share the checkpoints' folder."""

    def __init__(
        self, recipe: Recipe, world: int, setup: Callable[[int, int], dict[str, Any]], *, meeting: Meeting,
        place: Place, insecure_network: bool = False,
    ):  # fmt: skip
        self.meeting, self.ranks = meeting, []
        meeting.gather()
        met = meeting.ranks
        hellos = [hello_of(place, meeting.alike, meeting.address), *(met[rank].hello for rank in range(1, world))]
        several = len({hello["machine"] for hello in hellos}) > 1
        if several and not insecure_network and not is_loopback(meeting.address):
            raise RunFailed("NetworkRefused", no_password(meeting.address), "starting")
        if several and recipe.engine == "horovod" and (fault := nameless(hellos)):
            raise RunFailed("HostFailed", fault, "starting")
        parts = shares(hellos)
        env, cpus = resources(recipe, place.cpus, parts[0])
        network = [tuple(hello["network"]) for hello in hellos] if several else None
        self._helpers = helpers = or_failed(lambda: EngineHelpers(recipe, world, env, network), "EngineMissing")
        try:
            first = {**setup(0, parts[0]["device"]), "parent": os.getpid(), "cpus": cpus}
            env = {**env, **helpers.envs[0]}
            self.applied = runtime.applied(env)
            self.ranks.append(PipedProcess(python("-m", CHILD), first, {**env, **_OWN_STORE}))
            for rank in range(1, world):
                given = setup(rank, parts[rank]["device"])
                met[rank].say({"env": {**helpers.envs[rank], **_OWN_STORE}, "share": parts[rank]})
                met[rank].say({"setup": {**given, "checkpoints": None}, "saves": bool(given["checkpoints"])})
                self.ranks.append(met[rank])
        except BaseException:
            self.close()
            raise

    def where(self, rank: int) -> str:
        return f" on host {self.meeting.ranks[rank].host if rank else socket.gethostname()}"

    def facts(self) -> list[dict[str, Any]]:
        hosts: dict[str, list[int]] = {socket.gethostname(): [0]}
        for rank, met in sorted(self.meeting.ranks.items()):
            hosts.setdefault(met.host, []).append(rank)
        return [{"name": name, "ranks": ranks} for name, ranks in hosts.items()]


_OWN_STORE = {"TORCHELASTIC_USE_AGENT_STORE": "False"}  # torchrun's is not at the address of our ranks


def no_password(address: str) -> str:
    """The reason why an address outside of this machine needs the user's word."""
    return (
        f"rank 0 is reached at {address}, and neither these engines nor gluontune's ranks have a password: on a "
        "network that is yours alone add --insecure-network (SECURITY.md)"
    )
