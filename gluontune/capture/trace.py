"""A recorder of what a program computes: operators in order, by values that never change, cut into training steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gluontune.capture.hooks import Call, Handler, Hooks, canonical
from gluontune.convert.graph.schemas import schema

#: Operators that change inputs in place, by the places of those inputs.
MUTATED = {
    "sgd_mom_update": (2,), "nag_mom_update": (2,), "signum_update": (2,), "rmsprop_update": (2,),
    "adam_update": (2, 3), "ftrl_update": (2, 3), "ftml_update": (2, 3, 4), "rmspropalex_update": (2, 3, 4),
    "lamb_update_phase1": (2, 3), "_adamw_update": (2, 3), "_sparse_adagrad_update": (2,),
    "_contrib_group_adagrad_update": (2,), "mp_sgd_update": (2,), "mp_sgd_mom_update": (2, 3),
    "mp_nag_mom_update": (2, 3),
}  # fmt: skip
#: A running statistic of BatchNorm takes in a batch's: MXNet does so in the backward pass, in its order.
RUNNING = "running"
_NORMALIZING = ("BatchNorm", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU")
_DRAWS = ("_random_", "_sample_", "_npi_normal", "_npi_uniform", "_npi_bernoulli", "_npi_choice", "_npi_exponential",
          "_npi_gamma", "_npi_gumbel", "_npi_laplace", "_npi_logistic", "_npi_multinomial", "_npi_pareto",
          "_npi_rayleigh", "_npi_weibull", "_npi_powerd", "_npi_shuffle", "_shuffle", "_image_random")  # fmt: skip


def draws(name: str) -> bool:
    """Whether an operator draws random numbers.

    >>> draws("_random_normal"), draws("_random_pdf_normal"), draws("Dropout")
    (True, False, False)
    """
    return name.startswith(_DRAWS) and "_pdf_" not in name


@dataclass
class Value:
    """A value: what an array holds between two writes.

    Args:
        shape, dtype: of the array. source: what made it, where no operator of this step did: ``parameter``,
            ``variable`` (of ``attach_grad``), ``gradient``, ``batch``, ``host`` (copied from the host in this step),
            ``earlier``. name: of a parameter; of others where it came from. line: of the program.
        array: a copy of it: of leaves, of heads, gradients and new parameters.
    """

    shape: tuple[int, ...]
    dtype: str
    source: str = ""
    name: str = ""
    line: str = ""
    array: np.ndarray | None = None


@dataclass
class Op:
    """An operator that was called.

    ``outputs`` has its results, then the new values of inputs that it changed; of a BatchNorm in training the mean and
    the variance of the batch.
    """

    name: str
    attrs: dict[str, str]
    inputs: list[int]
    outputs: list[int]
    recording: bool
    training: bool
    line: str
    results: int = 1


@dataclass
class Backward:
    """A backward pass: gradients of ``heads`` by ``variables``; ``outputs`` are the new ones. retain: the tape stays."""

    heads: list[int]
    head_grads: list[int | None] | None
    variables: list[int]
    outputs: list[int]
    training: bool
    line: str
    retain: bool = False


@dataclass
class Step:
    """What was seen between two ends of training steps.

    Args:
        values: by number. events: operators and backward passes in order. writes: final values of parameters, by name.
        reads: values that the program copied to the host, with the lines. updates: what trainers were told.
        unknown: what no graph can hold, with its line.
    """

    values: dict[int, Value] = field(default_factory=dict)
    events: list[Op | Backward] = field(default_factory=list)
    writes: dict[str, int] = field(default_factory=dict)
    reads: list[tuple[int, str]] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


class _Held:
    """An array of the program's, the value that it holds, and what it is a view of."""

    def __init__(self, array: Any, value: int, base: _Held | None = None, view: Any = None):
        self.array, self.value, self.base, self.view = array, value, base, view
        self.version, self.seen = 0, base.version if base else 0


