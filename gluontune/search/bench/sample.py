"""The smallest work of a contender: it sleeps. For the documentation and the tests of contests."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["Sleeper", "make"]


class Sleeper:
    """Each step takes ``sleep_s`` seconds and counts ``units``."""

    def __init__(self, units: int, sleep_s: float):
        self.units, self.sleep_s = units, sleep_s
        self.info: dict[str, Any] = {"sleep_s": sleep_s}
        self.steps = 0

    def step(self) -> int:
        time.sleep(self.sleep_s)
        self.steps += 1
        return self.units

    def count(self) -> int:
        """Steps so far."""
        return self.steps


def make(units: int, sleep_s: float) -> Sleeper:
    """What ``Entrant.target`` names: called with the entrant's settings."""
    return Sleeper(units, sleep_s)
