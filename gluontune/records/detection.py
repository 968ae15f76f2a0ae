"""Boxes in a record's label, as ``im2rec --pack-label`` and gluon-cv lay them out.

A label is ``[A, B, …header to A numbers, object 0, object 1, …]``: A numbers of header, B numbers for each object, and
an object begins with ``class, xmin, ymin, xmax, ymax`` in shares of the image's width and height.
(Source: MXNet's documentation of ``ImageDetIter``; gluon-cv, "Prepare your dataset in ImageRecord format".)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gluontune.errors import GluontuneError, UsageError

__all__ = ["boxes_of", "boxes_to_label"]


def boxes_to_label(boxes: Any, header: Sequence[float] = ()) -> np.ndarray:
    """A label for ``RecordWriter.write`` from objects.

    Args:
        boxes: (n, B), B at least 5: class, xmin, ymin, xmax, ymax (shares of 0 to 1), and what else an object has.
        header: numbers behind A and B, such as the image's width and height.

    Raises:
        UsageError: another shape, no object, a box outside 0 … 1 or of negative size (it is named).

    >>> boxes_to_label([[3, 0.25, 0.5, 0.75, 1]]).tolist()
    [2.0, 5.0, 3.0, 0.25, 0.5, 0.75, 1.0]
    """
    rows = np.asarray(boxes, np.float32)
    if rows.ndim != 2 or rows.shape[1] < 5 or not len(rows):
        raise UsageError(f"boxes of shape {rows.shape}: give (n, 5 or more): class, xmin, ymin, xmax, ymax")
    wrong = np.flatnonzero(~_sound(rows))
    if len(wrong):
        raise UsageError(f"box {wrong[0]}: {rows[wrong[0], :5].tolist()}: class, then corners of 0 to 1 in order")
    return np.concatenate([np.array([2 + len(header), rows.shape[1], *header], np.float32), rows.ravel()])


def boxes_of(label: Any) -> np.ndarray:
    """The objects of a record's label, float32 (n, B), rows as in :func:`boxes_to_label`.

    Raises:
        GluontuneError: the label is not laid out so.

    >>> boxes_of(boxes_to_label([[3, 0.25, 0.5, 0.75, 1]], header=(640, 480))).tolist()
    [[3.0, 0.25, 0.5, 0.75, 1.0]]
    """
    row = np.asarray(label, np.float32).ravel()
    start, width = (int(row[0]), int(row[1])) if len(row) >= 2 and np.isfinite(row[:2]).all() else (0, 0)
    if start < 2 or width < 5 or len(row) < start + width or (len(row) - start) % width:
        raise GluontuneError(
            f"no boxes: a label of {len(row)} numbers that begins {row[:3].tolist()} is laid out otherwise"
        )
    return row[start:].reshape(-1, width)


def _sound(rows: np.ndarray) -> np.ndarray:
    low, high = rows[:, 1:3], rows[:, 3:5]
    return (rows[:, 0] >= 0) & (low >= 0).all(1) & (high <= 1).all(1) & (low <= high).all(1)
