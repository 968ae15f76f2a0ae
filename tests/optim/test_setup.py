"""setup and its trainer: exemptions, accumulation, clipping, several devices and workers, bad input."""

from __future__ import annotations

import functools
import inspect
import math
import pickle

import numpy as np
import pytest

from gluontune import optim
from gluontune.core.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.engines.mxnet.context import make_trainer
from gluontune.methods.batches import UpdatePlan
from gluontune.optim import _setup
from gluontune.recipe import Recipe
from gluontune.recipe.registry import resolve
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn
ONE, TWO = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]


def make_net(ctx=ONE, norm=True, seed=3):
    mx.random.seed(seed)
    net = nn.HybridSequential()
    net.add(nn.Dense(6, in_units=4, activation="tanh"))
    if norm:
        net.add(nn.BatchNorm(in_channels=6))
    net.add(nn.Dense(1, in_units=6))
    net.initialize(mx.init.Normal(0.5), ctx=ctx)
    return net


def samples(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)).astype("float32")
    return x, (x.sum(1, keepdims=True) * 3).astype("float32")


def backward(net, x, y, ctx=ONE):
    cut = mx.gluon.utils.split_and_load
    parts = zip(cut(x, ctx, even_split=False), cut(y, ctx, even_split=False))
    with mx.autograd.record():
        losses = [((net(a) - b) ** 2).sum(axis=1) for a, b in parts]
    mx.autograd.backward(losses)


def weights(net):
    return [p.data(p.list_ctx()[0]).asnumpy() for p in net.collect_params().values() if p.grad_req != "null"]


def largest_difference(first, second):
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(weights(first), weights(second)))


def trained(net, batches, ctx=ONE, **options):
    trainer = optim.setup(**{"name": "nag", "net": net, "learning_rate": 0.02, **options})
    for x, y in batches:
        backward(net, x, y, ctx)
        trainer.step(len(x))
    return trainer


@pytest.mark.parametrize("name", optim.list_optimizers())
def test_decay_never_touches_biases_gammas_and_betas(name):
    """With a gradient of 0 only decay can move a weight; AdaGrad and others divide 0 by their epsilon."""
    net = make_net()
    trainer = optim.setup(name, net, learning_rate=0.1, global_batch_size=1, wd=0.5)
    for param in net.collect_params().values():
        if param.grad_req != "null":
            param.set_data(mx.nd.ones(param.shape))
            param.grad()[:] = 0
            param.data()._fresh_grad = True
    trainer.step()
    moved = {
        n: float(np.abs(p.data().asnumpy() - 1).max()) for n, p in net.collect_params().items() if "running" not in n
    }
    exempt = {n for n in moved if n.endswith(("bias", "gamma", "beta"))}
    assert len(exempt) == 4 and all(moved[n] == 0 for n in exempt)
    assert all(moved[n] > 0 for n in moved if n not in exempt)


def test_exemption_survives_the_journey_to_a_server():
    """A kvstore server gets the pickled optimizer without its parameters: names must decide there."""
    net = make_net()
    trainer = optim.setup("lars", net, learning_rate=0.1, global_batch_size=1, wd=0.5)
    params, sent = trainer._params, pickle.loads(pickle.dumps(trainer.optimizer))
    assert sent.param_dict == {}
    for index, param in enumerate(params):
        exempt = optim.is_exempt(param)
        assert sent._get_wd(index) == (0 if exempt else 0.5)
        assert sent.trusts(index) != exempt


def test_trust_ratios_leave_vectors_alone_even_under_a_plain_gluon_trainer():
    """mx's LARS under gluon.Trainer scales biases by their tiny norm; ours moves them at the full rate."""
    import gluontune.optim.momentum  # noqa: F401  (MXNet knows the name from then on)

    net = make_net(norm=False)
    trainer = mx.gluon.Trainer(net.collect_params(), "gtlars", {"learning_rate": 1.0, "momentum": 0.0})
    before = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    backward(net, *samples(8))
    trainer.step(8)
    for n, p in net.collect_params().items():
        step, grad = before[n] - p.data().asnumpy(), p.grad().asnumpy() / 8
        ratio = 1.0 if n.endswith("bias") else 0.001 * np.linalg.norm(before[n]) / np.linalg.norm(grad)
        np.testing.assert_allclose(step, ratio * grad, rtol=2e-3, atol=1e-7)


