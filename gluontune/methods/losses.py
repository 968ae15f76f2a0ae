"""Methods that change the training loss, or which images take part. Written once for MXNet's and PyTorch's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["is_blended", "mixed", "selected", "smoothed"]

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
    """Whether labels are those of :func:`gluontune.methods.blended`, (N, 3), not class numbers."""
    return len(label.shape) == 2 and label.shape[1] == 3


def mixed(loss: Loss) -> Loss:
    """``loss`` for blended labels: that of each of the two labels, weighted by their shares.

    Args:
        loss: of (scores, class numbers), one value per sample.

    Returns:
        takes labels float32 (N, 3) as :func:`gluontune.methods.blended` gives them. Source: Zhang et al., 2018.

    >>> mixed(lambda output, label: label * 1.0)(None, np.array([[4.0, 9.0, 0.8]])).tolist()
    [5.0]
    """

    def of(output: Any, label: Any) -> Any:
        share = label[:, 2]
        return loss(output, label[:, 0]) * share + loss(output, label[:, 1]) * (1 - share)

    return of


def selected(losses: np.ndarray, keep: float, rng: np.random.Generator) -> np.ndarray:
    """Which images of a batch are trained on: a fixed number, drawn with the higher probability the higher the loss.

    Args:
        losses: (N,), of a forward pass. keep: share that is kept; at least one image. rng: of the draw.

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
