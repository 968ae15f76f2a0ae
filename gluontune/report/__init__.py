"""Reports: terminal tables, and one self-contained HTML file, from ladders and RunResults.

The room does not measure and does not need mxnet; matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
