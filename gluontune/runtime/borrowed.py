"""Shared libraries that MXNet's wheel expects of the system, taken from other installed wheels where it has none.

``libmxnet.so`` needs ``libgomp.so.1`` and, by its Fortran library, ``libquadmath.so.0``: a minimal Debian has neither.
PyTorch's, SciPy's and numpy's wheels carry both, mostly under another name (auditwheel adds a hash to the file and to
its ``DT_SONAME``). The loader goes by ``DT_SONAME``, so such a file is loaded from a copy in memory that has the name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gluontune.runtime import elf

__all__ = ["SYSTEM_PACKAGES", "find_in_wheels", "preload"]

#: Start of the file name: Debian's package, and a wheel that carries it (empty: none is known).
SYSTEM_PACKAGES = {
    "libgomp.so": ("libgomp1", "scikit-learn"),
    "libquadmath.so": ("libquadmath0", "scipy"),
    "libstdc++.so": ("libstdc++6", ""),
    "libgcc_s.so": ("libgcc-s1", ""),
}


def find_in_wheels(name: str, path: Iterable[str] | None = None) -> Path | None:
    """Where an installed wheel has the library ``name`` (``libgomp.so.1``), under this name or with a hash; or None.

    Args:
        name: file name with its version, as MXNet asks for it.
        path: folders of packages; default ``sys.path``.
    """
    stem, _, version = name.partition(".so.")
    for folder in sys.path if path is None else path:
        for pattern in (f"torch/lib/{stem}*.so.{version}*", f"*.libs/{stem}*.so.{version}*"):
            for found in sorted(Path(folder or ".").glob(pattern)):
                if found.name[len(stem)] in ".-":
                    return found
    return None


def preload(needed: Iterable[str]) -> list[str]:
    """Load those of ``needed`` that the system lacks and a wheel has, so that a later load finds them by name.

    The loader is asked first: a system's own library stays in use.

    Returns:
        The files that were taken.
    """
    taken = []
    for name in needed:
        if not name.startswith(tuple(SYSTEM_PACKAGES)) or _loads(name):
            continue
        source = find_in_wheels(name)
        if source is not None:
            with contextlib.suppress(OSError, ValueError), _under_its_name(source, name) as place:
                if _loads(place):
                    taken.append(os.fspath(source))
    return taken


def _loads(target: str) -> bool:
    try:
        ctypes.CDLL(target, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _under_its_name(source: Path, name: str) -> Iterator[str]:
    """A path at which ``source`` can be loaded with ``DT_SONAME`` ``name``."""
    if elf.read_dynamic(source).soname == name:
        yield os.fspath(source)
        return
    memory = os.memfd_create(name)
    try:
        with open(memory, "wb", closefd=False) as stream:
            stream.write(elf.with_soname(source, name))
        yield f"/proc/self/fd/{memory}"
    finally:
        os.close(memory)
