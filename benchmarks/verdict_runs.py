"""Test of the verdicts: training loops with a known cause, repeated beside background load."""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.situations import SITUATIONS, Situation
from gluontune import runtime
from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import python
from gluontune.core.processes import PipedProcess
from gluontune.monitor.cpu import OtherLoad
from gluontune.parallel.kvstore import start_cluster

__all__ = ["BAR", "measure", "summarize"]

BAR = 0.95  # share of the runs that must be right
_FOREIGN_PCT = 15.0  # of all cores: a run beside so much foreign load is repeated
_TRIES = 3
_SECONDS = 1.2  # of one run
_TIME_LIMIT_S = 120.0
_CHILD = python("-m", "benchmarks._situation_child")
# Busy and idle seconds of the load that comes and goes; a situation's crowd never idles.
_BUSY_S, _IDLE_S = (0.1, 0.3), (0.6, 1.4)
_LOAD = f"""
import random, sys, time
from gluontune.core.processes import die_with_parent
die_with_parent(int(sys.argv[1]))
rng, idle = random.Random(int(sys.argv[2])), float(sys.argv[3])
while True:
    until = time.monotonic() + rng.uniform({_BUSY_S[0]}, {_BUSY_S[1]})
    while time.monotonic() < until:
        sum(range(1000))
    time.sleep(idle * rng.uniform({_IDLE_S[0]}, {_IDLE_S[1]}))
"""


def measure(
    runs: list[dict[str, Any]],
    *,
    rounds: int,
    only: list[str] | None = None,
    seconds: float = _SECONDS,
    say: Callable[[str], None] = lambda line: None,
    on_run: Callable[[], None] = lambda: None,
) -> None:
    """Add the runs that are missing to ``runs``: ``rounds`` of each situation, each beside other load.

    The background load is started by this command. If other programs take 15 % of the cores or more, the cores may
    really be the limit: such a run is recorded as disturbed, does not count, and is repeated.

    Args:
        runs: what was measured already; grows by one for each run.
        only: kinds of situations; None takes all.
        seconds: length of a run.
        say: called with lines of progress. on_run: called after each run, to save.
    """
    for kind, situation in SITUATIONS.items():
        if only is not None and kind not in only:
            continue
        done = {run["seed"] for run in runs if run["situation"] == kind and not _disturbed(run)}
        missing = [seed for seed in range(rounds) if seed not in done]
        if not missing:
            continue
        with _load(seed=len(done), crowd=situation.crowd), _Trainers(situation) as trainers:
            for seed in missing:
                for _ in range(_TRIES):
                    say(f"{kind}: run {seed + 1} of {rounds}")
                    runs.append({"situation": kind, "seed": seed, **trainers.run(seed, seconds)})
                    on_run()
                    if not _disturbed(runs[-1]):
                        break


def _disturbed(run: dict[str, Any]) -> bool:
    return float(run.get("foreign_pct") or 0.0) >= _FOREIGN_PCT


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each situation: the number of right verdicts, and the wrong ones."""
    rows = []
    for kind, situation in SITUATIONS.items():
        all_runs = [run for run in runs if run["situation"] == kind]
        mine = [run for run in all_runs if not _disturbed(run)]
        if all_runs:
            right = sum(run["right"] for run in mine)
            wrong = Counter(run["verdict"]["kind"] for run in mine if not run["right"])
            rows.append(
                {
                    "name": kind,
                    "right": right,
                    "runs": len(mine),
                    "instead": dict(wrong),
                    "disturbed": len(all_runs) - len(mine),
                    "holds": bool(mine) and right >= BAR * len(mine),
                    "what": situation.what,
                    "simulated": situation.simulated,
                }
            )
    return rows


class _Trainers:
    """The processes of one situation, and its parameter server, if any."""

    def __init__(self, situation: Situation):
        self.situation = situation
        self._closing = contextlib.ExitStack()
        own = {"OMP_NUM_THREADS": str(situation.threads)} if situation.threads else {}
        env = runtime.child_env("tuned", own, processes=situation.world)
        helpers: list[int] = []
        try:
            if situation.world > 1:
                cluster = self._closing.enter_context(start_cluster(situation.world, env))
                env = {**env, **cluster.worker_env}
                helpers = [process.pid for process in cluster.processes]
            self.ranks = []
            for rank in range(situation.world):
                setup = {"kind": situation.kind, "rank": rank, "parent": os.getpid()}
                process = PipedProcess(_CHILD, setup, env)
                self._closing.callback(process.close)
                self.ranks.append(process)
            self._gather()
        except BaseException:
            self._closing.close()
            raise
        self.pids = [*(process.process.pid for process in self.ranks), *helpers]

    def __enter__(self) -> _Trainers:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def run(self, seed: int, seconds: float) -> dict[str, Any]:
        """One run of the loop; returns the first rank's verdict, and whether it is right."""
        others = OtherLoad()
        for process in self.ranks:
            process.say({"seed": seed, "seconds": seconds, "pids": self.pids})
        answer = self._gather()[0]
        foreign_pct = others.read()
        found = answer["verdict"]
        right = found["kind"] == self.situation.kind
        if right and self.situation.kind == "sync-bound":
            right = found["evidence"]["where"][:1] == answer["where"]
        return {"verdict": found, "right": right, "foreign_pct": foreign_pct, "phases": answer["phases"]}

    def _gather(self) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + _TIME_LIMIT_S
        with selectors.DefaultSelector() as selector:
            for place, process in enumerate(self.ranks):
                selector.register(process.reading, selectors.EVENT_READ, place)
            while len(answers) < len(self.ranks):
                for key, _ in selector.select(0.5):
                    event = self.ranks[key.data].poll()
                    if event is None:
                        continue
                    if event["event"] == "end":
                        process = self.ranks[key.data]
                        raise GluontuneError(process.how_ended(f"the {self.situation.kind} training"))
                    answers[key.data] = event
                    selector.unregister(key.fd)
                if time.monotonic() > deadline:
                    raise GluontuneError(
                        f"the {self.situation.kind} training has not answered for {_TIME_LIMIT_S:.0f} s"
                    )
        return [answers[place] for place in sorted(answers)]


@contextlib.contextmanager
def _load(seed: int, crowd: int) -> Iterator[None]:
    """Start one process that is busy now and then, and ``crowd`` that always are."""
    rng = random.Random(seed)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for idle in [1.0, *[0.0] * crowd]:
            command = python("-c", _LOAD, str(os.getpid()), str(rng.randrange(10**6)), str(idle))
            processes.append(subprocess.Popen(command))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
