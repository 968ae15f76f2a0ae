"""Which addresses the hosts of a run can reach each other at: found by trying, not by name.

Every host listens, the others dial all its addresses, and a token tells the right listener from a stranger
(or from oneself, behind 127.0.0.1). So a firewall is found before the engine starts, and named.
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil

__all__ = ["Listener", "dial", "is_loopback", "own_addresses", "own_name_stands_for"]

_DIAL_S = 4.0
_CALLER_S = 2.0  # in which a caller must have said its token
_HEARD = 4096
_MOST_CALLERS = 256  # at once; one more, and the one that was silent longest goes
_READY = b"here\n"
_END = b"\n"


def own_addresses() -> list[tuple[str, str]]:
    """``(interface, IPv4 address)`` of this host, loopback first: who meets there is seen by nobody else. Whether a
    cable is in, dialing shows."""
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
    """The IPv4 addresses that this host's own name resolves to here."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        return sorted({str(entry[4][0]) for entry in found})
    return []


class Listener:
    """Answers those who know the token, until the process ends.

    Nobody waits for anybody: all callers are heard at once, each for 2 s at most; where there are too many, the one
    that has been silent longest is let go. A token is compared in constant time.

    Args:
        token: what a caller must say. address: where to listen; all addresses until :meth:`settle` names one.

    >>> listener = Listener("secret")
    >>> dial([("127.0.0.1", listener.port, "secret")])
    [{'own': '127.0.0.1', 'error': None}]
    >>> dial([("127.0.0.1", listener.port, "guessed")])[0]["error"]
    'another program answers there'
    """

    def __init__(self, token: str, address: str = "0.0.0.0"):
        self._token = token.encode() + _END
        self._socket = socket.create_server((address, 0), backlog=1024)
        self.port = int(self._socket.getsockname()[1])
        self._callers: dict[socket.socket, tuple[float, bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._hear(self._socket)
        threading.Thread(target=self._serve, daemon=True).start()

    def settle(self, address: str) -> None:
        """From now on listen at one address only, with the same port.

        Raises:
            OSError: the address is not this host's.
        """
        self._selector.unregister(self._socket)
        self._socket.close()
        self._socket = socket.create_server((address, self.port), backlog=1024)
        self._hear(self._socket)

    @property
    def address(self) -> str:
        """Where it listens."""
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
        with contextlib.suppress(OSError):  # it has gone again, or there are no more descriptors
            caller, _ = server.accept()
            caller.setblocking(False)
            if len(self._callers) >= _MOST_CALLERS:
                self._let_go(next(iter(self._callers)))
            self._callers[caller] = time.monotonic(), b""
            self._selector.register(caller, selectors.EVENT_READ)

    def _listen_to(self, caller: socket.socket) -> None:
        since, said = self._callers[caller]
        try:
            heard = caller.recv(_HEARD)  # all that it said: closing on unread bytes would reset the connection
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
    """For each address, port and token: ``own``, the address from which it was reached, or ``error``."""
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
