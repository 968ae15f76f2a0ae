"""MXNet's parameter server on this machine: one scheduler, servers, and the workers' environment."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from gluontune.errors import GluontuneError

__all__ = ["Cluster", "start_cluster"]

# A process with DMLC_ROLE=scheduler or server serves inside `import mxnet` and ends with the job.
_SERVE = "import gluontune.runtime as r; r.mxnet()"


@dataclass
class Cluster:
    """The helper processes of a ``dist_sync`` kvstore, and what a worker needs to find them.

    Args:
        worker_env: environment variables for every worker.
        processes: the scheduler first, then the servers.
    """

    worker_env: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def failed(self) -> str | None:
        """The name of a helper that has ended with an error, or None."""
        for place, process in enumerate(self.processes):
            code = process.poll()
            if code not in (None, 0):
                role = "scheduler" if place == 0 else f"server {place - 1}"
                return f"the kvstore's {role} ended with code {code}"
        return None

    def close(self) -> None:
        """End the helpers; they hold nothing that must be saved."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_cluster(workers: int, env: Mapping[str, str], *, servers: int = 1) -> Cluster:
    """Start scheduler and servers on the loopback interface.

    Args:
        workers: number of training processes that will join.
        env: the environment that the helpers inherit (with gluontune's runtime settings).
        servers: parameter servers; one is enough for two workers on one machine.

    Raises:
        GluontuneError: a helper cannot be started.
    """
    address = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(_free_port()),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_INTERFACE": "lo",
        "PS_VERBOSE": "0",
    }
    cluster = Cluster(worker_env={**address, "DMLC_ROLE": "worker"})
    try:
        for role in ["scheduler"] + ["server"] * servers:
            cluster.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", _SERVE],
                    env={**env, **address, "DMLC_ROLE": role},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd=os.getcwd(),
                    start_new_session=True,
                )
            )
    except OSError as error:
        cluster.close()
        raise GluontuneError(f"the kvstore's helpers cannot be started: {error}") from error
    return cluster
