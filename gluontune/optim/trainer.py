"""The Gluon trainer that :func:`gt.optim.setup` returns, and its states, saved and restored without pickle."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import atomic_write, read_npz
from gluontune.core.reading import parse_json
from gluontune.optim._base import squares
from gluontune.optim.schedules import constant
from gluontune.runtime import mxnet

mx: Any = mxnet()

# States are saved as a zip of numpy arrays and a JSON text (``numpy.savez``), which cannot run code: the optimizer's
# states, its counts of updates, the attributes that it names in ``progress`` (global statistics, micro-step counters)
# and the sums of an unfinished accumulation. Settings and schedule are not restored: the loading trainer has its own.
FORMAT = "gluontune-optimizer-states-1"


def capture_states(trainer: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """``trainer``'s states as values for JSON, and their arrays, copied to the host."""
    updater = _updaters(trainer)[0]
    optimizer = trainer._optimizer
    arrays: dict[str, np.ndarray] = {}
    counts: dict[int, int] = next(iter(c for c in optimizer._all_index_update_counts.values() if c), {})
    header = {
        "format": FORMAT, "optimizer": type(optimizer).__name__, "num_update": optimizer.num_update,
        "counts": sorted(counts.items()), "params": _params(trainer),
        "states": [[index, _flatten(state, arrays)] for index, state in sorted(updater.states.items())],
        "progress": {name: _flatten(getattr(optimizer, name), arrays) for name in getattr(optimizer, "progress", ())},
        "fixed_rate": trainer.fixed_rate, "micro_steps": trainer._micro_steps, "samples": trainer._samples,
        "sums": _flatten(trainer._sums, arrays),
    }  # fmt: skip
    return header, arrays


def restore_states(trainer: Any, header: dict[str, Any], arrays: dict[str, np.ndarray], fname: str) -> None:
    """Set the states of :func:`capture_states` in ``trainer``; ``fname`` names them in errors."""
    optimizer = trainer._optimizer
    name = type(optimizer).__name__
    if header["optimizer"] != name:
        raise GluontuneError(
            f"{fname}: states of optimizer {header['optimizer']}, but this trainer runs {name}; "
            "set the trainer up with the same optimizer"
        )
    for saved, mine in zip(header["params"], _params(trainer)):
        if saved != mine:
            raise GluontuneError(
                f"{fname}: states of a parameter of shape {saved}, where this net has {mine}: another net?"
            )
    if len(header["params"]) != len(trainer._params):
        raise GluontuneError(f"{fname}: states of {len(header['params'])} parameters, not of {len(trainer._params)}")
    for updater in _updaters(trainer):  # two contexts of one device kind must not share arrays
        updater.states = {index: _build(state, arrays) for index, state in header["states"]}
        updater.states_synced = dict.fromkeys(updater.states, False)
    for attribute, value in header["progress"].items():
        setattr(optimizer, attribute, _build(value, arrays))
    trainer.restore_rate(header.get("fixed_rate"))
    optimizer.num_update = header["num_update"]
    counts = {int(index): count for index, count in header["counts"]}
    devices = {ctx.device_id for ctx in trainer._contexts}
    optimizer._all_index_update_counts = {device: dict(counts) for device in devices | {0}}
    optimizer._index_update_count = optimizer._all_index_update_counts[0]
    trainer._micro_steps, trainer._samples = header["micro_steps"], header["samples"]
    trainer._sums = _sums_in_place(trainer, _build(header["sums"], arrays), fname)


