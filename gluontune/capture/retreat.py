"""MXNet takes a step over again that PyTorch had begun: in the program's own arrays, with a tape that goes on."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from gluontune.capture.events import ADDED, RUNNING, Backward, Op, Step
from gluontune.capture.operator_names import operator_names


class Retreat:
    """Computes a step's events by MXNet.

    Args:
        mx: the mxnet module, without hooks. made: the program's arrays by the values that they were given.
    """

    def __init__(self, mx: Any, made: Mapping[int, Any]):
        self.mx, self.made = mx, made
        self.handles = {name: handle for handle, name in operator_names(mx).items()}
        self.invoke = importlib.import_module("mxnet.ndarray.register")._imperative_invoke
        self.filled: set[int] = set()
        self.between: dict[int, Any] = {}  # what a view of two operators has between them

    def __call__(self, step: Step, leaves: Mapping[int, Any]) -> None:
        """Compute the step, from ``leaves``: values by number, as numpy arrays, of arrays that MXNet does not have."""
        self.filled = {id(array) for number, array in self.made.items() if number in leaves}
        outputs = {number for event in step.events for number in event.outputs}
        self.filled |= {id(array) for number, array in self.made.items() if number not in outputs}
        for number, values in leaves.items():
            self.made[number]._sync_copyfrom(values)
        for event in step.events:
            if isinstance(event, Backward):
                self._backward(event)
            elif event.name not in (RUNNING, ADDED):  # MXNet's own backward pass does these
                self._run(event)

    def _run(self, op: Op) -> None:
        inputs = [self.made[number] if number in self.made else self.between[number] for number in op.inputs]
        targets = [self.made.get(number) for number in op.outputs[: op.results]]
        old = [target for target in targets if target is not None and id(target) in self.filled]
        is_np = any(isinstance(array, self.mx.np.ndarray) for array in [*inputs, *targets])
        name = "_copy" if op.name == "_copyto" and len(old) < len(targets) else op.name
        call = self.handles[name], inputs, list(op.attrs), list(op.attrs.values())
        with self.mx.autograd._RecordingStateScope(op.recording, op.training):
            found = self.invoke(*call, old if len(old) == len(targets) else None, is_np, True)
        for target, result in zip(targets, found):
            if target is None:
                self.between[op.outputs[0]] = result
            if target is None or target is result:
                continue
            if id(target) in self.filled:
                result.copyto(target)
            else:  # the program's array becomes the result, tape and all
                target.handle, result.handle = result.handle, target.handle
                self.filled.add(id(target))

    def _backward(self, b: Backward) -> None:
        heads = [self.made[number] for number in b.heads]
        grads = b.head_grads and [None if number is None else self.made[number] for number in b.head_grads]
        self.mx.autograd.backward(heads, grads, retain_graph=b.retain, train_mode=b.training)
        self.filled.update(id(self.made[number]) for number in b.outputs if number in self.made)
