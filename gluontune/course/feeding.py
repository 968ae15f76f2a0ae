"""A loader that feeds a simulated device: starvation, and its cure, where there is no GPU."""

from __future__ import annotations

import time
from typing import Any

from gluontune import loading, runtime
from gluontune.core import stats
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.monitor import Monitor, SimulatedDevice
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult

__all__ = ["feed", "loading_rate"]

_WINDOWS = 12


def feed(recipe: Recipe, dataset: Any, *, ms_per_batch: float, seconds: float = 3.0) -> RunResult:
    """Feed a simulated device from a loader for some seconds, and say how busy it was.

    The device takes ``ms_per_batch`` for each batch and leaves the cores to the loader, as a GPU does. It
    computes nothing, so the result has no accuracy; a note in it says that the device was simulated.

    Args:
        recipe: its loader, ``num_workers``, ``prefetch``, ``batch_size_per_device``, ``augment`` and ``seed`` are used.
        dataset: of ``gt.datasets.open``.
        ms_per_batch: milliseconds of the device for a batch.
        seconds: of feeding, after the first batches.

    Returns:
        A RunResult: ``samples_per_sec``, ``phases_pct`` (``data``: the loop waited for the loader; ``device``:
        it waited for the device), ``utilization`` and ``steadiness`` of the device.
    """
    if seconds <= 0:
        raise UsageError(f"feed(seconds={seconds}): give a time above 0")
    batch = recipe.batch_size_per_device
    device = SimulatedDevice(ms_per_batch, queue_depth=2)
    result = RunResult(recipe=recipe.to_dict(), machine=runtime.machine_facts())
    with _open(recipe, dataset) as loader:
        batches = _endless(loader)
        started = time.perf_counter()
        for _ in range(3):  # workers start, buffers are made
            next(batches)
        result.warmup_seconds = time.perf_counter() - started
        period = max(0.02, seconds / 60)
        waited = 0.0
        with Monitor(period_s=period, devices=[device]) as watch, watch.mark("train"):
            begin = mark = time.perf_counter()
            rates, trained = [], 0
            while (now := time.perf_counter()) - begin < seconds:
                if now - mark >= seconds / _WINDOWS and trained:
                    rates.append(trained * batch / (now - mark))
                    mark, trained = now, 0
                asked = time.perf_counter()
                next(batches)
                waited += time.perf_counter() - asked
                device.submit()
                trained += 1
            elapsed = time.perf_counter() - begin
        batches.close()
    result.steps = device.batches
    result.samples_per_sec = stats.interval(rates or [device.batches * batch / elapsed])
    result.phases_pct = {"data": 100 * waited / elapsed, "device": 100 * (1 - waited / elapsed)}
    result.utilization = watch.series(600)
    result.steadiness = watch.steadiness("train")
    result.peak_rss_mib = watch.peak_rss_mib
    result.notes.append(
        f"the device is simulated: {ms_per_batch:.3g} ms for each batch of {batch}, nothing is computed"
    )
    return result


def loading_rate(recipe: Recipe, dataset: Any, *, seconds: float = 1.0) -> float:
    """Images a second that the recipe's loader gives to a loop that does nothing else."""
    with _open(recipe, dataset) as loader:
        batches = _endless(loader)
        for _ in range(3):
            next(batches)
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            next(batches)
            count += 1
        rate = count * recipe.batch_size_per_device / (time.perf_counter() - begin)
        batches.close()
    return rate


def _open(recipe: Recipe, dataset: Any) -> Any:
    if dataset.image_shape is None:
        raise GluontuneError(f"{dataset.name}: its images differ in size; give a data set of one image size")
    return loading.build(
        recipe.loader,
        dataset.train,
        batch_size=recipe.batch_size_per_device,
        image_shape=dataset.image_shape,
        augment=recipe.augment or dataset.augment,
        shuffle=True,
        seed=recipe.seed,
        num_workers=recipe.num_workers,
        prefetch=recipe.prefetch,
        mean=dataset.mean,
        std=dataset.std,
    )


def _endless(loader: Any) -> Any:
    number = 0
    while True:
        for batch in loader.epoch(number):
            batch[0].wait_to_read() if hasattr(batch[0], "wait_to_read") else None
            yield batch
        number += 1
