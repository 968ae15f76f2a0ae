"""Several devices and several processes: contexts, batches split over them, the parameter server."""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
