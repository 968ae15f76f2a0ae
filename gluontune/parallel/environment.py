"""The place of this process among the ranks of a run, from the environment variables of what started it: ``srun``,
``mpirun``, ``mpiexec``, ``torchrun``, ``horovodrun`` or MXNet's tracker. No other module reads their variables.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Optional

from gluontune.core.errors import UsageError

LOOPBACK = "127.0.0.1"
RUN_VARIABLE = "GLUONTUNE_RUN"  # a number that `launch --hosts` draws

#: Launchers, the innermost first: rank, world, local rank, ranks of this host.
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "MXNet's tracker": ("DMLC_WORKER_ID", "DMLC_NUM_WORKER", "", ""),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
}  # fmt: skip
#: What only one run has. Ranks of another run do not know it.
_IDENTITY = (
    RUN_VARIABLE,
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "HOROVOD_GLOO_RENDEZVOUS_PORT", "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_precondition_transports", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT",
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_LAUNCHER_PORT", "MASTER_PORT",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """One process of a run that the launcher ``by`` started; ``variables`` have rank and world.

    Args:
        local_rank, local_world: the same among the ranks of this host; None if unknown.
        host: name or address of rank 0's host. port: TCP port on it, free for gluontune; None: any.
        job: text that only ranks of this run have. cpus: processors for this rank, by the scheduler; None: no limit.
        attempt: number of earlier starts of the same job. waits: the process has no rank: MXNet's server or scheduler.
    """

    by: str
    variables: tuple[str, str]
    rank: int
    world: int
    local_rank: Optional[int] = None
    local_world: Optional[int] = None
    host: str = LOOPBACK
    port: Optional[int] = None
    job: str = ""
    cpus: Optional[int] = None
    attempt: int = 0
    waits: bool = False

    def __str__(self) -> str:
        here = f", one of {self.local_world} on this host" if self.local_world is not None else ""
        return (
            f"rank {self.rank} of {self.world}{here}, started by {self.by} ({', '.join(self.variables)}); "
            f"rank 0 is at {self.host}"
        )


def found(environ: Mapping[str, str], alone: bool = False) -> Place | None:
    """The place of a process with this environment, or None if nothing started it as one of several.

    ``alone``: return the place of the one rank of a run as well.

    >>> print(found({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4",
    ...     "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    ...     "SLURM_STEP_NODELIST": "node[08-09]"}))
    rank 3 of 4, one of 2 on this host, started by srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS); rank 0 is at node08
    >>> found({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}) is None
    True
    >>> found({"RANK": "1"})
    Traceback (most recent call last):
    gluontune.errors.UsageError: RANK=1 without WORLD_SIZE: set both, or unset RANK
    """
    if environ.get("DMLC_ROLE", "worker") != "worker":
        names = ("DMLC_ROLE", "DMLC_NUM_WORKER")
        return Place("MXNet's tracker", names, 0, _number(environ, names[1], 1), waits=True)
    seen = [place for by in _LAUNCHERS if (place := _read(environ, by)) is not None]
    if not seen:
        if "DMLC_ROLE" in environ:
            raise UsageError(
                "DMLC_ROLE=worker without the worker's number: set DMLC_WORKER_ID (0 … DMLC_NUM_WORKER - 1), "
                "or unset DMLC_ROLE"
            )
        return None
    first = seen[0]
    for other in seen[1:]:
        # srun may have started the launchers of the ranks, one on each host
        outer = other.by == "srun" and other.world < first.world
        if (other.rank, other.world) != (first.rank, first.world) and not outer:
            raise UsageError(
                f"{_shown(environ, first)} and {_shown(environ, other)} contradict each other: unset those of the one "
                "that did not start this process"
            )
    if first.world == 1 and not alone:
        return None
    store = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun itself listens at MASTER_PORT
    port = None if store or "MASTER_PORT" not in environ else _number(environ, "MASTER_PORT", 1, 65535)
    return replace(
        first,
        host=_host(environ, first),
        port=port,
        job=" ".join(f"{name}={environ[name]}" for name in _IDENTITY if name in environ),
        cpus=_cpus(environ, first),
        attempt=max(_number(environ, n, 0, absent=0) for n in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")),
    )


def _read(environ: Mapping[str, str], by: str) -> Place | None:
    """Rank and world by one launcher's variables, or None without them."""
    rank, world, local_rank, local_world = _LAUNCHERS[by]
    if by == "MXNet's tracker":
        if "DMLC_ROLE" not in environ:
            return None
        rank = "DMLC_TASK_ID" if rank not in environ and "DMLC_TASK_ID" in environ else rank
    if rank not in environ or (by == "srun" and "SLURM_STEP_ID" not in environ):  # a batch script has no step
        return None
    if world not in environ:
        raise UsageError(f"{rank}={environ[rank]} without {world}: set both, or unset {rank}")
    size = _number(environ, world, 1)
    number = _number(environ, rank, 0, size - 1)
    here = _slurm_tasks_here(environ) if by == "srun" else None
    if local_world in environ:
        here = _number(environ, local_world, 1, size)
    own = _number(environ, local_rank, 0, (here or size) - 1) if local_rank in environ else None
    return Place(by, (rank, world), number, size, own, here)


def _number(
    environ: Mapping[str, str], name: str, least: int, most: int | None = None, absent: int | None = None
) -> int:
    if absent is not None and name not in environ:
        return absent
    text = environ.get(name, "")
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < least or (most is not None and int(text) > most):
        limit = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise UsageError(f"{name}={text!r} is no number {limit}: unset it, or start this process by its launcher")
    return int(text)


def _shown(environ: Mapping[str, str], place: Place) -> str:
    rank, world = place.variables
    return f"{rank}={environ[rank]} of {world}={environ[world]}"


def _host(environ: Mapping[str, str], place: Place) -> str:
    """Rank 0's host. Ranks of one host need no network."""
    if place.local_world == place.world:
        return LOOPBACK
    nodes = hosts_of(environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST", "")))
    host = environ.get("MASTER_ADDR") or environ.get("DMLC_PS_ROOT_URI") or (nodes[0] if nodes else "")
    if not host:
        raise UsageError(
            f"{_shown(environ, place)}: the ranks are on several hosts, and rank 0's is unknown: set MASTER_ADDR to "
            "its name on all of them (mpirun -x MASTER_ADDR=node1, mpiexec -genv MASTER_ADDR node1)"
        )
    return host


def _cpus(environ: Mapping[str, str], place: Place) -> int | None:
    """Processors of this rank by SLURM."""
    if "SLURM_JOB_ID" not in environ:
        return None
    if place.by == "srun" and "SLURM_CPUS_PER_TASK" in environ:
        return _number(environ, "SLURM_CPUS_PER_TASK", 1)
    whole = _number(environ, "SLURM_CPUS_ON_NODE", 1, absent=0)
    return max(1, whole // (place.local_world or 1)) if whole else None


def _slurm_tasks_here(environ: Mapping[str, str]) -> int | None:
    """Tasks of this step on this node, of ``2(x3),1``."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    node = _number(environ, "SLURM_NODEID", 0, absent=0)
    return counts[node] if node < len(counts) else None


def hosts_of(text: str) -> list[str]:
    """The names in a node list of SLURM's."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        made = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
            made = [name + end for name in made for end in ([plain] if plain else _range(ranges, text))]
        names += made
    if text.count("[") != text.count("]"):
        raise UsageError(f"{text!r} is no list of nodes: node[1-4,7]")
    return names


def _range(text: str, whole: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if ends is None or not int(ends[1]) <= int(ends[2] or ends[1]) < int(ends[1]) + 100_000:
            raise UsageError(f"{whole!r} is no list of nodes: node[1-4,7]")
        found += [f"{n:0{len(ends[1])}d}" for n in range(int(ends[1]), int(ends[2] or ends[1]) + 1)]
    return found


def here(alone: bool = False) -> Place | None:
    """The place of this process; arguments and errors as of :func:`found`."""
    place = found(os.environ, alone)
    if place is None or place.by != "mpiexec" or "PMI_FD" not in os.environ:
        return place
    # MPICH names the run on a line of its own only (PMI 1)
    with contextlib.suppress(OSError, ValueError):
        line = int(os.environ["PMI_FD"])
        os.write(line, b"cmd=get_my_kvsname\n")
        name = re.search(rb"kvsname=(\S+)", os.read(line, 1024))
        return replace(place, job=f"{place.job} {name[1].decode()}" if name else place.job)
    return place


def address_of(host: str) -> str:
    """The IPv4 address of a host.

    A node of SLURM's may have a name that only SLURM knows: ``scontrol`` then returns its address.
    """
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["scontrol", "show", "node", host, "--oneliner"]
            text = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
            known = re.search(r"\bNodeAddr=(\S+)", text)
            if known is not None and known[1] != host:
                return socket.gethostbyname(known[1])
        raise UsageError(
            f"{host}: rank 0's host has no address here ({error.strerror or error}): set MASTER_ADDR to one that all "
            "hosts reach"
        ) from error
