"""The machines of a run, their commands, and the addresses where they reach each other, by trial.

Every host listens, the others dial all its addresses, and a token distinguishes the right listener from a stranger (or
from oneself, behind 127.0.0.1). So a firewall is detected, and named, before the engine starts.
"""

from __future__ import annotations

import contextlib
import hmac
import re
import selectors
import shlex
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Optional

import psutil

from gluontune.core.errors import UsageError

# No waiting for a dead link or a typed password. A user's -o comes first and wins.
_SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=3", "ServerAliveCountMax=3")

_HOST = re.compile(r"(?P<name>[A-Za-z0-9_.@-]+)(:(?P<slots>\d+))?")


@dataclass(frozen=True)
class Place:
    """The place of one rank: its host, its number there, and the number of ranks on that host."""

    host: str
    local_rank: int
    local_ranks: int


@dataclass(frozen=True)
class Hosts:
    """The machines of a run.

    Args:
        names: for ``rsh``; ranks fill them in this order.
        slots: most ranks on each.
        rsh: the command that runs another on a host: ``RSH HOST COMMAND…``, like ``mpirun``'s rsh agent and
            ``rsync -e``; None: ssh with BatchMode, and no command for this machine's name.
        python: the command that runs Python there; None: the path of this one.
        port: TCP port of the scheduler (kvstore) or the meeting place (Horovod) on the first host; 0: a free one.
        connect_s: seconds in which a host must answer.
        insecure_network: allow other addresses than loopback, where the engines trust everybody.

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

    def places(self, world: int) -> list[Place]:
        """The place of each of ``world`` ranks; the first host is filled first.

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
        """The command that runs ``python WORDS`` on ``host``; quoted for ssh, which passes its words to a shell."""
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


_DIAL_S = 4.0
_CALLER_S = 2.0  # limit for a caller's token
_HEARD = 4096
_MOST_CALLERS = 256  # at once; beyond that the longest silent one is dropped
_READY = b"here\n"
_END = b"\n"


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


class Listener:
    """Answers callers with the right token, until the process ends.

    No caller blocks another: all are served at once, each for 2 s at most; beyond a limit the longest silent one is
    dropped. A token is compared in constant time.

    Args:
        token: of the callers. It listens at all addresses until :meth:`settle` names one.

    >>> listener = Listener("secret")
    >>> dial([("127.0.0.1", listener.port, "secret")])
    [{'own': '127.0.0.1', 'error': None}]
    >>> dial([("127.0.0.1", listener.port, "guessed")])[0]["error"]
    'another program answers there'
    """

    def __init__(self, token: str):
        self._token = token.encode() + _END
        self._socket = socket.create_server(("0.0.0.0", 0), backlog=1024)
        self.port = int(self._socket.getsockname()[1])
        self._callers: dict[socket.socket, tuple[float, bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._hear(self._socket)
        threading.Thread(target=self._serve, daemon=True).start()

    def settle(self, address: str) -> None:
        """Listen only at one address from now on, with the same port.

        Raises:
            OSError: the address is not this host's.
        """
        self._selector.unregister(self._socket)
        self._socket.close()
        self._socket = socket.create_server((address, self.port), backlog=1024)
        self._hear(self._socket)

    @property
    def address(self) -> str:
        """The address where it listens."""
        return str(self._socket.getsockname()[0])

    def _hear(self, server: socket.socket) -> None:
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(0.1):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one in self._callers:
                    self._listen_to(one)
                else:
                    self._take_in(one)
            now = time.monotonic()
            for caller in [c for c, (since, _) in self._callers.items() if now - since > _CALLER_S]:
                self._let_go(caller)

    def _take_in(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a closed connection, or no more descriptors
            caller, _ = server.accept()
            caller.setblocking(False)
            if len(self._callers) >= _MOST_CALLERS:
                self._let_go(next(iter(self._callers)))
            self._callers[caller] = time.monotonic(), b""
            self._selector.register(caller, selectors.EVENT_READ)

    def _listen_to(self, caller: socket.socket) -> None:
        since, said = self._callers[caller]
        try:
            heard = caller.recv(_HEARD)  # all of its bytes: closing with unread ones would reset the connection
        except OSError:
            heard = b""
        said += heard
        self._callers[caller] = since, said
        if heard and len(said) < len(self._token) and _END not in said:
            return
        if hmac.compare_digest(said, self._token):
            with contextlib.suppress(OSError):
                caller.send(_READY)
        self._let_go(caller)

    def _let_go(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._callers[caller]
        caller.close()


def dial(targets: Sequence[tuple[str, int, str]], attempts: int = 1) -> list[dict[str, Any]]:
    """For each address, port and token: ``own``, the local address of the connection, or ``error``."""
    found: list[dict[str, Any]] = [{"own": None, "error": "no answer"} for _ in targets]

    def call(place: int, address: str, port: int, token: str) -> None:
        for _ in range(attempts):
            if found[place]["own"] is None:
                call_once(place, address, port, token)

    def call_once(place: int, address: str, port: int, token: str) -> None:
        try:
            with socket.create_connection((address, port), _DIAL_S) as line:
                line.settimeout(_DIAL_S)
                line.sendall(token.encode() + _END)
                if line.recv(len(_READY)) == _READY:
                    found[place] = {"own": str(line.getsockname()[0]), "error": None}
                else:
                    found[place]["error"] = "another program answers there"
        except OSError as error:
            found[place]["error"] = error.strerror or str(error)

    threads = [
        threading.Thread(target=call, args=(place, *target), daemon=True) for place, target in enumerate(targets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(attempts * 2 * _DIAL_S + 1)
    return found
