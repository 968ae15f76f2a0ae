"""Nets that do not fit their data, found and explained before anything is timed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gluontune.errors import GluontuneError
from gluontune.runtime import mxnet

__all__ = ["check_output", "explain_shapes"]


@contextlib.contextmanager
def explain_shapes(shape: Any) -> Iterator[None]:
    """Turn MXNet's error about a batch of ``shape`` into one line."""
    try:
        yield
    except mxnet().MXNetError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        detail = next((line for line in lines if "Check failed" in line or "Error in" in line), lines[-1])
        raise GluontuneError(f"the net does not take a batch of shape {tuple(shape)}: {detail}") from error


def check_output(net: Any, sample: Any, classes: int | None) -> None:
    """The net's output for ``sample`` against the number of classes (None: only the job knows it).

    Raises:
        GluontuneError: it is not one row of class scores a sample, or has fewer scores than classes.
    """
    output = net(sample)
    shape = getattr(output, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != sample.shape[0]:
        raise GluontuneError(
            f"net() returns {shape if shape else type(output).__name__} for a batch of {sample.shape[0]}: "
            f"it must return class scores of shape ({sample.shape[0]}, number of classes)"
        )
    if classes is not None and shape[1] < classes:
        raise GluontuneError(
            f"net() returns {shape[1]} scores, but the data set has {classes} classes: "
            f"make its last layer Dense({classes})"
        )
