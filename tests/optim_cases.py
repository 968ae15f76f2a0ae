"""Each optimizer in numpy, in float64, and the 50 updates that all are driven through."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gluontune import optim
from gluontune.optim import schedules
from gluontune.runtime import mxnet

mx = mxnet()

SHAPES = {"a_weight": (5, 4), "b_bias": (5,), "c_gamma": (3,), "d_weight": (3, 2, 3, 3), "e_beta": (3,)}
EXEMPT = {"b_bias", "c_gamma", "e_beta"}
ONE, TWO = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]
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
        {**MOMENTUM, "rest": "nag", "rest_momentum": 0.8, "ns_steps": 3, "fixed_norm": True, "filters_only": True},
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
        {n: (drift[n] + rng.normal(size=shape)).astype("float16").astype(dtype) for n, shape in SHAPES.items()}
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
