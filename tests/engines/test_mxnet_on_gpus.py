"""A whole training by MXNet's engine on GPUs that are pretended: every array where it belongs, results of one CPU."""

from __future__ import annotations

import numpy as np
import pytest
from mxnet_on_gpus import ON_TWO, ONE, ONE_GPU, TWO, close, weights

from gluontune.core.errors import UsageError
from gluontune.job.checkpoint import Writer
from gluontune.parallel import kvstore
from gluontune.runtime import mxnet

mx = mxnet()

HALF = """
import mxnet as mx
from mxnet import gluon
class Scaled(gluon.nn.HybridBlock):  # MXNet has float16's products of matrices on GPUs only
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.w = self.params.get("w", shape=(1, 10), init=mx.init.One())
    def hybrid_forward(self, F, x, w):
        return F.broadcast_mul(F.mean(x, axis=(1, 2, 3)).reshape((-1, 1)), w)
def net(): return Scaled()
def data(): return "sample"
"""

WITH_STATE = """
import numpy as np
from mxnet import gluon, nd
LOSS = gluon.loss.L2Loss()
def net():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="tanh"), gluon.nn.Dropout(0.1), gluon.nn.Dense(1))
    return net
def data():
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    return gluon.data.ArrayDataset(x, x[:, :1] * 2), gluon.data.ArrayDataset(x[:32], x[:32, :1] * 2)
def begin(net, batch_size): return [nd.zeros((batch_size, 1)), None]
def step(net, x, y, state):
    out = net(x)
    loss = LOSS(out + 0.1 * state[0], y)
    return loss, out, [out, None]
"""

WITH_VALUES = """
import mxnet as mx
from mxnet import gluon
def net():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Flatten(), gluon.nn.Dense(10, in_units=784))
    net.initialize(mx.init.Constant(0.25))  # on the CPU, as a script's net that was loaded from a file
    return net
def data():
    return "sample"
"""

OF_TWO_NETS = """
import numpy as np
from mxnet import autograd, gluon, nd
def net(): return {"first": gluon.nn.Dense(3), "second": normalized()}
def normalized():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.BatchNorm(), gluon.nn.Dense(1))
    return net
def data():
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    return gluon.data.ArrayDataset(x, x[:, :1]), gluon.data.ArrayDataset(x[:32], x[:32, :1])
def step(nets, x, y, trainers):
    with autograd.record():
        loss = ((nets["second"](nets["first"](x)) - y) ** 2).mean(axis=1)
    loss.backward()
    for trainer in trainers.values():
        trainer.step(len(x))
    return loss
"""


def test_arrays_of_two_devices_in_one_operator_are_refused_as_a_gpu_does(gpus):
    with pytest.raises(mx.MXNetError, match=r"arrays of cpu\(0\) and cpu\(1\)"):
        mx.nd.ones(2, ctx=mx.gpu(0)) + mx.nd.ones(2)
    assert (mx.nd.ones(2, ctx=mx.gpu(0)).as_in_context(mx.cpu()) + mx.nd.ones(2)).asnumpy().tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hybridize": "static", "optimizer": "adam", "learning_rate": 0.001, "accumulate": 2},
        {"clip_global_norm": 0.5, "methods": {"mixup": True, "label-smoothing": True}},
        {"methods": {"flip-validation": {"last": False}}},
        {"train_samples": 65, "last_batch": "keep", "epochs": 6},
        {"methods": {"ema": {"decay": 0.9}, "layer-freezing": {"start": 0.1, "end": 0.1, "level": 0.4}}, **ONE_GPU},
        {"optimizer": "muon", "learning_rate": 0.01, "methods": {"batch-growth": {"start": 0.2, "factor": 3}}},
    ],
    ids=["plain", "compiled", "blended", "flipped", "a GPU without an image", "frozen, on one", "muon"],
)
def test_gpus_train_what_one_cpu_trains(gpus, started, changes):
    """Over the end of an epoch, with an uneven last validation batch."""
    ours = started(**changes)
    assert ours.site()["device"] == "gpu" and ours.site()["gpus"] == 3
    seen = [ours.steps(12)["loss"], ours.validate()]
    assert gpus.seen == (ON_TWO if ours.recipe.num_devices == 2 else {"cpu(2)"}), "nothing is computed elsewhere"
    theirs = started(**{**changes, **ONE})
    want = [theirs.steps(12)["loss"], theirs.validate()]
    assert seen[0] == pytest.approx(want[0], rel=1e-5) and seen[1]["loss"] == pytest.approx(want[1]["loss"], rel=1e-4)
    assert (seen[1]["accuracy"], seen[1]["flipped"]) == (want[1]["accuracy"], want[1]["flipped"])
    assert close(weights(ours), weights(theirs))


