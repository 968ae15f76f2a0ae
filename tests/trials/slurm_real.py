"""SLURM for real: ``make slurm`` sets up four nodes on this machine, runs these, and takes all down.

``python tests/trials/slurm_real.py --trials 20`` preempts a job, and kills ranks, launchers and SLURM's own processes,
so many times each, and prints what it took until nothing of them was left. ``--only ratio`` compares the throughput of
two ranks under ``srun`` with that under ``gluontune launch``, in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from virtual_slurm import VirtualSlurm, missing, virtual_slurm

from gluontune.job import checkpoint
from gluontune.recipe import Recipe
from gluontune.train import Checkpoints, run

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no cluster can be made: {missing()}")

FIELDS = {"net": "mlp", "loader": "resident", "devices": "cpu", "learning_rate": 0.1, "train_samples": 1024,
          "val_samples": 128, "batch_size_per_device": 32}  # fmt: skip
TRAIN = [word for key, value in FIELDS.items() for word in (f"--{key.replace('_', '-')}", str(value))]
TRAIN = ["train", *TRAIN]
OURS = [sys.executable, "-m", "gluontune"]


@pytest.fixture(scope="module")
def slurm():
    with virtual_slurm() as cluster:
        yield cluster


def script(folder: Path, words: list[str]) -> Path:
    """The batch script that ``launch --print`` writes, for the gluontune of these tests."""
    text = subprocess.run([*OURS, "launch", *words], capture_output=True, text=True, check=True).stdout
    path = folder / "job.sh"
    path.write_text(re.sub(r"(?<=bad-exit=1) gluontune ", f" {sys.executable} -m gluontune ", text))
    return path


_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY")


def submit(slurm: VirtualSlurm, path: Path, *words: str) -> str:
    done = slurm.run("sbatch", "--parsable", *words, str(path), cwd=path.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait(slurm: VirtualSlurm, job: str, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while state_of(slurm, job):
        assert time.monotonic() < until, slurm.run("squeue").stdout
        time.sleep(0.2)


def state_of(slurm: VirtualSlurm, job: str) -> str:
    """The state of a job, or of one of an array that has not ended; "" if it has."""
    told = slurm.run("scontrol", "show", "job", job).stdout
    going = [state for state in re.findall(r"JobState=(\w+)", told) if state not in _ENDED]
    return going[0] if going else ""


@pytest.mark.parametrize(("nodes", "engine"), [(2, "kvstore"), (4, "kvstore"), (2, "ddp"), (1, "shared-memory")])
def test_srun_trains_as_launch(slurm, nodes, engine):
    torch = {"backend": "torch"} if engine == "ddp" else {}
    words = ["--backend", "torch"] if torch else []
    count = max(2, nodes)
    done = slurm.run("srun", "-N", str(nodes), "-n", str(count), *OURS, *TRAIN, "--engine", engine, *words, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # one document
    alone = run(Recipe(**FIELDS, **torch, engine=engine, num_devices=count))
    if count == 2:
        assert result["train_loss"] == alone.train_loss and result["val_accuracy"] == alone.val_accuracy
    else:  # the server adds what arrives, in any order
        assert result["train_loss"] == pytest.approx(alone.train_loss, rel=1e-5)
    assert f"rank 0 of {count}" in done.stderr and "started by srun (SLURM_PROCID" in done.stderr


def test_an_array_of_seeds(slurm, tmp_path):
    path = script(tmp_path, ["--print", "slurm-array", "--", *TRAIN, "--seed", "0-11", "--out", "seed.json"])
    wait(slurm, submit(slurm, path), 400)
    found = [json.loads((tmp_path / f"seed-{k}.json").read_text()) for k in range(12)]
    assert [result["recipe"]["seed"] for result in found] == list(range(12))
    assert found[3]["train_loss"] == run(Recipe(**FIELDS, seed=3)).train_loss
    assert len({tuple(result["train_loss"]) for result in found}) == 12


def test_one_study_by_an_array_some_tasks_of_which_are_preempted(slurm, tmp_path):
    """Twelve seeds, each a task; others take the nodes twice. No row is lost, and each is as undisturbed."""
    words = ["tta", "--target", "0.5", "--repeats", "12", *TRAIN[1:]]
    path = script(tmp_path, ["--print", "slurm-array", "--", *words, "--part", "0-11", "--out", "shared"])
    job = submit(slurm, path, "-p", "low")
    for _ in range(2):
        time.sleep(8)
        slurm.run("srun", "-p", "high", "-N", "4", "--exclusive", "true", timeout=120)
        time.sleep(2)  # until the last start's credential is void; SLURM itself waits two minutes
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait(slurm, job, 600)
    parts = [json.loads((tmp_path / "shared" / "parts" / str(k) / "tta.json").read_text()) for k in range(12)]
    assert [[row["seed"] for row in part["done"]] for part in parts] == [[k] for k in range(12)]
    merge = re.search(r"^# one document .*: gluontune (.*)$", path.read_text(), re.M)
    done = subprocess.run([*OURS, *merge[1].split()], cwd=tmp_path, capture_output=True, text=True)
    merged = json.loads((tmp_path / "shared" / "tta.json").read_text())
    assert done.returncode == int(merged["summary"]["this"]["train_seconds"]["reached"] < 12), done.stderr
    assert merged["complete"] and [row["seed"] for row in merged["done"]] == list(range(12))
    assert merged["done"][3]["val_accuracy"] == run(Recipe(**FIELDS, seed=3)).val_accuracy


def weights(folder: Path) -> dict[str, np.ndarray]:
    return checkpoint.read(checkpoint.files(folder)[0])[1]


def preempted(slurm: VirtualSlurm, folder: Path, times: int, seed: int = 0) -> dict[str, Any]:
    """A job that another takes the nodes from, so many times: its end beside that of an undisturbed run."""
    draw, epochs = random.Random(seed), max(60, 20 * times)  # more than they can train
    whole = run(
        Recipe(**FIELDS, engine="kvstore", num_devices=2, epochs=epochs),
        checkpoints=Checkpoints(folder / "whole", every="50steps"),
    )
    words = ["--print", "slurm", "-n", "1", "--nnodes", "2", "--insecure-network", "--", *TRAIN]
    words += ["--epochs", str(epochs), "--checkpoint", "kept", "--checkpoint-every", "5steps", "--out", "out.json"]
    job = submit(slurm, script(folder, words), "-p", "low")
    seen = 0
    while seen < times:
        until = time.monotonic() + 120
        while state_of(slurm, job) != "RUNNING":
            if not state_of(slurm, job) or time.monotonic() > until:
                break
            time.sleep(0.2)
        time.sleep(draw.uniform(1, 9))
        if state_of(slurm, job) != "RUNNING":
            break
        slurm.run("srun", "-p", "high", "-N", "4", "--exclusive", "true", timeout=120)
        seen += 1
        until = time.monotonic() + 60
        while state_of(slurm, job) != "PENDING" and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(2)  # until the last start's credential is void; SLURM itself waits two minutes
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait(slurm, job, 600)
    result = json.loads((folder / "out.json").read_text())
    one, other = weights(folder / "whole"), weights(folder / "kept")
    return {
        "preempted": seen, "status": result["status"], "steps": result["steps"] == whole.steps,
        "losses": result["train_loss"] == whole.train_loss and result["val_loss"] == whole.val_loss,
        "accuracies": result["val_accuracy"] == whole.val_accuracy,
        "bits": one.keys() == other.keys() and all(one[n].tobytes() == other[n].tobytes() for n in one),
        "left": len(slurm.processes()),
    }  # fmt: skip


def test_a_preempted_job_ends_as_an_undisturbed_one(slurm, tmp_path):
    seen = preempted(slurm, tmp_path, 2)
    assert seen["preempted"] == 2 and seen["status"] == "ok", seen
    assert seen["steps"] and seen["losses"] and seen["accuracies"] and seen["bits"] and not seen["left"], seen


def test_a_job_whose_time_is_up_is_queued_again(slurm, tmp_path):
    words = ["--print", "slurm", "--", *TRAIN, "--epochs", "100000", "--checkpoint", "kept"]
    job = submit(slurm, script(tmp_path, words), "-p", "low")
    until = time.monotonic() + 120
    while not list((tmp_path / "kept").glob("*.ckpt")) and time.monotonic() < until:
        time.sleep(0.2)
    slurm.run("scancel", "--signal=TERM", job)  # as --signal does near the time limit
    until = time.monotonic() + 90
    while "Restarts=1" not in slurm.run("scontrol", "show", "job", job).stdout and time.monotonic() < until:
        time.sleep(0.5)
    assert "Restarts=1" in slurm.run("scontrol", "show", "job", job).stdout
    slurm.run("scancel", job)
    wait(slurm, job, 60)


#: What is killed, in a batch script, as jobs are; and what its output must hold.
VICTIMS = {
    "rank": "rank 1",
    "rank 0": "task 0: Killed",
    "its process": "rank 0",
    "srun": r"Killed +srun",
    "slurmstepd": r"rank 1 on host \S+: ended with slurmstepd,",
    "slurmd": "DUE TO NODE FAILURE",
    "server": "server 0",
}


def fault(slurm: VirtualSlurm, folder: Path, victim: str) -> dict[str, Any]:
    """Kill one process of a job, and wait until nothing of the job is left."""
    words = ["--print", "slurm", "-n", "1", "--nnodes", "2", "--insecure-network", "--", *TRAIN]
    words += ["--epochs", "100000", "--checkpoint", "kept", "--checkpoint-every", "5steps"]
    job = submit(slurm, script(folder, words), "--no-requeue", "-p", "low")
    until = time.monotonic() + 90
    while not list((folder / "kept").glob("*.ckpt")):
        assert time.monotonic() < until, [path.read_text() for path in folder.glob("*.out")]
        time.sleep(0.1)
    time.sleep(random.uniform(0, 2))
    slurm.daemons["n2"].kill() if victim == "slurmd" else _victim(slurm, victim).kill()
    began = time.monotonic()
    while (left := _ranks(slurm)) and time.monotonic() < began + 60:
        time.sleep(0.1)
    seconds = time.monotonic() - began
    said = "".join(path.read_text() for path in folder.glob("*.out"))
    slurm.run("scancel", job)
    if victim == "slurmd":
        slurm.daemons["n2"].wait()
        slurm.start_node("n2")
    wait(slurm, job, 90)
    named = re.search(VICTIMS[victim], said) is not None
    seen = {"victim": victim, "seconds": round(seconds, 1), "left": left, "named": named}
    return seen if named else {**seen, "said": said[-800:]}


def _ranks(slurm: VirtualSlurm) -> list[int]:
    """The processes of gluontune; SLURM's srun goes on waiting for a step daemon that was killed."""
    found = []
    for process in slurm.processes():
        with contextlib.suppress(psutil.Error):
            found += [process.pid] if process.cmdline()[:1] == [sys.executable] else []
    return found


