"""What fails on PyTorch's side is MXNet's to compute: it takes a step over, in the program's arrays, with its tape."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from gluontune.capture.events import ADDED, RUNNING, Backward, Call, Op, Step
from gluontune.capture.operators import Operators
from gluontune.core.errors import GluontuneError

ERRORS = (GluontuneError, RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)


class LostGradient(Exception):
    """A program asks for a gradient that passes through an earlier step, which PyTorch has let go; no way back."""


class Once:
    """MXNet's own call, made at most once; its errors are the program's."""

    def __init__(self, run: Callable[..., Any]):
        self._run, self.done, self.result = run, False, None
        self.failed: BaseException | None = None

    def __call__(self, *args: Any) -> Any:
        try:
            self.result = self._run(*args)
        except BaseException as error:
            self.failed = error
            raise
        self.done = True
        return self.result


def or_mxnet(method: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of a handler with ``lazy`` and ``retreat(error)`` that MXNet takes over where PyTorch's side fails."""

    @functools.wraps(method)
    def entry(self: Any, *args: Any) -> Any:
        if not self.lazy:
            return method(self, *args)
        *given, last = args  # a call of an operator has what runs it; of the others it is the last argument
        run = Once(last.run if isinstance(last, Call) else last)
        try:
            found = method(self, *given, last._replace(run=run) if isinstance(last, Call) else run)
            run.result = None  # a view keeps what makes it
            return found
        except ERRORS as error:
            if run.failed is error or not self.lazy:
                raise
            self.retreat(error)
        return run.result if run.done else run()

    return entry


class Retreat:
    """Computes the step under way by MXNet, of a recorder whose hooks are quiet."""

    def __init__(self, recorder: Any):
        self.mx, self.made, self.operators = recorder.mx, recorder.made, Operators(recorder.mx)
        env, outputs = recorder.env, {number for event in recorder.step.events for number in event.outputs}
        #: Values that no event makes, by number.
        self.leaves = {n: env[n].detach().cpu().numpy() for n in self.made if n not in outputs and n in env}
        #: What makes arrays that share another's memory, by their ids.
        self.views = {key: alias.run for key, alias in recorder.aliases.items() if alias.run is not None}
        ids = [id(self.made[number]) for number in self.leaves]
        self.filled, written = set(ids), Counter(ids)
        #: The value that an array holds, by the array's id; not of those that the host has written to in this step.
        self.has = {key: number for key, number in zip(ids, self.leaves) if written[key] == 1}
        self.added: dict[int, int] = {}  # gradients so far, by those that are added to them
        self.between: dict[int, Any] = {}  # what a view of two operators has between them

    def __call__(self, step: Step) -> None:
        sums = [event for event in step.events if isinstance(event, Op) and event.name == ADDED]
        self.added = {new: old for old, new in (event.inputs for event in sums)}
        for event in step.events:
            if isinstance(event, Backward):
                self._backward(event)
            elif event.name not in (RUNNING, ADDED):  # MXNet's own backward pass does these
                self._run(event)
        for number in sorted(self.leaves):  # what the host has written last
            if self.has.get(id(self.made[number]), 0) < number:
                self._array(number)

    def _array(self, number: int) -> Any:
        """The array that holds a value."""
        array = self.made.get(number)
        if array is None:
            return self.between[number]
        if number in self.leaves and self.has.get(id(array)) != number:
            array._sync_copyfrom(self.leaves[number])
        self.has[id(array)] = number
        return array

    def _run(self, op: Op) -> None:
        inputs = [self._array(number) for number in op.inputs]
        targets = [self.made.get(number) for number in op.outputs[: op.results]]
        view = self.views.get(id(targets[0])) if op.view else None
        old = [target for target in targets if target is not None and id(target) in self.filled]
        is_np = any(isinstance(array, self.mx.np.ndarray) for array in [*inputs, *targets])
        out = old if len(old) == len(targets) else None
        with self.mx.autograd._RecordingStateScope(op.recording, op.training):
            found = [view()] if view else self.operators(op.name, inputs, op.attrs, out, is_np)
        for target, result in zip(targets, found):
            if target is None:
                self.between[op.outputs[0]] = result
            elif target is not result and id(target) in self.filled and not view:
                result.copyto(target)
            elif target is not result:  # the program's array becomes the result, tape and all
                target.handle, result.handle = result.handle, target.handle
                self.filled.add(id(target))
        self._has(op.outputs)

    def _backward(self, b: Backward) -> None:
        for number in b.outputs:
            if number in self.added:
                self._array(self.added[number])
        heads = [self._array(number) for number in b.heads]
        grads = b.head_grads and [None if number is None else self._array(number) for number in b.head_grads]
        self.mx.autograd.backward(heads, grads, retain_graph=b.retain, train_mode=b.training)
        self._has(b.outputs)

    def _has(self, numbers: Sequence[int]) -> None:
        """Arrays hold these values now."""
        for number in numbers:
            if number in self.made:
                self.has[id(self.made[number])] = number
                self.filled.add(id(self.made[number]))
