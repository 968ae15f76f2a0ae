"""Compute: hybridize, rewrite, mixed precision, each only where it measures faster.

Each piece works alone, on any Gluon network:

>>> import gluontune as gt
>>> gt.compute.REWRITES.names()[:2]
['whole-sequential', 'pool-to-mean']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.compute._blocks import (
        FirstValues as FirstValues,
        InputStage as InputStage,
        with_input_stage as with_input_stage,
    )
    from gluontune.compute.check import HybridizeCheck as HybridizeCheck, check_hybridizable as check_hybridizable
    from gluontune.compute.choose import HybridizeReport as HybridizeReport, hybridize as hybridize
    from gluontune.compute.mixed import (
        LossScaler as LossScaler,
        MixedPrecision as MixedPrecision,
        refuse_np as refuse_np,
        to_mixed_precision as to_mixed_precision,
    )
    from gluontune.compute.mode import (
        MODES as MODES,
        add_stochastic_depth as add_stochastic_depth,
        set_mode as set_mode,
    )
    from gluontune.compute.process import bfloat16_support as bfloat16_support, start_process as start_process
    from gluontune.compute.profile_report import Profile as Profile
    from gluontune.compute.profiling import profile as profile
    from gluontune.compute.rewrites import REWRITES as REWRITES, Rewrite as Rewrite
    from gluontune.compute.rewriting import (
        AppliedRewrites as AppliedRewrites,
        apply_rewrites as apply_rewrites,
        rewrites_for as rewrites_for,
        why_no_gain as why_no_gain,
    )
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
