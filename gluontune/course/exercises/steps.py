"""Exercises in code about a training step: timers, environments, updates, loss scales.

Each checker draws its data anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gluontune import runtime
from gluontune.core.arrays import distance
from gluontune.course.exercises._registry import alike, calling, close, exercise, values_of
from gluontune.runtime.arrays import set_data


@exercise("write-environment", "lambda cores, processes: {'OMP_NUM_THREADS': str(max(1, cores // processes))}")
def _write_environment(answer: Callable[..., Any]) -> str | None:
    """The variable that gives each of several processes its share of the cores."""
    rng = np.random.default_rng()
    drawn = [(int(p * n + rng.integers(0, p)), int(p)) for n, p in rng.integers(2, 9, (6, 2))]
    for cores, processes in [*drawn, (2, 5)]:
        call = f"cores={cores}, processes={processes}"
        with calling(call):
            found = dict(answer(cores, processes))
        if "OMP_NUM_THREADS" not in found:
            return "The variable that counts MXNet's threads is OMP_NUM_THREADS: it has to be a key."
        value, truth = found["OMP_NUM_THREADS"], max(1, cores // processes)
        if not isinstance(value, str):
            return f"Environment variables are text: give {str(value)!r}, not {value!r}."
        if value == str(cores) and truth != cores:
            return f"With {call} each process would take all cores: they share them."
        if value in ("0", "0.0"):
            return f"With {call} a process would have no thread; one is the least."
        if value != str(truth):
            return f"With {call} each process gets {truth} whole threads; yours says {value}."
    return None


class _Queue:
    """A device that works asynchronously: a step returns at once, its work takes time until ``waitall`` returns."""

    def __init__(self, cost: float, set_up: float):
        self.cost, self.set_up = cost, set_up
        self.now, self.done_at, self.steps = 100.0, 0.0, 0

    def step(self) -> None:
        self.now += 0.01 * self.cost
        work = self.cost + (0.0 if self.steps else self.set_up)
        self.steps += 1
        self.done_at = max(self.now, self.done_at) + work

    def waitall(self) -> None:
        self.now = max(self.now, self.done_at)


_TIMER = """
def timer(step, waitall, clock, n):
    step()
    waitall()
    started = clock()
    for _ in range(n):
        step()
    waitall()
    return (clock() - started) / n
timer
"""


@exercise("write-timer", _TIMER)
def _write_timer(answer: Callable[..., Any]) -> str | None:
    """Seconds a step, without the set-up and with the work that is still under way."""
    rng = np.random.default_rng()
    cost, set_up, n = float(rng.uniform(0.01, 0.05)), float(rng.uniform(3, 9)), int(rng.integers(20, 60))
    queue = _Queue(cost, set_up)
    with calling(f"(step, waitall, clock, {n})"):
        found = float(answer(queue.step, queue.waitall, lambda: queue.now, n))
    if close(found, cost, 0.02) and queue.steps > n:
        return None
    if close(found, n * cost, 0.05):
        return f"Those are the seconds of all {n} steps; the question asks for one."
    if found < 0.5 * cost:
        return "The clock stopped before the work was done: a step only hands its work over. Call waitall() first."
    if found > cost + 0.5 * set_up / n:
        return "The first step sets things up. Take one step, and wait for it, before the clock starts."
    return f"A step takes {cost:.4f} s here; yours says {found:.4f}, after {queue.steps} steps."


@exercise("write-worker-count", "lambda rate, seconds: -(-rate * seconds // 1)")
def _write_worker_count(answer: Callable[..., Any]) -> str | None:
    """Little's law: the images under way are the rate times the time of each."""
    rng = np.random.default_rng()
    for _ in range(8):
        truth = int(rng.integers(3, 30))
        rate = float(rng.integers(50, 900))
        seconds = (truth - float(rng.uniform(0.2, 0.8))) / rate
        with calling(f"({rate:g}, {seconds:.4f})"):
            found = float(answer(rate, seconds))
        if found == truth:
            continue
        exact = rate * seconds
        if close(found, exact, 1e-9):
            return f"{found:.2f} is right, but there are no parts of a worker: which whole number is enough?"
        if found == truth - 1:
            return f"{truth - 1} workers make fewer than {rate:.0f} images/s: round up, not down."
        if close(found, rate / seconds, 0.01) or close(found, math.ceil(rate / seconds), 0.01):
            return "Multiply: the images under way are the images a second times the seconds of each."
        return f"{rate:g} images/s of {seconds:.4f} s each keep {exact:.2f} workers busy; yours says {found:g}."
    return None


