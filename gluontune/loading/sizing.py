"""Sizing: measure loaders, workers and prefetch here, and choose the smallest that keeps the device fed."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable, Union

import cv2
import numpy as np

from gluontune.codec.native import decoder_name
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.loading.base import Loader, check_shape
from gluontune.loading.loaders import LOADERS, build, open_source
from gluontune.loading.resident import ResidentLoader
from gluontune.runtime.cpu import Cpu
from gluontune.runtime.disk import measure_disk

FED_WAIT_PCT = 2.0  # a trainer with less waiting for data is fed
NEAR_BEST = 0.95  # as good as the best, within the precision of a measurement
PREFETCHES = (1, 2, 4)
ROUNDS = 3  # of interleaved measuring

Progress = Callable[[str], None]
Step = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Point:
    """One measured configuration. ``wait_pct``: share of the trainer's time spent waiting for data."""

    loader: str
    num_workers: int
    prefetch: int | None
    samples_per_sec: float
    wait_pct: float | None
    fed: bool | None


def deck_rule(cpu_count: int | None = None) -> int:
    """The decks' rule of thumb, ``cpu_count() - 3`` workers; at least 0.

    >>> deck_rule(32), deck_rule(2)
    (29, 0)
    """
    return max(0, (cpu_count or os.cpu_count() or 1) - 3)


def worker_counts(cores: int, rule: int, most: int | None = None) -> list[int]:
    """Counts to measure: none, powers of two up to the usable cores, the cores, and the decks' rule.

    The rule is dropped if it exceeds twice the usable cores: it counts the cores of the machine, not of the container.
    """
    counts = {0, cores} | {1 << k for k in range(cores.bit_length()) if 1 << k <= cores}
    if 0 < rule <= 2 * cores:
        counts.add(rule)
    return sorted(c for c in counts if most is None or c <= most)


def decode_rate(payloads: Sequence[bytes], threads: int, seconds: float) -> tuple[int, float]:
    """Decode all pixels of encoded images repeatedly. Returns the decoded images and the seconds."""
    begin = time.perf_counter()
    end, done = begin + seconds, [0] * threads

    def work(k: int) -> None:
        mine = [np.frombuffer(payload, np.uint8) for payload in payloads[k::threads] or payloads]
        for payload in itertools.cycle(mine):
            cv2.imdecode(payload, cv2.IMREAD_COLOR)
            done[k] += 1
            if time.perf_counter() >= end:  # one at least, however late the thread began
                return

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return sum(done), time.perf_counter() - begin


