"""A program's steps on PyTorch, followed by templates where they repeat; else as :class:`LazyTorch` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gluontune.capture.calls import state_of
from gluontune.capture.events import Arrays, Call, Run
from gluontune.capture.follower import Follower
from gluontune.capture.repeating import Made, RepeatingTorch
from gluontune.capture.retreat import ERRORS, or_mxnet
from gluontune.capture.template import Leaf


class FollowingTorch(RepeatingTorch):
    """Follows templates; see :class:`Recorder`."""

    answered = 0  # calls of blocks

    # modes and references

    def _is_ours(self, array: Any) -> bool:
        follow = self.follow
        known = follow is not None and (id(array) in follow.place or id(array) in follow.behind)
        return known or super()._is_ours(array)

    def _met(self, array: Any) -> bool:
        return super()._met(array) or (self.follow is not None and self.follow.met(array))

    # the begin and the end of a step

    def _begin(self) -> None:
        super()._begin()
        self.follow = None
        if not self.lazy or not self.templates:
            return
        if self.changes != (self.hooks.changes, self.marked):
            self.templates.clear()
            return
        self.follow = Follower(self)

    def end(self) -> None:
        if self.follow is None or not (self.follow.complete and self._finish()):
            self._diverge()
            super().end()

    def _end_unless_open(self) -> None:
        if self.follow is not None and self.follow.complete and not self._left_open() and self._finish():
            return
        self._diverge()
        before = self.step
        super()._end_unless_open()
        if self.step is before:
            self.log = None

    def _may_end(self) -> bool:
        if self.follow is not None:
            if self.follow.complete:
                return self.follow.template.may_end
            if self.follow.at == 0 or self.follow.entries[self.follow.at].kind == "batch":
                return False
            self._diverge()
        return super()._may_end()

    def _arriving(self, array: Any, leaf: Leaf) -> Any:
        """The tensor of an array that is as a leaf says, or None."""
        if id(array) in self.aliases:
            return self._apart_arriving(array, leaf)
        known = self.truth.get(id(array))
        if id(array) in self.follow.behind or (known is not None and known.lost):
            return None
        if self._owned(array) != leaf.owner or self._kind(array) != leaf.kind:
            return None
        if leaf.number is None:  # it is written to, and not read
            return leaf
        return self._from_mxnet(array) if known is None else known.tensor

    def _apart_arriving(self, array: Any, leaf: Leaf) -> Any:
        """The tensor of an array that shares memory of what the step has not met, or None."""
        if leaf.number is None or leaf.owner or self._kind(array) != leaf.kind or not self._is_earlier(array):
            return None
        self.follow.behind.update(map(id, self._bases(array)))
        return self._earlier_value(array)

    # the way back

    def _diverge(self) -> None:
        """The step is another one: its books are made, as if it had not been followed."""
        follow, self.follow = self.follow, None
        if follow is None:
            return
        follow.over, self.updated, self.placed = True, False, {}
        self.log = None if self.log is None else []
        if follow.template.refused:
            self.templates.remove(follow.template)
        self._repeat(follow)
        limit = follow.entries[follow.at - 1].numbers if follow.at else 0
        for number, tensor in enumerate(follow.env[:limit]):
            if tensor is not None:
                self.env[self.base + 1 + number] = tensor
        self.done = follow.done

    def _forgo(self) -> None:
        """The step is not followed, and no template is made of it."""
        self._diverge()
        self.log = None

    # hooks

    @or_mxnet
    def op(self, call: Call) -> Any:
        if not self.lazy:
            return super().op(call)
        self._next_step()
        while self.follow is not None:
            found = self.follow.op(*call.raw[:1], call.inputs, *call.raw[1:], call.out, call.is_np, call.many)
            if found is not None:
                return found
            if not self._over():
                self._diverge()
            self._next_step()
        return self._operator(call, None)

    @or_mxnet
    def block(self, block: Any, args: tuple[Any, ...], run: Run) -> Any:
        if not self.lazy:
            return run()
        self._next_step(block=True)
        if self.follow is not None and not self.spanned.get(id(block)):
            return run()
        span = None if self.follow is None else self.follow.call(block, args)
        if span is None and self._over():
            self._next_step()
            span = None if self.follow is None else self.follow.call(block, args)
        follow = self.follow
        if follow is None or span is None:
            return run() if follow else self._calling(block, args, run)
        state, reads = state_of(block), self.reads
        if state is not None and span.state == state and not span.due():
            self.answered += 1
            return follow.answer(span)
        result = run()
        if self.follow is follow and self.reads == reads and follow.confirm(span, result):
            span.state = state
        else:
            self.spanned[id(block)] = False
        return result

    updates = block

    def _next_step(self, block: bool = False) -> None:
        """The step is over where its template is, if the next recording begins; what is not followed may be cut."""
        if self.follow is None:
            self._cut(block)
        if self.follow is not None and not self.follow.complete:
            return
        if self.follow is not None and self.follow.template.was_recording is not None:
            self.was_recording = self.follow.template.was_recording
        self._between_steps()

    def _over(self) -> bool:
        """Whether a followed step that is complete is over, as no template goes on with what comes next."""
        follow = self.follow
        over = follow is not None and follow.complete and follow.template.may_end and not self._left_open()
        if not over or not self._finish():
            return False
        self._is_piece = True
        return True

    @or_mxnet
    def view(self, array: Any, kind: str, arguments: tuple[Any, ...], run: Run) -> Any:
        if self.follow is None:
            self._cut()
        elif self._roams(array, kind, arguments):
            return self._apart(array, kind, arguments, run)
        if self.follow is not None:
            result = run()
            if result is None or result is array or self.follow.view(array, kind, arguments, run, result):
                return result
            if self._over() and self.follow and self.follow.view(array, kind, arguments, run, result):
                return result
            run = Made(run, result)
        self._diverge()
        return self._viewing(array, kind, arguments, run)

    @or_mxnet
    def write(self, array: Any, values: Any, run: Run) -> None:
        if self.follow is None:
            self._cut()
        if self.follow is not None and (
            self.follow.write(array, values) or (self._over() and self.follow and self.follow.write(array, values))
        ):
            run()
            return
        self._diverge()
        self._writing(array, values, run)

    @or_mxnet
    def backward(self, heads: Arrays, head_grads: Arrays | None, train: bool, retain: bool, run: Run) -> Any:
        if self.follow is not None:
            entry = self.follow.backward(heads, head_grads, train, retain)
            if entry is not None:
                for place in entry.fresh:
                    self.follow.arrays[place]._fresh_grad = True
                return None
        self._diverge()
        return self._differentiating(heads, head_grads, train, retain, run)

    @or_mxnet
    def update(self, trainer: Any, batch_size: Any, run: Run) -> Any:
        if not self.lazy:
            return super().update(trainer, batch_size, run)
        if self.follow is None or not self.follow.told("update", (trainer,)):
            self._diverge()
            self._updating(trainer, batch_size)
        result = run()
        if self.follow is None or not self.follow.told("updated", ()):
            self._diverge()
            self._updated()
        self.updated = True
        return result

    def _batch_of(self, arrays: Sequence[tuple[str, Any]]) -> None:
        if self.follow is not None and self.follow.batch([array for _, array in arrays]):
            return
        self._diverge()
        super()._batch_of(arrays)

    @or_mxnet
    def read(self, array: Any, run: Run) -> Any:
        self.reads += 1
        follow = self.follow
        if follow is not None:
            place = follow.place.get(id(array))
            if place is None and id(array) in self.truth and id(array) not in self.aliases:
                return _values(self.truth[id(array)].tensor)
            if place is None and id(array) not in self.aliases:
                return run()
            if place is None and self._is_earlier(array):
                return _values(self._earlier_value(array))
            known = list[Any]()
            if place is not None and self._computed(lambda: known.append(follow.value(place))) and known[0] is not None:
                return _values(known[0])
            self._diverge()
        return super().read(array, run)

    @or_mxnet
    def outside(self, arrays: Arrays, run: Run) -> Any:
        self.reads += 1
        if self.lazy:
            changed = (self.hooks.changes, self.marked) != self.changes and bool(self.templates)
            if not changed and not any(map(self._is_ours, arrays)):
                return run()
            known = () if self.follow is None else self.follow.place
            noted = any(id(array) in known or id(array) in self.aliases for array in arrays)  # a view's value is noted
            if changed or self.follow is None or self.follow.at or noted:
                self._forgo()
        return super().outside(arrays, run)

    @or_mxnet
    def wait(self, run: Run) -> Any:
        if self.follow is not None and not self._computed(self.follow.compute):
            self._diverge()
        return super().wait(run)

    @or_mxnet
    def unknown(self, what: str, run: Run) -> Any:
        self._forgo()
        return super().unknown(what, run)

    def mark(self, arrays: Arrays, gradients: Arrays, reqs: Sequence[str]) -> None:
        try:
            self._diverge()
        except ERRORS as error:
            self.retreat(error)
        self.log = None
        super().mark(arrays, gradients, reqs)

    def retreat(self, error: Exception) -> None:
        self._forgo()
        super().retreat(error)

    def facts(self) -> dict[str, int]:
        known = {"calls_answered": self.answered, "structures": len(self.templates)}
        return {"steps_followed": self.followed, **known}

    def release(self) -> None:
        super().release()
        self.follow, self.log = None, None
        for known in (self.templates, self.placed, self.calls, self.spanned):
            known.clear()  # type: ignore[attr-defined]


def _values(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()  # type: ignore[no-any-return]
