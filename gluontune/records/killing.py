"""Trials of ``--resume``: packing jobs that are killed at random moments."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.errors import GluontuneError
from gluontune.records.layout import MAGIC
from gluontune.records.packer import pack

__all__ = ["kill_trials"]


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
