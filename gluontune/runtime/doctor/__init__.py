"""The doctor: is this machine set up so that MXNet works, and works as fast as it can?

>>> from gluontune.runtime.doctor import CHECKS
>>> len(CHECKS) >= 25
True
"""

from __future__ import annotations

import importlib

from gluontune.runtime.doctor._base import (
    CHECKS,
    SEVERITIES,
    Check,
    Finding,
    Options,
    Verdict,
    check,
    iter_checks,
    run_checks,
)

# Each file registers its checks; the order here is the order of the table.
for _topic in ("platform", "mxnet", "packages", "gpu", "threads", "limits", "data", "notebooks"):
    importlib.import_module(f"{__name__}.checks_{_topic}")

__all__ = [
    "CHECKS",
    "SEVERITIES",
    "Check",
    "Finding",
    "Options",
    "Verdict",
    "check",
    "iter_checks",
    "run_checks",
]
