"""The bridge's table of MXNet's operators, made from mxnet: ``python -m tools.operator_table``."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from gluontune.convert.graph.schemas import table_path
from gluontune.core.files import atomic_write
from gluontune.runtime import mxnet

_LEFT_OUT = ("_backward", "_npi_backward", "_sg_", "_broadcast_backward", "_contrib_backward")


def describe(mx: Any) -> dict[str, Any]:
    """``{"operators": {name: [inputs, attributes, count]}, "aliases": {alias: name}}`` of an imported mxnet."""
    operators: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for name in _names(mx):
        if name.startswith(_LEFT_OUT):
            continue
        real, arguments, count = _info(mx, name)
        if real != name:
            aliases[name] = real
        inputs, attributes = [], {}
        for key, text in arguments:
            if "NDArray" in text or text.startswith("Symbol"):
                inputs.append("*" if text.endswith("[]") else key)
            else:
                attributes[key] = _attribute(text)
        operators[real] = [inputs, attributes, count or None]
    return {"operators": dict(sorted(operators.items())), "aliases": dict(sorted(aliases.items()))}


def _attribute(text: str) -> list[Any]:
    kind, _, default = text.partition("default=")
    required = "required" in kind
    kind = kind.replace("required", "").replace("optional", "").rstrip(", ")
    return [kind, required, default.strip("'") if default else None]


def _names(mx: Any) -> list[str]:
    count, found = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    mx.base.check_call(mx.base._LIB.MXListAllOpNames(ctypes.byref(count), ctypes.byref(found)))
    return sorted(mx.base.py_str(found[i]) for i in range(count.value))


def _info(mx: Any, name: str) -> tuple[str, list[tuple[str, str]], str]:
    base = mx.base
    handle = base.OpHandle()
    base.check_call(base._LIB.NNGetOpHandle(base.c_str(name), ctypes.byref(handle)))
    texts = [ctypes.c_char_p() for _ in range(4)]  # name, description, count, return type
    lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]  # names, types, descriptions
    number = base.mx_uint()
    refs = [ctypes.byref(item) for item in (*texts[:2], number, *lists, *texts[2:])]
    base.check_call(base._LIB.MXSymbolGetAtomicSymbolInfo(handle, *refs))
    pairs = [(base.py_str(lists[0][i]), base.py_str(lists[1][i])) for i in range(number.value)]
    return base.py_str(texts[0].value), pairs, base.py_str(texts[2].value)


def write(mx: Any) -> None:
    """Write ``gluontune/convert/graph/operators.json``."""
    table = describe(mx)
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in table["operators"].items()]
    with atomic_write(table_path(), "w") as stream:
        stream.write('{"operators": {\n' + ",\n".join(lines) + "\n},\n")
        stream.write(f'"aliases": {json.dumps(table["aliases"])}}}\n')


if __name__ == "__main__":
    write(mxnet())
