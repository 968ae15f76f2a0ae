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
