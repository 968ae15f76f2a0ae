"""The codec linked with libjpeg-turbo's headers and library, for wheels; ``hatch_build.py`` compiles it.

Only the standard library is imported here: a build has nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gluontune.codec.building import SECONDS, compile_codec, words_of
from gluontune.core.interpreter import python

PREFIX = "GLUONTUNE_JPEG"  # a folder with include/jpeglib.h and lib/libjpeg.a or .so
# All called functions must exist, by prototype and by symbol: IJG's libjpeg cannot decode regions.
_STRICT = ("-DGT_LINKED", "-Werror=implicit-function-declaration", "-Wl,-z,defs")

_VERSION = """import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.gt_linked.restype = ctypes.c_char_p
print(library.gt_linked().decode())"""


def compile_linked(out: Path) -> str:
    """Compile it with libjpeg-turbo's headers and library: ``$GLUONTUNE_JPEG``, pkg-config's or the compiler's own.

    ``$CFLAGS`` and ``$LDFLAGS`` are respected. The symbols of a static library are hidden, so that none is confused
    with another libjpeg's in the process.

    Returns:
        As :func:`compile_codec`.
    """
    errors = ""
    for include, link in _libraries():
        flags = ["-O3", *words_of("CFLAGS"), *include, *_STRICT, *words_of("LDFLAGS")]
        errors = compile_codec(out, flags, [*link, "-lm"])
        if not errors and linked_version(out):
            return ""
        errors = errors or "the result cannot be loaded"
    return errors


def linked_version(library: Path) -> str:
    """The libjpeg-turbo of ``library``; "" without one, or if it cannot be loaded."""
    command = python("-c", _VERSION, str(library))
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _libraries() -> Iterator[tuple[list[str], list[str]]]:
    """Flags for the headers and the library, for each possible place."""
    prefix = os.environ.get(PREFIX)
    if prefix:
        for name in ("libjpeg.a", "libjpeg.so"):
            for found in sorted(Path(prefix).glob(f"lib*/{name}")):
                yield [f"-I{prefix}/include"], [str(found), "-Wl,--exclude-libs,ALL"]
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["pkg-config", "--cflags", "--libs", "libjpeg"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
        words = shlex.split(done.stdout)
        yield [w for w in words if w.startswith("-I")], [w for w in words if not w.startswith("-I")]
    yield [], ["-ljpeg"]
