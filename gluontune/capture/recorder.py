"""A recorder of what a program computes: operators in order, by values that never change, cut into training steps."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluontune.capture.events import ADDED, NORMALIZING, RUNNING, Arrays, Backward, Call, Op, Run, Step, draws
from gluontune.capture.held import Alias, Held, Tape, View, arrays_in, listed, view_operators
from gluontune.capture.interpret import computes
from gluontune.capture.values import Values


class Gradients(Values):
    """Records backward passes; see :class:`Values`."""

    def backward(self, heads: Arrays, head_grads: Arrays | None, train: bool, retain: bool, run: Run) -> Any:
        values = [self.hold(head).value for head in heads]
        grads = None
        if head_grads is not None:
            grads = [None if grad is None else self.hold(grad).value for grad in head_grads]
        reached, ops = self._reached(values)
        for name in sorted({self.tape.overwritten[value] for value in reached & self.tape.overwritten.keys()}):
            self._refuse(f"{name} is changed between the pass that reads it and its backward pass")
        bases = [e for e in self.held.values() if e.array is not None and e.value in reached and e.base is None]
        wanted = [(entry, req) for entry in bases for req in [self._variable(entry.array)] if req]
        before = [self._gradient(entry, req == "add") for entry, req in wanted]
        result = self._compute(run, bool(wanted))
        for head, value in zip(heads, values):
            self._snapshot(value, head)
        event = Backward(values, grads, [], [], train, self._line(), retain)
        self.step.events.append(event)
        for (entry, _), found in zip(wanted, before):
            self._new_gradient(event, entry, *found)
        for op in ops:
            self._take_in(op)
        if not retain:
            self._close_tape(ops)
        return result

    def _close_tape(self, ops: Sequence[Op]) -> None:
        """MXNet has freed the graph of these operators: no later backward pass goes through them, or what follows."""
        closed = {number for op in ops for number in op.outputs}
        for event in self.step.events:
            if isinstance(event, Op) and event.recording and not closed.isdisjoint(event.inputs):
                closed.update(event.outputs)
        self.tape.closed |= closed

    def _take_in(self, op: Op) -> None:
        """Running statistics change in the backward pass."""
        for array, batch in zip(self.tape.statistics.pop(op.outputs[0], ()), op.outputs[op.results :]):
            old = self.hold(array).value
            number = self._like(old)
            attrs = {"momentum": op.attrs.get("momentum", "0.9")}
            self.step.events.append(Op(RUNNING, attrs, [old, batch], [number], False, False, op.line))
            self._write(array, number)

    def _compute(self, run: Run, wanted: bool) -> Any:
        """A backward pass; whether it reaches any variable."""
        return run()

    def _reached(self, heads: list[int]) -> tuple[set[int], list[Op]]:
        """The heads and all values behind them, with the operators, last ones first, that a gradient passes through."""
        found, ops, taped = set(heads), list[Op](), self.tape.values
        for event in reversed(self.step.events):
            if not isinstance(event, Op) or not event.recording or taped.isdisjoint(event.outputs):
                continue
            if not found.isdisjoint(event.outputs[: event.results]):
                found.update(event.inputs)
                ops.append(event)
        return found, ops

    def _gradient(self, entry: Held, adds: bool) -> tuple[Any, int, int | None]:
        """A variable's gradient: the array, its key, and its value so far where a backward pass adds to it."""
        owner = self._owner(entry.array)
        assert owner is not None
        with self.hooks.quiet():
            array = entry.array.grad if owner.parameter is None else owner.parameter.grad(entry.array.context)
        if owner.parameter is not None:
            return array, id(array), self.hold(array).value if adds else None
        if adds:
            self._gradient_of(entry.array, array)
        return array, -id(entry.array), self.held[-id(entry.array)].value if adds else None

    def _new_gradient(self, event: Backward, entry: Held, array: Any, key: int, old: int | None) -> None:
        number = self._new(array)
        self.tape.reached.add(id(entry.array))
        self._differentiated(entry.array)
        event.variables.append(entry.value)
        event.outputs.append(number)
        self._snapshot(number, array)
        if old is not None:
            total = self._like(number)
            self.step.values[total].array = self.step.values[number].array
            self.step.values[number].array = None
            self.step.events.append(Op(ADDED, {}, [old, number], [total], False, False, event.line))
            number = total
        if key > 0:
            self._write(array, number)
            return
        found = self.held.setdefault(key, Held(None, number))
        found.value, found.version = number, found.version + 1

    def _differentiated(self, array: Any) -> None:
        """A variable has a new gradient."""


PATIENCE = 5  # times that a step goes on for values that no backward pass has used: critics of GANs train so often


