"""Settings that a training process needs in its environment before mxnet is imported.

Each row has its effect and reason. The preset holds only what measurably helps MXNet 1.9.1; measured on two cores
without gain, or at a cost: ``OMP_WAIT_POLICY=active``, ``MXNET_CPU_WORKER_NTHREADS``,
``MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN``, ``MALLOC_ARENA_MAX``, huge pages (``GLIBC_TUNABLES=glibc.malloc.hugetlb``).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import write_json
from gluontune.core.interpreter import MARKER, without_current_folder
from gluontune.core.reading import parse_json, read_text
from gluontune.recipe.rules import CHOICES
from gluontune.runtime import cuda
from gluontune.runtime.cpu import show_cpu_list
from gluontune.runtime.system import System

ALLOCATORS = ("auto", "glibc", "tcmalloc", "jemalloc", "none")

_LIBRARIES = {
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc.so"),
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so.1"),
}
_PACKAGES = {"tcmalloc": "libtcmalloc-minimal4", "jemalloc": "libjemalloc2"}

_GLIBC = (
    ("MALLOC_TRIM_THRESHOLD_", "100000000000",
     "memory that is freed stays with the process: the next step takes it again without page faults"),
    ("MALLOC_MMAP_MAX_", "0", "large buffers come from the heap instead of a fresh mapping each time"),
    ("MALLOC_TOP_PAD_", "268435456", "the heap grows by 256 MiB at a time, so that it seldom has to"),
)  # fmt: skip


class Setting(NamedTuple):
    """One variable of the environment and its reason."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class LaunchSettings:
    """The preset for one training process (or each of several on this machine).

    Args:
        rows: the variables, with the reason for each.
        cpus: the CPUs of each local rank; a single process is not bound.
    """

    rows: tuple[Setting, ...]
    cpus: tuple[tuple[int, ...], ...] = ()

    @property
    def env(self) -> dict[str, str]:
        """The variables by name."""
        return {row.name: row.value for row in self.rows}

    @property
    def cpu_lists(self) -> tuple[str, ...]:
        """:attr:`cpus` as ``taskset -c`` takes them."""
        return tuple(show_cpu_list(cpus) for cpus in self.cpus)


