"""The time of a training step by phase, and the source lines where a program waits for the device.

MXNet queues work and returns. So on sampled steps :class:`StepPhases` waits for the device at each border; the others
give the true step time, against which the sum is checked: the difference is work that usually overlaps.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gluontune.core.errors import UsageError

_FIRST_EVERY = 5  # distance of the first few samples
_TIMED_SHARE = 1 / 8  # of the other steps whose phases are timed on the host alone
_NAMES = ("asnumpy", "wait_to_read", "asscalar", "item", "tolist")
# Frames of the framework: the reported line is the first one outside.
_INSIDE = (os.sep + "mxnet" + os.sep, "<frozen", "contextlib.py")


_UNTIMED = contextlib.nullcontext()  # every phase of an untimed step


class _Phase:
    """One phase of a step; one object for each name, entered in each step."""

    __slots__ = ("_owner", "host_s", "name", "queued_s", "start_s", "total_s")

    def __init__(self, owner: StepPhases, name: str):
        self._owner, self.name = owner, name
        self.start_s = 0.0
        self.total_s = 0.0  # sampled steps, wait included
        self.queued_s = 0.0  # sampled steps, before the wait
        self.host_s = 0.0  # the other steps

    def __enter__(self) -> None:
        self.start_s = self._owner._clock()

    def __exit__(self, kind: Any, *_: object) -> None:
        owner = self._owner
        took = owner._clock() - self.start_s
        if owner._open is not None:
            owner._open[self.name] = owner._open.get(self.name, 0.0) + took
            if owner._sampled:
                if kind is None:
                    owner._sync()
                waited = owner._clock() - self.start_s
                owner._open_total[self.name] = owner._open_total.get(self.name, 0.0) + waited


class _Step:
    """The step's context manager; called with a name, it returns the phase's. Idle while nothing is measured."""

    __slots__ = ("_owner",)

    def __init__(self, owner: StepPhases):
        self._owner = owner

    def __call__(self, name: str) -> _Phase | contextlib.nullcontext[None]:
        if not self._owner._timed or self._owner._open is None:
            return _UNTIMED
        phase = self._owner._phases.get(name)
        return self._owner._phases.setdefault(name, _Phase(self._owner, name)) if phase is None else phase

    def __enter__(self) -> _Step:
        if self._owner._on:
            self._owner._begin()
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self._owner._end(kind is None)


class StepPhases:
    """Measures the phases of a training loop.

    The first ``skip`` steps, which compile, are excluded. Then about one step in ``every`` is sampled, at random
    distances, so that no rhythm of the loader hides, and only so often that the waits cost at most ``max_overhead`` of
    the time so far (the first ``least`` samples excepted).

    Args:
        sync: waits for all queued work, such as ``mx.nd.waitall``.
        every: mean distance of sampled steps.
        skip: excluded steps at the start.
        least: samples taken at any cost.
        max_overhead: share of the time that sampling may add.
        clock: a source of seconds.
        seed: of the random distances.

    Raises:
        UsageError: ``every`` below 1 or ``skip`` below 0.

    >>> phases = StepPhases(sync=lambda: None, every=2, skip=0)
    >>> for _ in range(4):
    ...     with phases.step() as step:
    ...         with step("data"):
    ...             batch = list(range(1000))
    ...         with step("forward"):
    ...             total = sum(batch)
    >>> report = phases.report()
    >>> sorted(report["phases_pct"]), round(sum(report["phases_pct"].values()))
    (['data', 'forward', 'rest'], 100)
    """

    def __init__(
        self, sync: Callable[[], Any], every: int = 50, *, skip: int = 2, least: int = 3,
        max_overhead: float = 0.005, clock: Callable[[], float] = time.perf_counter, seed: int = 0,
    ):  # fmt: skip
        if every < 1 or skip < 0:
            raise UsageError(f"StepPhases(every={every}, skip={skip}): sample one step in 1 or more, skip 0 or more")
        self._sync, self._clock = sync, clock
        self._every, self._skip, self._least, self._max_overhead = every, skip, least, max_overhead
        self._random = random.Random(seed)
        self._step = _Step(self)
        self._phases: dict[str, _Phase] = {}
        self._open: dict[str, float] | None = None
        self._open_total: dict[str, float] = {}
        self._sampled = self._timed = False
        self._on = True
        self.reset()

    def reset(self) -> None:
        """Drop all measurements; the first steps stay excluded."""
        for phase in self._phases.values():
            phase.total_s = phase.queued_s = phase.host_s = 0.0
        self._seen = getattr(self, "_seen", 0)
        self._next = max(self._seen, self._skip)
        self._samples, self._sampled_s, self._rest_s = 0, 0.0, 0.0
        self._drained_s = 0.0  # waits before sampled steps: work of earlier steps
        self._others, self._others_s = 0, 0.0
        self._timed_others = 0  # steps with phases timed on the host

    def enable(self, on: bool = True) -> None:
        """Measure from the next step on, or (False) leave the steps alone."""
        self._on = on

    def step(self) -> _Step:
        """``with phases.step() as step:`` around one whole step, ``with step("data"):`` around a phase.

        A step that an exception ends, such as the loader's StopIteration, is not counted.
        """
        return self._step

    def wait(self) -> None:
        """Wait for the device outside a step, as before a clock stops; the time counts for the steps so far."""
        start = self._clock()
        self._sync()
        if self._others and self._on:
            self._drained_s += self._clock() - start

    def _begin(self) -> None:
        self._sampled = self._seen >= self._next
        if self._sampled:
            self.wait()  # completes the time of the steps so far
        drawn = self._random.random() < _TIMED_SHARE
        self._timed = self._sampled or drawn or not self._timed_others  # at least one in a short run
        self._open, self._open_total = {}, {}
        self._start_s = self._clock()

    def _end(self, whole: bool) -> None:
        if self._open is None:  # begun while nothing was measured
            return
        took = self._clock() - self._start_s
        opened, self._open = self._open, None
        if not whole:
            return
        self._seen += 1
        if self._sampled:
            self._next = self._seen + self._distance()
            self._samples += 1
            self._sampled_s += took
            self._rest_s += max(0.0, took - sum(self._open_total.values()))
            for name, seconds in self._open_total.items():
                self._phases[name].total_s += seconds
                self._phases[name].queued_s += opened[name]
        elif self._seen > self._skip:
            self._others += 1
            self._others_s += took
            if self._timed:
                self._timed_others += 1
                for name, seconds in opened.items():
                    self._phases[name].host_s += seconds

    def _distance(self) -> int:
        """Steps between this sample and the next; short at first, for short runs."""
        mean, usual = float(self._every), self._unsampled_s()
        if self._samples < self._least:
            mean = min(mean, _FIRST_EVERY)
        elif usual:
            # A sample loses the overlap of host and device twice: in the wait before it and in itself.
            extra = 2 * (self._sampled_s / self._samples - usual)
            mean = max(mean, extra / (self._max_overhead * usual))
        return max(0, round(mean * self._random.uniform(0.5, 1.5)) - 1)

    def _unsampled_s(self) -> float | None:
        """Mean time of an unsampled step, its queued work included."""
        return (self._others_s + self._drained_s) / self._others if self._others else None

    def report(self) -> dict[str, Any]:
        """The measurements, ready for JSON.

        Returns:
            ``phases_ms``: mean milliseconds of each phase in the sampled steps, waits included; ``rest`` is
            the time between the phases. ``phases_pct``: the same in percent; sums to 100.
            ``queue_ms``: the part of each phase before its wait, in which the host prepared the work.
            ``host_ms``: the host's time in each phase of a sample of the other steps.
            ``step_time_ms``: ``sampled`` and ``unsampled`` means (None without such steps).
            ``sum_check_pct``: the excess of the sampled steps over the others, percent.
            ``steps_sampled``, ``steps_unsampled``: the counts.
        """
        n, usual = self._samples, self._unsampled_s()
        sampled = self._sampled_s / n if n else None
        totals = {name: phase.total_s for name, phase in self._phases.items()} if n else {}
        if n:
            totals["rest"] = totals.get("rest", 0.0) + self._rest_s
        whole, means = sum(totals.values()), {"sampled": sampled, "unsampled": usual}
        used = [phase for phase in self._phases.values() if n or self._others]
        return {
            "phases_ms": {name: 1e3 * s / n for name, s in totals.items()},
            "phases_pct": {name: 100 * s / whole for name, s in totals.items()} if whole > 0 else {},
            "queue_ms": {p.name: 1e3 * p.queued_s / n for p in used} if n else {},
            "host_ms": {p.name: 1e3 * p.host_s / self._timed_others for p in used} if self._timed_others else {},
            "step_time_ms": {name: None if s is None else 1e3 * s for name, s in means.items()},
            "sum_check_pct": 100 * (sampled / usual - 1) if sampled and usual else None,
            "steps_sampled": n,
            "steps_unsampled": self._others,
        }


class SyncTrace:
    """Calls that made the host wait, by source line."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], list[float]] = {}
        self._local = threading.local()

    def wrap(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, timed; nested waits count once, as the outer one."""

        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._local, "inside", False):
                return method(*args, **kwargs)
            self._local.inside = True
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._local.inside = False
                entry = self._lines.setdefault((_caller(), name), [0, 0.0])
                entry[0] += 1
                entry[1] += time.perf_counter() - start

        return timed

    def report(self) -> list[dict[str, Any]]:
        """``[{"where": "file.py:12", "call", "calls", "blocked_ms"}]``, the longest first; ready for JSON."""
        rows = [
            {"where": where, "call": call, "calls": int(count), "blocked_ms": 1e3 * seconds}
            for (where, call), (count, seconds) in list(self._lines.items())
        ]
        return sorted(rows, key=lambda row: -row["blocked_ms"])


@contextlib.contextmanager
def trace_syncs(array_class: type, names: Sequence[str] = _NAMES) -> Iterator[SyncTrace]:
    """A context in which each blocking call of an array class is counted with its source line.

    Args:
        array_class: ``mx.nd.NDArray``; its methods are restored at the end.
        names: the blocking methods.

    >>> class Array:
    ...     def asnumpy(self):
    ...         return 1
    >>> with trace_syncs(Array) as trace:
    ...     total = Array().asnumpy() + Array().asnumpy()
    >>> [(row["call"], row["calls"]) for row in trace.report()]
    [('asnumpy', 2)]
    """
    trace = SyncTrace()
    originals = {name: vars(array_class)[name] for name in names if name in vars(array_class)}
    for name, method in originals.items():
        setattr(array_class, name, trace.wrap(name, method))
    try:
        yield trace
    finally:
        for name, method in originals.items():
            setattr(array_class, name, method)


def _caller() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _INSIDE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
