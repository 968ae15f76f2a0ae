"""Medians, intervals and ratios of repeated measurements."""

from __future__ import annotations

from gluontune.core.stats import LEAST as LEAST
from gluontune.core.stats import Interval as Interval
from gluontune.core.stats import bounds as bounds
from gluontune.core.stats import difference as difference
from gluontune.core.stats import in_turn as in_turn
from gluontune.core.stats import interval as interval
from gluontune.core.stats import ratio_interval as ratio_interval
from gluontune.core.stats import said as said

__all__ = ["Interval", "LEAST", "bounds", "difference", "in_turn", "interval", "ratio_interval", "said"]
