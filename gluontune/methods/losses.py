"""Methods that change the loss, select images, freeze layers, or have a second set of weights beside the trained one;
for MXNet's and PyTorch's arrays. Also the views of a validation image whose scores are averaged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gluontune.compute._traversal import walk
from gluontune.loading.resident import reflect

Loss = Callable[[Any, Any], Any]


def smoothed(loss: Loss, log_softmax: Callable[..., Any], epsilon: float, axis: int = -1) -> Loss:
    """A softmax cross-entropy whose target is 1 - epsilon for the label plus epsilon spread over all classes.

    Args:
        loss: of (scores, class numbers), one value per sample: the cross-entropy with the label alone.
        log_softmax: of (scores, axis). epsilon: share that is spread. axis: of the classes.

    Returns:
        (1 - epsilon) · loss - epsilon · mean over the classes of log p, one value per sample.
        Source: Szegedy et al., 2016, section 7.

    >>> scores = np.log(np.array([[0.7, 0.2, 0.1]]))
    >>> plain = lambda output, label: -np.array([output[0, label[0]]])
    >>> whole = smoothed(plain, lambda scores, axis: scores, 0.3)
    >>> target = np.array([0.1, 0.8, 0.1])
    >>> bool(np.allclose(whole(scores, [1]), -(target * scores).sum()))
    True
    """

    def of(output: Any, label: Any) -> Any:
        spread = log_softmax(output, axis).mean(axis)
        while len(spread.shape) > 1:
            spread = spread.mean(-1)
        return loss(output, label) * (1 - epsilon) - spread * epsilon

    return of


def is_blended(label: Any) -> bool:
    """Whether labels come from :func:`gluontune.methods.blended`, (N, 3), and are no class numbers."""
    return len(label.shape) == 2 and label.shape[1] == 3


def mixed(loss: Loss) -> Loss:
    """``loss`` for blended labels: the sum for both labels, weighted by their shares.

    Args:
        loss: of (scores, class numbers), one value per sample.

    Returns:
        a loss of labels float32 (N, 3) of :func:`gluontune.methods.blended`. Source: Zhang et al., 2018.

    >>> mixed(lambda output, label: label * 1.0)(None, np.array([[4.0, 9.0, 0.8]])).tolist()
    [5.0]
    """

    def of(output: Any, label: Any) -> Any:
        share = label[:, 2]
        return loss(output, label[:, 0]) * share + loss(output, label[:, 1]) * (1 - share)

    return of


def selected(losses: np.ndarray, keep: float, rng: np.random.Generator) -> np.ndarray:
    """The images of a batch to train on: a fixed number, drawn with a probability that rises with the loss.

    Args:
        losses: (N,), of a forward pass. keep: the share of images; at least one. rng: of the draw.

    Returns:
        int64 (n,), in rising order. An image at the percentile p of the losses is drawn by p^(1 / keep - 1).
        Source: Jiang et al., 2019 (section 3.1); the fixed number as in MosaicML's Composer.

    >>> from gluontune.loading.base import generator
    >>> selected(np.arange(8.0), 0.25, generator(1)).tolist()
    [6, 7]
    """
    count = len(losses)
    percentiles = (np.arange(count) + 0.5) / count
    weights = percentiles ** (1 / keep - 1)
    drawn = rng.choice(count, max(1, int(keep * count)), replace=False, p=weights / weights.sum())
    return np.sort(np.argsort(losses, kind="stable")[drawn])


def frozen_layers(
    progress: float, layers: int, start: float = 0.5, end: float = 0.9, level: float = 0.5, stages: int = 4
) -> int:
    """The number of first layers that are frozen. The last layer never is.

    Args:
        progress: elapsed share of the training, 0 … 1. layers: those with trained parameters.
        start, end: shares of the training; the first layers stop at ``start``, the last of them by ``end``.
        level: share of the layers that stop. stages: number of equal steps from none to all of them.

    Source: Brock et al., FreezeOut, 2017; stages of a straight line as in MosaicML's Composer.

    >>> [frozen_layers(p / 10, 20, start=0.4, end=0.8, level=0.5, stages=2) for p in range(11)]
    [0, 0, 0, 0, 5, 5, 10, 10, 10, 10, 10]
    """
    if progress < start:
        return 0
    way = 1.0 if progress >= end else (progress - start) / (end - start)
    share = min(1.0, (int(way * stages + 1e-9) + 1) / stages)
    return max(0, min(layers - 1, round(level * share * layers)))


def trained_layers(net: Any) -> list[list[Any]]:
    """The trained parameters of each layer of a Gluon net with some, in the order of its blocks.

    >>> from gluontune.train import build_net
    >>> [[p.name.rpartition("_")[2] for p in layer] for layer in trained_layers(build_net("mlp", 10))]
    [['weight', 'bias'], ['weight', 'bias'], ['weight', 'bias']]
    """
    layers: list[list[Any]] = []
    seen: set[int] = set()
    for _, block in walk(net):
        trained = [p for p in block._reg_params.values() if p.grad_req != "null" and id(p) not in seen]
        seen.update(map(id, trained))
        if trained:
            layers.append(trained)
    return layers


def flipped_views(height: int, width: int, shift: int = 0) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """The views of an image, as index arrays of rows and columns, each with the weight of its scores.

    Args:
        height, width: of the image. shift: 0: the image and its mirror image, half each. Above: half for these two,
            a quarter each for both after a shift by so many pixels up and left, and down and right; edges are mirrored.

    Returns:
        ``(weight, rows int64 (height,), columns int64 (width,))``; the weights' sum is 1.
        Source: airbench's ``infer_mirror_translate`` (Jordan, 2024).

    >>> [(weight, columns.tolist()) for weight, _, columns in flipped_views(2, 3)]
    [(0.5, [0, 1, 2]), (0.5, [2, 1, 0])]
    >>> sum(weight for weight, _, _ in flipped_views(32, 32, 1))
    1.0
    """
    moves = [(1.0, 0)] if shift == 0 else [(0.5, 0), (0.25, -shift), (0.25, shift)]
    views = []
    for weight, by in moves:
        rows, columns = (reflect(np.arange(size) + by, size) for size in (height, width))
        views += [(weight / 2, rows, columns), (weight / 2, rows, columns[::-1].copy())]
    return views


Arrays = Mapping[str, Any]
Put = Callable[[str, Any], None]


class Second(ABC):
    """A second set of weights, ``held`` by name, for validation and the saved net; ``count`` is of updates."""

    #: Whether the set includes statistics that are not trained (BatchNorm's).
    of_all = True

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}
        self.count = 0

    def begin(self, live: Arrays) -> None:
        """Begin with copies of the trained weights: arrays by name, PyTorch's detached."""
        self.held, self.count = {name: array * 1 for name, array in live.items()}, 0

    @abstractmethod
    def after_update(self, live: Arrays, put: Put) -> None:
        """Follow an update of ``live``, the trained weights; ``put`` sets one by name and values."""

    def swap(self, live: Arrays, put: Put) -> None:
        """Exchange the two sets."""
        for name, held in self.held.items():
            trained = live[name] * 1
            put(name, held)
            self.held[name] = trained


