"""Mixed precision for a network and its trainer: float16 on a GPU, bfloat16 on a CPU.

Loss scaling for float16: small gradients are scaled up, overflows skip a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gluontune.compute import process
from gluontune.compute._traversal import clear_caches, walk
from gluontune.core.arrays import mapped
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import as_nd_array, mxnet, uses_np


class LossScaler:
    """Dynamic loss scaling around a ``gluon.Trainer``, or a scale of one that changes nothing.

    The loss is multiplied by ``scale_value``; ``step`` divides the gradients inside the optimizer (in float32, through
    ``rescale_grad``), so that clipping acts on true gradients. A gradient that is not finite skips the step and
    halves the scale; ``growth_steps`` good steps in a row double it.

    Args:
        init_scale: first scale; 1 with ``dynamic=False`` for formats that need none.
        factor: by which the scale grows and shrinks.
        growth_steps: good steps in a row before it grows.
        dynamic: whether the gradients are inspected (one synchronization a step).
        patience: skipped steps in a row, at the smallest scale, that count as divergence.

    Source: Micikevicius et al., *Mixed Precision Training*, ICLR 2018.

    >>> LossScaler(init_scale=8.0).scale(3.0)
    24.0
    """

    max_scale = 2.0**24

    def __init__(
        self, init_scale: float = 2.0**16, *, factor: float = 2.0, growth_steps: int = 2000,
        dynamic: bool = True, patience: int = 10,
    ):  # fmt: skip
        if not init_scale >= 1 or not factor > 1 or growth_steps < 1:
            raise UsageError(
                f"loss scaler init_scale={init_scale}, factor={factor}, growth_steps={growth_steps}: "
                "give a scale of at least 1, a factor above 1 and at least one step"
            )
        self.scale_value = float(init_scale)
        self.factor, self.growth_steps, self.dynamic, self.patience = factor, growth_steps, dynamic, patience
        self.skipped_steps = self._good_steps = self._bad_steps = 0

    def scale(self, loss: Any) -> Any:
        """The loss (or each of a list of losses) times the scale; call it inside ``autograd.record()``."""
        if self.scale_value == 1.0:
            return loss
        if isinstance(loss, (list, tuple)):
            return [part * self.scale_value for part in loss]
        return loss * self.scale_value

    def step(
        self, trainer: Any, batch_size: int, *, clip_global_norm: float | None = None, ignore_stale_grad: bool = False
    ) -> bool:
        """``trainer.step(batch_size)`` with the scale taken out of the gradients.

        Args:
            trainer: a ``gluon.Trainer`` or a subclass (Horovod's). For several devices it must not update on the
                kvstore, because overflows are looked for between reducing and updating.
            batch_size: divides the gradient, as for ``Trainer.step``.
            clip_global_norm: largest norm of the whole true gradient (scale and batch size taken out); None is the
                ``clip_norm`` of a trainer of ``gt.optim.setup``.
            ignore_stale_grad: as for ``Trainer.step``.

        Returns:
            False if the step was skipped because a gradient was not finite.

        Raises:
            GluontuneError: ``patience`` steps in a row were not finite although the scale is 1.
        """
        if clip_global_norm is None:
            clip_global_norm = getattr(trainer, "clip_norm", None)
        if not self.dynamic and self.scale_value == 1.0 and clip_global_norm is None:
            trainer.step(batch_size, ignore_stale_grad=ignore_stale_grad)
            return True
        _reduce(trainer)
        grads = _gradients(trainer)
        scale = self.scale_value
        if not self.judge(not self.dynamic or all(_finite(per_device) for per_device in grads)):
            return False
        original = trainer._scale
        shrink = 1.0
        if clip_global_norm is not None and grads:
            norm = _norm(grads[0]) * original / (batch_size * scale)
            shrink = min(1.0, clip_global_norm / norm) if norm > 0 else 1.0
        try:
            trainer._scale = original * shrink / scale
            trainer.update(batch_size, ignore_stale_grad=ignore_stale_grad)
        finally:
            trainer._scale = original
        return True

    def judge(self, finite: bool) -> bool:
        """Adapt the scale to gradients that are finite, or not; returns ``finite``: whether the step is taken."""
        self._good_steps = self._good_steps + 1 if finite else 0
        if finite:
            self._bad_steps = 0
            if self.dynamic and self._good_steps >= self.growth_steps:
                self.scale_value = min(self.scale_value * self.factor, self.max_scale)
                self._good_steps = 0
            return True
        self.skipped_steps += 1
        self._bad_steps = self._bad_steps + 1 if self.scale_value == 1.0 else 0
        self.scale_value = max(1.0, self.scale_value / self.factor)
        if self._bad_steps >= self.patience:
            raise GluontuneError(
                f"the gradients were not finite in {self._bad_steps} steps in a row although the loss scale is 1: "
                "training has diverged; lower the learning rate"
            )
        return False

    def told(self) -> str:
        """The skipped steps and the scale, in words."""
        return f"float16: {self.skipped_steps} steps skipped for an overflow; loss scale {self.scale_value:g}"

    def state_dict(self) -> dict[str, float]:
        """The state for a checkpoint."""
        return {"scale_value": self.scale_value, "good_steps": self._good_steps, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from a :meth:`state_dict`."""
        self.scale_value = float(state["scale_value"])
        self._good_steps, self.skipped_steps = int(state["good_steps"]), int(state["skipped_steps"])


def _reduce(trainer: Any) -> None:
    try:
        trainer.allreduce_grads()
    except AssertionError:
        raise UsageError(
            "the loss scaler needs the gradients before they are applied: create the trainer with "
            "update_on_kvstore=False"
        ) from None


def _gradients(trainer: Any) -> list[list[Any]]:
    lists = [as_nd_array(p.list_grad()) for p in trainer._params if p.grad_req != "null"]
    dense = [[g if g.stype == "default" else g.data for g in grads] for grads in lists]
    return [list(per_device) for per_device in zip(*dense)]


def _finite(grads: list[Any]) -> bool:
    nd = mxnet().nd
    flag = nd.ones((1,), ctx=grads[0].context)
    for dtype in {g.dtype for g in grads}:  # the operator takes arrays of one type (BatchNorm stays float32)
        alike = [g for g in grads if g.dtype == dtype]
        for start in range(0, len(alike), 200):  # and a limited number of them
            part = alike[start : start + 200]
            nd.multi_all_finite(*part, num_arrays=len(part), init_output=False, out=flag)
    return bool(flag.asscalar())


def _norm(grads: list[Any]) -> float:
    nd = mxnet().nd
    squares = [nd.square(g.astype("float32")).sum() for g in grads]
    return float(nd.add_n(*squares).sqrt().asscalar())


# A smaller epsilon is zero in float16, and the layer divides by it.
SMALLEST_FLOAT16 = 2.0**-24
SAFE_EPSILON = 1e-5


@dataclass
class MixedPrecision:
    """How to run a step in the chosen format: ``inputs`` before the net, ``outputs`` before the loss.

    Args:
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        scaler: ``scaler.scale(loss)`` inside ``record()``, ``scaler.step(trainer, batch_size)`` after it.
        notes: changes beyond the cast, one sentence each.
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
        """Data in the network's dtype. Integers (pixels for an ``InputStage``, indices) stay unchanged."""
        return _cast(data, "float32", "float16") if self.dtype == "float16" else data

    def outputs(self, out: Any) -> Any:
        """The network's output in float32, for a loss in float32. Labels need no cast."""
        return _cast(out, "float16", "float32") if self.dtype == "float16" else out


def to_mixed_precision(net: Any, trainer: Any, dtype: str) -> MixedPrecision:
    """Prepare ``net`` and ``trainer`` for training in ``dtype``, in place.

    float16 (GPU): the network is cast, BatchNorm stays in float32, the optimizer keeps a float32 copy of the weights
    (``multi_precision``), and the loss is scaled dynamically. bfloat16 (CPU): AMP casts inside the operators, after
    ``gt.compute.start_process("bfloat16", "cpu")``; weights, gradients and updates stay float32 and need no scaling.
    float32 changes nothing.

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
    >>> precision = to_mixed_precision(net, trainer, "float32")  # runs on any CPU
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

    >>> refuse_np(mxnet().gluon.nn.Dense(2))  # a net of mx.nd passes
    """
    if process.started_dtype() == "bfloat16" and uses_np(net):
        raise UsageError(
            "dtype 'bfloat16': MXNet's AMP casts operators of mx.nd only, and this net is one of mx.np (npx.set_np()): "
            "it would train in float32 under that name; use float32"
        )


def _to_float16(net: Any, trainer: Any) -> MixedPrecision:
    """The float16 part, without a check of devices (casting and updating work on a CPU too)."""
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
    kind = np.dtype(source)
    return mapped(lambda item: item.astype(target) if getattr(item, "dtype", None) == kind else item, value)
