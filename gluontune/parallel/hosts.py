"""The machines of a run, and the addresses of this one."""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
from dataclasses import dataclass
from pathlib import PurePath
from typing import Optional

import psutil

from gluontune.core.errors import UsageError
from gluontune.core.interpreter import python

# No waiting for a dead link or a typed password. A user's -o comes first and wins.
_SSH_OPTIONS = ("BatchMode=yes", "ServerAliveInterval=3", "ServerAliveCountMax=3")

_HOST = re.compile(r"(?P<name>[A-Za-z0-9_.@-]+)(:(?P<slots>\d+))?")


@dataclass(frozen=True)
class Hosts:
    """The machines of a run.

    Args:
        names: for ``rsh``; ranks fill them in this order. Rank 0 is on the first, whose name the others resolve.
        slots: most ranks on each.
        rsh: the command that runs another on a host: ``RSH HOST COMMAND…``, like ``rsync -e``; None: ssh.
        python: the command that runs Python there; None: the path of this one.
        port: TCP port of the first host where ranks meet; 0: a free one.
        connect_s: seconds in which a host must answer ssh.
        insecure_network: allow other addresses than loopback, where the engines trust everybody.

    >>> hosts = Hosts.parse("node1:4,me@node2:4")
    >>> hosts.total, hosts.names, str(hosts)
    (8, ('node1', 'me@node2'), 'node1:4,me@node2:4')
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
        """The hosts in ``node1:4,node2:4``; one rank without a number.

        Raises:
            UsageError: an unreadable host, a duplicate, or no ranks on one.
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

    @property
    def first_address(self) -> str:
        """The name of rank 0's host for the other ranks.

        Raises:
            UsageError: a name that means another machine on each.
        """
        name = self.names[0].rpartition("@")[2]
        if len(self.names) > 1 and name in ("localhost", "127.0.0.1"):
            raise UsageError(f"--hosts {self}: the other hosts cannot reach {name}: write its name in your network")
        return name

    def python_words(self, *words: str) -> list[str]:
        """The command for ``python WORDS`` on a host."""
        return [*shlex.split(self.python), *words] if self.python else python(*words)

    def transport(self) -> list[str]:
        """The command that runs another on a host, without both."""
        words = shlex.split(self.rsh or "ssh")
        if PurePath(words[0]).name == "ssh":
            options = (*_SSH_OPTIONS, f"ConnectTimeout={self.connect_s:.0f}")
            words += [part for option in options for part in ("-o", option)]
        return words

    def __str__(self) -> str:
        return ",".join(f"{name}:{slots}" for name, slots in zip(self.names, self.slots))


def own_addresses() -> list[tuple[str, str]]:
    """``(interface, IPv4 address)`` of this host, loopback first, which nobody else can connect to. Dialing shows
    whether the others work."""
    found = [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    ]
    return sorted(found, key=lambda pair: not is_loopback(pair[1]))


def is_loopback(address: str) -> bool:
    """Whether an IPv4 address reaches this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("10.0.0.7")
    (True, False)
    """
    return address.startswith("127.")


def own_name_stands_for() -> list[str]:
    """The IPv4 addresses of this host's name, as resolved here."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        return sorted({str(entry[4][0]) for entry in found})
    return []
