"""One table drives every optimizer through the same 50 updates, against numpy references in float64."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

from gluontune import optim
from gluontune.errors import UsageError
from gluontune.optim import _base, schedules
from gluontune.optim.torch_rules import TORCH_RULES, TorchOptimizer
from gluontune.runtime import mxnet

mx = mxnet()

SHAPES = {"a_weight": (5, 4), "b_bias": (5,), "c_gamma": (3,), "d_weight": (3, 2, 3, 3), "e_beta": (3,)}
EXEMPT = {"b_bias", "c_gamma", "e_beta"}
UPDATES, BATCH, WD = 50, 8, 0.01
norm = np.linalg.norm


def sgd(s, w, g, lr, wd, t, o, trusted):
    s["m"] = o["momentum"] * s.get("m", 0) - lr * (g + wd * w)
    return w + s["m"]


def nag(s, w, g, lr, wd, t, o, trusted):
    step = lr * (g + wd * w)
    s["m"] = o["momentum"] * s.get("m", 0) - step
    return w + o["momentum"] * s["m"] - step


def dcasgd(s, w, g, lr, wd, t, o, trusted):
    old = s.get("old", w)
    s["m"] = o["momentum"] * s.get("m", 0) - lr * (g + wd * w + 0.04 * g * g * (w - old))
    s["old"] = w
    return w + s["m"]


def signum(s, w, g, lr, wd, t, o, trusted):
    s["m"] = o["momentum"] * s.get("m", 0) + (1 - o["momentum"]) * (g + wd * w)
    return (1 - lr * 0.1) * w - lr * np.sign(s["m"])


def ftml(s, w, g, lr, wd, t, o, trusted):
    if lr == 0:
        return w
    g = g + wd * w
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    d = (1 - 0.6**t) / lr * (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)
    s["z"] = 0.6 * s.get("z", 0) + 0.4 * g - (d - 0.6 * s.get("d", 0)) * w
    s["d"] = d
    return -s["z"] / d


def lars(s, w, g, lr, wd, t, o, trusted):
    if trusted:
        lr *= 0.02 * norm(w) / (norm(g) + wd * norm(w))
    return sgd(s, w, g, lr, wd, t, o, trusted)


def larc(s, w, g, lr, wd, t, o, trusted):
    if trusted:
        lr = min(lr, 0.02 * norm(w) / (norm(g) + wd * norm(w) + 1e-8))
    return sgd(s, w, g, lr, wd, t, o, trusted)


def moments(s, g, t, b1=0.9, b2=0.999):
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    return s["m"] / (1 - b1**t), s["v"] / (1 - b2**t)


def lamb(s, w, g, lr, wd, t, o, trusted):
    m, v = moments(s, g, t)
    r = m / (np.sqrt(v) + 1e-6) + wd * w
    return w - lr * (norm(w) / norm(r) if trusted else 1.0) * r


def novograd(s, w, g, lr, wd, t, o, trusted):
    square = float((g * g).sum())
    s["v"] = square if t == 1 else 0.98 * s["v"] + 0.02 * square
    s["m"] = 0.95 * s.get("m", 0) + g / (math.sqrt(s["v"]) + 1e-8) + wd * w
    return w - lr * s["m"]


def adagrad(s, w, g, lr, wd, t, o, trusted):
    s["v"] = s.get("v", 0) + g * g
    return w - lr * (g / np.sqrt(s["v"] + 1e-7) + wd * w)


def adadelta(s, w, g, lr, wd, t, o, trusted):
    g = g + wd * w
    s["a"] = 0.9 * s.get("a", 0) + 0.1 * g * g
    step = np.sqrt(s.get("b", 0) + 1e-5) / np.sqrt(s["a"] + 1e-5) * g
    s["b"] = 0.9 * s.get("b", 0) + 0.1 * step * step
    return w - lr * step


def rmsprop(s, w, g, lr, wd, t, o, trusted):
    g = g + wd * w
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * g * g
    return w - lr * g / np.sqrt(s["v"] + 1e-8)


def adam(s, w, g, lr, wd, t, o, trusted):
    moments(s, g + wd * w, t)
    return w - lr * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * s["m"] / (np.sqrt(s["v"]) + 1e-8)


def adamw(s, w, g, lr, wd, t, o, trusted):
    m, v = moments(s, g, t)
    return w - lr * (m / (np.sqrt(v) + 1e-8) + wd * w)


def muon(s, w, g, lr, wd, t, o, trusted):
    if not trusted:
        m, v = moments(s, g, t, b2=0.95)
        return w - lr * m / (np.sqrt(v) + 1e-8)
    s["m"] = 0.9 * s.get("m", 0) + g
    x = (g + 0.9 * s["m"]).reshape(len(g), -1)
    u, values, vt = np.linalg.svd(x / norm(x), full_matrices=False)
    for _ in range(5):  # the polynomial acts on the singular values alone
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    turned = ((u * values) @ vt).reshape(g.shape)
    return (1 - lr * wd) * w - lr * 0.2 * math.sqrt(max(x.shape)) * turned


def muon_fixed_norm(s, w, g, lr, wd, t, o, trusted):
    """As in airbench94_muon: filters alone, on a sphere, by three steps; Nesterov's rule for the rest."""
    if w.ndim < 3:
        return nag(s, w, g, lr, wd, t, {"momentum": 0.8}, trusted)
    s["m"] = 0.9 * s.get("m", 0) + g
    x = (g + 0.9 * s["m"]).reshape(len(g), -1)
    u, values, vt = np.linalg.svd(x / norm(x), full_matrices=False)
    for _ in range(3):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return math.sqrt(len(w)) * w / norm(w) - lr * ((u * values) @ vt).reshape(g.shape)