def test_the_rate_has_one_source():
    net = make_net()
    trainer = optim.setup(
        "adam", net, learning_rate=0.1, global_batch_size=256, base_batch_size=64, lr_scaling="sqrt",
        schedule="cosine", epochs=2, steps_per_epoch=10, warmup_updates=4, accumulate=2,
    )  # fmt: skip
    peak = 0.1 * math.sqrt(8)  # 256 samples a step, two steps an update
    assert trainer.schedule(4) == pytest.approx(peak) and trainer.schedule(10) == pytest.approx(0)
    backward(net, *samples(8))
    trainer.step()
    assert trainer.num_update == 0
    trainer.step(ignore_stale_grad=True)
    assert trainer.num_update == 1 and trainer.learning_rate == pytest.approx(peak / 4)


@pytest.mark.parametrize("name", optim.list_optimizers())
def test_a_rate_that_was_set_counts_from_then_on(name, tmp_path):
    """gluon-cv's train_cifar10.py: trainer.set_learning_rate(trainer.learning_rate * lr_decay)."""
    batches = [samples(8, seed) for seed in range(6)]
    options = {"name": name, "batch_size": 8, "accumulate": 2, "wd": 0.01}
    net, whole = make_net(), make_net()
    steps = lambda n: 0.02 if n <= 1 else 0.002  # noqa: E731
    trained(whole, batches, **options, schedule=steps)
    trainer = optim.setup(net=net, learning_rate=0.02, **options)
    for number, (x, y) in enumerate(batches):
        if number == 2:
            trainer.set_learning_rate(trainer.learning_rate * 0.1)
            assert trainer.learning_rate == pytest.approx(0.002) == trainer.schedule(99)
        backward(net, x, y)
        trainer.step(8)
    assert largest_difference(net, whole) < 1e-6
    trainer.save_states(str(tmp_path / "states"))
    again = optim.setup(net=make_net(), learning_rate=0.02, schedule="cosine", total_updates=9, **options)
    again.load_states(str(tmp_path / "states"))
    assert again.learning_rate == pytest.approx(0.002) and again.num_update == 3
    plain = optim.setup(net=make_net(), learning_rate=0.02, schedule="cosine", total_updates=9, **options)
    plain.save_states(str(tmp_path / "plain"))
    again.load_states(str(tmp_path / "plain"))
    assert again.learning_rate == pytest.approx(0.02)  # the schedule is back


@pytest.mark.parametrize("on_kvstore", [None, True])
def test_a_rate_is_set_on_two_contexts(on_kvstore):
    net, whole = make_net(TWO), make_net(TWO)
    trainer = optim.setup("nag", net, learning_rate=0.02, batch_size=8, update_on_kvstore=on_kvstore)
    for rate in (0.02, 0.005, 0.0):
        trainer.set_learning_rate(np.float32(rate))
        backward(net, *samples(8), TWO)
        trainer.step(8)
    trained(whole, [samples(8)] * 3, TWO, schedule=lambda n: (0.02, 0.02, 0.005, 0.0)[n], batch_size=8)
    assert largest_difference(net, whole) < 1e-6


@pytest.mark.parametrize("rate", [-1, math.nan, math.inf, "fast", None])
def test_a_rate_that_is_none_is_refused(rate):
    trainer = optim.setup("sgd", make_net(), batch_size=8)
    with pytest.raises(UsageError, match=r"set_learning_rate\(.*finite number"):
        trainer.set_learning_rate(rate)
    assert trainer.learning_rate == pytest.approx(0.1 / 8)


