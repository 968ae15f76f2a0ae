"""Python alone, without gluontune, imports mxnet also where the system lacks what MXNet's wheel does not bring."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from gluontune.runtime import cuda, elf
from gluontune.runtime.system import System

_FOLDERS = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/local/lib")


@functools.cache
def python_alone() -> dict[str, str]:
    """Variables for such a Python; none where the system has the libraries.

    A GPU build of MXNet gets NVIDIA's wheels and, without a driver, a stand-in for its library.
    """
    wanted, system = ("libgomp.so.1", "libquadmath.so.0"), System()
    missing = [name for name in wanted if not any(Path(folder, name).exists() for folder in _FOLDERS)]
    found = [place for name in system.mxnet_needs if (place := cuda.find_pip_library(name))]
    if not missing and not found:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="plain-mxnet-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in missing:
        source = elf.find_in_wheels(name)
        assert source is not None, f"no wheel has {name}"
        (folder / name).symlink_to(source)
    if cuda.DRIVER_LIBRARY in system.mxnet_needs and cuda.stand_in_possible():
        functions = elf.undefined(system.mxnet_library, r"cu[A-Z]\w+")
        (folder / cuda.DRIVER_LIBRARY).write_bytes(cuda.stand_in(functions))
    return {"LD_LIBRARY_PATH": ":".join(dict.fromkeys(map(str, [folder, *(place.parent for place in found)])))}
