"""Two network namespaces of Linux as two hosts: an own network stack each, and a cable between them to pull.

Needs root and iproute2. A script is their transport (``--rsh``), in place of ssh.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gluontune.core.errors import GluontuneError

__all__ = ["TwoHosts", "two_hosts"]

_ETC = Path("/etc/netns")

_numbers = itertools.count()


class TwoHosts:
    """The two namespaces.

    Attributes:
        spaces: as ``ip netns exec`` takes them. names, addresses: of each, which both resolve.
    """

    names = ("host-a", "host-b")

    def __init__(self, spaces: tuple[str, str], addresses: tuple[str, str], devices: tuple[str, str]):
        self.spaces, self.addresses, self._devices = spaces, addresses, devices

    def inside(self, host: int, *words: str) -> list[str]:
        """The command that runs another on a host, which has a name of its own, too."""
        named = f'hostname {self.names[host]}; exec "$@"'
        return ["ip", "netns", "exec", self.spaces[host], "unshare", "--uts", "sh", "-c", named, "sh", *words]

    def transport(self, folder: Path, before: str = "") -> str:
        """A script in place of ssh, which gives its words to a shell, too. ``before`` runs first on the second host."""
        cases = []
        for host, (name, address) in enumerate(zip(self.names, self.addresses)):
            run = shlex.join(self.inside(host, "sh", "-c"))
            first = before if host else ""
            cases.append(f'{name}|{address}) exec {run} {shlex.quote(first)}"$*";;')
        script = folder / "rsh"
        script.write_text("#!/bin/sh\nhost=$1; shift\ncase $host in\n" + "\n".join(cases) + "\nesac\nexit 255\n")
        script.chmod(0o755)
        return str(script)

    def pids(self) -> list[int]:
        """The processes on both hosts."""
        return [int(pid) for space in self.spaces for pid in _ip("netns", "pids", space).split()]

    def cut(self) -> None:
        """Pull the cable: packets vanish, connections stay open at both ends."""
        _ip("-n", self.spaces[1], "link", "set", self._devices[1], "down")

    def mend(self) -> None:
        """Plug it in again."""
        _ip("-n", self.spaces[1], "link", "set", self._devices[1], "up")


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make the namespaces; they are removed at the end.

    Raises:
        GluontuneError: they cannot be made here.
    """
    mark = f"{os.getpid()}-{next(_numbers)}"
    spaces = (f"gluontune-{mark}-a", f"gluontune-{mark}-b")
    devices = ("gt0", "gt1")
    addresses = ("10.213.0.1", "10.213.0.2")
    try:
        known = "".join(f"{address} {name}\n" for name, address in zip(TwoHosts.names, addresses))
        for name in spaces:
            _ip("netns", "add", name)
            own = _ETC / name  # `ip netns exec` shows this as /etc/hosts
            own.mkdir(parents=True)
            (own / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        _ip("link", "add", devices[0], "netns", spaces[0], "type", "veth", "peer", "name", devices[1],
            "netns", spaces[1])  # fmt: skip
        for name, device, address in zip(spaces, devices, addresses):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            for each in ("lo", device):
                _ip("-n", name, "link", "set", each, "up")
        yield TwoHosts(spaces, addresses, devices)
    finally:
        for name in spaces:
            with contextlib.suppress(GluontuneError):
                _ip("netns", "del", name)
            shutil.rmtree(_ETC / name, ignore_errors=True)


def _ip(*words: str) -> str:
    if shutil.which("ip") is None:
        raise GluontuneError("network namespaces cannot be made: `ip` is missing (apt install iproute2)")
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise GluontuneError(
            f"network namespaces cannot be made here (ip {' '.join(words)}: {done.stderr.strip()}): this needs root, "
            "and in a container the right to make them (docker run --privileged)"
        )
    return done.stdout
