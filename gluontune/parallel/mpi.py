"""``launch --hosts``: ranks on several machines, started by the installed ``mpirun``, Open MPI's or MPICH's, which ends
all when one fails. They find each other by :mod:`gluontune.parallel.environment`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Optional

import psutil

from gluontune.core.errors import UsageError
from gluontune.core.interpreter import python
from gluontune.core.processes import end_with_launcher, how_it_ended, supervise
from gluontune.parallel.environment import RUN_VARIABLE, Place
from gluontune.parallel.scripts import Layout, mpi

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

        Raises a UsageError for an unreadable host, a duplicate, or one without ranks.
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
        """The name of rank 0's host for the other ranks; a UsageError if it means another machine on each."""
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
    """Whether an IPv4 address reaches this machine alone."""
    return address.startswith("127.")


def own_name_stands_for() -> list[str]:
    """The IPv4 addresses of this host's name, as resolved here."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        return sorted({str(entry[4][0]) for entry in found})
    return []


_PASSED_ON = ("GLUONTUNE_", "MXNET_", "OMP_", "NCCL_", "MASTER_")  # all others are the host's
_HOST_BACK_S = 10.0  # before a run is started again
_INTERRUPTED = 130
_WATCHED = "GLUONTUNE_WATCHED"

#: For Open MPI: a host that is cut off is noticed in 20 s.
_SETTINGS = {
    "plm_rsh_no_tree_spawn": 1,
    "oob_tcp_keepalive_time": 5,
    "oob_tcp_keepalive_intvl": 5,
    "oob_tcp_keepalive_probes": 3,
}


#: Runs a command on a host. MPICH's mpirun waits for ever for one that ssh does not reach, or has lost.
_AGENT = r"""#!/bin/sh
{transport} "$@"
code=$?
if [ $code -ne 0 ]; then
    printf 'error: host %s: ended with code %s: %s\n' "$1" "$code" {shown} >&2
    sleep 5
    kill -TERM $PPID 2> /dev/null
fi
exit $code
"""


def found() -> tuple[str, bool] | None:
    """The path of ``mpirun``, and whether it is Open MPI's; None if there is none."""
    path = shutil.which("mpirun") or shutil.which("mpiexec")
    if path is None:
        return None
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60).stdout
    return path, "Open MPI" in said or "OpenRTE" in said


def command(hosts: Hosts, world: int, train: Sequence[str], agent: Path, *, path: str, open_mpi: bool) -> list[str]:
    """The command that starts ``train`` as ``world`` ranks; ``agent`` is a script that runs a command on a host."""
    names = sorted(name for name in os.environ if name.startswith(_PASSED_ON))
    if open_mpi:
        words = [path, *(["--allow-run-as-root"] if os.getuid() == 0 else []), "--bind-to", "none", "--map-by", "slot"]
        for name, value in {**_SETTINGS, "plm_rsh_agent": agent}.items():
            words += ["--mca", name, str(value)]
        words += [word for name in names for word in ("-x", name)]
        return [*words, "--wdir", os.getcwd(), "--host", str(hosts), "-np", str(world), *train]
    words = [path, "-bootstrap", "rsh", "-bootstrap-exec", str(agent)]  # for ssh it would add words of ssh's
    words += ["-genvlist", ",".join(names), "-wdir", os.getcwd()]
    return [*words, "-hosts", str(hosts), "-n", str(world), *train]


def launch(
    hosts: Hosts, world: int, train: Sequence[str], engine: str, restarts: int, say: Callable[[str], None]
) -> int:
    """Train on the hosts, and return the exit code; after a failure resume ``restarts`` times, with a line to ``say``.

    Raises a UsageError without mpirun, for a network that is not allowed, and for more ranks than fit.
    """
    if restarts and not any(word.split("=")[0] == "--checkpoint" for word in train):
        raise UsageError(f"--restart {restarts} needs checkpoints to go on from: give train --checkpoint DIR")
    layout = Layout(tuple(train), engine, len(hosts.names), hosts.slots[0], str(hosts), hosts.insecure_network)
    words = [*hosts.python_words("-m", "gluontune"), *layout.rank_words(world)[1:]]
    if world > hosts.total:
        raise UsageError(
            f"{world} ranks do not fit on --hosts {hosts} ({hosts.total} in all): give a smaller -n or more per host"
        )
    if (mpirun := found()) is None:
        raise UsageError(
            "--hosts: no mpirun is installed: apt install openmpi-bin (or mpich) on each of them, or start the ranks "
            f"by what your cluster has:\n{mpi(layout)}"
        )
    path, open_mpi = mpirun
    os.environ.setdefault("MASTER_ADDR", hosts.first_address)
    os.environ[RUN_VARIABLE] = secrets.token_hex(16)
    if hosts.port:
        os.environ["MASTER_PORT"] = str(hosts.port)
    with tempfile.TemporaryDirectory(prefix="gluontune-launch-") as folder:
        agent = Path(folder) / "rsh"
        transport = shlex.join(hosts.transport())
        agent.write_text(_AGENT.format(transport=transport, shown=shlex.quote(transport)))
        agent.chmod(0o700)
        for left in range(restarts, -1, -1):
            with tempfile.TemporaryFile() as printed:  # the result, once, whatever came before
                run = command(hosts, world, words, agent, path=path, open_mpi=open_mpi)
                code, stopped = supervise(run, stdout=printed, stop_by=signal.SIGUSR1)
                if stopped is not None:
                    code = _INTERRUPTED
                if not left or code in (0, 2, _INTERRUPTED):
                    printed.seek(0)
                    sys.stdout.flush()
                    shutil.copyfileobj(printed, sys.stdout.buffer)
                    sys.stdout.flush()
                    return code
            say(f"restarted after a fault: {PurePath(path).name} ended with code {code}; {left - 1} restarts are left")
            words += [] if "--resume" in words else ["--resume"]
            time.sleep(_HOST_BACK_S)
    raise AssertionError("unreachable")


def watch(place: Place) -> None:
    """Under MPICH, run this command again in a child process, name the signal that ends it, and exit with its code.

    MPICH ends all ranks at once, without a word, when a signal ends one of them; for one that hangs it waits for ever,
    unless rank 0 has the whole job ended.
    """
    if place.by != "mpiexec" or os.environ.pop(_WATCHED, ""):
        return
    end_with_launcher()
    words = [*python("-m", "gluontune"), *sys.argv[1:]]
    code, _ = supervise(words, {**os.environ, _WATCHED: "1"}, stdout=1, stop_by=signal.SIGUSR1)
    if code < 0:
        name = f"rank {place.rank} on host {socket.gethostname()}"
        print(f"error: {how_it_ended(name, code)}", file=sys.stderr, flush=True)
    if place.rank == 0 and code not in (0, 2, _INTERRUPTED):
        with contextlib.suppress(KeyError, OSError):
            os.write(int(os.environ["PMI_FD"]), b"cmd=abort exitcode=1\n")
    sys.exit(code if code >= 0 else 1)