class Bench:
    """The data, the step, and the measurement of points."""

    def __init__(
        self, split: Any, shape: tuple[int, int, int], batch_size: int, augment: str, seconds: float,
        progress: Progress | None,
    ):  # fmt: skip
        self.split, self.shape, self.batch_size, self.augment = split, shape, batch_size, augment
        self.seconds, self.say = seconds, progress or (lambda line: None)
        self.cores = Cpu().usable_cores()
        self.step: Step | None = None
        self.step_seconds: float | None = None
        self.notes: list[str] = []

    @property
    def needed(self) -> float | None:
        """Images a second that the step can process."""
        return None if self.step_seconds is None else self.batch_size / self.step_seconds

    def set_step(self, step: Step | None, step_time_ms: float | None) -> None:
        if step is not None:
            self.say("the training step alone")
            self.step, self.step_seconds = step, self._time_alone(step)
        elif step_time_ms is not None:
            pause = self.step_seconds = step_time_ms / 1e3
            self.step = lambda images, labels: time.sleep(pause)

    def _time_alone(self, step: Step) -> float:
        with self.build("threaded", 0, None) as loader:
            images, labels = next(loader.epoch(0))
            for _ in range(3):
                step(images, labels)
            times: list[float] = []
            end = time.perf_counter() + self.seconds
            while len(times) < 5 or time.perf_counter() < end:
                begin = time.perf_counter()
                step(images, labels)
                times.append(time.perf_counter() - begin)
        return float(np.median(times))

    def build(self, name: str, workers: int, prefetch: int | None) -> Loader:
        return build(
            name, self.split, batch_size=self.batch_size, image_shape=self.shape, augment=self.augment, shuffle=True,
            num_workers=workers, prefetch=prefetch,
        )  # fmt: skip

    def default_loaders(self) -> list[str]:
        if not ResidentLoader.fits(self.split, self.shape, self.augment):
            self.notes.append("'resident' left out: the decoded images do not fit in half of the usable memory")
        elif "resized-crop" in self.augment:
            self.notes.append("'resident' left out: it would crop from images already shrunk to their final size")
        else:
            return ["threaded", "resident"]
        return ["threaded"]

    def curve(self, names: list[str], most: int | None) -> list[Point]:
        wanted: list[tuple[str, int, int | None]] = []
        for name in names:
            counts = [0] if name == "resident" else worker_counts(self.cores, deck_rule(), most)
            wanted += [(name, count, None) for count in counts]
        return self.measure(wanted)

    def tune_prefetch(self, choice: Point, points: list[Point]) -> tuple[Point, list[Point]]:
        """The smallest prefetch that is as good as the loader's choice."""
        tried = self.measure([(choice.loader, choice.num_workers, p) for p in PREFETCHES])
        good = [
            p for p in tried if p.fed or (not choice.fed and p.samples_per_sec >= NEAR_BEST * choice.samples_per_sec)
        ]
        return (good[0] if good else choice), points + tried

    def measure(self, wanted: list[tuple[str, int, int | None]]) -> list[Point]:
        """Medians of interleaved rounds, so that a disturbance hits all points alike."""
        rates: dict[int, list[tuple[float, float]]] = {k: [] for k in range(len(wanted))}
        with contextlib.ExitStack() as stack:
            loaders = [stack.enter_context(self.build(*point)) for point in wanted]
            for turn in range(ROUNDS):
                for k, (name, workers, prefetch) in enumerate(wanted):
                    ahead = "" if prefetch is None else f", prefetch {prefetch}"
                    self.say(f"{name}, {workers} workers{ahead} (round {turn + 1} of {ROUNDS})")
                    rates[k].append(self._drive(loaders[k]))
        points = []
        for k, (name, workers, prefetch) in enumerate(wanted):
            rate, wait = (float(v) for v in np.median(rates[k], axis=0))
            waits = (None, None) if self.step is None else (wait, wait <= FED_WAIT_PCT)
            points.append(Point(name, workers, prefetch, rate, *waits))
        return points

    def _drive(self, loader: Loader) -> tuple[float, float]:
        """Images a second, and the share of time spent waiting for them."""
        step, waited, images_done, epoch = self.step, 0.0, 0, 0
        begin: float | None = None
        while True:
            batches = loader.epoch(epoch)
            epoch += 1
            while True:
                asked = time.perf_counter()
                item = next(batches, None)
                now = time.perf_counter()
                if item is None:
                    break
                if step is not None:
                    step(*item)
                if begin is None:  # the first batch includes the start of threads
                    begin = time.perf_counter()
                    continue
                waited += now - asked
                images_done += len(item[1])
                took = time.perf_counter() - begin
                if took >= self.seconds / ROUNDS and images_done >= 3 * self.batch_size:
                    batches.close()  # type: ignore[attr-defined]
                    return images_done / took, 100.0 * waited / took
            if begin is not None and images_done == 0 and epoch > 3:
                raise GluontuneError("the data set gives less than two batches: use a smaller batch_size")

    def mean_bytes(self) -> int:
        sample = np.linspace(0, len(self.split) - 1, min(64, len(self.split))).astype(int)
        return int(np.mean([len(self.split.read(int(i))) for i in sample]))

    def decode_limit(self) -> float:
        """Images a second of decoding alone, of payloads in memory, on all usable cores."""
        self.say("decoding alone, on all cores")
        count = min(len(self.split), 256)
        payloads = [bytes(self.split.read(i)) for i in range(count)]
        images, seconds = decode_rate(payloads, self.cores, self.seconds)
        return images / seconds

    def rule(self, points: list[Point]) -> dict[str, Any]:
        workers = deck_rule()
        found = (p for p in points if p.num_workers == workers and p.loader == "threaded" and p.prefetch is None)
        rate = next((p.samples_per_sec for p in found), None)
        return {"text": "cpu_count() - 3", "num_workers": workers, "samples_per_sec": rate}

    def disk(self, path: Union[str, Path], mean_bytes: int) -> dict[str, Any]:
        self.say("the disk")
        result = measure_disk(path, mean_bytes, min(self.seconds, 0.5))
        result["sequential_samples_per_sec"] = result["sequential_mib_per_sec"] * 2**20 / max(1, mean_bytes)
        return result


