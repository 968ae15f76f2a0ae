"""Two network namespaces of Linux as two hosts: an own network stack each, and a cable between them to pull.

Needs root and iproute2. ``ip netns exec`` is their transport (``--rsh``), in place of ssh.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gluontune.core.errors import GluontuneError

__all__ = ["RSH", "TwoHosts", "two_hosts"]

RSH = "ip netns exec"

_ETC = Path("/etc/netns")

_numbers = itertools.count()


class TwoHosts:
    """The two namespaces.

    Attributes:
        names: as ``ip netns exec`` takes them. addresses: of each.
    """

    def __init__(self, names: tuple[str, str], addresses: tuple[str, str], devices: tuple[str, str]):
        self.names, self.addresses, self._devices = names, addresses, devices

    def cut(self) -> None:
        """Pull the cable: packets vanish, connections stay open at both ends."""
        _ip("-n", self.names[1], "link", "set", self._devices[1], "down")

    def mend(self) -> None:
        """Plug it in again."""
        _ip("-n", self.names[1], "link", "set", self._devices[1], "up")


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make the namespaces; they are removed at the end.

    Raises:
        GluontuneError: they cannot be made here.
    """
    mark = f"{os.getpid()}-{next(_numbers)}"
    names = (f"gluontune-{mark}-a", f"gluontune-{mark}-b")
    devices = ("gt0", "gt1")
    addresses = ("10.213.0.1", "10.213.0.2")
    try:
        for name, address in zip(names, addresses):
            _ip("netns", "add", name)
            # `ip netns exec` shows this as /etc/hosts: each host knows its own name, as hosts do.
            own = _ETC / name
            own.mkdir(parents=True)
            (own / "hosts").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
        _ip("link", "add", devices[0], "netns", names[0], "type", "veth", "peer", "name", devices[1],
            "netns", names[1])  # fmt: skip
        for name, device, address in zip(names, devices, addresses):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            for each in ("lo", device):
                _ip("-n", name, "link", "set", each, "up")
        yield TwoHosts(names, addresses, devices)
    finally:
        for name in names:
            with contextlib.suppress(GluontuneError):
                _ip("netns", "del", name)
            shutil.rmtree(_ETC / name, ignore_errors=True)


def _ip(*words: str) -> None:
    if shutil.which("ip") is None:
        raise GluontuneError("network namespaces cannot be made: `ip` is missing (apt install iproute2)")
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise GluontuneError(
            f"network namespaces cannot be made here (ip {' '.join(words)}: {done.stderr.strip()}): this needs root, "
            "and in a container the right to make them (docker run --privileged)"
        )
