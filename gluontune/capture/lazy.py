"""A program's arithmetic on PyTorch: its operators are gathered, and computed when it asks for a value.

Arrays are MXNet's in name and shape, their values PyTorch's; what PyTorch's side does not know is MXNet's to compute.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gluontune.capture.events import Arrays, Call, Op, Run, Step
from gluontune.capture.held import Held, listed
from gluontune.capture.interpret import Interpreter, as_declared, computes
from gluontune.capture.operators import EmptyHandles, result_types
from gluontune.capture.program import CHANGING
from gluontune.capture.recorder import PATIENCE, Recorder
from gluontune.capture.retreat import ERRORS, LostGradient, Retreat, or_mxnet
from gluontune.core.errors import GluontuneError, first_line
from gluontune.runtime.pytorch import synchronize

#: Operators whose results' shapes depend on values.
BY_VALUES = {"_contrib_boolean_mask", "_npi_boolean_mask", "_npi_unique", "_npx_nonzero", "_npi_delete"}
Spec = tuple[tuple[tuple[int, ...], str], ...]  # shape and dtype of each result


class Truth(NamedTuple):
    """An array whose value is PyTorch's; for a gradient, its variable."""

    array: Any
    tensor: Any
    kind: tuple[tuple[int, ...], str]  # shape and type
    lost: bool = False  # it was recorded, and its step has ended before a backward pass went through it