def adamax(s, w, g, lr, wd, t, o, trusted):
    g = g + wd * w
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["u"] = np.maximum(0.999 * s.get("u", 0), np.abs(g))
    return w - lr / (1 - 0.9**t) * s["m"] / (s["u"] + 1e-8)


def nadam(s, w, g, lr, wd, t, o, trusted):
    mu = [0.9 * (1 - 0.5 * 0.96 ** (i * 0.004)) for i in range(t + 2)]
    g = g + wd * w
    _, v = moments(s, g, t)
    now, after = np.prod(mu[1 : t + 1]), np.prod(mu[1 : t + 2])
    ahead = (1 - mu[t]) * g / (1 - now) + mu[t + 1] * s["m"] / (1 - after)
    return w - lr * ahead / (np.sqrt(v) + 1e-8)


class YellowFin:
    """What is measured at an update governs the next."""

    def __init__(self, beta=0.9):
        self.beta, self.mu, self.alpha, self.means, self.seen = beta, 0.0, 0.1, {}, []
        self.smooth = dict.fromkeys(("h_max", "h_min", "h", "g", "d"), 0.0)

    def average(self, name, value, t):
        self.smooth[name] = self.beta * self.smooth[name] + (1 - self.beta) * value
        return self.smooth[name] / (1 - self.beta**t)

    def measure(self, grads, t):
        for name, g in grads.items():
            self.means[name] = self.beta * self.means.get(name, 0) + (1 - self.beta) * g
        h = sum(float((g * g).sum()) for g in grads.values())
        self.seen = [*self.seen, h][-20:]
        h_max, h_min = self.average("h_max", max(self.seen), t), self.average("h_min", min(self.seen), t)
        mean_h, mean_g = self.average("h", h, t), self.average("g", math.sqrt(h), t)
        mean_square = sum(float((m * m).sum()) for m in self.means.values()) / (1 - self.beta**t) ** 2
        variance = max(mean_h - mean_square, 1e-6 * mean_h)
        distance = self.average("d", mean_g / mean_h, t)
        p = min(distance**2 * h_min**2 / (2 * variance), 1e10)
        low, high = 0.0, 1.0  # bisection, where the optimizer has Cardano's formula
        for _ in range(200):
            x = (low + high) / 2
            low, high = (x, high) if (1 - x) ** 3 > p * x else (low, x)
        spread = math.sqrt(h_max / h_min)
        mu = max(x * x, ((spread - 1) / (spread + 1)) ** 2)
        self.mu = self.beta * self.mu + (1 - self.beta) * mu
        self.alpha = self.beta * self.alpha + (1 - self.beta) * (1 - math.sqrt(mu)) ** 2 / h_min

    def __call__(self, s, w, g, lr, wd, t, o, trusted):
        s["m"] = self.mu * s.get("m", 0) - self.alpha * (g + wd * w)
        return w + lr * s["m"]


