"""Hours of training for real: ``make soak SECONDS=7200``.

A net with BatchNorm, dropout and augmentation trains with loader threads, checkpoints and the monitor, once left alone
and once with a ``kill -9`` every minute, each time gone on by ``--resume``. Prints as JSON how memory and open files
grew, and whether both ends are alike byte by byte; exits with 1 where memory grew by 2 % or more, a file stayed open,
or the ends differ. One OpenMP thread, because MXNet's sums may depend on how many there are.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from train_kills import _JOB, _final, _same

from gluontune.job import checkpoint

GROWTH = 0.02  # of the resident memory, from the second quarter of a run to its last


class Training:
    """One ``gluontune train --resume``, watched."""

    def __init__(self, folder, name, epochs):
        self.folder, self.log = folder / name, folder / f"{name}.log"
        flags = (
            f"--job {folder / 'job.py'} --dataset sample --loader threaded --num-workers 1 --augment pad-crop-flip "
            f"--devices cpu --batch-size-per-device 32 --epochs {epochs} --val-samples 500 "
            f"--checkpoint {self.folder} --checkpoint-every 5s --keep 2 --resume --json"
        ).split()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gluontune", "train", *flags],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.seen = []  # (process, MiB, open files), each second

    def watch(self, until=float("inf")):
        """Sample memory and open files until the end, or until a moment; whether it has ended."""
        while time.monotonic() < until:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
                return True
            with contextlib.suppress(psutil.Error):
                command = psutil.Process(self.process.pid)
                for place, one in enumerate([command, *command.children()]):
                    self.seen.append((place, one.memory_info().rss / 2**20, one.num_fds()))
        return False

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for child in psutil.process_iter(["cmdline"]):
            if str(self.folder) in " ".join(child.info["cmdline"] or ()):
                child.kill()
        self.process.wait()

    def ended(self):
        if self.process.returncode:
            sys.exit(f"the training failed: {self.log.read_text(errors='replace')[-1500:]}")


def quarters(values):
    """Medians of the second quarter and of the last."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])


def soak(seconds, every, seed):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="gluontune-soak-") as place:
        folder = Path(place)
        (folder / "job.py").write_text(_JOB)
        began = time.monotonic()
        trial = Training(folder, "trial", 3)
        trial.watch()
        trial.ended()
        said = trial.log.read_text()
        elapsed = json.JSONDecoder().raw_decode(said[said.index("{") :])[0]["elapsed_seconds"]
        epochs = max(4, round(0.4 * seconds / (elapsed[-1] - elapsed[0]) * 2))
        alone = Training(folder, "alone", epochs)
        alone.watch()
        alone.ended()
        memory, files = {}, {}
        for number, name in enumerate(("command", "training process")):
            memory[name] = quarters([mib for place, mib, _ in alone.seen if place == number])
            files[name] = quarters([count for place, _, count in alone.seen if place == number])
        kills = 0
        while True:
            killed = Training(folder, "killed", epochs)
            if killed.watch(time.monotonic() + every * rng.uniform(0.7, 1.3)):
                killed.ended()
                break
            killed.kill()
            kills += 1
        want, steps = _final(folder / "alone")
        got, _ = _final(folder / "killed")
        different = [key for key in want if not _same(want[key], got.get(key))]
        left = [p.pid for p in psutil.process_iter(["cmdline"]) if place in " ".join(p.info["cmdline"] or ())]
        return {
            "seconds": round(time.monotonic() - began),
            "epochs": epochs,
            "steps": steps,
            "kills": kills,
            "memory_mib": memory,
            "growth": {name: late / early - 1 for name, (early, late) in memory.items()},
            "open_files": files,
            "different": different,
            "checkpoints": len(checkpoint.files(folder / "killed")),
            "processes_left": len(left),
        }


def main():
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=7200, help="In all, about.")
    parser.add_argument("--every", type=float, default=60, help="Seconds between kills, about.")
    parser.add_argument("--seed", type=int, default=0, help="Of the moments.")
    given = parser.parse_args()
    found = soak(given.seconds, given.every, given.seed)
    print(json.dumps(found, indent=2))
    grown = any(growth >= GROWTH for growth in found["growth"].values())
    opened = any(late > early for early, late in found["open_files"].values())
    return 1 if grown or opened or found["different"] or found["processes_left"] else 0


if __name__ == "__main__":
    sys.exit(main())
