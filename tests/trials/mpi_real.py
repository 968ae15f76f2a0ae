"""mpirun, mpiexec and torchrun for real: ``make slurm`` runs these where they are installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gluontune.parallel.horovod import installed
from gluontune.recipe import Recipe
from gluontune.train import run

FIELDS = {"net": "mlp", "loader": "resident", "devices": "cpu", "learning_rate": 0.1, "train_samples": 1024,
          "val_samples": 128, "batch_size_per_device": 32}  # fmt: skip
TRAIN = [word for key, value in FIELDS.items() for word in (f"--{key.replace('_', '-')}", str(value))]
TRAIN = [sys.executable, "-m", "gluontune", "train", *TRAIN]
LAUNCHERS = {
    "mpirun": ["mpirun", *(["--allow-run-as-root"] if os.getuid() == 0 else []), "-np", "2", "--bind-to", "none"],
    "mpiexec.hydra": ["mpiexec.hydra", "-n", "2"],
    "torchrun": [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2", "--no-python"],
}


@pytest.fixture(params=LAUNCHERS)
def launcher(request):
    words = LAUNCHERS[request.param]
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {request.param} here")
    return words


@pytest.mark.parametrize("engine", ["kvstore", "ddp", "shared-memory", "horovod"])
def test_ranks_train_as_those_of_launch(launcher, engine):
    if engine == "horovod" and installed() is None:
        pytest.skip("wants Horovod (make horovod)")
    torch = {"backend": "torch"} if engine == "ddp" else {}
    words = [*launcher, *TRAIN, "--engine", engine, "--json", *(["--backend", "torch"] if torch else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # one document
    alone = run(Recipe(**FIELDS, **torch, engine=engine, num_devices=2))
    assert result["train_loss"] == alone.train_loss and result["val_accuracy"] == alone.val_accuracy


@pytest.mark.parametrize("victim", ["the launcher", "rank 1", "rank 1 hangs", "rank 0"])
def test_nothing_is_left_of_a_run_of_which_one_was_killed_and_it_is_named(launcher, victim, tmp_path):
    words = [*launcher, *TRAIN, "--engine", "kvstore", "--epochs", "100000"]
    words += ["--checkpoint", str(tmp_path), "--checkpoint-every", "5steps"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until = time.monotonic() + 120
    while not list(tmp_path.glob("*.ckpt")) and time.monotonic() < until:
        time.sleep(0.1)
    family = psutil.Process(process.pid).children(recursive=True)
    follower = next(p for p in family if "gluontune.training.started" in p.cmdline())
    leader = next(p for p in family if "gluontune.training.child" in p.cmdline()).parent()
    killed = {"the launcher": psutil.Process(process.pid), "rank 0": leader}.get(victim, follower)
    killed.suspend() if "hangs" in victim else killed.kill()
    until = time.monotonic() + (60 if (victim, launcher[-1]) == ("rank 1 hangs", "--no-python") else 30)
    left = family  # torchrun gives a rank that it ends 30 s
    while left and time.monotonic() < until:
        left = [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.1)
    assert not left, left
    said = process.communicate()[0].decode(errors="replace")
    words = {"the launcher": "", "rank 0": r"rank 0 with PID|rank 0 on host \S+ was killed|rank +: 0"}
    assert re.search(words.get(victim, "rank 1 on host"), said), said
