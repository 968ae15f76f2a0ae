"""Encoded images: headers, decoding, resizing and encoding, in one place for records, data sets and loaders.

JPEG files go through libjpeg-turbo by a small compiled library where there is a C compiler (``native``), all
else through OpenCV. Works without mxnet; the headers are read without cv2 and numpy.

>>> import gluontune as gt
>>> gt.codec.kind_of(b"GIF89a")
'gif'
"""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "ImageError": "header",
    "ImageInfo": "header",
    "decode_image": "image",
    "decoder_name": "native",
    "inspect": "header",
    "kind_of": "header",
    "recode_jpeg": "recode",
    "resize_image": "image",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
