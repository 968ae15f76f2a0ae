"""Asynchronous learners, the interval between exchanges, and compressed gradients; mostly with real processes."""

from __future__ import annotations

import json
import os
import signal
import threading

import numpy as np
import psutil
import pytest
from ranks import parameters_after

import gluontune as gt
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.parallel import horovod
from gluontune.parallel.averaging import HorovodAveraging, SharedUpdates, flat_views
from gluontune.parallel.shared import SharedWeights, create, steps_of
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet
from gluontune.train import Group
from gluontune.training import learner as learners

mx = mxnet()
TWO = Recipe(
    net="mlp", loader="resident", train_samples=1024, val_samples=256, augment="none", devices="cpu",
    learning_rate=0.1, engine="kvstore", num_devices=2, batch_size_per_device=32, env={"OMP_NUM_THREADS": "1"},
)  # fmt: skip


@pytest.fixture
def memory():
    handle, path = create()
    yield path
    os.close(handle)


def learner(path, rank, arrays, every=1, world=2, **options):
    return SharedUpdates(arrays, every, world, averaged=[False, True], path=path, rank=rank, **options)


@pytest.mark.parametrize("thread_from", [0, 10**9])
def test_changes_of_all_learners_add_up_and_statistics_are_averaged(memory, thread_from):
    nets = [[mx.nd.ones((4, 3)), mx.nd.zeros((5,))] for _ in range(2)]
    learners = [learner(memory, rank, nets[rank], thread_from=thread_from) for rank in (0, 1)]
    for one in learners:
        one.publish()
    for _ in range(10):
        for net, one in zip(nets, learners):
            net[0] += 1
            net[1] += 1
            one.after_step()
    for _ in range(2):
        for one in learners:
            one.agree()
    for weights, statistics in nets:
        assert (weights.asnumpy() == 21).all() and (statistics.asnumpy() == 10).all()
    assert learners[0].shared.steps == [10, 10] and steps_of(memory, 1) == 10
    newcomer = [mx.nd.zeros((4, 3)), mx.nd.zeros((5,))]
    again = learner(memory, 1, newcomer)
    assert again.rejoin() == 10 and (newcomer[0].asnumpy() == 21).all()
    for one in [*learners, again]:
        one.close()


def test_between_exchanges_a_learner_is_alone(memory):
    mine, theirs = ([mx.nd.zeros((2,)), mx.nd.zeros((1,))] for _ in range(2))
    one, other = learner(memory, 0, mine, every=3), learner(memory, 1, theirs, every=3)
    one.publish()
    other.publish()
    for step in range(3):
        assert one.shared.weights.max() == 0, step
        mine[0] += 1
        one.after_step()
    one.agree()
    assert one.shared.weights[:2].tolist() == [3, 3] and (theirs[0].asnumpy() == 0).all()
    other.agree()
    assert (theirs[0].asnumpy() == 3).all()
    one.close()
    other.close()


def test_many_writers_without_locks_lose_little(memory):
    """Hogwild's bet: additions to the same weights at the same time are seldom lost."""
    size, rounds = 50_000, 40
    views = [SharedWeights(memory, np.zeros(size, np.float32), mark=1, rank=r, world=3) for r in range(3)]

    def add(view):
        for step in range(rounds):
            view.add(np.ones(size, np.float32), step + 1)

    threads = [threading.Thread(target=add, args=(view,)) for view in views]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = views[0].weights.copy()
    assert total.max() <= 3 * rounds and total.mean() > 0.5 * 3 * rounds
    assert views[1].steps == [rounds] * 3


def test_learners_of_different_nets_are_refused(memory):
    SharedWeights(memory, np.zeros(6, np.float32), mark=1, rank=0, world=2)
    for other, mark in ((np.zeros(6, np.float32), 2), (np.zeros(9000, np.float32), 1)):
        with pytest.raises(GluontuneError, match="nets differ"):
            SharedWeights(memory, other, mark=mark, rank=1, world=2)


def test_weights_in_onednns_layouts_are_read_and_written_in_order():
    net = mx.gluon.nn.Conv2D(16, 3, in_channels=8)
    net.initialize()
    x = mx.nd.ones((2, 8, 8, 8))
    with mx.autograd.record():
        y = net(x)
    y.backward()
    before = net(x).asnumpy()  # outside of training, the weights stay in the convolution's layout
    want = net.weight.data().asnumpy()
    (view,) = flat_views([net.weight.data()])
    assert (view == want.reshape(-1)).all()
    view *= 2
    assert np.allclose(net(x).asnumpy(), 2 * before, atol=1e-5)


def test_the_mean_of_ranks_by_horovod():
    class TwoRanks:
        def grouped_allreduce_(self, arrays, average, name):
            assert average
            for array in arrays:
                array[:] = (array + 3) / 2  # the other rank's values are all 3

    array = mx.nd.ones((2, 2))
    exchange = HorovodAveraging([array], 2, 2, TwoRanks())
    exchange.after_step()
    assert (array.asnumpy() == 1).all()
    exchange.after_step()
    assert (array.asnumpy() == 2).all()
    exchange.agree()  # nothing was done since
    assert (array.asnumpy() == 2).all()
    exchange.after_step()
    exchange.agree()
    assert (array.asnumpy() == 2.5).all()