def _victim(slurm: VirtualSlurm, kind: str) -> psutil.Process:
    def is_it(process: psutil.Process) -> bool:
        line = process.cmdline()
        return {
            "rank": "gluontune.training.started" in line,
            "its process": "gluontune.training.child" in line,
            "srun": line[:1] == ["srun"],
            "server": process.environ().get("DMLC_ROLE") == "server",
        }[kind]

    parents = {"slurmstepd": "rank", "rank 0": "its process"}  # the daemon of rank 1's step, on the second node
    if kind in parents:
        return psutil.Process(_victim(slurm, parents[kind]).ppid())
    return next(process for process in slurm.processes() if is_it(process))


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_process_ends_the_job(slurm, victim, tmp_path):
    seen = fault(slurm, tmp_path, victim)
    assert seen["seconds"] <= 30 and not seen["left"] and seen["named"], seen


def ratio(slurm: VirtualSlurm, folder: Path, times: int) -> dict[str, Any]:
    """The throughput of two ranks under ``srun`` divided by that under ``launch``, in so many pairs that take turns."""
    train, ratios = [*TRAIN, "--engine", "kvstore", "--epochs", "12", "--json"], []
    at = train.index("--engine")
    for k in range(times):
        found = {}
        for how in ("srun", "launch") if k % 2 else ("launch", "srun"):
            words = ["srun", "-n", "2", "-N", "1", *OURS, *train]
            if how == "launch":
                words = [*OURS, "launch", "-n", "2", *train[at : at + 2], "--", *train[:at], *train[at + 2 :]]
            found[how] = json.loads(slurm.run(*words).stdout)["samples_per_sec"]["median"]
        ratios.append(found["srun"] / found["launch"])
    return {"ratio": round(statistics.median(ratios), 3), "pairs": [round(each, 3) for each in ratios], "left": []}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--only", default="preempted," + ",".join(VICTIMS))
    options = parser.parse_args()
    bad = 0
    once = {"preempted": preempted, "ratio": ratio}
    with virtual_slurm() as slurm:
        for what in options.only.split(","):
            for _ in range(1 if what in once else options.trials):
                with tempfile.TemporaryDirectory() as name:
                    folder, times = Path(name), options.trials
                    seen = once[what](slurm, folder, times) if what in once else fault(slurm, folder, what)
                held = ("steps", "bits", "losses", "accuracies", "named")
                good = all(seen.get(what, True) for what in held) and not seen["left"]
                good = good and seen.get("preempted", options.trials) == options.trials
                good = good and seen.get("seconds", 0) <= 30 and seen.get("ratio", 1) >= 0.98
                bad += not good
                print(json.dumps(seen), flush=True)
    print(f"{bad} not as they should be")
    return min(bad, 1)


if __name__ == "__main__":
    os.environ.pop("SLURM_CONF", None)
    sys.exit(main())
