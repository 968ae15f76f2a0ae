"""Two-dimensional surfaces, the loss of a line through points among them, and walks on them with our optimizers."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from gluontune import optim, runtime

Surface = Callable[[Any, Any], Any]  # of numpy arrays or NDArrays; its lowest height is 0

SURFACES: dict[str, Surface] = {
    "valley": lambda x, y: 0.5 * (x**2 + 25 * y**2),  # 25 times as steep across as along
    "bent valley": lambda x, y: 0.25 * (1 - x) ** 2 + 5 * (y - x**2) ** 2,  # Rosenbrock's, less steep
    "two hollows": lambda x, y: (x**2 - 1) ** 2 + 0.3 * x + 0.30543 + y**2,  # the left one is deeper
}


def line_points(count: int = 256, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noisy points about the line of slope 2 and offset 1: ``x`` and ``y``, float32 (count,)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 3, count)
    y = 2.0 * x + 1.0 + rng.normal(0, 0.7, count)
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
        optimizer: of ``gt.optim.list_optimizers()``. surface: one of ``SURFACES``, or a function of two NDArrays.
        start: of x and y. learning_rate: constant. options: of ``gt.optim.setup``, such as ``momentum``.
        updates: at most; the walk ends early once it leaves the map (beyond 1e3).

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
