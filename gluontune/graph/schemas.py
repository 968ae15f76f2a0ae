"""What MXNet's operators take: inputs, and attributes with their types and defaults.

The table in ``operators.json`` is MXNet 1.9.1's own description of its operators, written by
``graph.table.write(gt.runtime.mxnet())``; reading it needs no mxnet.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.errors import UnknownNameError, UsageError
from gluontune.texts import clean

__all__ = ["Attribute", "OperatorSchema", "parse", "schema", "table_path"]


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
        name: as symbols have it. inputs: their names, in order; ``*`` alone where any number is taken.
        attributes: by name. count: the attribute that holds the number of inputs, if any.
    """

    name: str
    inputs: tuple[str, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    count: str | None = None

    def typed(self, attrs: Mapping[str, str], where: str = "") -> dict[str, Any]:
        """The attributes with their Python types, MXNet's defaults put in.

        Hidden ones (``__lr_mult__`` and the like) are left out. One that MXNet does not name stays text.

        Raises:
            UsageError: a required one is missing, or a value is not of its type.
        """
        found: dict[str, Any] = {}
        for name, attribute in self.attributes.items():
            if name in attrs:
                found[name] = parse(attribute, attrs[name], f"{where or self.name}: {name}")
            elif attribute.required:
                raise UsageError(f"{where or self.name}: {self.name} lacks its attribute {name!r}")
            else:
                found[name] = parse(attribute, attribute.default, f"{self.name}: {name}")
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
    operators, aliases = _table()
    entry = operators.get(aliases.get(name, name))
    if entry is None:
        raise UnknownNameError("MXNet operator", name, [n for n in operators if n[:2].lower() == name[:2].lower()])
    return entry


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
        return float(np.float32(text))  # MXNet keeps four bytes of it, also where the arrays have eight
    if kind.startswith("double"):
        return float(text)
    return _told(text) if kind == "" else text


def _told(text: str) -> Any:
    """A value whose type MXNet does not tell: a number, a tuple, or text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