def _read(fname: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        arrays = read_npz(fname)
        header = parse_json(str(arrays.pop("header")))
    except FileNotFoundError:
        raise GluontuneError(f"{fname}: no such file of optimizer states") from None
    except (OSError, ValueError, KeyError):
        raise GluontuneError(f"{fname}: not a whole file of optimizer states that gt.optim's trainer wrote") from None
    version = header.get("format") if isinstance(header, dict) else None
    if version != FORMAT:
        raise GluontuneError(f"{fname}: format {version!r}, this version reads {FORMAT!r}")
    return header, arrays


def _updaters(trainer: Any) -> list[Any]:
    """The updaters with the states: the trainer's, or the local kvstore's."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        trainer._init_params()
    if not (trainer._kvstore and trainer._update_on_kvstore):
        return trainer._updaters
    if trainer._distributed:
        raise GluontuneError(
            "the states lie on the parameter server, which cannot hand them out; use update_on_kvstore=False"
        )
    return [trainer._kvstore._updater]


def _params(trainer: Any) -> list[list[int]]:
    """Shapes identify a net; names do not, because Gluon numbers them by process."""
    return [list(param.shape or ()) for param in trainer._params]


def _flatten(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """``value`` as JSON; its arrays go to ``arrays``."""
    if isinstance(value, mx.nd.NDArray):
        key = f"a{len(arrays)}"
        arrays[key] = value.asnumpy()
        return {"array": key}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_flatten(item, arrays) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[key, _flatten(item, arrays)] for key, item in value.items()]}
    return {"value": value}


def _build(spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    ((kind, content),) = spec.items()
    if kind == "array":
        return mx.nd.array(arrays[content], dtype=arrays[content].dtype)
    if kind == "dict":
        return {key: _build(item, arrays) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_build(item, arrays) for item in content]
        return items if kind == "list" else tuple(items)
    return content


def _sums_in_place(trainer: Any, sums: Any, fname: str) -> Any:
    """The sums of an unfinished accumulation, each on the context of its gradient."""
    if sums is None:
        return None
    grads = trainer._grads()
    if [len(s) for s in sums] != [len(g) for g in grads]:
        raise GluontuneError(f"{fname}: saved within an accumulation on another number of contexts")
    return [
        [total.as_in_context(grad.context) for total, grad in zip(per_param, per_context)]
        for per_param, per_context in zip(sums, grads)
    ]


class TunedTrainer(mx.gluon.Trainer):
    """A ``gluon.Trainer`` with a global batch, accumulation of micro-batches and clipping by global norm.

    Args:
        params, optimizer, kvstore, update_on_kvstore, compression_params: as ``gluon.Trainer``'s.
        schedule: the function ``num_update -> lr``, the one source of the rate until :meth:`set_learning_rate`
            replaces it.
        global_batch_size: samples of one :meth:`step`, over all contexts and workers.
        accumulate: steps whose gradients make one update.
        clip_global_norm: largest L2 norm of the whole averaged gradient; None: no clipping.
        exchange: sums the gradients of each update (NDArrays, of one context) over the processes, in place. None:
            the kvstore does that.
    """

    def __init__(
        self, params: Any, optimizer: Any, *, schedule: Any, global_batch_size: int, accumulate: int = 1,
        clip_global_norm: float | None = None, exchange: Callable[[list[Any]], None] | None = None,
        **kwargs: Any,
    ):  # fmt: skip
        self.exchange = exchange
        self.schedule = self._first_schedule = schedule
        self.fixed_rate: float | None = None
        self.global_batch_size, self.accumulate = global_batch_size, accumulate
        self.clip_norm = clip_global_norm
        self._sums: list[list[Any]] | None = None
        self._micro_steps = 0
        self._samples = 0.0
        super().__init__(params, optimizer, **kwargs)
        self._join_workers(kwargs.get("kvstore"))

    def _join_workers(self, kvstore: Any) -> None:
        """Take worker 0's weights before the first step, so that the first gradients are those of one net.

        gluon.Trainer does so within the first step, after a backward pass with each worker's own weights.
        """
        kind = kvstore if isinstance(kvstore, str) else getattr(kvstore, "type", "")
        if "dist" in kind:
            # The servers' optimizer keeps the present factor.
            self._optimizer.rescale_grad = self._scale / self.global_batch_size
            self._init_kvstore()
            self._init_params()

    def _init_params(self) -> None:
        super()._init_params()
        if self._distributed:
            # Without waiting, gluon's pull of the first weights races with the first push of gradients, which
            # overwrites them on the server: a worker then starts from the sum of gradients.
            for param in self._params:
                if not param._deferred_init:
                    for data in param.list_data():
                        data.wait_to_read()

    @property
    def num_update(self) -> int:
        """Updates of the weights so far."""
        return self._optimizer.num_update

    def set_learning_rate(self, lr: float) -> None:
        """Train with this rate from the next update on, in place of the schedule.

        :attr:`schedule` is then that constant, :attr:`learning_rate` follows at once, multipliers of single parameters
        still apply, and :meth:`save_states` saves it. Call it on each worker alike. A plain loop's
        ``trainer.set_learning_rate(trainer.learning_rate * decay)`` works as with ``gluon.Trainer``; under a falling
        schedule it freezes the present rate.

        Args:
            lr: finite, at least 0; the rate of an update, independent of ``accumulate`` and workers.

        Raises:
            UsageError: another value; or updates on a parameter server, which has a separate optimizer.
        """
        try:
            rate = float(lr)
        except (TypeError, ValueError):
            rate = math.nan
        if not (math.isfinite(rate) and rate >= 0):
            raise UsageError(f"set_learning_rate({lr!r}): give a finite number of at least 0")
        if self._distributed and self._update_on_kvstore:
            raise UsageError(
                f"set_learning_rate({lr!r}): the parameter servers update by an optimizer and a schedule of their "
                "own, which no worker can reach; use update_on_kvstore=False"
            )
        self.fixed_rate = rate
        self._follow(constant(base_lr=rate))

    def _follow(self, schedule: Any) -> None:
        """Take the rate from ``schedule``, here and in the optimizer's adapter."""
        self.schedule = self._optimizer.lr_scheduler.schedule = schedule

    def restore_rate(self, rate: float | None) -> None:
        """Set the rate of saved states: a constant, or (None) the schedule of :func:`setup`."""
        self.fixed_rate = None
        self._follow(self._first_schedule)
        if rate is not None:
            self.set_learning_rate(rate)

    def step(self, batch_size: float | None = None, ignore_stale_grad: bool = False) -> None:
        """Sum the gradients over devices and workers, average them over the batch, update the weights.

        Args:
            batch_size: samples of the *summed* gradient: those of all contexts and, with a ``dist`` kvstore, of all
                workers. None: ``global_batch_size``. Give the true number for the short last batch of an epoch.
            ignore_stale_grad: skip parameters without a gradient of the last backward pass.

        Raises:
            UsageError: no samples; a parameter without a new gradient (with its name); a changed batch size with
                updates on a parameter server.
        """
        batch_size = self.global_batch_size if batch_size is None else batch_size
        if not batch_size > 0:
            raise UsageError(f"step(batch_size={batch_size!r}): give the number of samples, above 0")
        if self.accumulate > 1:
            if not self._gather(batch_size):
                return
            batch_size, self._samples = self._samples, 0.0
        try:
            if self.clip_norm is None:
                super().step(batch_size, ignore_stale_grad)
                return
            self.allreduce_grads()
            self._clip(self._scale / batch_size)
            self.update(batch_size, ignore_stale_grad)
        except UserWarning as problem:  # gluon raises it: a stale gradient, a batch that changed on servers
            raise UsageError(" ".join(str(problem).split())) from None

    def _allreduce_grads(self) -> None:
        if self._compression_params and self._distributed and not self._update_on_kvstore:
            for place, param in enumerate(self._params):
                if param.grad_req != "null":  # push, then pull: a dist kvstore refuses to compress in ``pushpull``
                    self._kvstore.push(place, param.list_grad(), priority=-place)
                    self._kvstore.pull(place, param.list_grad(), priority=-place)
        else:
            super()._allreduce_grads()
        if self.exchange is not None:
            self.exchange([grads[0] for grads in self._grads()])

    def _grads(self) -> list[list[Any]]:
        """The gradients of each trained parameter by context, as NDArrays, which share memory with mx.np's arrays."""
        trained = (param for param in self._params if param.grad_req != "null")
        return [[grad.as_nd_ndarray() for grad in param.list_grad()] for param in trained]

    def _gather(self, batch_size: float) -> bool:
        """Add the gradients of this micro-batch to the sums. Returns whether they make an update."""
        self._samples += batch_size
        self._micro_steps += 1
        last = self._micro_steps == self.accumulate
        grads = self._grads()
        if self._sums is None:
            # A copy: Gluon writes the next gradient into the same buffer.
            self._sums = [[grad.copy() for grad in per_context] for per_context in grads]
        else:
            for sums, per_context in zip(self._sums, grads):
                for total, grad in zip(sums, per_context):
                    mx.nd.elemwise_add(total, grad, out=grad if last else total)
        if last:
            self._sums, self._micro_steps = None, 0
        return last

    def _clip(self, rescale: float) -> None:
        """Scale the reduced gradients so that their averaged norm is at most ``clip_norm``; never waits."""
        for grads in zip(*self._grads()):  # of one context
            norm = mx.nd.sqrt(mx.nd.sum(squares(list(grads)))) * rescale
            keep = mx.nd.minimum(self.clip_norm / (norm + 1e-12), 1.0)
            for grad in grads:
                # In float32, which does not round a small factor to zero.
                mx.nd.cast(mx.nd.broadcast_mul(grad.astype("float32", copy=False), keep), dtype=grad.dtype, out=grad)

    def save_states(self, fname: str) -> None:
        """Write the optimizer's states, counts and unfinished accumulation; without pickle."""
        header, arrays = capture_states(self)
        with atomic_write(fname) as stream:
            np.savez(stream, header=np.array(json.dumps(header)), **arrays)

    def load_states(self, fname: str) -> None:
        """Load a file of :meth:`save_states`; settings and schedule stay this trainer's.

        Raises:
            GluontuneError: the file is missing, damaged, or of another optimizer or net.
        """
        restore_states(self, *_read(fname), fname)  # nothing changes unless all of it fits

    def __repr__(self) -> str:
        name = type(self._optimizer).__name__
        return f"TunedTrainer({name}, num_update={self.num_update}, lr={self.learning_rate:g})"
