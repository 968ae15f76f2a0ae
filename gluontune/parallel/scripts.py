"""Texts that start ``gluontune train`` as ranks on a cluster: a SLURM script, an mpirun line, a Kubernetes job."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from gluontune.core.errors import UsageError

_NAME = "gluontune"
_SAVE_S = 120  # before the time limit
_INTERRUPTED = 130  # the exit code of a run that saved and ended


@dataclass(frozen=True)
class Layout:
    """A training of several ranks.

    Args:
        train: ``train`` and its options. engine: of the ranks. nodes: machines. ranks: on each of them.
        hosts: their names as ``node1:4,node2:4``, for mpirun; None: this machine.
        insecure_network: the machines' network is the user's alone.
    """

    train: tuple[str, ...]
    engine: str
    nodes: int = 1
    ranks: int = 2
    hosts: Optional[str] = None
    insecure_network: bool = False

    def __post_init__(self) -> None:
        if self.nodes > 1 and not self.insecure_network:
            raise UsageError(
                f"{self.nodes} machines meet on a network, and the engines have no password: on one that is yours "
                "alone add --insecure-network (SECURITY.md)"
            )

    @property
    def world(self) -> int:
        return self.nodes * self.ranks

    def rank_words(self, world: int) -> list[str]:
        """The command of each of ``world`` ranks; a single one needs no engine."""
        found = ["gluontune", *self.train]
        if world > 1:
            found += ["--engine", self.engine]
        if self.engine == "ddp" and "--backend" not in self.train:
            found += ["--backend", "torch"]
        if self.nodes > 1:
            found.append("--insecure-network")
        return found

    @property
    def words(self) -> list[str]:
        """The command of each rank of a job that may be started again."""
        found = self.rank_words(self.world)
        if "--checkpoint" in self.train and "--resume" not in self.train:
            found.append("--resume")
        return found


def slurm(layout: Layout) -> str:
    """A batch script for ``sbatch``, which SLURM may end and start again at any time."""
    return _batch(layout, shlex.join(layout.words), [])


def slurm_array(layout: Layout) -> str:
    """A batch script for an array job: each task trains with another seed, or does another part of a study.

    >>> text = slurm_array(Layout(("train", "--seed", "0-11", "--out", "runs/tta.json"), "local", ranks=1))
    >>> [line for line in text.splitlines() if "array=" in line or line.startswith("srun")][-1]
    'srun --kill-on-bad-exit=1 gluontune train --seed $SLURM_ARRAY_TASK_ID --out runs/tta-$SLURM_ARRAY_TASK_ID.json'
    """
    words = layout.words
    flag = "--seed" if layout.train[0] == "train" else "--part"
    tasks = words[words.index(flag) + 1] if flag in words[:-1] else ""
    if not re.fullmatch(r"\d+-\d+|\d+(,\d+)*" if flag == "--seed" else r"0-\d+", tasks):
        what = "the seeds of its tasks: -- train --seed 0-11" if flag == "--seed" else "its tasks: -- tta --part 0-11"
        raise UsageError(f"{flag} {tasks!r}: an array wants {what}")
    if flag == "--part":
        return _study_array(words, int(tasks[2:]) + 1, layout)
    shown = []
    for before, word in zip(["", *words], words):
        if before == "--seed":
            shown.append("$SLURM_ARRAY_TASK_ID")
        elif before in ("--out", "--checkpoint"):
            stem, dot, end = word.rpartition(".") if before == "--out" else (word, "", "")
            shown.append(f"{shlex.quote(stem or word)}-$SLURM_ARRAY_TASK_ID{dot}{shlex.quote(end) if end else ''}")
        else:
            shown.append(shlex.quote(word))
    return _batch(layout, " ".join(shown), [f"#SBATCH --array={tasks}"])


def _study_array(words: Sequence[str], tasks: int, layout: Layout) -> str:
    at = words.index("--part")
    rest = [word for word in [*words[:at], *words[at + 2 :]] if word != "--resume"] + ["--resume"]
    command = f"{shlex.join(rest)} --part $SLURM_ARRAY_TASK_ID/{tasks}"
    merge = f"# one document of all tasks, when they have ended: {shlex.join(rest)}".replace("\n", "\n# ")
    return _batch(layout, command, [f"#SBATCH --array=0-{tasks - 1}", merge])


def _batch(layout: Layout, command: str, more: Sequence[str]) -> str:
    log = "%x-%A-%a.out" if more else "%x-%j.out"
    further = "".join(line + "\n" for line in more)
    return f"""\
