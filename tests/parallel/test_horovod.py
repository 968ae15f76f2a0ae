"""What is ours of Horovod's engine, with a stand-in for Horovod: two ranks as two threads.

The same with the real one is in ``tests/trials/horovod_real.py``, which ``make horovod`` runs after building it.
"""

from __future__ import annotations

import importlib
import threading
import types

import numpy as np
import pytest

import gluontune as gt
from gluontune.core.errors import GluontuneError
from gluontune.parallel import horovod
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet
from gluontune.train import run


class Ring:
    """Sums and broadcasts among threads; a barrier on each side of every exchange."""

    def __init__(self, world):
        self.world, self.barrier, self.slots = world, threading.Barrier(world, timeout=30), {}

    def swap(self, rank, value):
        self.slots[rank] = value
        self.barrier.wait()
        found = [self.slots[k] for k in range(self.world)]
        self.barrier.wait()
        return found

    def rank(self, rank):
        nd = mxnet().nd

        def grouped_allreduce_(tensors, average, name):
            assert average is False, "the trainer divides by the global batch: a mean would divide twice"
            for parts in zip(tensors, *self.swap(rank, [t.asnumpy() for t in tensors])):
                parts[0][:] = nd.array(sum(parts[1:]))

        def broadcast(tensor, root_rank, name):
            first = self.swap(rank, tensor.asnumpy())[root_rank]
            return nd.array(first, dtype=first.dtype)

        def broadcast_(tensor, root_rank, name):
            tensor[:] = broadcast(tensor, root_rank, name)

        return types.SimpleNamespace(grouped_allreduce_=grouped_allreduce_, broadcast=broadcast, broadcast_=broadcast_)


def on_ranks(world, work):
    ring, answers = Ring(world), {}

    def thread(rank):
        answers[rank] = work(rank, horovod.Exchange(ring.rank(rank), rank))

    threads = [threading.Thread(target=thread, args=(rank,)) for rank in range(world)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    return [answers[rank] for rank in range(world)]


def weights_after(steps, optimizer, ranks, clip=None, accumulate=1):
    """A dense layer's weights after some updates on the same samples, divided over ``ranks``."""
    mx = mxnet()
    rng = np.random.default_rng(0)
    data = rng.normal(size=(steps, 8, 5)).astype("float32")
    start = rng.normal(size=(3, 5)).astype("float32")

    def work(rank, exchange):
        net = mx.gluon.nn.Dense(3, in_units=5, use_bias=False)
        net.initialize()
        net.weight.set_data(mx.nd.array(start))
        trainer = gt.optim.setup(
            optimizer, net, learning_rate=0.1, global_batch_size=8, base_batch_size=4, schedule="cosine",
            total_updates=steps, clip_global_norm=clip, accumulate=accumulate,
            exchange=exchange.sum_gradients if ranks > 1 else None,
        )  # fmt: skip
        for batch in data:
            x = mx.nd.array(batch[rank::ranks])
            with mx.autograd.record():
                loss = (net(x) ** 2).sum(axis=1)
            loss.backward()
            trainer.step()
        return net.weight.data().asnumpy()

    return on_ranks(ranks, work)


@pytest.mark.parametrize(
    ("optimizer", "options"), [("sgd", {}), ("adam", {}), ("sgd", {"clip": 0.5}), ("nag", {"accumulate": 2})]
)
def test_ranks_train_what_one_process_trains_on_the_whole_batch(optimizer, options):
    (alone,) = weights_after(6, optimizer, 1, **options)
    first, second = weights_after(6, optimizer, 2, **options)
    assert np.array_equal(first, second)
    np.testing.assert_allclose(first, alone, rtol=1e-5, atol=1e-6)


def test_parameters_and_running_statistics_come_from_rank_0():
    nd = mxnet().nd

    def work(rank, exchange):
        named = {"weight": nd.full((2, 2), rank + 1.0), "running_mean": nd.full((3,), -rank)}
        exchange.take_from_first(named)
        return named["weight"].asnumpy().tolist(), named["running_mean"].asnumpy().tolist()

    assert on_ranks(2, work) == [([[1, 1], [1, 1]], [0, 0, 0])] * 2


def test_a_checkpoint_is_handed_round_whole():
    header = {"step": 7, "optimizer": {"num_update": 7, "states": [[0, {"array": "a0"}]]}, "scaler": None}
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.ones(3, np.float16),
        "none": np.zeros((0, 4), np.int64),
        "scalar": np.array(5, np.uint32),
    }

    def work(rank, exchange):
        return exchange.read_once(lambda: (header, arrays))

    for got_header, got in on_ranks(2, work):
        assert got_header == header and got.keys() == arrays.keys()
        for name, value in arrays.items():
            assert got[name].dtype == value.dtype and got[name].shape == value.shape
            assert np.array_equal(got[name], value)


def test_without_horovod_the_way_out_is_named(monkeypatch):
    monkeypatch.setattr(horovod, "installed", lambda: None)
    result = run(Recipe(net="mlp", engine="horovod", num_devices=2))
    assert result.status == "failed" and result.error["type"] == "EngineMissing"
    assert "make horovod" in result.error["message"] and "--engine kvstore" in result.error["message"]


def test_a_rank_that_horovod_numbers_otherwise_is_an_error(monkeypatch):
    fake = types.SimpleNamespace(init=lambda: None, rank=lambda: 1, size=lambda: 2)
    real = importlib.import_module
    monkeypatch.setattr(
        horovod.importlib, "import_module", lambda name: fake if name == "horovod.mxnet" else real(name)
    )
    with pytest.raises(GluontuneError, match="rank 1 of 2, but this is rank 0 of 2"):
        horovod.join(0, 2)
