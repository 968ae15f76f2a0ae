"""RecordIO, MXNet's record format: reader, writer, packer, verifier. Works without mxnet."""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
