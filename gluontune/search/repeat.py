"""One repeat: a recipe trained once in a fresh process, its clocks kept apart."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from gluontune import runtime
from gluontune.core.events import OnProgress
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.cost import PackageEnergy
from gluontune.training.group import Group, RunFailed
from gluontune.training.loop import drive

_WARMUP_STEPS = 2


class Clocks:
    """Where the seconds of one run went, by wall clock from the start of its process.

    Attributes:
        started_at: seconds since the epoch. start_seconds: importing, opening the data, building the net.
        warmup_seconds: the untimed first steps (compilation, caches), undone afterwards.
        evaluations: ``(begin, end, joules)`` of each validation; seconds since the start, joules of the
            CPU packages since the training began (None where they cannot be read).
        run_at: when the training that counts began, seconds since the start.
    """

    def __init__(self) -> None:
        self.started_at, self._begin = time.time(), time.perf_counter()
        self.start_seconds = self.warmup_seconds = self.run_at = 0.0
        self.evaluations: list[tuple[float, float, float | None]] = []

    def now(self) -> float:
        return time.perf_counter() - self._begin


class _Watched:
    """A group whose validations are timed; all else is the group's own."""

    def __init__(self, group: Any, clocks: Clocks):
        self._group, self._clocks = group, clocks
        self._energy = PackageEnergy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def validate(self) -> dict[str, float]:
        begin = self._clocks.now()
        seen = self._group.validate()
        self._clocks.evaluations.append((begin, self._clocks.now(), self._energy.joules()))
        return seen


def train_once(
    recipe: Recipe, *, on_event: OnProgress | None = None, time_limit: float = 600.0,
    machine: dict[str, Any] | None = None,
) -> tuple[RunResult, Clocks]:  # fmt: skip
    """Train a recipe in fresh processes, after a warm-up that is undone. Never raises for a failed run.

    Two steps are taken first, for compilation and caches, and the run then begins from its seeded start.
    Ranks behind a parameter server cannot be set back, so they get no warm-up, and their first steps count.
    """
    with begun(recipe, machine) as (result, clocks), Group(recipe, time_limit=time_limit) as group:
        clocks.start_seconds = clocks.now()
        if group.world == 1:
            group.steps(_WARMUP_STEPS)
            group.reset()
        clocks.run_at = clocks.now()
        clocks.warmup_seconds = clocks.run_at - clocks.start_seconds
        result.warmup_seconds = clocks.run_at
        watched: Any = _Watched(group, clocks)
        drive(watched, result, on_event)
    return result, clocks


@contextlib.contextmanager
def begun(recipe: Recipe, machine: dict[str, Any] | None) -> Iterator[tuple[RunResult, Clocks]]:
    """The result and the clocks of a run; how it fails, or is interrupted, becomes a part of the result."""
    result = RunResult(recipe=recipe.to_dict(), machine=machine or runtime.machine_facts())
    try:
        yield result, Clocks()
    except RunFailed as failure:
        result.status, result.error = "failed", failure.to_dict()
    except KeyboardInterrupt:
        result.status = "interrupted"
