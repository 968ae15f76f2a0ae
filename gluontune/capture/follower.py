"""A step that does what a template says: each hook is compared with the next entry, and values come when asked for."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gluontune.capture.calls import Span, flat, nested
from gluontune.capture.held import listed
from gluontune.capture.interpret import put
from gluontune.capture.retreat import ERRORS
from gluontune.capture.straight import Part
from gluontune.capture.template import Entry, Leaf, Template, given_as, plain

_PARTS = 256  # of one template, at most; a script that reads elsewhere each time is computed from entry to entry


class Follower:
    """Follows one step of a recorder's program."""

    def __init__(self, recorder: Any):
        self.templates, self.interpreter, self.truth = recorder.templates, recorder.interpreter, recorder.truth
        self._arriving, self._empty, self._modes = recorder._arriving, recorder._empty, recorder._modes
        self.at, self.done = 0, 0  # entries; events that are computed
        self.place: dict[int, int] = {}
        self.arrays: list[Any] = []
        self.env: list[Any] = []
        self.given: list[Any] = []
        self.runs: dict[int, Any] = {}  # what makes views, by entry
        self.unseen: Counter[int] = Counter()  # arrays that a view was made of in a call that was answered
        self.alone: set[int] = set()  # views that such a call gave, of what nobody has
        self.behind: set[int] = set()  # ids of what arrays share the memory of that arrived with a value of their own
        self.updated, self.over = False, False
        self._take(self.templates[0])

    @property
    def complete(self) -> bool:
        return self.at == len(self.entries)

    def _take(self, template: Template) -> None:
        """Follow a template from here, the entries so far being the same."""
        seen, arrays = template.seen[self.at], self.arrays
        self.template, self.entries = template, template.entries
        self.place = {
            key: place for key, place in template.fixed.items() if place in template.given or key in self.truth
        }
        self.arrays = list(template.fixed_arrays)
        for place in range(seen):
            self.arrays[place] = arrays[place]
            if arrays[place] is not None:
                self.place[id(arrays[place])] = place
        known = self.env[: self.entries[self.at - 1].numbers] if self.at else []
        self.env = [*known, *[None] * (len(template.values) - len(known))]
        self.given = [*self.given[: self.at], *[None] * (len(self.entries) - self.at)]

    def met(self, array: Any) -> bool:
        """Whether the step so far has an array."""
        place = self.place.get(id(array))
        if place is None:
            return False
        return place < self.template.seen[self.at] or self.template.fixed_arrays[place] is None  # it has just arrived

    def _next(self, matches: Callable[[Entry], bool], taken: int = 1) -> Entry | None:
        """The next entry, of this template or of another that began alike. taken: whether it is over then."""
        if not self.complete and matches(self.entries[self.at]):
            self.at += taken
            return self.entries[self.at - taken]
        before = self.template
        for other in self.templates:
            if other is before or other.refused or len(other.entries) <= self.at:
                continue
            if other.signatures[: self.at] == before.signatures[: self.at]:
                self._take(other)
                if matches(self.entries[self.at]):
                    self.at += taken
                    return self.entries[self.at - taken]
        if self.template is not before:
            self._take(before)
        return None

    # hooks: None, or False, where the step is no longer what the template says

    def op(self, handle: Any, arrays: Any, keys: Any, values: Any, out: Any, is_np: Any, many: Any) -> Any:
        outs = None if out is None else listed(out)
        try:
            entry = self._next(lambda e: self._is_op(e, handle, arrays, keys, values, out, outs, is_np, many), 0)
        except ERRORS:
            return None
        if entry is None:
            return None
        self.at += 1
        if outs is not None:
            return out
        results = [self._empty(*spec, is_np) for spec in entry.specs]
        for place, array in zip(entry.results, results):
            self._new(place, array)
        return results if many or len(results) > 1 else results[0]

    def _is_op(self, entry: Entry, handle: Any, arrays: Any, keys: Any, values: Any, out: Any,
               outs: list[Any] | None, is_np: Any, many: Any) -> bool:  # fmt: skip
        if entry.kind != "op" or entry.what[1] != handle or entry.what[2:] != (is_np, many):
            return False
        if keys != entry.keys or entry.modes != self._modes():
            return False
        dynamic = entry.dynamic_places
        if dynamic:
            pairs = enumerate(zip(values, entry.values))
            if len(values) != len(entry.values) or any(a != b for at, (a, b) in pairs if at not in dynamic):
                return False
        elif values != entry.values:
            return False
        places = entry.inputs if outs is None else [*entry.inputs, *entry.results]
        if given_as(out) != entry.out or not self._known(arrays if outs is None else [*arrays, *outs], places, entry):
            return False
        if dynamic:  # arrays as numbers are read, which may end the step's following
            self.given[self.at] = plain(values)
        return not self.over

    def _known(self, arrays: Sequence[Any], places: Sequence[int], entry: Entry) -> bool:
        """Whether arrays are those of the template's places; new ones arrive."""
        get = self.place.get
        found = [get(id(array)) for array in arrays]
        if found == places:
            return True
        if len(found) != len(places):
            return False
        for array, mine, place in zip(arrays, found, places):
            if mine == place or get(id(array)) == place:
                continue
            leaf = next((leaf for leaf in entry.leaves if leaf.place == place), None)
            if leaf is None or mine is not None or not self._arrives(array, leaf):
                return False
        return True

    def _arrives(self, array: Any, leaf: Leaf) -> bool:
        tensor = self._arriving(array, leaf)
        if tensor is None:
            return False
        if leaf.number is not None:
            put(self.template.wanted, self.env, leaf.number, tensor)
        earlier = self.arrays[leaf.place]
        if earlier is not None:
            self.place.pop(id(earlier), None)
        self._new(leaf.place, array)
        return True

    def view(self, array: Any, kind: str, arguments: tuple[Any, ...], run: Any, result: Any) -> bool:
        entry = self._next(lambda e: (
            e.kind == "view" and e.what == (kind, arguments) and e.modes == self._modes()
            and self._known([array], e.inputs, e) and e.specs[0] == self._spec(result)))  # fmt: skip
        if entry is None:
            return False
        self._new(entry.results[0], result)
        self.runs[self.at - 1] = run
        return True

    @staticmethod
    def _spec(array: Any) -> Any:
        return tuple(array.shape), array.dtype

    def _new(self, place: int, array: Any) -> None:
        self.arrays[place] = array
        self.place[id(array)] = place

    def write(self, array: Any, values: Any) -> bool:
        """Whether the template copies values of the host there, too."""
        entry = self._next(lambda e: e.kind == "write" and self._known([array], e.results, e), 0)
        if entry is None:
            return False
        number = entry.now[entry.results[0]]
        value = self.template.values[number]
        if not isinstance(values, np.ndarray) or values.shape != value.shape:
            return False
        tensor = self.interpreter.taken(np.array(values, dtype=value.dtype, order="C"))
        put(self.template.wanted, self.env, number, tensor)
        self.at += 1
        return True

    def backward(self, heads: Sequence[Any], grads: Sequence[Any] | None, train: bool, retain: bool) -> Entry | None:
        """The entry of a backward pass."""
        given = [] if grads is None else [grad for grad in grads if grad is not None]
        shape = grads if grads is None else tuple(grad is None for grad in grads)
        return self._next(lambda e: (
            e.kind == "backward" and e.what == (train, retain, len(heads), shape)
            and self._known([*heads, *given], e.inputs, e)))  # fmt: skip

    def told(self, kind: str, what: tuple[Any, ...]) -> bool:
        """Whether an update begins or ends there, too."""
        entry = self._next(lambda e: e.kind == kind and len(e.what) == len(what) and all(
            a is b or a == b for a, b in zip(e.what, what)))  # fmt: skip
        self.updated = self.updated or (entry is not None and kind == "updated")
        return entry is not None

    def batch(self, arrays: Sequence[Any]) -> bool:
        return self._next(lambda e: e.kind == "batch" and self._known(arrays, e.inputs, e)) is not None

    def call(self, block: Any, args: tuple[Any, ...]) -> Span | None:
        """The template's call of a block by arguments that are as these, if it has one here."""
        given, found = list[Any](), list[Span]()
        form = flat(args, given)

        def begins(entry: Entry) -> bool:
            found[:] = [s for s in entry.calls if s.block is block and s.taken == form and self._takes(s, given)]
            return bool(found)

        self._next(begins, 0)
        return found[0] if found else None

    def _takes(self, span: Span, given: Sequence[Any]) -> bool:
        if span.modes != self._modes():
            return False
        for at, array in zip(span.takes, given):
            mine = self.place.get(id(array))
            if at.place is None:
                if self._spec(array) != (at.kind[0], np.dtype(at.kind[1])):
                    return False
            elif mine != at.place:
                leaf = span.leaves.get(at.place)
                if mine is not None or leaf is None or not self._arrives(array, leaf):
                    return False
        return all(self.place.get(id(leaf.array)) == leaf.place or self._arrives(leaf.array, leaf)
                   for leaf in span.fixed)  # fmt: skip

    def answer(self, span: Span) -> Any:
        """What a call gives, without making it."""
        self.given[span.begin : span.end] = span.now(again=True)
        for place, at in span.made.items():
            self._new(place, self._empty(*at.kind, at.is_np))
        self.unseen.update(span.views)
        self.alone |= span.alone
        self.at = span.end
        return nested(span.given, iter([self.arrays[at.place] for at in span.gives]))

    def confirm(self, span: Span, result: Any) -> bool:
        """Whether a call that was made has come to its end, and was what is known."""
        found: list[Any] = []
        return (
            self.at == span.end and flat(result, found) == span.given
            and all(self.place.get(id(array)) == at.place for at, array in zip(span.gives, found))
            and all(self.arrays[leaf.place] is leaf.array for leaf in span.fixed)
            and self.given[span.begin : span.end] == span.now(again=False)
        )  # fmt: skip

    # values

    def compute(self) -> None:
        end = self.entries[self.at - 1].events if self.at else 0
        if end == self.done:
            return
        template, env = self.template, self.env
        limit = self.entries[self.at - 1].numbers
        for number, key in template.fixed_leaves:
            if number < limit and env[number] is None:
                put(template.wanted, env, number, self.truth[key].tensor)
        part = template.parts.get((self.done, end))
        if part is None:
            if len(template.parts) >= _PARTS:
                template.parts.pop(next(iter(template.parts)))
            part = Part(template, self.interpreter, self.done, end, self._like(self.done, end))
            template.parts[self.done, end] = part
        with self.interpreter.timed():
            part(env, self.given)
        self.done = end

    def _like(self, begin: int, end: int) -> Part | None:
        """The same part of a template of the same operators, the one that knows most of its ways."""
        found = (t.parts.get((begin, end)) for t in self.templates if t.form == self.template.form)
        return min((part for part in found if part and part.compared), key=lambda part: len(part.ways), default=None)

    def value(self, place: int) -> Any:
        """The tensor that an array holds, or None where the template does not know."""
        number = self.template.number_of(place, self.at)
        if number is None:
            return None
        if self.env[number] is None and number not in self.template.leaf_numbers:
            self.compute()
        if self.env[number] is None:
            known = self.truth.get(id(self.arrays[place]))
            return known and known.tensor
        return self.env[number]

    def alive(self, place: int) -> bool:
        """Whether the program has an array; one of its references is the truth's."""
        array = self.arrays[place]
        if array is None:
            return False
        known, viewed = self.truth.get(id(array)), self.template.viewed[place] - self.unseen[place]
        ours = 3 + (known is not None and known.array is array) + viewed
        return sys.getrefcount(array) > ours

    def kept(self) -> set[int]:
        """The places of arrays that the program has, and of those that they share memory with."""
        fixed, bases = self.template.fixed_arrays, self.template.bases
        found = {place for place in range(self.template.count) if fixed[place] is not None or self.alive(place)}
        for place in list(found):
            base = None if place in self.alone else bases.get(place)
            while base is not None:
                found.add(base)
                base = bases.get(base)
        return found