class Case(NamedTuple):
    rule: object
    lr: float
    options: dict = {}


MOMENTUM = {"momentum": 0.9}
TRUST = {"momentum": 0.9, "trust_coefficient": 0.02}
CASES = {
    "sgd": Case(sgd, 0.05, MOMENTUM),
    "nag": Case(nag, 0.05, MOMENTUM),
    "signum": Case(signum, 0.01, {**MOMENTUM, "wd_lh": 0.1}),
    "ftml": Case(ftml, 0.02),
    "adagrad": Case(adagrad, 0.05),
    "rmsprop": Case(rmsprop, 0.01),
    "adam": Case(adam, 0.01),
    "dcasgd": Case(dcasgd, 0.05, MOMENTUM),
    "lbsgd": Case(lars, 0.5, {**TRUST, "warmup_strategy": "lars"}),
    "lars": Case(lars, 0.5, TRUST),
    "larc": Case(larc, 0.02, TRUST),
    "lamb": Case(lamb, 0.01),
    "novograd": Case(novograd, 0.01),
    "adadelta": Case(adadelta, 1.0),
    "adamw": Case(adamw, 0.01),
    "muon": Case(muon, 0.02, MOMENTUM),
    "muon, fixed norm": Case(
        muon_fixed_norm,
        0.02,
        {
            **MOMENTUM,
            "rest": "nag",
            "rest_momentum": 0.8,
            "ns_steps": 3,
            "fixed_norm": True,
            "filters_only": True,
        },
    ),
    "adamax": Case(adamax, 0.01),
    "nadam": Case(nadam, 0.01),
    "yellowfin": Case(YellowFin, 1.0, {"beta": 0.9}),
}


def optimizer_of(name):
    """``muon`` of ``muon, fixed norm``."""
    return name.partition(",")[0]


def schedule_of(case):
    """Warms up, bends, and ends at 0 with the last update."""
    return schedules.warmup(schedules.cosine(base_lr=case.lr, max_update=UPDATES), warmup_steps=5)


def weights_and_grads(dtype="float32"):
    rng = np.random.default_rng(7)
    weights = {n: rng.normal(size=shape).astype(dtype) for n, shape in SHAPES.items()}
    drift = {n: rng.normal(size=shape) for n, shape in SHAPES.items()}
    grads = [
        {
            n: (drift[n] + rng.normal(size=shape)).astype("float16").astype(dtype)
            for n, shape in SHAPES.items()
        }
        for _ in range(UPDATES)
    ]
    return weights, grads


def reference(case, weights, grads):
    rule = case.rule() if case.rule is YellowFin else case.rule
    weights = {n: w.astype("float64") for n, w in weights.items()}
    states = {n: {} for n in SHAPES}
    for t, step in enumerate(grads, 1):
        step = {n: g.astype("float64") for n, g in step.items()}
        lr = schedule_of(case)(t)
        for n, g in step.items():
            trusted = n not in EXEMPT
            weights[n] = rule(states[n], weights[n], g, lr, WD if trusted else 0.0, t, case.options, trusted)
        if isinstance(rule, YellowFin):
            rule.measure(step, t)
    return weights