class Recorder(Handler):
    """Records whole training steps.

    Args:
        mx: the mxnet module. folder: of the program, whose lines are told.
        finished: called with each :class:`Step` that trained something, at its end.
    """

    def __init__(self, mx: Any, folder: str, finished: Callable[[Step], None]):
        self.mx, self.folder, self.finished = mx, os.path.abspath(folder), finished
        self.hooks: Hooks  # set by who installs them
        self.number, self.step = 0, Step()
        self.held: dict[int, _Held] = {}
        self.before: dict[int, _Held] = {}  # of the step before
        self.variables: dict[int, tuple[Any, str]] = {}  # attach_grad's arrays and their grad_req
        self.known: dict[int, Any] = {}  # parameters by their arrays
        self.statistics: dict[int, Sequence[Any]] = {}  # running statistics by the output of their BatchNorm
        self.batches, self.updated, self.was_recording = False, False, False
        self.copying = True  # values are copied, for a proof
        self.computes: Callable[[str], Any] = canonical  # operators that can be part of a graph

    # values

    def _new(self, array: Any, **of: Any) -> int:
        self.number += 1
        self.step.values[self.number] = Value(tuple(array.shape), np.dtype(array.dtype).name, **of)
        return self.number

    def _snapshot(self, value: int, array: Any) -> None:
        if self.copying:
            self.step.values[value].array = self._copy(array)

    def _copy(self, array: Any) -> np.ndarray:
        with self.hooks.quiet():
            if array.stype != "default":
                return np.asarray(array.tostype("default").asnumpy())
            return np.asarray(array.asnumpy())

    def hold(self, array: Any) -> _Held:
        """The entry of an array; a leaf where no operator of this step made it."""
        found = self.held.get(id(array))
        if found is None:
            found = self.held[id(array)] = self._leaf(array)
        if found.base is not None:
            base = self._fresh(found.base)
            if base.version != found.seen and found.view is not None:
                found.value, found.seen = found.view(base.value), base.version
        return found

    def _fresh(self, entry: _Held) -> _Held:
        return self.hold(entry.array) if entry.array is not None else entry

    def _leaf(self, array: Any) -> _Held:
        parameter = self._parameter(array)
        earlier = self.before.get(id(array))
        what: dict[str, Any]
        if parameter is not None:
            what = {"source": parameter[0], "name": parameter[1]}
        elif id(array) in self.variables:
            what = {"source": "variable", "name": f"variable{list(self.variables).index(id(array))}"}
        else:
            what = {"source": "earlier", "name": str(earlier.value) if earlier else ""}
        entry = _Held(array, self._new(array, **what, line=self._line()))
        self._arrived(entry.value, array)
        return entry

    def _arrived(self, value: int, array: Any) -> None:
        """A value that no operator of this step made."""
        self._snapshot(value, array)

    def _parameter(self, array: Any) -> tuple[str, str] | None:
        if id(array) not in self.known:
            for parameter in list(self.hooks.parameters):
                for data in parameter._data or ():
                    self.known[id(data)] = ("parameter", parameter, data)
                for data in parameter._grad or ():
                    self.known[id(data)] = ("gradient", parameter, data)
        kind, parameter, data = self.known.get(id(array), ("", None, None))
        return (kind, parameter.name) if data is array and parameter is not None else None

    def _variable(self, array: Any) -> tuple[bool, str]:
        """Whether gradients go to an array, and how."""
        if id(array) in self.variables:
            return self.variables[id(array)][1] != "null", self.variables[id(array)][1]
        self._parameter(array)
        kind, parameter, data = self.known.get(id(array), ("", None, None))
        req = parameter.grad_req if kind == "parameter" and data is array else "null"
        return req != "null", req

    def _line(self) -> str:
        frame: Any = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self.folder) and "site-packages" not in name:
                return f"{os.path.relpath(name, self.folder)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def _write(self, array: Any, value: int) -> None:
        entry = self.held.get(id(array))
        if entry is None:
            entry = self.held[id(array)] = _Held(array, value)
        elif entry.base is not None and entry.base.array is not None:
            if tuple(entry.base.array.shape) != tuple(array.shape):
                self.step.unknown.append(f"{self._line()}: a part of an array is written to through a view of it")
            else:
                self._write(entry.base.array, value)
        entry.value, entry.version = value, entry.version + 1
        self._written(array, value)
        if entry.base is not None:
            entry.seen = entry.base.version
        parameter = self._parameter(array)
        if parameter is not None and parameter[0] == "parameter":
            self.step.writes[parameter[1]] = value
        elif id(array) in self.variables:
            self.step.writes[f"variable{list(self.variables).index(id(array))}"] = value
            self.updated = True

    def _written(self, array: Any, value: int) -> None:
        """An array holds another value."""

    # hooks

    def op(self, call: Call) -> Any:
        self._between_steps()
        inputs, line = [self.hold(array).value for array in call.inputs], self._line()
        out = call.run(None, self._changed(call))
        self._add(call, inputs, list(out) if isinstance(out, (list, tuple)) else [out], line)
        return out

    def _between_steps(self) -> None:
        """A step without batches is over when the next recording begins."""
        recording = self.mx.autograd.is_recording()
        if recording and not self.was_recording and self.updated and not self.batches:
            self.end()
        self.was_recording = recording

    def _changed(self, call: Call) -> dict[str, str] | None:
        """Attributes that the recorder sets: nothing is dropped, so that a step can be computed again."""
        return {"p": "0"} if self.copying and call.name in ("Dropout", "RNN") and "p" in call.attrs else None

    def _add(self, call: Call, inputs: list[int], results: list[Any], line: str) -> None:
        """The event of an operator that was called, and the values that its arrays have now."""
        if call.name == "reset_arrays":
            for array, value in zip(call.inputs, inputs):
                self._add(call._replace(name="zeros_like", attrs={}, inputs=[array], out=array), [value], [array], line)
            return
        numbers = [self._new(array) for array in results]
        if draws(call.name) or not (self.computes(call.name) or self.mx.autograd.is_recording()):
            for number, array in zip(numbers, results):
                self._snapshot(number, array)
                self.step.values[number].source = "" if draws(call.name) else "mxnet"
        autograd, attrs = self.mx.autograd, call.attrs
        count = schema(call.name).count if canonical(call.name) else None
        if count is not None and count not in attrs:
            attrs = {**attrs, count: str(len(inputs))}
        training = autograd.is_training()
        event = Op(call.name, attrs, inputs, numbers, autograd.is_recording(), training, line, len(numbers))
        for array, number in zip(results, numbers):
            if call.out is not None:
                self._write(array, number)
            else:
                self.held[id(array)] = _Held(array, number)
        if training and call.name in _NORMALIZING and attrs.get("use_global_stats", "False") not in ("True", "1"):
            event.outputs = [*event.outputs, self._new(call.inputs[3]), self._new(call.inputs[4])]
            self.statistics[number] = call.inputs[3:5]
        for place in _mutated(call):
            event.outputs = [*event.outputs, self._new(call.inputs[place])]
            self._write(call.inputs[place], event.outputs[-1])
        self.step.events += _one_by_one(event)

    def view(self, array: Any, kind: str, arguments: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        result = run()
        if result is None or result is array:
            return result
        if kind == "grad":
            self._gradient_of(array, result)
            return result
        base = self.hold(array)
        recording, training = self.mx.autograd.is_recording(), self.mx.autograd.is_training()
        recording = recording and kind != "detach"  # no gradient passes, and none is written
        names = _view(kind, arguments, array, result)
        line = self._line()

        def made(value: int) -> int:
            for name, attrs in names:
                number = self._new(result)
                self.step.events.append(Op(name, attrs, [value], [number], recording, training, line))
                value = number
            return value

        self.held[id(result)] = _Held(result, made(base.value), base, made)
        return result

    def _gradient_of(self, variable: Any, result: Any) -> None:
        key = -id(variable)
        entry = self.held.get(key)
        if entry is None:
            entry = self.held[key] = _Held(None, self._new(result, source="gradient", name=self.hold(variable).value))
            self._arrived(entry.value, result)
        self.held[id(result)] = _Held(result, entry.value, entry, lambda value: value)

    def write(self, array: Any, values: Any, run: Callable[[], None]) -> None:
        run()
        value = self._new(array, source="host", line=self._line(), name=str(len(self.step.reads)))
        self._arrived(value, array)
        self._write(array, value)

    def read(self, array: Any, run: Callable[[], Any]) -> Any:
        self.step.reads.append((self.hold(array).value, self._line()))
        return run()

    def mark(self, arrays: Sequence[Any], gradients: Sequence[Any], reqs: Sequence[str]) -> None:
        if all(gradient is None for gradient in gradients):  # attach_grad; of parameters Gluon tells
            for array, req in zip(arrays, reqs):
                self.variables[id(array)] = (array, req)
                self.held.pop(id(array), None)

    def backward(
        self, heads: Sequence[Any], head_grads: Sequence[Any] | None, train: bool, retain: bool, run: Callable[[], Any]
    ) -> Any:
        values = [self.hold(head).value for head in heads]
        grads = None
        if head_grads is not None:
            grads = [None if grad is None else self.hold(grad).value for grad in head_grads]
        result = self._compute(run)
        for head, value in zip(heads, values):
            self._snapshot(value, head)
        reached = self._reached(values)
        event = Backward(values, grads, [], [], train, self._line(), retain)
        self.step.events.append(event)
        for entry in [e for e in self.held.values() if e.array is not None and e.value in reached and e.base is None]:
            wanted, req = self._variable(entry.array)
            if wanted:
                self._gradient(event, entry, req)
        for op in [e for e in reversed(self.step.events) if isinstance(e, Op) and e.outputs[0] in reached]:
            self._take_in(op)
        return result

    def _take_in(self, op: Op) -> None:
        """Running statistics change in the backward pass."""
        for array, batch in zip(self.statistics.pop(op.outputs[0], ()), op.outputs[op.results :]):
            old, number = self.hold(array).value, self._new(array)
            attrs = {"momentum": op.attrs.get("momentum", "0.9")}
            self.step.events.append(Op(RUNNING, attrs, [old, batch], [number], False, False, op.line))
            self._write(array, number)

    def _compute(self, run: Callable[[], Any]) -> Any:
        return run()

    def _reached(self, heads: list[int]) -> set[int]:
        """All values that recorded operators made the heads of."""
        found = set(heads)
        for event in reversed(self.step.events):
            if isinstance(event, Op) and event.recording and not found.isdisjoint(event.outputs[: event.results]):
                found.update(event.inputs)
        return found

    def _gradient(self, event: Backward, entry: _Held, req: str) -> None:
        kind, parameter, _ = self.known.get(id(entry.array), ("", None, None))
        with self.hooks.quiet():
            array = entry.array.grad if parameter is None else parameter.grad(entry.array.context)
        key = -id(entry.array) if parameter is None else id(array)
        old = self.held.get(key) or (self.hold(array) if parameter is not None and req == "add" else None)
        number = self._new(array)
        self._differentiated(entry.array)
        event.variables.append(entry.value)
        event.outputs.append(number)
        self._snapshot(number, array)
        if req == "add" and old is not None:
            total = self._new(array)
            self.step.values[total].array = self.step.values[number].array
            self.step.values[number].array = None
            names = ("elemwise_add", {}, [old.value, number], [total])
            self.step.events.append(Op(*names, False, False, event.line))
            number = total
        if parameter is not None:
            self._write(array, number)
            return
        found = self.held.setdefault(key, _Held(None, number))
        found.value, found.version = number, found.version + 1

    def _differentiated(self, array: Any) -> None:
        """A variable has a new gradient."""

    def unknown(self, what: str, run: Callable[[], Any]) -> Any:
        self.step.unknown.append(f"{self._line()}: {what} cannot be put into a graph")
        return run()

    def update(self, trainer: Any, batch_size: Any, run: Callable[[], Any]) -> Any:
        optimizer = trainer._optimizer
        self.step.updates.append({
            "optimizer": type(optimizer).__name__.lower(), "batch_size": batch_size, "learning_rate": trainer.learning_rate,
            "parameters": [p.name for p in trainer._params if p.grad_req != "null"], "line": self._line(),
        })  # fmt: skip
        result = run()
        self.updated = True
        return result

    def batch(self, source: Any, run: Callable[[], Any]) -> Any:
        self.batches = True
        if self.updated or not any(isinstance(event, Backward) for event in self.step.events):
            self.end()
        result = run()
        for place, array in arrays_in(result):
            value = self._new(array, source="batch", name=place, line=self._line())
            self._arrived(value, array)
            self.held[id(array)] = _Held(array, value)
        return result

    def end(self) -> None:
        """The step is over; its arrays are kept for one more, which may go on from them."""
        step = self.step
        for name, value in step.writes.items():
            held = next((e for e in self.held.values() if e.value == value and e.array is not None), None)
            if held is not None:
                self._snapshot(value, held.array)
        trained = self.updated
        self.before = {key: entry for key, entry in self.held.items() if key > 0}
        self.held, self.step, self.updated = {}, Step(), False
        self.statistics.clear()
        self.known.clear()
        if trained:
            with self.hooks.quiet():
                self.finished(step)


def _mutated(call: Call) -> tuple[int, ...]:
    """The places of the inputs that an update operator changes."""
    if not call.name.startswith("multi_"):
        return MUTATED.get(call.name, ())
    one = MUTATED.get(call.name[len("multi_") :], ())
    count = int(call.attrs["num_weights"])
    each = len(call.inputs) // count
    return tuple(at * each + place for at in range(count) for place in one)


def _one_by_one(event: Op) -> list[Op]:
    """An update of several weights as updates of one each."""
    if not event.name.startswith("multi_"):
        return [event]
    count = int(event.attrs["num_weights"])
    each, states = len(event.inputs) // count, (len(event.outputs) - count) // count
    found = []
    for at in range(count):
        attrs = {key: value for key, value in event.attrs.items() if key not in ("lrs", "wds", "num_weights")}
        for many in ("lrs", "wds"):
            attrs[many[:-1]] = event.attrs[many].strip("()[] ").split(",")[at].strip()
        inputs = event.inputs[at * each : (at + 1) * each]
        outputs = [event.outputs[at], *event.outputs[count + at * states : count + (at + 1) * states]]
        found.append(
            replace(event, name=event.name[len("multi_") :], attrs=attrs, inputs=inputs, outputs=outputs, results=1)
        )
    return found


def arrays_in(batch: Any, place: str = "") -> list[tuple[str, Any]]:
    """The arrays of a batch by their places in it: a list, a tuple, a dict or a ``DataBatch``."""
    if hasattr(batch, "asnumpy"):
        return [(place or "0", batch)]
    if hasattr(batch, "data") and hasattr(batch, "label"):
        return arrays_in({"data": batch.data or [], "label": batch.label or []}, place)
    items = batch.items() if isinstance(batch, dict) else enumerate(batch) if isinstance(batch, (list, tuple)) else ()
    return [found for key, part in items for found in arrays_in(part, f"{place}.{key}" if place else str(key))]


def _view(kind: str, arguments: tuple[Any, ...], array: Any, result: Any) -> list[tuple[str, dict[str, str]]]:
    """The operators that compute a view anew."""
    reshape = ("_np_reshape" if result.ndim == 0 or 0 in result.shape else "Reshape", _shape(result))
    if kind in ("reshape", "same"):
        return [reshape] if kind == "reshape" else [("_copy", {})]
    if kind == "detach":
        return [("BlockGrad", {})]
    if kind == "at":
        begin = arguments[0] % array.shape[0]
        return [("slice_axis", {"axis": "0", "begin": str(begin), "end": str(begin + 1)}), reshape]
    if kind == "slice":
        begin, end, _ = slice(*arguments).indices(array.shape[0])
        return [("slice_axis", {"axis": "0", "begin": str(begin), "end": str(end)})]
    key = tuple(part for part in arguments[0] if part is not None)
    parts = [part if isinstance(part, slice) else slice(part, part + 1 if part != -1 else None) for part in key]
    bounds = [part.indices(size) for part, size in zip(parts, array.shape)]
    ends = tuple(None if end < 0 else end for _, end, _ in bounds)
    attrs = {
        "begin": str(tuple(b for b, _, _ in bounds)),
        "end": str(ends),
        "step": str(tuple(s for _, _, s in bounds)),
    }
    return [("slice", attrs), reshape]


def _shape(array: Any) -> dict[str, str]:
    return {"newshape" if array.ndim == 0 or 0 in array.shape else "shape": str(tuple(array.shape))}
