"""Predicted against measured throughput, over worker counts, batch sizes and loaders."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gluontune import monitor, runtime
from gluontune.recipe import Recipe
from gluontune.training.group import Group

__all__ = ["BAR_PCT", "measure"]

BAR_PCT = 15.0  # median error
_PROBE_S = 0.3
_ROUNDS = 5  # of parts and whole in turn
_NETS = {"cifar_resnet20_v1": ("pool-to-mean", "pad-channels"), "small_cnn": ()}
_BATCH = 64
_FITTED = (32, 64)
_ALONE = {"resident": 0, "gluon": 0, "threaded": 1}  # the loaders, each with one worker's work
_LOADERS = (("gluon", 0), ("gluon", 1), ("gluon", 2), ("threaded", 1), ("threaded", 2), ("resident", 0))
_BATCHES = (16, 128, 256)


def measure(dataset: str, seconds: float, say: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """Predict from parts that were measured alone, then train and compare.

    For each net: the net alone at two batch sizes, each loader alone with one worker, measured in turn with the
    training that they predict. From these come the throughputs of other worker counts and batch sizes. A loader for a
    simulated device of several speeds is predicted, too, in rows marked ``simulated``.

    Args:
        dataset: what is trained on. seconds: about how long each real training is measured.

    Returns:
        A row for each comparison: ``predicted_samples_per_sec``, ``measured_samples_per_sec``,
        ``error_pct``, ``bound_by``, ``simulated``.
    """
    rows = []
    for net, rewrites in _NETS.items():
        base = Recipe(
            dataset=dataset, net=net, runtime="tuned", hybridize="static", rewrites=rewrites,
            batch_size_per_device=_BATCH,
        )  # fmt: skip
        say(f"{net}: starting")
        with contextlib.ExitStack() as closing:
            alone = {
                loader: closing.enter_context(_paused(base.override(loader=loader, num_workers=workers)))
                for loader, workers in _ALONE.items()
            }
            cases = [(loader, workers, _BATCH) for loader, workers in _LOADERS]
            cases += [("resident", 0, batch) for batch in _BATCHES]
            for loader, workers, batch in cases:
                name = f"{net}, {loader}, {workers} worker{'' if workers == 1 else 's'}, batch {batch}"
                say(name)
                recipe = base.override(loader=loader, num_workers=workers, batch_size_per_device=batch)
                with _paused(recipe) as group:
                    rows.append({"name": name, **_compare(alone, group, seconds), "simulated": False})
    return rows + _simulated(seconds, say)


@contextlib.contextmanager
def _paused(recipe: Recipe) -> Iterator[Group]:
    """A paused training, after its warm-up."""
    with Group(recipe) as group:
        group.steps(4)
        group.pause()
        yield group


@contextlib.contextmanager
def _running(group: Group) -> Iterator[Group]:
    group.resume()
    yield group
    group.pause()


def _compare(alone: dict[str, Group], group: Group, seconds: float) -> dict[str, Any]:
    """Parts and whole, measured in turn, so that disturbances affect both; medians of the rounds."""
    recipe = group.recipe
    batch, loader = recipe.batch_size_per_device, recipe.loader
    guesses, rates, bounds = [], [], []
    for _ in range(_ROUNDS):
        with _running(alone["resident"]) as net:
            steps = net.training_alone(list(_FITTED), _PROBE_S)
        with _running(alone[loader]) as loading:
            worker = loading.loading_alone(_PROBE_S)["samples_per_sec"]
        step_ms = monitor.fit_step_time(_FITTED, [steps[str(size)]["step_time_ms"] for size in _FITTED])
        guess = monitor.expected_throughput(
            device_samples_per_sec=1e3 * batch / step_ms(batch),
            worker_samples_per_sec=worker,
            num_workers=recipe.num_workers,
            cores=runtime.usable_cores(),
            shares_cores=True,
        )
        with _running(group):
            seen = group.steps(2)
            seen = group.steps(max(2, round(seconds / _ROUNDS / (seen["seconds"] / 2))))
        guesses.append(guess["samples_per_sec"])
        rates.append(seen["samples"] / seen["seconds"])
        bounds.append(guess["bound_by"])
    return _row(guesses, rates, bounds)


def _row(guesses: list[float], rates: list[float], bounds: list[str]) -> dict[str, Any]:
    """A row with the medians of the rounds' errors and rates."""
    errors = [monitor.compare({"samples_per_sec": g}, r)["error_pct"] for g, r in zip(guesses, rates)]
    return {
        "predicted_samples_per_sec": statistics.median(guesses),
        "measured_samples_per_sec": statistics.median(rates),
        "error_pct": statistics.median(errors),
        "errors_pct": errors,
        "bound_by": statistics.mode(bounds),
    }


def _simulated(seconds: float, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A loader whose threads work without Python's lock, for a device that only takes time."""
    usual_ms = _load_ms()
    rows = []
    for workers in (0, 1, 2):
        for device_ms in (0.6 * usual_ms, 1.5 * usual_ms):
            name = f"simulated device of {device_ms:.1f} ms, {workers} loading thread{'' if workers == 1 else 's'}"
            say(name)
            guesses, rates, bounds = [], [], []
            for _ in range(_ROUNDS):
                guess = monitor.expected_throughput(
                    device_samples_per_sec=1e3 * _BATCH / device_ms,
                    worker_samples_per_sec=1e3 * _BATCH / _load_ms(),
                    num_workers=workers,
                    cores=runtime.usable_cores(),
                )
                guesses.append(guess["samples_per_sec"])
                rates.append(_feed(workers, device_ms, seconds / _ROUNDS))
                bounds.append(guess["bound_by"])
            rows.append({"name": name, **_row(guesses, rates, bounds), "simulated": True})
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
