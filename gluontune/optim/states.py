"""A trainer's states, saved and restored without pickle.

The file is a zip of numpy arrays and a JSON text (``numpy.savez``), which cannot run code: the optimizer's states, its
counts of updates, the attributes that the optimizer names in ``progress`` (global statistics, micro-step counters) and
the sums of an unfinished accumulation. Settings and schedule are not restored: they belong to the loading trainer.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.core.files import atomic_write, read_npz
from gluontune.core.reading import parse_json
from gluontune.runtime import mxnet

mx: Any = mxnet()

FORMAT = "gluontune-optimizer-states-1"


def save(trainer: Any, fname: str) -> None:
    """Write ``trainer``'s states to ``fname``, atomically."""
    header, arrays = capture(trainer)
    with atomic_write(fname) as stream:
        np.savez(stream, header=np.array(json.dumps(header)), **arrays)


def capture(trainer: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
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


def load(trainer: Any, fname: str) -> None:
    """Read a file of :func:`save` into ``trainer``; nothing changes unless all of it fits."""
    header, arrays = _read(fname)
    restore(trainer, header, arrays, fname)


def restore(trainer: Any, header: dict[str, Any], arrays: dict[str, np.ndarray], fname: str) -> None:
    """Set the states of :func:`capture` in ``trainer``; ``fname`` names them in errors."""
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
