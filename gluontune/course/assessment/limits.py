"""Limits of a process, which it sets before it executes the learner's script; and namespaces around all processes.

``python -m gluontune.course.assessment.limits SPEC COMMAND…`` sets them and replaces itself by the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import json
import os
import platform
import resource
import site
import socket
import struct
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

import gluontune
from gluontune.core.processes import die_with_parent

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same number on every architecture
_NO_NEW_PRIVS = 38
_SECCOMP, _FILTER = 22, 2
_DENY, _ALLOW = 0x00050001, 0x7FFF0000  # EPERM
# By machine: its number for the filter; sched_setaffinity, sched_setattr and prlimit; sched_setscheduler and
# sched_setparam, which ZeroMQ calls for its own threads; setpriority and ioprio_set; add_key, request_key and keyctl:
# the kernel keeps a user's keys when the script is gone.
_CALLS = {
    "x86_64": (0xC000003E, (203, 314, 302), (144, 142), (141, 251), (248, 249, 250)),
    "aarch64": (0xC00000B7, (122, 274, 261), (119, 118), (140, 30), (217, 218, 219)),
}
_READ, _LIST = 0b1101, 0b1000  # execute, read files, list folders; the last alone
_DISK_MIB = 2048
_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_NETWORK = 0x00020000, 0x08000000, 0x10000000, 0x40000000
_SET_MOUNT, _ALL_BELOW, _READ_ONLY = 442, 0x8000, 1  # mount_setattr, from Linux 5.12 on
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_SET_FLAGS, _UP = 0x8914, 1
_DROP_BOUND = 24
_OVERRIDE = 1  # CAP_DAC_OVERRIDE: root reads packages that another user has installed
_VERSION = 0x20080522  # of the capability sets: 64 bits


def landlock_version() -> int:
    """Version of the kernel's Landlock, 0 if it has none."""
    try:
        return max(0, ctypes.CDLL(None, use_errno=True).syscall(_CREATE, None, ctypes.c_size_t(0), 1))
    except (OSError, AttributeError):
        return 0


def readable_places() -> list[str]:
    """Places that a Python program with mxnet reads: Python, its packages, libraries, the kernel's files."""
    known = {sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    known |= {"/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/sys", "/run", "/nix"}
    known.add(site.getusersitepackages())
    known |= set(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    return sorted(place for place in known if os.path.exists(place))


def devices() -> list[str]:
    """The devices that a training script needs: no disk, terminal or kernel memory."""
    plain = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "shm")]
    return [place for place in [*plain, *glob.glob("/dev/nvidia*")] if os.path.exists(place)]


