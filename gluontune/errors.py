"""Errors that gluontune raises for its users."""

from __future__ import annotations

from gluontune.core.errors import (
    GluontuneError as GluontuneError,
    UnknownNameError as UnknownNameError,
    UsageError as UsageError,
    nearest as nearest,
)

__all__ = ["GluontuneError", "UnknownNameError", "UsageError", "nearest"]
