"""Encoded images: headers, decoding, resizing and encoding, for records, data sets and loaders.

JPEG files are decoded by libjpeg-turbo through a small compiled library if possible (``native``), all others by
OpenCV. Works without mxnet; the headers are read without cv2 and numpy.

>>> from gluontune import codec
>>> codec.kind_of(b"GIF89a")
'gif'
"""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