@pytest.mark.slow
def test_a_learner_that_is_killed_is_started_again_and_the_run_ends_well():
    recipe = TWO.override(engine="async", batch_size_per_device=4, learning_rate=0.02, lr_scaling="none")
    recipe = recipe.override(base_batch_size=4, epochs=5, train_samples=512)
    killed, before = [], set(psutil.Process().children(recursive=True))

    def kill_once(event):
        if event["stage"] == "training" and event["done"] > 0.2 and not killed:
            family = psutil.Process().children(recursive=True)
            found = [p for p in family if any(part == "gluontune.training.child" for part in p.cmdline())]
            victim = sorted(found, key=lambda p: p.create_time())[-1]
            killed.append(victim.pid)
            victim.send_signal(signal.SIGKILL)

    result = gt.train.run(recipe, on_event=kill_once)
    assert result.status == "ok", result.error
    assert result.steps == 5 * 64 and len(result.val_accuracy) == 5
    assert killed and any("was killed by SIGKILL" in n and "started again" in n for n in result.notes)
    assert result.val_accuracy[-1] > 0.4 and result.train_loss[-1] < result.train_loss[0]
    # Of this run: other tests of this process may have started some. A kill is no end yet on a busy machine.
    started = set(psutil.Process().children(recursive=True)) - before
    _, left = psutil.wait_procs(started, timeout=20)
    assert not [p.cmdline() for p in left if p.status() != psutil.STATUS_ZOMBIE]


def test_a_learner_that_cannot_begin_is_an_error_not_a_loop(tmp_path):
    (tmp_path / "job.py").write_text("import os\ndef net(): os._exit(7)\n")
    result = gt.train.run(TWO.override(engine="async", job=str(tmp_path / "job.py")))
    assert result.status == "failed" and result.error["type"] == "ProcessDied"
    assert "code 7" in result.error["message"]  # and no TimeLimit, as a loop would end


AVERAGED = """
import gluontune.engines.mxnet.context as optimization
from gluontune.parallel.averaging import KvstoreAveraging
from gluontune.engines.mxnet.context import parameters

def every_step(recipe, context, net):
    arrays = [p.data(context.ctxs[0]) for p in parameters(net).values()]
    return KvstoreAveraging(arrays, 1, context.world)

optimization.make_averaging = every_step
def data(): return "sample"
"""


def test_averaging_parameters_in_each_step_is_the_exchange_of_gradients(tmp_path):
    (tmp_path / "job.py").write_text(AVERAGED)
    two = parameters_after(TWO.override(job=str(tmp_path / "job.py"), exchange_every=2), 12, tmp_path / "two")
    alone = TWO.override(engine="local", num_devices=1, batch_size_per_device=64)
    one = parameters_after(alone, 12, tmp_path / "one")
    assert len(one) == 6 and max(np.abs(one[name] - two[name]).max() for name in one) <= 1e-5


def test_two_bit_gradients_over_the_parameter_server_still_learn():
    with Group(TWO.override(compression="2bit", compression_threshold=2.0, learning_rate=0.03, epochs=5)) as group:
        first = group.steps(4)["loss"]
        group.steps(60)
        assert group.steps(4)["loss"] < 0.8 * first
        assert group.gradients()["tensors"] == 6
        rows = group.exchange_alone([[1, 256], [1, 262_144], [16, 256]], 5)
    assert [row["bytes"] for row in rows] == [1024, 2**20, 2**14] and all(row["ms"] > 0 for row in rows)


