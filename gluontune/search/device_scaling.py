"""Measures the scaling model's inputs and predicts the throughput of more devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from gluontune import runtime
from gluontune.core.errors import UsageError
from gluontune.parallel.scaling import ALGORITHMS, Link, Parts, expected, minimum_bandwidth
from gluontune.recipe import Recipe
from gluontune.training.group import Group

SCHEMA = 1
DEVICES = (8, 64, 512)
BANDWIDTHS = (1.25, 12.5, 50.0)  # GB/s: 10, 100 and 400 Gbit/s

_WINDOWS = 12  # of steps; their times stand for those of the devices
_WINDOW_S = 0.25
_NOTE = (
    "This is a model, not a measurement: step, input and exchange times measured here, carried over to machines "
    "that nobody has measured. Contention of switches and of host cores, and faults, are not in it."
)


def scale(
    recipe: Recipe,
    *,
    devices: Sequence[int] = DEVICES,
    bandwidths: Sequence[float] = BANDWIDTHS,
    latency_us: float = 20.0,
    overhead_ms: float = 0.5,
    servers: int | None = None,
    hidden: float = 0.0,
    shared_loader: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    time_limit: float = 600.0,
) -> dict[str, Any]:
    """Measure one device with ``recipe``, and predict the throughput of many by the scaling model.

    Args:
        recipe: of each device; its batch stays (weak scaling).
        devices: numbers of devices. bandwidths: GB/s of each device's connection, one direction.
        latency_us: of a message. overhead_ms: of an exchange. servers: of the parameter server; None: one for each
            device, as in clusters. hidden: share of the exchange that overlaps the backward pass.
        shared_loader: samples a second of a common source (file server) of all devices; None: no limit.
        say: called with a line of progress. time_limit: seconds of silence after which a run counts as hung.

    Returns:
        ``{"note", "parts", "minimum_bandwidth_gb_per_sec", "rows": [{"algorithm", "gb_per_sec", …}]}``, rows as from
        :func:`gluontune.parallel.scaling.expected`.

    Raises:
        UsageError: an impossible number. GluontuneError (RunFailed): the recipe does not train.
    """
    if min(devices, default=1) < 1:
        raise UsageError(f"devices={min(devices)}: give whole numbers of at least 1")
    links = {speed: Link(speed, latency_us, overhead_ms) for speed in bandwidths}
    alone = recipe.override(engine="local", num_devices=1, exchange_every=1, compression="none")
    say("measuring a step, the loader and the gradients of one device")
    with Group(alone, time_limit=time_limit) as group:
        parts = measure_parts(group, hidden=hidden, shared_loader=shared_loader)
    step = math.fsum(parts.step_ms) / len(parts.step_ms)
    rows = []
    for algorithm, (speed, link), count in itertools.product(ALGORITHMS, links.items(), devices):
        asked = (servers or count) if algorithm == "parameter-server" else None
        found = expected(parts, count, link, algorithm, servers or count)
        rows.append({"algorithm": algorithm, "gb_per_sec": speed, "servers": asked, **found})
    shown = {name: value for name, value in vars(parts).items() if name not in ("step_ms", "hidden")}
    return {
        "schema_version": SCHEMA, "kind": "scale", "note": _NOTE, "recipe": alone.to_dict(),
        "machine": runtime.machine_facts(),
        "given": {"latency_us": latency_us, "overhead_ms": overhead_ms, "hidden": hidden},
        "parts": {"step_ms": step, "slowest_step_ms": max(parts.step_ms), **shown},
        "minimum_bandwidth_gb_per_sec": minimum_bandwidth(parts.gradient_bytes, parts.batch, parts.batch, 1e-3 * step),
        "rows": rows,
    }  # fmt: skip


def measure_parts(group: Group, hidden: float = 0.0, shared_loader: float | None = None) -> Parts:
    """Step and input times and the gradients of rank 0 of a started group."""
    size = int(group.ready[0]["samples_per_step"])
    held = group.gradients()
    loading = group.loading_alone(_WINDOW_S * 4)
    first = group.training_alone([size], _WINDOW_S)[str(size)]
    times = [
        group.training_alone([size], max(_WINDOW_S, 3e-3 * first["step_time_ms"]))[str(size)]["step_time_ms"]
        for _ in range(_WINDOWS)
    ]
    rate, inline = float(loading["samples_per_sec"]), group.recipe.num_workers == 0
    return Parts(
        step_ms=times, gradient_bytes=held["bytes"], tensors=held["tensors"], batch=size,
        input_ms=1e3 * size / rate if inline else 0.0, loader_samples_per_sec=None if inline else rate,
        shared_loader_samples_per_sec=shared_loader, hidden=hidden,
    )  # fmt: skip
