"""What a program's arrays hold: values that never change, with their sources and lines."""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from typing import Any

import numpy as np

from gluontune.capture.events import Handler, Op, Step, Value
from gluontune.capture.held import Alias, Held, Owner, Tape, View, referred, reshaping
from gluontune.capture.hooks import Hooks
from gluontune.core.errors import remark


class Values(Handler):
    """The arrays of a program and the values that they hold, in the step under way; lines of ``folder`` are told."""

    def __init__(self, mx: Any, folder: str):
        self.mx, self.folder = mx, os.path.abspath(folder)
        self.hooks = Hooks(mx, self)
        self.number, self.step = 0, Step()
        self.held: dict[int, Held] = {}
        self.before: dict[int, Held] = {}  # of the step before
        self.aliases: dict[int, Alias] = {}
        self.variables: dict[int, Owner] = {}  # attach_grad's arrays
        self.marked = 0  # how many arrays have been attach_grad's
        self.owners: dict[int, Owner] = {}
        self.told = -1  # how many parameters had been set when owners were listed
        self.dtypes: dict[Any, str] = {}
        self.tape = Tape()
        self.updated = False
        self.lost: set[int] = set()  # values that earlier steps recorded, whose tape is gone
        self.copying = True  # values are copied, for a proof
        self.lines = True

    def _new(self, array: Any, **of: Any) -> int:
        """A new value that an array holds."""
        return self._add_value(*self._kind(array), **of)

    def _kind(self, array: Any) -> tuple[tuple[int, ...], str]:
        held = self.held.get(id(array))
        if held is not None:
            value = self.step.values[held.value]
            return value.shape, value.dtype
        return tuple(array.shape), self._named(array.dtype)

    def _named(self, dtype: Any) -> str:
        return self.dtypes.get(dtype) or self.dtypes.setdefault(dtype, np.dtype(dtype).name)

    def _like(self, value: int) -> int:
        like = self.step.values[value]
        return self._add_value(like.shape, like.dtype)

    def _add_value(self, shape: tuple[int, ...], dtype: str, **of: Any) -> int:
        self.number += 1
        self.step.values[self.number] = Value(shape, dtype, **of)
        return self.number

    def _snapshot(self, value: int, array: Any) -> None:
        if self.copying:
            self.step.values[value].array = self._copy(array)

    def _copy(self, array: Any) -> np.ndarray:
        with self.hooks.quiet():
            if array.stype != "default":
                return np.asarray(array.tostype("default").asnumpy())
            return np.asarray(array.asnumpy())

    def hold(self, array: Any) -> Held:
        """The entry of an array; a leaf where no operator of this step made it."""
        found = self.held.get(id(array))
        if found is None:
            found = self._again(array) or self._leaf(array)
        if found.base is not None:
            base = found.base if found.base.array is None else self.hold(found.base.array)
            if base.version != found.seen:
                found.value, found.seen = self._viewed(found.view, base), base.version
                self._written(array, found.value)
        return found

    def _leaf(self, array: Any) -> Held:
        owner, earlier = self._owner(array), self.before.get(id(array))
        source, name = (owner.kind, owner.name) if owner else ("earlier", str(earlier.value) if earlier else "")
        entry = self.held[id(array)] = Held(array, self._new(array, source=source, name=name, line=self._line()))
        self._arrived(entry.value, array, id(array))
        return entry

    def _again(self, array: Any) -> Held | None:
        """The entry of an array that an earlier step made to share another's memory."""
        alias = self.aliases.get(id(array))
        if alias is None or alias.array is not array:
            return None
        return self._view_of(alias) if alias.view else self._gradient_of(alias.base, array)

    def _view_of(self, alias: Alias) -> Held:
        """An array shares the memory of another."""
        array, entry = alias.array, self.hold(alias.base)
        found = self.held[id(array)] = Held(array, self._viewed(alias.view, entry), entry, alias.view)
        self.aliases[id(array)] = alias
        self._written(array, found.value)
        return found

    def _gradient_of(self, variable: Any, result: Any) -> Held:
        """Note what ``variable.grad`` gave: another array at the gradient's place."""
        owner = self._owner(variable)
        if owner is not None and owner.parameter is not None:
            with self.hooks.quiet():
                base = self.hold(owner.parameter.grad(variable.context))
        else:
            key = -id(variable)
            if key not in self.held:
                name = str(self.hold(variable).value)
                self.held[key] = Held(None, self._new(result, source="gradient", name=name))
                self._arrived(self.held[key].value, result, key)
            base = self.held[key]
        found = self.held[id(result)] = Held(result, base.value, base)
        self.aliases[id(result)] = Alias(result, variable)
        self._written(result, base.value)
        return found

    def _viewed(self, view: View | None, base: Held) -> int:
        """The value of a view, computed from that of its base."""
        value = base.value
        if view is None:
            return value
        taped = view.recording and (
            value in self.tape.values or bool(base.array is not None and self._variable(base.array))
        )
        line, last = self._line(), view.operators[-1]
        for each in view.operators:
            number = self._add_value(view.shape if each is last else view.between, view.dtype)
            made = Op(*each, [value], [number], view.recording, view.training, line, view=each is last)
            self.step.events.append(made)
            if taped:
                self.tape.values.add(number)
            if view.recording and value in self.lost:
                self.lost.add(number)
            value = number
        return value

    def _arrived(self, value: int, array: Any, key: int) -> None:
        """A value that no operator of this step made. key: of the array in ``held``."""
        self._snapshot(value, array)

    def _owner(self, array: Any) -> Owner | None:
        if self.told != self.hooks.changes:
            self.told, self.owners = self.hooks.changes, {}
            for parameter in list(self.hooks.parameters):
                for kind, arrays in (("parameter", parameter._data), ("gradient", parameter._grad)):
                    for data in arrays or ():
                        self.owners[id(data)] = Owner(kind, parameter.name, data, "null", parameter)
            self.owners.update(self.variables)
        found = self.owners.get(id(array))
        return found if found is not None and found.array is array else None

    def _becomes_variable(self, array: Any, req: str) -> None:
        """``attach_grad`` was called: the array is a leaf from now on."""
        known = self.variables.get(id(array))
        self.marked += known is None
        name = known.name if known is not None else f"variable{self.marked - 1}"
        self.owners[id(array)] = self.variables[id(array)] = Owner("variable", name, array, req)
        for key in (id(array), -id(array)):
            self.held.pop(key, None)
        self.aliases.pop(id(array), None)

    def _variable(self, array: Any) -> str:
        """How gradients go to an array: ``write``, ``add``, or nothing where none do."""
        owner = self._owner(array)
        if owner is None or owner.kind == "gradient":
            return ""
        req = owner.req if owner.parameter is None else str(owner.parameter.grad_req)
        return "" if req == "null" else req

    def _refuse(self, why: str) -> None:
        """Note what cannot be put into a graph, with its line."""
        self.step.unknown.append(f"{self._line(always=True)}: {why}")

    def _check_target(self, array: Any) -> None:
        """Refuse an array that cannot be written to: a view of a part of another."""
        entry = self.hold(array) if id(array) in self.aliases else self.held.get(id(array))
        while entry is not None and entry.base is not None:
            base = entry.base.array
            if base is not None and base.size != array.size:
                self._refuse("a part of an array is written to through a view of it")
                return
            entry = entry.base

    def _line(self, always: bool = False) -> str:
        if not (self.lines or always):
            return ""
        frame: Any = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self.folder) and "site-packages" not in name:
                return f"{_shown(name, self.folder)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def _write(self, array: Any, value: int) -> None:
        """An array, and what it shares its memory with, has another value."""
        if id(array) not in self.held:
            if id(array) not in self.aliases:
                self.held[id(array)] = Held(array, value)
            else:
                self.hold(array)
        entry = self.held[id(array)]
        base = entry.base
        if base is not None and base.array is None:  # the gradient of a variable
            base.value, base.version = value, base.version + 1
        elif base is not None and base.array.size == array.size:
            self._write(base.array, self._reshaped(value, base.array))
        owner = self._owner(array)
        if self._variable(array) and owner is not None:
            self.tape.overwritten[entry.value] = owner.name
        entry.value, entry.version = value, entry.version + 1
        self._written(array, value)
        if base is not None:
            entry.seen = base.version
        if owner is not None and owner.kind != "gradient":
            self.step.writes[owner.name] = value
            by_hand = owner.kind == "variable" or id(array) in self.tape.reached  # not what sets a net's first weights
            self.updated = self.updated or by_hand

    def _reshaped(self, value: int, array: Any) -> int:
        """A value in the shape of an array."""
        if self.step.values[value].shape == tuple(array.shape):
            return value
        number = self._new(array)
        name, attrs = reshaping(array)
        self.step.events.append(Op(name, attrs, [value], [number], False, False, self._line()))
        return number

    def _written(self, array: Any, value: int) -> None:
        """An array holds a value, or another one."""

    def _references(self) -> Counter[int]:
        """How often the recorder itself refers to arrays, by their ids."""
        found = Counter(key for key, entry in [*self.held.items(), *self.before.items()] if entry.array is not None)
        found.update(list(self.variables))
        for alias in self.aliases.values():
            found.update(referred(alias))
        return found

    def _let_go(self) -> Counter[int]:
        """Forget all arrays that the program has no more, so that MXNet can free them; see :meth:`_references`."""
        ours = self._forget_unused()
        bases = {id(alias.base) for alias in self.aliases.values()}
        for table in (self.held, self.before):
            for key, entry in list(table.items()):
                if entry.array is None or key in bases or sys.getrefcount(entry.array) > ours[key] + 1:
                    continue
                if self._owner(entry.array) is None:
                    del table[key]
        return ours

    def _forget_unused(self) -> Counter[int]:
        """Forget views and variables that the program has no more; see :meth:`_references`."""
        ours = self._references()
        for key in reversed(list(self.aliases)):
            if sys.getrefcount(self.aliases[key].array) <= ours[key] + 1:
                ours.subtract(referred(self.aliases.pop(key)))
        for key in list(self.variables):
            if sys.getrefcount(self.variables[key].array) <= ours[key] + 1:
                del self.variables[key], self.owners[key]
                ours.subtract((key,))
        return ours


@functools.lru_cache
def _shown(file: str, folder: str) -> str:
    """A file's path for messages, comments and docstrings."""
    return remark(os.path.relpath(file, folder))
