"""The base of the optimizers that MXNet 1.9.1 lacks or computes wrongly; pure schedules as MXNet's, and back."""

from __future__ import annotations

import abc
import importlib
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

from gluontune.core.errors import UsageError
from gluontune.optim import schedules
from gluontune.optim.cards import exempt_name, is_exempt
from gluontune.optim.schedules import Schedule
from gluontune.runtime import mxnet

mx: Any = mxnet()
# Not mx.nd: a parameter server never ends `import mxnet`, which sets that alias last.
nd = mx.ndarray

# MXNet's kernels take at most 45 (multi_lamb, multi_adamw) to 60 (multi_sgd) arrays.
CHUNK = 45
#: Elements from which an array gets a separate kernel call; see :func:`chunks`.
LARGE = 2**16
_BLOCK = 2**20  # elements of a block in a sum of squares


def is_large(array: Any) -> bool:
    """Whether an array gets a separate kernel call."""
    return bool(array.size >= LARGE)


def chunks(*lists: Any) -> Iterator[tuple[Any, ...]]:
    """Slices of each list, side by side: up to :data:`CHUNK` small arrays of the first list, a large one alone.

    MXNet's kernels for many arrays go along all of them together, element by element. That saves calls for small
    arrays; on a CPU large ones take 2 to 5 times as long as one after the other. NDArrays are sliced as views.

    >>> large = nd.ones((2**16,))
    >>> [slices for _, slices in chunks([nd.ones((3,)), nd.ones((2,)), large, large], "abcd")]
    ['ab', 'c', 'd']
    """
    alone = [is_large(array) for array in lists[0]]
    start = 0
    while start < len(alone):
        end = start + 1
        while end < min(len(alone), start + CHUNK) and not alone[start] and not alone[end]:
            end += 1
        yield tuple(items[start:end] for items in lists)
        start = end


def interleaved(*lists: list[Any]) -> list[Any]:
    """The first of each list, then the second of each, …: the kernels' order."""
    return [item for group in zip(*lists) for item in group]


def squares(arrays: list[Any]) -> Any:
    """Sum of squares of each array, a float32 vector; float16 ones are widened, because 256² overflows.

    MXNet's kernel adds single squares in float32: it loses 2.8 % of 16 million, 28 % of 100 million. Large arrays are
    products of blocks, exact to five digits and faster.
    """
    wide = [a if a.dtype == np.float32 else a.astype("float32") for a in arrays]
    if not any(is_large(a) for a in wide):
        return nd.multi_sum_sq(*wide, num_arrays=len(wide))
    small = [a for a in wide if not is_large(a)]
    sums: Any = nd.multi_sum_sq(*small, num_arrays=len(small)) if small else None
    # A slice: under npx.set_np() a single element has no axis.
    each = (sums[place : place + 1] for place in range(len(small)))
    return nd.concat(*(_square_of_large(a) if is_large(a) else next(each) for a in wide), dim=0)


def _square_of_large(array: Any) -> Any:
    flat, size = array.reshape((-1,)), array.size
    blocks = [flat[start : start + _BLOCK] for start in range(0, size, _BLOCK)]
    # Under npx.set_np() the product of two vectors has no axis.
    return nd.add_n(*(nd.dot(block, block) for block in blocks)).reshape((1,))


def subtract_all(ys: list[Any], xs: list[Any], lrs: list[float], wds: list[float], factor: float = 1.0) -> None:
    """y -= lr (factor x + wd y) for at most :data:`CHUNK` pairs of arrays, in one kernel unless they are float64."""
    if ys[0].dtype == np.float64:  # the kernels' scalars are float32
        for y, x, lr, wd in zip(ys, xs, lrs, wds):
            y[:] = (1.0 - lr * wd) * y - (lr * factor) * x
        return
    if len(ys) == 1:  # a simpler, vectorized kernel
        only = {"lr": lrs[0], "wd": wds[0], "rescale_grad": factor, "lazy_update": False}
        nd.sgd_update(ys[0], xs[0], out=ys[0], **only)
        return
    nd.multi_sgd_update(*interleaved(ys, xs), out=ys, num_weights=len(ys), lrs=lrs, wds=wds, rescale_grad=factor)


