"""MXNet's parameter server: its scheduler and servers on this machine, and the variables of its workers."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from gluontune.core.closing import Closing
from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import python

# A process with DMLC_ROLE=scheduler or server serves inside `import mxnet` and ends with the job: a cluster's SIGTERM
# to all its processes must not end the server before the ranks have saved.
_SERVE = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from gluontune.core.processes import die_with_parent; die_with_parent({parent}); "
    "import gluontune.runtime as r; r.mxnet()"
)


@dataclass
class Cluster(Closing):
    """The helper processes of a ``dist_sync`` kvstore, and the variables of its workers.

    Args:
        worker_env: environment variables for every worker.
        processes: the scheduler first, then the servers. names: of each.
        log: the file that they write to.
    """

    worker_env: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    log: IO[bytes] = field(default_factory=tempfile.TemporaryFile)

    def failed(self) -> str | None:
        """A sentence on a helper that ended with an error, or None."""
        for name, process in zip(self.names, self.processes):
            code = process.poll()
            if code not in (None, 0):
                return f"the kvstore's {name} ended with code {code}: {self._last_words()}"
        return None

    def _last_words(self) -> str:
        """The most informative line of the helpers' output."""
        self.log.seek(0)
        lines = self.log.read().decode("utf-8", "replace").splitlines()
        telling = [line for line in lines if "Check failed" in line or "Error" in line]
        return (telling or lines or ["it said nothing"])[-1].strip()[-300:]

    def close(self) -> None:
        """End the helpers, which have nothing to save."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
        self.log.close()


def _own_address() -> str:
    """A loopback address that no other cluster of this machine has.

    ps-lite's sockets reconnect for ever: on a shared address, the worker of a dead cluster can reach a new cluster's
    server behind a reused port, and push its gradients into another training.
    """
    return "127." + ".".join(str(1 + secrets.randbelow(253)) for _ in range(3))


def free_port(address: str) -> int:
    """A free TCP port of ``address``."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ports of ended connections are free
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def start_cluster(workers: int, env: Mapping[str, str], address: str = "", *, under: Sequence[str] = ()) -> Cluster:
    """Start a scheduler and one server on this machine.

    Args:
        workers: number of training processes.
        env: the environment of the helpers (with gluontune's runtime settings). They end with the calling thread.
        address: of this machine, where other hosts reach them; "": on the loopback interface.
        under: a command that execs the one that follows it, such as one that sets limits.

    >>> cluster = start_cluster(2, os.environ)
    >>> cluster.names, cluster.worker_env["DMLC_ROLE"], cluster.worker_env["DMLC_NUM_WORKER"]
    (['scheduler', 'server 0'], 'worker', '2')
    >>> cluster.close()
    """
    host = address or _own_address()
    shared = {
        "DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": str(free_port(host)), "DMLC_NODE_HOST": host,
        "DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": "1", "PS_VERBOSE": "0",
    }  # fmt: skip
    cluster = Cluster(worker_env={**shared, "DMLC_ROLE": "worker"})
    try:
        for name in ("scheduler", "server 0"):
            cluster.names.append(name)
            cluster.processes.append(
                subprocess.Popen(
                    [*under, *python("-c", _SERVE.format(parent=os.getpid()))],
                    env={**env, **shared, "DMLC_ROLE": name.partition(" ")[0]},
                    stdin=subprocess.DEVNULL,
                    stdout=cluster.log,
                    stderr=subprocess.STDOUT,
                    cwd=os.getcwd(),
                    start_new_session=True,
                )
            )
    except OSError as error:
        cluster.close()
        raise GluontuneError(f"the kvstore's helpers cannot be started: {error}") from error
    return cluster
