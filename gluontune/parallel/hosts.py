"""Which machines a run takes, how many ranks each gets, and how they are reached."""

from __future__ import annotations

import re
import shlex
import socket
import sys
from dataclasses import dataclass
from pathlib import PurePath
from typing import Optional

from gluontune.core.errors import UsageError

__all__ = ["Hosts", "Place"]

# A dead link must not be waited for, and nobody sits there to type a password. A user's own -o comes first and wins.
_SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=3", "ServerAliveCountMax=3")

_HOST = re.compile(r"(?P<name>[A-Za-z0-9_.@-]+)(:(?P<slots>\d+))?")


@dataclass(frozen=True)
class Place:
    """Where one rank runs: its host, its number there, and how many ranks share that host."""

    host: str
    local_rank: int
    local_ranks: int


@dataclass(frozen=True)
class Hosts:
    """The machines of a run.

    Args:
        names: as ``rsh`` takes them; ranks fill them in this order.
        slots: most ranks on each.
        rsh: the command that runs another on a host: ``RSH HOST COMMAND…``, like ``mpirun``'s rsh agent
            and ``rsync -e``; None: ssh with BatchMode, and for this machine's own name no command at all.
        python: the command that runs Python there; None: the path of this one.
        port: TCP port of the scheduler (kvstore) or the meeting place (Horovod) on the first host; 0: a free one.
        connect_s: seconds in which a host must answer.
        insecure_network: the ranks may meet at other addresses than loopback, where the engines trust everybody.

    >>> hosts = Hosts.parse("node1:4,node2:4")
    >>> [(p.host, p.local_rank, p.local_ranks) for p in hosts.places(6)][3:]
    [('node1', 3, 4), ('node2', 0, 2), ('node2', 1, 2)]
    """

    names: tuple[str, ...]
    slots: tuple[int, ...]
    rsh: Optional[str] = None
    python: Optional[str] = None
    port: int = 0
    connect_s: float = 30.0
    insecure_network: bool = False

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise UsageError(f"--hosts {self}: each host once, with all its ranks: node1:4")
        if not 0 <= self.port <= 65535:
            raise UsageError(f"--port {self.port}: ports go from 1 to 65535")
        for option, words in (("--rsh", self.rsh), ("--python", self.python)):
            try:
                empty = words is not None and not shlex.split(words)
            except ValueError as error:
                raise UsageError(f"{option} {words!r}: {error}") from None
            if empty:
                raise UsageError(f"{option} {words!r}: give a command")

    @classmethod
    def parse(cls, text: str, **options: object) -> Hosts:
        """Read ``node1:4,node2:4``; a host without a number takes one rank.

        Raises:
            UsageError: a host that cannot be read, twice the same, or no ranks on one.
        """
        names, slots = [], []
        for part in text.split(","):
            found = _HOST.fullmatch(part.strip())
            # A name that begins with a dash would be an option to ssh.
            if found is None or found["name"].startswith("-") or found["slots"] == "0":
                raise UsageError(f"--hosts {text!r}: {part.strip()!r} is no host; write node1:4,node2:4")
            names.append(found["name"])
            slots.append(int(found["slots"] or 1))
        return cls(tuple(names), tuple(slots), **options)  # type: ignore[arg-type]

    @property
    def total(self) -> int:
        """Ranks that fit."""
        return sum(self.slots)

    def places(self, world: int) -> list[Place]:
        """Where each of ``world`` ranks runs: the first host is filled first.

        Raises:
            UsageError: more ranks than fit.
        """
        if world > self.total:
            raise UsageError(
                f"{world} ranks do not fit on --hosts {self} ({self.total} in all): give a smaller -n or more per host"
            )
        found: list[Place] = []
        for name, slots in zip(self.names, self.slots):
            here = min(slots, world - len(found))
            found += [Place(name, local, here) for local in range(here)]
        return found

    def command(self, host: str, *words: str) -> list[str]:
        """The command that runs ``python WORDS`` on ``host``; quoted for ssh, which hands its words to a shell."""
        python = shlex.split(self.python) if self.python else [sys.executable]
        if self.rsh is None and host in ("localhost", "127.0.0.1", socket.gethostname()):
            return [*python, *words]
        transport = shlex.split(self.rsh or "ssh")
        if PurePath(transport[0]).name != "ssh":
            return [*transport, host, *python, *words]
        transport += [part for option in _SSH_OPTIONS for part in ("-o", option)]
        return [*transport, host, *(shlex.quote(word) for word in [*python, *words])]

    def __str__(self) -> str:
        return ",".join(f"{name}:{slots}" for name, slots in zip(self.names, self.slots))
