"""The process that trains in one of the situations and returns its bottleneck.

One JSON command per line on stdin, one JSON answer per line on the pipe of ``--events``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

from benchmarks.situations import SITUATIONS, Loop, guilty_line
from gluontune import monitor, runtime
from gluontune.core.processes import die_with_parent

__all__ = ["main", "observe"]

_PERIOD_S = 0.1
_EVERY = 8  # a short run needs its samples of steps close together


def observe(
    mx: Any, loop: Loop, seconds: float, steps: int | None = None, pids: list[int] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Run a loop for some seconds, monitored; returns the verdict and the report of its phases.

    Args:
        seconds: at least, until a step was sampled; or ``steps``, if given.
        pids: the processes of the training; None: this one.
    """
    phases = monitor.StepPhases(sync=mx.nd.waitall, every=_EVERY)
    taken, until = 0, time.perf_counter() + seconds
    with (
        monitor.trace_syncs(mx.nd.NDArray) as syncs,
        monitor.Monitor(pids, _PERIOD_S, "all" if loop.pynvml else "none", pynvml=loop.pynvml) as seen,
    ):
        while taken < (steps or 2 * _EVERY) or (steps is None and time.perf_counter() < until):
            with phases.step() as phase:
                loop.step(phase)
            taken += 1
        phases.wait()
    facts = {**loop.facts, "usable_cores": seen.cores, "steps": taken, "syncs": syncs.report()}
    report = phases.report()
    return monitor.verdict(report, seen.series(), facts), report


def main() -> None:
    """Serve the runs of one situation: ``{"seed", "seconds", "pids"}`` a line on stdin."""
    events = os.fdopen(int(sys.argv[sys.argv.index("--events") + 1]), "w", encoding="utf-8")

    def say(**event: Any) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    setup = json.loads(sys.stdin.readline())
    die_with_parent(setup["parent"])
    situation = SITUATIONS[setup["kind"]]
    mx = runtime.mxnet()
    say(event="ready")
    for line in sys.stdin:
        command = json.loads(line)
        mx.random.seed(command["seed"])
        loop = situation.build(mx, random.Random(command["seed"]), setup["rank"])
        for _ in range(3):
            loop.step(lambda name: _Quiet())  # compiles and touches the memory
        mx.nd.waitall()
        found, report = observe(mx, loop, command["seconds"], situation.steps, command["pids"])
        loop.close()
        say(event="done", verdict=found.to_dict(), phases=report, where=[guilty_line()])


class _Quiet:
    """A phase that is not timed."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    main()
