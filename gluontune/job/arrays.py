"""Batches in any nesting and flavour (``mx.nd``, ``mx.np``, numpy)."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.arrays import flat, mapped
from gluontune.core.errors import GluontuneError
from gluontune.core.files import atomic_write, read_npz
from gluontune.parallel.kvstore import split_batch
from gluontune.runtime import as_net_array


def first(value: Any) -> Any:
    """The first array of a batch: its length is that of the batch."""
    return flat(value)[0]


def as_batch(found: Any) -> tuple[Any, ...]:
    """A loader's item as a tuple; a single array becomes a tuple of one."""
    return tuple(found) if isinstance(found, (list, tuple)) else (found,)


def parts_of(batch: tuple[Any, ...], ctxs: list[Any]) -> list[tuple[Any, ...]]:
    """A batch cut along the first axis: one tuple of arrays for each context that gets a part.

    Arrays become ``mx.np`` ones if the process uses these (``npx.set_np()``).
    """
    cut = mapped(lambda array: _Cut(split_batch(array, ctxs)), batch)
    count = len(first(cut).parts)
    return [as_net_array(tuple(mapped(operator.methodcaller("part", place), list(cut)))) for place in range(count)]


class _Cut:
    """The parts of one array, as one leaf."""

    def __init__(self, parts: list[Any]):
        self.parts = parts

    def part(self, place: int) -> Any:
        return self.parts[place]


def without_bfloat16(array: Any) -> Any:
    """An MXNet array, with bfloat16, unknown to numpy and MXNet's metrics, as float32."""
    return array.astype("float32") if np.dtype(array.dtype).names else array  # two bytes under a name


def to_numpy(array: Any) -> np.ndarray:
    """A copy on the host, after waiting; bfloat16 as float32."""
    return without_bfloat16(array).asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def described(batch: Any) -> str:
    """Shapes and types of a batch, for messages.

    >>> described((np.zeros((2, 3), "float32"), np.zeros(2, "int64")))
    '(2, 3) float32, (2,) int64'
    """
    return ", ".join(_one(array) for array in flat(batch))


def hint_of(batch: Any) -> str:
    """The most frequent fault of such a batch, for messages."""
    inputs = list(batch)[:-1] if isinstance(batch, (list, tuple)) and len(batch) > 1 else batch
    for kind, of in (("float64", batch), ("uint8", inputs)):  # labels may be whole numbers
        given = [str(np.dtype(a.dtype)) for a in flat(of) if getattr(a, "dtype", None) is not None]
        if found := next((name for name in given if kind in name), None):
            return f" ({found}: nets compute in float32; have data() give .astype('float32'))"
    return ""


def _one(array: Any) -> str:
    shape = getattr(array, "shape", None)
    if shape is None:
        return type(array).__name__
    return f"{tuple(shape)} {np.dtype(array.dtype).name if array.dtype is not None else ''}".strip()


def write_weights(path: str | Path, weights: dict[str, np.ndarray]) -> None:
    """Write parameters by their place in the net as a zip of numpy arrays (no pickle)."""
    with atomic_write(path) as stream:
        np.savez(stream, **weights)


def read_weights(path: str | Path) -> dict[str, np.ndarray]:
    """Read the file of :func:`write_weights`."""
    try:
        return read_npz(path)
    except FileNotFoundError:
        raise GluontuneError(f"{path}: no such file of an individual's parameters") from None
    except (OSError, ValueError):
        raise GluontuneError(f"{path}: not a whole file of an individual's parameters") from None
