"""Does the ladder's judge keep what is nothing? Rungs of a known gain, on simulated machines and with real processes.

    python -m tests.trials.placebo_trials [COUNT]            # simulated ladders of nine placebos, and known effects
    python -m tests.trials.placebo_trials --real [COUNT]     # real processes that work for a known time

Ends with 1 if a placebo or a slow-down is kept, or if a gain of 1.5 is not.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gluontune.core.events import rung_row
from gluontune.recipe import Recipe
from gluontune.search import measure, rung_contest
from gluontune.search.budget import Budget
from gluontune.search.judge import compare, judge
from gluontune.search.measure import Contender
from gluontune.search.rung import Variant
from gluontune.search.rung_contest import Rounds
from tests.support.noisy_machine import NOISES, Machine, contest

_RUNGS = 9  # of a ladder, beside naive
_WORKER = """
import sys, time
work = float(sys.argv[1])
def step():
    total = 0
    for _ in range(round(work * 150_000)):
        total += 1
for line in sys.stdin:
    began = time.perf_counter()
    for _ in range(int(line)):
        step()
    print(time.perf_counter() - began, flush=True)
"""


def simulated(count: int) -> int:
    """Ladders of placebos and contests of known effects; returns the number of wrong verdicts."""
    wrong = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rung_contest.time, "sleep", lambda seconds: None)
        patch.setattr(measure.OtherLoad, "read", lambda self: 0.0)
        for kind, noise in NOISES.items():
            kept = 0
            for seed in range(count):
                rungs = [contest([1.0], Machine(1000 * seed + rung, **noise)) for rung in range(_RUNGS)]
                kept += any(row["kept"] for row in rungs)
            print(f"{kind}: {count - kept} of {count} ladders of {_RUNGS} placebos kept nothing", flush=True)
            wrong += kept
            for gain in (0.8, 0.95, 1.05, 1.2, 1.5):
                rows = [contest([gain], Machine(10**6 + seed, **noise)) for seed in range(count)]
                said = Counter(row["verdict"] if row["measurable"] else "not measurable" for row in rows)
                print(f"{kind}, {gain:g}×: {dict(said)}, kept in {sum(row['kept'] for row in rows)}", flush=True)
                wrong += sum(row["kept"] != (gain > 1) for row in rows if gain in (0.8, 0.95, 1.5))
    return wrong


class Real(Contender):
    """A process of its own that works for a known time in each step."""

    def __init__(self, label: str, gain: float):
        super().__init__(Recipe(), label)
        self.gain, self.process = gain, None

    def launch(self) -> None:
        if self.process is None:
            command = [sys.executable, "-c", _WORKER, str(1 / self.gain)]
            self.process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.group, self._warm = self.process, False

    def _work(self, count: int) -> float:
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def warm_up(self, slice_s: float, too_slow: float = 0.0) -> float:
        if not self._warm:
            self._warm = True
            self._steps = max(1, round(slice_s / (self._work(8) / 8)))
            return self._steps / self._work(self._steps)
        return 0.0

    def slice(self) -> None:
        self.rates.append(self._steps / self._work(self._steps))

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = self.group = None


def real(count: int) -> int:
    """Contests of real processes, on this machine as it is; returns the number of wrong verdicts."""
    wrong = 0
    for gain in (1.0, 0.95, 0.8, 1.5):
        rows = list(_contests(gain, count))
        said = Counter(row["verdict"] if row["measurable"] else "not measurable" for row in rows)
        kept = sum(row["kept"] for row in rows)
        print(f"{gain:g}×: {dict(said)}, kept in {kept} of {count}", flush=True)
        wrong += count - kept if gain > 1 else kept
    return wrong


def _contests(gain: float, count: int) -> Iterator[Any]:
    rounds, best = Rounds(Budget(1e9), 0.3, lambda event: None), Real("best", 1.0)
    for _ in range(count):
        row, field = rung_row("known", f"{gain:g} times the speed"), [Real("variant", gain)]
        try:
            load = rounds.run(row, best, best, list(field), 15.0)
            compare(row, field, [Variant("variant", {})], best, best, rounds.scatter)
            judge(row, load, has_best=True)
            yield row
        finally:
            field[0].close()
    best.close()


def main(words: list[str]) -> int:
    counts = [int(word) for word in words if word != "--real"]
    count = counts[0] if counts else 20
    return int((real if "--real" in words else simulated)(count) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
