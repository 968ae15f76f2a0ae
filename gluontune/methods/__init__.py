"""Methods that shorten training: cards with source, cost and limits, and the plain function behind each.

A recipe names them (``methods={"label-smoothing": {"epsilon": 0.1}}``, or ``true`` for a card's own numbers); both
engines train them; ``gluontune factors --methods`` measures which of them pay for a job.

>>> import gluontune as gt
>>> gt.methods.METHODS["mixup"].defaults
{'alpha': 0.2}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.methods.batches import (
        UpdatePlan as UpdatePlan,
        blended as blended,
        cutout as cutout,
        resized as resized,
        scale_of as scale_of,
    )
    from gluontune.methods.cards import METHODS as METHODS, MethodCard as MethodCard, with_methods as with_methods
    from gluontune.methods.losses import (
        Ema as Ema,
        Lookahead as Lookahead,
        flipped_views as flipped_views,
        frozen_layers as frozen_layers,
        mixed as mixed,
        selected as selected,
        smoothed as smoothed,
        trained_layers as trained_layers,
    )
    from gluontune.methods.nets import (
        add_blurpool as add_blurpool,
        add_squeeze_excite as add_squeeze_excite,
        dirac_init as dirac_init,
        whitening_filters as whitening_filters,
        whitening_init as whitening_init,
    )
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
