"""The platform: making mxnet importable, launch settings, facts of the machine, the doctor.

Nothing here imports mxnet except :func:`mxnet` itself.

>>> import gluontune as gt
>>> gt.runtime.usable_cores() >= 1
True
"""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
