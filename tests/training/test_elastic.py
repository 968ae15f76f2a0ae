"""Several machines through torchrun: two agents that meet at 127.0.0.1 are two machines."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

import pytest
from launch_faults import FAULTS, fault_trial

import gluontune as gt
from gluontune.core.errors import UsageError
from gluontune.parallel.kvstore import free_port
from gluontune.train import Elastic
from gluontune.training.meeting import Meeting
from gluontune.training.rank_messages import RunFailed, fingerprint, versions

pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")

FIELDS = {"net": "mlp", "loader": "resident", "devices": "cpu", "backend": "torch", "engine": "ddp", "epochs": 1,
          "train_samples": 512, "val_samples": 128, "batch_size_per_device": 32}  # fmt: skip
FLAGS = [
    word for key, value in FIELDS.items() if key != "engine" for word in (f"--{key.replace('_', '-')}", str(value))
]


@pytest.fixture(scope="module")
def two_machines(tmp_path_factory):
    """An epoch on two machines of one rank each: folder of the checkpoints, and the result that each has."""
    folder = tmp_path_factory.mktemp("two")
    meeting = ["--nnodes", "1:2", "--rendezvous", f"127.0.0.1:{free_port('127.0.0.1')}"]
    argv = [sys.executable, "-m", "gluontune", "launch", "--engine", "ddp", *meeting, "--", "train", *FLAGS]
    argv += ["--checkpoint", str(folder / "kept")]
    going = [
        subprocess.Popen([*argv, "--out", str(folder / name)], stderr=subprocess.PIPE, text=True)
        for name in ("a.json", "b.json")
    ]
    said = [process.communicate(timeout=500)[1] for process in going]
    assert [p.returncode for p in going] == [0, 0], said
    return folder / "kept", *(gt.RunResult.load(folder / name) for name in ("a.json", "b.json"))


@pytest.mark.slow
def test_two_machines_learn_as_two_ranks_and_both_have_the_result(two_machines):
    _, first, second = two_machines
    assert first.to_dict() == second.to_dict() and first.ok
    assert first.recipe["num_devices"] == 2 and first.hosts[0]["ranks"] == [0, 1]
    alone = gt.train.run(gt.Recipe(**FIELDS, num_devices=2))
    assert first.train_loss == pytest.approx(alone.train_loss, rel=1e-4) and first.steps == alone.steps == 8


@pytest.mark.slow
def test_fewer_ranks_go_on_from_the_checkpoint_of_more(two_machines):
    folder, first, _ = two_machines
    more = gt.train.Checkpoints(folder, resume=True)
    second = gt.train.run(gt.Recipe(**{**FIELDS, "epochs": 2}, num_devices=1), checkpoints=more)
    assert second.ok and second.steps == 32, second.error  # two epochs of 16 steps, the first of them by two ranks
    assert second.train_loss[0] == first.train_loss[0] > second.train_loss[1]
    assert "2 ranks before, 1 now: epoch 2 begins anew" in second.notes


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"recipe": fingerprint({"net": "small_vgg"})}, "has another recipe: give all machines the same"),
        ({"versions": {**versions(), "gluontune": "0.0.1 (source 0)"}}, r"has versions .*0\.0\.1.*, rank 0 on host"),
        ({"versions": None}, "has versions None, rank 0 on host"),
    ],
)
def test_machines_that_differ_are_told_and_strangers_are_not_let_in(other, said):
    port = free_port("127.0.0.1")
    meeting = Meeting("127.0.0.1", [port], 2, fingerprint({"net": "mlp"}))
    stranger = socket.create_connection(("127.0.0.1", port))
    stranger.sendall(b"GET / HTTP/1.0\n")
    caller = socket.create_connection(("127.0.0.1", port))
    hello = {"rank": 1, "world": 2, "recipe": fingerprint({"net": "mlp"}), "host": "node2", "job": ""}
    caller.sendall(json.dumps({**hello, "versions": versions(), **other}).encode() + b"\n")
    with pytest.raises(RunFailed, match=f"rank 1 on host node2 {said}"):
        meeting.gather()
    assert stranger.recv(1) == b""  # hung up
    for line in (stranger, caller, meeting):
        line.close()


def test_who_has_left_a_meeting_is_seen_before_its_line_is_read():
    port = free_port("127.0.0.1")
    meeting = Meeting("127.0.0.1", [port], 2, fingerprint({}))
    with socket.create_connection(("127.0.0.1", port)) as caller:
        hello = {"rank": 1, "world": 2, "recipe": fingerprint({}), "host": "node2", "job": "", "versions": versions()}
        caller.sendall(json.dumps(hello).encode() + b"\n")
        meeting.gather()
        assert not meeting.someone_left()
    until = time.monotonic() + 10
    while not meeting.someone_left() and time.monotonic() < until:
        time.sleep(0.01)
    assert meeting.someone_left()
    meeting.close()
    assert meeting.someone_left()  # nobody is there


@pytest.mark.slow
def test_a_killed_rank_ends_all_machines_and_is_named():
    seen = fault_trial(*FAULTS["ddp of torchrun: rank killed"])
    assert seen["named"] and seen["orphans"] == 0 and seen["seconds"] < 30, seen


@pytest.mark.parametrize(
    ("nodes", "place", "words"),
    [
        ("0", "127.0.0.1:29400", "--nnodes '0': give the least and the most machines, such as 1:4"),
        ("4:1", "127.0.0.1:29400", "--nnodes '4:1'"),
        ("1:4", "node1", "--rendezvous 'node1': give the host and port"),
        ("1:4", "node1:99999", "--rendezvous 'node1:99999'"),
        ("1:4", "no.such.host.invalid:29400", "no.such.host.invalid:29400: .*is the name right"),
    ],
)
def test_a_meeting_that_cannot_be_is_told(nodes, place, words):
    with pytest.raises(UsageError, match=words):
        Elastic.parse(nodes, place)


def test_a_network_must_be_allowed(monkeypatch):
    monkeypatch.setattr("gluontune.training.elastic.is_loopback", lambda address: False)
    with pytest.raises(UsageError, match=r"neither torchrun nor gloo has a password.*--insecure-network"):
        Elastic.parse("2", "127.0.0.1:29400")
    assert Elastic.parse("2", "127.0.0.1:29400", insecure_network=True).nodes == (2, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--engine", "kvstore", "--nnodes", "2", "--rendezvous", "a:1"], "use --engine ddp, not kvstore"),
        (["--engine", "ddp", "--nnodes", "2"], "--nnodes and --rendezvous go together"),
        (["--engine", "ddp", "--nnodes", "2", "--rendezvous", "a:1", "--hosts", "a,b"], "choose one"),
        (["--engine", "ddp", "--nnodes", "2", "--rendezvous", "127.0.0.1:9", "--restart", "1"], "--checkpoint DIR"),
    ],
)
def test_options_that_do_not_go_together_are_told(options, words, capfd):
    from gluontune.cli.main import main

    assert main(["launch", *options, "--", "train", "--backend", "torch", "--loader", "resident"]) == 2
    assert words in capfd.readouterr().err