def make(name, weights, ctx, dtype="float32", **options):
    case = CASES[name]
    params = mx.gluon.ParameterDict("")
    for n, w in weights.items():
        params.get(n, shape=w.shape, dtype=dtype, init=mx.init.Constant(mx.nd.array(w, dtype=dtype)))
    params.initialize(ctx=ctx)
    trainer = optim.setup(
        optimizer_of(name), params, learning_rate=case.lr, global_batch_size=BATCH, schedule=schedule_of(case), wd=WD,
        **{"multi_precision": dtype == "float16", **case.options, **options},
    )  # fmt: skip
    return params, trainer


def steps(params, trainer, grads, ctx):
    """Put given gradients where backward() would; contexts share them unevenly, 1 : 3."""
    shares = [1.0] if len(ctx) == 1 else [0.25, 0.75]
    for step in grads:
        for n, g in step.items():
            for c, share in zip(ctx, shares):
                params[n].grad(c)[:] = g * BATCH * share
                params[n].data(c)._fresh_grad = True
        trainer.step()


def distance(params, expected, ctx):
    return max(norm(params[n].data(ctx).asnumpy() - w) / norm(w) for n, w in expected.items())


TORCH = [name for name in CASES if optimizer_of(name) in TORCH_RULES]


def test_the_torch_backend_has_all_optimizers_but_one():
    assert set(CASES) - set(TORCH) == {"yellowfin"}


@pytest.mark.parametrize("name", TORCH)
def test_the_torch_backend_follows_the_reference(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make torch")
    case = CASES[name]
    weights, grads = weights_and_grads("float64")
    params = {n: torch.nn.Parameter(torch.tensor(w)) for n, w in weights.items()}
    options = {"momentum": 0.9, **case.options}
    optimizer = TorchOptimizer(optimizer_of(name), params, schedule_of(case), wd=WD, **options)
    for step in grads:
        for n, g in step.items():
            params[n].grad = torch.tensor(g) * BATCH
        optimizer.step(1 / BATCH)
    expected = reference(case, weights, grads)
    for n, w in expected.items():
        assert norm(params[n].detach().numpy() - w) <= 1e-9 * norm(w), n


ONE, TWO = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]


def test_every_optimizer_has_a_reference():
    assert {optimizer_of(name) for name in CASES} == set(optim.list_optimizers())


