"""Successive elimination within a budget: which ways to run a network race, and for how long.

A quick look at each; heats among the rest; the winner without each of its rewrites; a last heat of the best few.
After Karnin, Koren, Somekh, *Almost Optimal Exploration in Multi-Armed Bandits*, 2013.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gluontune.compute.race import SETTINGS, Race, Trial, fastest, present_mode

MOST_S = 15.0
SHARE = 0.05  # of the training to come
# shares of the budget spent by then; the last heat: the rest
LOOK, HEAT, VARIANTS, VARIANTS_HEAT = 0.5, 0.6, 0.75, 0.85
FAR = 1.3  # times the best's step: dropped after a look
NEAR = 1.15  # a plain mode this close to the best one in the first heat runs in the last one, too
NEAR_VARIANT = 1.05
HEAT_ROUNDS, FINAL_ROUNDS, ENOUGH_ROUNDS = 3, 8, 6
LEAST_STEPS = 6  # for a look at the reference and one contender


@dataclass
class Budget:
    """Seconds for a race: given, or a share of the training to come, at most ``MOST_S``.

    >>> Budget(steps=1000).seconds(0.1), Budget(steps=10**6).seconds(0.1), Budget(given=60.0).seconds(0.1)
    (5.0, 15.0, 60.0)
    """

    given: float | None = None
    steps: int | None = None

    def seconds(self, step_s: float) -> float:
        if self.given is not None:
            return self.given
        return MOST_S if self.steps is None else min(MOST_S, SHARE * self.steps * step_s)

    @property
    def hopeless(self) -> bool:
        """Whether the budget is below one contender's look, at any step time."""
        return self.given is None and self.steps is not None and SHARE * self.steps < LEAST_STEPS

    def __str__(self) -> str:
        if self.given is not None:
            return f"{self.given:.3g} s, as given"
        steps = "" if self.steps is None else f" and {SHARE:.0%} of {self.steps} steps"
        return f"the lesser of {MOST_S:.0f} s{steps}" if steps else f"{MOST_S:.0f} s"


