"""The books of a step that was followed, made afterwards: what hooks saw goes through the recorder again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gluontune.capture.events import Step
from gluontune.capture.follower import Follower
from gluontune.capture.handler import Call
from gluontune.capture.learning import LearningTorch


class Made:
    """What made an array: at first that array, later another."""

    def __init__(self, run: Callable[[], Any], result: Any):
        self.run, self.result = run, result

    def __call__(self) -> Any:
        result, self.result = self.result, None
        return self.run() if result is None else result


class RepeatingTorch(LearningTorch):
    """Goes through a followed step again; see :class:`Recorder`."""

    def __init__(self, mx: Any, folder: str, finished: Callable[[Step], None]):
        super().__init__(mx, folder, finished)
        self._given: tuple[bool, bool] | None = None  # modes of an entry that is gone through again

    def _modes(self) -> tuple[bool, bool]:
        return super()._modes() if self._given is None else self._given

    def _differentiated(self, array: Any) -> None:
        if not self._repeats:
            super()._differentiated(array)
        else:
            self._fresh.append(id(array))

    def _repeat(self, follow: Follower) -> None:
        """Make the books of what was followed so far: its arrays are there, and nothing is computed."""
        self._repeats = True
        try:
            for at in range(follow.at):
                self._fill(follow, at)
                self._go_through(follow, at)
        finally:
            self._repeats, self._given = False, None

    def _fill(self, follow: Follower, at: int) -> None:
        """Make the arrays of an entry of a call that was answered."""
        entry = follow.entries[at]
        if entry.kind == "op" and not entry.out:
            for place, (shape, dtype) in zip(entry.results, entry.specs):
                if follow.arrays[place] is None:
                    follow.arrays[place] = self._empty(shape, dtype, entry.what[2])
        elif entry.kind == "view" and at not in follow.runs:
            place, (kind, arguments) = entry.results[0], entry.what
            given = (entry.specs[0][0],) if kind == "reshape" else arguments
            follow.runs[at] = functools.partial(self._viewed_again, follow.arrays[entry.inputs[0]], kind, given)
            if follow.arrays[place] is None:
                follow.arrays[place] = follow.runs[at]()

    def _viewed_again(self, base: Any, kind: str, arguments: tuple[Any, ...]) -> Any:
        is_np = isinstance(base, self.kinds[1])
        names = {
            "at": "_at", "slice": "_slice", "detach": "detach", "same": "as_nd_ndarray" if is_np else "as_np_ndarray",
            "basic": "_get_np_basic_indexing" if is_np else "_get_nd_basic_indexing",
            "reshape": "reshape_view" if is_np else "reshape",
        }  # fmt: skip
        with self.hooks.quiet():
            return getattr(base, names[kind])(*arguments)

    def _go_through(self, follow: Follower, at: int) -> None:
        entry = follow.entries[at]
        inputs, results = [follow.arrays[p] for p in entry.inputs], [follow.arrays[p] for p in entry.results]
        self._given = entry.modes
        if entry.kind == "op":
            name, handle, is_np, many = entry.what
            values = entry.values if follow.given[at] is None else follow.given[at]
            attrs = {str(key): str(value) for key, value in zip(entry.keys, values)}
            out = None if not entry.out else results[0] if entry.out == "one" else results
            call = Call(name, inputs, attrs, out, _nothing, is_np, many, (handle, entry.keys, values))
            self._operator(call, results)
        elif entry.kind == "view":
            kind, arguments = entry.what
            self._viewing(inputs[0], kind, arguments, Made(follow.runs[at], results[0]))
        elif entry.kind == "write":
            self._writing(results[0], None, _nothing)
        elif entry.kind == "backward":
            train, retain, count, shape = entry.what
            heads, rest = inputs[:count], iter(inputs[count:])
            grads = None if shape is None else [None if absent else next(rest) for absent in shape]
            self._differentiating(heads, grads, train, retain, _nothing)
        elif entry.kind == "update":
            self._updating(entry.what[0], None)
        elif entry.kind == "updated":
            self._updated()
        else:
            self._batch_of([("", array) for array in inputs])


def _nothing(*_: Any) -> None:
    return None
