"""The CUDA libraries of an ``mxnet-cu*`` wheel, which bundles none: the wheel of each, and loading those of pip.

NVIDIA's wheels install them under ``site-packages/nvidia/*/lib``, which the loader does not search: loaded once with
``RTLD_GLOBAL``, dependencies first, they are known by name when MXNet asks for them.
"""

from __future__ import annotations

import os
import platform
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gluontune.runtime import elf

DRIVER_LIBRARY = "libcuda.so.1"


@dataclass(frozen=True)
class CudaLibrary:
    """A library family: the start of its file name, its wheel (for CUDA 11), its folder in that wheel."""

    prefix: str
    wheel: str
    folder: str


# In the order of loading, dependencies first.
CUDA_LIBRARIES: tuple[CudaLibrary, ...] = (
    CudaLibrary("libcudart.so", "nvidia-cuda-runtime-cu11", "cuda_runtime"),
    CudaLibrary("libcublasLt.so", "nvidia-cublas-cu11", "cublas"),
    CudaLibrary("libcublas.so", "nvidia-cublas-cu11", "cublas"),
    CudaLibrary("libcufft.so", "nvidia-cufft-cu11", "cufft"),
    CudaLibrary("libcurand.so", "nvidia-curand-cu11", "curand"),
    CudaLibrary("libcusparse.so", "nvidia-cusparse-cu11", "cusparse"),
    CudaLibrary("libcusolver.so", "nvidia-cusolver-cu11", "cusolver"),
    CudaLibrary("libnvrtc.so", "nvidia-cuda-nvrtc-cu11", "cuda_nvrtc"),
    CudaLibrary("libnvToolsExt.so", "nvidia-nvtx-cu11", "nvtx"),
    CudaLibrary("libnccl.so", "nvidia-nccl-cu11", "nccl"),
    CudaLibrary("libcudnn.so", "nvidia-cudnn-cu11<9", "cudnn"),
)

# libcusolver needs libcublasLt and (from 11.4) libcusparse, though MXNet names neither.
_NEEDED_BY_OTHERS = {"libcublasLt.so": "libcublas.so", "libcusparse.so": "libcusolver.so"}


def family(name: str) -> CudaLibrary | None:
    """The family of a file name such as ``libcudnn.so.8``; None for any other library."""
    return next((library for library in CUDA_LIBRARIES if name.startswith(library.prefix + ".")), None)


def is_cuda(name: str) -> bool:
    """Whether ``name`` belongs to CUDA or its driver.

    >>> is_cuda("libcublas.so.11"), is_cuda("libcuda.so.1"), is_cuda("libgomp.so.1")
    (True, True, False)
    """
    return name == DRIVER_LIBRARY or family(name) is not None


def find_pip_library(name: str) -> Path | None:
    """The path of ``name`` (``libcudnn.so.8``) in one of NVIDIA's wheels, or None."""
    library = family(name)
    if library is None:
        return None
    places = (Path(folder or ".") / "nvidia" / library.folder / "lib" / name for folder in sys.path)
    return next((place for place in places if place.is_file()), None)


def _companion(prefix: str, of: str) -> str | None:
    """``libcublasLt.so.11`` beside a ``libcublas.so.11`` of pip; its version may differ."""
    place = find_pip_library(of)
    if place is None:
        return None
    home = next(library.folder for library in CUDA_LIBRARIES if library.prefix == prefix)
    folder = place.parent.parent.parent / home / "lib"
    return min((entry.name for entry in folder.glob(prefix + ".*")), default=None)


def load_library(name: str, fallback: Path | None) -> bool:
    """Load ``name``, or else the file ``fallback``, for all that is loaded later. Returns whether that succeeded."""
    return elf.load(name) or (fallback is not None and elf.load(fallback))


def preload(needed: Iterable[str], load: Callable[[str, Path | None], bool] = load_library) -> list[str]:
    """Load the CUDA libraries in ``needed`` so that a later load succeeds; return the missing ones.

    The loader is asked first: a system's CUDA, a container's or one in ``LD_LIBRARY_PATH`` stays in use. Only missing
    ones are loaded from pip's wheels.
    """
    wanted = {library.prefix: name for name in needed if (library := family(name))}
    for prefix, other in _NEEDED_BY_OTHERS.items():
        companion = _companion(prefix, wanted[other]) if other in wanted and prefix not in wanted else None
        if companion:
            wanted[prefix] = companion
    names = [wanted[library.prefix] for library in CUDA_LIBRARIES if library.prefix in wanted]
    missing = [name for name in names if not load(name, find_pip_library(name))]
    if DRIVER_LIBRARY in needed and not load(DRIVER_LIBRARY, None):
        missing.append(DRIVER_LIBRARY)
    return missing


# ``mxnet-cu112`` is linked against ten functions of the driver's library and cannot be imported without it: on login
# nodes, build machines and laptops with a GPU machine's environment. The stand-in for ``libcuda.so.1`` has these
# functions, and each returns 100, CUDA's code for "no device": MXNet then counts no GPUs. It is written byte by byte,
# so no compiler is needed, and loaded from memory. Layout: the System V ABI's ELF-64 chapters.

#: Exists where the driver's kernel module is loaded, whether or not this process finds its library.
KERNEL_MODULE = "/proc/driver/nvidia/version"
_NO_DEVICE = bytes.fromhex("b864000000c3")  # mov eax, 100; ret
_PAGE = 0x1000
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _RUN = 4, 2, 1
_HASH, _STRINGS, _SYMBOLS, _STRINGS_SIZE, _SYMBOL_SIZE, _SONAME = 4, 5, 6, 10, 11, 14
_GLOBAL_FUNCTION = 0x12


def stand_in(functions: Sequence[str], soname: str = DRIVER_LIBRARY) -> bytes:
    """A shared library of x86-64 whose ``functions`` return 100."""
    words = [name.encode() + b"\0" for name in (*functions, soname)]
    strings = b"\0" + b"".join(words)
    names = [strings.index(b"\0" + word) + 1 for word in words]
    hashes = 64 + 4 * 56  # after the headers: one bucket, in which all symbols are chained
    chain = [0, *range(2, len(functions) + 1), 0]
    hash_table = struct.pack(f"<{3 + len(chain)}I", 1, len(chain), 1 if functions else 0, *chain)
    symbols = -(-(hashes + len(hash_table)) // 8) * 8
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


def stand_in_possible(root: str | os.PathLike[str] = "/") -> bool:
    """Whether the stand-in serves here: on x86-64 Linux, where the driver's kernel module is not loaded."""
    return platform.machine() == "x86_64" and not (Path(root) / KERNEL_MODULE.lstrip("/")).exists()


def load_stand_in(library: str | os.PathLike[str]) -> bool:
    """Load a stand-in with the driver's functions that ``library`` needs; returns whether it is loaded."""
    if not stand_in_possible():
        return False
    try:
        return elf.load(elf.in_memory(stand_in(elf.undefined(library, r"cu[A-Z]\w+")), DRIVER_LIBRARY))
    except (OSError, ValueError):
        return False
