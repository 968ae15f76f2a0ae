"""A Gluon net as a PyTorch module, and back: to_torch, from_torch, check, and operators of one's own."""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
