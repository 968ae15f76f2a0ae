"""Ranks of PyTorch's engine share one export of the net: its numbers, its failures, and nothing left behind."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time

import numpy as np
import psutil
import pytest

import gluontune as gt
from gluontune.core.errors import GluontuneError
from gluontune.engines.torch import export as torch_export
from gluontune.engines.torch.export import EXPORT_VARIABLE, Exported, exported_once
from gluontune.parallel.shared import create
from gluontune.training.group import Group, RunFailed

FEW = {"loader": "resident", "train_samples": 128, "val_samples": 32, "batch_size_per_device": 16, "devices": "cpu"}
TWO = {**FEW, "backend": "torch", "engine": "ddp", "num_devices": 2}


def an_export(count=3):
    weights = np.random.default_rng(0).normal(size=count).astype(np.float32)
    return Exported(
        "{}", None, "{}", [], {"w": weights}, {"w": "0.w"}, "sample", {}, -1, {"w": 2.0}, {}, ["w"], [["w"]]
    )


@pytest.mark.parametrize("late", [0, 1], ids=["rank 0 is late", "rank 1 is late"])
def test_one_rank_exports_and_the_others_read_the_same_bits(monkeypatch, late):
    made, found = [], {}

    def export(recipe):
        made.append(recipe)
        return an_export(100_000)

    def rank(number):
        time.sleep(0.3 * (number == late))
        found[number] = exported_once(gt.Recipe(), number, 2)

    monkeypatch.setattr(torch_export, "exported", export)
    handle, path = create()
    monkeypatch.setenv(EXPORT_VARIABLE, path)
    ranks = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(30)
    assert len(made) == 1
    wanted = an_export(100_000)
    for number in (0, 1):
        assert found[number].arrays["w"].tobytes() == wanted.arrays["w"].tobytes()
        assert (found[number].frozen, found[number].lr_mult) == (["w"], {"w": 2.0})
    assert os.fstat(handle).st_size == 0, "whoever reads last empties the memory"
    os.close(handle)


def test_a_rank_whose_starter_is_gone_says_so(monkeypatch):
    monkeypatch.setenv(EXPORT_VARIABLE, "/proc/self/fd/987654")
    with pytest.raises(GluontuneError, match="had started this rank is gone"):
        exported_once(gt.Recipe(), 1, 2)


def test_ranks_that_share_no_memory_export_for_themselves(monkeypatch):
    monkeypatch.setattr(torch_export, "exported", lambda recipe: an_export())
    monkeypatch.delenv(EXPORT_VARIABLE, raising=False)
    assert exported_once(gt.Recipe(), 1, 2).data == "sample"


JOB = """
import os, time
from mxnet import gluon

def net():
    with open({marks!r}, "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    time.sleep({seconds})
    found = gluon.nn.HybridSequential()
    found.add(gluon.nn.Flatten(), gluon.nn.Dense(10))
    return found
"""


def left(folder):
    """What is ours in a folder for temporary files; PyTorch has a cache of its own there."""
    return [place.name for place in folder.iterdir() if not place.name.startswith("torchinductor")]


@pytest.fixture
def two(tmp_path, monkeypatch):
    """A recipe of two ranks, whose job marks each time that its net is built; files go to a folder of their own."""
    pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def recipe(more="", seconds=0):
        job = tmp_path / "job.py"
        job.write_text(JOB.format(marks=str(tmp_path / "marks"), seconds=seconds) + more)
        return gt.Recipe(**TWO, job=str(job))

    def marks():
        file = tmp_path / "marks"
        return file.read_text().split() if file.exists() else []

    yield recipe, marks, folder
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.mark.process
@pytest.mark.mxnet
def test_mxnet_builds_the_net_once_for_two_ranks(two):
    recipe, marks, folder = two
    with Group(recipe()) as group:
        assert group.steps(2)["samples"] == 64
    assert len(marks()) == 1 and left(folder) == []


@pytest.mark.process
@pytest.mark.mxnet
def test_a_net_that_cannot_be_exported_ends_all_ranks_with_the_reason(two):
    recipe, marks, folder = two
    own = "def step(net, x, y):\n    return gluon.loss.SoftmaxCrossEntropyLoss()(net(x), y)\n"
    with pytest.raises(RunFailed, match=r"rank 0: .*job.py.*step.*MXNet's arrays") as caught:
        Group(recipe(own))
    assert caught.value.phase == "starting"
    assert len(marks()) == 1 and left(folder) == []


@pytest.mark.process
@pytest.mark.mxnet
def test_ranks_that_are_killed_while_one_exports_leave_nothing(two):
    recipe, marks, folder = two
    group = Group(recipe(seconds=60), wait=False)
    try:
        until = time.monotonic() + 60
        while not marks() and time.monotonic() < until:
            time.sleep(0.1)
        exporter = psutil.Process(int(marks()[0]))
    finally:
        group.close()
    exporter.wait(10)
    assert left(folder) == []


@pytest.mark.process
@pytest.mark.mxnet
def test_a_run_that_is_killed_leaves_nothing_and_nobody(two):
    recipe, marks, folder = two
    code = (
        "import json, sys, gluontune as gt\n"
        "from gluontune.training.group import Group\n"
        "Group(gt.Recipe.from_dict(json.loads(sys.argv[1])))\n"
    )
    run = psutil.Popen([sys.executable, "-c", code, json.dumps(recipe(seconds=60).to_dict())])
    until = time.monotonic() + 60
    while not marks() and time.monotonic() < until:
        time.sleep(0.1)
    started = run.children(recursive=True)
    assert int(marks()[0]) in [process.pid for process in started]
    run.kill()
    run.wait()
    _, alive = psutil.wait_procs(started, 10)
    assert not alive and left(folder) == []