@pytest.mark.parametrize(("where", "methods"), [(TWO, {"cutmix": True}), (ONE_GPU, {"ema": {"decay": 0.9}})])
def test_a_checkpoint_goes_on_to_the_bit(gpus, started, tmp_path, where, methods):
    session = started(**where, optimizer="adam", methods=methods)
    session.writer = Writer(str(tmp_path), keep=1)
    session.steps(3)
    written = session.checkpoint({"recipe": session.recipe.to_dict()}, wait=True)["written"]
    session.steps(3)
    want = weights(session)
    session.reset()
    session.restore(written)
    session.steps(3)
    assert all((weights(session)[place] == values).all() for place, values in want.items())


def test_images_are_chosen_on_the_gpu_that_has_them(gpus, started):
    session = started(methods={"selective-backprop": {"start": 0.0, "end": 1.0, "keep": 0.25}})
    begun, told = weights(session), []
    update = session.optimization.update
    session.optimization.update = lambda net, *counts: (told.append(counts), update(net, *counts))
    assert session.steps(2)["samples"] == 128
    assert told == [(16, 2, 1)] * 2, "images trained on, GPUs with some, steps of an update"
    assert gpus.seen == ON_TWO and not close(weights(session), begun)


def test_what_a_process_is_asked_for_is_measured_on_its_gpus(gpus, started):
    session = started()
    commands = session.commands()
    sizes = commands["training"]({"sizes": [16, 96], "seconds": 0.01})["found"]
    assert set(sizes) == {"16", "96"} and all(each["samples_per_sec"] > 0 for each in sizes.values())
    (found,) = commands["exchange"]({"kinds": [[2, 100]], "repeats": 2})["found"]
    assert (found["bytes"], found["tensors"]) == (800.0, 2) and found["ms"] > 0
    held = [p for p in session.work.parameters.values() if p.grad_req != "null"]
    assert commands["gradients"]({}) == {
        "bytes": sum(4 * int(np.prod(p.shape)) for p in held), "tensors": len(held)}  # fmt: skip
    assert commands["loading"]({"seconds": 0.01})["found"]["samples_per_sec"] > 0
    assert gpus.seen <= ON_TWO


def test_ready_batches_of_gluons_loader_are_cut_and_repeated(gpus, started):
    """They lie on the CPU and are divided over the GPUs like those of a training."""
    sizes = started(loader="gluon").commands()["training"]({"sizes": [16, 96], "seconds": 0.01})["found"]
    assert set(sizes) == {"16", "96"} and all(each["samples_per_sec"] > 0 for each in sizes.values())


def test_a_net_that_has_its_values_is_moved_to_the_gpus(gpus, started, tmp_path):
    session = started(WITH_VALUES, tmp_path)
    assert {str(array.context) for p in session.work.parameters.values() for array in p.list_data()} == ON_TWO
    assert all(
        (values == (0.25 if place.endswith("weight") else 0.0)).all() for place, values in weights(session).items()
    )
    session.steps(2)
    assert gpus.seen == ON_TWO and all(len(np.unique(values)) > 1 for values in weights(session).values())


def test_a_population_is_trained_on_a_gpu(gpus, started, tmp_path):
    session = started(**ONE_GPU)
    command = session.commands()["individual"]
    ask = lambda what, **given: command({"what": what, "given": given})["found"]  # noqa: E731
    ask("adopt", weights=None, changes={"learning_rate": 0.1}, number=3, total_updates=20, start=5)
    begun = weights(session)
    gpus.seen.clear()
    session.steps(1)
    ask("mark")
    marked = weights(session)
    session.steps(1)
    assert not close(weights(session), marked)
    ask("back_off")
    assert close(weights(session), marked, by=0.0)
    found = ask("score")
    assert (
        gpus.seen == {"cpu(2)"}
        and found["samples"] == 200
        and 0 <= found["fitness_accuracy"] <= 1
        and found["fitness"] > 0
    )
    assert ask("write", path=str(tmp_path / "weights.npz")) == {"fixed": []}
    ask("adopt", weights=None, changes={}, number=4, total_updates=20, start=5)
    assert close(weights(session), begun, by=0.0), "the same seed, the same start"
    ask("adopt", weights=str(tmp_path / "weights.npz"), changes={}, number=5, total_updates=20)
    assert close(weights(session), marked, by=0.0)
    ask("adopt", weights=None, changes={}, number=0, total_updates=20)
    assert not close(weights(session), begun), "the recipe's own start"


