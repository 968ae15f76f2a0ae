"""A program's arithmetic on PyTorch: its operators are gathered, and computed when it asks for a value.

The program runs under MXNet's front end, with its own data, prints and files; arrays are MXNet's in name and shape,
their values are PyTorch's. What PyTorch's side does not know is computed by MXNet, on values brought there.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluontune.capture.events import Op, Step
from gluontune.capture.handler import Call
from gluontune.capture.interpret import Interpreter, computes
from gluontune.capture.recorder import Recorder
from gluontune.capture.retreat import Retreat
from gluontune.capture.values import Held
from gluontune.core.errors import GluontuneError
from gluontune.runtime.pytorch import torch

_ERRORS = (GluontuneError, RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)
#: Operators whose results' shapes depend on values.
_BY_VALUES = {"_contrib_boolean_mask", "_npi_boolean_mask", "_npi_unique", "_npx_nonzero", "_npi_delete"}
Spec = tuple[tuple[tuple[int, ...], str], ...]  # shape and dtype of each result


class LazyTorch(Recorder):
    """Records, and once :attr:`lazy` is set computes by PyTorch; see :class:`Recorder`."""

    def __init__(self, mx: Any, folder: str, finished: Callable[[Step], None]):
        super().__init__(mx, folder, finished)
        self.retreated: Callable[[str], None] = lambda why: None
        self.specs: dict[Any, Spec] = {}
        self.truth: dict[int, tuple[Any, Any]] = {}  # arrays whose values are PyTorch's
        self.interpreter = Interpreter()
        self.env: dict[int, Any] = {}
        self.made: dict[int, Any] = {}  # the program's arrays by the values that they were given in this step
        self.done = 0  # events of the step that are computed
        arrays = importlib.import_module("mxnet.ndarray.ndarray")
        self.new_handle = arrays._new_alloc_handle
        self.kinds = (mx.nd.NDArray, mx.np.ndarray)

    # values

    def _key(self, call: Call, inputs: Sequence[int]) -> Any:
        values = self.step.values
        given = tuple((values[number].shape, values[number].dtype) for number in inputs)
        return call.name, tuple(call.attrs.items()), given, self.training

    def _arrived(self, value: int, array: Any) -> None:
        if not self.lazy:
            super()._arrived(value, array)
            return
        known = self.truth.get(id(array))
        if known is None or known[0] is not array:
            known = (array, self._from_mxnet(array))
        self._written(array, value)
        self.interpreter.put(self.env, value, known[1])

    def _written(self, array: Any, value: int) -> None:
        if self.lazy:
            self.made[value] = array
            if self._variable(array)[0]:
                self.interpreter.wanted.add(value)

    def _made(self, array: Any, value: int) -> None:
        if self.lazy:
            self.made[value] = array

    def _from_mxnet(self, array: Any) -> Any:
        return torch().from_numpy(self._copy(array).copy())

    def tensor(self, array: Any) -> Any:
        """An array's value; what is pending is computed."""
        number = self.hold(array).value
        self.flush()
        return self.env[number]

    def flush(self) -> None:
        """Compute what is pending."""
        events, self.done = self.step.events[self.done :], len(self.step.events)
        for event in events:
            self.interpreter.run(event, self.env)
            for number in event.outputs:
                tensor, shape = self.env[number], self.step.values[number].shape
                if tuple(tensor.shape) != shape:  # () and (1,) are one to the bridge
                    if tensor.numel() != math.prod(shape):
                        raise GluontuneError(f"a result has the shape {tuple(tensor.shape)}, MXNet's has {shape}")
                    self.env[number] = tensor.reshape(shape)

    def _settle(self, arrays: Sequence[Any]) -> None:
        """Bring PyTorch's values of arrays to MXNet."""
        for array in arrays:
            if id(array) in self.held or id(array) in self.truth:
                value = self.tensor(array)
                with self.hooks.quiet():
                    array._sync_copyfrom(value.detach().cpu().numpy())

    # hooks

    def op(self, call: Call) -> Any:
        if not self.lazy:
            return self._recorded(call)
        try:
            self._between_steps()
            inputs = [self.hold(array).value for array in call.inputs]
            if computes(call.name):
                return self._gathered(call, inputs)
            if self._is_taped(call, inputs):
                raise GluontuneError(f"PyTorch's side does not know {call.name}")
            return self._by_mxnet(call)
        except _ERRORS as error:
            self.retreat(error)
            return call.run()

    def _gathered(self, call: Call, inputs: list[int]) -> Any:
        """The results of an operator that is computed later."""
        if call.out is not None:
            self._add(call, inputs, list(call.out) if isinstance(call.out, (list, tuple)) else [call.out], "")
            return call.out
        spec = None if call.name in _BY_VALUES else self.specs.get(self._key(call, inputs))
        results = self._now(call, inputs) if spec is None else [self._empty(*one, call.is_np) for one in spec]
        if spec is not None:
            self._add(call, inputs, results, "", spec)
        return results if call.many or len(results) > 1 else results[0]

    def _now(self, call: Call, inputs: list[int]) -> list[Any]:
        """Compute an operator at once, whose results' shapes are not known."""
        self.flush()
        modes = self.was_recording, self.training
        tensors = self.interpreter.results(Op(call.name, self._complete(call), inputs, [0], *modes, ""), self.env)
        spec = tuple((tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for tensor in tensors)
        results = [self._empty(*one, call.is_np) for one in spec]
        self._add(call, inputs, results, "")
        self.specs[self._key(call, inputs)] = spec
        event = self.step.events[-1]
        if len(event.outputs) == len(tensors):  # of a BatchNorm in training, more is computed
            self.done += 1
            for number, tensor in zip(event.outputs, tensors):
                self.interpreter.put(self.env, number, tensor)
        return results

    def retreat(self, error: Exception) -> None:
        """MXNet computes from here on: the step so far again, and whatever else PyTorch has the value of."""
        self.lazy = False
        outputs = {number for event in self.step.events for number in event.outputs}
        leaves = {n: self.env[n] for n, array in self.made.items() if n not in outputs and id(array) in self.truth}
        with self.hooks.quiet():
            Retreat(self.mx, self.made)(self.step, {n: t.detach().numpy() for n, t in leaves.items()})
            here = {id(array) for array in self.made.values()}
            for key, (array, tensor) in self.truth.items():
                if key not in here:
                    array._sync_copyfrom(tensor.detach().numpy())
        self.hooks.remove()
        self.retreated(str(error).splitlines()[0] if str(error) else type(error).__name__)

    def _recorded(self, call: Call) -> Any:
        out = super().op(call)
        event = self.step.events[-1]
        if isinstance(event, Op) and event.name == call.name and call.out is None:
            values = [self.step.values[number] for number in event.outputs[: event.results]]
            self.specs[self._key(call, event.inputs)] = tuple((v.shape, v.dtype) for v in values)
        return out

    def _empty(self, shape: tuple[int, ...], dtype: str, is_np: bool) -> Any:
        """An array without memory."""
        handle = self.new_handle(shape, self.mx.cpu(), True, np.dtype(dtype).type)
        return self.kinds[is_np](handle=handle)

    def _by_mxnet(self, call: Call) -> Any:
        """An operator that PyTorch's side does not know, on values brought to MXNet."""
        self._settle(call.inputs)
        with self.mx.autograd.pause(self.mx.autograd.is_training()):
            out = call.run()
        for array in [*(out if isinstance(out, (list, tuple)) else [out]), *call.inputs]:
            self._outside(array)
        return out

    def _outside(self, array: Any) -> None:
        """MXNet has an array's value."""
        self.truth.pop(id(array), None)
        if id(array) in self.held:
            number = self._new(array)
            self.env[number] = self._from_mxnet(array)
            self._write(array, number)

    def write(self, array: Any, values: Any, run: Callable[[], None]) -> None:
        self.truth.pop(id(array), None)
        super().write(array, values, run)

    def read(self, array: Any, run: Callable[[], Any]) -> Any:
        if not self.lazy:
            return super().read(array, run)
        if id(array) not in self.held and id(array) not in self.truth:
            return run()
        try:
            return self.tensor(array).detach().cpu().numpy().copy()
        except _ERRORS as error:
            self.retreat(error)
            return run()

    def outside(self, arrays: Sequence[Any], run: Callable[[], Any]) -> Any:
        if not self.lazy:
            return super().outside(arrays, run)
        self._settle(arrays)
        result = run()
        for array in arrays:
            self._outside(array)
        return result

    def wait(self, run: Callable[[], Any]) -> Any:
        if self.lazy:
            self.flush()
        return run()

    def _differentiated(self, array: Any) -> None:
        if self.lazy:
            array._fresh_grad = True

    def _compute(self, run: Callable[[], Any]) -> Any:
        return None if self.lazy else run()

    def end(self) -> None:
        """The step is over: what the program still holds is kept."""
        if not self.lazy:
            super().end()
            return
        self.made.clear()
        alive = [entry.array for key, entry in self.held.items() if self._is_alive(key, entry)]
        numbers = [self.hold(array).value for array in alive]
        self.flush()
        self.truth.update({id(a): (a, self.env[number].detach()) for a, number in zip(alive, numbers)})
        self.held.clear()
        self.before.clear()
        alive.clear()
        for key in [key for key, (array, _) in self.truth.items() if sys.getrefcount(array) <= 3]:
            del self.truth[key]
        trained, step = self.updated, self.step
        self.step, self.updated, self.done = Step(), False, 0
        self.env.clear()
        self.closed.clear()
        self.taped.clear()
        self.differentiated.clear()
        self.left_open.clear()
        self.statistics.clear()
        if trained:
            self.finished(step)

    def _is_alive(self, key: int, entry: Held) -> bool:
        """Whether the program still has an array: whether anybody but the recorder refers to it."""
        ours = 3 if key in self.truth else 2
        return entry.array is not None and sys.getrefcount(entry.array) > ours