def restrict_calls() -> bool:
    """Restrict this process and its children to change affinity, priority and limits of themselves only.

    Calls that name a process (sched_setaffinity, sched_setattr, prlimit, setpriority, ioprio_set) fail with EPERM
    unless they name none, which means the caller; sched_setscheduler and sched_setparam fail for an ancestor of this
    process. The kernel's keyrings, which would outlive the script, are closed. Returns whether the kernel supports it.
    Source: https://docs.kernel.org/userspace-api/seccomp_filter.html.
    """
    if (known := _CALLS.get(platform.machine())) is None:
        return False
    machine, by_process, by_thread, by_kind, keyrings = known
    ancestors = [process.pid for process in psutil.Process().parents()][:64]
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, machine), (answer, 0, 0, _DENY), (load, 0, 0, 0)]
    if machine == _CALLS["x86_64"][0]:
        program += [(at_least, 0, 1, 0x40000000), (answer, 0, 0, _DENY)]  # x32's numbers of the same calls
    for number in keyrings:
        program += [(equal, 0, 1, number), (answer, 0, 0, _DENY)]
    for number in by_process:
        program += [(equal, 0, 4, number), (load, 0, 0, 16), (equal, 1, 0, 0), (answer, 0, 0, _DENY)]
        program += [(answer, 0, 0, _ALLOW)]
    for number in by_thread:
        count = len(ancestors)
        program += [(equal, 0, count + 3, number), (load, 0, 0, 16)]
        program += [(equal, count - k, 0, pid) for k, pid in enumerate(ancestors)]
        program += [(answer, 0, 0, _ALLOW), (answer, 0, 0, _DENY)]
    for number, kind in zip(by_kind, (0, 1)):  # PRIO_PROCESS, IOPRIO_WHO_PROCESS
        program += [(equal, 0, 6, number), (load, 0, 0, 16), (equal, 0, 3, kind)]
        program += [(load, 0, 0, 24), (equal, 0, 1, 0), (answer, 0, 0, _ALLOW), (answer, 0, 0, _DENY)]
    program += [(answer, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and libc.prctl(_SECCOMP, _FILTER, filters, 0, 0) == 0


def restrict_files(read: Iterable[str], write: Iterable[str]) -> bool:
    """Restrict this process and its children to these places, for good. Returns whether the kernel supports it.

    By Linux's Landlock (from 5.13 on), which needs no privilege. They inspect no process outside either and, from 6.12
    on, signal none. Source: https://docs.kernel.org/userspace-api/landlock.html.
    """
    if not (version := landlock_version()):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    handled = (1 << (13 + (version >= 2) + (version >= 3))) - 1  # each version added a right over files
    scoped = 0b11 if version >= 6 else 0  # abstract sockets and signals of outsiders
    size = 24 if version >= 6 else 8
    attributes = struct.pack("QQQ", handled, 0, scoped)[:size]
    ruleset = libc.syscall(_CREATE, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        package = str(Path(gluontune.__file__).resolve().parent)
        beside = os.path.dirname(package)  # Python lists the folder in which it looks for a package
        for places, rights in (([*read, package], _READ), (write, handled), ([beside], _LIST)):
            for place in places:
                with contextlib.suppress(OSError):  # a missing place needs no rule
                    handle = os.open(place, os.O_PATH | os.O_CLOEXEC)
                    try:
                        files_only = rights if os.path.isdir(place) else rights & 0b111
                        rule = struct.pack("=Qi", files_only, handle)
                        libc.syscall(_ADD, ruleset, 1, rule, 0)
                    finally:
                        os.close(handle)
        return libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and libc.syscall(_RESTRICT, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def seclude(place: str) -> bool:
    """Move this single-threaded process into new namespaces, where only this folder can be changed.

    Landlock does not restrict addresses: a script could have its net trained elsewhere, or ask a service of the user
    (systemd, tmux, docker) to start a process outside of the grader's reach. A namespace has only a loopback device,
    sockets in files are covered, and ``/dev/shm`` is empty and ends with its last process. Root may make namespaces;
    others need a user namespace, which some systems forbid. Returns whether the kernel permits it; if not, nothing has
    changed. Source: https://man7.org/linux/man-pages/man7/namespaces.7.html.
    """
    if not hasattr(ctypes.CDLL(None), "unshare"):
        return False
    sockets = _sockets_in_files()
    child = os.fork()  # tries it, because half a namespace would be worse than none
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            _move(sockets, place)
            code = 0
        os._exit(code)
    if os.waitpid(child, 0)[1] != 0:
        return False
    _move(sockets, place)
    return True


def _move(sockets: list[bytes], place: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = _NEW_MOUNTS | _NEW_IPC | _NEW_NETWORK
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(wanted) != 0:
        _call(libc.unshare(wanted | _NEW_USER))
        for name, text in (
            ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"),
        ):  # fmt: skip
            with open(f"/proc/self/{name}", "w") as stream:
                stream.write(text)
    _call(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None))
    for each in sockets:
        libc.mount(b"/dev/null", each, None, _BIND, None)  # some are gone, others not accessible
    _call(libc.mount(os.fsencode(place), os.fsencode(place), None, _BIND, None))
    for where, flags, on, off in ((b"/", _ALL_BELOW, _READ_ONLY, 0), (os.fsencode(place), 0, 0, _READ_ONLY)):
        libc.syscall(_SET_MOUNT, -100, where, flags, struct.pack("QQQQ", on, off, 0, 0), ctypes.c_size_t(32))
    if os.path.isdir("/dev/shm"):
        _call(libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, b"mode=1777"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        fcntl.ioctl(line, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))


def _call(answer: int) -> None:
    if answer != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _sockets_in_files() -> list[bytes]:
    """Paths of listening sockets in files."""
    with contextlib.suppress(OSError), open("/proc/net/unix", "rb") as stream:
        fields = [line.split(None, 7) for line in stream.read().splitlines()[1:]]
        return sorted({each[7] for each in fields if len(each) == 8 and each[7].startswith(b"/")})
    return []


def drop_capabilities() -> bool:
    """Drop root's rights over clock, priority, memory and kernel, for this process and its children.

    Returns whether only the right to access files of other users is left (which Landlock restricts).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(64):
        if number != _OVERRIDE:
            libc.prctl(_DROP_BOUND, number, 0, 0, 0)
    header = ctypes.create_string_buffer(struct.pack("Ii", _VERSION, 0))
    held = ctypes.create_string_buffer(24)
    if libc.capget(header, held) != 0:
        return False
    kept = struct.unpack("6I", held.raw)[1] & 1 << _OVERRIDE
    return bool(libc.capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0)) == 0)


def _limit(kind: int, value: int) -> None:
    """Lower a limit, at most to the allowed value."""
    _, hard = resource.getrlimit(kind)
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (lowest, lowest))


def main() -> None:
    """Set the limits of ``argv[1]`` (JSON), then become the command that follows."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    die_with_parent(spec["parent"])
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, _DISK_MIB << 20)
    if spec.get("memory_mib"):  # a backstop: the supervisor watches the memory in use
        _limit(resource.RLIMIT_DATA, (2 * spec["memory_mib"] + 2048) << 20)
    if spec.get("cpus") and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, spec["cpus"])
    restrict_files([*readable_places(), *spec["read"]], spec["write"])
    restrict_calls()
    drop_capabilities()
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
