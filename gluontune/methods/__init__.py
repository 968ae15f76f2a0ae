"""Methods that shorten training: cards with source, cost and limits, and the plain function behind each.

A recipe names them (``methods={"label-smoothing": {"epsilon": 0.1}}``, or ``true`` for a card's own numbers); both
engines train them; ``gluontune factors --methods`` measures which of them pay for a job.

>>> import gluontune as gt
>>> gt.methods.METHODS["mixup"].defaults
{'alpha': 0.2}
"""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "METHODS": "cards",
    "MethodCard": "cards",
    "with_methods": "cards",
    "blended": "batches",
    "cutout": "batches",
    "resized": "batches",
    "scale_of": "batches",
    "smoothed": "losses",
    "mixed": "losses",
    "selected": "losses",
    "add_squeeze_excite": "nets",
    "add_blurpool": "nets",
    "dirac_init": "nets",
    "whitening_init": "nets",
    "whitening_filters": "nets",
    "Ema": "weights",
    "Lookahead": "weights",
    "flipped_views": "validation",
    "frozen_layers": "freezing",
    "trained_layers": "freezing",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
