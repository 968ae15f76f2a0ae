"""Namespaces of Linux's own for the supervisor and all that it starts: no network, no socket, no memory of outsiders.

Landlock keeps files and processes out of a script's reach, but not addresses, so a script could have its net trained
elsewhere, or ask a service of the user's (systemd, tmux, docker) to start what nobody here would find. In namespaces
there are a loopback device and nothing else, the sockets that lie in files are covered, and ``/dev/shm`` is empty and
goes with its last process. Root may make them; others by a user namespace, which some systems forbid.
Source: https://man7.org/linux/man-pages/man7/namespaces.7.html.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct

__all__ = ["drop_capabilities", "seclude"]

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_NETWORK = 0x00020000, 0x08000000, 0x10000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_SET_FLAGS, _UP = 0x8914, 1
_DROP_BOUND = 24
_OVERRIDE = 1  # CAP_DAC_OVERRIDE: root reads packages that another user has installed
_VERSION = 0x20080522  # of the capability sets: 64 bits


def seclude() -> bool:
    """Move this process, which has one thread, into namespaces of its own.

    Returns:
        Whether the kernel let it; else nothing has changed.

    Raises:
        OSError: it let a forked process, but not this one.
    """
    if not hasattr(ctypes.CDLL(None), "unshare"):
        return False
    sockets = _sockets_in_files()
    child = os.fork()  # tries it: half a namespace would be worse than none
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            _move(sockets)
            code = 0
        os._exit(code)
    if os.waitpid(child, 0)[1] != 0:
        return False
    _move(sockets)
    return True


def _move(sockets: list[bytes]) -> None:
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
    for place in sockets:
        libc.mount(b"/dev/null", place, None, _BIND, None)  # some have gone, and others are nobody's to reach
    if os.path.isdir("/dev/shm"):
        _call(libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, b"mode=1777"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        fcntl.ioctl(line, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))


def _call(answer: int) -> None:
    if answer != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _sockets_in_files() -> list[bytes]:
    """Where a file is a socket on which somebody listens."""
    with contextlib.suppress(OSError), open("/proc/net/unix", "rb") as stream:
        words = [line.split(None, 7) for line in stream.read().splitlines()[1:]]
        return sorted({each[7] for each in words if len(each) == 8 and each[7].startswith(b"/")})
    return []


def drop_capabilities() -> bool:
    """From now on, this process and its children have root's rights over no clock, priority, memory or kernel.

    Returns:
        Whether none is left but the right to read and write what others own (which Landlock narrows).
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
