"""A Python that has imported libraries already: a script starts as a fork of it, without the seconds that imports take.

For what scripts compute. How they start, and that they run without gluontune, is shown by processes of their own.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from gluontune.runtime import cuda
from gluontune.runtime.elf import preload
from gluontune.runtime.importing import mxnet_library
from gluontune.runtime.system import System


class Warm:
    """One process that waits, and forks for each script."""

    def __init__(self, *libraries: str):
        self._process = subprocess.Popen(
            [sys.executable, __file__, *libraries],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def run(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """``python WORDS…`` (a script or ``-m MODULE``, and arguments) in ``folder``, with what it has printed."""
        with tempfile.TemporaryDirectory() as place:
            said = [Path(place, name) for name in ("out", "err")]
            print(json.dumps([str(folder), words, [str(path) for path in said]]), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(words, code, *(path.read_text("utf-8") for path in said))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


@functools.cache
def warm(*libraries: str) -> Warm:
    """The test process's own, with ``libraries`` imported."""
    made = Warm(*libraries)
    atexit.register(made.close)
    return made


def _serve(*libraries: str) -> None:
    needs = System().mxnet_needs  # a plain import of mxnet wants them
    preload(needs)
    if cuda.preload(needs) == [cuda.DRIVER_LIBRARY]:
        cuda.load_stand_in(mxnet_library())
    for library in libraries:
        importlib.import_module(library)
    for line in sys.stdin:
        ask = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_script(*ask))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _script(folder: str, words: list[str], said: list[str]) -> int:
    for number, name in enumerate((os.devnull, *said)):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    os.chdir(folder)
    atexit._clear()
    sys.argv, sys.path[0] = words, folder
    code: object = 1
    try:
        if words[0] == "-m":
            sys.argv, sys.path[:1] = words[1:], []
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()  # what the script has registered
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 1


if __name__ == "__main__":
    _serve(*sys.argv[1:])