BAD = {
    "interval alone": ({"engine": "local", "num_devices": 1, "exchange_every": 2}, "exchanges nothing"),
    "fp16 by kvstore": ({"compression": "fp16"}, "fp16 is Horovod's"),
    "2bit by horovod": ({"engine": "horovod", "compression": "2bit"}, "MXNet's kvstore's"),
    "2bit by async": ({"engine": "async", "compression": "2bit"}, "MXNet's kvstore's"),
    "2bit alone": ({"engine": "local", "num_devices": 1, "compression": "2bit"}, "one device"),
    "2bit of float16": ({"devices": "gpu", "dtype": "float16", "compression": "2bit"}, "float32 gradients only"),
    "2bit of parameters": ({"compression": "2bit", "exchange_every": 4}, "only gradients"),
    "async float16": ({"engine": "async", "devices": "gpu", "dtype": "float16"}, "share is float32"),
    "shared-memory float16": ({"engine": "shared-memory", "devices": "gpu", "dtype": "float16"}, "share is float32"),
    "2bit by shared-memory": ({"engine": "shared-memory", "compression": "2bit"}, "shared memory needs none"),
    "no interval": ({"exchange_every": 0}, "at least 1"),
    "threshold": ({"compression": "2bit", "compression_threshold": 0}, "above 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_go_together_is_named(case):
    changes, words = BAD[case]
    with pytest.raises(UsageError, match=words):
        TWO.override(**changes)


def test_the_batch_of_an_update():
    assert TWO.global_batch_size == 64 and TWO.override(engine="async").global_batch_size == 32


def test_fp16_sends_half_precision_and_gives_back_the_gradients_type():
    sent = []

    class TwoRanks:
        def grouped_allreduce_(self, arrays, average, name):
            assert not average
            for array in arrays:
                sent.append(np.dtype(array.dtype).name)
                array *= 2

    grads = [mx.nd.array([1.0, 1e-3]), mx.nd.ones((3, 3))]
    horovod.Exchange(TwoRanks(), 0).sum_gradients(grads, compression="fp16")
    assert sent == ["float16", "float16"] and all(np.dtype(g.dtype) == np.float32 for g in grads)
    assert np.allclose(grads[0].asnumpy(), [2.0, 2e-3], rtol=1e-3) and (grads[1].asnumpy() == 2).all()


class Scripted:
    """A training process whose events are written beforehand."""

    def __init__(self, events):
        self.reading, self.writing = os.pipe()
        self.events, self.said = list(events), []

    def poll(self):
        return self.events.pop(0) if self.events else None

    def say(self, command):
        self.said.append(command)

    def how_ended(self, name):
        return f"{name} was killed"

    def close(self):
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def scripted(monkeypatch):
    """A Learner over scripted processes: ``make(scripts, steps)`` gives it, the processes and what it sends."""

    def make(scripts, steps):
        children, sent, waiting = [], [], list(scripts)

        def start(argv, setup, env, apart):
            assert apart is False and setup["rejoins"] is bool(children)
            children.append(Scripted(waiting.pop(0)))
            return children[-1]

        monkeypatch.setattr(learners, "PipedProcess", start)
        monkeypatch.setattr(learners.Learner, "steps", property(lambda self: steps[0]))
        return learners.Learner({"rank": 1}, lambda **event: sent.append(event)), children, sent

    return make


READY, END = {"event": "ready", "samples_per_step": 4}, {"event": "end"}


def commanded(learner, command):
    reading, writing = os.pipe()
    os.write(writing, json.dumps(command).encode() + b"\n")
    learner._take(reading)
    os.close(reading)
    os.close(writing)


def test_what_is_left_of_a_command_goes_to_the_next_process(scripted):
    steps = [0]
    learner, children, sent = scripted([[READY], [READY]], steps)
    learner._read_events()
    commanded(learner, {"do": "steps", "count": 10})
    assert children[0].said == [{"do": "steps", "count": 10}]
    steps[0] = 7
    children[0].events.append(END)
    learner._read_events()
    assert children[1].said == []  # it is not ready yet
    learner._read_events()
    assert children[1].said == [{"do": "steps", "count": 3}]
    children[1].events.append({"event": "done", "samples": 12, "seconds": 0.1, "loss": 1.0})
    learner._read_events()
    done = sent[-1]
    assert done["samples"] == 40 and done["seconds"] > 0.0
    assert [e["event"] for e in sent] == ["ready", "note", "done"]
    assert "learner 1 was killed at step 7" in sent[1]["text"]


def test_a_command_that_comes_while_nobody_is_there_waits(scripted):
    learner, children, _ = scripted([[READY, END], [READY]], [0])
    learner._read_events()
    commanded(learner, {"do": "validate"})
    assert children[1].said == []
    learner._read_events()
    assert children[1].said == [{"do": "validate"}]


def test_a_learner_that_dies_again_and_again_is_given_up_unless_it_gets_on(scripted):
    steps = [5]
    learner, _, sent = scripted([[READY, END]] * 5, steps)
    learner._read_events()
    learner._read_events()
    steps[0] = 6  # one step: its lives are given back
    learner._read_events()
    assert not learner._over
    learner._read_events()
    assert not learner._over
    learner._read_events()
    assert learner._over and sent[-1]["type"] == "ProcessDied" and "3 times" in sent[-1]["message"]


def test_a_silent_learner_is_replaced(scripted, monkeypatch):
    monkeypatch.setattr(learners, "_TICK_S", 0.01)
    monkeypatch.setattr(learners, "_SILENT_S", 0.05)
    learner, children, sent = scripted([[READY], [READY, {"event": "error", "message": "", "type": "E"}]], [0])
    learner._read_events()
    commanded(learner, {"do": "validate"})
    reading, writing = os.pipe()
    begin = learner._start
    monkeypatch.setattr(learner, "_start", lambda rejoins: (begin(rejoins), os.write(children[-1].writing, b"x")))
    learner.serve(reading)
    assert "gave no sign of life" in sent[1]["text"] and sent[-1]["event"] == "error"
    os.close(reading)
    os.close(writing)
