"""Compute: hybridize, rewrite, mixed precision, each only where it measures faster.

The pieces stand alone; each works on a network of your own:

>>> import gluontune as gt
>>> gt.compute.REWRITES.names()[:2]
['whole-sequential', 'pool-to-mean']
"""

from __future__ import annotations

from typing import Any

from gluontune import lazy

_HOMES = {
    "InputStage": "stage",
    "with_input_stage": "stage",
    "start_process": "process",
    "bfloat16_support": "process",
    "REWRITES": "rewrites",
    "Rewrite": "rewrites",
    "AppliedRewrites": "rewrites",
    "apply_rewrites": "rewrites",
    "rewrites_for": "rewrites",
    "set_mode": "mode",
    "MODES": "mode",
    "to_mixed_precision": "mixed",
    "MixedPrecision": "mixed",
    "refuse_np": "mixed",
    "check_hybridizable": "check",
    "HybridizeCheck": "check",
    "profile": "profiling",
    "Profile": "profiling",
    "hybridize": "choose",
    "HybridizeReport": "choose",
    "why_no_gain": "why",
    "LossScaler": "scaler",
    "add_stochastic_depth": "depth",
    "FirstValues": "initial",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy.find(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