@dataclass
class Elimination:
    """A race with its budget; ``run`` sets the rest; ``complete``: more seconds would not change the outcome.

    Args:
        race: the network. budget: the price. rounds: of the last heat, at most (8 at least).
        hold: returns those of some rewrites with which the network still computes the same.
        began: the clock's reading at the start.
    """

    race: Race
    budget: Budget
    rounds: int
    hold: Callable[[Sequence[str]], tuple[str, ...]]
    began: float
    trials: list[Trial] = field(default_factory=list)
    finalists: list[Trial] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    complete: bool = True
    _prices: list[float] = field(default_factory=list)

    @property
    def reference(self) -> Trial:
        """Imperative and without rewrites."""
        return self.trials[0]

    def run(self, names: Sequence[str], hybrid: bool) -> None:
        """Race the modes (imperative alone if nothing is ``hybrid``) with and without the rewrites."""
        first = Trial("imperative", ())
        self._look([first], 1.0)
        if first.error:
            return
        if names and not self._fits(LOOK):
            self.untried.append("rewrites")
            names = ()
        names = self.hold(names) if names else ()
        self._look(_contenders(names, present_mode(self.race.net), hybrid), LOOK)
        running = self._drop(self.trials, FAR, min, "after a look")
        if len(running) > 1:
            self.race.heat(running, HEAT_ROUNDS, self._deadline(HEAT), first)
        best = fastest(running)
        plain = [t for t in running if not t.rewrites]
        plain = [t for t in plain if t.median_ms <= NEAR * fastest(plain).median_ms]
        # One harmful rewrite may hide the gain of the others: the best with rewrites is varied.
        rewritten = [t for t in running if t.rewrites and t.median_ms <= NEAR * best.median_ms]
        varied = fastest(rewritten) if rewritten else best
        variants = self._vary(varied)
        joined = _joined(varied, variants)
        self._look(joined, VARIANTS_HEAT)
        picked = [*plain, best, *([fastest(variants)] if variants else []), *(t for t in joined if t.step_ms)]
        self._final(list({id(t): t for t in picked}.values()), best)

    def _vary(self, best: Trial) -> list[Trial]:
        """The variations of ``best`` that are faster or hardly slower."""
        more = _variations(best)
        self._look(more, VARIANTS)
        near = self._drop([best, *more], FAR, min, "after a look")
        more = [t for t in near if t is not best]
        if more:
            self.race.heat([best, *more], HEAT_ROUNDS, self._deadline(VARIANTS_HEAT), self.reference)
            near = self._drop([best, *more], NEAR_VARIANT, statistics.median, "after a heat")
        return [t for t in near if t is not best]

    def _final(self, finalists: list[Trial], best: Trial) -> None:
        self.finalists = finalists
        for trial in self.trials:
            if trial in finalists:
                trial.dropped = ""
            elif trial.step_ms and not trial.dropped:
                trial.dropped = f"before the last heat: {trial.median_ms / best.median_ms:.2f} × the best"
        if finalists != [self.reference]:
            rounds = max(self.rounds, FINAL_ROUNDS) if len(finalists) > 1 else HEAT_ROUNDS
            made = self.race.heat(finalists, rounds, self._deadline(1.0), self.reference)
            self.complete = not self.untried and made >= min(rounds, ENOUGH_ROUNDS)

    def seconds(self) -> float:
        """The budget by the fastest step so far."""
        return self.budget.seconds(min(min(t._times) for t in self.trials if t.step_ms))

    def _deadline(self, share: float) -> float:
        return self.began + share * self.seconds()

    def _fits(self, share: float) -> bool:
        """Whether a next look would end within its share of the budget, by the longest look so far."""
        if not self._prices:  # the reference always runs
            return True
        if len(self.trials) == 1:  # one contender is worth more than the heats of none
            share = max(share, VARIANTS)
        return self.race.clock() + max(self._prices) <= self._deadline(share)

    def _look(self, trials: Sequence[Trial], share: float) -> None:
        for trial in trials:
            if not self._fits(share):
                self.untried.append(trial.name)
                continue
            began = self.race.clock()
            times = self.race.prepare(trial)
            self._prices.append(self.race.clock() - began)
            self.trials.append(trial)
            if times:
                trial.took(times, self.reference._times or times)

    def _drop(
        self, trials: Sequence[Trial], limit: float, measure: Callable[[Sequence[float]], float], when: str
    ) -> list[Trial]:
        """The trials within ``limit`` of the best; the limit widens with the spread of a trial's steps."""
        ran = [t for t in trials if t.step_ms]
        best = min(measure(t._times) for t in ran)
        limit *= statistics.median(max(t._times) / min(t._times) for t in ran)
        for trial in ran:
            behind = measure(trial._times) / best
            if behind > limit:
                trial.dropped = f"{when}: {behind:.2f} × the best"
        return [t for t in ran if not t.dropped]


def _contenders(names: tuple[str, ...], present: str, hybrid: bool) -> list[Trial]:
    """The trials after the reference, the most promising first, because the budget may end."""
    if not hybrid:
        return [Trial("imperative", names)] if names else []
    order: list[tuple[str, tuple[str, ...]]] = [(present, ())] if present != "imperative" else []
    for settings in ("static", "hybridized", "static_alloc"):
        order += [(settings, names), (settings, ())]
    return [Trial(*way) for way in dict.fromkeys([*order, ("imperative", names)]) if way != ("imperative", ())]


def _variations(best: Trial) -> list[Trial]:
    """The winner so far without one of its rewrites each, and with other bulk sizes."""
    more = []
    if len(best.rewrites) > 1:
        for left_out in best.rewrites:
            more.append(Trial(best.settings, tuple(r for r in best.rewrites if r != left_out)))
    if best.settings == "static":
        more += [Trial(s, best.rewrites) for s in SETTINGS if s.startswith("static, ")]
    return more


def _joined(best: Trial, more: Sequence[Trial]) -> list[Trial]:
    """The winner so far without all its harmful rewrites, if these are several."""
    faster = [t for t in more if t.step_ms and t.median_ms < best.median_ms]
    left = tuple(r for r in best.rewrites if all(r in t.rewrites for t in faster))
    return [Trial(best.settings, left)] if left and len(best.rewrites) - len(left) > 1 else []
