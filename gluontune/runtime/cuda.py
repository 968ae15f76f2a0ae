"""The CUDA libraries of an ``mxnet-cu*`` wheel: the wheel of each, and loading those of pip.

The MXNet wheels for CUDA bundle none of them. NVIDIA's ``nvidia-*-cu11`` wheels install them under
``site-packages/nvidia/*/lib``, which the loader does not search: loaded once with ``RTLD_GLOBAL``, dependencies first,
they are known by name when MXNet asks for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
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
    """The family of a file name such as ``libcudnn.so.8``; None for any other library.

    >>> family("libcudnn.so.8").wheel
    'nvidia-cudnn-cu11<9'
    """
    return next((library for library in CUDA_LIBRARIES if name.startswith(library.prefix + ".")), None)


def is_cuda(name: str) -> bool:
    """Whether ``name`` belongs to CUDA or its driver.

    >>> is_cuda("libcublas.so.11"), is_cuda("libcuda.so.1"), is_cuda("libgomp.so.1")
    (True, True, False)
    """
    return name == DRIVER_LIBRARY or family(name) is not None


def find_pip_library(name: str, path: Iterable[str] | None = None) -> Path | None:
    """The path of ``name`` (``libcudnn.so.8``) in one of NVIDIA's wheels, or None."""
    library = family(name)
    if library is None:
        return None
    for folder in sys.path if path is None else path:
        candidate = Path(folder or ".") / "nvidia" / library.folder / "lib" / name
        if candidate.is_file():
            return candidate
    return None


def _companion(prefix: str, of: str) -> str | None:
    """``libcublasLt.so.11`` beside a ``libcublas.so.11`` of pip; its version may differ."""
    place = find_pip_library(of)
    if place is None:
        return None
    home = next(library.folder for library in CUDA_LIBRARIES if library.prefix == prefix)
    folder = place.parent.parent.parent / home / "lib"
    names = sorted(entry.name for entry in folder.glob(prefix + ".*")) if folder.is_dir() else []
    return names[0] if names else None


def load_library(name: str, fallback: Path | None) -> bool:
    """Load ``name``, or else the file ``fallback``, for all that is loaded later. Returns whether that succeeded."""
    return elf.load(name) or (fallback is not None and elf.load(fallback))


def preload(needed: Iterable[str], load: Callable[[str, Path | None], bool] = load_library) -> list[str]:
    """Load the CUDA libraries in ``needed`` so that a later load succeeds; return the missing ones.

    The loader is asked first: a system's CUDA, a container's or one in ``LD_LIBRARY_PATH`` stays in use. Only missing
    ones are loaded from pip's wheels.

    Args:
        needed: file names, such as ``libcudart.so.11.0``; other libraries are ignored. load: loads one of them.
    """
    wanted = {library.prefix: name for name in needed if (library := family(name))}
    for prefix, other in _NEEDED_BY_OTHERS.items():
        companion = _companion(prefix, wanted[other]) if other in wanted and prefix not in wanted else None
        if companion:
            wanted[prefix] = companion
    missing = []
    for library in CUDA_LIBRARIES:
        name = wanted.get(library.prefix)
        if name and not load(name, find_pip_library(name)):
            missing.append(name)
    if DRIVER_LIBRARY in needed and not load(DRIVER_LIBRARY, None):
        missing.append(DRIVER_LIBRARY)
    return missing
