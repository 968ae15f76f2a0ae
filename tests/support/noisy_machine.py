"""A shared machine's noise on a simulated clock, and the ladder's real contest of one rung on it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from gluontune.core.events import RungRow, rung_row
from gluontune.recipe import Recipe
from gluontune.search.budget import Budget
from gluontune.search.judge import compare, judge
from gluontune.search.measure import Contender
from gluontune.search.rung import Variant
from gluontune.search.rung_contest import Rounds

NOISES: dict[str, dict[str, float]] = {
    "quiet": {"white": 0.01, "drift": 0.02, "neighbour": 0.0, "stall": 0.0},
    "shared": {},
    "loud": {"white": 0.08, "drift": 0.3, "neighbour": 0.4, "stall": 0.06},
    "starts": {"white": 0.02, "neighbour": 0.0, "start": 0.04, "halved": 0.15},  # a small net, MXNet as installed
}


@dataclass
class Machine:
    """The machine's speed by the time: white noise, a slow drift, neighbours that come and go, rare stalls.

    Args:
        seed: of its noise. white: standard deviation of a slice's logarithm. drift: of the machine's speed in a minute.
        neighbour: share of the time with a neighbour, who takes up to half of the speed.
        stall: share of slices that take 1.3 to 4 times as long.
        start: standard deviation of the speed's logarithm from start to start. halved: share of starts at half speed.
    """

    seed: int
    white: float = 0.03
    drift: float = 0.1
    neighbour: float = 0.2
    stall: float = 0.03
    start: float = 0.0
    halved: float = 0.0

    def __post_init__(self) -> None:
        self.rng, self.now, self.walk = random.Random(self.seed), 0.0, 0.0
        self.until, self.taken = 0.0, 1.0

    def seconds(self, work: float) -> float:
        """The seconds that some work takes now, which pass."""
        rng = self.rng
        self.walk = 0.98 * self.walk + rng.gauss(0, self.drift * math.sqrt(min(work, 60.0) / 60.0))
        if self.now >= self.until:
            alone = rng.random() >= self.neighbour
            self.until = self.now + rng.expovariate(1 / 8.0)
            self.taken = 1.0 if alone else rng.uniform(1.05, 2.0)
        took = work * self.taken * math.exp(self.walk + rng.gauss(0, self.white))
        took *= rng.uniform(1.3, 4.0) if rng.random() < self.stall else 1.0
        self.now += took
        return took

    def of_start(self) -> float:
        """How fast a new process is for as long as it lives, as a share."""
        return math.exp(self.rng.gauss(0, self.start)) * (0.5 if self.rng.random() < self.halved else 1.0)


class Simulated(Contender):
    """A recipe of known speed on such a machine."""

    def __init__(self, label: str, rate: float, machine: Machine, start_s: float = 2.0):
        super().__init__(Recipe(), label)
        self.usual, self.machine, self.start_s = rate, machine, start_s

    def launch(self) -> None:
        if self.group is None and self.failure is None:
            self.machine.seconds(self.start_s)
            self.step_s = 64 / (self.usual * self.machine.of_start())
            self.group, self._warm = self, False  # type: ignore[assignment]

    def warm_up(self, slice_s: float, too_slow: float = 0.0) -> float:
        if not self._warm:
            self._warm, self._steps = True, max(1, round(slice_s / self.step_s))
            return 3 * 64 / self.machine.seconds(3 * self.step_s)
        return 0.0

    def slice(self) -> None:
        count = self._steps
        self.rates.append(64 * count / self.machine.seconds(count * self.step_s))

    def close(self) -> None:
        self.group = None


def contest(gains: list[float], machine: Machine, *, before: int = 2) -> RungRow:
    """The row of a rung whose variants have these true gains, after ``before`` placebo contests for the scatter."""
    rate, seconds = 200.0, 20.0
    rounds = Rounds(Budget(1e9, clock=lambda: machine.now), 0.3, lambda event: None)
    best = Simulated("best", rate, machine)
    row = rung_row("placebo", "nothing is changed")
    for number in range(before + 1):
        now = gains if number == before else [1.0]
        row = rung_row("placebo", "nothing is changed")
        field = [Simulated(f"variant {n}", rate * gain, machine) for n, gain in enumerate(now)]
        variants = [Variant(c.label, {}) for c in field]
        load = rounds.run(row, best, best, list(field), seconds)
        compare(row, field, variants, best, best, rounds.scatter)
        judge(row, load, has_best=True)
    return row
