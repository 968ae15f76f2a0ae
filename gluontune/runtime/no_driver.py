"""A stand-in for ``libcuda.so.1`` where there is no NVIDIA driver, so that a GPU build of MXNet computes on the CPU.

``mxnet-cu112`` is linked against ten functions of the driver's library and cannot be imported without it: on login
nodes, build machines and laptops with a GPU machine's environment. The stand-in has these functions, and each returns
100, CUDA's code for "no device": MXNet then counts no GPUs. It is written here, byte by byte, so no compiler is needed,
and loaded from memory. Layout: the System V ABI's ELF-64 chapters.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

from gluontune.runtime import elf
from gluontune.runtime.cuda import DRIVER_LIBRARY

#: Exists where the driver's kernel module is loaded, whether or not this process finds its library.
KERNEL_MODULE = "/proc/driver/nvidia/version"
_NO_DEVICE = bytes.fromhex("b864000000c3")  # mov eax, 100; ret
_PAGE = 0x1000
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _RUN = 4, 2, 1
_HASH, _STRINGS, _SYMBOLS, _STRINGS_SIZE, _SYMBOL_SIZE, _SONAME = 4, 5, 6, 10, 11, 14
_GLOBAL_FUNCTION = 0x12


def stand_in(functions: Sequence[str], soname: str = DRIVER_LIBRARY) -> bytes:
    """A shared library of x86-64 whose functions return 100.

    Args:
        functions: their names.

    >>> stand_in(["cuDeviceGet"])[:4]
    b'\\x7fELF'
    """
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in (*functions, soname))
    names = [strings.index(b"\0" + name.encode() + b"\0") + 1 for name in (*functions, soname)]
    header = 64 + 4 * 56
    hashes = header  # one bucket, in which all symbols are chained
    chain = [0, *range(2, len(functions) + 1), 0]
    hash_table = struct.pack(f"<{3 + len(chain)}I", 1, len(chain), 1 if functions else 0, *chain)
    symbols = _aligned(hashes + len(hash_table))
    text = symbols + 24 * (len(functions) + 1) + len(strings)
    table = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", name, _GLOBAL_FUNCTION, 0, 1, text, len(_NO_DEVICE)) for name in names[:-1]
    )
    end = text + len(_NO_DEVICE)
    entries = {
        _HASH: hashes, _STRINGS: symbols + len(table), _SYMBOLS: symbols, _STRINGS_SIZE: len(strings),
        _SYMBOL_SIZE: 24, _SONAME: names[-1], 0: 0,
    }  # fmt: skip
    dynamic = b"".join(struct.pack("<qQ", tag, value) for tag, value in entries.items())
    at = -(-end // _PAGE) * _PAGE  # the loader writes there
    segments = [
        (_LOAD, _READ | _RUN, 0, end, _PAGE), (_LOAD, _READ | _WRITE, at, len(dynamic), _PAGE),
        (_DYNAMIC, _READ | _WRITE, at, len(dynamic), 8), (_STACK, _READ | _WRITE, 0, 0, 16),
    ]  # fmt: skip
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    library = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(segments), 64, 0, 0)
    for kind, flags, offset, size, alignment in segments:
        library += struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, alignment)
    library += hash_table
    library = library.ljust(symbols, b"\0") + table + strings + _NO_DEVICE
    return library.ljust(at, b"\0") + dynamic


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8


def possible(root: str | os.PathLike[str] = "/") -> bool:
    """Whether the stand-in serves here: on x86-64 Linux, where the driver's kernel module is not loaded."""
    return platform.machine() == "x86_64" and not (Path(root) / KERNEL_MODULE.lstrip("/")).exists()


def load(library: str | os.PathLike[str]) -> bool:
    """Load a stand-in with the driver's functions that ``library`` needs, for all that is loaded later.

    Returns:
        Whether it is loaded; never where a driver is (:func:`possible`).
    """
    if not possible():
        return False
    try:
        return elf.load(elf.in_memory(stand_in(elf.undefined(library, r"cu[A-Z]\w+")), DRIVER_LIBRARY))
    except (OSError, ValueError):
        return False
