"""Changes in place, measured on the running training: slices of steps as they are and changed, in turn, to ``waitall``.

What is not faster beyond doubt, and by 2 %, is taken back; :attr:`Helper.trusted` stays unless it is slower.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from typing import Any, Callable

from gluontune.capture.helpers.base import Helper
from gluontune.capture.watch import Steps
from gluontune.core.stats import chance_of_ranks, ratio_interval

WORTH = 1.02
_CHANCE = 0.005
_MORE_WORK = 1.5  # times the median: slices in which the script has saved a picture, or evaluated
_SLICE_S = 0.08
_SLICE_STEPS = (2, 40)
_PAIRS = (4, 12)  # the least and the most
_HOPELESS = (4.0, 2.0, 1.5)  # times as long, after so many pairs: one slice may hold more work than the other
_BEGIN_S = 1.0  # of training, before anything is tried
_BEGIN_STEPS = 4
_QUIET_S = 20.0  # of training, at most, until no helper works beside it: a proof takes a core, which a match would lose
_SHORT_STEP_S, _TINY_STEP_S = 0.02, 0.004  # what costs short steps comes last, or is not tried
_SHARE = 0.05  # of the training's time that contests may lose


Kept = dict[str, Any]  # what a start of the script knows: tried, states, trained_s, lost_s, match, over
Cut = dict[str, Any]  # of a match: state, with, before, length


class Contest:
    """Lets each state of each helper, in their order, meet the way in which the script runs so far.

    ``kept`` is of the script's last start.
    """

    def __init__(self, helpers: list[Helper], clock: Callable[[], float] = time.perf_counter, kept: Kept | None = None):
        self._helpers, self._clock = helpers, clock
        kept = kept or {"tried": [], "states": {}, "trained_s": 0.0, "lost_s": 0.0, "match": None, "over": False}
        self.steps, self.lost_s, self._trained_s, self.over = 0, kept["lost_s"], kept["trained_s"], kept["over"]
        self._began: float | None = None
        self._match: Match | None = None
        self._tried: set[tuple[str, str]] = {(name, state) for name, state in kept["tried"]}
        self._decided, self._cut = dict(kept["states"]), kept["match"]
        self._taken_over: set[str] = set()
        self.won: list[Match] = []
        self.matches: list[Match] = []

    def install(self, mx: Any) -> None:
        self.time_by(mx.nd.waitall)
        Steps(self.step).install(mx)

    def time_by(self, waitall: Callable[[], None]) -> None:
        """End slices with this; for a caller that hears of the steps himself."""
        self._waitall = waitall

    @property
    def _trained(self) -> float:
        """Seconds of training, in all starts of the script."""
        return self._trained_s + (0.0 if self._began is None else self._clock() - self._began)

    @property
    def idle(self) -> bool:
        """Whether nothing is being tried, and nothing is left that is known of."""
        left = any(self._untried(h) or h.waits for h in self._helpers if not h.broken)
        return self.over or (self._match is None and not left)

    def _untried(self, helper: Helper) -> list[str]:
        return [state for state in helper.states if (helper.name, state) not in self._tried]

    def kept(self) -> Kept:
        """What is known by now, for the script's next start: a short one ends before all has been tried."""
        self.stop()
        states = {**self._decided, **{h.name: h.state for h in self._helpers if h.state or h.trusted}}
        return {
            "tried": sorted(self._tried), "states": states, "trained_s": self._trained, "lost_s": self.lost_s,
            "match": self._cut, "over": self.over,
        }  # fmt: skip

    def step(self) -> None:
        if self._began is None:
            self._began = self._clock()
        self.steps += 1
        for helper in self._helpers:
            if not helper.broken:
                try:
                    self._heard(helper)
                except Exception as error:
                    helper.gave_up(error)
        self._measure_anew()
        if self._match is not None:
            self._match.step()
            if self._match.over:
                self._close(self._match)
        elif self._may_begin():
            self._match = self._next()

    def _heard(self, helper: Helper) -> None:
        """Tell a helper of the step; what an earlier start has decided is in force as soon as it can be."""
        seconds = self._trained
        helper.after_step(self.steps, seconds)
        if helper.name in self._decided:
            helper.awaited(self.steps, seconds)
        if helper.states and self._decided.get(helper.name) in [*helper.states, ""]:
            helper.state = self._decided.pop(helper.name)
            helper.settled(self._untried(helper))

    def _measure_anew(self) -> None:
        """What lost while a helper had not yet taken over is tried again."""
        new = {helper.name for helper in self._helpers if helper.took_over} - self._taken_over
        if new:
            self._taken_over |= new
            self.stop()
            self._cut = None
            self._tried -= {(match.helper.name, match.state) for match in self.matches if not match.won}

    def stop(self) -> None:
        """Give up what is being tried."""
        match, self._match = self._match, None
        if match is not None:
            match.helper.state, self._cut = match.host, match.cut()
            self._tried.discard((match.helper.name, match.state))

    def end(self) -> None:
        """Try nothing more."""
        self.stop()
        self.over = True

    def _may_begin(self) -> bool:
        trained = self._trained
        proving = trained < _QUIET_S and any(helper.waits for helper in self._helpers if not helper.broken)
        begun = trained >= _BEGIN_S and (self.steps >= _BEGIN_STEPS or self._trained_s > 0.0)
        return begun and not self.over and not proving and self.lost_s <= _SHARE * trained

    def _next(self) -> Match | None:
        step_s = (self._clock() - (self._began or 0.0)) / self.steps
        for helper in sorted(self._helpers, key=lambda helper: helper.costs_short_steps and step_s < _SHORT_STEP_S):
            for state in self._untried(helper):
                self._tried.add((helper.name, state))
                if helper.costs_short_steps and step_s < _TINY_STEP_S:
                    helper.note(f"{helper.name}, {state}: not tried, steps are too short")
                    continue
                helper.state = "" if state == helper.trusted else helper.state
                cut = self._cut if self._cut and self._cut["state"] == state != helper.state else None
                return Match(self, helper, state, cut)
        return None

    def _close(self, match: Match) -> None:
        self._match = None
        self.lost_s += match.lost_s
        self.matches.append(match)
        if match.helper.broken:
            return
        match.helper.state = match.state if match.won or (match.trusted and not match.slower) else match.before
        if match.won:
            self.won = [m for m in self.won if m.helper is not match.helper or m.state == match.before] + [match]
        else:
            outcome = "no certain gain" if match.helper.state == match.state else "not kept"
            match.helper.note(f"{match.helper.name}, {match.state}: {match.said()}, {outcome}")
        match.helper.settled(self._untried(match.helper))

    def saved(self) -> dict[str, float]:
        """Seconds that each kept state has saved, by its own match."""
        found: dict[str, float] = defaultdict(float)
        for match in self.won:
            found[match.helper.name] += match.gain_s * (self.steps - match.began_at)
        return dict(found)


