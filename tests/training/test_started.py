"""Ranks that something else started: this test sets the variables as mpirun would."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from hypothesis import given, strategies as st

from gluontune.cli.main import main
from gluontune.parallel import environment
from gluontune.recipe import Recipe
from gluontune.train import run
from gluontune.training.rank_messages import RunFailed, resources, shares
from gluontune.training.started import ports_of

FIELDS = {"net": "mlp", "loader": "resident", "devices": "cpu", "learning_rate": 0.1, "train_samples": 1024,
          "val_samples": 128, "batch_size_per_device": 32}  # fmt: skip
FLAGS = [word for key, value in FIELDS.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def variables(rank, world=2, job="test", local_world=None):
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    local = (rank, world) if local_world is None else (rank % local_world, local_world)
    return {**dict(zip(names, map(str, (rank, world, *local)))), "PMIX_NAMESPACE": f"{job} {os.getpid()}"}


def start(engine, *words, job="test", world=2, under=(), flags=FLAGS, local_world=None, of=variables, **how):
    """The ranks of a run, each a process of its own."""
    command = [*under, sys.executable, "-m", "gluontune", "train", "--engine", engine, *flags, *words]
    return [
        subprocess.Popen(
            command, env={**os.environ, **of(rank, world, job, local_world)}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, **how,
        )
        for rank in range(world)
    ]  # fmt: skip


def ended(ranks, limit=240):
    return [rank.communicate(timeout=limit) for rank in ranks]


def gone(processes, within_s):
    until = time.monotonic() + within_s
    alive = processes
    while alive and time.monotonic() < until:
        alive = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.1)
    return not alive


def family(ranks):
    found = [psutil.Process(rank.pid) for rank in ranks]
    return [*found, *(child for process in found for child in process.children(recursive=True))]


@functools.cache
def by_launch(engine, **torch):
    """What the same run gives that starts its ranks itself."""
    return run(Recipe(**FIELDS, **torch, engine=engine, num_devices=2))


SLOW = [pytest.param(engine, marks=pytest.mark.slow) for engine in ("shared-memory", "ddp")]


@pytest.mark.parametrize("engine", ["kvstore", *SLOW])
def test_two_ranks_train_as_those_of_launch_and_one_has_the_result(engine, tmp_path):
    torch = {"backend": "torch"} if engine == "ddp" else {}
    if torch:
        pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")
    ranks = start(engine, "--json", "--out", str(tmp_path / "out.json"), *(["--backend", "torch"] if torch else []))
    (document, said), (silent, _) = ended(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], said
    result = json.loads(document)
    assert silent == "" and result == json.loads((tmp_path / "out.json").read_text())
    assert "rank 0 of 2, one of 2 on this host, started by mpirun (OMPI_COMM_WORLD_RANK" in said
    assert result["hosts"][0]["ranks"] == [0, 1] and result["recipe"]["num_devices"] == 2
    alone = by_launch(engine, **torch)
    assert result["train_loss"] == alone.train_loss and result["val_accuracy"] == alone.val_accuracy


#: Runs a command on a host of another name, which is another machine to gluontune.
ELSEWHERE = ["unshare", "--uts", "sh", "-c", 'hostname "host$OMPI_COMM_WORLD_RANK" && exec "$@"', "sh"]


@pytest.mark.skipif(os.getuid() != 0, reason="a host of another name needs root")
@pytest.mark.parametrize("engine", ["kvstore", SLOW[1]])
def test_ranks_of_two_hosts_train_as_those_of_one(engine, monkeypatch):
    torch = {"backend": "torch"} if engine == "ddp" else {}
    if torch:
        pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    words = ["--json", *(["--backend", "torch"] if torch else [])]
    ranks = start(engine, *words, under=ELSEWHERE, job="hosts", local_world=1)
    (document, said), _ = ended(ranks)
    result = json.loads(document or "{}")
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert [(host["name"], host["ranks"]) for host in result["hosts"]] == [("host0", [0]), ("host1", [1])]
    alone = by_launch(engine, **torch)
    assert result["train_loss"] == pytest.approx(alone.train_loss, rel=1e-4)


@pytest.mark.skipif(os.getuid() != 0, reason="a host of another name needs root")
def test_an_engine_of_one_host_refuses_two(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    ranks = start("shared-memory", under=ELSEWHERE, job="refused", local_world=1)
    assert "works on one host, and these ranks are on several" in ended(ranks)[0][1]
    assert [rank.returncode for rank in ranks] == [1, 1]


#: Runs a command as a launcher's daemon does, on its host.
DAEMON = ["sh", "-c", '"$@"; exit $?', "sh"]


@pytest.mark.parametrize(
    ("victim", "under", "named"),
    [
        (1, [], "rank 1 on host"),
        (1, DAEMON, f"rank 1 on host {os.uname().nodename}: ended with sh, which had started it"),
        pytest.param(0, [], "", marks=pytest.mark.slow),
    ],
)
def test_a_killed_rank_ends_all_and_is_named(victim, under, named, tmp_path):
    words = ["--epochs", "100000", "--checkpoint", str(tmp_path), "--checkpoint-every", "5steps"]
    ranks = start("kvstore", *words, under=under)
    until = time.monotonic() + 120
    while not list(tmp_path.glob("*.ckpt")) and time.monotonic() < until:
        time.sleep(0.1)
    everyone = family(ranks)
    ranks[victim].kill()
    assert gone(everyone, 30)
    said = ended(ranks)[0][1]
    assert named in said, said
    assert ranks[1 - victim].returncode == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)])
def test_mpich_is_told_when_to_end_all_and_not_before_the_dead_rank_is_named(number, tmp_path):
    reading, writing = os.pipe()

    def mpich(rank, world, job, _):
        names = dict(zip(("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"), map(str, (rank, world) * 2)))
        return {**names, "PMI_FD": str(writing), environment.RUN_VARIABLE: f"{job} {os.getpid()}"}

    words = ["--epochs", "100000", "--checkpoint", str(tmp_path), "--checkpoint-every", "5steps"]
    ranks = start("kvstore", *words, job="mpich", of=mpich, pass_fds=[writing])
    os.close(writing)
    until = time.monotonic() + 120
    while not list(tmp_path.glob("*.ckpt")) and time.monotonic() < until:
        time.sleep(0.1)
    everyone = family(ranks)
    follower = next(process for process in everyone if "gluontune.training.started" in process.cmdline())
    for process in [follower] if number == signal.SIGKILL else ranks:
        process.send_signal(number)
    assert gone(everyone, 30)
    (_, said), (_, last) = ended(ranks)
    told = os.read(reading, 4096)  # some library asks MPICH for a name, too
    if number == signal.SIGKILL:
        assert "rank 1 on host" in said and f"rank 1 on host {os.uname().nodename} was killed by SIGKILL" in last
        assert told.endswith(b"cmd=abort exitcode=1\n") and [rank.returncode for rank in ranks] == [1, 1]
    else:
        assert b"abort" not in told and [rank.returncode for rank in ranks] == [130, 130], said
    os.close(reading)


def test_ranks_end_with_their_launcher(tmp_path):
    text = f"""
