"""The range test for the learning rate of a net, data and optimizer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.optim._setup import setup
from gluontune.optim.trainer import TunedTrainer
from gluontune.runtime import mxnet, set_data

mx: Any = mxnet()


@dataclass(frozen=True)
class RangeTest:
    """The result of a range test.

    Args:
        learning_rates: rate of each update.
        losses: mean loss before each update.
        smoothed: exponential average of them, with bias correction.
        suggestion: the rate where the smoothed loss falls most steeply.
        diverged: whether the test ended because the loss exploded; if not, raise ``lr_max``.
    """

    learning_rates: list[float]
    losses: list[float]
    smoothed: list[float]
    suggestion: float
    diverged: bool

    def plot(self, path: Any = None) -> Any:
        """The figure; see :func:`gluontune.optim.plots.plot_range_test`."""
        from gluontune.optim.plots import plot_range_test

        return plot_range_test(self, path=path)


def smoothed(losses: Iterable[float], beta: float = 0.9) -> list[float]:
    """Exponential average with weight ``beta`` on the past, with bias correction.

    >>> [round(x, 3) for x in smoothed([1.0, 1.0, 0.0])]
    [1.0, 1.0, 0.631]
    """
    average, out = 0.0, []
    for count, loss in enumerate(losses, 1):
        average = beta * average + (1 - beta) * loss
        out.append(average / (1 - beta**count))
    return out


def suggest(learning_rates: list[float], curve: list[float], skip: int = 0) -> float:
    """The rate at which ``curve`` falls most steeply per factor of the rate, before its lowest point.

    Args:
        learning_rates: rising.
        curve: the smoothed loss at each.
        skip: points to ignore at the start, where the average is mostly noise.

    >>> suggest([0.001, 0.01, 0.1, 1.0, 10.0], [2.3, 2.2, 1.5, 1.2, 9.0])
    0.1
    """
    lowest = int(np.argmin(curve))
    if lowest < skip + 2:
        return learning_rates[lowest] / 10  # hardly a fall: the rule of thumb
    slopes = np.gradient(np.asarray(curve[skip : lowest + 1]), np.log(learning_rates[skip : lowest + 1]))
    return learning_rates[skip + int(np.argmin(slopes))]


def find_learning_rate(
    net: Any,
    loss: Any,
    batches: Iterable[tuple[Any, Any]],
    *,
    optimizer: str = "nag",
    lr_min: float = 1e-5,
    lr_max: float = 10.0,
    updates: int = 100,
    ctx: Any = None,
    seed: int = 0,
    beta: float = 0.9,
    blow_up: float = 4.0,
    **setup_params: Any,
) -> RangeTest:
    """Raise the rate exponentially from ``lr_min`` to ``lr_max`` and record the loss.

    From Smith, arXiv:1506.01186; the smoothing and the suggestion as in fastai. The net's values are restored, running
    statistics included; the generators of numpy and mxnet are seeded, so that the same seed gives the same result (with
    a loader in the same process).

    Args:
        net: an initialized Gluon block.
        loss: a Gluon loss with one number for each sample.
        batches: yields ``(data, label)`` arrays of any number of samples; repeated when it ends.
        optimizer, setup_params: as :func:`gt.optim.setup`'s (``momentum``, ``wd``, …).
        lr_min, lr_max: the range.
        updates: steps from one to the other.
        ctx: context or list of contexts; None: the net's.
        seed: of both generators.
        beta: smoothing.
        blow_up: stop when the smoothed loss exceeds this multiple of its minimum.

    Raises:
        UsageError: an empty range, or no batches.
        GluontuneError: the loss is not finite from the start.

    >>> import gluontune as gt
    >>> mx = gt.runtime.mxnet()
    >>> net = mx.gluon.nn.Dense(1, in_units=2)
    >>> net.initialize()
    >>> mx.random.seed(0)
    >>> points = mx.random.normal(shape=(64, 2))
    >>> batch = points, points.sum(axis=1)
    >>> found = gt.optim.find_learning_rate(net, mx.gluon.loss.L2Loss(), [batch], optimizer="sgd")
    >>> found.diverged, 1e-5 < found.suggestion < 10
    (True, True)
    """
    if not (0 < lr_min < lr_max < math.inf) or updates < 10:
        raise UsageError(
            f"lr_min={lr_min!r}, lr_max={lr_max!r}, updates={updates!r}: "
            "give 0 < lr_min < lr_max and 10 updates or more"
        )
    mx.random.seed(seed)
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        return _run(net, loss, batches, optimizer, (lr_min, lr_max), updates, ctx, beta, blow_up, setup_params)
    finally:
        np.random.set_state(state)


def _run(
    net: Any, loss: Any, batches: Any, optimizer: str, ends: tuple[float, float], updates: int, ctx: Any,
    beta: float, blow_up: float, setup_params: dict[str, Any],
) -> RangeTest:  # fmt: skip
    params = net.collect_params()
    contexts = [ctx] if isinstance(ctx, mx.Context) else ctx or next(iter(params.values())).list_ctx()
    before: dict[str, Any] | None = None
    trainer: TunedTrainer | None = None
    rates: list[float] = []
    losses: list[float] = []
    growth = (ends[1] / ends[0]) ** (1 / (updates - 1))
    diverged = False
    for data, label in itertools.islice(_endless(batches), updates):
        parts = _split(data, label, contexts)
        if before is None or trainer is None:
            net(parts[0][0])  # completes deferred initialization
            before = {name: param.data(contexts[0]).copy() for name, param in params.items()}
            trainer = setup(
                optimizer, net, learning_rate=1.0, global_batch_size=len(data),
                schedule=lambda n: ends[0] * growth ** (n - 1), **setup_params,
            )  # fmt: skip
        with mx.autograd.record():
            each = [loss(net(x), y) for x, y in parts]
        mean = sum(float(part.sum().asscalar()) for part in each) / len(data)
        rates.append(ends[0] * growth ** len(rates))
        losses.append(mean)
        curve = smoothed(losses, beta)
        if not math.isfinite(mean) or curve[-1] > blow_up * min(curve):
            diverged = True
            break
        mx.autograd.backward(each)
        trainer.step(len(data))
    if before is None:
        raise UsageError("batches: it gave no batch; a range test needs data")
    for name, param in params.items():
        set_data(param, before[name])
    if not math.isfinite(losses[-1]):
        rates, losses = rates[:-1], losses[:-1]
    if not losses:
        raise GluontuneError("range test: the loss is not finite before the first update; check the data and the net")
    curve = smoothed(losses, beta)
    skip = min(len(rates) // 4, round(1 / (1 - beta)))
    return RangeTest(rates, losses, curve, suggest(rates, curve, skip), diverged)


def _endless(batches: Any) -> Any:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            return


def _split(data: Any, label: Any, contexts: list[Any]) -> list[tuple[Any, Any]]:
    contexts = contexts[: len(data)]
    cut = mx.gluon.utils.split_and_load
    return list(zip(cut(data, contexts, even_split=False), cut(label, contexts, even_split=False)))
