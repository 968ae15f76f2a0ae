"""Mixed precision for a network and its trainer: float16 on a GPU, bfloat16 on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gluontune.compute import process
from gluontune.compute.scaler import LossScaler
from gluontune.core.errors import UsageError
from gluontune.runtime import mxnet, uses_np

__all__ = ["MixedPrecision", "refuse_np", "to_mixed_precision"]

# An epsilon below the smallest float16 is zero there, and the layer divides by it.
SMALLEST_FLOAT16 = 2.0**-24
SAFE_EPSILON = 1e-5


@dataclass
class MixedPrecision:
    """How to run a step in the chosen format: ``inputs`` before the net, ``outputs`` before the loss.

    Args:
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        scaler: ``scaler.scale(loss)`` inside ``record()``, ``scaler.step(trainer, batch_size)`` after it.
        notes: what was changed beyond the cast, one sentence each.
    """

    dtype: str
    scaler: LossScaler
    notes: list[str] = field(default_factory=list)

    def scale(self, loss: Any) -> Any:
        """``scaler.scale``."""
        return self.scaler.scale(loss)

    def step(self, trainer: Any, batch_size: int, **options: Any) -> bool:
        """``scaler.step``: False if the step was skipped."""
        return self.scaler.step(trainer, batch_size, **options)

    def inputs(self, data: Any) -> Any:
        """Data as the network wants it. Integers (pixels for an ``InputStage``, indices) are left alone."""
        return _cast(data, "float32", "float16") if self.dtype == "float16" else data

    def outputs(self, out: Any) -> Any:
        """The network's output in float32, for a loss in float32. Labels need no cast at all."""
        return _cast(out, "float16", "float32") if self.dtype == "float16" else out


def to_mixed_precision(net: Any, trainer: Any, dtype: str) -> MixedPrecision:
    """Prepare ``net`` and ``trainer`` for training in ``dtype``, in place.

    float16 (GPU): the network is cast, BatchNorm stays in float32, the optimizer keeps a float32 copy
    of the weights (``multi_precision``), and the loss is scaled dynamically. bfloat16 (CPU): AMP casts
    inside the operators, so ``gt.compute.start_process("bfloat16", "cpu")`` must have come first;
    weights, gradients and updates stay float32 and need no scaling. float32 changes nothing.

    Args:
        net: a Gluon block, initialized.
        trainer: its ``gluon.Trainer``, before its first step.
        dtype: ``float32``, ``float16`` or ``bfloat16``.

    Raises:
        UsageError: a type that cannot run where the parameters are; a trainer that has already stepped
            or that updates on the kvstore; bfloat16 for a net of ``mx.np``, whose operators AMP does not cast.

    Example::

        precision = gt.compute.to_mixed_precision(net, trainer, "float16")
        with mx.autograd.record():
            loss = loss_fn(precision.outputs(net(precision.inputs(x))), y)
            scaled = precision.scaler.scale(loss)
        mx.autograd.backward(scaled)
        precision.scaler.step(trainer, batch_size)

    >>> from gluontune.runtime import mxnet
    >>> mx = mxnet()
    >>> net = mx.gluon.nn.Dense(2, in_units=3)
    >>> net.initialize()
    >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    >>> precision = to_mixed_precision(net, trainer, "float32")  # a CPU of any kind has this one
    >>> precision.dtype, precision.outputs(net(precision.inputs(mx.nd.ones((4, 3))))).shape
    ('float32', (4, 2))
    """
    if dtype not in ("float32", "float16", "bfloat16"):
        raise UsageError(f"dtype {dtype!r}: choose float32, float16 or bfloat16")
    if dtype == "float32":
        return MixedPrecision("float32", LossScaler(1.0, dynamic=False))
    devices = sorted({ctx.device_type for p in net.collect_params().values() for ctx in _contexts(p)})
    if dtype == "bfloat16":
        if "gpu" in devices:
            raise UsageError("dtype 'bfloat16': the net is on a GPU, where MXNet 1.9 has none; use float16")
        if process.started_dtype() != "bfloat16":
            raise UsageError(
                "dtype 'bfloat16' patches MXNet's operators before a net is built: call "
                "gt.compute.start_process('bfloat16', 'cpu') first in the process"
            )
        refuse_np(net)
        return MixedPrecision("bfloat16", LossScaler(1.0, dynamic=False))
    if devices != ["gpu"]:
        where = "a CPU" if devices else "no device yet: initialize it first"
        raise UsageError(
            f"dtype 'float16': the net is on {where}; MXNet computes float16 on a GPU only (CPU: bfloat16)"
        )
    return _to_float16(net, trainer)


def refuse_np(net: Any) -> None:
    """Raise a UsageError if ``net`` is one of ``mx.np`` in a process that was started for bfloat16.

    Args:
        net: a Gluon block.

    Raises:
        UsageError: it is such a net.

    >>> refuse_np(mxnet().gluon.nn.Dense(2))  # a net of mx.nd is welcome
    """
    if process.started_dtype() == "bfloat16" and uses_np(net):
        raise UsageError(
            "dtype 'bfloat16': MXNet's AMP casts operators of mx.nd only, and this net is one of mx.np (npx.set_np()): "
            "it would train in float32 under that name; use float32"
        )


def _to_float16(net: Any, trainer: Any) -> MixedPrecision:
    """The float16 part, which asks nothing about devices (casting and updating work on a CPU too)."""
    if trainer._kv_initialized or any(updater.states for updater in trainer._updaters):
        raise UsageError("this trainer has already stepped in float32: create a new one for float16")
    if trainer._kvstore_params.get("update_on_kvstore"):
        raise UsageError(
            "trainer with update_on_kvstore=True: float16 needs the gradients before they are applied, to look "
            "for overflows; create it with update_on_kvstore=False"
        )
    trainer._kvstore_params["update_on_kvstore"] = False
    trainer._optimizer.multi_precision = True
    net.cast("float16")
    return MixedPrecision("float16", LossScaler(), notes=_guard_epsilons(net))


def _guard_epsilons(net: Any) -> list[str]:
    from gluontune.compute._traversal import clear_caches, walk

    notes = []
    for path, block in walk(net):
        if isinstance(block, mxnet().gluon.nn.BatchNorm):
            continue  # computes in float32
        value = getattr(block, "_epsilon", None)
        if isinstance(value, float) and 0 < value < SMALLEST_FLOAT16:
            block._epsilon = SAFE_EPSILON
            where = path or type(block).__name__
            notes.append(f"{where}: epsilon {value:g} is zero in float16; now {SAFE_EPSILON:g}")
    if notes:
        clear_caches(net)
    return notes


def _contexts(parameter: Any) -> list[Any]:
    try:
        return list(parameter.list_ctx())
    except RuntimeError:  # not initialized
        return []


def _cast(value: Any, source: str, target: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cast(item, source, target) for item in value]
    return value.astype(target) if getattr(value, "dtype", None) == _numpy_type(source) else value


def _numpy_type(name: str) -> Any:
    import numpy as np

    return np.dtype(name)
