"""A JPEG file made smaller without leaving its colour space, by the compiled codec."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from gluontune.codec import native
from gluontune.codec.header import ImageError

__all__ = ["incomplete", "recode_jpeg", "thread_state"]

_mine = threading.local()


class _State:
    """What a thread keeps from image to image."""

    def __init__(self, library: Any):
        self.codec = library
        self.handle = library.gt_new()
        self.result = (ctypes.c_size_t * 2)()

    def __del__(self) -> None:
        if self.handle:
            self.codec.gt_free(self.handle)


def thread_state() -> _State | None:
    """The codec and this thread's decoder; None where there is no compiled codec."""
    library = native.load()
    if library is None:
        return None
    state: _State | None = getattr(_mine, "state", None)
    if state is None:
        state = _mine.state = _State(library)
    return state if state.handle else None


def incomplete(data: bytes) -> str | None:
    """What a JPEG file lacks though it has its end: why decoders go on with grey; empty where its data are whole.

    None: nobody knows, because it is no JPEG file or there is no compiled codec.
    """
    state = thread_state() if data[:3] == b"\xff\xd8\xff" else None
    if state is None:
        return None
    if state.codec.gt_check(state.handle, data, len(data)) == native.OK:
        return ""
    said = state.codec.gt_message(state.handle).decode(errors="replace") or "premature end of its data"
    return f"incomplete image, grey from some row on ({said})"


def recode_jpeg(
    data: bytes, side: int | None, *, crop: bool = False, grey: bool = False, quality: int = 95
) -> bytes | None:
    """Resize a JPEG file and encode it again, with chroma of half the size (4:2:0).

    The luma and chroma planes are decoded (at 1/2, 1/4 or 1/8 where that is enough), resized by a triangle filter
    as wide as the step (Pillow's ``BILINEAR``, torchvision's ``antialias=True``) and encoded, so that nothing is
    converted to RGB and back. Agrees with decoding to RGB, the same filter and ``cv2.imencode`` to about 40 dB.

    Args:
        data: an upright 8-bit JPEG file; see ``inspect``.
        side: pixels of the shorter side, not more than it has; None keeps the size.
        crop: cut the middle square out after resizing.
        grey: drop the chroma.
        quality: 1 to 100.

    Returns:
        the file, or None where there is no compiled codec or the file is not for it (CMYK, RGB, to be enlarged).

    Raises:
        ImageError: the image data are damaged or end early.
    """
    state = thread_state()
    if state is None:
        return None
    library = state.codec
    code = library.gt_recode(state.handle, data, len(data), side or 0, crop, grey, quality, ctypes.byref(state.result))
    if code == native.OK:
        return ctypes.string_at(state.result[0], state.result[1])
    if code == native.UNSUPPORTED:
        return None
    if code == native.TRUNCATED:
        raise ImageError("truncated JPEG (its data end early)")
    raise ImageError(f"cannot be decoded: {library.gt_message(state.handle).decode(errors='replace')}")
