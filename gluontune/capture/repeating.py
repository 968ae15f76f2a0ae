"""A step that was followed, at its end; else its books, made afterwards: what hooks saw goes through the recorder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gluontune.capture.events import Call, Run, Step
from gluontune.capture.follower import Follower
from gluontune.capture.held import Alias
from gluontune.capture.lazy import Truth
from gluontune.capture.learning import LearningTorch
from gluontune.capture.retreat import ERRORS

_PIECE = 8  # events, at least, of a piece of what is not recorded, which ends where a value was read
_LONG = 256  # the same of one that takes a batch, or ends where a block is called


class Made:
    """What made an array: at first that array, later another."""

    def __init__(self, run: Run, result: Any):
        self.run, self.result = run, result

    def __call__(self) -> Any:
        result, self.result = self.result, None
        return self.run() if result is None else result


class RepeatingTorch(LearningTorch):
    """Ends a followed step, or goes through it again."""

    _given: tuple[bool, bool] | None = None  # modes of an entry that is gone through again
    followed = 0  # steps

    def _modes(self) -> tuple[bool, bool]:
        return super()._modes() if self._given is None else self._given

    def _differentiated(self, array: Any) -> None:
        if not self._repeats:
            super()._differentiated(array)
        else:
            self._fresh.append(id(array))

    def _left_open(self) -> bool:
        follow = self.follow
        return any(kind not in self.never_used and follow.alive(place) for place, kind in follow.template.open_ones)

    def _finish(self) -> bool:
        """Compute a followed step's rest, and note what the program still holds; whether that went well."""
        follow, array = self.follow, None
        if not self._computed(follow.compute):
            return False
        template, env, truth = follow.template, follow.env, self.truth
        kept, lost = follow.kept(), {place for place, _ in template.open_ones}
        for place in sorted(kept):
            array, number, leaf = follow.arrays[place], template.last[place], template.leaves.get(place)
            shares = (place in template.bases and place not in follow.alone) or id(array) in self.aliases
            if shares or number is None or env[number] is None:
                continue
            if leaf is not None and leaf.number == number and id(array) in truth:
                continue
            value = template.values[number]
            truth[id(array)] = Truth(array, env[number].detach(), (value.shape, value.dtype), place in lost)
        for place in set(range(template.count)) - kept:
            truth.pop(id(follow.arrays[place]), None)
        for at, run in follow.runs.items():
            entry = follow.entries[at]
            if entry.results[0] in kept:
                array, base = follow.arrays[entry.results[0]], follow.arrays[entry.inputs[0]]
                self.aliases[id(array)] = Alias(array, base, entry.shown, run if entry.shown else None)
        self.number += len(template.values)
        trained, self.updated = follow.updated, False
        self.follow = None
        self.templates.remove(template)
        self.templates.insert(0, template)
        self.followed, self._fruitless, self._fruitless_hooks = self.followed + 1, 0, 0
        if template.untried:
            template.untried, self._untried = False, 0
        if self.followed % 16 == 0:
            del follow, array
            self._drop(self._forget_unused(), {id(alias.base) for alias in self.aliases.values()})
        if trained:
            self.finished(Step())
        self._begin()
        return True

    def _computed(self, until: Callable[[], Any]) -> bool:
        """Whether a followed step can be computed; else its template is refused."""
        try:
            until()
        except ERRORS as error:
            self.follow.template.refused = str(error) or type(error).__name__
            return False
        return True

    def _cut(self, block: bool = False) -> None:
        """End a step in what is not recorded, so that passes of predictions are steps that come again.

        ``block``: one is called that no other one calls.
        """
        read, self._reads_then = self.reads > self._reads_then, self.reads
        if not self.lazy or self._in_call or self._modes()[0]:
            return
        length = len(self.step.events) - self._events_then
        if block and self.updated and not self.batches:
            least = 1
        elif read:
            least = _LONG if self._has_batch else _PIECE
        else:
            least = _LONG if block else 8 * _LONG
        if length < least or not self._may_end():
            return
        if all(kind in self.never_used for _, kind in self._open()):
            self.end()
            self._is_piece = True
        else:
            self._events_then = 2 * len(self.step.events)

    def _between_steps(self) -> None:
        recording = self._modes()[0] and not self.was_recording
        if recording and self._is_piece and not (self._repeats or self.batches or self.updated or self.tape.values):
            self.end()
        super()._between_steps()

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
