"""MXNet's operators: inputs, attributes with types and defaults, and the meaning of shapes and axes.

The table in ``operators.json`` is MXNet 1.9.1's description of its operators, written by
``python -m tools.operator_table``; reading it needs no mxnet.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.core.errors import UnknownNameError, UsageError, clean

_LONGEST = 10_000  # characters of a shape


@dataclass(frozen=True)
class Attribute:
    """One attribute: its ``type`` in MXNet's words, whether it is ``required``, and its ``default`` as text."""

    type: str
    required: bool = False
    default: str | None = None


@dataclass(frozen=True)
class OperatorSchema:
    """One operator.

    Args:
        name: in symbols. inputs: their names, in order; ``*`` alone for any number.
        attributes: by name. count: the attribute with the number of inputs, if any.
    """

    name: str
    inputs: tuple[str, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    count: str | None = None

    def typed(self, attrs: Mapping[str, str], where: str = "") -> dict[str, Any]:
        """The attributes with their Python types and MXNet's defaults.

        Hidden ones (``__lr_mult__`` and the like) are left out. Attributes unknown to MXNet stay text.

        Raises:
            UsageError: a required one is missing, or a value is not of its type.
        """
        found: dict[str, Any] = {}
        for name, attribute in self.attributes.items():
            if attribute.required and name not in attrs:
                raise UsageError(f"{where or self.name}: {self.name} lacks its attribute {name!r}")
            found[name] = parse(attribute, attrs.get(name, attribute.default), f"{where or self.name}: {name}")
        others = {k: v for k, v in attrs.items() if k not in found and not k.startswith("__")}
        return {**found, **others}


def schema(name: str) -> OperatorSchema:
    """The schema of an operator, by its name or by any of its aliases.

    >>> conv = schema("Convolution")
    >>> conv.inputs
    ('data', 'weight', 'bias')
    >>> typed = conv.typed({"kernel": "(3, 3)", "num_filter": "16", "no_bias": "True"})
    >>> typed["kernel"], typed["num_group"], typed["no_bias"], typed["layout"]
    ((3, 3), 1, True, None)
    >>> schema("_Plus").name
    'elemwise_add'

    Raises:
        UnknownNameError: MXNet 1.9.1 has no such operator.
    """
    entry = known_schema(name)
    if entry is None:
        operators, _ = _table()
        raise UnknownNameError("MXNet operator", name, [n for n in operators if n[:2].lower() == name[:2].lower()])
    return entry


def known_schema(name: str | None) -> OperatorSchema | None:
    """The schema of an operator, or None where MXNet 1.9.1 has no such one."""
    operators, aliases = _table()
    return operators.get(aliases.get(name or "", name or ""))


def table_path() -> Path:
    return Path(__file__).with_name("operators.json")


@functools.cache
def _table() -> tuple[dict[str, OperatorSchema], dict[str, str]]:
    raw = json.loads(table_path().read_text("utf-8"))
    operators = {}
    for name, (inputs, attributes, count) in raw["operators"].items():
        typed = {key: Attribute(*value) for key, value in attributes.items()}
        operators[name] = OperatorSchema(name, tuple(inputs), typed, count)
    return operators, raw["aliases"]


def parse(attribute: Attribute, text: str | None, where: str) -> Any:
    """A value of MXNet's text form.

    >>> parse(Attribute("boolean"), "1", ""), parse(Attribute("Shape(tuple)"), "[2, 3]", "")
    (True, (2, 3))
    >>> parse(Attribute("Shape or None"), "None", ""), parse(Attribute("{'avg', 'max'}"), "max", "")
    (None, 'max')
    """
    kind = attribute.type
    if text is None or text in ("None", "", "<Null>"):
        return () if kind.startswith("Shape(tuple)") and text != "None" else None
    try:
        return _parse(kind, text)
    except (ValueError, SyntaxError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise UsageError(f"{where}={clean(repr(text), 80)} is not of type {kind}") from error


def _of_numbers(values: Any) -> bool:
    kinds = (int, float, type(None))
    return all(_of_numbers(v) if isinstance(v, (tuple, list)) else isinstance(v, kinds) for v in values)


def _parse(kind: str, text: str) -> Any:
    if kind.startswith("boolean"):
        if text.lower() not in ("true", "false", "0", "1"):
            raise ValueError(text)
        return text.lower() in ("true", "1")
    if kind.startswith(("Shape", "tuple")):
        value: Any = ast.literal_eval(text.replace("L", "").strip()) if len(text) <= _LONGEST else None
        values = (value,) if isinstance(value, (int, float)) else tuple(value)
        if not _of_numbers(values):
            raise ValueError(text)
        return tuple(float(np.float32(v)) for v in values) if "<float>" in kind else values
    if kind.startswith(("int", "long")):
        return int(float(text)) if "." in text or "e" in text else int(text.rstrip("L"))
    if "{'" in kind and not kind.startswith("string") and text not in re.findall(r"'([^']*)'", kind):
        raise ValueError(text)
    if kind.startswith(("float", "real_t")):
        return as_mxnet_reads(text)
    if kind.startswith("double"):
        return float(text)
    return _untyped(text) if kind == "" else text


def as_mxnet_reads(text: str) -> float:
    """A number's text as MXNet reads it: four bytes for arrays of any dtype, digits and exponent each rounded.

    One in four numbers with an exponent is the next but the nearest.

    >>> as_mxnet_reads("0.2"), as_mxnet_reads("5.532389462724967e-05"), float(np.float32("5.532389462724967e-05"))
    (0.20000000298023224, 5.532389695872553e-05, 5.532389332074672e-05)
    """
    found = re.fullmatch(r"([+-]?)(\d*)\.?(\d*)(?:[eE]([+-]?)(\d+))?", text.strip())
    if not found or not (found[2] or found[3]):
        return float(np.float32(text))  # inf, nan, or no number
    part, power = found[3][:19], int(found[5] or 0)
    value = np.float32(int(found[2] or 0)) + np.float32(int(part or 0) / 10 ** len(part))
    scale = np.float32(1)
    for step in [1e8] * min(power // 8, 5) + [10] * (power % 8):
        scale *= np.float32(step)
    value = value / scale if found[4] == "-" else value * scale
    return float(-value if found[1] == "-" else value)


def _untyped(text: str) -> Any:
    """A value without a type in MXNet's table: a number, a tuple, or text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# What the codes of a new shape mean, in mx.nd and in mx.npx, where 0 is a size; -1 infers in both.
_CODES = {0: "keep", -2: "keep the rest", -3: "join", -4: "split"}
_NPX_CODES = {-2: "keep", -3: "drop", -4: "keep the rest", -5: "join", -6: "split"}


def new_shape(old: Any, codes: Any, reverse: bool = False, meaning: Any = _CODES) -> tuple[int, ...]:
    """The shape of Reshape's codes: 0 keeps, -1 infers, -2 keeps the rest, -3 joins two, -4 splits one.

    >>> new_shape((2, 3, 4), (0, -1)), new_shape((2, 3, 4), (-3, 0)), new_shape((2, 6), (0, -4, 2, -1))
    ((2, 12), (6, 4), (2, 2, 3))
    >>> new_shape((10, 5, 4), (-1, 0)), new_shape((10, 5, 4), (-1, 0), True), new_shape((2, 20), (-2, 4, 5, -4), True)
    ((40, 5), (50, 4), (2, 4, 5))
    """
    old, codes = list(old), list(codes)
    if reverse:
        return new_shape(old[::-1], codes[::-1], meaning=meaning)[::-1]  # a split is (a, b, -4) here
    found: list[int] = []
    at = i = 0
    while i < len(codes):
        what = meaning.get(codes[i])
        if what == "keep":
            found.append(old[at])
        elif what == "keep the rest":
            found += old[at:]
            at = len(old) - 1
        elif what == "join":
            found.append(old[at] * old[at + 1])
            at += 1
        elif what == "split":
            a, b = codes[i + 1 : i + 3]
            found += [old[at] // b if a == -1 else a, old[at] // a if b == -1 else b]
            i += 2
        elif what != "drop":
            found.append(codes[i])
        elif old[at : at + 1] != [1]:
            raise ValueError(f"-3 of {tuple(codes)} drops a side of 1, which {tuple(old)} does not have there")
        at, i = at + 1, i + 1
    if -1 in found:
        known = -math.prod(found)
        found[found.index(-1)] = math.prod(old) // known if known else 0
    return tuple(found)


def np_new_shape(old: Any, codes: Any, reverse: bool = False) -> tuple[int, ...]:
    """The same for ``npx.reshape``: -2 keeps one, -3 drops a 1, -4 keeps the rest, -5 joins two, -6 splits one.

    >>> np_new_shape((2, 3, 4), (-2, -5)), np_new_shape((2, 1, 4), (-2, -3, -1)), np_new_shape((2, 0), (0, 2))
    ((2, 12), (2, 4), (0, 2))
    """
    return new_shape(old, codes, reverse, _NPX_CODES)


def axes_of(rank: int, axis: Any, exclude: bool = False) -> tuple[int, ...]:
    """MXNet's axes: None or () is all; ``exclude`` inverts the choice.

    >>> axes_of(3, None), axes_of(3, -1), axes_of(3, (0, 1), exclude=True)
    ((0, 1, 2), (2,), (2,))
    """
    if axis is None or axis == ():
        return tuple(range(rank))
    named = set()
    for a in (axis,) if isinstance(axis, int) else axis:
        if not -rank <= a < rank:
            raise ValueError(f"axis {a} of {rank}")
        named.add(a % rank)
    return tuple(a for a in range(rank) if (a in named) != exclude)


def resized(size: int, scale: float | None, mode: str) -> int:
    """One side of BilinearResize2D's output in its modes without a size."""
    if mode == "size":
        return int(size * (scale or 1))
    if mode == "odd_scale":
        return int(size * (scale or 1)) if size % 2 == 0 else int((size - 1) * (scale or 1)) + 1
    _, parity, way = mode.split("_")
    return size if (size % 2 == 0) == (parity == "even") else size + (1 if way == "up" else -1)
