"""The reasons why a device idles, and its steadiness: samplers, step phases, verdicts, logs."""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
