"""Number formats of 16 bits: their range and precision, and their effect on a net's gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune import runtime
from gluontune.core.errors import UsageError
from gluontune.recipe.registry import Registry


@dataclass(frozen=True)
class Format:
    """A binary number format: bits of the exponent and of the significand (without the implicit leading one).

    >>> FORMATS["float16"].largest, FORMATS["bfloat16"].next_after_one - 1
    (65504.0, 0.0078125)
    """

    exponent: int
    significand: int

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    @property
    def largest(self) -> float:
        return float((2 - 2.0**-self.significand) * 2.0**self.bias)

    @property
    def smallest_normal(self) -> float:
        """Smaller numbers lose digits."""
        return float(2.0 ** (1 - self.bias))

    @property
    def smallest(self) -> float:
        """Numbers below half of it become zero."""
        return float(2.0 ** (1 - self.bias - self.significand))

    @property
    def next_after_one(self) -> float:
        return 1 + 2.0**-self.significand

    def relative_step(self, values: Any) -> np.ndarray:
        """Distance to the next number ÷ the number, for positive values; NaN beyond the largest."""
        x = np.asarray(values, float)
        power = np.floor(np.log2(np.maximum(x, self.smallest_normal)))
        step = 2.0 ** (power - self.significand)
        return np.where(x <= self.largest, step / x, np.nan)


FORMATS: Registry[Format] = Registry("number format")
FORMATS.add("float32", Format(8, 23))
FORMATS.add("float16", Format(5, 10))
FORMATS.add("bfloat16", Format(8, 7))


def round_to(values: Any, format: str) -> np.ndarray:
    """Round to the nearest number of a format (ties to even), and return float32.

    >>> round_to([2049.0, 1e-8, 70000.0], "float16").tolist()
    [2048.0, 0.0, inf]
    >>> round_to([1.003, 1.005], "bfloat16").tolist()
    [1.0, 1.0078125]
    """
    FORMATS[format]
    x = np.asarray(values, np.float32)
    if format == "float32":
        return x
    if format == "float16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    bits = x.view(np.uint32).astype(np.uint64)  # bfloat16 is the upper half of a float32
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).reshape(x.shape)


def add_up(start: float, update: float, times: int, format: str) -> np.ndarray:
    """``start`` after 0 … ``times`` additions of ``update``, each rounded to the format: float32 (times + 1,)."""
    found = np.empty(times + 1, np.float32)
    value = round_to([start], format)
    found[0] = value[0]
    for k in range(times):
        value = round_to(value + np.float32(update), format)
        found[k + 1] = value[0]
    return found


def gradient_values(
    net: str = "cifar_resnet20_v1", dataset: str = "sample", batch_size: int = 64, seed: int = 0
) -> np.ndarray:
    """Gradients of the mean loss of one batch over all parameters of a fresh net: float32, zeros left out."""
    from gluontune import datasets, loading
    from gluontune.job.models import build_net

    mx = runtime.mxnet()
    data = datasets.open(dataset)
    if data.image_shape is None:
        raise UsageError(f"data set {dataset!r}: its images differ in size")
    with loading.build(
        "threaded", data.train, batch_size=batch_size, image_shape=data.image_shape, shuffle=True, seed=seed
    ) as loader:
        images, labels = next(loader.epoch(0))
    x = images.transpose(0, 3, 1, 2).astype(np.float32) / 255
    x = (x - np.reshape(data.mean, (-1, 1, 1))) / np.reshape(data.std, (-1, 1, 1))
    mx.random.seed(seed)
    model = build_net(net, len(data.classes))
    model.initialize(mx.init.Xavier(magnitude=2))
    with mx.autograd.record():
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(model(mx.nd.array(x)), mx.nd.array(labels)).mean()
    loss.backward()
    params = model.collect_params().values()
    values = np.concatenate([p.grad().asnumpy().ravel() for p in params if p.grad_req != "null"])
    return values[values != 0]


def lost_shares(gradients: np.ndarray, scales: Any, format: str = "float16") -> dict[str, list[float]]:
    """Percent of gradients that lose precision in a format, for each loss scale.

    ``vanish``: become zero; ``digits``: are kept with fewer digits, below the smallest normal number;
    ``overflow``: become infinite.
    """
    shares: dict[str, list[float]] = {"vanish": [], "digits": [], "overflow": []}
    normal = FORMATS[format].smallest_normal
    for scale in scales:
        scaled = round_to(gradients.astype(np.float64) * scale, format)
        shares["vanish"].append(100 * float(np.mean(scaled == 0)))
        shares["digits"].append(100 * float(np.mean((scaled != 0) & (np.abs(scaled) < normal))))
        shares["overflow"].append(100 * float(np.mean(~np.isfinite(scaled))))
    return shares
