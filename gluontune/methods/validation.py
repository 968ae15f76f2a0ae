"""Test-time flips: the views of a validation image whose scores are averaged."""

from __future__ import annotations

import numpy as np

from gluontune.loading.resident import reflect

__all__ = ["flipped_views"]


def flipped_views(height: int, width: int, shift: int = 0) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """The views of an image, as rows and columns to take, each with the weight of its scores.

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
    found = []
    for weight, by in moves:
        rows, columns = (reflect(np.arange(size) + by, size) for size in (height, width))
        found += [(weight / 2, rows, columns), (weight / 2, rows, columns[::-1].copy())]
    return found