class TunedOptimizer(mx.optimizer.Optimizer, abc.ABC):
    """An ``mx.optimizer.Optimizer`` that gets all parameters of a step in one call if the trainer can.

    It works under ``gluon.Trainer`` with updates on the kvstore (one parameter at a time) or off it (all of one dtype
    at a time), has float32 masters of float16 weights with ``multi_precision``, and never waits for the device. A
    subclass writes :meth:`apply`. ``exempt_indices`` are places of parameters without trust ratio; None: by name or
    shape.
    """

    #: Attributes besides the states that a resumed run needs; see :mod:`gluontune.optim.trainer`.
    progress: tuple[str, ...] = ()

    def __init__(self, exempt_indices: frozenset[int] | None = None, clip_gradient: float | None = None, **kwargs: Any):
        limit = clip_gradient if clip_gradient and clip_gradient > 0 else None  # as in MXNet's kernels
        super().__init__(clip_gradient=limit, **kwargs)
        self.exempt_indices = exempt_indices
        self.aggregate_num = 100_000  # the updater's limit; the kernels' is CHUNK
        self._tables: dict[Any, Any] = {}

    @abc.abstractmethod
    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        """Update ``weights`` (in place, one dtype, one context), after an increment of their counts."""

    def create_state_multi_precision(self, index: int, weight: Any) -> Any:
        if self.multi_precision and weight.dtype == np.float16:
            master = weight.astype(np.float32)
            return (master, self.create_state(index, master))
        return self.create_state(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        several = isinstance(index, (list, tuple))
        self._count_and_apply(*(list(each) if several else [each] for each in (index, weight, grad, state)))

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        if not (self.multi_precision and weight[0].dtype == np.float16):
            self.update(index, weight, grad, state)
            return
        masters, inner = [s[0] for s in state], [s[1] for s in state]
        self.update(index, masters, [g.astype(np.float32) for g in grad], inner)
        for master, low in zip(masters, weight):
            nd.cast(master, dtype=low.dtype, out=low)

    def _count_and_apply(self, indices: list[int], weights: Any, grads: Any, states: Any) -> None:
        self._update_count(indices)
        self.apply(indices, weights, grads, states)

    def trusts(self, index: int) -> bool:
        """Whether the parameter takes part in trust ratios."""
        if self.exempt_indices is not None:
            return index not in self.exempt_indices
        if index in self.param_dict:
            return not is_exempt(self.param_dict[index])
        return not exempt_name(self.idx2name.get(index, ""))

    def clipped(self, grads: list[Any]) -> tuple[list[Any], float]:
        """Gradients, clipped with ``clip_gradient``, and the remaining factor on them."""
        if not self.clip_gradient:
            return grads, self.rescale_grad
        limit = self.clip_gradient
        return [nd.clip(g * self.rescale_grad, -limit, limit) for g in grads], 1.0

    def rates(self, indices: list[int], ctx: Any) -> tuple[Any, Any]:
        """Rates and decays as float32 vectors on ``ctx``: copied from the host only after a change."""
        rate = self.learning_rate
        scales = [lr / rate if rate else 1.0 for lr in self._get_lrs(indices)]
        scales_vector, wds_vector = self.copied(tuple(indices), ctx, scales, self._get_wds(indices))
        return scales_vector * rate, wds_vector

    def copied(self, key: Any, ctx: Any, *lists: list[float], dtype: Any = "float32") -> tuple[Any, ...]:
        """``lists`` as vectors on ``ctx``, kept by ``key``: copied from the host only after a change."""
        cached = self._tables.get((key, str(ctx)))
        if cached is None or cached[0] != lists:
            cached = lists, tuple(nd.array(values, ctx=ctx, dtype=dtype) for values in lists)
            self._tables[key, str(ctx)] = cached
        return cached[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_tables": {}}


# By its module: a parameter server unpickles this within `import mxnet`, before the package has the attribute.
lr_scheduler: Any = importlib.import_module("mxnet.lr_scheduler")


class ScheduleAdapter(lr_scheduler.LRScheduler):
    """A pure schedule as an ``LRScheduler``; a ``base_lr`` of 1 makes it a plain multiplier.

    ``mx.optimizer.Optimizer`` writes its ``learning_rate`` into ``base_lr`` of its scheduler. MXNet's schedulers then
    have a stale ``warmup_final_lr``; here the whole schedule, warm-up included, is multiplied by the new ``base_lr``
    over the first one.
    """

    def __init__(self, schedule: Any, base_lr: float = 1.0):
        super().__init__(base_lr=base_lr)
        if not base_lr > 0:
            raise UsageError(f"base_lr={base_lr!r}: give a rate above 0")
        self.schedule = schedule
        self._built_for = base_lr

    def __call__(self, num_update: int) -> float:
        if self.schedule is None:
            raise UsageError(
                "the schedule is a local function or lambda, which cannot be sent or saved; define it at the "
                "top of a module or use gt.optim.schedules"
            )
        rate = self.schedule(num_update)
        return rate if self.base_lr == self._built_for else rate * (self.base_lr / self._built_for)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        try:
            pickle.dumps(state["schedule"])
        except (pickle.PicklingError, AttributeError, TypeError):
            state["schedule"] = None  # __call__ then explains
        return state


def to_mxnet(schedule: Any, *, base_lr: float = 1.0) -> ScheduleAdapter:
    """``schedule`` as an ``mx.lr_scheduler.LRScheduler`` for any MXNet optimizer or trainer.

    >>> from gluontune.optim import schedules
    >>> to_mxnet(schedules.cosine(base_lr=0.4, max_update=100))(50)
    0.2
    """
    return ScheduleAdapter(schedule, base_lr)


def from_mxnet(scheduler: Any) -> Schedule:
    """The pure schedule of a fresh MXNet scheduler.

    Args:
        scheduler: a Factor-, MultiFactor-, Poly- or CosineScheduler before its first call (which changes its
            ``base_lr``), or an adapter of :func:`to_mxnet`.

    Raises:
        UsageError: the scheduler is of another class or has been used.

    >>> from gluontune.runtime import mxnet
    >>> from_mxnet(mxnet().lr_scheduler.FactorScheduler(step=250, factor=0.5, base_lr=1))(251)
    0.5
    """
    if isinstance(scheduler, ScheduleAdapter):
        return schedules.scale(scheduler.schedule, by=scheduler.base_lr / scheduler._built_for)
    known = ("FactorScheduler", "MultiFactorScheduler", "PolyScheduler", "CosineScheduler")
    if type(scheduler) not in [getattr(lr_scheduler, name) for name in known]:
        raise UsageError(f"scheduler {type(scheduler).__name__}: only {', '.join(known)} can be read; pass it as it is")
    if getattr(scheduler, "count", 0):
        raise UsageError(f"{type(scheduler).__name__} has been used already: its first rate is lost; give a fresh one")
    rate = scheduler.base_lr
    inner: Schedule
    if type(scheduler) is lr_scheduler.FactorScheduler:
        inner = schedules.factor(
            base_lr=rate, step=scheduler.step, factor=scheduler.factor, stop_factor_lr=scheduler.stop_factor_lr
        )
    elif type(scheduler) is lr_scheduler.MultiFactorScheduler:
        inner = schedules.multifactor(base_lr=rate, steps=scheduler.step, factor=scheduler.factor)
    else:
        ends = {"base_lr": scheduler.base_lr_orig, "max_update": scheduler.max_update, "final_lr": scheduler.final_lr}
        cosine = type(scheduler) is lr_scheduler.CosineScheduler
        inner = schedules.cosine(**ends) if cosine else schedules.poly(**ends, pwr=scheduler.power)
    if not scheduler.warmup_steps:
        return inner
    return schedules.warmup(
        inner,
        warmup_steps=scheduler.warmup_steps,
        warmup_begin_lr=scheduler.warmup_begin_lr,
        mode=scheduler.warmup_mode,
    )
