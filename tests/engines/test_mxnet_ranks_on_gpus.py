"""Ranks of MXNet's engine on pretended GPUs: gradients and parameters exchanged from there and back."""

from __future__ import annotations

import os
import threading
import types

import numpy as np
import pytest
from mxnet_on_gpus import ONE, ONE_GPU, close, weights

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.job.checkpoint import Writer
from gluontune.parallel import horovod
from gluontune.parallel.shared import PATH_VARIABLE, create
from gluontune.runtime import mxnet

mx = mxnet()
ALONE = {**ONE_GPU, "batch_size_per_device": 64}


@pytest.fixture
def memory(monkeypatch):
    """Shared memory for one run."""
    handle, path = create()
    monkeypatch.setenv(PATH_VARIABLE, path)
    yield path
    os.close(handle)


def hvd(said):
    """Horovod of one rank, which notes the devices and types of what it is given."""

    def grouped_allreduce_(arrays, average, name):
        said.append((name, average, {str(a.context) for a in arrays}, {str(np.dtype(a.dtype)) for a in arrays}))

    def broadcast_(array, root_rank, name):
        said.append(("broadcast", root_rank, {str(array.context)}, {str(np.dtype(array.dtype))}))

    return types.SimpleNamespace(
        grouped_allreduce_=grouped_allreduce_, broadcast_=broadcast_, broadcast=lambda array, root_rank, name: array
    )


@pytest.mark.parametrize("every", [1, 2])
def test_two_ranks_on_their_gpus_sum_in_shared_memory_what_one_cpu_trains(gpus, started, memory, every):
    """With two steps between exchanges the ranks differ until they agree; with one they are one training."""
    two = {"engine": "shared-memory", "num_devices": 2, "batch_size_per_device": 32, "exchange_every": every}
    sessions, failed = [None, None], []

    def rank(number):
        try:
            session = sessions[number] = started(given=(number, 2), **{**two, "devices": "gpu:2,0"})
            session.steps(3)
            session.agree()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and not any(thread.is_alive() for thread in threads)
    first, second = (weights(session) for session in sessions)
    assert close(first, second, by=0.0)
    assert [str(s.context.ctxs[0]) for s in sessions] == ["cpu(3)", "cpu(1)"] and gpus.seen <= {"cpu(3)", "cpu(1)"}
    alone = started(**ONE)
    begun = weights(alone)
    alone.steps(3)
    assert close(first, weights(alone)) is (every == 1) and not close(first, begun)


def test_gradients_alone_and_a_checkpoint_of_a_rank_on_a_gpu(gpus, started, memory, tmp_path):
    session = started(given=(0, 1), engine="shared-memory", **ALONE)
    (found,) = session.commands()["exchange"]({"kinds": [[2, 100]], "repeats": 2})["found"]
    assert (found["bytes"], found["tensors"]) == (800.0, 2)
    session.writer = Writer(str(tmp_path), keep=1)
    session.steps(2)
    written = session.checkpoint({"recipe": session.recipe.to_dict()}, wait=True)["written"]
    session.steps(2)
    want = weights(session)
    session.reset()
    session.restore(written)
    session.steps(2)
    assert close(weights(session), want, by=0.0) and gpus.seen == {"cpu(2)"}


def test_a_rank_without_shared_memory_is_told(gpus, started, monkeypatch):
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    with pytest.raises(GluontuneError, match="no shared memory; start it with gluontune launch --engine shared-memory"):
        started(engine="shared-memory", **ALONE)


def test_a_learner_on_a_gpu_shares_its_weights_and_is_replaced(gpus, started, memory, tmp_path):
    learner = started(engine="async", **ALONE)
    learner.steps(4)
    learner.agree()
    shared = weights(learner)
    plain = started(**ALONE)
    begun = weights(plain)
    plain.steps(4)
    assert close(shared, weights(plain)), "one learner trains as if alone"
    learner.writer = Writer(str(tmp_path), keep=1)
    written = learner.checkpoint({"recipe": learner.recipe.to_dict()}, wait=True)["written"]
    other = started(given=(0, 1, None, True), engine="async", **ALONE)
    assert close(weights(other), shared, by=0.0) and not close(shared, begun), "its weights are the shared ones"
    assert other.progress.steps == 4 and other.optimization.trainer._optimizer.num_update == 4
    other.steps(1)
    assert not close(weights(other), shared) and gpus.seen == {"cpu(2)"}
    other.reset()
    other.restore(written)
    assert close(weights(other), shared, by=0.0) and other.optimization.averaging.steps_taken == 4


@pytest.mark.parametrize("changes", [{}, {"compression": "fp16"}, {"exchange_every": 2}], ids=["sums", "half", "means"])
def test_horovod_is_given_what_is_on_the_ranks_gpu(gpus, started, monkeypatch, tmp_path, changes):
    said = []
    monkeypatch.setattr(horovod, "join", lambda rank, world, size: horovod.Exchange(hvd(said), rank))
    session = started(engine="horovod", **ALONE, **changes)
    assert {each[0] for each in said} == {"broadcast"}, "the start comes from rank 0"
    said.clear()
    session.steps(2)
    halves = changes.get("compression") == "fp16"
    kind, name = {"float16" if halves else "float32"}, f"gradients.float{16 if halves else 32}"
    want = (
        [("parameters", True, {"cpu(2)"}, kind)]
        if "exchange_every" in changes
        else [(name, False, {"cpu(2)"}, kind)] * 2
    )
    assert said == want
    plain = started(**ALONE)
    plain.steps(2)
    assert close(weights(session), weights(plain), by=2e-2 if halves else 1e-5)
    session.writer = Writer(str(tmp_path), keep=1)
    written = session.checkpoint({"recipe": session.recipe.to_dict()}, wait=True)["written"]
    session.restore(written)
    assert session.progress.steps == 2


@pytest.mark.parametrize("every", [1, 2])
def test_a_parameter_server_is_given_what_is_on_the_ranks_gpu(gpus, started, monkeypatch, every):
    made, create_one = [], mx.kv.create

    def create_store(name="local"):
        made.append(name)
        return create_one("local" if name == "dist_sync" else name)

    monkeypatch.setattr(mx.kv, "create", create_store)
    monkeypatch.setattr(mx.kvstore, "create", create_store)
    session = started(engine="kvstore", exchange_every=every, **ALONE)
    session.steps(4)
    session.agree()
    plain = started(**ALONE)
    plain.steps(4)
    assert close(weights(session), weights(plain)) and "dist_sync" in made
    with pytest.raises(GluontuneError, match="starts anew in fresh processes"):
        session.reset(1)
        session.reset()


def test_a_population_is_refused_on_several_ranks(gpus, started, memory):
    session = started(engine="shared-memory", **ALONE)
    session.world = 2
    with pytest.raises(UsageError, match="processes of one rank each"):
        session.commands()["individual"]({"what": "mark", "given": {}})
