"""Calls of whole blocks in a template: where their Python may be left out, they are answered at once.

It may where MXNet runs it once and no more, in hybridized blocks, or where no code changes or reads what may change.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple

from gluontune.capture.operators import COMPILES, SETS
from gluontune.capture.purity import is_constant, why_not_run_once
from gluontune.capture.template import Leaf, Template, is_plain
from gluontune.capture.updates import UPDATES

_CHECKED = 64  # calls of which one is made in full
_OWN = {  # attributes of every block, which are MXNet's
    "_children", "_params", "_reg_params", "_scope", "_forward_hooks", "_forward_pre_hooks", "_flags", "_cached_graph",
    "_cached_op", "_cached_op_args", "_out_format", "_in_format", "_backend_opts", "_callback",
}  # fmt: skip
_COUNTS = ("lr", "wd", "rescale_grad", "num_update", "begin_num_update")  # numbers of an optimizer that are asked for
_ARRAY = object()  # stands for an array in nested values


class At(NamedTuple):
    """An array that a call takes or gives: its place in the step or None, its shape and type, if it is of ``mx.np``."""

    place: Any
    kind: tuple[tuple[int, ...], str]
    is_np: bool


@dataclass
class Span:
    """A call in a step."""

    block: Any  # what was called
    begin: int  # of its entries
    end: int
    taken: Any  # the form of its arguments
    takes: list[At]  # their arrays; places are ids at first
    given: Any  # the form of its result
    gives: list[At]
    modes: tuple[bool, bool]  # recording, training
    state: Any = None  # of the block, when its call was last made in full and was as it is here
    uses: int = 0  # since then
    made: dict[int, At] = field(default_factory=dict)  # results that the call made
    leaves: dict[int, Leaf] = field(default_factory=dict)  # arrays that appear in it, by place
    fixed: tuple[Leaf, ...] = ()  # those of them that are fixed
    views: list[int] = field(default_factory=list)  # places that it made views of
    alone: set[int] = field(default_factory=set)  # results that are views, of what only the call had
    numbers: list[Any] = field(default_factory=list)  # attributes of its entries that may change

    def settle(self, template: Template, places: Mapping[int, int]) -> bool:
        """Bring places in the place of ids; returns whether the call depends on its arguments alone."""
        for ats in (self.takes, self.gives):
            ats[:] = [at._replace(place=places.get(at.place)) for at in ats]
        entries = template.entries[self.begin : self.end]
        within = {place for entry in entries for place in entry.results}
        leaves = [leaf for entry in entries for leaf in entry.leaves]
        self.leaves = {leaf.place: leaf for leaf in leaves if leaf.array is None}
        self.fixed = tuple(leaf for leaf in leaves if leaf.array is not None)
        self.views = [entry.inputs[0] for entry in entries if entry.kind == "view"]
        known = {at.place for at in self.takes}
        for at in self.gives:
            if at.place in within:
                self.made[at.place] = at
                base = template.bases.get(at.place)
                while base is not None:
                    if base not in within:
                        return False
                    self.alone.add(at.place)
                    base = template.bases.get(base)
            elif at.place not in known:
                return False
        known |= within | {place for place, array in enumerate(template.fixed_arrays) if array is not None}
        return self._alone(entries, within) and known.issuperset(place for entry in entries for place in entry.inputs)

    def _alone(self, entries: list[Any], within: set[int]) -> bool:
        """Whether the call changes nothing but what it makes; notes its numbers."""
        self.numbers = [list(entry.values) if entry.dynamic_places else None for entry in entries]
        plain = (entry.kind in ("op", "view") and not entry.out and within.issuperset(entry.now) for entry in entries)
        return bool(entries) and all(plain)

    def now(self, again: bool) -> list[Any]:
        """The numbers of its entries. again: the call is answered, and not made."""
        return self.numbers

    def due(self) -> bool:
        """Whether the call is made in full, for once."""
        self.uses += 1
        return self.uses % _CHECKED == 0


class UpdateSpan(Span):
    """A call of a Trainer's updater, ``block``; the numbers are its optimizer's at the time."""

    def _alone(self, entries: list[Any], within: set[int]) -> bool:
        self.numbers = [entry if entry.dynamic_places else None for entry in entries]
        self.made, self.alone = {}, set()
        ops = [str(entry.what[0]).removeprefix("multi_") for entry in entries if entry.kind == "op"]
        kinds = {entry.what[0] for entry in entries if entry.kind != "op"}  # arrays of mx.np are taken as classic ones
        return UPDATES.keys() >= set(ops) and kinds <= {"same"}

    def now(self, again: bool) -> list[Any]:
        optimizer, indices = self.block.optimizer, nested(self.taken[1][0], iter(()))
        indices = list(indices) if isinstance(indices, tuple) else [indices]
        if again:
            optimizer._update_count(indices)
        rates, decays, at = optimizer._get_lrs(indices), optimizer._get_wds(indices), 0
        if type(optimizer).__name__ == "Adam":
            counts = [optimizer._index_update_count[index] for index in indices]
            rates = [rate * (math.sqrt(1.0 - optimizer.beta2**t) / (1.0 - optimizer.beta1**t))
                     for rate, t in zip(rates, counts)]  # fmt: skip
        found: list[Any] = []
        for entry in self.numbers:
            if entry is None:
                found.append(None)
                continue
            keys, values = list(map(str, entry.keys)), list(entry.values)
            many = int(values[keys.index("num_weights")]) if "num_weights" in keys else 1
            known = {"lr": rates[at], "wd": decays[at], "lrs": rates[at : at + many], "wds": decays[at : at + many],
                     "rescale_grad": optimizer.rescale_grad}  # fmt: skip
            found.append([known.get(key, value) for key, value in zip(keys, values)])
            at += many
        return found


def flat(value: Any, arrays: list[Any]) -> Any:
    """The form of nested values, whose arrays ``arrays`` gets. What cannot be compared differs from all."""
    if hasattr(value, "asnumpy"):
        arrays.append(value)
        return _ARRAY
    if type(value) in (list, tuple):
        return type(value), [flat(each, arrays) for each in value]
    return (type(value), value) if is_plain(value) else object()


def nested(form: Any, arrays: Iterator[Any]) -> Any:
    """Nested values of a form."""
    if form is _ARRAY:
        return next(arrays)
    kind, value = form
    return kind([nested(each, arrays) for each in value]) if kind in (list, tuple) else value


def state_of(block: Any) -> Any:
    """What a block's answer depends on beside its arguments and parameters; None where its Python must be run."""
    values = block.__dict__
    if "optimizer" in values:
        return _state_of_updates(block.optimizer, block.states)
    if values.get(COMPILES):
        hooked = values["_forward_hooks"] or values["_forward_pre_hooks"]
        return None if hooked else (id(block), values.get(SETS, 0))
    found, waiting, seen = list[Any](), [block], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        values = each.__dict__
        kind: Any = type(each)
        kept = _names(kind, tuple(values))
        if kept is None or values["_forward_hooks"] or values["_forward_pre_hooks"]:
            return None
        for name in kept:
            contents = _contents(values[name], waiting)
            if contents is None:
                return None
            found.append(contents)
        found += (id(each), values.get(SETS, 0))
        waiting += values["_children"].values()
    return found