@dataclass
class SizeReport:
    """The result of :func:`size`; ``to_dict()`` is the output of ``gluontune size --json``.

    Args:
        choice: the chosen loader and workers, with their figures. reason: of the choice, in a sentence.
        points: all measurements.
        needed_samples_per_sec: of the step. step_time_ms: of a step, or None.
        usable_cores: of this machine. rule: the deck's rule beside it (workers, samples a second).
        decode_samples_per_sec: of one thread. decoder: its name. mean_bytes: of an encoded sample.
        disk: the disk's figures, or None. notes: remarks, one sentence each.
    """

    choice: Point
    reason: str
    points: list[Point]
    needed_samples_per_sec: float | None
    step_time_ms: float | None
    usable_cores: int
    rule: dict[str, Any]
    decode_samples_per_sec: float
    decoder: str
    mean_bytes: int
    disk: dict[str, Any] | None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def size(
    source: Any,
    *,
    image_shape: Sequence[int] = (224, 224, 3),
    batch_size: int = 64,
    augment: str = "random-resized-crop-flip",
    step_time_ms: float | None = None,
    step: Step | None = None,
    loaders: Sequence[str] | None = None,
    max_workers: int | None = None,
    seconds: float = 1.0,
    disk: bool = True,
    progress: Progress | None = None,
) -> SizeReport:
    """Measure loaders, worker counts and prefetch, and choose the smallest that keeps a training step fed.

    Args:
        source: a ``.rec`` file, the name of a data set (its training part is measured), or a split.
        image_shape, batch_size, augment: as in ``gt.loading.build``.
        step_time_ms: time of one training step on a device that leaves the host's cores free; the loader runs beside a
            sleep of that length.
        step: or a real step, ``step(images, labels)``, which must wait for its result. It competes with the loader for
            the cores, as in training.
        loaders: names to measure; None: ``threaded``, and ``resident`` if the data fit.
        max_workers: the largest number to measure.
        seconds: for each point, in three interleaved rounds.
        disk: also measure the disk of a ``.rec`` file.
        progress: called with a line before each measurement.

    Returns:
        the choice, its reason, every measured point, the decks' rule, and the limits: decoding alone on all usable
        cores, and the disk. Without a step the choice is the smallest that reaches 95 % of the fastest.

    Raises:
        UsageError: names or numbers that cannot work. GluontuneError: the data cannot be read.

    >>> report = size("sample", image_shape=(28, 28, 1), augment="flip", max_workers=0, seconds=0.06)
    >>> report.choice.num_workers, sorted({point.loader for point in report.points})
    (0, ['resident', 'threaded'])
    """
    for name in loaders or ():
        LOADERS[name]
    if step_time_ms is not None and step_time_ms <= 0:
        raise UsageError(f"step_time_ms={step_time_ms}: give a time above 0")
    if seconds <= 0:
        raise UsageError(f"seconds={seconds}: give a time above 0")
    split = open_source(source)
    bench = Bench(split, check_shape(image_shape), min(batch_size, len(split)), augment, seconds, progress)
    bench.set_step(step, step_time_ms)
    points = bench.curve(list(loaders or bench.default_loaders()), max_workers)
    choice, reason = choose(points, bench.needed)
    if choice.num_workers > 0:
        choice, points = bench.tune_prefetch(choice, points)
    path = getattr(split, "rec_path", None)
    mean_bytes = bench.mean_bytes()
    return SizeReport(
        choice=choice, reason=reason, points=points, needed_samples_per_sec=bench.needed,
        step_time_ms=None if bench.step_seconds is None else bench.step_seconds * 1e3, usable_cores=bench.cores,
        rule=bench.rule(points), decode_samples_per_sec=bench.decode_limit(), decoder=decoder_name(),
        mean_bytes=mean_bytes, disk=bench.disk(path, mean_bytes) if disk and path is not None else None,
        notes=bench.notes,
    )  # fmt: skip


def choose(points: Sequence[Point], needed: float | None) -> tuple[Point, str]:
    """The smallest point that feeds the step, else the fastest, and a sentence with the reason."""
    best = max(points, key=lambda p: p.samples_per_sec)
    if needed is None:
        near = [p for p in points if p.samples_per_sec >= NEAR_BEST * best.samples_per_sec]
        least = min(near, key=_cost)
        return least, (
            f"the least that reaches {NEAR_BEST:.0%} of the fastest point, {best.samples_per_sec:,.0f} images/s; "
            "give the step time of your model to choose less"
        )
    fed = [p for p in points if p.fed]
    if fed:
        return min(fed, key=_cost), f"the least that keeps a step fed that takes {needed:,.0f} images/s"
    return best, (
        f"nothing measured keeps the step fed, which could take {needed:,.0f} images/s: loading limits this job "
        f"to {best.samples_per_sec:,.0f}; use smaller images (gluontune pack --resize) or more cores"
    )


def _cost(point: Point) -> tuple[int, int]:
    """Workers first; at equal workers, the loader without memory for all images."""
    return point.num_workers, 1 if "memory" in LOADERS[point.loader].needs else 0
