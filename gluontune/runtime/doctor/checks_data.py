"""The data's folder: there, writable, with room, and how fast it reads."""

from __future__ import annotations

import os
from pathlib import Path

from gluontune.runtime.doctor._base import Options, Verdict, check
from gluontune.runtime.system import System

__all__: list[str] = []

_NETWORK = (
    "nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "glusterfs", "beegfs", "afs",
)  # fmt: skip
_SAMPLE = 128 << 20
_SECONDS = 3.0


def _existing(path: Path) -> Path:
    """``path``, or the nearest folder above it that exists."""
    path = path.expanduser().absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


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
        return Verdict(
            "warning",
            "the data lie on a network file system: many small files are slow, and the first epoch is too",
            f"{kind} at {place}",
            "pack them into records (gluontune pack), or copy them to a local disk",
        )
    return Verdict("ok", "a local file system", f"{kind} at {place}")


def _kind(system: System, place: str) -> str | None:
    best, kind = "", None
    for line in (system.read("/proc/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        mount = fields[1].replace("\\040", " ")
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind


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
