"""Python processes that import nothing from the user's current folder, which Python (``-m``, ``-c``) searches first.

A user's ``queue.py`` would run in place of Python's. ``-P`` does the same from Python 3.11 on, and also for the helpers
of ``multiprocessing``. The loader searches the current folder, too, where ``LD_LIBRARY_PATH`` has an empty entry, and
``import cv2`` leaves one at its end: a ``libgomp.so.1`` beside a script would run in every process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

#: Variable with the names of those that gluontune has set for a tuned process; "as-installed" removes them.
MARKER = "GLUONTUNE_APPLIED"
SAFE = ("-P",) if sys.version_info >= (3, 11) else ()
_ROOT = os.path.abspath(__file__).rsplit(os.sep, 3)[0]


def python(*words: str) -> list[str]:
    """The command for ``python WORDS`` (``-m MODULE …`` or ``-c CODE …``) with this gluontune."""
    os.environ.update(without_current_folder(os.environ))
    return [sys.executable, *SAFE, os.path.abspath(__file__), *words]


def without_current_folder(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of ``environ`` whose ``LD_LIBRARY_PATH``, if it is set, has no empty entry.

    >>> without_current_folder({"LD_LIBRARY_PATH": "/opt/lib::", "A": "1"})
    {'LD_LIBRARY_PATH': '/opt/lib', 'A': '1'}
    """
    found = dict(environ)
    if "LD_LIBRARY_PATH" in found:
        found["LD_LIBRARY_PATH"] = ":".join(filter(None, found["LD_LIBRARY_PATH"].split(":")))
    return found


def leave_current_folder() -> None:
    """Drop the first entry of ``sys.path``, which Python adds for ``-m`` or a file; gluontune's folder comes last."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    if _ROOT not in sys.path:
        sys.path.append(_ROOT)


def main() -> None:
    """Run ``-m MODULE`` or ``-c CODE`` of the command line, as Python does."""
    kind, what = sys.argv[1:3]
    sys.argv[:] = [kind, *sys.argv[3:]]
    if kind == "-c":
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
        return
    import runpy

    runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    leave_current_folder()
    # A process and its children use one gluontune, whatever else is installed.
    spec = PathFinder.find_spec("gluontune", [_ROOT])
    assert spec is not None and spec.loader is not None
    sys.modules["gluontune"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["gluontune"])
    main()
