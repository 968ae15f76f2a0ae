"""The compiled codec under sanitizers: ``python -m tools.sanitize --cases 20000``.

Compiles ``csrc`` with gcc's or clang's address and undefined-behaviour sanitizers, and gives it damaged images,
headers, files and sizes: half of the cases one after the other, half in bursts of 8 threads. A finding is printed with
the command that runs its cases alone. Exit code 0: no finding; 1: a finding; 2: no sanitizer on this machine.
Source: Serebryany et al., "AddressSanitizer: A Fast Address Sanity Checker", USENIX ATC 2012.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from gluontune.codec import building, native
from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import python

CASES = 16  # in a group: the first half one by one, the second half at once
FLAGS = ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
         "-DGT_DEEPBIND=0", "-DGT_EXACT")  # fmt: skip
LOOK_S = 600  # between two checks of a group: one that sleeps or loops is a finding
LOOP_S = 120  # CPU seconds between two checks, in which a group must progress
STARTS = 10  # of a process that ends before its first case
PART = 4000  # cases of one process, so that damage by a burst shows soon


def build(folder: Path, sources: Path | None = None) -> tuple[Path, str]:
    """Compile the codec with sanitizers into ``folder``.

    Args:
        folder: for the library.
        sources: a folder of C files in place of the package's own.

    Returns:
        The library, and the runtime that must be loaded before all else (``LD_PRELOAD``).

    Raises:
        GluontuneError: no compiler, no sanitizer, or no libjpeg-turbo (named in the message).
    """
    compiler = next((c for c in building.compilers() if c[0] != str(building.ZIG)), None)  # zig's has no such runtime
    if not compiler:
        raise GluontuneError("no C compiler here (Debian, Ubuntu: apt install gcc)")
    if not any(True for _ in native.jpeg_libraries()):
        raise GluontuneError("no libjpeg-turbo here; Pillow's wheel brings one")
    library = folder / "codec.so"
    errors = building.compile_codec(library, FLAGS, sources=sources)
    if errors:
        raise GluontuneError(f"{compiler[0]} has no sanitizers here: {errors.splitlines()[-1]}")
    runtime = ""
    for name in ("libasan.so", f"libclang_rt.asan-{os.uname().machine}.so"):
        found = subprocess.run(
            [*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False
        ).stdout.strip()
        if os.path.isabs(found) and os.path.exists(found):
            runtime = os.path.realpath(found)
            break
    if not runtime:
        raise GluontuneError(f"{compiler[0]} has no runtime of the address sanitizer (Debian, Ubuntu: apt install gcc)")
    return library, runtime


def run(cases: int, seed: int, first: int = 0, sources: Path | None = None,
        built: tuple[Path, str] | None = None) -> dict[str, object]:  # fmt: skip
    """Give the sanitized codec ``cases`` cases; each is named by ``seed`` and its number.

    Args:
        cases: number, rounded up to whole groups of 16.
        seed: of the random numbers.
        first: number of the first case, a multiple of 16.
        sources: see :func:`build`.
        built: what :func:`build` has returned; None: it is called.

    Returns:
        ``{"seed", "first", "cases", "findings", "seconds", "made", "refused"}``: ``made`` and ``refused`` count the
        inputs that the codec decoded and refused.

    Raises:
        GluontuneError: as :func:`build`; or the runtime of the sanitizers does not start here.
    """
    started = time.monotonic()
    total = {"made": 0, "refused": 0, "findings": 0}
    with tempfile.TemporaryDirectory(prefix="gluontune-asan-") as place:
        library, runtime = built or build(Path(place), sources)
        options = "detect_leaks=0:exitcode=99:allocator_may_return_null=1:handle_segv=1"
        env = {**os.environ, "LD_PRELOAD": runtime, "PYTHONMALLOC": "malloc", "ASAN_OPTIONS": options,
               "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99", "OMP_NUM_THREADS": "1",
               "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
        last = first + -(-cases // CASES) * CASES
        begin, starts, at = first, 0, Path(place) / "at"
        while begin < last:
            end = min(begin + PART, last)
            at.unlink(missing_ok=True)
            command = python("-m", "tools.sanitized", str(library), place, str(seed))
            code, out, errors = _answer([*command, str(begin), str(end)], env, at)
            if code == 0:
                counts = json.loads(out.splitlines()[-1])
                total["made"] += counts["made"]
                total["refused"] += counts["refused"]
                begin = end
                continue
            if not at.exists():  # older runtimes do not start with every random memory layout
                starts += 1
                if starts < STARTS:
                    continue
                reason = (errors.strip().splitlines() or ["it printed nothing"])[-1][:300]
                raise GluontuneError(f"the sanitizers' runtime {runtime} does not start here: {reason}")
            total["findings"] += 1
            group = int(at.read_text() or begin)
            errors = errors.strip() if len(errors) < 8000 else f"{errors[:4000]}\n…\n{errors[-3000:]}".strip()
            print(f"{errors}\nfinding (code {code}): python -m tools.sanitize "
                  f"--cases {CASES} --seed {seed} --first {group}", file=sys.stderr)  # fmt: skip
            begin = max(group, begin) + CASES
    seconds = round(time.monotonic() - started, 1)
    return {"seed": seed, "first": first, "cases": last - first, **total, "seconds": seconds}


def _answer(command: list[str], env: dict[str, str], at: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a process that writes its progress into ``at``; -1 if it is stuck.

    CPU time decides, not the clock: on a busy machine a sound process may get a second of the processor in minutes.
    """
    before, spent = "", 0.0
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, errors = process.communicate(timeout=LOOK_S)
                return process.returncode, out, errors
            now, used = (at.read_text() if at.exists() else "", sum(psutil.Process(process.pid).cpu_times()[:2]))
            if now == before and not 0 < used - spent < LOOP_S:
                process.kill()
                return -1, "", f"no answer for {LOOK_S} s"
            before, spent = now, used


def main(argv: list[str] | None = None) -> int:
    """Run the cases of the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tools.sanitize", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, help="default: a new one each time, which is printed")
    parser.add_argument("--first", type=int, default=0, help="number of the first case, a multiple of 16")
    parser.add_argument("--sources", type=Path, help="a folder of C files in place of the package's own")
    chosen = parser.parse_args(argv)
    seed = secrets.randbelow(1 << 31) if chosen.seed is None else chosen.seed
    try:
        found = run(chosen.cases, seed, chosen.first - chosen.first % CASES, chosen.sources)
    except GluontuneError as error:
        print(f"gluontune: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=2))
    return int(bool(found["findings"]))


if __name__ == "__main__":
    sys.exit(main())
