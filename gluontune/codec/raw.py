"""Raw pixels as a record's payload: a standard ``.npy`` of (H, W, C) uint8, read without copying."""

from __future__ import annotations

import ast
import functools
import io
import struct
from typing import TYPE_CHECKING, Any

from gluontune.codec.header import NPY, ImageError

# numpy is imported where arrays are: the packer's worker processes start without it.
if TYPE_CHECKING:
    import numpy as np

__all__ = ["pixels_to_raw", "raw_to_pixels"]


def pixels_to_raw(pixels: np.ndarray) -> bytes:
    """Pixels, (H, W, C) uint8 in RGB order, as a raw record's payload: a standard ``.npy`` file.

    Args:
        pixels: a numpy array.
    """
    import numpy as np

    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ascontiguousarray(pixels), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def raw_to_pixels(payload: Any) -> np.ndarray:
    """A raw record's payload as (H, W, C) uint8, without copying.

    Raises:
        ImageError: it is no ``.npy`` of such an array, or incomplete.

    >>> import numpy as np
    >>> raw_to_pixels(pixels_to_raw(np.ones((2, 3, 1), np.uint8))).shape
    (2, 3, 1)
    """
    import numpy as np

    if bytes(payload[:8]) != NPY + b"\1\0" or len(payload) < 10:
        raise ImageError("no raw pixels (not a .npy file, version 1)")
    start = 10 + struct.unpack_from("<H", payload, 8)[0]
    shape = _raw_shape(bytes(payload[10:start]))
    count = shape[0] * shape[1] * shape[2]
    if len(payload) != start + count:
        raise ImageError(f"raw pixels of shape {shape} need {count:,} bytes, there are {len(payload) - start:,}")
    return np.frombuffer(payload, np.uint8, count, start).reshape(shape)


@functools.lru_cache(maxsize=4096)
def _raw_shape(header: bytes) -> tuple[int, int, int]:
    """Few sizes, many images: each header is read once."""
    try:
        fields = ast.literal_eval(header.decode("latin-1").strip())
        shape = tuple(fields["shape"])
        fits = fields["descr"] == "|u1" and not fields["fortran_order"] and len(shape) == 3
        fits = fits and all(isinstance(n, int) and n >= 0 for n in shape)
    except (ValueError, SyntaxError, KeyError, TypeError):
        raise ImageError("raw pixels with a damaged .npy header") from None
    if not fits:
        raise ImageError(f"raw pixels must be (H, W, C) uint8 in C order, not {fields}")
    return shape  # type: ignore[return-value]
