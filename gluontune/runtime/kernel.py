"""A Jupyter kernel of this Python with gluontune's settings, so that a notebook runs like a tuned job."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import write_json
from gluontune.core.interpreter import MARKER
from gluontune.core.reading import parse_json, read_text
from gluontune.runtime import cuda
from gluontune.runtime.launch import launch_settings
from gluontune.runtime.system import System


def kernel_env(system: System | None = None) -> dict[str, str]:
    """The variables of the kernel: the launch settings, and the folders of pip's CUDA libraries, with which a
    notebook's plain ``import mxnet`` loads them, too.
    """
    system = system or System()
    env = launch_settings(system=system).env
    names = [name for name in system.mxnet_needs if cuda.is_cuda(name)]
    folders = dict.fromkeys(str(place.parent) for name in names if (place := cuda.find_pip_library(name)))
    added = list(env)
    if folders:  # Jupyter substitutes the value of its environment
        env["LD_LIBRARY_PATH"] = ":".join([*folders, "${LD_LIBRARY_PATH}"])
    return {**env, MARKER: ",".join(added)}


def install_kernel(
    name: str = "gluontune",
    prefix: str | os.PathLike[str] | None = None,
    system: System | None = None,
    options: Sequence[str] = (),
) -> Path:
    """Register a Jupyter kernel that runs this Python with :func:`launch_settings`.

    Args:
        name: of the kernel; papermill's ``-k`` takes it.
        prefix: the parent of ``share/jupyter/kernels/NAME``; default this environment.
        system: for tests; None: this machine.
        options: of ipykernel's command line.

    Returns:
        The folder of the kernel.

    Raises:
        UsageError: a name that Jupyter does not allow.
        GluontuneError: ipykernel is not installed, or the folder cannot be written to.

    >>> import tempfile
    >>> folder = install_kernel("steady", prefix=tempfile.mkdtemp())
    >>> folder.name, (folder / "kernel.json").is_file()
    ('steady', True)
    """
    system = system or System()
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise UsageError(f"kernel name {name!r}: use letters, digits, '.', '_' and '-' only")
    if not system.module_exists("ipykernel"):
        raise GluontuneError("a Jupyter kernel needs ipykernel: pip install 'gluontune[notebooks]'")
    base = Path(prefix) if prefix is not None else system.prefix
    folder = base.absolute() / "share" / "jupyter" / "kernels" / name
    document = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", *options],
        "display_name": "Python 3 (gluontune)" if name in ("gluontune", "python3") else f"Python 3 ({name})",
        "language": "python",
        "env": kernel_env(system),
        "metadata": {"debugger": True},
    }
    write_json(folder / "kernel.json", document)
    return folder


def kernel_folders(system: System) -> list[Path]:
    """Jupyter's folders of kernels: ``JUPYTER_PATH``, the user's, this environment's, the system's."""
    environ: Mapping[str, str] = system.environ
    user = environ.get("JUPYTER_DATA_DIR")
    if not user and environ.get("HOME"):
        user = os.path.join(environ["HOME"], ".local", "share", "jupyter")
    bases = [p for p in environ.get("JUPYTER_PATH", "").split(os.pathsep) if p]
    bases += [user] if user else []
    bases += [str(system.prefix / "share" / "jupyter"), "/usr/local/share/jupyter", "/usr/share/jupyter"]
    return [Path(base) / "kernels" for base in bases]


def read_kernel(name: str, system: System) -> tuple[Path, dict[str, object]] | None:
    """The kernel specification called ``name`` and its folder, or None."""
    for folder in kernel_folders(system):
        try:
            document = parse_json(read_text(folder / name / "kernel.json"))
        except (OSError, ValueError):
            continue
        if isinstance(document, dict):
            return folder / name, document
    return None
