"""Errors that gluontune raises for its users."""

from __future__ import annotations

from gluontune.core.errors import GluontuneError as GluontuneError
from gluontune.core.errors import UnknownNameError as UnknownNameError
from gluontune.core.errors import UsageError as UsageError
from gluontune.core.errors import nearest as nearest

__all__ = ["GluontuneError", "UnknownNameError", "UsageError", "nearest"]