@exercise(
    "write-loss-scaler",
    "lambda scale, good, finite, window: (scale / 2, 0) if not finite else"
    " (scale * 2, 0) if good + 1 == window else (scale, good + 1)",
)
def _write_loss_scaler(answer: Callable[..., Any]) -> str | None:
    """Halve the scale after an overflow; double it after ``window`` good steps in a row."""
    rng = np.random.default_rng()
    window = int(rng.integers(3, 7))
    scale, good = mine = (2.0 ** int(rng.integers(8, 16)), 0)
    for finite in [*([True] * window), False, *(rng.random(40) < 0.85), *([True] * 2 * window)]:
        finite = bool(finite)
        call = f"scale={scale:g}, good={good}, finite={finite}, window={window}"
        with calling(call):
            found = answer(scale, good, finite, window)
            mine = (float(found[0]), int(found[1]))
        truth = (scale / 2, 0)
        if finite:
            truth = (scale * 2, 0) if good + 1 == window else (scale, good + 1)
        if mine != truth:
            if not finite and mine[0] >= scale:
                return f"With {call} a gradient was infinite: the scale is too large, halve it."
            if not finite and mine[1]:
                return "After an overflow the count of good steps begins at 0 again."
            if finite and mine[0] < scale:
                return f"With {call} the step was good: there is no reason for a smaller scale."
            if finite and truth[0] > scale and mine[0] == scale:
                return f"With {call} this is the {window}th good step in a row: double the scale, and count from 0."
            return f"With {call} it shall give {truth}; yours gives {mine}."
        scale, good = truth
    return None


_LARS = """
def lars_step(w, v, g, lr, trust, wd, mu):
    g = g + wd * w
    rate = lr * trust * w.norm() / (g.norm() + 1e-12)
    v = mu * v + rate * g
    return w - v, v
lars_step
"""


@exercise("write-lars", _LARS)
def _write_lars(answer: Callable[..., Any]) -> str | None:
    """One LARS step of a layer, with momentum and weight decay, on NDArrays."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    w, v, g = (rng.normal(size=(7, 5)) * s for s in (1.0, 0.01, 0.3))
    lr, trust, wd, mu = (float(rng.uniform(*span)) for span in ((0.5, 2), (0.01, 0.05), (0.01, 0.1), (0.8, 0.95)))
    with calling("three NDArrays (7, 5), lr, trust, wd, mu"):
        found = answer(*(mx.nd.array(a) for a in (w, v, g)), lr, trust, wd, mu)
        mine, speed = values_of(found[0]), values_of(found[1])

    def step(decay: float, layer: bool = True, sign: float = 1.0, mu: float = mu) -> np.ndarray:
        d = g + decay * w
        rate = lr * (trust * np.linalg.norm(w) / np.linalg.norm(d) if layer else 1.0)
        return np.asarray(w - sign * (mu * v + rate * d))

    if mine.shape != w.shape or speed.shape != w.shape:
        return f"For a weight of shape {w.shape} the new w and v have shapes {mine.shape} and {speed.shape}."
    rules = "g ← g + wd·w; rate = lr·trust·‖w‖/‖g‖; v ← mu·v + rate·g; w ← w − v: one of these lines differs."
    hint = alike(
        mine,
        (step(wd), None),
        (step(0.0), "Weight decay is missing: the gradient is g + wd · w, also in the norm."),
        (step(wd, layer=False), "The layer's own rate is missing: lr · trust · ‖w‖ / ‖g‖."),
        (step(wd, mu=0.0), "Momentum is missing: v becomes mu · v plus this step."),
        (step(wd, sign=-1.0), "That goes uphill: subtract v."),
        otherwise=rules, atol=2e-5,
    )  # fmt: skip
    return hint or alike(w - mine, (speed, None), otherwise="The new w is right, v is not.")


_NAG = """
def nag_step(w, v, g, lr, mu):
    v = mu * v - lr * g
    return w + mu * v - lr * g, v
