"""Sizing: measure loaders, workers and prefetch here, and choose the smallest that keeps the device fed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gluontune.codec.native import decoder_name
from gluontune.core.errors import UsageError
from gluontune.loading.base import check_shape
from gluontune.loading.loaders import LOADERS, open_source
from gluontune.loading.measure import NEAR_BEST, Bench, Point, Progress, Step


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
    """The smallest point that feeds the step, else the fastest, and a sentence with the reason.

    >>> slow, fast = Point("threaded", 0, None, 90.0, 50.0, False), Point("threaded", 2, None, 200.0, 1.0, True)
    >>> choose([slow, fast], 200.0)[0].num_workers
    2
    """
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
