"""Encoded images: headers, decoding, resizing and encoding, for records, data sets and loaders.

JPEG files are decoded by libjpeg-turbo through a small compiled library if possible (``native``), all others by
OpenCV. Works without mxnet; the headers are read without cv2 and numpy.

>>> from gluontune import codec
>>> codec.kind_of(b"GIF89a")
'gif'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.codec.header import (
        ImageError as ImageError,
        ImageInfo as ImageInfo,
        inspect as inspect,
        kind_of as kind_of,
    )
    from gluontune.codec.image import decode_image as decode_image, resize_image as resize_image
    from gluontune.codec.native import decoder_name as decoder_name, recode_jpeg as recode_jpeg
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