nag_step
"""


@exercise("write-nag", _NAG)
def _write_nag(answer: Callable[..., Any]) -> str | None:
    """Nesterov's step, held against MXNet's own ``nag`` for some updates."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    lr, mu = float(rng.uniform(0.05, 0.3)), float(rng.uniform(0.6, 0.95))
    start, gradients = rng.normal(size=6), rng.normal(size=(4, 6))
    theirs = mx.optimizer.NAG(learning_rate=lr, momentum=mu, wd=0.0, rescale_grad=1.0)
    weight = mx.nd.array(start)
    state = theirs.create_state(0, weight)
    w, v = mx.nd.array(start), mx.nd.zeros(6)
    heavy, plain, speed = start.copy(), start.copy(), np.zeros(6)
    for g in gradients:
        theirs.update(0, weight, mx.nd.array(g), state)
        speed = mu * speed - lr * g
        heavy, plain = heavy + speed, plain - lr * g
        with calling(f"w, v, g of shape (6,), lr={lr:.2f}, mu={mu:.2f}"):
            w, v = answer(w, v, mx.nd.array(g), lr, mu)
            mine = values_of(w)
    away = distance(mine.astype(np.float64), values_of(weight).astype(np.float64))
    if away < 1e-3:
        return None
    return alike(
        mine,
        (heavy, "That is plain momentum; Nesterov's w moves by mu·v − lr·g, with the new v."),
        (plain, "That is plain descent: the memory v is not used."),
        (2 * start - plain, "That goes uphill, and without memory: the gradient is subtracted."),
        otherwise=f"After {len(gradients)} updates it is {away:.2g} away from MXNet's nag.",
    )


_STEP = """
def train_step(net, loss_of, trainer, x, y):
    with mx.autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    trainer.step(len(x))
train_step
"""


@exercise("write-train-step", _STEP)
def _write_train_step(answer: Callable[..., Any]) -> str | None:
    """One step of training, held against the update that numpy computes."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    size, lr = int(rng.integers(5, 12)), float(rng.uniform(0.05, 0.3))
    x, y = (rng.normal(size=(size, n)).astype(np.float32) for n in (4, 1))
    w = rng.normal(size=(1, 4)).astype(np.float32)
    net = mx.gluon.nn.Dense(1, in_units=4, use_bias=False)
    net.initialize()
    set_data(net.weight, mx.nd.array(w))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr})
    unrecorded = "backward() finds nothing: compute the loss inside `with mx.autograd.record():`."
    known = ("record", unrecorded), ("computational graph", unrecorded)
    with calling("a net, a loss, a trainer and a batch", *known):
        answer(net, mx.gluon.loss.L2Loss(), trainer, mx.nd.array(x), mx.nd.array(y))
        mine = values_of(net.weight.data())
    total = (x @ w.T - y).T @ x
    if np.allclose(mine, w - lr * total / size, atol=1e-4):
        return None
    if np.allclose(mine, w, atol=1e-7):
        return "The weights did not move: backward() computes gradients, trainer.step() uses them."
    if np.allclose(mine, w - lr * total, atol=1e-3):
        return "The step is too long: trainer.step() divides by the number that it is given, the images of the batch."
    if np.allclose(mine, w - lr * total / size**2, atol=1e-5):
        return "The step is divided by the batch twice: by the mean of the loss and by trainer.step()."
    return "The new weight is not the one of a single step of SGD on this batch."
