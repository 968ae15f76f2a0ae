"""Operators as text: layers of torch.nn with their arguments, and expressions of torch."""

from __future__ import annotations

import builtins
import inspect
import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune.convert.bridge.registry import OPERATORS, attributes
from gluontune.convert.graph.symbol import Node
from gluontune.convert.migrate.copying import has_source
from gluontune.core.errors import GluontuneError, literal
from gluontune.runtime.pytorch import torch

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "power": "**", "plus": "+", "minus": "-",
          "subtract": "-", "multiply": "*", "true_divide": "/"}  # fmt: skip
_ORDER = {"equal": "==", "not_equal": "!=", "greater": ">", "greater_equal": ">=", "lesser": "<", "less": "<",
          "lesser_equal": "<=", "less_equal": "<="}  # fmt: skip
_ACTIVATIONS = {"relu": ("torch.relu", "nn.ReLU"), "sigmoid": ("torch.sigmoid", "nn.Sigmoid"),
                "tanh": ("torch.tanh", "nn.Tanh"), "softrelu": ("F.softplus", "nn.Softplus"),
                "softsign": ("F.softsign", "nn.Softsign"), "log_sigmoid": ("F.logsigmoid", "nn.LogSigmoid"),
                "mish": ("F.mish", "nn.Mish")}  # fmt: skip
#: Operators of the registry whose function has no text.
_FORMS = {"Flatten": "{0}.reshape(len({0}), -1)", "square": "{0}.square()", "_copy": "{0}", "BlockGrad": "{0}.detach()",
          "round": "{0}.sign() * ({0}.abs() + 0.5).floor()",
          "negative": "-{0}", "arccosh": "torch.arccosh({0})", "gamma": "torch.lgamma({0}).exp()",
          "cbrt": "{0}.sign() * {0}.abs().pow(1 / 3)", "rcbrt": "{0}.sign() / {0}.abs().pow(1 / 3)",
          "logical_not": "({0} == 0).to({0}.dtype)", "_maximum_scalar": "{0}.clamp(min={scalar})",
          "_minimum_scalar": "{0}.clamp(max={scalar})"}  # fmt: skip
#: Quotients that keep the type of whole numbers, as a sign of Python's does not.
_CUT_OFF = ("broadcast_div", "elemwise_div", "_div_scalar", "_rdiv_scalar")
_REDUCED = {"mean": "mean", "sum": "sum", "_npi_mean": "mean", "_np_sum": "sum"}


@dataclass(frozen=True)
class Layer:
    """A layer of torch.nn's or of the project.

    Args:
        kind: the class. values: its sizes and settings by name, in order. before: the suffix of the input, such as
            ``.flatten(1)``. names: the parameters' names in the layer, in the operator's order.
    """

    kind: str
    values: tuple[tuple[str, Any], ...] = ()
    before: str = ""
    names: tuple[str, ...] = ()