class Match:
    """One state of a helper against the state before, in slices of steps; without it, steps would run in ``host``."""

    def __init__(self, contest: Contest, helper: Helper, state: str, cut: Cut | None):
        self.helper, self.state, self.before, self.began_at = helper, state, helper.state, contest.steps
        self.trusted = state == helper.trusted
        self.host, self._guest = (state, self.before) if self.trusted else (self.before, state)
        self._waitall, self._clock = contest._waitall, contest._clock
        self._times: dict[str, list[float]] = {state: [], helper.state: []}
        self._length, self._left, self._start = _SLICE_STEPS[0], 2, 0.0
        self._fresh = {state, helper.state}  # which have not been in force in this process
        if cut is not None:
            self._times, self._length = {state: list(cut["with"]), helper.state: list(cut["before"])}, cut["length"]
        mine, theirs = map(len, self._times.values())
        self._order = [state, helper.state] if mine == theirs else [state] if mine < theirs else [helper.state]
        self.over, self.won, self.slower, self.lost_s = False, False, False, 0.0
        self._spent_s, self._spent_steps, self._last = 0.0, 0, self._clock()
        self._enter()

    def _enter(self) -> None:
        self.helper.state = self._order[0]
        self._left, self._start = (2 if self._order[0] in self._fresh else 1), 0.0  # not timed: a graph, caches
        self._fresh.discard(self._order[0])

    def step(self) -> None:
        if self.helper.broken:
            self.over = True
            return
        self._left -= 1
        if self._left > 0:
            self._count()
            return
        self._waitall()
        now = self._count()
        if self._start == 0.0:  # the untimed steps are over
            self._start, self._left = now, self._length
            return
        self._times[self._order[0]].append((now - self._start) / self._length)
        self._order.pop(0)
        if not self._order:
            self._judge()
        if not self.over:
            self._enter()

    def _count(self) -> float:
        """Add this step to what the match costs, compiling included; the time."""
        now = self._clock()
        if self.helper.state == self._guest:
            self._spent_s, self._spent_steps = self._spent_s + now - self._last, self._spent_steps + 1
        self._last = now
        return now

    def _judge(self) -> None:
        mine, theirs = self._times[self.state], self._times[self.before]
        step = max(statistics.median(mine), 1e-6)
        self._length = min(_SLICE_STEPS[1], max(_SLICE_STEPS[0], math.ceil(_SLICE_S / step)))
        pairs = len(mine)
        self._order = [self.state, self.before] if pairs % 2 == 0 else [self.before, self.state]
        if pairs < _PAIRS[0]:
            self.over = self.slower = min(mine) > _HOPELESS[pairs - 1] * max(theirs)
        else:
            low, high = ratio_interval(theirs, mine)["ci95"]
            worth = self.speedup >= WORTH
            self.won = worth and (low > 1.0 or chance_of_ranks(*_alike(mine, theirs)) < _CHANCE)
            self.slower = high < 1.0
            self.over = self.won or high < WORTH or pairs >= _PAIRS[1]
        if self.over:
            self.lost_s = max(0.0, self._spent_s - self._spent_steps * statistics.median(self._times[self.host]))

    @property
    def speedup(self) -> float:
        """How many times as fast a step is with the state."""
        return float(statistics.median(a / b for a, b in zip(self._times[self.before], self._times[self.state])))

    @property
    def gain_s(self) -> float:
        """Seconds that a step takes less."""
        return statistics.median(self._times[self.before]) - statistics.median(self._times[self.state])

    def to_dict(self) -> dict[str, Any]:
        return {
            "helper": self.helper.name, "state": self.state, "before": self.before, "won": self.won,
            "seconds_a_step": {"before": self._times[self.before], "with": self._times[self.state]},
        }  # fmt: skip

    def cut(self) -> Cut:
        """The slices so far, to go on with."""
        mine, theirs = self._times[self.state], self._times[self.before]
        return {"state": self.state, "with": mine, "before": theirs, "length": self._length}

    def said(self) -> str:
        return f"{self.speedup:.2f} times as fast" if self._times[self.state] else "not measured"


def _alike(mine: list[float], theirs: list[float]) -> tuple[list[float], list[float]]:
    """Slices without those in which the script has done something else, too: about as many of each state's."""
    left = [[t for t in times if t <= _MORE_WORK * statistics.median(times)] for times in (mine, theirs)]
    return (left[0], left[1]) if abs(len(left[0]) - len(left[1])) <= 1 else (mine, theirs)
