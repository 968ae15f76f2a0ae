"""Descent on two-dimensional surfaces: a straight line fitted to points, and walks with MXNet's optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

import numpy as np

from gluontune import optim, runtime
from gluontune.core.errors import UsageError

Surface = Callable[[Any, Any], Any]  # of numpy arrays or NDArrays; its lowest height is 0

SURFACES: dict[str, Surface] = {
    "valley": lambda x, y: 0.5 * (x**2 + 25 * y**2),  # 25 times as steep across as along
    "bent valley": lambda x, y: 0.25 * (1 - x) ** 2 + 5 * (y - x**2) ** 2,  # Rosenbrock's, less steep
    "two hollows": lambda x, y: (x**2 - 1) ** 2 + 0.3 * x + 0.30543 + y**2,  # the left one is deeper
}


def line_points(
    count: int = 256, seed: int = 0, slope: float = 2.0, offset: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Noisy points about a straight line: ``x`` and ``y``, float32 (count,)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 3, count)
    y = slope * x + offset + rng.normal(0, 0.7, count)
    return x.astype(np.float32), y.astype(np.float32)


def line_loss(x: np.ndarray, y: np.ndarray) -> Surface:
    """Half of the mean square error as a function of the slope ``w`` and the offset ``b``.

    >>> x, y = np.array([0.0, 1.0]), np.array([1.0, 3.0])
    >>> float(line_loss(x, y)(2.0, 1.0)), float(line_loss(x, y)(2.0, 0.0))
    (0.0, 0.5)
    """
    xx, xy, yy, mx, my = (x * x).mean(), (x * y).mean(), (y * y).mean(), x.mean(), y.mean()

    def loss(w: Any, b: Any) -> Any:
        return 0.5 * (w * w * xx + b * b + yy + 2 * w * b * mx - 2 * w * xy - 2 * b * my)

    return loss


def fit_line(
    x: np.ndarray,
    y: np.ndarray,
    *,
    batch_size: int,
    updates: int,
    learning_rate: float,
    seed: int = 0,
    start: tuple[float, float] = (-1.0, 4.0),
) -> np.ndarray:
    """Train ``nn.Dense(1)`` on the points with plain SGD.

    Args:
        x, y: float32 (N,).
        batch_size: points in an update; N is full gradient descent, 1 is stochastic.
        updates: of the two parameters.
        learning_rate: constant.
        seed: of the order of the points, shuffled anew for each epoch.
        start: slope and offset.

    Returns:
        float64 (updates + 1, 2): slope and offset before the first update, and after each.
    """
    if not 1 <= batch_size <= len(x):
        raise UsageError(f"fit_line(batch_size={batch_size}): give 1 to {len(x)}, the number of points")
    mx = runtime.mxnet()
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    net.weight.set_data(mx.nd.array([[start[0]]]))
    net.bias.set_data(mx.nd.array([start[1]]))
    trainer = optim.setup("sgd", net, learning_rate=learning_rate, global_batch_size=batch_size, momentum=0.0)
    loss_of = mx.gluon.loss.L2Loss()
    rng = np.random.default_rng(seed)
    order = np.zeros(0, int)
    found = [start]
    for _ in range(updates):
        if len(order) < batch_size:
            order = rng.permutation(len(x))
        now, order = order[:batch_size], order[batch_size:]
        with mx.autograd.record():
            loss = loss_of(net(mx.nd.array(x[now, None])), mx.nd.array(y[now, None]))
        loss.backward()
        trainer.step()
        found.append((net.weight.data().asscalar(), net.bias.data().asscalar()))
    return np.asarray(found, float)


def gradient_scatter(x: np.ndarray, y: np.ndarray, batch_size: int, *, draws: int = 400, seed: int = 0) -> float:
    """Root mean square distance of a batch's gradient from that of all points, at slope 0 and offset 0.

    >>> x, y = line_points()
    >>> ratio = gradient_scatter(x, y, 4) / gradient_scatter(x, y, 16)
    >>> 1.8 < ratio < 2.3
    True
    """
    slopes = np.stack([-y * x, -y], axis=1)  # of half the squared error of each point
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(x), (draws, batch_size))
    return float(np.sqrt(((slopes[chosen].mean(axis=1) - slopes.mean(axis=0)) ** 2).sum(axis=1).mean()))


def walk(
    optimizer: str,
    surface: Surface | str,
    *,
    start: tuple[float, float],
    learning_rate: float,
    updates: int = 60,
    **options: Any,
) -> np.ndarray:
    """Walk down a surface with one of ``gt.optim``'s optimizers, as a net of two parameters.

    Args:
        optimizer: a name of ``gt.optim.list_optimizers()``.
        surface: a name of ``SURFACES``, or a function of two NDArrays.
        start: of x and y.
        learning_rate: constant.
        updates: at most; the walk ends early once it leaves the map (beyond 1e3).
        options: of ``gt.optim.setup``, such as ``momentum``.

    Returns:
        float64 (updates + 1, 2), the start first.
    """
    height = SURFACES[surface] if isinstance(surface, str) else surface
    mx = runtime.mxnet()
    place = mx.gluon.Parameter("place_weight", shape=(2,))
    place.initialize(init=mx.init.Zero())
    place.set_data(mx.nd.array(start))
    trainer = optim.setup(optimizer, [place], learning_rate=learning_rate, global_batch_size=1, **options)
    found = [start]
    for _ in range(updates):
        with mx.autograd.record():
            x, y = place.data()[0:1], place.data()[1:2]
            loss = height(x, y)
        loss.backward()
        trainer.step()
        now = place.data().asnumpy()
        if not np.all(np.abs(now) < 1e3):
            break
        found.append((float(now[0]), float(now[1])))
    return np.asarray(found, float)


def walk_all(
    rates: Mapping[str, Mapping[str, Any]], surface: Surface | str, start: tuple[float, float], updates: int
) -> dict[str, np.ndarray]:
    """:func:`walk` for several optimizers; a label's first word is the optimizer's name.

    >>> found = walk_all({"sgd, slow": {"learning_rate": 0.01}}, "valley", (1.0, 1.0), 5)
    >>> found["sgd, slow"].shape
    (6, 2)
    """
    return {
        label: walk(label.split()[0].rstrip(","), surface, start=start, updates=updates, **dict(options))
        for label, options in rates.items()
    }
