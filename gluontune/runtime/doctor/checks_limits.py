"""Memory, shared memory, open files: what runs out in the middle of an epoch; and a hazard to know."""

from __future__ import annotations

from gluontune.runtime.doctor._base import Options, Verdict, check
from gluontune.runtime.system import System

__all__: list[str] = []

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
