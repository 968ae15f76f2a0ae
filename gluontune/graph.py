"""MXNet's files read without mxnet: symbols, typed attributes, parameter files. numpy is enough."""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
