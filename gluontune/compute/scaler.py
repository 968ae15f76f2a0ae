"""Loss scaling for float16: gradients too small for the type are lifted, overflows skip a step."""

from __future__ import annotations

from typing import Any

from gluontune.errors import GluontuneError, UsageError
from gluontune.runtime import as_nd_array, mxnet

__all__ = ["LossScaler"]


class LossScaler:
    """Dynamic loss scaling around a ``gluon.Trainer``, or a scale of one that changes nothing.

    The loss is multiplied by ``scale_value``; ``step`` divides the gradients again inside the
    optimizer (in float32, through ``rescale_grad``), so that clipping acts on true gradients. A gradient
    that is not finite skips the step and halves the scale; ``growth_steps`` good steps in a row double it.

    Args:
        init_scale: first scale; 1 with ``dynamic=False`` for formats that need none.
        factor: by which the scale grows and shrinks.
        growth_steps: good steps in a row before it grows.
        dynamic: whether the gradients are inspected at all (one synchronization a step).
        patience: skipped steps in a row, at the smallest scale, that count as divergence.

    Source: Micikevicius et al., *Mixed Precision Training*, ICLR 2018.

    >>> LossScaler(init_scale=8.0).scale(3.0)
    24.0
    """

    max_scale = 2.0**24

    def __init__(
        self,
        init_scale: float = 2.0**16,
        *,
        factor: float = 2.0,
        growth_steps: int = 2000,
        dynamic: bool = True,
        patience: int = 10,
    ):
        if not init_scale >= 1 or not factor > 1 or growth_steps < 1:
            raise UsageError(
                f"loss scaler init_scale={init_scale}, factor={factor}, growth_steps={growth_steps}: "
                "give a scale of at least 1, a factor above 1 and at least one step"
            )
        self.scale_value = float(init_scale)
        self.factor, self.growth_steps, self.dynamic, self.patience = factor, growth_steps, dynamic, patience
        self.skipped_steps = 0
        self._good_steps = 0
        self._bad_steps = 0

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
        """Like ``trainer.step(batch_size)``, with the scale taken out of the gradients.

        Args:
            trainer: a ``gluon.Trainer`` or a subclass (Horovod's). For several devices it must not update
                on the kvstore, because the overflow is looked for between reducing and updating.
            batch_size: divides the gradient, as for ``Trainer.step``.
            clip_global_norm: largest norm of the whole true gradient (scale and batch size taken out); None:
                that of a trainer of ``gt.optim.setup``.
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
        if self.dynamic and not all(_finite(per_device) for per_device in grads):
            self._shrink()
            return False
        original = trainer._scale
        shrink = 1.0
        if clip_global_norm is not None and grads:
            norm = _norm(grads[0]) * original / (batch_size * self.scale_value)
            shrink = min(1.0, clip_global_norm / norm) if norm > 0 else 1.0
        try:
            trainer._scale = original * shrink / self.scale_value
            trainer.update(batch_size, ignore_stale_grad=ignore_stale_grad)
        finally:
            trainer._scale = original
        self._grow()
        return True

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint needs."""
        return {"scale_value": self.scale_value, "good_steps": self._good_steps, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        self.scale_value = float(state["scale_value"])
        self._good_steps, self.skipped_steps = int(state["good_steps"]), int(state["skipped_steps"])

    def _grow(self) -> None:
        self._bad_steps = 0
        self._good_steps += 1
        if self.dynamic and self._good_steps >= self.growth_steps:
            self.scale_value = min(self.scale_value * self.factor, self.max_scale)
            self._good_steps = 0

    def _shrink(self) -> None:
        self.skipped_steps += 1
        self._good_steps = 0
        self._bad_steps = self._bad_steps + 1 if self.scale_value == 1.0 else 0
        self.scale_value = max(1.0, self.scale_value / self.factor)
        if self._bad_steps >= self.patience:
            raise GluontuneError(
                f"the gradients were not finite in {self._bad_steps} steps in a row although the loss scale is 1: "
                "training has diverged; lower the learning rate"
            )


def _reduce(trainer: Any) -> None:
    try:
        trainer.allreduce_grads()
    except AssertionError:
        raise UsageError(
            "the loss scaler needs the gradients before they are applied: create the trainer with "
            "update_on_kvstore=False"
        ) from None


def _gradients(trainer: Any) -> list[list[Any]]:
    """Gradients by device."""
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