class Ema(Second):
    """Exponential moving average of the weights, and of BatchNorm's statistics.

    Args:
        decay: share of the old average; (1 + t) / (10 + t) while that is smaller.
        every: updates between two steps of the average, whose decay is then decay^every.

    Source: Polyak and Juditsky, 1992; the rising decay of TensorFlow's ExponentialMovingAverage.

    >>> import numpy as np
    >>> average, live = Ema(0.5), {"w": np.array([1.0])}
    >>> average.begin(live)
    >>> live["w"][:] = 2.0
    >>> average.after_update(live, live.__setitem__)
    >>> round(float(average.held["w"][0]), 4)  # 1 · 2/11 + 2 · 9/11
    1.8182
    """

    def __init__(self, decay: float = 0.998, every: int = 1):
        super().__init__()
        self.decay, self.every = decay, every

    def after_update(self, live: Arrays, put: Put) -> None:
        self.count += 1
        if self.count % self.every:
            return
        done = self.count // self.every
        stays = min(self.decay**self.every, (1 + done) / (10 + done))
        for name, held in self.held.items():
            held *= stays
            held += live[name] * (1 - stays)


class Lookahead(Second):
    """Slow weights that go a share of the way of k updates; the trained ones continue from there.

    Args:
        k: updates between two steps of the slow weights. alpha: share of the way.

    Source: Zhang et al., 2019, algorithm 1; the inner optimizer keeps its states. Validation takes the slow weights.

    >>> import numpy as np
    >>> slow, live = Lookahead(k=2, alpha=0.5), {"w": np.array([0.0])}
    >>> slow.begin(live)
    >>> for value in (3.0, 4.0):
    ...     live["w"][:] = value
    ...     slow.after_update(live, live.__setitem__)
    >>> live["w"].tolist()
    [2.0]
    """

    of_all = False

    def __init__(self, k: int = 5, alpha: float = 0.5):
        super().__init__()
        self.k, self.alpha = k, alpha

    def after_update(self, live: Arrays, put: Put) -> None:
        self.count += 1
        if self.count % self.k:
            return
        for name, held in self.held.items():
            held += (live[name] - held) * self.alpha
            put(name, held * 1)


def make_second(chosen: Mapping[str, Mapping[str, Any]]) -> Second | None:
    """The second set of a recipe's methods of kind ``weights``, or None."""
    kinds: dict[str, type[Second]] = {"ema": Ema, "lookahead": Lookahead}
    return next((kinds[name](**params) for name, params in chosen.items()), None)
