"""Exercises: the right answer passes, the stub and each typical mistake get the hint that fits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gluontune import runtime
from gluontune.core.errors import GluontuneError
from gluontune.course import EXERCISES, check
from gluontune.course.exercises import RIGHT
from gluontune.course.running import SOLUTIONS, solved
from gluontune.optim import schedules
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult


def result():
    return RunResult(
        recipe=Recipe(batch_size_per_device=64).to_dict(),
        samples_per_sec={"median": 320.0, "ci95": [300.0, 340.0], "n": 9},
    )


def ramp(top=0.4, shape="half cosine"):
    def rate(n):
        if n <= 100:
            return top * n / 100
        if shape == "line":
            return top * (1000 - n) / 900
        return schedules.cosine(base_lr=top, max_update=900)(n - 100)

    return rate


def fails(n):
    raise ValueError("no such update")


def timer(step, waitall, clock, n, warm=True, wait=True):
    if warm:
        step()
        waitall()
    started = clock()
    for _ in range(n):
        step()
    if wait:
        waitall()
    return (clock() - started) / n


def scaler(scale, good, finite, window):
    if not finite:
        return scale / 2, 0
    return (2 * scale, 0) if good + 1 == window else (scale, good + 1)


def lars(w, v, g, lr, trust, wd, mu, decay=True, layer=True):
    g = g + wd * w if decay else g
    rate = lr * (trust * w.norm() / g.norm() if layer else 1 + 0 * w.norm())
    v = mu * v + rate * g
    return w - v, v


def nag(w, v, g, lr, mu):
    v = mu * v - lr * g
    return w + mu * v - lr * g, v


def all_reduce(grads):
    total = sum(g.as_in_context(grads[0].context) for g in grads)
    return [total.as_in_context(g.context) for g in grads]


def ring_turn(parts, t, way=1):
    n = len(parts)
    for r in range(n):
        parts[(r + way) % n][(r - t) % n] += parts[r][(r - t) % n]


def train_step(net, loss_of, trainer, x, y, size=None):
    with runtime.mxnet().autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    if trainer:
        trainer.step(size or len(x))


def record(image, label, key):
    recordio = runtime.mxnet().recordio
    return recordio.pack(recordio.IRHeader(0, label, key, 0), image)


def scheduled(params, peak, warmup, drop, rate=None):
    mx = runtime.mxnet()
    plan = mx.lr_scheduler.MultiFactorScheduler([drop], factor=0.1, base_lr=peak, warmup_steps=warmup)
    return mx.gluon.Trainer(params, "sgd", {"learning_rate": rate or peak, "lr_scheduler": plan})


def depth(x, branch, keep, training, shape=None):
    if not training:
        return x + keep * branch
    shape = shape or (len(x),) + (1,) * (x.ndim - 1)
    return x + (runtime.mxnet().nd.random.uniform(shape=shape) < keep) * branch


def quantize(x, kind="uint8", whole=True, zero=True, bits=255, nearest=True):
    low, high = float(x.min().asscalar()), float(x.max().asscalar())
    low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    scale = (high - low) / bits
    place = round(min(255, max(0, -low / scale))) if whole else 0.4 - low / scale
    q = x / scale + place
    return (q.round() if nearest else q.floor()).clip(0, 255).astype(kind), scale, place


def smoothed(F, scores, label, eps, mean=True):
    logs = F.log_softmax(scores)
    rest = logs.mean(axis=1) if mean else logs.sum(axis=1)
    return -(1 - eps) * F.pick(logs, label) - eps * rest


# name: (given, right answer, {wrong answer: a part of its hint})
ANSWERS = {
    "usable-cores": ({}, lambda: runtime.usable_cores(), [(0, "one at least"), (99_999, "more than"), (1.5, "whole")]),
    "omp-threads": (
        {},
        lambda: int(runtime.launch_settings(processes=2).env["OMP_NUM_THREADS"]),
        [(0, "one thread"), (77_777, "more threads"), (0.5, "part")],
    ),
    "epoch-seconds": (
        {"result": result(), "num_train": 10_000},
        lambda: 31.25,
        [(31.25 / 60, "minutes"), (0.032, "fraction"), (156.25, "steps"), (7, "Divide")],
    ),
    "step-time-ms": (
        {"result": result()},
        lambda: 200.0,
        [(0.2, "seconds"), (3.125, "one image"), (5, "batch size divided")],
    ),
    "workers-needed": ({}, lambda: 6, [(5, "still wait"), (5.5, "halves"), (8, "fewer"), (1, "round up")]),
    "step-serial": ({}, lambda: 130, [(80, "follow each other"), (50, "waits"), (65, "average"), (1, "same time")]),
    "step-overlapped": ({}, lambda: 80, [(50, "not there yet"), (130, "without"), (30, "whole step"), (1, "slower")]),
    "record-bytes": (
        {"payload": 601},
        lambda: 636,
        [(601, "image alone"), (633, "multiple of four"), (625, "magic and length"), (640, "byte 32")],
    ),
    "label-limit": ({}, lambda: 2**24, [(2**24 - 1, "One"), (2**23, "free"), (2**32, "exponent"), (9, "Try")]),
    "feed-rate": ({}, lambda: 10_240, [(40, "batches"), (10.24, "millisecond"), (6400, "multiplied"), (3, "1000 ms")]),
    "arrays-imperative": ({}, lambda: 6, [(4, "a and b"), (3, "graph"), (1, "one name"), (9, "names")]),
    "arrays-symbolic": ({}, lambda: 3, [(6, "imperative"), (1, "inputs"), (4, "written over"), (9, "same time")]),
    "break-even": ({}, lambda: 200, [(40, "saves"), (0.2, "one unit"), (20, "2,000"), (7, "difference")]),
    "largest-float16": ({}, lambda: 65_504, [(65_536, "integer"), (32_768, "power"), (3.4e38, "five"), (9, "finfo")]),
    "next-bfloat16": (
        {},
        lambda: 1.0078125,
        [(2**-7, "add it"), (1 + 2**-10, "float16"), (1 + 2**-8, "seven"), (2, "stores")],
    ),
    "loss-scale": ({}, lambda: 65_536, [(16, "exponent"), (2**6, "one digit"), (2**20, "smaller"), (9, "begin")]),
    "linear-rule": ({}, lambda: 0.4, [(0.2, "square-root"), (0.025, "grows"), (0.1, "as it is"), (9, "four times")]),
    "noise-share": ({}, lambda: 0.25, [(1 / 16, "variance"), (4, "turn"), (25, "percent"), (9, "root of n")]),
    "large-batch-updates": (
        {},
        lambda: 1500,
        [(50, "one epoch"), (1_500_000, "images"), (30_000, "Divide"), (7, "30 epochs")],
    ),
    "updates-per-epoch": ({}, lambda: 200, [(10_000, "stochastic"), (1, "full"), (500_000, "Divide"), (7, "batch")]),
    "adam-first-step": (
        {},
        lambda: 0.003,
        [(3e-6, "drops out"), (0.001, "whatever"), (0.0003, "divides"), (0.5, "left is the rate")],
    ),
    "optimizer-memory": (
        {},
        lambda: 200,
        [(100, "one array"), (2e8, "million"), (50, "four bytes"), (300, "without Adam"), (7, "How many")],
    ),
    "momentum-step": ({}, lambda: 1.0, [(0.1, "first"), (0.19, "second"), (10, "rate"), (3, "Solve")]),
    "write-sgd": (
        {},
        lambda: lambda x, y, gx, gy, lr: (x - lr * gx, y - lr * gy),
        [
            (lambda x, y, gx, gy, lr: (x + lr * gx, y + lr * gy), "uphill"),
            (lambda x, y, gx, gy, lr: (x - gx, y - gy), "rate first"),
            (lambda x, y, gx, gy, lr: (-lr * gx, -lr * gy), "step alone"),
            (lambda x, y, gx, gy, lr: x, "two numbers"),
            (lambda x, y, gx, gy, lr: (0, 0), "it shall go"),
        ],
    ),
    "multifactor-rate": ({}, lambda: 0.25, [(0.125, "exceeds"), (0.5, "one more"), (1, "Two steps"), (7, "Count")]),
    "step-update": (
        {},
        lambda: 60 * 390 / 2,
        [(30, "epoch"), (60 * 390, "whole run"), (60 * 50_000 / 128 / 2, "round down"), (7, "Updates of an epoch")],
    ),
    "write-schedule": (
        {},
        lambda: ramp(),
        [
            (ramp(0.1), "At update 100"),
            (lambda n: 0.4 if n <= 100 else 0.0, "update 50"),
            (lambda n: ramp()(n) if n < 1000 else 0.3, "At update 1,000"),
            (ramp(shape="line"), "straight line"),
            (lambda n: ramp()(n) if n < 500 else ramp()(n) / 2, "half-way, at 550"),
            (fails, "it fails"),
        ],
    ),
    "efficiency": (
        {},
        lambda: 73.5,
        [(2.94, "gain"), (0.735, "percent"), (294, "four devices"), (34, "Turn"), (9, "Divide")],
    ),
    "ring-bytes": (
        {},
        lambda: 150,
        [(100, "gradient itself"), (75, "half of the way"), (37.5, "four bytes"), (600, "all four"), (200, "server"),
         (150e6, "million"), (9, "pieces")],
    ),
    "exchange-share": (
        {},
        lambda: 100 / 7,
        [(1 / 7, "percent"), (25, "now"), (12.5, "not twice"), (100 / 6, "together"), (50, "30 ms")],
    ),
    "write-partition": (
        {},
        lambda: lambda n, rank, world: list(range(n // world * world))[rank::world],
        [
            (lambda n, rank, world: list(range(n))[rank::world], "wait for ever"),
            (lambda n, rank, world: list(range(n // world)), "same images"),
            (lambda n, rank, world: list(range(rank * (n // world), (rank + 1) * (n // world) + 1)), "more than one"),
            (lambda n, rank, world: [rank], "left out"),
            (lambda n, rank, world: [n] * (n // world), "0 to 102"),
            (lambda n, rank, world: 7, "a list"),
        ],
    ),
    "measured-promised": (
        {},
        lambda: 0.75,
        [(0.9, "multiply"), (6, "promise itself"), (4 / 3, "Turn"), (1.5, "both"), (9, "product")],
    ),
    "left-out": ({}, lambda: 0.8, [(1.25, "Turn"), (-2, "ratio"), (8, "base"), (10, "without"), (3, "divided")]),
    "cost-of-four": ({}, lambda: 4, [(1, "one device"), (12, "whole hour"), (3, "single"), (9, "third")]),
    "variance-ratio": (
        {},
        lambda: 16 / 15,
        [(15 / 16, "Turn"), (17 / 16, "one less"), (1, "Nearly"), (2, "by 15")],
    ),
    "write-hard-sigmoid": (
        {},
        lambda: lambda x: (0.2 * x + 0.5).clip(0, 1),
        [
            (lambda x: (x / 6 + 0.5).clip(0, 1), "PyTorch's"),
            (lambda x: 0.2 * x + 0.5, "cut off"),
            (lambda x: 0.3 * x + 0.5, "No value"),
            (lambda x: 0 * x, "0.2 times x"),
            (lambda x: 1.0, "shape"),
            (lambda x: x.no_such(), "fails"),
        ],
    ),
    "migration-weeks": ({}, lambda: 1.5, [(0.75, "afterwards"), (1, "half"), (20, "each week"), (9, "40")]),
    "batch-wait": (
        {},
        lambda: 782.8,
        [(0.7828, "seconds"), (6.115, "its batch is"), (13.04, "by itself"), (1669, "one by one"), (7, "how many")],
    ),
    "tail-latency": (
        {},
        lambda: 50,
        [(4, "p98"), (4.69, "mean"), (990, "place"), (30, "only answers"), (1, "Sort")],
    ),
    "write-agreement": (
        {},
        lambda: lambda a, b: 100 * (a.argmax(1) == b.argmax(1)).mean(),
        [
            (lambda a, b: (a.argmax(1) == b.argmax(1)).mean(), "percent"),
            (lambda a, b: 100 * (a.argmax(0) == b.argmax(0)).mean(), "axis 1"),
            (lambda a, b: 100 * (a == b).mean(), "compares the scores"),
            (lambda a, b: a.shape, "does not give"),
            (lambda a, b: 12.0, "it shall give"),
        ],
    ),
    "assessment-budget": (
        {"reference": {"1": {"seconds": 20.0}, "2": {"seconds": 15.0}}},
        lambda: 30,
        [(15, "reference's own"), (40, "on one rank"), (7, "second.reference")],
    ),
    "rank-steps": (
        {},
        lambda: 93,
        [(187, "half"), (94, "Whole"), (93.75, "Whole"), (186, "together"), (64, "One rank")],
    ),
    "lucky-styles": ({}, lambda: 1.2, [(0.1, "there are 12"), (10, "percent"), (6, "once in 10")]),
    "recipe-field": (
        {"recipe": Recipe(job="job.py")},
        lambda: "job",
        [("net", "gluontune's lists"), ("file", "no field"), ("seed", "line with the path")],
    ),
    "write-environment": (
        {},
        lambda: lambda cores, n: {"OMP_NUM_THREADS": str(max(1, cores // n))},
        [
            (lambda cores, n: {"THREADS": "1"}, "has to be a key"),
            (lambda cores, n: {"OMP_NUM_THREADS": cores // n}, "text"),
            (lambda cores, n: {"OMP_NUM_THREADS": str(cores)}, "share them"),
            (lambda cores, n: {"OMP_NUM_THREADS": str(cores // n)}, "no thread"),
            (lambda cores, n: {"OMP_NUM_THREADS": str(cores / n)}, "whole threads"),
            (lambda cores, n: 1, "fails"),
        ],
    ),
    "write-timer": (
        {},
        lambda: timer,
        [
            (lambda *a: timer(*a, wait=False), "Call waitall()"),
            (lambda *a: timer(*a, warm=False), "sets things up"),
            (lambda *a: timer(*a) * a[3], "of all"),
            (lambda step, waitall, clock, n: 1e6, "sets things up"),
            (lambda step, waitall, clock, n: step.no, "fails"),
        ],
    ),
    "write-worker-count": (
        {},
        lambda: lambda rate, seconds: math.ceil(rate * seconds),
        [
            (lambda rate, seconds: rate * seconds, "no parts"),
            (lambda rate, seconds: int(rate * seconds), "not down"),
            (lambda rate, seconds: rate / seconds, "Multiply"),
            (lambda rate, seconds: 1, "busy"),
            (lambda rate, seconds: None, "fails"),
        ],
    ),
    "write-loss-scaler": (
        {},
        lambda: scaler,
        [
            (lambda s, good, finite, window: (s, good + 1), "double the scale"),
            (lambda s, good, finite, window: scaler(s, good, True, window), "halve it"),
            (lambda s, good, finite, window: scaler(s, good, finite, window) if finite else (s / 2, 1), "begins at 0"),
            (lambda s, good, finite, window: (s / 2, 0), "no reason"),
            (lambda s, good, finite, window: s, "fails"),
        ],
    ),
    "write-lars": (
        {},
        lambda: lars,
        [
            (lambda *a: lars(*a, decay=False), "decay is missing"),
            (lambda *a: lars(*a, layer=False), "own rate"),
            (lambda w, v, g, lr, trust, wd, mu: lars(w, 0 * v, g, lr, trust, wd, mu), "Momentum is missing"),
            (lambda w, v, *a: (2 * w - lars(w, v, *a)[0], v), "uphill"),
            (lambda w, v, *a: (lars(w, v, *a)[0], v), "v is not"),
            (lambda w, v, *a: (w, v), "one of these lines"),
            (lambda *a: a[0], "shapes"),
            (lambda *a: a[0].no, "fails"),
        ],
    ),
    "write-nag": (
        {},
        lambda: nag,
        [
            (lambda w, v, g, lr, mu: (w + mu * v - lr * g, mu * v - lr * g), "plain momentum"),
            (lambda w, v, g, lr, mu: (w - lr * g, v), "plain descent"),
            (lambda w, v, g, lr, mu: (w + lr * g, v), "uphill"),
            (lambda w, v, g, lr, mu: (w, v), "away from"),
            (lambda w, v, g, lr, mu: w.no, "fails"),
        ],
    ),
    "write-allreduce": (
        {},
        lambda: all_reduce,
        [
            (lambda grads: [x / len(grads) for x in all_reduce(grads)], "the mean"),
            (lambda grads: grads, "first device's"),
            (lambda grads: all_reduce(grads)[:1], "one for each"),
            (lambda grads: [all_reduce(grads)[0]] * len(grads), "as_in_context"),
            (lambda grads: [2 * x for x in all_reduce(grads)], "sum of all"),
            (lambda grads: 7, "fails"),
        ],
    ),
    "write-ring": (
        {},
        lambda: ring_turn,
        [
            (lambda parts, t: None, "changed nothing"),
            (lambda parts, t: [ring_turn(parts, k) for k in range(2)], "from its left"),
            (lambda parts, t: ring_turn(parts, t + 1), "(r − t) mod n"),
            (lambda parts, t: ring_turn(parts, t, way=-1), "other way"),
            (lambda parts, t: parts.no, "fails"),
        ],
    ),
    "write-train-step": (
        {},
        lambda: train_step,
        [
            (lambda net, loss, trainer, x, y: loss(net(x), y).backward(), "record"),
            (lambda net, loss, trainer, x, y: train_step(net, loss, None, x, y), "did not move"),
            (lambda net, loss, trainer, x, y: train_step(net, loss, trainer, x, y, 1), "too long"),
            (lambda net, loss, trainer, x, y: train_step(net, loss, trainer, x, y, len(x) ** 2), "twice"),
            (lambda net, loss, trainer, x, y: train_step(net, loss, trainer, x, y, 0.5), "single step"),
            (lambda net, loss, trainer, x, y: net.no, "fails"),
        ],
    ),
    "write-record": (
        {},
        lambda: record,
        [
            (lambda image, label, key: image, "header"),
            (lambda image, label, key: b"nothing", "as they are"),
            (lambda image, label, key: record(image, key, int(label)), "exchanged"),
            (lambda image, label, key: record(image, label, 0), "key is read back"),
            (lambda image, label, key: record(image, label + 1, key), "label is read back"),
            (lambda image, label, key: image.no, "fails"),
        ],
    ),
    "write-hybrid-forward": (
        {},
        lambda: lambda F, x: F.where(x > 0, x, 0.1 * x),
        [
            (lambda F, x: x if x.mean() > 0 else 0.1 * x, "no values yet"),
            (lambda F, x: F.relu(x), "That is ReLU"),
            (lambda F, x: 0.1 * x, "once for the whole"),
            (lambda F, x: 3 * x, "elsewhere"),
            (lambda F, x: x.mean(), "shape"),
            (lambda F, x: F.no, "fails"),
        ],
    ),
    "write-trainer": (
        {},
        lambda: scheduled,
        [
            (lambda p, peak, w, drop: scheduled(p, peak, w, drop, rate=0.01), "give both the same"),
            (lambda p, peak, w, drop: scheduled(p, peak, 0, drop), "warm up first"),
            (lambda p, peak, w, drop: scheduled(p, peak, w, 9 * drop), "a tenth"),
            (lambda p, peak, w, drop: scheduled(p, peak, w, drop + 2), "At update"),
            (lambda p, peak, w, drop: runtime.mxnet().gluon.Trainer(p, "sgd"), "stays"),
            (lambda p, peak, w, drop: p, "fails"),
        ],
    ),
    "write-stochastic-depth": (
        {},
        lambda: depth,
        [
            (lambda x, b, keep, training: x + keep * b, "not at all"),
            (lambda x, b, keep, training: depth(x, b, keep, training, x.shape), "once for each image"),
            (lambda x, b, keep, training: x + b, "share one throw"),
            (lambda x, b, keep, training: depth(x, b, 0.1 * keep, training), "branches were kept"),
            (lambda x, b, keep, training: depth(x, b, keep, True) if training else x + b, "keep times"),
            (lambda x, b, keep, training: depth(x, b, keep, True) if training else x, "Prediction"),
            (lambda x, b, keep, training: x.sum(), "gives"),
            (lambda x, b, keep, training: x.no, "fails"),
        ],
    ),
    "write-quantize": (
        {},
        lambda: quantize,
        [
            (lambda x: quantize(x, kind="int8"), "uint8"),
            (lambda x: quantize(x, whole=False), "integer from"),
            (lambda x: (quantize(x)[0], 1 / quantize(x)[1], quantize(x)[2]), "Turn"),
            (lambda x: quantize(x, zero=False), "contain 0"),
            (lambda x: quantize(x, bits=127), "a step is"),
            (lambda x: (0 * quantize(x)[0], *quantize(x)[1:]), "possible"),
            (lambda x: quantize(x, nearest=False), "cuts off"),
            (lambda x: 3, "fails"),
        ],
    ),
    "write-nhwc": (
        {},
        lambda: lambda x, w: (x.transpose((0, 2, 3, 1)), w.transpose((0, 2, 3, 1))),
        [
            (lambda x, w: (x.transpose((0, 3, 2, 1)), w.transpose((0, 3, 2, 1))), "Height and width"),
            (lambda x, w: (x, w), "channels last"),
            (lambda x, w: (x.transpose((0, 2, 3, 1)), w.reshape((w.shape[0], 1, 3, -1))), "transpose moves"),
            (lambda x, w: (x.transpose((0, 2, 3, 1)),), "two arrays"),
            (lambda x, w: 3, "fails"),
        ],
    ),
    "write-loss": (
        {},
        lambda: smoothed,
        [
            (lambda F, s, y, eps: smoothed(F, s, y, eps).mean(), "each image"),
            (lambda F, s, y, eps: -smoothed(F, s, y, eps), "sign"),
            (lambda F, s, y, eps: smoothed(F, s, y, 0), "plain loss"),
            (lambda F, s, y, eps: smoothed(F, s, y, eps, mean=False), "mean over them"),
            (lambda F, s, y, eps: s, "12 losses"),
            (lambda F, s, y, eps: s.sum(axis=1), "over all classes"),
            (lambda F, s, y, eps: s.no, "fails"),
        ],
    ),
    "speedup-hours": ({"speedup": 3.0}, lambda: 8, [(72, "divide"), (16, "you save"), (5, "24 divided")]),
}  # fmt: skip


@pytest.mark.parametrize("name", EXERCISES.names())
def test_exercises_know_the_answer_and_hint_at_each_mistake(name, capsys):
    given, truth, mistakes = ANSWERS[name]
    assert check(name, truth(), **given)
    assert not check(name, ..., **given)
    assert "in place of the three dots" in capsys.readouterr().out
    for nonsense in (["three"], None, True):
        assert not check(name, nonsense, **given)
    assert "the answer is" in capsys.readouterr().out
    hints = set()
    for wrong, hint in mistakes:
        assert not check(name, wrong, **given)
        said = capsys.readouterr().out.partition("not yet. ")[2]
        assert hint in said and len(said.split()) >= 4, "a hint, not only that it is wrong"
        hints.add(said)
    assert len(hints) >= 3, "each of three mistakes has its own"


def test_numbers_come_in_any_guise():
    assert check("step-serial", np.float32(130)) and check("step-serial", np.int64(130))


def test_solutions_are_put_in_place_of_the_dots():
    assert solved('check("step-serial", ...)') == f'check("step-serial", {SOLUTIONS["step-serial"]})'
    with pytest.raises(GluontuneError, match="no-such"):
        solved('check("no-such", ...)')


def test_a_solution_of_several_lines_stands_above_the_check():
    lines = solved('check("write-lars", ...)').splitlines()
    assert lines[0].startswith("def lars_step(") and lines[-1] == 'check("write-lars", lars_step)'


@pytest.mark.parametrize("name", [n for n in EXERCISES.names() if EXERCISES[n].takes == "function"])
def test_code_is_graded_on_data_of_its_own(name, capsys):
    names = {"np": np, "mx": runtime.mxnet(), "s": schedules, "check": check}
    for _ in range(5):  # drawn anew each time: the solution passes whatever is drawn
        exec(solved(f'check("{name}", ...)'), names)
    assert capsys.readouterr().out.count(RIGHT) == 5
