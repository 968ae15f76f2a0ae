"""When a contest ends: what is ruled out, what is proven, and what is likely while the time is up."""

from __future__ import annotations

import math

import pytest

from gluontune.recipe import Recipe
from gluontune.search.budget import Budget
from gluontune.search.measure import Contender
from gluontune.search.rung_contest import Contest, Rounds


class Steady(Contender):
    """Its slices are given, over and over."""

    def __init__(self, *rates):
        super().__init__(Recipe(), "given")
        self.given = rates

    def launch(self):
        self.turn = 0

    def warm_up(self, slice_s, too_slow=0.0):
        return 0.0

    def slice(self):
        self.rates.append(self.given[self.turn % len(self.given)])
        self.turn += 1


def run(*variants, rounds=4):
    """The contest of these variants against a steady best, for which there is time for so many rounds."""
    told = []

    class Timed(Contest):
        def is_late(self, likely):
            told.append(likely)
            return self.rounds >= rounds

    host = Rounds(Budget(1e9), 1.0, lambda event: None)
    contest = Timed(host, "given", Steady(100.0), Steady(100.0), variants, 1e6)
    contest.run()
    return contest, told


@pytest.mark.parametrize(("median", "likely"), [(105.0, True), (104.9, False), (130.0, True)])
def test_a_gain_that_is_not_proven_may_be_likely(median, likely):
    contest, told = run(Steady(0.6 * median, median, 1.7 * median, median))
    assert told == [likely] and contest.rounds == 4


@pytest.mark.parametrize(("spread", "decided"), [(0.0065, True), (0.0066, False)])
def test_measuring_goes_on_while_five_per_cent_are_not_ruled_out(spread, decided):
    contest, told = run(Steady(100 * math.exp(spread), 100 * math.exp(-spread)), rounds=5)
    assert (contest.rounds == 4) == decided and len(told) == (0 if decided else 2)


def test_one_that_helps_ends_it_and_of_two_the_faster_is_looked_for():
    assert run(Steady(106.0), rounds=36)[0].rounds == 4
    both, _ = run(Steady(120.0, 120.0, 120.0, 121.0), Steady(120.0, 121.0, 120.0, 120.0), rounds=36)
    assert both.rounds == 6 and both.decided