class LazyTorch(Recorder):
    """Records, and once :attr:`lazy` is set computes by PyTorch; see :class:`Recorder`."""

    def __init__(self, mx: Any, folder: str, finished: Callable[[Step], None], place: Any = None):
        super().__init__(mx, folder, finished)
        self.retreated: Callable[[str], None] = lambda why: None
        self.specs: dict[Any, Spec] = {}
        self.types: dict[Any, list[str]] = {}  # of results, by name, attributes and types of inputs
        self.truth: dict[int, Truth] = {}  # by the keys of ``held``
        self.interpreter = Interpreter(place=place)
        self.env: dict[int, Any] = {}  # tensors by the numbers of their values
        self.made: dict[int, Any] = {}  # the program's arrays by the values that they were given in this step
        self.done = 0  # events of the step that are computed
        self.handles = EmptyHandles(mx)
        self.kinds = (mx.nd.NDArray, mx.np.ndarray)

    # values

    def _key(self, call: Call, inputs: Sequence[int]) -> Any:
        values = self.step.values
        given = tuple((values[number].shape, values[number].dtype) for number in inputs)
        attrs = tuple(item for item in call.attrs.items() if item[0] not in CHANGING)
        return call.name, attrs, given, self.training

    def _arrived(self, value: int, array: Any, key: int) -> None:
        if not self.lazy:
            super()._arrived(value, array, key)
            return
        known = self.truth.get(key)
        if known is not None and known.lost:
            self.lost.add(value)
        self._written(array, value)
        self.interpreter.put(self.env, value, self._from_mxnet(array) if known is None else known.tensor)

    def _written(self, array: Any, value: int) -> None:
        if self.lazy:
            self.made[value] = array
            if self._variable(array):
                self.interpreter.wanted.add(value)

    def _kind(self, array: Any) -> tuple[tuple[int, ...], str]:
        known = self.truth.get(id(array))
        return super()._kind(array) if known is None else known.kind

    def _refuse(self, why: str) -> None:
        if self.lazy:
            raise GluontuneError(f"{self._line(always=True)}: {why}")
        super()._refuse(why)

    def _references(self) -> Counter[int]:
        found = super()._references()
        found.update(map(abs, self.truth))
        found.update(map(id, self.made.values()))
        return found

    def _is_ours(self, array: Any) -> bool:
        """Whether PyTorch has an array's value."""
        return any(id(array) in known for known in (self.held, self.truth, self.aliases))

    def _from_mxnet(self, array: Any) -> Any:
        return self.interpreter.taken(self._copy(array))

    def tensor(self, array: Any) -> Any:
        """An array's value; what is pending is computed."""
        known = self.truth.get(id(array))
        if known is not None and id(array) not in self.held and id(array) not in self.aliases:
            return known.tensor
        number = self.hold(array).value
        if number not in self.env:
            self.flush()
        return self.env[number]

    def give(self, values: np.ndarray, kind: type, context: Any) -> Any:
        """An array of the program's whose values PyTorch has at once; None where MXNet is to make it."""
        place = context.device_typeid, context.device_id
        if not self.lazy or kind not in self.kinds or place != (1, 0) or not self.hooks.here:
            return None
        like = values.shape, self._named(values.dtype)
        array = self._empty(*like, kind is self.kinds[1])
        self.truth[id(array)] = Truth(array, self.interpreter.taken(values), like)
        return array

    def flush(self) -> None:
        """Compute what is pending."""
        events, self.done = self.step.events[self.done :], len(self.step.events)
        with self.interpreter.timed():
            for computed in self.interpreter.run_all(events, self.env):
                for number in [number for event in computed for number in event.outputs]:
                    self.env[number] = as_declared(self.env[number], self.step.values[number])

    def _settle(self, arrays: Sequence[Any]) -> None:
        """Bring PyTorch's values of arrays to MXNet."""
        for array in arrays:
            if self._is_ours(array):
                value = self.tensor(array)
                with self.hooks.quiet():
                    array._sync_copyfrom(value.detach().cpu().numpy())

    # hooks

    def op(self, call: Call) -> Any:
        if not self.lazy:
            return self._recorded(call)
        call = self._begun(call)
        inputs = [self.hold(array).value for array in call.inputs]
        if self.was_recording and not self.lost.isdisjoint(inputs):
            raise LostGradient(
                f"{self._line(always=True)}: {call.name} goes on from what an earlier step recorded, and in {PATIENCE} "
                "steps before nothing did: its gradient is lost on PyTorch; run this program without --backend torch"
            )
        if computes(call.name):
            return self._gathered(call, inputs)
        if self._is_taped(call, inputs):
            raise GluontuneError(f"PyTorch's side does not know {call.name}")
        return self._by_mxnet(call)

    def _gathered(self, call: Call, inputs: list[int]) -> Any:
        """The results of an operator that is computed later."""
        if call.out is not None:
            self._add(call, inputs, listed(call.out), "")
            return call.out
        spec = None if call.name in BY_VALUES else self.specs.get(self._key(call, inputs))
        results = self._now(call, inputs) if spec is None else [self._empty(*one, call.is_np) for one in spec]
        if spec is not None:
            self._add(call, inputs, results, "", spec)
        return results if call.many or len(results) > 1 else results[0]

    def _now(self, call: Call, inputs: list[int]) -> list[Any]:
        """Compute an operator at once, whose results' shapes are not known."""
        self.flush()
        modes = self.was_recording, self.training
        tensors = self.interpreter.results(Op(call.name, call.complete(), inputs, [0], *modes, ""), self.env)
        attrs, given = call.complete(), tuple(self.step.values[number].dtype for number in inputs)
        key = call.name, tuple(attrs.items()), given
        if key not in self.types:
            with self.hooks.quiet():
                self.types[key] = result_types(self.mx, call.name, attrs, given)
        spec = tuple((tuple(tensor.shape), dtype) for tensor, dtype in zip(tensors, self.types[key]))
        results = [self._empty(*one, call.is_np) for one in spec]
        self._add(call, inputs, results, "")
        self.specs[self._key(call, inputs)] = spec
        event = self.step.events[-1]
        if len(event.outputs) == len(tensors):  # of a BatchNorm in training, more is computed
            self.done += 1
            for number, tensor in zip(event.outputs, tensors):
                self.interpreter.put(self.env, number, as_declared(tensor, self.step.values[number]))
        return results

    def retreat(self, error: Exception) -> None:
        """MXNet computes from here on: the step so far again, and whatever else PyTorch has the value of."""
        self.lazy = False
        taking_over = Retreat(self)
        with self.hooks.quiet():
            for key, (array, tensor, *_) in self.truth.items():
                (array if key > 0 else array.grad)._sync_copyfrom(tensor.detach().cpu().numpy())
            taking_over(self.step)
        self.hooks.remove()
        self.retreated(first_line(error))

    def _recorded(self, call: Call) -> Any:
        out = super().op(call)
        event = self.step.events[-1]
        if isinstance(event, Op) and event.name == call.name and call.out is None:
            values = [self.step.values[number] for number in event.outputs[: event.results]]
            self.specs[self._key(call, event.inputs)] = tuple((v.shape, v.dtype) for v in values)
        return out

    def _empty(self, shape: tuple[int, ...], dtype: str, is_np: bool) -> Any:
        """An array without memory."""
        return self.kinds[is_np](handle=self.handles(shape, dtype))

    def _by_mxnet(self, call: Call) -> Any:
        """An operator that PyTorch's side does not know, on values brought to MXNet."""
        self._settle(call.inputs)
        with self.mx.autograd.pause(self.mx.autograd.is_training()):
            out = call.run()
        for array in [*listed(out), *call.inputs]:
            self._outside(array)
        return out

    def _outside(self, array: Any) -> None:
        """MXNet has an array's value."""
        self._forget(array)
        if id(array) in self.held:
            number = self._new(array)
            self._write(array, number)
            self.interpreter.put(self.env, number, self._from_mxnet(array))

    def _forget(self, array: Any) -> None:
        self.truth.pop(id(array), None)

    def mark(self, arrays: Arrays, gradients: Arrays, reqs: Sequence[str]) -> None:
        if self.lazy:
            try:
                self.truth.update(
                    {id(a): Truth(a, self.tensor(a).detach(), self._kind(a)) for a in arrays if self._is_ours(a)}
                )
            except ERRORS as error:
                self.retreat(error)
        super().mark(arrays, gradients, reqs)

    def read(self, array: Any, run: Run) -> Any:
        if not self.lazy or not self._is_ours(array):
            return run()
        return self.tensor(array).detach().cpu().numpy().copy()

    def outside(self, arrays: Arrays, run: Run) -> Any:
        if not self.lazy:
            return super().outside(arrays, run)
        self._settle(arrays)
        result = run()
        for array in arrays:
            self._outside(array)
        return result

    def wait(self, run: Run) -> Any:
        if self.lazy:
            self.flush()
            synchronize(self.interpreter.place)
        return run()

    batch = or_mxnet(Recorder.batch)

    def _differentiated(self, array: Any) -> None:
        if self.lazy:
            array._fresh_grad = True

    def _compute(self, run: Run, wanted: bool) -> Any:
        if self.lazy and not wanted:
            raise GluontuneError("a backward pass reaches no variable")
        return None if self.lazy else run()

    def _close(self, step: Step) -> None:
        """Keep what the program still holds."""
        if not self.lazy:
            super()._close(step)
            return
        lost = {number for number, _ in self._open()}
        for entry in [entry for entry in self.held.values() if entry.base is not None and entry.array is not None]:
            self.hold(entry.array)
        self.flush()
        self.made.clear()
        self.before.clear()
        ours = self._forget_unused()
        bases = {id(alias.base) for alias in self.aliases.values()}
        for key, entry in self.held.items():
            if entry.array is None and -key in self.variables:
                self.truth[key] = Truth(self.variables[-key].array, *self._kept(entry))
            elif entry.array is not None and entry.base is None:
                if key in bases or sys.getrefcount(entry.array) > ours[key] + 1:
                    self.truth[key] = Truth(entry.array, *self._kept(entry), entry.value in lost)
                else:
                    self.truth.pop(key, None)
        self._drop(ours, bases)
        self.env.clear()
        self.lost.clear()
        self.interpreter.wanted.clear()
        self.done = 0

    def _drop(self, ours: Counter[int], bases: set[int]) -> None:
        """Forget values of arrays that the program has no more, but for those of this step."""
        for key in [key for key in self.truth if key not in self.held and key not in bases]:
            if -key not in self.variables and sys.getrefcount(self.truth[key].array) <= ours[abs(key)] + 1:
                del self.truth[key]

    def _kept(self, entry: Held) -> tuple[Any, tuple[tuple[int, ...], str]]:
        value = self.step.values[entry.value]
        return self.env[entry.value].detach(), (value.shape, value.dtype)

    def release(self) -> None:
        """Let go of the program's arrays, before Python takes its modules apart."""
        self.hooks.remove()
        for name in ["held", "before", "truth", "made", "env", "aliases", "variables", "owners"]:
            getattr(self, name).clear()
