"""Methods that shorten training: cards with source, cost and limits, and the plain function behind each.

A recipe names them (``methods={"label-smoothing": {"epsilon": 0.1}}``, or ``true`` for a card's own numbers); both
engines train them; ``gluontune factors --methods`` measures which of them pay for a job.

>>> import gluontune as gt
>>> gt.methods.METHODS["mixup"].defaults
{'alpha': 0.2}
"""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
