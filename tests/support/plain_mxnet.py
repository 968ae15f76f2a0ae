"""Python alone, without gluontune, imports mxnet also where the system lacks what MXNet's wheel does not bring."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from gluontune.runtime.elf import find_in_wheels

_FOLDERS = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/local/lib")


@functools.cache
def python_alone() -> dict[str, str]:
    """Variables for such a Python; none where the system has the libraries."""
    wanted = ("libgomp.so.1", "libquadmath.so.0")
    missing = [name for name in wanted if not any(Path(folder, name).exists() for folder in _FOLDERS)]
    if not missing:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="plain-mxnet-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in missing:
        source = find_in_wheels(name)
        assert source is not None, f"no wheel has {name}"
        (folder / name).symlink_to(source)
    return {"LD_LIBRARY_PATH": str(folder)}
