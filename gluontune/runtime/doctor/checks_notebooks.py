"""Notebooks: the tools that open and run them, and the kernel with our settings."""

from __future__ import annotations

import sys
from pathlib import Path

from gluontune.runtime.doctor._base import Options, Verdict, check
from gluontune.runtime.kernel import kernel_env, kernel_folders, read_kernel
from gluontune.runtime.launch import MARKER
from gluontune.runtime.system import System

__all__: list[str] = []

INSTALL = "gluontune doctor --install-kernel"


@check("notebook-tools", "JupyterLab, papermill and matplotlib")
def notebook_tools(system: System, options: Options) -> Verdict:
    wanted = ("jupyterlab", "papermill", "ipykernel", "matplotlib")
    missing = [name for name in wanted if name not in system.packages]
    if missing:
        fix = "pip install 'gluontune[notebooks]'"
        return Verdict("info", "the notebooks cannot be opened or run here", f"missing: {', '.join(missing)}", fix)
    evidence = ", ".join(f"{name} {system.packages[name]}" for name in wanted)
    return Verdict("ok", "notebooks can be opened and run", evidence)


@check("jupyter-kernel", "a Jupyter kernel with our settings")
def jupyter_kernel(system: System, options: Options) -> Verdict:
    if "ipykernel" not in system.packages:
        fix = "pip install 'gluontune[notebooks]'"
        return Verdict("info", "ipykernel is not installed: no notebooks here", "not installed", fix)
    kernel = read_kernel("gluontune", system)
    if kernel is None:
        looked = str(kernel_folders(system)[-3])
        message = "no Jupyter kernel with gluontune's settings: notebooks run untuned"
        return Verdict("warning", message, f"no kernel 'gluontune' in {looked} or beside it", INSTALL)
    folder, document = kernel
    argv = document.get("argv")
    program = str(argv[0]) if isinstance(argv, list) and argv else ""
    if not Path(program).exists() or Path(program).parent != Path(sys.executable).parent:
        message = "the Jupyter kernel 'gluontune' runs another Python than this one"
        return Verdict("warning", message, f"{folder}: {program or 'no program'}", INSTALL)
    have = document.get("env")
    have = have if isinstance(have, dict) else {}
    stale = [n for n, v in kernel_env(system).items() if n != MARKER and have.get(n) != v]
    if stale:
        evidence = ", ".join(f"{name}={have.get(name, 'not set')}" for name in stale)
        message = "the Jupyter kernel 'gluontune' has other settings than this machine needs"
        return Verdict("warning", message, evidence, INSTALL)
    return Verdict("ok", "the Jupyter kernel 'gluontune' has our settings", str(folder))
