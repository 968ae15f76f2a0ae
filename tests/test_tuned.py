"""best.yaml around a stranger's loop: loader, net and trainer as the recipe has them."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import gluontune as gt
from gluontune.errors import GluontuneError, UsageError
from gluontune.runtime import mxnet

BEST = """# What gluontune ladder found fastest on this machine.
batch_size_per_device: 50
loader: resident  # records: 2.10x the speed here
hybridize: static  # hybridized: 1.30x the speed here
rewrites: [pool-to-mean]
optimizer: muon
learning_rate: 0.02
epochs: 2
"""


@pytest.fixture
def best(tmp_path):
    path = tmp_path / "best.yaml"
    path.write_text(BEST)
    return path


def loop(loader, net, trainer, epochs=1):
    """As Gluon's tutorials have it."""
    mx = mxnet()
    loss_fn = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(epochs):
        losses = []
        for x, y in loader:
            with mx.autograd.record():
                loss = loss_fn(net(x), y)
            loss.backward()
            trainer.step(len(y))
            losses.append(float(loss.mean().asscalar()))
    return losses


def digits(count):
    """Images whose class is where their bright row lies: a Gluon data set of somebody else."""
    mx = mxnet()
    labels = np.arange(count) % 4
    images = np.random.default_rng(3).random((count, 1, 8, 8)).astype("float32")
    images[np.arange(count), 0, labels * 2] += 2
    return mx.gluon.data.ArrayDataset(images, labels.astype("float32"))


def small(mx):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(8, 3, padding=1), mx.gluon.nn.Flatten(), mx.gluon.nn.Dense(4))
    return net


def test_a_named_data_set_is_read_and_learned_as_the_recipe_says(best):
    mx = mxnet()
    mx.random.seed(0)
    own = gt.train.build_net("small_cnn", 10)
    loader, net, trainer, val = gt.tuned(best, own, "sample")
    x, _ = next(iter(loader))
    assert x.shape == (50, 28, 28, 1) and x.dtype == np.uint8  # normalized in the graph
    assert trainer.optimizer.__class__.__name__ == "GTMuon"
    assert len(loader) == 200 and trainer.schedule(399) < trainer.schedule(200)  # two epochs of one cycle
    losses = loop(loader, net, trainer)
    assert np.mean(losses[-20:]) < 0.6 * np.mean(losses[:20])
    right = sum(int((net(x).argmax(axis=1) == y).sum().asscalar()) for x, y in val)
    assert right > 0.6 * 2000
    names = {p.name for p in own.collect_params().values()}
    assert names <= {p.name for p in net.collect_params().values()}  # own.save_parameters() has what was learned


def test_a_gluon_data_set_keeps_its_transforms_and_gets_batch_rewrites_mode_and_trainer(best, caplog):
    mx, read = mxnet(), []

    def counted(x):
        read.append(1)
        return x

    train = digits(200).transform_first(counted)
    loader, net, trainer, val = gt.tuned(best, small(mx), train, val=digits(60), epochs=20)
    read.clear()
    losses = loop(loader, net, trainer, epochs=20)
    assert losses[-1] < 0.2 and net._active and dict(net._flags)["static_shape"]
    assert len(loader) == 4 and [len(y) for _, y in val] == [50, 10]
    assert len(read) <= 1, "resident: samples are kept, and no epoch reads them again"
    with caplog.at_level(logging.WARNING, "gluontune"):
        gt.tuned(gt.Recipe(loader="threaded"), small(mx), digits(200))
    assert "'threaded' reads data sets of gt.datasets only" in caplog.text


def test_settings_that_only_a_new_process_can_take_are_told_with_the_command(caplog, monkeypatch):
    monkeypatch.setattr("sys.argv", ["my train.py"])
    recipe = gt.Recipe(env={"GLUONTUNE_OF_A_TEST": "a b"})
    with caplog.at_level(logging.WARNING, "gluontune"):
        gt.tuned(recipe, small(mxnet()), digits(128))
    assert "env GLUONTUNE_OF_A_TEST='a b' python 'my train.py'" in caplog.text
    caplog.clear()
    monkeypatch.setenv("GLUONTUNE_OF_A_TEST", "a b")
    gt.tuned(recipe, small(mxnet()), digits(128))
    assert not caplog.records


def test_ranks_become_one_batch_of_all_and_it_is_said(caplog):
    recipe = gt.Recipe(engine="shared-memory", num_devices=2, batch_size_per_device=32)
    loader, _, trainer, _ = gt.tuned(recipe, small(mxnet()), digits(256))
    assert len(loader) == 4 and trainer.global_batch_size == 64
    assert "whole batch of 64" in caplog.text


def test_bad_input_is_told(best, tmp_path):
    net = small(mxnet())
    with pytest.raises(GluontuneError, match="cannot read the recipe"):
        gt.tuned(tmp_path / "none.yaml", net, "sample")
    with pytest.raises(UsageError, match="give the name of a data set or a Gluon dataset"):
        gt.tuned(best, net, iter([]))
    with pytest.raises(UsageError, match=r"give a data set of \(input, label\)"):
        gt.tuned(best, net, mxnet().gluon.data.SimpleDataset([mxnet().nd.ones((1, 8, 8))] * 50))
    with pytest.raises(UsageError, match="start_process"):
        gt.tuned(gt.Recipe(dtype="bfloat16"), net, "sample")