class Recorder(Gradients):
    """Records whole training steps; ``finished`` is called with each that trained something, at its end."""

    def __init__(self, mx: Any, folder: str, finished: Callable[[Step], None]):
        super().__init__(mx, folder)
        self.finished, self.lazy = finished, False
        self.never_used: set[Any] = set()
        self.batches, self.was_recording, self.training = False, False, False

    def op(self, call: Call) -> Any:
        call = self._begun(call)
        inputs, line = [self.hold(array).value for array in call.inputs], self._line()
        dropped = self._dropped(call)
        out = call.run(None, self._changed(call)) if dropped is None else dropped[0]
        self._add(call, inputs, listed(out), line)
        last = self.step.events[-1]
        if dropped is not None and isinstance(last, Op):
            last.mask = dropped[1]
        return out

    def _dropped(self, call: Call) -> tuple[Any, np.ndarray] | None:
        """Dropout by a mask that is known, where values are copied: what it makes of ones, from the same draws."""
        drops = self.copying and call.name == "Dropout" and call.out is None
        if not drops or not (call.attrs.get("mode") == "always" or self.mx.autograd.is_training()):
            return None
        with self.hooks.quiet():
            with self.mx.autograd.pause(train_mode=True):
                mask = call.run([call.inputs[0] * 0 + 1])
            return call.inputs[0] * mask, np.asarray(mask.asnumpy())

    def _begun(self, call: Call) -> Call:
        """The call of an operator of this step, by its name in a graph; refuses what it cannot write to."""
        self._between_steps()
        if call.name == "_copyto":  # into an array that may be of another type
            (_, given), (_, wanted) = self._kind(call.inputs[0]), self._kind(listed(call.out)[0])
            name, attrs = ("_copy", {}) if given == wanted else ("Cast", {"dtype": wanted})
            call = call._replace(name=name, attrs=attrs)
        for array in [*listed(call.out), *[call.inputs[place] for place in call.mutated]]:
            self._check_target(array)
        if call.sets_gamma and self._variable(call.inputs[1]):
            value = self.hold(call.inputs[1]).value
            number = self._like(value)
            self.step.events.append(Op("ones_like", {}, [value], [number], False, self.training, self._line()))
            self._write(call.inputs[1], number)
        return call

    def _between_steps(self) -> None:
        """A step without batches is over when the next recording begins."""
        recording, training = self._modes()
        if recording and not self.was_recording and self.updated and not self.batches:
            self._end_unless_open()
        self.was_recording, self.training = recording, training

    def _modes(self) -> tuple[bool, bool]:
        recording, training = self.hooks.modes
        return recording, training

    def _changed(self, call: Call) -> dict[str, str] | None:
        """Attributes that make a step computable again: no dropout between the layers of an RNN."""
        return {"p": "0"} if self.copying and call.name == "RNN" and "p" in call.attrs else None

    def _is_taped(self, call: Call, inputs: Sequence[int]) -> bool:
        """Whether a gradient passes through an operator."""
        if not self.was_recording:
            return False
        return not self.tape.values.isdisjoint(inputs) or any(self._variable(array) for array in call.inputs)

    def _add(self, call: Call, inputs: list[int], results: list[Any], line: str, spec: Any = None) -> None:
        """The event of an operator that was called, and its arrays' values now. spec: of the results, if known."""
        if call.name == "reset_arrays":
            for array, value in zip(call.inputs, inputs):
                self._add(call._replace(name="zeros_like", attrs={}, inputs=[array], out=array), [value], [array], line)
            return
        numbers = [self._add_value(*one) for one in spec] if spec else [self._new(array) for array in results]
        if self._is_taped(call, inputs):
            self.tape.values.update(numbers)
        if draws(call.name) or not (computes(call.name) or self.tape.values.issuperset(numbers)):
            for number, array in zip(numbers, results):
                self._snapshot(number, array)
                self.step.values[number].source = "" if draws(call.name) else "mxnet"
        attrs, training = call.complete(), self.training
        event = Op(call.name, attrs, inputs, numbers, self.was_recording, training, line, len(numbers))
        written = list(zip(results, numbers)) if call.out is not None else []
        if training and call.name in NORMALIZING and attrs.get("use_global_stats", "False") not in ("True", "1"):
            event.outputs = [*event.outputs, self._like(inputs[3]), self._like(inputs[4])]
            self.tape.statistics[numbers[0]] = call.inputs[3:5]
        for place in call.mutated:
            event.outputs = [*event.outputs, self._like(inputs[place])]
            written.append((call.inputs[place], event.outputs[-1]))
        self.step.events += event.one_by_one()
        for array, number in written:
            self._write(array, number)
        for array, number in zip(results, numbers) if call.out is None else ():
            self.held[id(array)] = Held(array, number)
            self._written(array, number)

    def view(self, array: Any, kind: str, arguments: tuple[Any, ...], run: Run) -> Any:
        """An array that shares memory: by reshape, at, slice (from, to), basic (a key), same, detach or grad."""
        result = run()
        if result is None or result is array:
            return result
        if kind == "grad":
            self._gradient_of(array, result)
            return result
        recording, training = self._modes()
        recording = recording and kind != "detach"  # no gradient passes, and none is written
        view = View(*view_operators(kind, arguments, array, result), *self._kind(result), recording, training)
        self._view_of(Alias(result, array, view, run))
        return result

    def write(self, array: Any, values: Any, run: Run) -> None:
        self._check_target(array)
        run()
        self._forget(array)
        value = self._new(array, source="host", line=self._line())
        self._arrived(value, array, id(array))
        self._write(array, value)

    def _forget(self, array: Any) -> None:
        """What was known of an array's value holds no more."""

    def mark(self, arrays: Arrays, gradients: Arrays, reqs: Sequence[str]) -> None:
        if all(gradient is None for gradient in gradients):  # attach_grad; of parameters Gluon tells
            for array, req in zip(arrays, reqs):
                self._becomes_variable(array, req)

    def unknown(self, what: str, run: Run) -> Any:
        self._refuse(f"{what} cannot be put into a graph")
        return run()

    def update(self, trainer: Any, batch_size: Any, run: Run) -> Any:
        self._updating(trainer, batch_size)
        result = run()
        self.updated = True
        return result

    def _updating(self, trainer: Any, batch_size: Any) -> None:
        """A trainer begins to update."""
        if len(trainer._contexts) > 1:
            self._refuse(f"gradients of {len(trainer._contexts)} devices are added by a store")
        if self.lazy:
            return
        optimizer = trainer._optimizer
        schedule = copy.deepcopy(optimizer.lr_scheduler)  # the script's own may count how often it is asked
        rate = schedule(optimizer.num_update) if schedule else optimizer.lr
        told = {"optimizer": type(optimizer).__name__.lower(), "learning_rate": rate}
        names = [parameter.name for parameter in trainer._params if parameter.grad_req != "null"]
        self.step.updates.append({**told, "batch_size": batch_size, "parameters": names, "line": self._line()})
        for parameter in trainer._params:
            unseen = [d for d in parameter._data or () if d._fresh_grad and id(d) not in self.tape.reached]
            if unseen and parameter.grad_req != "null":
                self._refuse(f"where the gradient of {parameter.name} comes from is not seen")

    def batch(self, source: Any, run: Run) -> Any:
        self.batches = True
        if self._may_end():
            self._end_unless_open()
        result = run()
        self._batch_of(arrays_in(result))
        return result

    def _may_end(self) -> bool:
        """Whether a batch may begin another step."""
        return self.updated or not any(isinstance(event, Backward) for event in self.step.events)

    def _batch_of(self, arrays: Sequence[tuple[str, Any]]) -> None:
        """A batch's arrays, by their places in it, are leaves."""
        for place, array in arrays:
            value = self._new(array, source="batch", name=place, line=self._line())
            self._arrived(value, array, id(array))
            self.held[id(array)] = Held(array, value)

    def _end_unless_open(self) -> None:
        """End the step, unless a later backward pass may go through it, as through a generator's images.

        What is left open so often and then not used is left open for good: attention weights that a net shows.
        """
        tape = self.tape
        tape.waited.update(kind for number, kind in tape.left_open if number not in tape.closed)
        self.never_used.update(kind for kind, times in tape.waited.items() if times >= PATIENCE)
        tape.left_open = [(number, kind) for number, kind in self._open() if kind not in self.never_used]
        if not tape.left_open:
            self.end()

    def _open(self) -> list[tuple[int, Any]]:
        """Of :meth:`unreached` those that the program holds."""
        ours, entries = self._let_go() if self.copying else self._forget_unused(), self.held.items()
        held = {e.value for key, e in entries if e.array is not None and sys.getrefcount(e.array) > ours[key] + 1}
        return [(number, kind) for number, kind in self.unreached() if number in held]

    def unreached(self) -> list[tuple[int, Any]]:
        """Values on the tape that no backward pass has reached, with what made them."""
        return [
            (number, (event.name, i, self.step.values[number].shape))
            for event in self.step.events
            if isinstance(event, Op) and event.recording and not self.tape.values.isdisjoint(event.outputs)
            for i, number in enumerate(event.outputs)
            if number not in self.tape.closed
        ]

    def end(self) -> None:
        step, trained = self.step, self.updated
        self._close(step)
        self.held, self.step, self.tape, self.updated = {}, Step(), Tape(), False
        if trained:
            with self.hooks.quiet():
                self.finished(step)

    def _close(self, step: Step) -> None:
        """Copy what the step changed; its arrays are kept for one more, which may go on from them."""
        for value in step.writes.values():
            held = next((e for e in self.held.values() if e.value == value and e.array is not None), None)
            if held is not None:
                self._snapshot(value, held.array)
        self.before = {key: entry for key, entry in self.held.items() if key > 0}
