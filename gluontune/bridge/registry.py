"""The registry of operators: one entry each, with what it computes and how to draw a test of it."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Protocol

from gluontune.errors import GluontuneError
from gluontune.registry import Registry
from gluontune.texts import clean

__all__ = ["OPERATORS", "Draw", "Operator", "Sample", "keywords", "operator", "unknown_output"]

# How MXNet computes, not what: of no meaning here.
IGNORED = {"workspace", "cudnn_tune", "cudnn_off", "num_args", "min_calib_range", "max_calib_range", "ndev", "key",
           "sparse_grad", "ctx", "infer_range", "is_int", "is_logit",
           "num_inputs", "target_shape_", "keep_highest", "safe_accumulation",
           "num_outputs_", "num_weights", "multi_input_mode"}  # fmt: skip


class Draw(Protocol):
    """Where a sample takes its choices from: hypothesis in the tests."""

    def pick(self, values: Sequence[Any]) -> Any: ...

    def shape(self, least: int = 1, most: int = 4) -> tuple[int, ...]: ...

    def int(self, low: int, high: int) -> int: ...


@dataclass(frozen=True)
class Sample:
    """One drawn case.

    Args:
        inputs: of each input what fills it and its shape: ``("normal", (2, 3))``; also ``positive``, ``unit``
            (-0.9 … 0.9), ``distinct`` (no two alike), ``boxes`` (…, 4), ``("index", shape, high)``.
        attrs: as MXNet's text takes them. train: whether MXNet is asked in training mode.
        grads: whether gradients are compared too. dtype: float32 where MXNet computes in no other.
        random: it draws, so that the number in the place of a draw is compared (``stand_ins``, ``drawing.STEADY``).
    """

    inputs: Sequence[tuple[Any, ...]]
    attrs: Mapping[str, Any]
    train: bool = False
    grads: bool = True
    dtype: str = "float64"
    random: bool = False


@dataclass(frozen=True)
class Operator:
    """An entry.

    Args:
        name: MXNet's. run: takes the inputs, then the attributes by name; of a stateful one a module's class
            that takes the attributes. sample: draws a test, None where it is tested by hand.
        stateful: it acts otherwise in training. many: it returns a tuple. source: it has no inputs, and is
            given ``like``, a tensor on the right device. loops: its class takes the modules of its subgraphs first.
        rounded: MXNet computes it in float32, or with constants of it, whatever it is given.
    """

    name: str
    run: Callable[..., Any]
    sample: Callable[[Draw], Sample] | None = None
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
    >>> del OPERATORS._entries["my_double"]
    """

    def add(run: Any) -> Any:
        for name in names:
            OPERATORS.add(name, Operator(name, run, **entry))
        return run

    return add


def unknown_output(layer: str, op: str | None, place: int) -> GluontuneError:
    return GluontuneError(f"layer {layer}: output {place} of {op} is used, which the bridge does not give")


def keywords(
    entry: Operator, attrs: Mapping[str, Any], where: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The attributes that the entry takes.

    Raises:
        GluontuneError: an attribute that the entry does not know is set to something else than its default.
    """
    try:
        taken: Mapping[str, inspect.Parameter] = inspect.signature(entry.run).parameters
    except ValueError:  # torch's own, in C
        taken = {}
    if any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        odd = [name for name in attrs if not name.isidentifier() or keyword.iskeyword(name)]
        if odd:  # torch.fx writes it into source
            raise GluontuneError(
                f"layer {clean(where, 80)}: {clean(odd[0], 80)!r} is no name of an attribute"
            )
        return dict(attrs)
    found = {}
    for name, value in attrs.items():
        if name in taken:
            found[name] = value
        elif name not in IGNORED and value != defaults.get(name):
            raise GluontuneError(
                f"layer {clean(where, 80)}: {entry.name} with {clean(f'{name}={value!r}', 80)} is not known to the "
                f"bridge; register your own with gt.bridge.operator({entry.name!r})"
            )
    return found
