"""Compiling ``csrc``: into a wheel (``hatch_build.py``), on first use (``native``), for ``tools.sanitize``.

The codec compiled on first use opens the libjpeg-turbo in Pillow's wheel; a wheel's codec is compiled with its headers
(``tools.linked_codec``). Only the standard library is imported here: a build has nothing else.

Without a working system compiler zig's is used, from the wheel ``ziglang``, which ``make setup`` installs then. Its
codec is the same to the bit, and as fast.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = sorted(Path(__file__).with_name("csrc").glob("*.[ch]"))
OPENING = ("-ldl", "-lm")  # for the codec that opens libjpeg-turbo at run time
ZIG = Path(sysconfig.get_path("platlib"), "ziglang", "zig")  # not by name: another folder may have one
# A fused multiplication and addition would round differently.
_FLAGS = ("-shared", "-fPIC", "-ffp-contract=off")
SECONDS = 600


def compilers() -> list[list[str]]:
    """The commands that compile C here, the best first: ``$CC`` alone; or ``cc``, ``gcc`` or ``clang``, and zig's."""
    if os.environ.get("CC"):
        return [words_of("CC")]
    found = [[path] for path in filter(None, map(shutil.which, ("cc", "gcc", "clang")))][:1]
    if ZIG.is_file():
        # By default it compiles for this processor and C library, and machines may share a home.
        target = ["-target", f"{platform.machine()}-linux-gnu.2.17"] if sys.platform == "linux" else []
        found.append([str(ZIG), "cc", *target, "-mcpu=baseline", "-fno-sanitize=undefined", "-s"])
    return found


def compile_codec(
    out: Path, flags: Sequence[str] = ("-O3",), link: Sequence[str] = OPENING, sources: Path | None = None
) -> str:
    """The compiler's errors, or "" once the C files (of the folder ``sources``, or the package's) are in ``out``."""
    files = sorted(map(str, (sources or SOURCES[0].parent).glob("*.c")))
    said = ""
    for compiler in compilers():
        command = [*compiler, *flags, *_FLAGS, "-o", str(out), *files, *link]
        try:
            with tempfile.TemporaryDirectory() as cache:
                environ = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environ
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            said = said or str(error)
            continue
        if done.returncode == 0:
            return ""
        said = said or done.stderr.strip() or f"{compiler[0]} ended with code {done.returncode}"
    return said or "no C compiler"


def words_of(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))
