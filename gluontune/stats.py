"""Medians, intervals and ratios of repeated measurements."""

from __future__ import annotations

from gluontune.core.stats import (
    LEAST as LEAST,
    Interval as Interval,
    bounds as bounds,
    difference as difference,
    in_turn as in_turn,
    interval as interval,
    ratio_interval as ratio_interval,
    said as said,
)

__all__ = ["Interval", "LEAST", "bounds", "difference", "in_turn", "interval", "ratio_interval", "said"]
