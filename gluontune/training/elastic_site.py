"""The ranks of a run under torchrun, for the driving group."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from gluontune import runtime
from gluontune.core.interpreter import python
from gluontune.core.processes import Heard, PipedProcess
from gluontune.core.reading import parse_json
from gluontune.engines import ENGINES
from gluontune.parallel.kvstore import free_port
from gluontune.recipe import Recipe
from gluontune.training.rank_messages import RunFailed
from gluontune.training.starting import LocalRanks

_ARRIVE_S = 60.0  # torchrun starts all ranks of a round at once
_HELLO_S = 5.0


def fingerprint(recipe: Mapping[str, Any]) -> str:
    """A hash of the recipe's fields that all machines must share: all but the number of ranks.

    >>> fingerprint({"net": "mlp", "num_devices": 2}) == fingerprint({"num_devices": 3, "net": "mlp"})
    True
    """
    same = {key: value for key, value in recipe.items() if key != "num_devices"}
    return f"{zlib.crc32(json.dumps(same, sort_keys=True).encode()):08x}"


class MetRank(Heard):
    """A connected rank, with the interface of :class:`PipedProcess`."""

    def __init__(self, line: socket.socket, hello: Mapping[str, Any]):
        self.line, self.host, self.alike = line, str(hello["host"]), str(hello["recipe"])
        super().__init__(line.fileno(), tempfile.TemporaryFile())  # noqa: SIM115 - lives as long as the rank

    def say(self, command: Mapping[str, Any]) -> None:
        """Send a command."""
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
        """Do nothing: its torchrun ends it."""

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
        """Close the connection."""
        with contextlib.suppress(OSError):
            self.line.close()
        self.log.close()


class Meeting:
    """Rank 0's listener for the ranks of one round.

    Args:
        address, port: torchrun's, of this round only. world: ranks. alike: the fingerprint of the recipe.
    """

    def __init__(self, address: str, port: int, world: int, alike: str):
        self.address, self.world, self.alike = address, world, alike
        self.ranks: dict[int, MetRank] = {}
        self._listener = socket.create_server((address, port))

    def gather(self) -> None:
        """Wait until all other ranks have connected.

        Raises:
            RunFailed: a rank is missing, or was started with another recipe.
        """
        until = time.monotonic() + _ARRIVE_S
        while len(self.ranks) < self.world - 1:
            self._listener.settimeout(max(0.1, until - time.monotonic()))
            try:
                line, _ = self._listener.accept()
            except OSError:
                missing = sorted(set(range(1, self.world)) - set(self.ranks))
                text = f"rank {', '.join(map(str, missing))} did not call within {_ARRIVE_S:.0f} s"
                raise RunFailed("ConnectionLost", text, "starting") from None
            self._welcome(line)
        for rank, met in sorted(self.ranks.items()):
            if met.alike != self.alike:
                text = f"rank {rank} on host {met.host} has another recipe: give all machines the same command"
                raise RunFailed("RanksDiffer", text, "starting")

    def _welcome(self, line: socket.socket) -> None:
        line.settimeout(_HELLO_S)
        try:
            text = b""
            while not text.endswith(b"\n") and len(text) < 4096:
                piece = line.recv(1024)
                if not piece:
                    raise ValueError("hung up")
                text += piece
            hello = parse_json(text)
            rank = int(hello["rank"])
            if hello["world"] != self.world or not 0 < rank < self.world:
                raise ValueError("of another round")
            self.ranks[rank] = MetRank(line, hello)
        except (OSError, ValueError, KeyError, TypeError, OverflowError):  # a stranger, or a rank of an earlier round
            line.close()

    def someone_left(self) -> bool:
        """Whether a connected rank has left."""
        return any(met.has_left() for met in self.ranks.values())

    def finish(self, result: Mapping[str, Any]) -> None:
        """Send the run's result to all connected ranks."""
        for met in self.ranks.values():
            met.say({"do": "result", "result": result})

    def close(self) -> None:
        """Close all connections."""
        self._listener.close()
        for met in self.ranks.values():
            met.close()


class MetSite(LocalRanks):
    """Rank 0, which is started here, and the connected ranks; checkpoints are in a folder that all machines share.

    Args:
        recipe: to train. world: ranks. setup: makes the first command from rank and local rank.
        meeting: with the others' connections. cpus: of rank 0.
    """

    def __init__(
        self, recipe: Recipe, world: int, setup: Callable[[int, int], dict[str, Any]], *, meeting: Meeting, cpus: Any
    ):
        self.meeting, self.ranks = meeting, []
        meeting.gather()
        place = f"tcp://{meeting.address}:{free_port(meeting.address)}"
        first = {**setup(0, 0), "parent": os.getpid(), "cpus": cpus}
        env = {**os.environ, ENGINES[recipe.backend].meeting: place}
        self.applied = runtime.applied(env)
        self.ranks.append(PipedProcess(python("-m", "gluontune.training.child"), first, env))
        for rank, met in sorted(meeting.ranks.items()):
            met.say({"do": "start", "setup": {**setup(rank, 0), "checkpoints": None, "meeting": place}})
            self.ranks.append(met)

    @property
    def pids(self) -> list[int]:
        """The process of rank 0."""
        return [rank.process.pid for rank in self.ranks[:1]]

    def where(self, rank: int) -> str:
        """The host of a rank, for messages."""
        return f" on host {self.meeting.ranks[rank].host if rank else socket.gethostname()}"

    def facts(self) -> list[dict[str, Any]]:
        """The hosts and their ranks."""
        hosts: dict[str, list[int]] = {socket.gethostname(): [0]}
        for rank, met in sorted(self.meeting.ranks.items()):
            hosts.setdefault(met.host, []).append(rank)
        return [{"name": name, "ranks": ranks} for name, ranks in hosts.items()]

    def close(self) -> None:
        """End rank 0; the others end with the result, or by their torchrun."""
        for rank in self.ranks[:1]:
            rank.close()
        self.ranks = []
