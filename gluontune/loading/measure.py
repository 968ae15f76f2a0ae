"""Measurements of a loader: alone, beside a training step, and against the limits."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Union

import cv2
import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.loading.base import Loader
from gluontune.loading.loaders import build
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

    >>> worker_counts(8, 29), worker_counts(32, 29)
    ([0, 1, 2, 4, 8], [0, 1, 2, 4, 8, 16, 29, 32])
    """
    counts = {0, cores} | {1 << k for k in range(cores.bit_length()) if 1 << k <= cores}
    if 0 < rule <= 2 * cores:
        counts.add(rule)
    return sorted(c for c in counts if most is None or c <= most)


def decode_rate(payloads: Sequence[bytes], threads: int, seconds: float) -> tuple[int, float]:
    """Decode all pixels of encoded images repeatedly. Returns the decoded images and the seconds.

    >>> images, took = decode_rate([cv2.imencode(".png", np.zeros((8, 8, 3)))[1].tobytes()], 2, 0.01)
    >>> images > 0, took >= 0.01
    (True, True)
    """
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
        names = ["threaded"]
        if ResidentLoader.fits(self.split, self.shape, self.augment):
            # Crops of the original cannot be made from an image that was fitted to the crop's size.
            if "resized-crop" in self.augment:
                self.notes.append("'resident' left out: it would crop from images already shrunk to their final size")
            else:
                names.append("resident")
        else:
            self.notes.append("'resident' left out: the decoded images do not fit in half of the usable memory")
        return names

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
            known = self.step is not None
            points.append(
                Point(name, workers, prefetch, rate, wait if known else None, wait <= FED_WAIT_PCT if known else None)
            )
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
        found = [p for p in points if p.num_workers == workers and p.loader == "threaded" and p.prefetch is None]
        rate = found[0].samples_per_sec if found else None
        return {"text": "cpu_count() - 3", "num_workers": workers, "samples_per_sec": rate}

    def disk(self, path: Union[str, Path], mean_bytes: int) -> dict[str, Any]:
        self.say("the disk")
        result = measure_disk(path, mean_bytes, min(self.seconds, 0.5))
        result["sequential_samples_per_sec"] = result["sequential_mib_per_sec"] * 2**20 / max(1, mean_bytes)
        return result