@pytest.mark.parametrize("on_kvstore", [False, True])
@pytest.mark.parametrize("ctx", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("name", CASES)
def test_float32_follows_the_reference(name, ctx, on_kvstore):
    if on_kvstore and len(ctx) == 1:
        ctx = [mx.cpu(1)]  # gluon makes no kvstore for it: setup must cope
    weights, grads = weights_and_grads()
    params, trainer = make(name, weights, ctx, update_on_kvstore=on_kvstore)
    steps(params, trainer, grads, ctx)
    expected = reference(CASES[name], weights, grads)
    assert distance(params, expected, ctx[0]) <= 1e-6
    assert min(norm(expected[n] - weights[n]) / norm(weights[n]) for n in SHAPES) > 1e-3
    for n in SHAPES:  # replicas never drift
        assert all((params[n].data(c).asnumpy() == params[n].data(ctx[0]).asnumpy()).all() for c in ctx)


@pytest.mark.parametrize("ctx", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("name", CASES)
def test_large_layers_have_kernels_of_their_own_and_follow_the_reference(name, ctx, monkeypatch):
    monkeypatch.setattr(_base, "LARGE", 20)
    weights, grads = weights_and_grads()
    assert any(w.size < 20 for w in weights.values()) and any(w.size >= 20 for w in weights.values())
    params, trainer = make(name, weights, ctx)
    steps(params, trainer, grads, ctx)
    assert distance(params, reference(CASES[name], weights, grads), ctx[0]) <= 1e-6


def arrays_of(state):
    if isinstance(state, mx.nd.NDArray):
        return [state]
    return [a for part in state for a in arrays_of(part)] if isinstance(state, (list, tuple)) else []


@pytest.mark.parametrize("name", CASES)
def test_float16_weights_follow_a_float32_master(name):
    weights, grads = weights_and_grads("float16")
    params, trainer = make(name, weights, ONE, "float16")
    steps(params, trainer, grads, ONE)
    expected = reference(CASES[name], weights, grads)
    for index, n in enumerate(sorted(SHAPES)):
        low, full = params[n].data().asnumpy(), expected[n]
        assert low.dtype == np.float16
        assert norm(low - full) / norm(full) < 1e-3
        kept = [a.asnumpy() for a in arrays_of(trainer._updaters[0].states[index]) if a.shape == full.shape]
        master = min((a for a in kept if a.dtype == np.float32), key=lambda a: norm(a - full))
        assert norm(master - full) / norm(full) <= 1e-6


@pytest.mark.parametrize("on_kvstore", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_saved_in_the_middle_and_resumed_is_the_same_run(name, on_kvstore, tmp_path):
    weights, grads = weights_and_grads()
    whole, trainer = make(name, weights, TWO, update_on_kvstore=on_kvstore)
    steps(whole, trainer, grads[:20], TWO)
    trainer.save_states(tmp_path / "t.states")
    middle = {n: whole[n].data(TWO[0]).asnumpy() for n in SHAPES}
    steps(whole, trainer, grads[20:40], TWO)

    resumed, second = make(name, middle, TWO, update_on_kvstore=on_kvstore)
    second.load_states(tmp_path / "t.states")
    assert second.num_update == 20
    steps(resumed, second, grads[20:40], TWO)
    for n in SHAPES:
        for c in TWO:
            assert (resumed[n].data(c).asnumpy() == whole[n].data(c).asnumpy()).all()


@pytest.mark.parametrize("name", CASES)
def test_float16_without_masters_works_or_says_what_it_needs(name):
    weights, grads = weights_and_grads("float16")
    if optim.OPTIMIZERS[optimizer_of(name)].needs_masters:
        with pytest.raises(UsageError, match="multi_precision=True"):
            make(name, weights, ONE, "float16", multi_precision=False)
        return
    params, trainer = make(name, weights, ONE, "float16", multi_precision=False)
    steps(params, trainer, grads[:3], ONE)
    expected = reference(CASES[name], weights, grads[:3])
    assert distance(params, expected, ONE[0]) < 0.02


@pytest.mark.parametrize("shape", [(2, 64, 576), (2, 576, 64), (1, 48, 500)])
@pytest.mark.parametrize("spectrum", ["even", "steep", "rank 8"])
def test_muons_steps_on_the_gram_matrix_are_the_steps(shape, spectrum, monkeypatch):
    from gluontune.optim import orthogonal

    rng = np.random.default_rng(0)
    matrices = rng.normal(size=shape)
    if spectrum == "rank 8":
        matrices = rng.normal(size=(*shape[:2], 8)) @ rng.normal(size=(shape[0], 8, shape[2]))
    elif spectrum == "steep":
        left, values, right = np.linalg.svd(matrices, full_matrices=False)
        matrices = left * np.logspace(0, -4, values.shape[1]) @ right
    taken = []
    steps = orthogonal._steps_on_gram
    monkeypatch.setattr(orthogonal, "_steps_on_gram", lambda *a: taken.append(1) or steps(*a))
    found = orthogonal.orthogonalized(orthogonal.nd.array(matrices.astype("float32"))).asnumpy()
    assert taken
    x = matrices / np.linalg.norm(matrices, axis=(1, 2), keepdims=True)
    for _ in range(5):
        gram = x @ x.swapaxes(1, 2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    assert np.abs(found - x).max() <= 5e-5 * np.abs(x).max()


def test_sums_of_squares_of_large_layers_keep_their_digits():
    large = mx.nd.random.normal(shape=(2**11, 2**11))
    found = _base.squares([mx.nd.full((3,), 2), large, mx.nd.ones((2,)), large[:32]]).asnumpy()
    exact = [float((a.asnumpy().astype("float64") ** 2).sum()) for a in (large, large[:32])]
    assert found[[0, 2]].tolist() == [12, 2]
    np.testing.assert_allclose(found[[1, 3]], exact, rtol=1e-4)  # MXNet's multi_sum_sq is 4e-3 off
