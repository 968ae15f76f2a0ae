"""gluontune: take an MXNet Gluon training job up the ladder, and measure every rung.

The rooms are imported when they are first used, and none of them imports mxnet until it must:

>>> import gluontune as gt
>>> gt.recipe.Recipe().batch_size_per_device
64
"""

from __future__ import annotations

from gluontune.core import lazy

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
__all__ = ["__version__", *__all__]
