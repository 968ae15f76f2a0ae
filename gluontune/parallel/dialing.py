"""Which addresses the hosts of a run can reach each other at: found by trying, not by name.

Every host listens, the others dial all its addresses, and a token tells the right listener from a stranger
(or from oneself, behind 127.0.0.1). So a firewall is found before the engine starts, and named.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Any

import psutil

__all__ = ["Listener", "dial", "own_addresses", "own_name_stands_for"]

_DIAL_S = 4.0
_READY = b"here\n"


def own_addresses() -> list[tuple[str, str]]:
    """``(interface, IPv4 address)`` of this host, loopback last; whether a cable is in, dialing shows."""
    found = [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    ]
    return sorted(found, key=lambda pair: pair[1].startswith("127."))


def own_name_stands_for() -> list[str]:
    """The IPv4 addresses that this host's own name resolves to here."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        return sorted({str(entry[4][0]) for entry in found})
    return []


class Listener:
    """Answers those who know the token, until the process ends.

    >>> listener = Listener("secret")
    >>> dial([("127.0.0.1", listener.port, "secret")])
    [{'own': '127.0.0.1', 'error': None}]
    >>> dial([("127.0.0.1", listener.port, "guessed")])[0]["error"]
    'another program answers there'
    """

    def __init__(self, token: str):
        self._token = token.encode()
        self._socket = socket.create_server(("0.0.0.0", 0), backlog=64)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            caller, _ = self._socket.accept()
            with contextlib.suppress(OSError), caller:
                caller.settimeout(_DIAL_S)
                if caller.recv(256) == self._token:
                    caller.sendall(_READY)


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
                line.sendall(token.encode())
                if line.recv(len(_READY)) == _READY:
                    found[place] = {"own": str(line.getsockname()[0]), "error": None}
                else:
                    found[place]["error"] = "another program answers there"
        except OSError as error:
            found[place]["error"] = error.strerror or str(error)

    threads = [
        threading.Thread(target=call, args=(place, *target), daemon=True)
        for place, target in enumerate(targets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(attempts * 2 * _DIAL_S + 1)
    return found
