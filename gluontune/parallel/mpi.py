"""``launch --hosts``: ranks on several machines, started by the installed ``mpirun``, Open MPI's or MPICH's.

It starts ``gluontune train`` on each host, passes its output on, and ends all ranks when one fails. The ranks find each
other (:mod:`gluontune.parallel.environment`), and rank 0 names the one that differs, died or fell silent.
"""

from __future__ import annotations

import contextlib
import os
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
from pathlib import Path, PurePath

from gluontune.core.errors import UsageError
from gluontune.core.interpreter import python
from gluontune.core.processes import end_with_launcher, how_it_ended, supervise
from gluontune.parallel.environment import RUN_VARIABLE, Place
from gluontune.parallel.hosts import Hosts
from gluontune.parallel.scripts import Layout, mpi

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
    """The command that starts ``train`` as ``world`` ranks.

    Args:
        train: the command of each rank. agent: a script that runs a command on a host.
        path, open_mpi: of :func:`found`.
    """
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
    """Train on the hosts, and return the exit code.

    Args:
        world: ranks. train: ``train`` and its options. restarts: so many times, resume after a failure.
        say: gets a line for each restart.

    Raises:
        UsageError: no mpirun here, a network that is not allowed, more ranks than fit.
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