def test_a_population_wants_one_gpu_a_process_and_no_methods(gpus, started):
    with pytest.raises(UsageError, match=r"trains without; use methods={}"):
        started(**ONE_GPU, methods={"ema": True}).commands()["individual"]({"what": "mark", "given": {}})


@pytest.mark.parametrize("hybridize", ["imperative", "static"])
def test_a_steps_state_is_on_the_gpu_of_its_part(gpus, started, tmp_path, hybridize):
    session = started(WITH_STATE, tmp_path, loader="gluon", hybridize=hybridize, train_samples=None, val_samples=None)
    session.writer = Writer(str(tmp_path), keep=1)
    session._seeds_steps = True
    session.steps(1)
    written = session.checkpoint({"recipe": session.recipe.to_dict()}, wait=True)["written"]
    session.steps(1)
    want = weights(session)
    session.reset()
    session.restore(written)
    places = [str(held[1][0].context) for _, held in sorted(session.training_step._states[True].items())]
    assert places == ["cpu(3)", "cpu(1)"]
    session.steps(1)
    assert all((weights(session)[place] == values).all() for place, values in want.items())
    assert session.validate()["samples"] == 32


def test_a_job_that_updates_its_nets_itself_has_one_gpu(gpus, started, tmp_path):
    given = {"loader": "gluon", "train_samples": None, "val_samples": None}
    with pytest.raises(UsageError, match=r"num_devices=2: .*on one device; use num_devices=1"):
        started(OF_TWO_NETS, tmp_path, **given)
    session = started(OF_TWO_NETS, tmp_path, **given, **ONE_GPU)
    first = session.steps(3)["loss"]
    before = weights(session)
    session.validate()
    assert close(weights(session), before, by=0.0), "a validation's pass leaves running statistics alone"
    assert session.steps(3)["loss"] < first and gpus.seen == {"cpu(2)"}


def test_float16_is_trained_on_two_gpus_with_a_scale(gpus, started, tmp_path):
    session = started(HALF, tmp_path, dtype="float16", wd=0.0, momentum=0.0)
    assert {str(np.dtype(p.dtype)) for p in session.work.parameters.values()} == {"float16"}
    begun = weights(session)
    assert session.steps(4)["loss"] > 0 and not close(weights(session), begun)
    assert session.optimization.trainer._optimizer.multi_precision
    scaler = session.optimization.scaler.scaler
    moved, scaler.scale_value = weights(session), 2.0**40
    session.steps(2)
    assert close(weights(session), moved, by=0.0) and scaler.skipped_steps >= 2, "an overflow on either skips for both"
    assert session.remarks()[0].startswith(f"float16: {scaler.skipped_steps} steps skipped")
    assert session.validate()["samples"] == 200 and gpus.seen == ON_TWO


def test_gradients_of_two_bits_keep_the_gpus_alike(gpus, started):
    session = started(compression="2bit", compression_threshold=0.01, optimizer="sgd", momentum=0.0)
    begun = weights(session)
    session.steps(3)
    assert session.optimization.trainer._compression_params["type"] == "2bit" and not close(weights(session), begun)


def test_nccl_is_measured_where_it_is_built_in(gpus, monkeypatch):
    create, asked = mx.kv.create, []

    def made(name, there):
        asked.append(name)
        if name == "nccl" and not there:
            raise mx.MXNetError("nccl is not in this build")
        return create("device" if name == "nccl" else name)

    for there in (False, True):
        monkeypatch.setattr(mx.kv, "create", lambda name, there=there: made(name, there))
        name, times = kvstore.choose_kvstore([mx.gpu(0), mx.gpu(1)], [(64, 64)])
        assert set(times) == {"device", "local", *(["nccl"] if there else [])} and times[name] == min(times.values())
    assert asked == ["device", "local", "nccl"] * 2
    asked.clear()
    kvstore.choose_kvstore([mx.cpu(0), mx.cpu(1)], [(8,)])
    assert asked == ["device", "local"]
