"""Backward passes of a program: the gradients that they compute, and the running statistics that change in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluontune.capture.events import ADDED, RUNNING, Arrays, Backward, Op, Run
from gluontune.capture.held import Held
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
