"""Two network namespaces as two hosts: ``make hosts`` runs these. They need root, iproute2 and openmpi-bin or mpich.

Each namespace has its own interfaces, addresses, name and loopback; a veth pair is the cable between them. A script
stands in for ssh.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launch_faults import _ON_HOSTS as FAULTS, _only as only, fault_trial, restart_trial, undisturbed
from two_hosts import two_hosts

from gluontune.parallel.horovod import installed
from gluontune.recipe import Recipe
from gluontune.train import run

FIELDS = {"net": "mlp", "loader": "resident", "devices": "cpu", "learning_rate": 0.1, "train_samples": 512,
          "val_samples": 64, "batch_size_per_device": 32}  # fmt: skip
TRAIN = ["train", *(word for key, value in FIELDS.items() for word in (f"--{key.replace('_', '-')}", str(value)))]
KINDS = [kind for kind in ("openmpi", "mpich") if shutil.which(f"mpirun.{kind}")]


@pytest.fixture(scope="module")
def net():
    assert KINDS, "no mpirun (Debian: apt install openmpi-bin mpich)"
    with two_hosts() as net:
        yield net


@pytest.fixture(params=["openmpi", "mpich"])
def launch(request, net, tmp_path):
    """The command ``launch`` on the first host, by one kind of mpirun; its environment."""
    if request.param not in KINDS:
        pytest.skip(f"no mpirun.{request.param} here")

    def command(*words, before="", train=TRAIN):
        where = ["--hosts", ",".join(net.names), "--rsh", net.transport(tmp_path, before), "--insecure-network"]
        ours = [sys.executable, "-m", "gluontune", "launch", *where, *words, "--", *train]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{only(request.param, tmp_path)}:{os.environ['PATH']}"}
        return {"args": net.inside(0, *ours), "env": env, "text": True}

    return command


def done(launch, *words, **options):
    return subprocess.run(**launch(*words, **options), capture_output=True, timeout=300)


@pytest.mark.parametrize("engine", ["kvstore", "ddp", "horovod"])
def test_two_hosts_train_as_two_ranks_of_one(launch, engine):
    if engine == "horovod" and installed() is None:
        pytest.skip("wants Horovod (make horovod)")
    ended = done(launch, "--engine", engine, train=[*TRAIN, "--json"])
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)  # one document
    assert [(h["name"], h["ranks"]) for h in result["hosts"]] == [("host-a", [0]), ("host-b", [1])]
    alone = run(Recipe(**FIELDS, engine=engine, num_devices=2, backend="torch" if engine == "ddp" else "mxnet"))
    assert result["train_loss"] == pytest.approx(alone.train_loss, rel=1e-5)


def test_unequal_software_is_named(launch, tmp_path):
    """The second host has a gluontune of its own, in which one file differs."""
    package = Path(__file__).parents[2] / "gluontune"
    shutil.copytree(package, tmp_path / "gluontune", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "gluontune" / "stats.py", "a") as changed:
        changed.write("# changed\n")
    ended = done(launch, before=f"mount --bind {tmp_path}/gluontune {package}; ")
    assert ended.returncode == 1
    said = " ".join(ended.stderr.split())
    assert "rank 1 on host host-b has versions" in said and "rank 0 on host host-a has" in said


def test_unequal_data_are_named(launch, tmp_path):
    job = "import socket\ndef data(): return 'sample' if socket.gethostname() == 'host-a' else 'synthetic:train=512,"
    (tmp_path / "job.py").write_text(job + "test=64,size=28x28'\n")
    ended = done(launch, train=[*TRAIN, "--job", str(tmp_path / "job.py")])
    assert ended.returncode == 1 and "rank 1 on host host-b has data" in " ".join(ended.stderr.split())


def test_a_host_whose_own_name_is_loopback_is_told_what_to_do_for_horovod(launch, net):
    """Debian's /etc/hosts says 127.0.1.1; Horovod would have the other hosts call themselves."""
    if installed() is None:
        pytest.skip("wants Horovod (make horovod)")
    own = Path("/etc/netns") / net.spaces[1] / "hosts"
    before = own.read_text()
    own.write_text(before.replace(net.addresses[1], "127.0.1.1"))
    try:
        said = " ".join(done(launch, "--engine", "horovod").stderr.split())
        assert "host host-b: its own name stands for 127.0.1.1, where other hosts" in said
    finally:
        own.write_text(before)


def test_ctrl_c_saves_and_a_resume_goes_on(launch, tmp_path):
    kept = ["--epochs", "500", "--checkpoint", str(tmp_path / "c"), "--checkpoint-every", "5steps"]
    with open(tmp_path / "said", "wb") as said:
        launched = subprocess.Popen(**launch(train=[*TRAIN, *kept]), stdout=said, stderr=said)
    until = time.monotonic() + 200
    while not list((tmp_path / "c").glob("*.ckpt")) and time.monotonic() < until:
        time.sleep(0.1)
    psutil.Process(launched.pid).send_signal(signal.SIGINT)
    assert launched.wait(60) == 130
    assert "stopped by SIGUSR1 at step" in (tmp_path / "said").read_text()
    again = done(launch, train=[*TRAIN, *kept, "--seconds", "1", "--resume", "--json"])
    assert "went on from" in json.loads(again.stdout)["notes"][0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_all_and_is_named(fault, kind):
    if (fault, kind) == ("host cut off", "mpich"):
        pytest.skip("MPICH learns of it from ssh, and no ssh is between these hosts")
    seen = fault_trial(f"kvstore {kind}", *FAULTS[fault])
    assert seen["named"] and seen["seconds"] <= 30 and not seen["orphans"], seen


def test_a_restart_after_a_cut_ends_with_the_accuracy_of_a_run_left_alone():
    seen = restart_trial("kvstore openmpi", *FAULTS["host cut off"])
    assert seen["accuracies"] == undisturbed("kvstore")["accuracies"]
    assert any("went on from" in note for note in seen["notes"])