def _state_of_updates(optimizer: Any, states: Mapping[Any, Any]) -> Any:
    kind, schedule = type(optimizer), optimizer.lr_scheduler
    if kind.__module__ != "mxnet.optimizer.optimizer" or kind.__name__ not in ("SGD", "NAG", "Adam"):
        return None
    if optimizer.multi_precision or not (schedule is None or type(schedule).__module__ == "mxnet.lr_scheduler"):
        return None
    arrays = [id(array) for state in states.values() for array in (state if type(state) is tuple else (state,))]
    values = [item for item in vars(optimizer).items() if item[0] not in _COUNTS and is_constant(item[1])]
    return arrays, values


@functools.cache
def _names(kind: Any, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The attributes that may hold what changes unseen; None of a block whose code must be run."""
    return None if why_not_run_once(kind) else tuple(name for name in names if name not in _OWN and name != SETS)


def _contents(value: Any, blocks: list[Any], depth: int = 3) -> Any:
    """A value as one that can be compared; None where that would not tell a change. ``blocks`` gets those in it."""
    if is_constant(value):
        return (value,)
    if type(value) in (list, tuple, dict) and depth:
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        found = tuple([_contents(part, blocks, depth - 1) for part in parts])
        return None if None in found else found
    if hasattr(value, "_children"):
        blocks.append(value)
    elif not (type(value).__module__.startswith("mxnet.") or is_plain(value)):
        return (id(value),) if isinstance(value, FunctionType) and not why_not_run_once(value) else None
    return (id(value),)
