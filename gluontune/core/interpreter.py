"""Fresh Pythons that import nothing from the folder in which the user works.

``python -m MODULE`` and ``python -c CODE`` look into the current folder first: a file of the user's called ``queue.py``
or ``psutil.py`` would run in place of Python's own. So every process of this package is started by :func:`python`,
which runs this file; ``-P`` does the same from Python 3.11 on, and reaches the helpers of ``multiprocessing``, too.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

SAFE = ("-P",) if sys.version_info >= (3, 11) else ()
_ROOT = os.path.abspath(__file__).rsplit(os.sep, 3)[0]


def python(*words: str) -> list[str]:
    """The command that does as ``python WORDS``: ``-m MODULE …`` or ``-c CODE …``, with the same gluontune as here.

    >>> python("-m", "gluontune")[-2:]
    ['-m', 'gluontune']
    """
    return [sys.executable, *SAFE, os.path.abspath(__file__), *words]


def leave_current_folder() -> None:
    """Take away what Python has put first for ``-m``, or for a file; gluontune's own folder comes last, if at all."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    if _ROOT not in sys.path:
        sys.path.append(_ROOT)


def main() -> None:
    """Do as Python does with the words that follow."""
    kind, what = sys.argv[1:3]
    sys.argv[:] = [kind, *sys.argv[3:]]
    if kind == "-c":
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
        return
    import runpy

    runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    leave_current_folder()
    # Whatever else is installed: a process and those that it starts are of one gluontune.
    spec = PathFinder.find_spec("gluontune", [_ROOT])
    assert spec is not None and spec.loader is not None
    sys.modules["gluontune"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["gluontune"])
    main()
