"""Cores and memory that this process may use: affinity, cgroup limits (v1 and v2), topology, model; and AMX."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import platform
import re
import sys
from collections.abc import Collection, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Union

# Features that decide the speed of MXNet's oneDNN, in the kernel's spelling.
FLAGS = (
    "sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_tile", "bf16", "asimd",
)  # fmt: skip

Pathlike = Union[str, Path]


def parse_cpu_list(text: str) -> list[int]:
    """The kernel's list format as numbers."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        found.extend(range(int(low), int(high or low) + 1))
    return found


def show_cpu_list(cpus: list[int] | tuple[int, ...]) -> str:
    """Numbers in the kernel's list format, as ``taskset -c`` takes them."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


class Cpu:
    """The processor and this process's share of it; ``root`` holds ``proc`` and ``sys``, for tests."""

    def __init__(self, root: Pathlike = "/"):
        self.root = Path(root)

    def read(self, path: str) -> str | None:
        """The text of ``/proc/…`` or ``/sys/…``, or None if unreadable."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def affinity(self) -> list[int]:
        """The logical CPUs that the process may run on, in ascending order."""
        if hasattr(os, "sched_getaffinity"):
            return sorted(os.sched_getaffinity(0))
        return list(range(os.cpu_count() or 1))

    def online(self) -> list[int]:
        """The logical CPUs of the machine that are online."""
        text = self.read("/sys/devices/system/cpu/online")
        return parse_cpu_list(text) if text else list(range(os.cpu_count() or 1))

    def logical_cores(self) -> int:
        """The number of logical CPUs that are online."""
        return len(self.online())

    def siblings(self, cpu: int) -> tuple[int, ...]:
        """The logical CPUs that share ``cpu``'s core, itself included."""
        text = self.read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return tuple(parse_cpu_list(text)) if text and text.strip() else (cpu,)

    def physical_cores(self, cpus: list[int] | None = None) -> int:
        """Physical cores of ``cpus`` (default: all online); hyper-threads of one core count once."""
        return len({min(self.siblings(cpu)) for cpu in (self.online() if cpus is None else cpus)})

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
        root, cgroup = self.root, self.read("/proc/1/cgroup") or ""
        signs = (
            ("podman", (root / "run/.containerenv").exists()), ("kubernetes", "kubepods" in cgroup),
            ("docker", "docker" in cgroup), ("containerd", "containerd" in cgroup),
            ("docker", (root / ".dockerenv").exists()), ("singularity", (root / ".singularity.d").exists()),
        )  # fmt: skip
        return next((name for name, sign in signs if sign), None)

    def _cgroup_folders(self, controller: str) -> Iterator[str]:
        """This process's cgroup of ``controller`` and its parents: each may set a limit."""
        for line in (self.read("/proc/self/cgroup") or "").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers == "":
                base = "/sys/fs/cgroup"
            elif controller in controllers.split(","):
                joint = f"/sys/fs/cgroup/{controllers}"
                base = joint if (self.root / joint.lstrip("/")).is_dir() else f"/sys/fs/cgroup/{controller}"
            else:
                continue
            parts = [part for part in path.split("/") if part and part != ".."]
            # in a container the path may be the host's, while the container's cgroup is mounted as the top
            for depth in range(len(parts), -1, -1):
                yield "/".join([base, *parts[:depth]])


def usable_cores() -> int:
    """Logical CPUs that this process can keep busy: affinity limited by the cgroup's quota, at least 1."""
    return Cpu().usable_cores()


def memory_limit_mib() -> int | None:
    """Memory that this process may use, in MiB: the smallest cgroup limit, at most the machine's memory.

    >>> (memory_limit_mib() or 1) > 0
    True
    """
    return Cpu().memory_limit_mib()


logger = logging.getLogger("gluontune.runtime")

# AMX is Intel's matrix unit. oneDNN 2.4 (in the mxnet 1.9.1 wheel) has AMX kernels for bfloat16 convolutions, but uses
# them only if this is set before the library is loaded. Linux gives a process the registers' space (8 KiB a thread)
# only on request; without it the first tile instruction ends the process with SIGILL. oneDNN 2.4 sends no request, so
# :func:`prepare_amx` does. Source: Linux, Documentation/arch/x86/xstate.rst ("Using XSTATE features in user space
# applications").
AMX_ENV = {"DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}

_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_WITH_AMX = ("AVX512_CORE_AMX", "ALL")
_WITHOUT_AMX = "AVX512_CORE_BF16"

_SYS_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


@dataclass(frozen=True)
class AmxSupport:
    """Whether this process may use AMX: ``granted``, ``refused`` (by the kernel, where AMX is) or ``absent``."""

    level: str
    message: str


def ask_kernel() -> bool:
    """Request AMX's tile data from Linux for this process and its threads; True if granted.

    Repeated requests are harmless. The permission is inherited by ``fork`` and lost by ``exec``.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return False
    syscall.restype = ctypes.c_long
    number, request, feature = map(ctypes.c_long, (_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA))
    return int(syscall(number, request, feature)) == 0


def amx_support(flags: set[str] | None = None, ask: Callable[[], bool] = ask_kernel) -> AmxSupport:
    """The answer whether this process may use AMX for bfloat16; asks the kernel if the processor has it.

    Args:
        flags: CPU flags in Linux's spelling; None: of this machine.
        ask: the request to the kernel.

    >>> amx_support({"avx2", "avx512_bf16"}).level
    'absent'
    >>> amx_support({"amx_bf16", "amx_tile"}, ask=lambda: False).level
    'refused'
    """
    if not {"amx_bf16", "amx_tile"} <= (processor()[0] if flags is None else flags):
        return AmxSupport("absent", "this CPU has no AMX (amx_bf16, amx_tile)")
    if not ask():
        message = "this CPU has AMX, but the kernel does not give it to processes (Linux before 5.16, or a sandbox)"
        return AmxSupport("refused", message)
    return AmxSupport("granted", "this CPU has AMX, and the kernel gives it to processes")


def prepare_amx(
    environ: MutableMapping[str, str] | None = None, support: Callable[[], AmxSupport] = amx_support
) -> None:
    """Before mxnet is loaded: request AMX if the environment wants it, and limit oneDNN to AVX-512 if refused.

    Without such a variable nothing happens. After a refusal the process is slower instead of ended by SIGILL.
    """
    mapping = os.environ if environ is None else environ
    wishes = [name for name in _VARIABLES if mapping.get(name, "").upper() in _WITH_AMX]
    if wishes and (answer := support()).level == "refused":
        mapping.update(dict.fromkeys(wishes, _WITHOUT_AMX))
        logger.warning("%s: oneDNN goes without it", answer.message)


def processor() -> tuple[set[str], str]:
    """This processor's flags and vendor in Linux's spelling, or empty ones."""
    text = Cpu().read("/proc/cpuinfo") or ""
    flags, vendor = (re.search(rf"^{name}\s*:\s*(.*)$", text, re.M) for name in ("flags", "vendor_id"))
    return set(flags[1].split()) if flags else set(), vendor[1].strip() if vendor else ""


def hidden_amx(flags: Collection[str], maker: str) -> bool:
    """Whether bfloat16 is Intel's avx512_bf16 without AMX, with no more products in a cycle than float32."""
    return "Intel" in maker and "avx512_bf16" in flags and "amx_bf16" not in flags
