"""Resources of an epoch (memory, shared memory, open files), the data's folder, and notebooks' tools and kernel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gluontune.core.interpreter import MARKER
from gluontune.runtime.doctor._base import Options, Verdict, check
from gluontune.runtime.launch import kernel_env, kernel_folders, read_kernel
from gluontune.runtime.system import System

FLOAT32 = 4


@check("shared-memory", "/dev/shm against batch x prefetch")
def shared_memory(system: System, options: Options) -> Verdict:
    space = system.disk(system.root / "dev/shm")
    workers = options.num_workers if options.num_workers is not None else system.usable_cores()
    prefetch = options.prefetch if options.prefetch is not None else 2 * workers
    batch = options.batch_size * 3 * options.image_size**2 * FLOAT32
    need = (batch * (prefetch + workers)) >> 20
    what = (
        f"{prefetch} batches ahead and {workers} being made, of {options.batch_size} float32 images "
        f"of {options.image_size} pixels: {need} MiB"
    )
    if space is None:
        fix = "mount a tmpfs on /dev/shm, or use gluontune's threaded loader"
        return Verdict("warning", "there is no /dev/shm: Gluon's worker processes cannot work", what, fix)
    evidence = f"/dev/shm: {space.free_mib} of {space.total_mib} MiB free; {what}"
    if need > space.free_mib:
        fix = "docker --shm-size=8g (Kubernetes: an emptyDir with medium Memory), fewer workers, a smaller "
        fix += "prefetch, or gluontune's threaded loader, which needs none"
        message = "Gluon's worker processes hand batches over in /dev/shm, and these do not fit (bus error)"
        return Verdict("error", message, evidence, fix)
    if need > space.free_mib // 2:
        fix = "docker --shm-size=8g, or a smaller prefetch"
        return Verdict("warning", "/dev/shm is large enough, but only just", evidence, fix)
    return Verdict("ok", "/dev/shm holds the batches that worker processes hand over", evidence)


@check("open-files", "limit of open files")
def open_files(system: System, options: Options) -> Verdict:
    limits = system.open_files()
    if limits is None:
        return Verdict("ok", "this system has no such limit", "N/A")
    soft, hard = limits
    evidence = f"soft {soft if soft >= 0 else 'unlimited'}, hard {hard if hard >= 0 else 'unlimited'}"
    workers = options.num_workers if options.num_workers is not None else system.usable_cores()
    need = 256 + 64 * workers  # pipes, shared batches and the data's files of each worker process
    if 0 <= soft < need:
        target = need if hard < 0 or hard >= need else hard
        fix = f"ulimit -n {max(target, 4096) if hard < 0 or hard >= 4096 else target}"
        message = f"too few open files for {workers} worker processes ('Too many open files' in the middle of an epoch)"
        return Verdict("warning", message, evidence, fix)
    return Verdict("ok", "enough open files", evidence)


@check("memory", "memory that this process may use")
def memory(system: System, options: Options) -> Verdict:
    limit, total = system.memory_limit_mib(), system.memory_mib()
    if limit is None:
        return Verdict("info", "the memory is not known here", "N/A")
    evidence = f"{limit} MiB of {total if total is not None else 'N/A'} MiB"
    if limit < 2048:
        fix = "raise the container's limit (docker --memory), or use a smaller batch and fewer workers"
        return Verdict("warning", "less than 2 GiB: training will be killed early", evidence, fix)
    if total is not None and limit < total // 2:
        fix = "gluontune counts with it; raise the limit (docker --memory) for data kept in memory"
        return Verdict("info", "the cgroup allows a part of the machine's memory", evidence, fix)
    return Verdict("ok", "enough memory", evidence)


@check("thread-pool", "Gluon's DataLoader(thread_pool=True)")
def thread_pool(system: System, options: Options) -> Verdict:
    return Verdict(
        "info",
        "DataLoader(thread_pool=True) over a RecordIO data set returns wrong records without an error: its "
        "threads seek on one shared file handle",
        "measured with MXNet 1.9.1: 103-136 of 4,000 records wrong with 2 threads, 636-1,471 with 8",
        "use worker processes, or gluontune's threaded loader, which reads by position",
    )


_NETWORK = (
    "nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "glusterfs", "beegfs", "afs",
)  # fmt: skip
_SAMPLE = 128 << 20
_SECONDS = 3.0


def _existing(path: Path) -> Path:
    """``path``, or its nearest existing parent."""
    path = path.expanduser().absolute()
    return next(place for place in (path, *path.parents) if place.exists())


@check("data-folder", "the data's folder")
def data_folder(system: System, options: Options) -> Verdict:
    path = options.data_path.expanduser()
    if not path.exists():
        if options.data is not None:
            return Verdict("error", "the data's folder does not exist", str(path), "check the path given to --data")
        place = _existing(path)
        if not os.access(place, os.W_OK):
            fix = "set GLUONTUNE_DATA to a folder that you may write to"
            return Verdict("error", "the data's folder cannot be made", f"{place} is not writable", fix)
        return Verdict("ok", "the data's folder will be made when it is first needed", str(path))
    if not os.access(path, os.R_OK):
        return Verdict("error", "the data cannot be read", str(path), f"chmod -R u+rX {path}")
    folder = path if path.is_dir() else path.parent
    if not os.access(folder, os.W_OK):
        fix = "set GLUONTUNE_DATA to a folder that you may write to, and pack and download there"
        return Verdict("info", "the data's folder is read-only: training works, packing there does not", str(path), fix)
    return Verdict("ok", "the data's folder is there", str(path))


@check("disk-space", "free space for data sets and records")
def disk_space(system: System, options: Options) -> Verdict:
    place = _existing(options.data_path)
    space = system.disk(place)
    if space is None:
        return Verdict("info", "the free space cannot be asked", str(place))
    evidence = f"{space.free_mib} of {space.total_mib} MiB free at {place}"
    fix = "free some space, or set GLUONTUNE_DATA to another disk"
    if space.free_mib < 256:
        return Verdict("error", "no room for a data set (CIFAR-10 takes 400 MiB)", evidence, fix)
    if space.free_mib < 2048:
        return Verdict("warning", "little room: packing a large data set will fill the disk", evidence, fix)
    return Verdict("ok", "there is room", evidence)


@check("file-system", "the kind of file system below the data")
def file_system(system: System, options: Options) -> Verdict:
    place = str(_existing(options.data_path))
    kind = _kind(system, place)
    if kind is None:
        return Verdict("info", "the kind of file system is not known here", place)
    if kind in _NETWORK or kind.startswith("fuse."):
        message = "the data lie on a network file system: many small files are slow, and the first epoch is too"
        fix = "pack them into records (gluontune pack), or copy them to a local disk"
        return Verdict("warning", message, f"{kind} at {place}", fix)
    return Verdict("ok", "a local file system", f"{kind} at {place}")


def _kind(system: System, place: str) -> str | None:
    rows = [line.split() for line in (system.read("/proc/mounts") or "").splitlines()]
    mounts = [(fields[1].replace("\\040", " "), fields[2]) for fields in rows if len(fields) >= 3]
    mounts = [(mount, kind) for mount, kind in mounts if Path(place).is_relative_to(mount)]
    return max(reversed(mounts), key=lambda row: len(row[0]))[1] if mounts else None  # of two on one place the later


@check("read-speed", "sequential reading of the data's disk")
def read_speed(system: System, options: Options) -> Verdict:
    place = _existing(options.data_path)
    rate, what = system.read_mib_per_sec(place, _SAMPLE, _SECONDS)
    if rate is None:
        return Verdict("info", "the reading speed could not be measured", what)
    evidence = f"{rate:.0f} MiB/s ({what})"
    if rate < 50:
        fix = "copy the data to a faster disk, or keep them in memory (loader: resident)"
        message = "slow disk: 256-pixel JPEGs of 25 KiB come at under 2,000 images a second"
        return Verdict("warning", message, evidence, fix)
    return Verdict("ok", f"about {rate * 40:,.0f} JPEGs of 25 KiB a second can be read from it", evidence)


INSTALL = "gluontune doctor --install-kernel"


@check("notebook-tools", "JupyterLab, papermill and matplotlib")
def notebook_tools(system: System, options: Options) -> Verdict:
    wanted = ("jupyterlab", "papermill", "ipykernel", "matplotlib")
    missing = [name for name in wanted if name not in system.packages]
    if missing:
        fix = "pip install 'gluontune[notebooks]'"
        return Verdict("info", "the notebooks cannot be opened or run here", f"missing: {', '.join(missing)}", fix)
    evidence = ", ".join(f"{name} {system.packages[name]}" for name in wanted)
    return Verdict("ok", "notebooks can be opened and run", evidence)


@check("jupyter-kernel", "a Jupyter kernel with our settings")
def jupyter_kernel(system: System, options: Options) -> Verdict:
    if "ipykernel" not in system.packages:
        fix = "pip install 'gluontune[notebooks]'"
        return Verdict("info", "ipykernel is not installed: no notebooks here", "not installed", fix)
    kernel = read_kernel("gluontune", system)
    if kernel is None:
        looked = str(kernel_folders(system)[-3])
        message = "no Jupyter kernel with gluontune's settings: notebooks run untuned"
        return Verdict("warning", message, f"no kernel 'gluontune' in {looked} or beside it", INSTALL)
    folder, document = kernel
    argv = document.get("argv")
    program = str(argv[0]) if isinstance(argv, list) and argv else ""
    if not Path(program).exists() or Path(program).parent != Path(sys.executable).parent:
        message = "the Jupyter kernel 'gluontune' runs another Python than this one"
        return Verdict("warning", message, f"{folder}: {program or 'no program'}", INSTALL)
    have = document.get("env")
    have = have if isinstance(have, dict) else {}
    stale = [n for n, v in kernel_env(system).items() if n != MARKER and have.get(n) != v]
    if stale:
        evidence = ", ".join(f"{name}={have.get(name, 'not set')}" for name in stale)
        message = "the Jupyter kernel 'gluontune' has other settings than this machine needs"
        return Verdict("warning", message, evidence, INSTALL)
    return Verdict("ok", "the Jupyter kernel 'gluontune' has our settings", str(folder))
