"""Cores and memory that this process may use: affinity, cgroup limits (v1 and v2), topology, model."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Union

# Features that decide the speed of MXNet's oneDNN, in the kernel's spelling.
FLAGS = (
    "sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_tile", "bf16", "asimd",
)  # fmt: skip

Pathlike = Union[str, Path]


def parse_cpu_list(text: str) -> list[int]:
    """The kernel's list format as numbers.

    >>> parse_cpu_list("0-2,8")
    [0, 1, 2, 8]
    """
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        found.extend(range(int(low), int(high or low) + 1))
    return found


def show_cpu_list(cpus: list[int] | tuple[int, ...]) -> str:
    """Numbers in the kernel's list format, as ``taskset -c`` takes them.

    >>> show_cpu_list([8, 0, 1, 2])
    '0-2,8'
    """
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


class Cpu:
    """The processor and this process's share of it.

    Args:
        root: the folder that holds ``proc`` and ``sys``; tests pass a fake.
        affinity: returns the CPUs of the process; default ``os.sched_getaffinity``.
    """

    def __init__(self, root: Pathlike = "/", affinity: Callable[[], set[int]] | None = None):
        self.root = Path(root)
        self._affinity = affinity

    def read(self, path: str) -> str | None:
        """The text of ``/proc/…`` or ``/sys/…``, or None if unreadable."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def affinity(self) -> list[int]:
        """The logical CPUs that the process may run on, in ascending order."""
        if self._affinity is not None:
            return sorted(self._affinity())
        if hasattr(os, "sched_getaffinity"):
            return sorted(os.sched_getaffinity(0))
        return list(range(os.cpu_count() or 1))

    def logical_cores(self) -> int:
        """Logical CPUs of the machine that are online."""
        online = self.read("/sys/devices/system/cpu/online")
        return len(parse_cpu_list(online)) if online else (os.cpu_count() or 1)

    def siblings(self, cpu: int) -> tuple[int, ...]:
        """The logical CPUs that share ``cpu``'s core, itself included."""
        text = self.read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return tuple(parse_cpu_list(text)) if text and text.strip() else (cpu,)

    def physical_cores(self, cpus: list[int] | None = None) -> int:
        """Physical cores of ``cpus`` (default: all online); hyper-threads of one core count once."""
        if cpus is None:
            online = self.read("/sys/devices/system/cpu/online")
            cpus = parse_cpu_list(online) if online else list(range(self.logical_cores()))
        return len({min(self.siblings(cpu)) for cpu in cpus})

    def quota_cores(self) -> float | None:
        """The cgroups' limit of CPU time, in cores, or None."""
        limits = []
        for folder in self._cgroup_folders("cpu"):
            text = self.read(f"{folder}/cpu.max")
            if text:
                quota, _, period = text.strip().partition(" ")
                if quota.isdigit() and period.isdigit() and int(period):
                    limits.append(int(quota) / int(period))
            v1 = [self.read(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period")]
            if v1[0] and v1[1] and int(v1[0]) > 0 and int(v1[1]) > 0:
                limits.append(int(v1[0]) / int(v1[1]))
        return min(limits) if limits else None

    def usable_cores(self) -> int:
        """Logical CPUs that this process can keep busy: affinity limited by the cgroup's quota, at least 1.

        A fractional quota is rounded down: one thread too many would be throttled and, as threads wait for each other
        at the end of each operator, delay all the others.
        """
        cores = len(self.affinity()) or 1
        quota = self.quota_cores()
        return cores if quota is None else max(1, min(cores, math.floor(quota + 1e-6)))

    def compute_cores(self) -> int:
        """Like :meth:`usable_cores`, in physical cores, of which arithmetic gains."""
        return max(1, min(self.usable_cores(), self.physical_cores(self.affinity())))

    def memory_mib(self) -> int | None:
        """The machine's memory."""
        found = re.search(r"^MemTotal:\s+(\d+) kB", self.read("/proc/meminfo") or "", re.M)
        return int(found[1]) >> 10 if found else None

    def memory_limit_mib(self) -> int | None:
        """Memory that this process may use: the smallest cgroup limit, at most the machine's memory."""
        limits = [self.memory_mib()]
        for folder in self._cgroup_folders("memory"):
            for name in ("memory.max", "memory.limit_in_bytes"):
                text = (self.read(f"{folder}/{name}") or "").strip()
                if text.isdigit():  # without a limit v2 has "max", v1 a number near 2**63
                    limits.append(int(text) >> 20)
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None

    def model(self) -> str | None:
        """The processor's name."""
        text = self.read("/proc/cpuinfo") or ""
        found = re.search(r"^(?:model name|Model|Hardware|cpu model)\s*:\s*(.+)$", text, re.M)
        return " ".join(found[1].split()) if found else None

    def flags(self) -> tuple[str, ...]:
        """The processor's features among :data:`FLAGS`."""
        found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", self.read("/proc/cpuinfo") or "", re.M)
        have = set(found[1].split()) if found else set()
        return tuple(flag for flag in FLAGS if flag in have)

    def container(self) -> str | None:
        """``docker``, ``podman``, ``kubernetes`` … of a container, or None."""
        if (self.root / "run/.containerenv").exists():
            return "podman"
        cgroup = self.read("/proc/1/cgroup") or ""
        for word, name in (("kubepods", "kubernetes"), ("docker", "docker"), ("containerd", "containerd")):
            if word in cgroup:
                return name
        if (self.root / ".dockerenv").exists():
            return "docker"
        return "singularity" if (self.root / ".singularity.d").exists() else None

    def _cgroup_folders(self, controller: str) -> Iterator[str]:
        """This process's cgroup of ``controller`` and its parents: each may set a limit."""
        for line in (self.read("/proc/self/cgroup") or "").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers == "":
                base = "/sys/fs/cgroup"
            elif controller in controllers.split(","):
                base = self._v1_mount(controllers, controller)
            else:
                continue
            parts = [part for part in path.split("/") if part and part != ".."]
            # in a container the path may be the host's, while the container's cgroup is mounted as the top
            for depth in range(len(parts), -1, -1):
                yield "/".join([base, *parts[:depth]])

    def _v1_mount(self, controllers: str, controller: str) -> str:
        joint = f"/sys/fs/cgroup/{controllers}"
        return joint if (self.root / joint.lstrip("/")).is_dir() else f"/sys/fs/cgroup/{controller}"


def usable_cores() -> int:
    """Logical CPUs that this process can keep busy: affinity limited by the cgroup's quota, at least 1."""
    return Cpu().usable_cores()


def memory_limit_mib() -> int | None:
    """Memory that this process may use, in MiB: the smallest cgroup limit, at most the machine's memory.

    >>> (memory_limit_mib() or 1) > 0
    True
    """
    return Cpu().memory_limit_mib()
