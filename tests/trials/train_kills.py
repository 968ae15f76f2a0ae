"""Trials of resuming: training jobs that are killed at random moments.

``python tests/trials/train_kills.py --kills 50`` (about six minutes on two idle cores) trains a small net with
BatchNorm, dropout and augmentation, kills it with SIGKILL while it starts, steps or writes a checkpoint, and
goes on with ``--resume`` until it is done, over and over. Every end is compared, byte by byte, with that of a
run left alone: parameters, optimizer states, validation accuracies. All runs have one OpenMP thread, because
MXNet's sums may depend on how many there are.
"""

from __future__ import annotations

import contextlib
import json
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
import psutil
import typer

from gluontune.core.errors import GluontuneError
from gluontune.job import checkpoint

__all__ = ["kill_trials"]

_JOB = """
from mxnet.gluon import nn

def net():
    layers = nn.HybridSequential()
    layers.add(nn.Conv2D(8, 3, strides=2, padding=1), nn.BatchNorm(), nn.Activation("relu"))
    layers.add(nn.Conv2D(16, 3, strides=2, padding=1), nn.BatchNorm(), nn.Activation("relu"))
    layers.add(nn.Flatten(), nn.Dropout(0.3), nn.Dense(10))
    return layers
"""

_STARTING_SHARE = 0.2  # of the kills that hit the start of a process; the others hit its training


def kill_trials(kills: int, *, epochs: int = 8, seed: int = 0) -> dict[str, Any]:
    """``kill -9`` training at ``kills`` random moments, resuming each time; compare with a run left alone.

    Returns:
        ``kills`` that hit a living process (``hit`` says which; ``in_training``: after it had written a
        checkpoint of its own), ``jobs`` that they were spread over, ``identical`` jobs, and ``different``:
        what differed in the others.
    """
    folder = Path(tempfile.mkdtemp(prefix="gluontune-kills-"))
    rng = np.random.default_rng(seed)
    try:
        (folder / "job.py").write_text(_JOB)
        started = time.perf_counter()
        _Run(folder, "want", epochs).end()
        whole_s = time.perf_counter() - started
        want, steps = _final(folder / "want")
        done, in_training, jobs, hit = 0, 0, 0, {"parent": 0, "rank": 0, "both": 0}
        different: list[str] = []
        while done < kills:
            name = f"job{jobs}"
            jobs += 1
            while done < kills:
                run = _Run(folder, name, epochs)
                who = str(rng.choice(sorted(hit)))
                begun = _last_step(folder / name)
                if rng.random() < _STARTING_SHARE:
                    killed = run.kill(who, after_s=float(rng.uniform(0, whole_s / 2)))
                else:
                    step = begun + int(rng.integers(1, max(2, steps // 3)))
                    killed = run.kill(who, after_step=step, after_s=float(rng.uniform(0, 0.1)))
                run.end(clean=not killed)
                if not killed:
                    break
                done, hit[who] = done + 1, hit[who] + 1
                in_training += _last_step(folder / name) > begun
            else:
                _Run(folder, name, epochs).end()
            got, _ = _final(folder / name)
            different += [f"{name}: {key}" for key in want if not _same(want[key], got.get(key))]
            shutil.rmtree(folder / name)
            print(f"{done} kills, {jobs} jobs, {len(different)} differences", file=sys.stderr)
        spoilt = len({text.partition(":")[0] for text in different})
        found = {"kills": done, "hit": hit, "in_training": in_training, "jobs": jobs}
        return {**found, "identical": jobs - spoilt, "different": different}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    """One ``gluontune train --resume`` in a process of its own."""

    def __init__(self, folder: Path, name: str, epochs: int):
        self.folder, self.log = folder / name, folder / f"{name}.log"
        flags = (
            f"--job {folder / 'job.py'} --dataset sample --loader resident --augment pad-crop-flip --devices cpu "
            f"--train-samples 1024 --val-samples 128 --batch-size-per-device 32 --epochs {epochs} "
            f"--checkpoint {self.folder} --checkpoint-every 3steps --keep 2 --resume --json"
        ).split()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gluontune", "train", *flags],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, who: str, after_s: float, after_step: int | None = None) -> bool:
        """Send SIGKILL to the command, its training process or both; False if it ended before."""
        while after_step is not None and _last_step(self.folder) < after_step:
            if self.process.poll() is not None:
                return False
            time.sleep(0.005)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(after_s)
            return False
        victims = []
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks = psutil.Process(self.process.pid).children()
            victims = [p.pid for p in ranks if who != "parent"]
        if who != "rank" or not victims:  # its training process may not be there yet
            victims.append(self.process.pid)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self.process.wait() != 0

    def end(self, clean: bool = True) -> None:
        """Wait for the end.

        Raises:
            GluontuneError: it failed without having been killed.
        """
        if self.process.wait() != 0 and clean:
            raise GluontuneError(f"the training job failed: {self.log.read_text(errors='replace')[-1000:]}")


def _last_step(folder: Path) -> int:
    there = checkpoint.files(folder)
    return int(there[0].stem.partition("-")[2]) if there else 0


def _final(folder: Path) -> tuple[dict[str, Any], int]:
    """All that must not depend on kills, from the last checkpoint of a finished run; its step."""
    header, arrays = checkpoint.read(checkpoint.files(folder)[0])
    accuracies = header["progress"]["result"]["val_accuracy"]
    return {**arrays, "val_accuracy": np.array(accuracies)}, header["step"]


def _same(want: np.ndarray, got: np.ndarray | None) -> bool:
    return got is not None and want.dtype == got.dtype and want.tobytes() == got.tobytes()


def _main(
    kills: int = typer.Option(50, "--kills", min=1, help="Moments at which a run is killed."),
    seed: int = typer.Option(0, "--seed", help="Of the moments."),
) -> None:
    """Kill training at random moments, resume it, and compare its end with that of a run left alone."""
    found = kill_trials(kills, seed=seed)
    print(json.dumps(found, indent=2))
    raise typer.Exit(1 if found["different"] else 0)


if __name__ == "__main__":
    typer.run(_main)
