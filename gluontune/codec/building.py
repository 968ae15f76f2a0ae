"""Compiling ``csrc``: into a wheel (``hatch_build.py``), on first use (``native``), for ``tools.sanitize``.

A wheel's codec is compiled with libjpeg-turbo's own headers where they are found; what is compiled on first use opens
the library that Pillow's wheel carries. Only the standard library is imported here: a build has nothing else.

Where the system has no compiler, or one without the C library's headers, zig's does it: a wheel of the package index,
``ziglang``, which ``make setup`` installs there. It makes the same codec: to the bit, and as fast.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gluontune.core.interpreter import python

SOURCES = sorted(Path(__file__).with_name("csrc").glob("*.[ch]"))
OPENING = ("-ldl", "-lm")  # for the codec that opens libjpeg-turbo itself
ZIG = Path(sysconfig.get_path("platlib"), "ziglang", "zig")  # not by its name: another folder may have one
PREFIX = "GLUONTUNE_JPEG"  # a folder with include/jpeglib.h and lib/libjpeg.a or .so
# All that is called must be there, by prototype and by symbol: IJG's libjpeg cannot decode by regions.
_STRICT = ("-DGT_LINKED", "-Werror=implicit-function-declaration", "-Wl,-z,defs")
# A multiplication and an addition in one step would round otherwise.
_FLAGS = ("-shared", "-fPIC", "-ffp-contract=off")
_SECONDS = 600

_VERSION = """import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.gt_linked.restype = ctypes.c_char_p
print(library.gt_linked().decode())"""


def compilers() -> list[list[str]]:
    """The commands that compile C here, the best first: ``$CC`` alone; or ``cc``, ``gcc`` or ``clang``, and zig's."""
    if os.environ.get("CC"):
        return [_words("CC")]
    found = [[path] for path in filter(None, map(shutil.which, ("cc", "gcc", "clang")))][:1]
    if ZIG.is_file():
        # Unless told, it compiles for this very processor and C library, and a home may be of several machines.
        target = ["-target", f"{platform.machine()}-linux-gnu.2.17"] if sys.platform == "linux" else []
        found.append([str(ZIG), "cc", *target, "-mcpu=baseline", "-fno-sanitize=undefined", "-s"])
    return found


def compile_codec(
    out: Path, flags: Sequence[str] = ("-O3",), link: Sequence[str] = OPENING, sources: Path | None = None
) -> str:
    """Compile the C files into the shared library ``out``.

    Args:
        out: the file to write.
        flags: of the compiler.
        link: what is linked to it.
        sources: a folder of C files in place of the package's own.

    Returns:
        What the compiler complained of; empty where ``out`` is made.
    """
    files = sorted(map(str, (sources or SOURCES[0].parent).glob("*.c")))
    said = ""
    for compiler in compilers():
        command = [*compiler, *flags, *_FLAGS, "-o", str(out), *files, *link]
        try:
            with tempfile.TemporaryDirectory() as cache:
                environ = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=environ
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            said = said or str(error)
            continue
        if done.returncode == 0:
            return ""
        said = said or done.stderr.strip() or f"{compiler[0]} ended with code {done.returncode}"
    return said or "no C compiler"


def compile_linked(out: Path) -> str:
    """Compile it with libjpeg-turbo's headers and library: ``$GLUONTUNE_JPEG``, pkg-config's or the compiler's own.

    ``$CFLAGS`` and ``$LDFLAGS`` are kept to. Of a static library no name is left to be seen, so that none is mistaken
    for that of another libjpeg in the process.

    Returns:
        As :func:`compile_codec`.
    """
    said = ""
    for include, link in _libraries():
        flags = ["-O3", *_words("CFLAGS"), *include, *_STRICT, *_words("LDFLAGS")]
        said = compile_codec(out, flags, [*link, "-lm"])
        if not said and linked_version(out):
            return ""
        said = said or "the result cannot be loaded"
    return said


def linked_version(library: Path) -> str:
    """The libjpeg-turbo that ``library`` was compiled with; empty without one, and where it cannot be loaded."""
    command = python("-c", _VERSION, str(library))
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _libraries() -> Iterator[tuple[list[str], list[str]]]:
    """Flags for the headers and for the library, of each place where they may be."""
    prefix = os.environ.get(PREFIX)
    if prefix:
        for name in ("libjpeg.a", "libjpeg.so"):
            for found in sorted(Path(prefix).glob(f"lib*/{name}")):
                yield [f"-I{prefix}/include"], [str(found), "-Wl,--exclude-libs,ALL"]
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["pkg-config", "--cflags", "--libs", "libjpeg"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        words = shlex.split(done.stdout)
        yield [w for w in words if w.startswith("-I")], [w for w in words if not w.startswith("-I")]
    yield [], ["-ljpeg"]


def _words(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))