def test_the_card_gives_what_is_left_out():
    for name, batch, rate in (("adam", 256, 0.002), ("nag", 256, 0.8), ("adadelta", 256, 1.0), ("lars", 512, 5.0)):
        trainer = optim.setup(name, make_net(), batch_size=batch)
        assert trainer.learning_rate == pytest.approx(rate)
    given = optim.setup("adam", make_net(), learning_rate=0.1, base_batch_size=64, global_batch_size=256)
    assert given.learning_rate == pytest.approx(0.2)  # by the card's square-root rule


def test_the_global_batch_follows_from_batch_and_workers(monkeypatch):
    def global_batch(**options):
        return optim.setup("sgd", make_net(), batch_size=64, **options).global_batch_size

    assert global_batch() == 64 and global_batch(workers=4, exchange=lambda grads: None) == 256
    net, whole = make_net(), make_net()
    trained(net, [samples(8)], name="sgd", batch_size=4, workers=2, exchange=lambda grads: None)
    trained(whole, [samples(8)], name="sgd", global_batch_size=8)
    assert largest_difference(net, whole) == 0
    monkeypatch.setenv("DMLC_NUM_WORKER", "3")
    assert _setup._global_batch(None, 64, None, "dist_sync", None) == 192
    assert _setup._global_batch(None, 64, None, "device", None) == 64


def test_a_recipe_reaches_the_optimizer_and_the_schedule():
    recipe = Recipe(
        optimizer="lars", optimizer_params={"trust_coefficient": 0.002, "clip_gradient": 3.0}, clip_global_norm=2.0,
        batch_size_per_device=512, accumulate=2, schedule="multifactor", epochs=4, warmup_epochs=1,
        schedule_params={"steps": [2, 3], "factor": 0.5, "unit": "epochs"},
    )  # fmt: skip
    growth = UpdatePlan(80, 2).growth()
    trainer = make_trainer(recipe, make_net(), steps=80, steps_per_epoch=20, growth=growth)
    assert (trainer._optimizer.trust_coefficient, trainer._optimizer.clip_gradient) == (0.002, 3.0)
    assert trainer.clip_norm == 2.0
    assert [trainer.schedule(n) for n in (5, 10, 20, 21, 31)] == [5.0, 10.0, 10.0, 5.0, 2.5]
    brief = Recipe(optimizer="adam", epochs=1, warmup_epochs=0.9)
    short = make_trainer(brief, make_net(), steps=1, steps_per_epoch=20, growth=growth)
    assert short.schedule(0) == 4e-5  # one update: nothing is left to warm up


def test_a_function_is_the_whole_truth():
    trainer = optim.setup(
        "sgd", make_net(), learning_rate=9.0, global_batch_size=8, schedule=lambda n: 0.25 / max(n, 1)
    )
    assert trainer.schedule(5) == 0.05


@pytest.mark.parametrize("name", ["nag", "adam", "lars", "lbsgd"])
def test_accumulated_micro_batches_are_one_large_batch(name, tmp_path):
    x, y = samples(48)
    large, small = make_net(norm=False), make_net(norm=False)
    trained(large, [(x[i : i + 16], y[i : i + 16]) for i in (0, 16, 32)], name=name, global_batch_size=16)
    cuts = [(0, 4), (4, 7), (7, 16)]  # uneven on purpose: samples count, not micro-batches
    micro = [(x[i + a : i + b], y[i + a : i + b]) for i in (0, 16, 32) for a, b in cuts]
    gather = {"batch_scale": 3} if name == "lbsgd" else {"accumulate": 3}
    trainer = trained(small, micro[:5], name=name, global_batch_size=16, lr_scaling="none", **gather)
    assert trainer.num_update == 1
    trainer.save_states(tmp_path / "within.states")  # within the second accumulation

    resumed = make_net(norm=False)
    for ours, theirs in zip(resumed.collect_params().values(), small.collect_params().values()):
        ours.set_data(theirs.data())
    second = optim.setup(name, resumed, learning_rate=0.02, global_batch_size=16, lr_scaling="none", **gather)
    second.load_states(tmp_path / "within.states")
    for bx, by in micro[5:]:
        backward(resumed, bx, by)
        second.step(len(bx))
    assert largest_difference(resumed, large) <= 1e-6


