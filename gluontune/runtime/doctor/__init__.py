"""The doctor: is this machine set up so that MXNet works, and works as fast as it can?

>>> from gluontune.runtime.doctor import CHECKS
>>> len(CHECKS) >= 25
True
"""

from __future__ import annotations

import importlib

from gluontune.core.errors import GluontuneError
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
for _topic in ("platform", "packages", "gpu", "data"):
    importlib.import_module(f"{__name__}.checks_{_topic}")

__all__ = [
    "CHECKS", "ESSENTIAL", "SEVERITIES", "Check", "Finding", "Options", "Verdict", "check", "iter_checks",
    "must_work", "prevents", "run_checks",
]  # fmt: skip

#: Without these no training process starts; together they take half a second.
ESSENTIAL = (
    "python", "mxnet", "mxnet-files", "shared-libraries", "numpy", "distutils", "mxnet-requirements",
)  # fmt: skip


def prevents() -> str:
    """The reason why no training process can start here, with its fix, or ""."""
    wrong = [f for f in run_checks(only=ESSENTIAL) if f.severity == "error"]
    return "; ".join(f"{f.message}. To mend it: {f.fix}" if f.fix else f.message for f in wrong)


def must_work() -> None:
    """Run the essential checks before long work.

    Raises:
        GluontuneError: no training process can start here; names the reason and the fix.
    """
    if reason := prevents():
        raise GluontuneError(f"nothing can be trained here: {reason}")
