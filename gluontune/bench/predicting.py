"""Predicted against measured throughput, over worker counts, batch sizes and loaders."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gluontune import monitor, runtime
from gluontune.recipe import Recipe
from gluontune.train import Group

__all__ = ["BAR_PCT", "measure"]

BAR_PCT = 15.0  # median error
_PROBE_S = 0.8
_NETS = {"cifar_resnet20_v1": ("pool-to-mean", "pad-channels"), "small_cnn": ()}
_BATCH = 64
_FITTED = (32, 64)
_LOADERS = (("gluon", 0), ("gluon", 1), ("gluon", 2), ("threaded", 1), ("threaded", 2), ("resident", 0))
_BATCHES = (16, 128, 256)


def measure(
    dataset: str, seconds: float, say: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """Predict from parts that were measured alone, then train and compare.

    For each net: the net alone at two batch sizes, each loader alone with one worker. From these come the
    throughputs of other worker counts and batch sizes. A loader for a simulated device of several
    speeds is predicted as well; its rows say so.

    Args:
        dataset: what is trained on. seconds: about how long each real training is measured.

    Returns:
        A row for each comparison: ``predicted_samples_per_sec``, ``measured_samples_per_sec``,
        ``error_pct``, ``bound_by``, ``simulated``.
    """
    rows = []
    cores = runtime.usable_cores()
    for net, rewrites in _NETS.items():
        base = Recipe(
            dataset=dataset, net=net, runtime="tuned", hybridize="static", rewrites=rewrites,
            batch_size_per_device=_BATCH,
        )  # fmt: skip
        say(f"{net}: its parts alone")
        alone = _parts(base)
        step_ms = monitor.fit_step_time(_FITTED, [alone["step_time_ms"][size] for size in _FITTED])
        cases = [(loader, workers, _BATCH) for loader, workers in _LOADERS]
        cases += [("resident", 0, batch) for batch in _BATCHES]
        for loader, workers, batch in cases:
            guess = monitor.expected_throughput(
                device_samples_per_sec=1e3 * batch / step_ms(batch),
                worker_samples_per_sec=alone["worker_samples_per_sec"][loader],
                num_workers=workers,
                cores=cores,
                shares_cores=True,
            )
            name = f"{net}, {loader}, {workers} worker{'' if workers == 1 else 's'}, batch {batch}"
            say(f"{name}: predicted {guess['samples_per_sec']:,.0f} samples/s")
            recipe = base.override(loader=loader, num_workers=workers, batch_size_per_device=batch)
            found = monitor.compare(guess, _train(recipe, seconds))
            rows.append({"name": name, **found, "bound_by": guess["bound_by"], "simulated": False})
    return rows + _simulated(seconds, say)


def _parts(base: Recipe) -> dict[str, Any]:
    """The net alone at two batch sizes, and each loader with one worker."""
    found: dict[str, Any] = {"step_time_ms": {}, "worker_samples_per_sec": {}}
    for loader, workers in (("resident", 0), ("gluon", 0), ("threaded", 1)):
        with Group(base.override(loader=loader, num_workers=workers), die_with_parent=True) as group:
            alone = group.loading_alone(_PROBE_S)
            found["worker_samples_per_sec"][loader] = alone["samples_per_sec"]
            if loader == "resident":
                steps = group.training_alone(list(_FITTED), _PROBE_S)
                found["step_time_ms"] = {int(size): step["step_time_ms"] for size, step in steps.items()}
    return found


def _train(recipe: Recipe, seconds: float) -> float:
    """Samples a second of a real training, median of slices."""
    with Group(recipe, die_with_parent=True) as group:
        group.steps(4)
        seen = group.steps(4)
        count = max(2, round(seconds / 5 / (seen["seconds"] / 4)))
        slices = [group.steps(count) for _ in range(5)]
    return statistics.median(s["samples"] / s["seconds"] for s in slices)


def _simulated(seconds: float, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Real work of worker threads, which leaves Python's lock free, for a device that only takes time."""
    worker_ms = _load_ms()
    rows = []
    for workers in (0, 1, 2):
        for device_ms in (0.6 * worker_ms, 1.5 * worker_ms):
            guess = monitor.expected_throughput(
                device_samples_per_sec=1e3 * _BATCH / device_ms,
                worker_samples_per_sec=1e3 * _BATCH / worker_ms,
                num_workers=workers,
                cores=runtime.usable_cores(),
            )
            name = f"simulated device of {device_ms:.1f} ms, {workers} loading thread{'' if workers == 1 else 's'}"
            say(f"{name}: predicted {guess['samples_per_sec']:,.0f} samples/s")
            found = monitor.compare(guess, _feed(workers, device_ms, min(seconds, 2.0)))
            rows.append({"name": name, **found, "bound_by": guess["bound_by"], "simulated": True})
    return rows


_PIXELS = np.random.default_rng(0).integers(0, 255, (_BATCH, 64, 64, 3), dtype=np.uint8)


def _load() -> Any:
    """The preparation of one batch: real arithmetic in numpy."""
    return ((_PIXELS[:, :, ::-1].astype(np.float32) - 127.5) / 63.0).transpose(0, 3, 1, 2).copy()


def _load_ms() -> float:
    times = []
    for _ in range(30):
        start = time.perf_counter()
        _load()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[5:])


def _feed(workers: int, device_ms: float, seconds: float) -> float:
    device = monitor.SimulatedDevice(device_ms, queue_depth=1)
    done, start = 0, time.perf_counter()
    for batch in _loaded(workers):
        device.submit(batch)
        if workers == 0:
            device.sync()  # without workers, loading and training take turns
        done += 1
        if time.perf_counter() - start > seconds:
            break
    device.sync()
    return _BATCH * done / (time.perf_counter() - start)


def _loaded(workers: int) -> Iterator[Any]:
    if workers == 0:
        while True:
            yield _load()
    with ThreadPoolExecutor(workers) as pool:
        ahead = [pool.submit(_load) for _ in range(2 * workers)]
        try:
            while True:
                ahead.append(pool.submit(_load))
                yield ahead.pop(0).result()
        finally:
            for future in ahead:
                future.cancel()
