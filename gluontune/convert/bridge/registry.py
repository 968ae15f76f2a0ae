"""The registry of operators."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from gluontune.convert.graph.schemas import known_schema, parse
from gluontune.convert.graph.symbol import Node
from gluontune.core.errors import GluontuneError, clean
from gluontune.recipe.registry import Registry

# Attributes of MXNet's implementation, without an effect on the result.
IGNORED = {"workspace", "cudnn_tune", "cudnn_off", "num_args", "min_calib_range", "max_calib_range", "ndev", "key",
           "sparse_grad", "ctx", "infer_range", "is_int", "is_logit",
           "num_inputs", "target_shape_", "keep_highest", "safe_accumulation",
           "num_outputs_", "num_weights", "multi_input_mode"}  # fmt: skip


@dataclass(frozen=True)
class Operator:
    """An entry.

    Args:
        name: MXNet's. run: of the inputs, then the attributes by name; of a stateful one a module's class that takes
            the attributes.
        stateful: it differs in training. many: it returns a tuple. source: it has no inputs, and gets ``like``, a
            tensor on the right device. loops: its class takes the modules of its subgraphs first.
        rounded: MXNet computes it in float32, or with float32 constants, for any dtype.
    """

    name: str
    run: Callable[..., Any]
    stateful: bool = False
    many: bool | Callable[[Mapping[str, Any]], bool] = False
    source: bool = False
    loops: bool = False
    rounded: bool | Callable[[Mapping[str, Any]], bool] = False

    def returns_tuple(self, attrs: Mapping[str, Any]) -> bool:
        return bool(self.many(attrs)) if callable(self.many) else self.many

    def is_rounded(self, attrs: Mapping[str, Any]) -> bool:
        return bool(self.rounded(attrs)) if callable(self.rounded) else self.rounded


OPERATORS: Registry[Operator] = Registry("operator of the bridge")


def operator(*names: str, **entry: Any) -> Callable[[Any], Any]:
    """Register a function (or, with ``stateful=True``, a module's class) as one or more of MXNet's operators.

    >>> @operator("my_double")
    ... def double(x):
    ...     return x * 2
    >>> OPERATORS["my_double"].run(3)
    6
    >>> OPERATORS.remove("my_double")
    """

    def add(run: Any) -> Any:
        for name in names:
            OPERATORS.add(name, Operator(name, run, **entry))
        return run

    return add


def operators(scope: dict[str, Any], rows: Mapping[str, Callable[..., Any]]) -> None:
    """Register operators of one expression: a row has MXNet's names, with spaces between, and a lambda.

    ``scope`` is the module's ``globals()``, which gets each under its first name: so a converted module can be saved.
    """
    for names, run in rows.items():
        first = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", names.split()[0].strip("_")).lower()
        run.__name__ = run.__qualname__ = first
        scope[first] = operator(*names.split())(run)


def unknown_output(layer: str, op: str | None, place: int) -> GluontuneError:
    return GluontuneError(f"layer {layer}: output {place} of {op} is used, which the bridge does not give")


def attributes(entry: Operator, node: Node) -> dict[str, Any]:
    """A node's attributes as arguments of its entry; an unknown one with another value than its default is an error."""
    where, name = clean(node.name, 80), entry.name
    try:
        taken: Mapping[str, inspect.Parameter] = inspect.signature(entry.run).parameters
    except ValueError:  # torch's functions in C
        taken = {}
    if any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        odd = [key for key in node.attrs if not key.isidentifier() or keyword.iskeyword(key)]
        if odd:  # torch.fx writes it into source
            raise GluontuneError(f"layer {where}: {clean(odd[0], 80)!r} is no name of an attribute")
        return dict(node.attrs)
    for key, value in node.attrs.items():
        if key not in taken and key not in IGNORED and value != default_of(node.op or "", key):
            raise GluontuneError(
                f"layer {where}: {name} with {clean(f'{key}={value!r}', 80)} is not known to the bridge; register your "
                f"own with gt.bridge.operator({name!r})"
            )
    return {key: value for key, value in node.attrs.items() if key in taken}


def default_of(op: str, key: str) -> Any:
    """MXNet's default of an operator's attribute, or None."""
    known = known_schema(op)
    attribute = known.attributes.get(key) if known else None
    return None if attribute is None else parse(attribute, attribute.default, key)
