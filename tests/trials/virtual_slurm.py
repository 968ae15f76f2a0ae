"""A SLURM cluster of several nodes on this machine, in a private folder.

``python tests/trials/virtual_slurm.py COMMAND`` runs a command in it.

It needs root, and Debian's ``slurm-wlm`` and ``munge``; nothing of the system's own SLURM is read or changed. The
command runs with ``SLURM_CONF`` set; all ends with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from gluontune.parallel.kvstore import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
_READY_S = 60.0

_CONF = """
ClusterName=virtual
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
InactiveLimit=15
KillWait=30
SlurmdTimeout=5
SchedulerParameters=bf_interval=1,sched_interval=1,requeue_delay=1
{nodes}
PartitionName=low Nodes=n[1-{count}] Default=YES PriorityTier=1
PartitionName=high Nodes=n[1-{count}] PriorityTier=10
"""


class VirtualSlurm:
    """A running cluster.

    Attributes:
        env: the environment for ``srun``, ``sbatch`` and others. daemons: by name: munged, slurmctld, n1, n2, …
    """

    def __init__(self, folder: Path, count: int):
        self.folder, self.count = folder, count
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        port = [free_port("127.0.0.1") for _ in range(count + 1)]
        host = socket.gethostname()
        nodes = [
            f"NodeName=n{k} NodeHostname={host} NodeAddr=127.0.0.1 Port={port[k]} CPUs=2 RealMemory=1000"
            for k in range(1, count + 1)
        ]
        text = _CONF.format(host=host, port=port[0], folder=folder, nodes="\n".join(nodes), count=count)
        (folder / "slurm.conf").write_text(text)
        (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (folder / "munge.key").chmod(0o400)
        (folder / "state").mkdir()
        files = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munged.pid", "seed-file": "seed"}
        words = [f"--{name}={folder / path}" for name, path in files.items()]
        self._start("munged", "munged", "--foreground", "--force", f"--log-file={folder}/munged.log", *words)
        self._until((folder / "munge.sock").exists)
        self._start("slurmctld", "slurmctld", "-D", "-c")
        for k in range(1, count + 1):
            self.start_node(f"n{k}")
        self._until(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.split() == [str(count)])

    def _start(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.out", "ab") as log:
            self.daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start_node(self, name: str) -> None:
        """Start a node's daemon."""
        (self.folder / f"spool-{name}").mkdir(exist_ok=True)
        self._start(name, "slurmd", "-D", "-N", name)

    def _until(self, ready: object) -> None:
        until = time.monotonic() + _READY_S
        while not ready():  # type: ignore[operator]
            if time.monotonic() > until:
                logs = "\n".join(path.read_text(errors="replace")[-500:] for path in self.folder.glob("*.out"))
                raise TimeoutError(f"the cluster does not start:\n{logs}")
            time.sleep(0.2)

    def run(self, *words: str, timeout: float = 300, **options: object) -> subprocess.CompletedProcess[str]:
        """A command of SLURM's, or any other, with the cluster's environment."""
        return subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=timeout, **options)  # type: ignore[call-overload, no-any-return]

    def processes(self) -> list[psutil.Process]:
        """The processes of all jobs, and SLURM's own for each step."""
        own = {daemon.pid for daemon in self.daemons.values()} | {os.getpid()}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                inside = process.environ().get("SLURM_CONF") == self.env["SLURM_CONF"]
                if inside and process.pid not in own and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def close(self) -> None:
        """End all jobs and daemons."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--user", "root", timeout=20)
            until = time.monotonic() + 20
            while self.run("squeue", "-h", timeout=20).stdout.strip() and time.monotonic() < until:
                time.sleep(0.2)
        for daemon in reversed(self.daemons.values()):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()


def missing() -> str | None:
    """The reason why there can be no such cluster here, or None."""
    if os.getuid() != 0:
        return "SLURM's daemons need root"
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"no {', '.join(lacking)} (Debian: apt install slurm-wlm munge)" if lacking else None


@contextlib.contextmanager
def virtual_slurm(count: int = 4) -> Iterator[VirtualSlurm]:
    """A cluster of so many nodes, for the time of the context."""
    with tempfile.TemporaryDirectory(prefix="gluontune-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        cluster = None
        try:
            cluster = VirtualSlurm(folder, count)
            yield cluster
        finally:
            if cluster is not None:
                cluster.close()


if __name__ == "__main__":
    if reason := missing():
        sys.exit(f"virtual_slurm: {reason}")
    with virtual_slurm() as slurm:
        sys.exit(subprocess.call(sys.argv[1:] or ["bash"], env=slurm.env))
