"""The installed packages and their versions; nothing is imported."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Commands in place of our Makefile's targets, for installed wheels without a Makefile.
_WITHOUT_MAKE = {
    "horovod": "pip install 'setuptools<70' wheel cloudpickle psutil pyyaml packaging && HOROVOD_WITH_MXNET=1 "
    "HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 "
    "pip install --no-build-isolation horovod==0.28.1",
    "peers": "python -m venv .peers && .peers/bin/pip install torch 'numpy<2.3' simplejpeg lmdb opencv-python-headless",
}
_DIST_FOLDER = re.compile(r"^(?P<name>.+?)-(?P<version>[^-]+?)(-py\d[\d.]*)?\.(dist-info|egg-info)$")


def installed_packages(path: Iterable[str] | None = None) -> dict[str, str]:
    """Installed distributions, normalised name to version, as in ``importlib.metadata``.

    Only names of folders are read: 2 ms, against 100 for the metadata. The first folder with a name wins, as on import.
    """
    found: dict[str, str] = {}
    for folder in sys.path if path is None else path:
        try:
            names = sorted(entry.name for entry in os.scandir(folder or "."))
        except OSError:
            continue
        for name in names:
            match = _DIST_FOLDER.match(name)
            if match:
                found.setdefault(re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"])
    return found


def is_mxnet_distribution(name: str) -> bool:
    """Whether a distribution of this (normalised) name contains the package ``mxnet``.

    >>> is_mxnet_distribution("mxnet-cu112"), is_mxnet_distribution("mxnet-model-server")
    (True, False)
    """
    return re.fullmatch(r"mxnet|mxnet-(cu\d+|mkl|native)(mkl)?|nvidia-mxnet[\w-]*", name) is not None


def module_exists(name: str) -> bool:
    """Whether ``import name`` would find a module; nothing is imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def mxnet_wheels(installed: Mapping[str, str] | None = None) -> dict[str, str]:
    """The installed distributions with an ``mxnet`` package, those for CUDA first.

    More than one is a broken environment: they write the same files.

    >>> mxnet_wheels({"mxnet": "1.9.1", "mxnet-cu112": "1.9.1", "numpy": "1.23.5"})
    {'mxnet-cu112': '1.9.1', 'mxnet': '1.9.1'}
    """
    have = installed_packages() if installed is None else installed
    names = sorted((n for n in have if is_mxnet_distribution(n)), key=lambda n: ("cu" not in n, n))
    return {name: have[name] for name in names}


def to_make(target: str, makefile: Path | None = None) -> str:
    """The command for ``horovod`` or ``peers``: ``make TARGET`` in a source tree (of ``makefile``), else its steps.

    >>> to_make("peers", Path("/no/Makefile"))[:21]
    'python -m venv .peers'
    """
    place = Path(__file__).resolve().parents[2] / "Makefile" if makefile is None else makefile
    return f"make {target}" if place.is_file() else _WITHOUT_MAKE[target]