def _settings(pairs: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    short = {k: _short_float(v) if k in ("eps", "momentum") else v for k, v in pairs.items()}
    return tuple((k, v) for k, v in short.items() if k not in defaults or v != defaults[k])


def _short_float(value: float) -> float:
    """0.9 for 0.8999999761581421, its float32 in MXNet."""
    short = float(f"{value:.6g}")
    return short if np.float32(short) == np.float32(value) else value


def _one(value: Any, n: int, default: int) -> Any:
    """One number if all sides are equal."""
    value = tuple(value) or (default,) * n
    return value[0] if len(set(value)) == 1 else value


def layer_of(node: Node, shapes: Sequence[tuple[int, ...]]) -> Layer | None:
    """The layer of an operator, or None; ``shapes`` of its parameters, in order (inputs other than data)."""
    made = _LAYERS.get(node.op or "")
    return made(attributes(OPERATORS[node.op or ""], node), shapes) if made else None


def _conv(a: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> Layer | None:
    n = len(a["kernel"])
    if not shapes or (a.get("layout") or "NC").endswith("C") or n not in (1, 2, 3):
        return None
    groups, bias = a.get("num_group", 1), len(shapes) > 1
    values = {
        "in_channels": shapes[0][1] * groups, "out_channels": shapes[0][0], "kernel_size": _one(a["kernel"], n, 1),
        "stride": _one(a.get("stride", ()), n, 1), "padding": _one(a.get("pad", ()), n, 0),
        "dilation": _one(a.get("dilate", ()), n, 1), "groups": groups, "bias": bias,
    }  # fmt: skip
    plain = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "bias": True}
    return Layer(f"nn.Conv{n}d", _settings(values, plain), names=("weight", "bias")[: 1 + bias])


def _dense(a: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> Layer | None:
    if not shapes:
        return None
    bias = len(shapes) > 1
    values = {"in_features": shapes[0][1], "out_features": shapes[0][0], "bias": bias}
    before = ".flatten(1)" if a.get("flatten", True) else ""
    return Layer("nn.Linear", _settings(values, {"bias": True}), before, ("weight", "bias")[: 1 + bias])


def _norm(a: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> Layer | None:
    if len(shapes) != 4 or a.get("output_mean_var"):
        return None
    values = {"channels": shapes[0][0], **{k: v for k, v in a.items() if k != "output_mean_var"}}
    plain = {"eps": 1e-5, "momentum": 0.9, "fix_gamma": False, "use_global_stats": False, "axis": 1}
    return Layer("BatchNorm", _settings(values, plain), names=("gamma", "beta", "running_mean", "running_var"))


def _leaky(a: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> Layer | None:
    if a.get("act_type", "leaky") != "leaky":
        return None
    return Layer("nn.LeakyReLU", (("negative_slope", a.get("slope", 0.25)),))


def _dropout(a: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> Layer | None:
    if a.get("axes") or a.get("mode", "training") != "training":
        return None
    return Layer("nn.Dropout", (("p", _short_float(a.get("p", 0.5))),))


def _pool(a: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> Layer | None:
    n, kind = len(a.get("kernel", ())), a.get("pool_type", "max")
    if (a.get("layout") or "NC").endswith("C"):
        return None
    if a.get("global_pool"):
        known = n == 2 and kind in ("max", "avg")
        return Layer(f"nn.Adaptive{kind.title()}Pool2d", (("output_size", "1"),)) if known else None
    if a.get("pooling_convention", "valid") != "valid":
        return None
    pad = a.get("pad", ()) or (0,) * n
    if kind not in ("max", "avg") or any(2 * p > k for p, k in zip(pad, a["kernel"])):
        return None
    values = {"kernel_size": _one(a["kernel"], n, 1), "stride": _one(a.get("stride", ()), n, 1)}
    values["padding"] = _one(pad, n, 0)
    if kind == "avg":
        values["count_include_pad"] = a.get("count_include_pad") in (None, True)
    return Layer(f"nn.{kind.title()}Pool{n}d", _settings(values, {"padding": 0, "count_include_pad": True}))


_LAYERS = {
    "Convolution": _conv, "FullyConnected": _dense, "BatchNorm": _norm, "Dropout": _dropout,
    "LeakyReLU": _leaky, "Pooling": _pool, "Flatten": lambda a, s: Layer("nn.Flatten"),
    "Activation": lambda a, s: Layer(_ACTIVATIONS[a["act_type"]][1]),
}  # fmt: skip


def arguments(attrs: Mapping[str, Any], run: Any) -> str:
    """``name=value`` of the attributes other than the function's defaults."""
    try:
        known: Mapping[str, Any] = inspect.signature(run).parameters
    except (ValueError, TypeError):
        known = {}
    changed = {k: v for k, v in attrs.items() if k not in known or known[k].default != v or k == "dtype"}
    # MXNet's default is float32, PyTorch's can be set
    return ", ".join(
        f"{k}=" + ("torch.get_default_dtype()" if (k, v) == ("dtype", "float32") else literal(v))
        for k, v in changed.items()
        if (k, v) != ("dtype", None)
    )


def named(node: Node, used: dict[str, Any]) -> str:
    """The name of an operator's function in operators.py; ``used``, its functions by name, gets this one."""
    run = OPERATORS[node.op or ""].run
    if not has_source(run):
        raise GluontuneError(
            f"layer {node.name}: operator {node.op} was registered outside of gluontune, so migrate cannot copy it; "
            "gt.bridge.to_torch converts it"
        )
    name = run.__qualname__ if run.__qualname__.isidentifier() else ""
    if not name or name.startswith("_"):
        name = (node.op or "").lstrip("_")
        name += "_" if hasattr(builtins, name) or keyword.iskeyword(name) else ""
    while used.setdefault(name, run) is not run:
        name += "_"
    return name


def has_whole_numbers(nodes: Iterable[Node]) -> bool:
    """Whether operators of a graph give arrays of whole numbers, whose quotients MXNet cuts off."""
    return any(n.op in ("shape_array", "size_array") or "int" in str(n.attrs.get("dtype", "")) for n in nodes)


def expression(node: Node, args: Sequence[str], like: str, used: dict[str, Any], whole: bool = False) -> str:
    """A stateless operator's computation as text.

    Args:
        node: the operator. args: texts of its inputs. like: text of a tensor on the net's device.
        used: gets the functions that the text calls as ``operators.name``.
        whole: its inputs may be whole numbers, which Python's division would turn into floats.
    """
    op, entry = node.op or "", OPERATORS[node.op or ""]
    attrs = attributes(entry, node)
    short = None if whole and op in _CUT_OFF else _short(op, args, attrs)
    if short is not None:
        return short
    settings = arguments(attrs, entry.run)
    given = ", ".join([*args, *([f"like={like}"] if entry.source else []), *([settings] if settings else [])])
    name = getattr(entry.run, "__name__", "")
    for place, prefix in ((torch(), "torch"), (torch().nn.functional, "F")):
        if getattr(place, name, None) is entry.run:
            return f"{prefix}.{name}({given})"
    return f"operators.{named(node, used)}({given})"


def _reshaped(x: str, shape: tuple[int, ...]) -> str | None:
    """A reshape whose sizes are plain; 0 for the first keeps it."""
    if not shape or min(shape) < -1 or shape.count(-1) > 1 or 0 in shape[1:]:
        return None
    if shape[0] == 0:
        return f"{x}.reshape(len({x}), {', '.join(str(n) for n in shape[1:])})" if len(shape) > 1 else None
    return f"{x}.reshape({', '.join(str(n) for n in shape)})"


def _short(op: str, args: Sequence[str], attrs: Mapping[str, Any]) -> str | None:
    if op == "Activation":
        return f"{_ACTIVATIONS[attrs['act_type']][0]}({args[0]})"
    if op == "Reshape" and not attrs.get("reverse"):
        return _reshaped(args[0], tuple(attrs.get("shape") or ()))
    if op in ("softmax", "log_softmax") and len(args) == 1 and not attrs.get("temperature") and not attrs.get("dtype"):
        return f"F.{op}({args[0]}, {attrs.get('axis', -1)})"
    bare = op.replace("_npi_", "").replace("broadcast_", "").replace("elemwise_", "").lstrip("_")
    if op in _FORMS:
        return _FORMS[op].format(*args, **{k: literal(v) for k, v in attrs.items()})
    if bare.endswith("_scalar"):
        bare, number = bare[:-7], literal(attrs["scalar"])
        turned = bare[1:] if bare[:1] == "r" and bare[1:] in _SIGNS else ""
        number = f"({number})" if number.startswith("-") else number
        pair = (number, args[0]) if turned else (args[0], number)
        if (turned or bare) in _SIGNS:
            return f"{pair[0]} {_SIGNS[turned or bare]} {pair[1]}"
        if bare not in _ORDER:
            return None
        args = pair
    if len(args) == 2 and bare in _SIGNS:
        return f"{args[0]} {_SIGNS[bare]} {args[1]}"
    if len(args) == 2 and bare in _ORDER:
        found = f"({args[0]} {_ORDER[bare]} {args[1]})"
        return found if op.startswith("_npi_") else f"{found}.to({args[0]}.dtype)"  # mx.np has truth values
    if op in _REDUCED and not attrs.get("exclude") and not attrs.get("dtype"):
        axes, keep = attrs.get("axis") or (), attrs.get("keepdims")
        if op.startswith("_") and attrs.get("axis") == ():
            return args[0]
        if axes or not keep:
            given = [literal(axes)] * bool(axes) + ["keepdim=True"] * bool(keep)
            found = f"{args[0]}.{_REDUCED[op]}({', '.join(given)})"
            # of all axes that an array may have: one dimension, except in mx.np
            whole = not keep and set(axes) in (set(range(len(axes))), set(range(-len(axes), 0)))
            return f"torch.atleast_1d({found})" if whole and not op.startswith("_") else found
    if op == "Concat":
        return f"torch.cat([{', '.join(args)}], {attrs.get('dim', 1)})"
    return None
