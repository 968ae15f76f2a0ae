"""A log of each step that PyTorch computes, and templates of those whose structure comes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gluontune.capture.calls import At, Span, UpdateSpan, flat, state_of
from gluontune.capture.earlier import EarlierTorch
from gluontune.capture.events import Arrays, Call, Run, Step
from gluontune.capture.held import listed
from gluontune.capture.interpret import computes
from gluontune.capture.lazy import BY_VALUES
from gluontune.capture.template import Entry, Leaf, Template, form_of, given_as, is_plain, plain

_TEMPLATES = 96  # at most; the least used goes
_UNTRIED = 8  # templates of steps that came once, of which none came again, until each must come twice
_WATCHED = 64  # structures seen once that are remembered
_FRUITLESS = 200, 50_000  # steps without a known structure, and their hooks, after which nothing is logged


class LearningTorch(EarlierTorch):
    """Logs steps, and makes templates."""

    def __init__(self, mx: Any, folder: str, finished: Callable[[Step], None], place: Any = None):
        super().__init__(mx, folder, finished, place)
        self.templates: list[Template] = []  # those in use first
        self.log: list[Entry] | None = None  # what the hooks saw of the step, or None where it cannot be followed
        self.placed: dict[int, Leaf | None] = {}  # arrays by id in the order of their appearance, with their leaves
        self.changes = (-1, -1)  # of what templates hold for
        self._seen: dict[Any, list[int]] = {}  # ids of arrays by place, by signature
        self._fruitless, self._fruitless_hooks, self._untried = 0, 0, 0
        self._fresh: list[int] = []  # variables that a backward pass reached
        self._new_leaves: list[Leaf] = []  # since a hook began
        self._before, self._touched = 0, dict[int, None]()  # arrays placed before it, and those with a new value since
        self.calls: list[Span] = []  # of blocks in the log
        self.spanned: dict[int, bool] = {}  # whether calls of a block, by its id, may be answered
        self.reads, self._in_call = 0, False  # values that the program has asked for; a block's call is noted
        self._reads_then, self._events_then = 0, 0  # reads, and events of the step, when it could last be cut
        self._is_piece, self._has_batch = False, False  # the step began where another was cut; it takes a batch
        self._repeats = False  # a step that was followed is gone through again

    def _begin(self) -> None:
        self.base, self.placed, self._events_then = self.number, {}, 0
        self._is_piece, self._has_batch = False, False
        hopeless = self._fruitless >= _FRUITLESS[0] or self._fruitless_hooks >= _FRUITLESS[1]
        self.log = [] if self.lazy and not hopeless else None
        self.calls = []

    def end(self) -> None:
        super().end()
        self._begin()

    def _differentiated(self, array: Any) -> None:
        self._fresh.append(id(array))
        owner = self._owner(array)
        if owner is None or owner.parameter is None:
            self.log = None  # its gradient has no array
        super()._differentiated(array)

    def _written(self, array: Any, value: int) -> None:
        super()._written(array, value)
        if self.log is not None:
            self._touched[id(array)] = None

    def _hook(self) -> None:
        self._before = len(self.placed)
        self._new_leaves.clear()
        self._touched.clear()

    def _close(self, step: Step) -> None:
        if self.lazy and self.log:
            self._learn(step, self.log)
        super()._close(step)

    def _owned(self, array: Any) -> tuple[str, str, str] | None:
        """Kind, name and request of what an array belongs to."""
        owner = self._owner(array)
        return None if owner is None else (owner.kind, owner.name, self._variable(array))

    def _place(self, array: Any, number: int | None) -> None:
        """An array appears in the step."""
        leaf = self.placed[id(array)] = Leaf(len(self.placed), number, self._kind(array), self._owned(array))
        self._new_leaves.append(leaf)

    def _leaf(self, array: Any) -> Any:
        entry = super()._leaf(array)
        if self.log is not None and id(array) not in self.placed:
            self._place(array, entry.value - self.base - 1)
        return entry

    def _again(self, array: Any) -> Any:
        found = super()._again(array)
        if found is not None:
            self.log = None  # shares memory with an array of an earlier step
        return found

    def _bound(self, base: Any) -> None:
        if id(base) in self.loose:
            self.log = None  # a leaf's value follows from that of its base
        super()._bound(base)

    def _logged(self, entry: Entry, writes: bool = False) -> None:
        """Add what a hook saw to the log. writes: the hook may have changed any array."""
        if self.log is None:
            return
        held, changed = self.held, self._touched if writes else entry.results
        if not all(map(is_plain, entry.values)):
            self.log = None
            return
        for key in [*entry.inputs, *entry.results, *changed]:
            if key not in self.placed:
                if key in entry.results and (entry.out or entry.kind == "write"):
                    self._place(held[key].array, None)
                else:
                    self.placed[key] = None
        entry.now = {key: held[key].value - self.base - 1 for key in changed if not self._is_leaf_now(key)}
        entry.leaves = tuple(self._new_leaves)
        entry.events, entry.numbers = len(self.step.events), self.number - self.base
        self.log.append(entry)

    def _is_leaf_now(self, key: int) -> bool:
        leaf = self.placed[key]
        return leaf is not None and leaf.place >= self._before and leaf.number == self.held[key].value - self.base - 1

    def _learn(self, step: Step, log: Sequence[Entry]) -> None:
        """Make a template of a step that has the structure of an earlier one."""
        places = {key: at for at, key in enumerate(self.placed)}
        signatures = [entry.signature(places) for entry in log]
        key, ids = tuple(signatures), list(places)
        earlier = self._seen.pop(key, None)
        self._fruitless, self._fruitless_hooks = self._fruitless + 1, self._fruitless_hooks + len(log)
        changes = self.hooks.changes, self.marked
        if changes != self.changes:
            self.templates.clear()
            self._seen.clear()
            self.changes, earlier = changes, None
        if any(signatures == template.signatures for template in self.templates):
            return
        fixed = self._of_other_shapes(log, ids) if earlier is None else self._fixed(log, earlier, ids)
        if earlier is None and fixed is None:
            if len(self._seen) >= _WATCHED:
                self._seen.pop(next(iter(self._seen)))
            self._seen[key] = ids
            return
        if fixed is None:
            return
        self._untried += earlier is None
        template = Template(self, log, places, signatures, step, fixed, super()._may_end())
        for call in self.calls:
            if call.settle(template, places):
                template.entries[call.begin].calls.append(call)
                self.spanned[id(call.block)] = True
        self._fruitless, self._fruitless_hooks, template.untried = 0, 0, earlier is None
        self.templates.insert(0, template)
        del self.templates[_TEMPLATES:]

    def _fixed(self, log: Sequence[Entry], earlier: Sequence[int], ids: Sequence[int]) -> dict[int, Any] | None:
        """The arrays, by place, that an earlier step had in the same places; None where a template cannot hold."""
        batches = {i for entry in log if entry.kind == "batch" for i in entry.inputs}
        fixed = {}
        for place, (then, now) in enumerate(zip(earlier, ids)):
            entry, leaf = self.held[now], self.placed[now]
            owner = self._owner(entry.array)
            shares = entry.base is not None or now in self.aliases
            if then == now and now not in batches and not shares and (leaf is not None or owner is not None):
                fixed[place] = entry.array
            elif leaf is None and owner is not None:
                return None
        return fixed

    def _of_other_shapes(self, log: Sequence[Entry], ids: Sequence[int]) -> dict[int, Any] | None:
        """The fixed arrays of a step that has a template but for its shapes: it need not come twice."""
        if self._untried >= _UNTRIED:
            return None
        form = form_of(log)
        for template in self.templates:
            if template.count == len(ids) and template.form == form:
                known = [0 if array is None else id(array) for array in template.fixed_arrays]
                fixed = self._fixed(log, known, ids)
                if fixed is not None and len(fixed) == len(template.fixed):
                    return fixed
        return None

    def _at(self, array: Any) -> At:
        """An array among what a block takes or gives; its place is its id until the step is over."""
        key = id(array) if id(array) in self.placed else None
        return At(key, self._kind(array), isinstance(array, self.kinds[1]))

    def _calling(self, block: Any, args: tuple[Any, ...], run: Run) -> Any:
        """A call of a block, or of a trainer's updater, in a step that is not followed."""
        log, begin, reads = self.log, len(self.log or ()), self.reads
        noted = log is not None and not self._in_call and self.spanned.get(id(block), True)
        if not noted or state_of(block) is None:
            return run()
        self._in_call, modes = True, self._modes()
        try:
            result = run()
        finally:
            self._in_call = False
        if self.log is log and log is not None and self.reads == reads:
            takes, gives = list[Any](), list[Any]()
            taken, given = flat(args, takes), flat(result, gives)
            kind = UpdateSpan if hasattr(block, "optimizer") else Span
            ats = [[self._at(array) for array in arrays] for arrays in (takes, gives)]
            self.calls.append(kind(block, begin, len(log), taken, ats[0], given, ats[1], modes))
        return result

    # what hooks see, of a step that is not followed

    def _operator(self, call: Call, results: list[Any] | None) -> Any:
        """An operator of a step that is not followed. results: its arrays, where it is gone through again."""
        self._hook()
        copies = call.name == "_copyto"  # which becomes a conversion
        if not (copies or computes(call.name)) or call.name in BY_VALUES or call.name == "reset_arrays":
            self.log = None
        if results is None:
            out = super().op(call)
            if not self.lazy:
                return out
            results = listed(out)
        else:
            out, begun = None, self._begun(call)
            self._add(begun, [self.hold(array).value for array in call.inputs], results, "")
        if self.log is not None:
            handle, keys, values = call.raw
            what, modes = (call.name, handle, call.is_np, call.many), (self.was_recording, self.training)
            specs = tuple(self._kind(array) for array in results)
            entry = Entry("op", what, list(keys), plain(values), list(map(id, call.inputs)), list(map(id, results)),
                          given_as(call.out), modes, specs=specs)  # fmt: skip
            self._logged(entry, call.out is not None or bool(call.mutated) or call.sets_gamma)
        return out

    def _viewing(self, array: Any, kind: str, arguments: tuple[Any, ...], run: Run) -> Any:
        if not self._repeats and self._roams(array, kind, arguments):
            return self._apart(array, kind, arguments, run)
        self._hook()
        result = super().view(array, kind, arguments, run)
        if not self.lazy or (kind == "grad" and getattr(self._owner(array), "parameter", None) is None):
            self.log = None
        elif self.log is not None and result is not None and result is not array:
            specs = ((tuple(result.shape), result.dtype),)
            entry = Entry("view", (kind, arguments), inputs=[id(array)], results=[id(result)], modes=self._modes(),
                          specs=specs, shown=self.held[id(result)].view)  # fmt: skip
            self._logged(entry)
        return result

    def _writing(self, array: Any, values: Any, run: Run) -> None:
        self._hook()
        super().write(array, values, run)
        self._logged(Entry("write", results=[id(array)]), writes=True)

    def _differentiating(self, heads: Arrays, head_grads: Arrays | None, train: bool, retain: bool, run: Run) -> Any:
        self._hook()
        self._fresh, self._events_then = [], len(self.step.events)
        result = super().backward(heads, head_grads, train, retain, run)
        shape = None if head_grads is None else tuple(grad is None for grad in head_grads)
        given = [*heads, *[grad for grad in head_grads or () if grad is not None]]
        entry = Entry("backward", (train, retain, len(heads), shape), inputs=list(map(id, given)), fresh=self._fresh)
        self._logged(entry, writes=True)
        return result

    def _updating(self, trainer: Any, batch_size: Any) -> None:
        self._hook()
        super()._updating(trainer, batch_size)
        self._logged(Entry("update", (trainer,)))

    def _updated(self) -> None:
        self._hook()
        self.updated, self._events_then = True, len(self.step.events)
        self._logged(Entry("updated"))

    def _batch_of(self, arrays: Sequence[tuple[str, Any]]) -> None:
        self._hook()
        super()._batch_of(arrays)
        self._has_batch = True
        if self.log is None:
            return
        for _, array in arrays:
            if id(array) in self.placed:
                self.log = None
                return
            self._place(array, self.held[id(array)].value - self.base - 1)
        self._logged(Entry("batch", inputs=[id(array) for _, array in arrays]))
