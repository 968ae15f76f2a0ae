"""Whole climbs of rungs whose effect is known, with real trainings of the sample, on this machine as it is.

    python -m tests.trials.placebo_ladders OUT [COUNT [SECONDS]]    # ladders of each kind (20), budget of each (150)

A ladder of placebos has nine rungs that change nothing; one of known effects has a slow-down of 5 %, one of 20 % and a
gain of 25 %, in another order each time. Each ladder's ``ladder.json`` stays in OUT, and ladders that are there already
are not climbed again. Ends with 1 if a placebo or a slow-down is kept, or if the gain is not.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from gluontune.recipe import Recipe
from gluontune.search.climb import climb
from gluontune.search.rung import Variant, adding_to
from gluontune.search.rungs import RUNGS

_PLACEBOS = [f"placebo-{n}" for n in range(1, 10)]
_NAIVE = 0.25  # of a step's own time, spent waiting after it
_EFFECTS = {"slower-5": 1 / 1.05, "slower-20": 1 / 1.2, "faster-25": 1 + _NAIVE}  # speed ÷ that before
_BUDGET_S = 150.0
_JOB = '''
import os, statistics, time
from mxnet import nd
from mxnet.gluon import nn

SHARE = float(os.environ.get("KNOWN_SHARE", "{naive}"))


class Waiting(nn.HybridSequential):
    """Waits a share of each step's own time, so that the step's whole time is known by its share."""

    def __init__(self):
        super().__init__()
        self.ended, self.own = None, []

    def __call__(self, *inputs):
        nd.waitall()
        now = time.perf_counter()
        if self.ended is not None:
            self.own = [*self.own[-8:], now - self.ended]
            usual = statistics.median(self.own)
            time.sleep(SHARE * min(self.own[-1], 2 * usual))  # a pause between slices is not a step
        self.ended = time.perf_counter()
        return super().__call__(*inputs)


def net():
    net = Waiting()
    for channels in (16, 32):
        net.add(nn.Conv2D(channels, 3, padding=1), nn.Activation("relu"), nn.MaxPool2D())
    net.add(nn.Flatten(), nn.Dense(10))
    return net


def data():
    return "sample"
'''.replace("{naive}", str(_NAIVE))


def _register() -> None:
    rung = adding_to(RUNGS)
    for name in _PLACEBOS:
        rung(name, "nothing is changed")(
            lambda recipe, site, name=name: [Variant("the same", {"env": {**recipe.env, "PLACEBO": name}})]
        )
    for name, speed in _EFFECTS.items():
        rung(name, f"{speed:.2f} times the speed")(
            lambda recipe, site, speed=speed: [
                Variant("known", {"env": {**recipe.env, "KNOWN_SHARE": str((1 + _share(recipe)) / speed - 1)}})
            ]
        )


def _share(recipe: Recipe) -> float:
    return float(recipe.env.get("KNOWN_SHARE", _NAIVE))


def _ladder(naive: Recipe, out: Path, rungs: list[str], seconds: float) -> dict[str, Any]:
    if not (out / "ladder.json").exists() or json.loads((out / "ladder.json").read_text())["budget"] is None:
        climb(naive, out=out, rungs=rungs, budget_s=seconds)
    document: dict[str, Any] = json.loads((out / "ladder.json").read_text())
    return document


def wrong(row: dict[str, Any]) -> bool:
    """Whether a rung of known effect was judged wrongly: kept or praised without a gain, or a gain not kept.

    >>> wrong({"name": "placebo-1", "kept": False, "verdict": "no gain", "status": "ran"})
    False
    >>> wrong({"name": "faster-25", "kept": False, "verdict": "no gain", "status": "ran"})
    True
    """
    gain = _EFFECTS.get(row["name"], 1.0) > 1
    return bool(row["kept"] != gain or (row["verdict"] == "helped") != gain)


def main(words: list[str]) -> int:
    out = Path(words[0])
    count, seconds = int(words[1]) if words[1:] else 20, float(words[2]) if words[2:] else _BUDGET_S
    out.mkdir(parents=True, exist_ok=True)
    (out / "job.py").write_text(_JOB)
    naive = Recipe(job=str(out / "job.py"), loader="resident", num_workers=0, val_samples=256)
    _register()
    failures = 0
    # As installed, one start in seven is half as fast: the hardest placebo, but no place for an effect to be known in.
    kinds = (("placebos", _PLACEBOS, naive), ("effects", list(_EFFECTS), naive.override(runtime="tuned")))
    for kind, names, naive in kinds:
        bad, judged = 0, Counter[str]()
        for number in range(count):
            order = random.Random(number).sample(names, len(names))
            document = _ladder(naive, out / f"{kind}-{number:02}", order, seconds)
            rows = [row for row in document["rungs"] if row["name"] in names]
            judged.update(f"{row['name'] if kind == 'effects' else 'placebo'}: {_word(row)}" for row in rows)
            bad += any(map(wrong, rows)) or len(rows) < len(names)
            if any(map(wrong, rows)):
                print(number, [(row["name"], row["verdict"], row["kept"], row["reason"]) for row in rows], flush=True)
        print(f"{kind}: {count - bad} of {count} ladders right; {dict(judged)}", flush=True)
        failures += bad
    return int(failures > 0)


def _word(row: dict[str, Any]) -> str:
    return row["verdict"] if row["measurable"] and row["status"] == "ran" else f"undecided ({row['status']})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
