"""Encoded images: headers, decoding, resizing and encoding, in one place for records, data sets and loaders.

JPEG files go through libjpeg-turbo by a small compiled library where there is a C compiler (``native``), all
else through OpenCV. Works without mxnet; the headers are read without cv2 and numpy.

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