def test_lbsgd_under_a_plain_trainer_never_aliases_the_gradient_buffer():
    """mx's LBSGD: micro-gradients 1 and 3 gave -6 where -2 is right (their mean, at rate 1)."""
    param = mx.gluon.Parameter("w_weight", shape=(1,), init=mx.init.Zero())
    param.initialize()
    options = {"learning_rate": 1.0, "batch_scale": 2, "momentum": 0.0, "warmup_updates": 0}
    trainer = mx.gluon.Trainer([param], "gtlbsgd", options)
    for scale, expected in ((1, 0), (3, -2), (5, -2), (1, -5)):
        with mx.autograd.record():
            loss = param.data() * scale
        loss.backward()
        trainer.step(1)
        assert param.data().asscalar() == expected


@pytest.mark.parametrize("strategy, second", [("linear", 0.5 + 0.5 * 0.5), ("power2", 0.5 + 0.5 * 0.25)])
def test_lbsgd_warms_up_to_the_rate_and_not_beyond(strategy, second):
    optimizer = mx.optimizer.create(
        "gtlbsgd", learning_rate=0.4, batch_scale=2, warmup_strategy=strategy, warmup_updates=4
    )
    rates = []
    for optimizer.num_update in (2, 4, 400):
        rates.append(optimizer._get_lr(0))
    assert rates == pytest.approx([0.4 * second, 0.4, 0.4])


def test_lbsgd_takes_mxnets_own_warm_up():
    said = {"warmup_epochs": 2, "updates_per_epoch": 4, "begin_epoch": 1, "num_epochs": 9}
    optimizer = mx.optimizer.create("gtlbsgd", learning_rate=0.4, batch_scale=2, **said)
    rates = []
    for optimizer.num_update in (0, 2, 4):
        rates.append(optimizer._get_lr(0))
    assert rates == pytest.approx([0.3, 0.35, 0.4])


def _arguments(kind):
    """Name and default of each argument of a class, its bases included."""
    found = {}
    for part in kind.__mro__:
        if "__init__" in vars(part):
            for name, argument in inspect.signature(part.__init__).parameters.items():
                found.setdefault(name, argument.default)
    return found


MXNETS = [name for name in optim.OPTIMIZERS.names() if name in mx.optimizer.Optimizer.opt_registry]


@pytest.mark.parametrize("name", MXNETS)
def test_classes_take_mxnets_arguments_by_place_and_name(name):
    ours, theirs = resolve(optim.OPTIMIZERS[name].path), mx.optimizer.Optimizer.opt_registry[name]
    mine, its = _arguments(ours), _arguments(theirs)
    assert set(its) <= set(mine)
    other = {key for key in its if mine[key] != its[key]}
    # eta is the trust coefficient; MXNet's AdaDelta has no rate, and 1 is what it then steps by.
    assert other <= {"lars": {"eta"}, "adadelta": {"learning_rate"}}.get(name, set())
    places = [list(inspect.signature(kind.__init__).parameters) for kind in (ours, theirs)]
    places = [[each for each in place if each != "kwargs"] for place in places]
    assert places[0][: len(places[1])] == places[1]


def test_lambs_other_names():
    net = make_net(ONE)
    assert type(optim.setup("multilamb", net, batch_size=4)._optimizer).__name__ == "GTLAMB"
    assert Recipe(optimizer="multi_lamb").optimizer == "multi_lamb"
    assert "multilamb" not in optim.list_optimizers()


