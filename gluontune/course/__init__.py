"""Parts that the notebooks share: predictions, figures, exercises with hints, experiments."""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
