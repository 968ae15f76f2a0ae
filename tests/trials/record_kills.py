"""Trials of ``--resume``: packing jobs that are killed, at random moments or between two lines of the code."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

import numpy as np

from gluontune.core import files as files_room
from gluontune.core.errors import GluontuneError
from gluontune.records import partial_file, writer
from gluontune.records.layout import MAGIC
from gluontune.records.packer import pack

__all__ = ["kill_trials", "step_trials"]


def kill_trials(n: int, images: int = 3000, seed: int = 0, shards: int = 2) -> dict[str, Any]:
    """``kill -9`` a packing job at ``n`` random moments, resuming each time; compare with one left alone.

    Returns:
        ``kills`` that hit a running job; ``wrong_or_lost``: finished files that differ by a byte from those of
        an undisturbed job (records, index, checksums, classes).
    """
    folder = Path(tempfile.mkdtemp(prefix="gluontune-kills-"))
    rng = np.random.default_rng(seed)
    try:
        _make_images(folder / "src", images, rng)
        want = _pack_files(folder, "want", shards)
        started = time.perf_counter()
        _run_job(folder, "timing", shards, None)
        whole_s = time.perf_counter() - started
        kills = wrong = jobs = 0
        while kills < n:
            name = f"job{jobs}"
            jobs += 1
            for _ in range(200):
                killed = _run_job(folder, name, shards, float(rng.uniform(0.3, 1.05)) * whole_s)
                kills += killed
                if not killed or kills >= n:
                    break
            _run_job(folder, name, shards, None)
            got = _files(folder / name)
            wrong += got != want
            for file in sorted(set(got) | set(want)):
                if got.get(file) != want.get(file):
                    print(f"{name}: {file} differs", file=sys.stderr)
            shutil.rmtree(folder / name)
        return {"kills": kills, "jobs": jobs, "wrong_or_lost": wrong}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def step_trials(n: Optional[int] = None, images: int = 70, seed: int = 0, shards: int = 2) -> dict[str, Any]:
    """``kill -9`` packing jobs between two lines of the code that writes, renames and removes files.

    Args:
        n: jobs, each killed once at one of its lines, evenly spread, and up to five times more at random ones while
            it is resumed; None: one job for every line.

    Returns:
        ``kills``, ``jobs`` and ``wrong_or_lost``, as :func:`kill_trials`.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a kill loses nothing that was written
    folder = Path(tempfile.mkdtemp(prefix="gluontune-steps-", dir=memory))
    rng = np.random.default_rng(seed)
    try:
        _make_images(folder / "src", images, rng)
        lines = _run_to_line(folder, "want", shards, None) or 0
        want = _files(folder / "want")
        chosen = range(1, lines + 1) if n is None else np.linspace(1, lines, n).astype(int).tolist()
        kills = wrong = 0
        for first in chosen:
            more = rng.integers(1, lines + 1, int(rng.integers(0, 6))).tolist()
            for line in [first, *more]:
                if _run_to_line(folder, "job", shards, line) is not None:
                    break
                kills += 1
            _run_to_line(folder, "job", shards, None)
            if _files(folder / "job") != want:
                wrong += 1
                print(f"killed at line {first} and then {more}: the files differ", file=sys.stderr)
            shutil.rmtree(folder / "job")
        return {"kills": kills, "jobs": len(chosen), "wrong_or_lost": wrong}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_to_line(folder: Path, name: str, shards: int, line: int | None) -> int | None:
    """Run or resume a job in a fork, up to its ``line``-th line of file handling; the lines run, None if killed."""
    child = os.fork()
    if not child:
        status = 1
        try:
            counted = _count_lines(line)
            pack(folder / "src", folder / name / "t.rec", exact=True, shards=shards, resume=True, workers=1)
            sys.settrace(None)
            (folder / "lines").write_text(str(counted[0]))
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None
    if status:
        raise GluontuneError(f"the packing job failed with exit status {os.WEXITSTATUS(status)}")
    return int((folder / "lines").read_text())


def _count_lines(kill_at: int | None) -> list[int]:
    """Count this thread's lines in the files that write; SIGKILL at the one numbered ``kill_at``."""
    watched = {partial_file.__file__, files_room.__file__, writer.__file__}
    counted = [0]

    def at_line(frame: Any, event: str, argument: Any) -> Any:
        counted[0] += 1
        if counted[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return at_line

    def at_call(frame: Any, event: str, argument: Any) -> Any:
        return at_line if frame.f_code.co_filename in watched else None

    sys.settrace(at_call)
    return counted


def _make_images(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Files that are copied as they are; some are damaged, so that images are left out too."""
    for i in range(count):
        place = folder / f"class{i % 3}"
        place.mkdir(parents=True, exist_ok=True)
        body = b"" if i % 50 == 7 else rng.bytes(int(rng.integers(100, 3000))) + MAGIC
        (place / f"{i:06d}.png").write_bytes(body)


def _pack_files(folder: Path, name: str, shards: int) -> dict[str, bytes]:
    pack(folder / "src", folder / name / "t.rec", exact=True, shards=shards)
    return _files(folder / name)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _run_job(folder: Path, name: str, shards: int, kill_after_s: float | None) -> bool:
    """Run or resume a packing process; True if it was killed while it ran."""
    code = (
        "import sys; from gluontune.records import pack; "
        "pack(sys.argv[1], sys.argv[2], exact=True, shards=int(sys.argv[3]), resume=True)"
    )
    arguments = [sys.executable, "-c", code, str(folder / "src"), str(folder / name / "t.rec"), str(shards)]
    root = str(Path(__file__).resolve().parents[2])
    child = subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": root}, cwd=folder)
    try:
        status = child.wait(timeout=kill_after_s)
    except subprocess.TimeoutExpired:
        child.kill()
        status = child.wait()
        return status == -signal.SIGKILL
    if status:
        raise GluontuneError(f"the packing job failed with exit status {status}")
    return False