@pytest.mark.parametrize("ctx", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("limit", [1e-3, 1e6])
def test_clipping_by_the_norm_of_the_whole_averaged_gradient(ctx, limit):
    x, y = samples(7)  # 4 and 3 samples on two contexts
    net, plain = make_net(ctx, norm=False), make_net(ONE, norm=False)
    start = weights(plain)
    trained(net, [(x, y)], ctx, name="sgd", momentum=0.0, global_batch_size=7, clip_global_norm=limit)
    trained(plain, [(x, y)], name="sgd", momentum=0.0, global_batch_size=7)
    steps = [a - b for a, b in zip(start, weights(net))]
    full = [a - b for a, b in zip(start, weights(plain))]
    norm = math.sqrt(sum(float((s**2).sum()) for s in full)) / 0.02
    for step, whole in zip(steps, full):
        np.testing.assert_allclose(step, whole * min(1, limit / norm), rtol=2e-3, atol=1e-7)


def test_clipping_counts_float16_gradients_that_overflow_when_squared():
    params = mx.gluon.ParameterDict("")
    params.get("a_weight", shape=(10, 100), dtype="float16", init="zeros")
    params.get("b_weight", shape=(3, 3), init="zeros")
    params.initialize()
    options = {"learning_rate": 1.0, "momentum": 0.0, "global_batch_size": 1, "multi_precision": True}
    trainer = optim.setup("sgd", params, clip_global_norm=1.0, **options)
    for param in params.values():
        param.grad()[:] = 300
        param.data()._fresh_grad = True
    trainer.step()
    square = sum((param.data().asnumpy().astype("float64") ** 2).sum() for param in params.values())
    assert square == pytest.approx(1, rel=1e-3)


def test_uneven_batches_on_two_contexts_equal_one_context():
    x, y = samples(15)
    one, two = make_net(ONE, norm=False), make_net(TWO, norm=False)
    batches = [(x[:7], y[:7]), (x[7:], y[7:])]
    trained(one, batches, ONE, global_batch_size=8)
    trained(two, batches, TWO, global_batch_size=8)
    assert largest_difference(two, one) <= 1e-6


@mx.kvstore.KVStoreBase.register
class TwinWorkers(mx.kvstore.KVStoreBase):
    """dist_sync in one process: the other worker always has the gradient that this one has."""

    type = "dist_sync_twin"
    rank, num_workers = 0, 2

    def broadcast(self, key, value, out, priority=0):
        for array in out:
            if array is not value:
                value.copyto(array)

    def pushpull(self, key, value, out=None, priority=0):
        for array in value:
            array *= 2

    @staticmethod
    def is_capable(capability):
        return False


@pytest.mark.parametrize("limit", [None, 0.01])
def test_gradients_summed_over_workers_are_averaged_over_the_global_batch(limit):
    x, y = samples(8)
    alone, worker = make_net(norm=False), make_net(norm=False)
    trained(alone, [(x, y)], global_batch_size=8, clip_global_norm=limit)
    trainer = optim.setup(
        "nag", worker, learning_rate=0.02, global_batch_size=16, kvstore=TwinWorkers(), clip_global_norm=limit
    )
    backward(worker, x, y)
    trainer.step()  # the default is the global batch: 8 samples here, 8 at the twin
    assert largest_difference(worker, alone) <= 1e-6


def test_states_of_another_optimizer_another_net_or_no_file(tmp_path):
    net = make_net()
    trainer = trained(net, [samples(8)], global_batch_size=8)
    trainer.save_states(tmp_path / "nag.states")
    with pytest.raises(GluontuneError, match="states of optimizer GTNAG, but this trainer runs GTAdam"):
        optim.setup("adam", net, learning_rate=0.1, global_batch_size=8).load_states(tmp_path / "nag.states")
    other = optim.setup("nag", make_net(norm=False), learning_rate=0.1, global_batch_size=8)
    with pytest.raises(GluontuneError, match="another net"):
        other.load_states(tmp_path / "nag.states")
    with pytest.raises(GluontuneError, match="no such file"):
        trainer.load_states(tmp_path / "none.states")
    whole = (tmp_path / "nag.states").read_bytes()
    for damaged in (b"", b"junk", whole[: len(whole) // 2]):
        (tmp_path / "bad.states").write_bytes(damaged)
        with pytest.raises(GluontuneError, match="not a whole file"):
            trainer.load_states(tmp_path / "bad.states")


def frozen():
    net = make_net()
    net.collect_params().setattr("grad_req", "null")
    return net


BAD = {
    "optimizer": ({"name": "nga"}, UnknownNameError, "did you mean 'nag'"),
    "option": ({"trust_coeficient": 1}, UsageError, "no parameter 'trust_coeficient'"),
    "nearest option": ({"name": "lars", "trust_coeficient": 1}, UsageError, "did you mean 'trust_coefficient'"),
    "rate": ({"learning_rate": -0.1}, UsageError, "learning_rate=-0.1"),
    "NaN rate": ({"learning_rate": math.nan}, UsageError, "learning_rate=nan"),
    "wd": ({"wd": math.inf}, UsageError, "wd=inf"),
    "momentum": ({"momentum": 1.0}, UsageError, "momentum=1.0"),
    "scaling": ({"lr_scaling": "cubic"}, UsageError, "lr_scaling='cubic'"),
    "batch": ({"global_batch_size": 0}, UsageError, "global_batch_size=0"),
    "no batch": ({"global_batch_size": None}, UsageError, "neither is given"),
    "two batches": ({"batch_size": 4}, UsageError, "both are given"),
    "workers twice": ({"workers": 2}, UsageError, "workers=2"),
    "workers": ({"global_batch_size": None, "batch_size": 4, "workers": 0}, UsageError, "workers=0"),
    "workers unsaid": (
        {"global_batch_size": None, "batch_size": 4, "exchange": lambda grads: None},
        UsageError,
        "give workers",
    ),
    "schedule's parameter": ({"schedule_params": {"total_updates": 3}}, UsageError, "no parameter 'total_updates'"),
    "two lengths": ({"total_updates": 5, "epochs": 1}, UsageError, "both say how long"),
    "half a length": ({"epochs": 1}, UsageError, "give steps_per_epoch too"),
    "clip": ({"clip_global_norm": 0}, UsageError, "clip_global_norm=0"),
    "clip on kvstore": ({"clip_global_norm": 1, "update_on_kvstore": True}, UsageError, "contradict"),
    "muon on a server": (
        {"name": "muon", "kvstore": "dist_sync", "update_on_kvstore": True},
        UsageError,
        "servers keep weights without their",
    ),
    "accumulate": ({"accumulate": 0}, UsageError, "accumulate=0"),
    "accumulate, part": ({"accumulate": 1.5}, UsageError, "accumulate=1.5"),
    "twice": ({"name": "lbsgd", "accumulate": 2, "batch_scale": 2}, UsageError, "the same thing"),
    "strategy": ({"name": "lbsgd", "warmup_strategy": "lasr"}, UsageError, "warmup_strategy='lasr'"),
    "compression": ({"kvstore": None, "compression_params": {"type": "2bit"}}, UsageError, "compression_params"),
    "frozen": ({"net": frozen}, UsageError, "nothing to train"),
    "not initialized": ({"net": lambda: nn.Dense(2, in_units=2)}, UsageError, "not initialized"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_its_name(case):
    changes, error, message = BAD[case]
    changes = dict(changes)
    net = changes.pop("net", make_net)()
    with pytest.raises(error, match=message):
        optim.setup(**{"name": "nag", "learning_rate": 0.1, "global_batch_size": 8, **changes, "net": net})


@pytest.mark.parametrize("size", [0, -1, math.nan])
def test_a_step_of_no_samples_is_refused(size):
    with pytest.raises(UsageError, match="step"):
        optim.setup("nag", make_net(), learning_rate=0.1, global_batch_size=8).step(size)


def test_a_parameter_without_a_new_gradient_is_named():
    net = make_net(norm=False)
    unused = nn.Dense(2, in_units=2)
    unused.initialize()
    params = [*net.collect_params().values(), unused.weight]
    trainer = optim.setup("nag", params, learning_rate=0.1, global_batch_size=8)
    backward(net, *samples(8))
    with pytest.raises(UsageError, match=f"`{unused.weight.name}`.*has not been updated"):
        trainer.step()
    trainer.step(ignore_stale_grad=True)


def test_a_lambda_cannot_travel_and_says_so():
    adapter = pickle.loads(pickle.dumps(optim.to_mxnet(lambda n: 0.1)))
    with pytest.raises(UsageError, match="local function"):
        adapter(1)


MXNETS = ("nag", "lars", "lamb", "adadelta", "adamax", "nadam", "ftml", "adam", "dcasgd")
SHARED = (
    "momentum",
    "beta1",
    "beta2",
    "epsilon",
    "rho",
    "eps",
    "lamda",
    "bias_correction",
    "lower_bound",
    "upper_bound",
)


@pytest.mark.parametrize("name", MXNETS)
def test_the_defaults_are_mxnet_s(name):
    own, theirs = resolve(optim.OPTIMIZERS[name].path)(), mx.optimizer.create(name)
    for field in SHARED:
        if hasattr(theirs, field):
            value = getattr(theirs, field)
            assert getattr(own, field) == (value and pytest.approx(value, rel=1e-6)), field
    # MXNet's AdaDelta ignores its rate: ours must be 1 to step as it does.
    assert own.learning_rate == (1.0 if name == "adadelta" else theirs.learning_rate)


@pytest.mark.parametrize("wd", [0.0, 0.5])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("name", ["adamax", "nadam", "ftml", "lamb"])
def test_a_class_in_place_of_mxnet_s_steps_as_it_does(name, clip, wd):
    options = {"wd": wd, "clip_gradient": clip, "rescale_grad": 0.7}
    if name == "lamb":
        options["bias_correction"] = clip is None
    found = []
    for kind in (resolve(optim.OPTIMIZERS[name].path), functools.partial(mx.optimizer.create, name)):
        rng = np.random.RandomState(0)
        weight = mx.nd.array(rng.uniform(0.5, 1, size=(3, 4)))
        updater = mx.optimizer.get_updater(kind(param_idx2name={0: "a_weight"}, **options))
        for _ in range(1 if name == "nadam" else 3):
            updater(0, mx.nd.array(rng.normal(size=(3, 4))), weight)
        found.append(weight.asnumpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", ["linear", "power2", "sqrt", "lars"])
def test_both_engines_warm_lbsgd_up_alike(strategy):
    from gluontune.optim.cards import rates_of

    recipe = Recipe(
        optimizer="lbsgd", learning_rate=0.1, schedule="cosine", warmup_epochs=1, epochs=3,
        optimizer_params={"warmup_strategy": strategy},
    )  # fmt: skip
    net = nn.Dense(2, in_units=3)
    net.initialize()
    trainer = optim.setup_recipe(recipe, net, steps=30, steps_per_epoch=10)
    rates = rates_of(recipe, steps=30, steps_per_epoch=10)
    assert [rates(n) for n in range(1, 31)] == [trainer.schedule(n) for n in range(1, 31)]


@pytest.mark.parametrize("name", [n for n, card in optim.OPTIMIZERS.items() if "clip_gradient" in card.defaults])
def test_gradients_are_clipped_above_zero_and_nowhere_else(name):
    def weights(kind, **options):
        rng = np.random.RandomState(0)
        weight = mx.nd.array(rng.uniform(0.5, 1, size=(3, 4)))
        updater = mx.optimizer.get_updater(kind(**options))
        for _ in range(3):
            updater(0, mx.nd.array(rng.normal(size=(3, 4))), weight)
        return weight.asnumpy()

    layer = nn.Dense(3, in_units=4)
    layer.initialize()
    create = functools.partial(_setup.create, name, [layer.weight], schedule=lambda n: 0.1, wd=0.01)
    free, zero, small = (weights(create, clip_gradient=clip) for clip in (None, 0.0, 0.05))
    assert np.isfinite(free).all() and np.array_equal(free, zero)
    assert not np.allclose(free, small, rtol=1e-6)
    kind = resolve(optim.OPTIMIZERS[name].path)
    if not kind.__module__.startswith("mxnet"):  # which a user may call by himself; setup refuses it
        assert np.array_equal(weights(kind), weights(kind, clip_gradient=-1.0))
