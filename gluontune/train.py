"""Training: one loop, in fresh processes of its own, driven from outside."""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
