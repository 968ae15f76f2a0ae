"""The start of ``gluontune run``: this process becomes the script's."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn, Optional

from gluontune.capture import script
from gluontune.capture.names import ENVIRONMENT
from gluontune.core.errors import GluontuneError


def start(
    words: Sequence[str], out: Optional[str] = None, leave: Sequence[str] = (), dtype: str = "float32",
    backend: str = "mxnet",
) -> NoReturn:  # fmt: skip
    """Put the program in this process's place, with the tuned environment and our changes.

    Args:
        words: ``SCRIPT ARGS…`` or ``-m MODULE ARGS…``. out: path of the document of what was gained, or None.
        leave: names of changes that are left out.
        dtype: ``bfloat16`` has MXNet's operators compute in it, as the user has asked.
        backend: ``torch`` has PyTorch compute, once a step is proven.

    Raises:
        UsageError: there is no such script. GluontuneError: Python cannot be started.
    """
    began = time.time()
    program = script.Program.of(words)
    program.check()
    environment = script.environment("as-installed" if ENVIRONMENT in leave else "tuned")
    settings = sorted(name for name in script.SETTINGS if name in environment and name not in os.environ)
    options = {"began": began, "settings": settings, "out": out and os.path.abspath(out), "leave": list(leave)}
    options.update(dtype=dtype, backend=backend)
    command = script.command(program, "gluontune.capture.running", json.dumps(options))
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        os.execve(command[0], command, environment)
    except OSError as error:
        raise GluontuneError(f"{command[0]}: cannot be started: {error}") from error