import os, subprocess, sys, time
sys.path[:0] = [{os.path.dirname(__file__)!r}]
from test_started import start
ranks = start("kvstore", "--epochs", "100000", "--checkpoint", {str(tmp_path)!r}, "--checkpoint-every", "5steps")
time.sleep(600)
"""
    launcher = subprocess.Popen([sys.executable, "-c", text])
    until = time.monotonic() + 120
    while not list(tmp_path.glob("*.ckpt")) and time.monotonic() < until:
        time.sleep(0.1)
    everyone = family([launcher])
    assert len(everyone) >= 6  # the launcher, two ranks, rank 0's own process, scheduler, server
    launcher.kill()
    launcher.wait()
    assert gone(everyone[1:], 30)


@pytest.mark.slow
def test_a_signal_to_all_ranks_saves_and_the_next_start_ends_as_an_undisturbed_run(tmp_path):
    long = ["--epochs", "6", "--json"]
    whole = json.loads(ended(start("kvstore", *long, job="a"))[0][0])
    kept = ["--checkpoint", str(tmp_path), "--checkpoint-every", "3steps"]
    ranks = start("kvstore", *long, *kept, job="b")
    until = time.monotonic() + 120
    while not list(tmp_path.glob("*.ckpt")) and time.monotonic() < until:
        time.sleep(0.01)
    for rank in ranks:
        rank.send_signal(signal.SIGTERM)
    first = json.loads(ended(ranks)[0][0])
    assert first["status"] == "interrupted" and first["steps"] < whole["steps"]
    assert [rank.returncode for rank in ranks] == [130, 130]
    again = json.loads(ended(start("kvstore", *long, *kept, "--resume", job="c"))[0][0])
    assert again["steps"] == whole["steps"] and "went on from" in again["notes"][0]
    assert (again["train_loss"], again["val_accuracy"]) == (whole["train_loss"], whole["val_accuracy"])


def test_a_signal_before_the_training_ends_a_rank_at_once(tmp_path):
    ranks = start("kvstore", "--epochs", "100000", "--checkpoint", str(tmp_path))
    time.sleep(0.4)  # in the midst of imports
    ranks[0].terminate()
    ranks[1].terminate()
    ended(ranks, limit=20)
    assert [rank.returncode for rank in ranks] == [-signal.SIGTERM] * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --epochs 1", "engine='local' trains in one process, and this is rank 1 of 2"),
        ("train --engine async", "engine='async' starts its learners itself"),
        ("train --engine kvstore --num-devices 3", "--num-devices 3, and this is rank 1 of 2"),
        ("train --engine kvstore --checkpoint here --restart 1", "a launcher starts its ranks again"),
        ("launch -n 2 -- train", "launch starts ranks, and this is already rank 1 of 2"),
    ],
)
def test_what_contradicts_a_rank_is_told(words, said, monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, value in variables(1).items():
        monkeypatch.setenv(name, value)
    assert main([*words.split(), *(FLAGS if words.startswith("train") else [])]) == 2
    assert said in " ".join(capfd.readouterr().err.split())


def test_a_server_of_mxnets_tracker_leaves_its_work_to_rank_0(monkeypatch, capfd):
    monkeypatch.setenv("DMLC_ROLE", "server")
    monkeypatch.setenv("DMLC_NUM_WORKER", "2")
    assert main(["train", "--engine", "kvstore"]) == 0
    assert "nothing to do" in capfd.readouterr().err


def test_a_network_must_be_allowed(monkeypatch, capfd):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.99", "MASTER_PORT": "29400"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "--engine", "kvstore", *FLAGS]) == 2
    assert "--insecure-network" in capfd.readouterr().err


def test_a_rank_0_that_cannot_begin_ends_the_others(tmp_path):
    (tmp_path / "file").write_text("")
    ranks = start("kvstore", "--checkpoint", str(tmp_path / "file"))
    began = time.monotonic()
    (_, said), _ = ended(ranks, limit=60)
    assert ranks[0].returncode != 0 and ranks[1].returncode != 0 and time.monotonic() - began < 30, said


def test_ranks_with_another_recipe_are_told():
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "gluontune", "train", "--engine", "kvstore", *FLAGS, "--seed", str(rank)],
            env={**os.environ, **variables(rank)}, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    assert "rank 1 on host" in ended(ranks)[0][1] and [rank.returncode for rank in ranks] == [1, 1]


def test_ranks_of_another_run_look_elsewhere():
    one, other = (environment.Place("mpirun", ("A", "B"), 0, 2, job=job) for job in "12")
    assert set(ports_of(one)).isdisjoint(ports_of(other)) and len(set(ports_of(one))) == 8


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([(0, 1), (2,)]), st.sampled_from([None, "0"]))))
def test_every_part_of_a_machine_goes_to_one_rank(seen):
    hellos = [{"machine": m, "cpus": list(c), "devices": d} for m, c, d in seen]
    found = shares(hellos)
    assert all(0 <= share["part"] < share["parts"] for share in found)
    parts = [(m, c, share["part"]) for (m, c, _), share in zip(seen, found)]
    devices = [(m, d, share["device"]) for (m, _, d), share in zip(seen, found)]
    assert len(set(parts)) == len(parts) and len(set(devices)) == len(devices)


def test_a_limit_of_the_scheduler_is_kept_and_nothing_is_bound_below_it(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("gluontune.runtime.cpu.Cpu.compute_cores", lambda self: 8)
    recipe = Recipe(runtime="tuned")
    assert resources(recipe, None, {"part": 0, "parts": 2})[0]["OMP_NUM_THREADS"] == "4"
    env, cpus = resources(recipe, 3, {"part": 0, "parts": 2})
    assert env["OMP_NUM_THREADS"] == "3" and cpus is None
    assert resources(Recipe(), 3, {"part": 0, "parts": 2})[0].get("OMP_NUM_THREADS") == "3"
    assert resources(recipe, 8, {"part": 0, "parts": 1})[0]["OMP_NUM_THREADS"] == "8"


def test_no_free_port_is_told():
    import socket

    from gluontune.training.meeting import Meeting

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RunFailed, match=r"no port of \[\d+\] is free"):
        Meeting("127.0.0.1", [taken.getsockname()[1]], 2, "alike")
