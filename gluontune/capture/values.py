"""What a program's arrays hold: values that never change, with their sources and lines."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from gluontune.capture.events import Step, Value
from gluontune.capture.handler import Handler
from gluontune.capture.hooks import Hooks


class Held:
    """An array of the program's, the value that it holds, and what it is a view of."""

    def __init__(self, array: Any, value: int, base: Held | None = None, view: Any = None):
        self.array, self.value, self.base, self.view = array, value, base, view
        self.version, self.seen = 0, base.version if base else 0


class Values(Handler):
    """The arrays of a program and the values that they hold, in the step under way.

    Args:
        mx: the mxnet module. folder: of the program, whose lines are told.
    """

    def __init__(self, mx: Any, folder: str):
        self.mx, self.folder = mx, os.path.abspath(folder)
        self.hooks: Hooks  # set by who installs them
        self.number, self.step = 0, Step()
        self.held: dict[int, Held] = {}
        self.before: dict[int, Held] = {}  # of the step before
        self.variables: dict[int, tuple[Any, str]] = {}  # attach_grad's arrays and their grad_req
        self.known: dict[int, Any] = {}  # parameters by their arrays
        self.told = -1  # how many parameters had been set when those were listed
        self.dtypes: dict[Any, str] = {}
        self.updated = False
        self.copying = True  # values are copied, for a proof
        self.lines = True

    def _new(self, array: Any, **of: Any) -> int:
        """A new value that an array holds."""
        dtype = array.dtype
        name = self.dtypes.get(dtype) or self.dtypes.setdefault(dtype, np.dtype(dtype).name)
        return self._add_value(tuple(array.shape), name, **of)

    def _like(self, value: int) -> int:
        """A new value of the same shape and type."""
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
            found = self.held[id(array)] = self._leaf(array)
        if found.base is not None:
            base = self._fresh(found.base)
            if base.version != found.seen and found.view is not None:
                found.value, found.seen = found.view(base.value), base.version
                self._written(array, found.value)
        return found

    def _fresh(self, entry: Held) -> Held:
        return self.hold(entry.array) if entry.array is not None else entry

    def _leaf(self, array: Any) -> Held:
        parameter = self._parameter(array)
        earlier = self.before.get(id(array))
        what: dict[str, Any]
        if parameter is not None:
            what = {"source": parameter[0], "name": parameter[1]}
        elif id(array) in self.variables:
            what = {"source": "variable", "name": f"variable{list(self.variables).index(id(array))}"}
        else:
            what = {"source": "earlier", "name": str(earlier.value) if earlier else ""}
        entry = Held(array, self._new(array, **what, line=self._line()))
        self._arrived(entry.value, array)
        return entry

    def _arrived(self, value: int, array: Any) -> None:
        """A value that no operator of this step made."""
        self._snapshot(value, array)

    def _parameter(self, array: Any) -> tuple[str, str] | None:
        if self.told != self.hooks.changes:
            self.told = self.hooks.changes
            self.known.clear()
            for parameter in list(self.hooks.parameters):
                for data in parameter._data or ():
                    self.known[id(data)] = ("parameter", parameter, data)
                for data in parameter._grad or ():
                    self.known[id(data)] = ("gradient", parameter, data)
        kind, parameter, data = self.known.get(id(array), ("", None, None))
        return (kind, parameter.name) if data is array and parameter is not None else None

    def _variable(self, array: Any) -> tuple[bool, str]:
        """Whether gradients go to an array, and how."""
        if id(array) in self.variables:
            return self.variables[id(array)][1] != "null", self.variables[id(array)][1]
        self._parameter(array)
        kind, parameter, data = self.known.get(id(array), ("", None, None))
        req = parameter.grad_req if kind == "parameter" and data is array else "null"
        return req != "null", req

    def _line(self) -> str:
        if not self.lines:
            return ""
        frame: Any = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self.folder) and "site-packages" not in name:
                return f"{os.path.relpath(name, self.folder)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def _write(self, array: Any, value: int) -> None:
        entry = self.held.get(id(array))
        if entry is None:
            entry = self.held[id(array)] = Held(array, value)
        elif entry.base is not None and entry.base.array is None:  # the gradient of a variable
            entry.base.value, entry.base.version = value, entry.base.version + 1
        elif entry.base is not None and entry.base.array is not None:
            if tuple(entry.base.array.shape) != tuple(array.shape):
                self.step.unknown.append(f"{self._line()}: a part of an array is written to through a view of it")
            else:
                self._write(entry.base.array, value)
        entry.value, entry.version = value, entry.version + 1
        self._written(array, value)
        if entry.base is not None:
            entry.seen = entry.base.version
        parameter = self._parameter(array)
        if parameter is not None and parameter[0] == "parameter":
            self.step.writes[parameter[1]] = value
        elif id(array) in self.variables:
            self.step.writes[f"variable{list(self.variables).index(id(array))}"] = value
            self.updated = True

    def _written(self, array: Any, value: int) -> None:
        """An array holds a value, or another one."""