#!/bin/bash
#SBATCH --job-name={_NAME}
#SBATCH --nodes={layout.nodes}
#SBATCH --ntasks-per-node={layout.ranks}
{further}\
##SBATCH --cpus-per-task=8
##SBATCH --gpus-per-task=1
##SBATCH --time=04:00:00
#SBATCH --output={log}
#SBATCH --open-mode=append
#SBATCH --requeue
# {_SAVE_S} s before the time limit the ranks save and end, and the job is queued again
#SBATCH --signal=TERM@{_SAVE_S}

srun --kill-on-bad-exit=1 {command}
code=$?
[ "$code" -ne {_INTERRUPTED} ] || scontrol requeue "$SLURM_JOB_ID"
exit "$code"
"""


def mpi(layout: Layout) -> str:
    """The command of Open MPI."""
    words = ["mpirun", "-np", str(layout.world), "--bind-to", "none"]  # it would give each of two ranks one core
    if layout.hosts is not None:
        words += ["--host", layout.hosts, "-x", f"MASTER_ADDR={re.split('[:,]', layout.hosts)[0]}"]
    return shlex.join([*words, *layout.words]) + "\n"


def kubernetes(layout: Layout) -> str:
    """A job of Kubeflow's training operator: PyTorchJob for ``ddp``, MPIJob for the other engines."""
    import yaml

    document = _pytorch_job(layout) if layout.engine == "ddp" else _mpi_job(layout)
    copied = json.loads(json.dumps(document))  # YAML would write an alias of an object that occurs twice
    return str(yaml.safe_dump(copied, sort_keys=False, width=120))


def _pytorch_job(layout: Layout) -> dict[str, Any]:
    words = layout.words
    if layout.ranks > 1:
        words = ["torchrun", "--no-python", *words]
    only_read = {"securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}}
    pod = {"restartPolicy": "OnFailure", "template": {"spec": _pod("pytorch", words, only_read)}}
    replicas = {"Master": {"replicas": 1, **pod}}
    if layout.nodes > 1:
        replicas["Worker"] = {"replicas": layout.nodes - 1, **pod}
    spec: dict[str, Any] = {"runPolicy": {"cleanPodPolicy": "Running"}, "pytorchReplicaSpecs": replicas}
    if layout.ranks > 1:
        spec["nprocPerNode"] = str(layout.ranks)
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": _NAME}, "spec": spec}


def _mpi_job(layout: Layout) -> dict[str, Any]:
    # the operator lists the workers in this file, the first of which is rank 0's host
    first = '"$(head -n 1 /etc/mpi/hostfile | cut -d " " -f 1)"'
    run = f"exec mpirun -np {layout.world} --bind-to none -x MASTER_ADDR={first} {shlex.join(layout.words)}"
    keys = "/home/mpiuser/.ssh"
    worker = _pod("worker", ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"])
    spec = {
        "slotsPerWorker": layout.ranks,
        "sshAuthMountPath": keys,
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 3},
        "mpiReplicaSpecs": {
            "Launcher": {
                "replicas": 1,
                "restartPolicy": "OnFailure",
                "template": {"spec": _pod("launcher", ["sh", "-c", run])},
            },
            "Worker": {"replicas": layout.nodes, "template": {"spec": worker}},
        },
    }
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": _NAME}, "spec": spec}


def _pod(name: str, command: Sequence[str], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A pod that is no root, so that it cannot write its code, and has shared memory for the ranks."""
    mounts = {"shm": "/dev/shm", "tmp": "/tmp", "work": "/work"}
    return {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000},
        "containers": [
            {
                "name": name,
                "image": "gluontune:latest",
                "command": list(command),
                "workingDir": "/work",
                **(more or {}),
                "resources": {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}},
                "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts.items()],
            }
        ],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "work", "persistentVolumeClaim": {"claimName": _NAME}},
        ],
    }


#: By the word after ``launch --print``.
SCRIPTS: dict[str, Callable[[Layout], str]] = {
    "slurm": slurm,
    "slurm-array": slurm_array,
    "mpi": mpi,
    "kubernetes": kubernetes,
}
