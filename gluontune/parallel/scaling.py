"""A model of synchronous training on many devices, from the times of steps, exchange and loader.

**It is a model**: arithmetic on measured times, for machines without measurements. It omits contention of switches, of
memory and of host cores between devices, and faults. Pure functions, no mxnet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from gluontune.core.errors import UsageError

ALGORITHMS = ("ring", "parameter-server")


@dataclass(frozen=True)
class Link:
    """The connection between devices.

    Args:
        gb_per_sec: bandwidth of one device's connection, 1e9 bytes a second, in each direction.
        latency_us: of one message.
        overhead_ms: of one exchange of any size and number of devices (negotiation, Python).
        tensor_us: of each tensor in it.
    """

    gb_per_sec: float
    latency_us: float = 0.0
    overhead_ms: float = 0.0
    tensor_us: float = 0.0

    def __post_init__(self) -> None:
        if not (self.gb_per_sec > 0 and math.isfinite(self.gb_per_sec)):
            raise UsageError(f"bandwidth {self.gb_per_sec!r} GB/s: give a number above 0")
        if min(self.latency_us, self.overhead_ms, self.tensor_us) < 0:
            raise UsageError("latency_us, overhead_ms and tensor_us: give numbers of at least 0")


@dataclass(frozen=True)
class Parts:
    """Measurements of one device.

    Args:
        step_ms: of training steps without exchange or loading, one value or many: with many devices, each step waits
            for the slowest.
        gradient_bytes: of one exchange. tensors: in how many gradients.
        batch: samples of one device in a step.
        input_ms: of loading a batch in the training thread, without workers.
        loader_samples_per_sec: of one device's workers; None if they never limit.
        shared_loader_samples_per_sec: of one source shared by all devices (a file server), or None.
        hidden: share of the exchange during the backward pass (0: it begins afterwards, as here).
    """

    step_ms: Sequence[float]
    gradient_bytes: float
    batch: int
    tensors: int = 1
    input_ms: float = 0.0
    loader_samples_per_sec: Optional[float] = None
    shared_loader_samples_per_sec: Optional[float] = None
    hidden: float = 0.0

    def __post_init__(self) -> None:
        if not self.step_ms or min(self.step_ms) <= 0:
            raise UsageError("step_ms: give at least one time above 0")
        if self.gradient_bytes < 0 or self.batch < 1 or not 0 <= self.hidden <= 1:
            raise UsageError("gradient_bytes is at least 0, batch at least 1, hidden between 0 and 1")


def exchange_ms(
    gradient_bytes: float, devices: int, link: Link, algorithm: str = "ring", servers: int = 1, tensors: int = 1
) -> float:
    """Milliseconds of one exchange of gradients.

    Ring all-reduce: 2 (N - 1) messages in turn, each of 1/N of the bytes, so every link carries 2 (N - 1) / N of them.
    Parameter server: every worker sends and receives all bytes; a server's link carries those of all workers, divided
    by the number of servers.

    Source: Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms*, 2009; Li et al., *Scaling distributed
    machine learning with the parameter server*, 2014.

    >>> round(exchange_ms(100e6, 4, Link(10)), 3), round(exchange_ms(100e6, 4, Link(10), "parameter-server"), 3)
    (15.0, 80.0)
    >>> exchange_ms(100e6, 1, Link(10, overhead_ms=1))
    0.0
    """
    if algorithm not in ALGORITHMS:
        raise UsageError(f"algorithm {algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    if devices < 1 or servers < 1:
        raise UsageError(f"devices={devices}, servers={servers}: give at least 1")
    if devices == 1:
        return 0.0
    if algorithm == "ring":
        messages, carried = 2 * (devices - 1), 2 * (devices - 1) / devices * gradient_bytes
    else:
        messages, carried = 2, 2 * gradient_bytes * max(1.0, devices / servers)
    fixed = link.overhead_ms + 1e-3 * (messages * link.latency_us + tensors * link.tensor_us)
    return fixed + 1e-6 * carried / link.gb_per_sec


def slowest_ms(step_ms: Sequence[float], devices: int) -> float:
    """Expected time of the slowest of ``devices`` steps drawn from the measured ones."""
    ordered, n = sorted(step_ms), len(step_ms)
    return math.fsum(x * (((i + 1) / n) ** devices - (i / n) ** devices) for i, x in enumerate(ordered))


def expected(parts: Parts, devices: int, link: Link, algorithm: str = "ring", servers: int = 1) -> dict[str, Any]:
    """The model's prediction for ``devices`` devices at the same batch for each (weak scaling).

    Args:
        parts: step, gradients and loader as measured. devices: their number. link: the connection of each.
        algorithm: ``ring`` or ``parameter-server``. servers: of the latter.

    Returns:
        ``devices``, ``samples_per_sec``, ``efficiency`` (against as many times one device), ``step_ms``,
        ``exchange_ms``, ``exchange_share`` of the step, and ``bound_by``: ``compute``, ``stragglers``, ``exchange``
        or ``input``: the cause of the largest part of the lost time.

    >>> parts = Parts([100.0], 100e6, 64)
    >>> found = expected(parts, 8, Link(10))
    >>> round(found["efficiency"], 3), found["bound_by"]
    (0.851, 'exchange')
    >>> expected(Parts([100.0], 100e6, 64, shared_loader_samples_per_sec=1000), 8, Link(10))["bound_by"]
    'input'
    """
    alone = math.fsum(parts.step_ms) / len(parts.step_ms) + parts.input_ms
    slowest = slowest_ms(parts.step_ms, devices) + parts.input_ms
    exchange = exchange_ms(parts.gradient_bytes, devices, link, algorithm, servers, parts.tensors)
    shown = (1 - parts.hidden) * exchange
    step = slowest + shown
    local = parts.loader_samples_per_sec
    feeding = [1e3 * parts.batch / local] if local else []
    one = max([alone, *feeding])
    if parts.shared_loader_samples_per_sec:
        feeding.append(1e3 * parts.batch * devices / parts.shared_loader_samples_per_sec)
        one = max(one, 1e3 * parts.batch / parts.shared_loader_samples_per_sec)
    whole = max([step, *feeding])
    lost = {"exchange": shown, "stragglers": slowest - alone, "input": whole - step}
    worst = max(lost, key=lambda name: lost[name])
    return {
        "devices": devices, "samples_per_sec": 1e3 * parts.batch * devices / whole, "efficiency": one / whole,
        "step_ms": whole, "exchange_ms": exchange, "exchange_share": shown / whole,
        "bound_by": worst if lost[worst] > 0.02 * whole else "compute",
    }  # fmt: skip


def minimum_bandwidth(model_bytes: float, samples: float, batch: int, seconds_per_epoch: float) -> float:
    """Least bandwidth, GB/s, at which a second learner can speed up the training.

    In the time of one mini-batch a learner must send its gradient and receive the weights: twice the model's bytes.

    Args:
        model_bytes: of all parameters. samples: in an epoch. batch: of a learner. seconds_per_epoch: of one learner.

    Source: Zhang et al., *GaDei*, 2017, table 3 (deck 001, "Minimum bandwidth requirement for any speedup").

    >>> round(minimum_bandwidth(98.60e6, 500e3, 1, 4376.12), 2)
    22.53
    """
    per_batch = seconds_per_epoch * batch / samples
    return 2e-9 * model_bytes / per_batch