def launch_settings(
    processes: int = 1, *, cores: int | None = None, allocator: str = "auto", system: System | None = None
) -> LaunchSettings:
    """The settings for ``processes`` simultaneous training processes on this machine.

    Args:
        processes: processes that share this machine.
        cores: cores for all of them together; default: the physical cores that affinity and cgroup allow.
        allocator: ``auto`` and ``glibc`` tune glibc's malloc (``auto`` only without a preloaded allocator),
            ``tcmalloc`` and ``jemalloc`` preload that library, ``none`` changes nothing.
        system: the machine; default this one.

    Raises:
        UsageError: an unknown allocator, or a number below 1.
        GluontuneError: the allocator's library is not installed.

    >>> launch_settings(2, cores=8).env["OMP_NUM_THREADS"]
    '4'
    >>> launch_settings(allocator="none", cores=8).env
    {'OMP_NUM_THREADS': '8', 'GOMP_SPINCOUNT': '10000'}
    """
    system = system or System()
    if processes < 1:
        raise UsageError(f"processes={processes}: give at least 1")
    if cores is not None and cores < 1:
        raise UsageError(f"cores={cores}: give at least 1")
    if allocator not in ALLOCATORS:
        raise UsageError(f"allocator={allocator!r}: choose one of {', '.join(ALLOCATORS)}")
    total = cores or system.compute_cores()
    threads = max(1, total // processes)
    shared = f" for each of {processes} processes" if processes > 1 else ""
    why = f"one thread on each of {total} usable cores{shared}; MXNet itself takes half the cores"
    rows = [Setting("OMP_NUM_THREADS", str(threads), why), *_waiting_rows(system)]
    rows += _allocator_rows(allocator, system)
    ranks = range(processes) if processes > 1 else ()
    return LaunchSettings(tuple(rows), tuple(cpus_for_rank(r, processes, system=system) for r in ranks))


def _waiting_rows(system: System) -> list[Setting]:
    """The time that libgomp's threads spin for each other at the end of an operator.

    Its default, 300,000 turns (milliseconds), is longer than another program's turn on the core: as soon as anything
    else runs here, even a loader's thread, the threads waste their time spinning. Two cores, ResNet-20, batch 64,
    imperative, beside other programs: 11-22 images a second (n=4), with 10,000 turns 36-75 (n=5). Undisturbed (n=2):
    503-552 and 484-544, hybridized 608-609 and 631-645; with ``OMP_WAIT_POLICY=passive`` 493-499 and 547-588.
    """
    if "OMP_WAIT_POLICY" in system.environ:  # the user's choice, which GOMP_SPINCOUNT would override
        return []
    why = "a thread waits awake for 0.1 ms only: it does not take cores from loaders and other programs"
    return [Setting("GOMP_SPINCOUNT", "10000", why)]


def _allocator_rows(allocator: str, system: System) -> list[Setting]:
    preloaded = system.environ.get("LD_PRELOAD", "")
    if allocator == "auto":
        other = any(word in preloaded for word in ("malloc", "mimalloc"))
        allocator = "none" if other or system.libc[0] != "glibc" else "glibc"
    if allocator == "none":
        return []
    if allocator == "glibc":
        return [Setting(*row) for row in _GLIBC]
    library = system.find_library(*_LIBRARIES[allocator])
    if library is None:
        raise GluontuneError(
            f"allocator {allocator!r}: its library ({_LIBRARIES[allocator][0]}) is not installed: "
            f"apt install {_PACKAGES[allocator]}, or use allocator='glibc'"
        )
    value = ":".join(part for part in (library, preloaded) if part)
    return [Setting("LD_PRELOAD", value, f"{allocator} keeps freed memory for the next step")]


def cpus_for_rank(rank: int, processes: int, *, system: System | None = None) -> tuple[int, ...]:
    """The CPUs for one of ``processes`` local ranks: whole cores, neighbours together, none twice.

    With more ranks than cores, ranks share. Hyper-threads of one core always go to the same rank.

    Args:
        rank: local rank, 0 … ``processes`` - 1.
        system: for tests; None: this machine.

    Raises:
        UsageError: a rank outside that range.

    >>> len(cpus_for_rank(0, 1)) >= 1
    True
    """
    if processes < 1 or not 0 <= rank < processes:
        raise UsageError(f"rank={rank}, processes={processes}: ranks go from 0 to processes - 1")
    system = system or System()
    allowed = system.affinity()
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in allowed:
        package = system.read(f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id") or "0"
        cores.setdefault((int(package), min(system.siblings(cpu))), []).append(cpu)
    groups = [cores[key] for key in sorted(cores)]
    if processes > len(groups):
        return tuple(groups[rank % len(groups)])
    start, stop = rank * len(groups) // processes, (rank + 1) * len(groups) // processes
    return tuple(sorted(cpu for group in groups[start:stop] for cpu in group))


def bind_to_cpus(cpus: tuple[int, ...]) -> None:
    """Bind this process to ``cpus``, before mxnet starts its threads, if the system can.

    Args:
        cpus: numbers of logical processors, of :func:`cpus_for_rank`; none: no change.

    >>> bind_to_cpus(cpus_for_rank(0, 1))  # one process: all its CPUs
    """
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def child_env(
    runtime: str,
    env: Mapping[str, str] | None = None,
    *,
    processes: int = 1,
    cores: int | None = None,
    environ: Mapping[str, str] | None = None,
    system: System | None = None,
) -> dict[str, str]:
    """The whole environment of a training process.

    Args:
        runtime: ``as-installed``: the caller's environment without gluontune's changes (also in its Jupyter kernel);
            ``tuned``: with :func:`launch_settings`.
        env: variables that override both.
        processes: processes that share this machine, for ``tuned``. cores: as of :func:`launch_settings`.
        environ: the caller's environment; default ``os.environ``.
        system: for tests; None: this machine.

    Raises:
        UsageError: another runtime.

    >>> child_env("as-installed", {"A": "1"}, environ={"PATH": "/bin"})
    {'PATH': '/bin', 'A': '1'}
    """
    if runtime not in CHOICES["runtime"]:
        raise UsageError(f"runtime={runtime!r}: choose one of {', '.join(CHOICES['runtime'])}")
    child = pristine(os.environ if environ is None else environ)
    if runtime == "tuned":
        system = system or System(environ=child)
        settings = launch_settings(processes, cores=cores, system=system).env
        added = [name for name in settings if name not in child]
        child.update(settings)
        child[MARKER] = ",".join(added)
    child.update(env or {})
    return child


def pristine(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without the variables that gluontune added to it, and without the current folder for libraries."""
    ours = {MARKER, *environ.get(MARKER, "").split(",")}
    return {name: value for name, value in without_current_folder(environ).items() if name not in ours}


def applied(child: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of ``child`` that the caller's environment lacks or sets otherwise.

    >>> applied({"OMP_NUM_THREADS": "2", "PATH": "/bin"}, environ={"PATH": "/bin"})
    {'OMP_NUM_THREADS': '2'}
    """
    base = pristine(os.environ if environ is None else environ)
    return {name: value for name, value in child.items() if name != MARKER and base.get(name) != value}


def kernel_env(system: System) -> dict[str, str]:
    """The variables of the kernel: the launch settings, and the folders of pip's CUDA libraries, with which a
    notebook's plain ``import mxnet`` loads them, too.
    """
    env = launch_settings(system=system).env
    names = [name for name in system.mxnet_needs if cuda.is_cuda(name)]
    folders = dict.fromkeys(str(place.parent) for name in names if (place := cuda.find_pip_library(name)))
    added = list(env)
    if folders:  # Jupyter substitutes the value of its environment
        env["LD_LIBRARY_PATH"] = ":".join([*folders, "${LD_LIBRARY_PATH}"])
    return {**env, MARKER: ",".join(added)}


def install_kernel(
    name: str = "gluontune",
    prefix: str | os.PathLike[str] | None = None,
    system: System | None = None,
    options: Sequence[str] = (),
) -> Path:
    """Register a Jupyter kernel that runs this Python with :func:`launch_settings`.

    Args:
        name: of the kernel; papermill's ``-k`` takes it.
        prefix: the parent of ``share/jupyter/kernels/NAME``; default this environment.
        system: for tests; None: this machine.
        options: of ipykernel's command line.

    Returns:
        The folder of the kernel.

    Raises:
        UsageError: a name that Jupyter does not allow.
        GluontuneError: ipykernel is not installed, or the folder cannot be written to.

    >>> import tempfile
    >>> folder = install_kernel("steady", prefix=tempfile.mkdtemp())
    >>> folder.name, (folder / "kernel.json").is_file()
    ('steady', True)
    """
    system = system or System()
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise UsageError(f"kernel name {name!r}: use letters, digits, '.', '_' and '-' only")
    if not system.module_exists("ipykernel"):
        raise GluontuneError("a Jupyter kernel needs ipykernel: pip install 'gluontune[notebooks]'")
    base = Path(prefix) if prefix is not None else system.prefix
    folder = base.absolute() / "share" / "jupyter" / "kernels" / name
    document = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", *options],
        "display_name": "Python 3 (gluontune)" if name in ("gluontune", "python3") else f"Python 3 ({name})",
        "language": "python",
        "env": kernel_env(system),
        "metadata": {"debugger": True},
    }
    write_json(folder / "kernel.json", document)
    return folder


def kernel_folders(system: System) -> list[Path]:
    """Jupyter's folders of kernels: ``JUPYTER_PATH``, the user's, this environment's, the system's."""
    environ: Mapping[str, str] = system.environ
    user = environ.get("JUPYTER_DATA_DIR")
    if not user and environ.get("HOME"):
        user = os.path.join(environ["HOME"], ".local", "share", "jupyter")
    bases = [p for p in environ.get("JUPYTER_PATH", "").split(os.pathsep) if p]
    bases += [user] if user else []
    bases += [str(system.prefix / "share" / "jupyter"), "/usr/local/share/jupyter", "/usr/share/jupyter"]
    return [Path(base) / "kernels" for base in bases]


def read_kernel(name: str, system: System) -> tuple[Path, dict[str, object]] | None:
    """The kernel specification called ``name`` and its folder, or None."""
    for folder in kernel_folders(system):
        try:
            document = parse_json(read_text(folder / name / "kernel.json"))
        except (OSError, ValueError):
            continue
        if isinstance(document, dict):
            return folder / name, document
    return None
