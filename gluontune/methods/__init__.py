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
    from gluontune.methods.batches import UpdatePlan as UpdatePlan
    from gluontune.methods.batches import blended as blended
    from gluontune.methods.batches import cutout as cutout
    from gluontune.methods.batches import resized as resized
    from gluontune.methods.batches import scale_of as scale_of
    from gluontune.methods.cards import METHODS as METHODS
    from gluontune.methods.cards import MethodCard as MethodCard
    from gluontune.methods.cards import with_methods as with_methods
    from gluontune.methods.losses import flipped_views as flipped_views
    from gluontune.methods.losses import frozen_layers as frozen_layers
    from gluontune.methods.losses import mixed as mixed
    from gluontune.methods.losses import selected as selected
    from gluontune.methods.losses import smoothed as smoothed
    from gluontune.methods.losses import trained_layers as trained_layers
    from gluontune.methods.nets import add_blurpool as add_blurpool
    from gluontune.methods.nets import add_squeeze_excite as add_squeeze_excite
    from gluontune.methods.nets import dirac_init as dirac_init
    from gluontune.methods.nets import whitening_filters as whitening_filters
    from gluontune.methods.nets import whitening_init as whitening_init
    from gluontune.methods.weights import Ema as Ema
    from gluontune.methods.weights import Lookahead as Lookahead
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
