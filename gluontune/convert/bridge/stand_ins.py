"""Replacements in a reference for MXNet's operators that are random, float32 only, or undefined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gluontune.convert.bridge.registry import OPERATORS
from gluontune.convert.graph.schemas import schema
from gluontune.runtime.pytorch import torch

Entry = list[Any]  # node, output, version
Add = Callable[..., Entry]


def stand_in(node: dict[str, Any], own: Entry, add: Add) -> list[Entry]:
    """The replacements of an operator's outputs; empty for the operator itself.

    Args:
        node: of a symbol's JSON. own: its entry.
        add: adds an operator by name, inputs and attributes as text; returns its entry.
    """
    op, attrs, inputs = node["op"], node.get("attrs", {}), node["inputs"]
    name = op.replace("_random_", "").replace("_sample_", "").replace("_npi_", "")
    if op == "_contrib_ROIAlign":
        return [_of_images(own, inputs, add)]
    if op.startswith("_contrib_interleaved_matmul_"):
        return [_attention(op.rsplit("matmul_", 1)[1], inputs, attrs["heads"], add)]
    if op == "InstanceNorm":
        return [_instance_norm(inputs, attrs.get("eps", "0.001"), add)]
    if op in ("erf", "gammaln"):
        return [(_erf if op == "erf" else _gammaln)(inputs[0], add)]
    if op == "gamma":
        return [add("exp", _gammaln(inputs[0], add))]
    if op == "LeakyReLU" and attrs.get("act_type", "leaky") in ("leaky", "gelu"):
        return [_leaky(inputs, attrs.get("act_type", "leaky"), attrs.get("slope", "0.25"), add)]
    if op == "moments":  # its variance is wrong where nobody reads its mean
        how = {"axis": attrs.get("axes", "None"), "keepdims": attrs.get("keepdims", "False")}
        centred = add("broadcast_sub", inputs[0], add("mean", inputs[0], **{**how, "keepdims": "True"}))
        return [add("mean", array, **how) for array in (inputs[0], add("square", centred))]
    if op == "_npi_where_scalar2":  # in float32 for any condition, and so is all that follows
        x, y = (add("_npi_full_like", inputs[0], fill_value=attrs.get(n, "0"), dtype="float32") for n in "xy")
        return [add("_npi_where", inputs[0], x, y)]
    if op.endswith("RegressionOutput"):  # the label's gradient is uninitialized
        return [add(op, inputs[0], add("BlockGrad", inputs[1]), **attrs)]
    if op == "_shuffle":
        return inputs
    if op == "_sample_multinomial":
        shape, best = _typed(op, attrs)["shape"], add("argmax", inputs[0], axis="-1")
        chance = add("log", add("pick", inputs[0], best, axis="-1"))
        kind = attrs.get("dtype", "int32")
        return [add("Cast", _repeated(best, shape, add), dtype=kind), _repeated(chance, shape, add)]
    if op.startswith("_sample_"):
        return [add("BlockGrad", _repeated(_middle(name, inputs, add), _typed(op, attrs)["shape"], add))]
    if op.startswith("_random_") or (op.startswith("_npi_") and name in _DRAWN and not inputs):
        return [_fixed(op, attrs, inputs, add)]
    return []


def rounded(op: str, attrs: dict[str, Any]) -> bool:
    """Whether MXNet's result has seven digits, without a replacement."""
    leaky = op == "LeakyReLU" and attrs.get("act_type", "leaky") in ("leaky", "gelu")
    return not leaky and op not in ("erf", "gamma", "gammaln") and OPERATORS[op].is_rounded(attrs)


_DRAWN = ("normal", "normal_n", "uniform", "uniform_n", "gumbel", "gamma", "logistic", "exponential", "bernoulli")


def _typed(op: str, attrs: dict[str, str]) -> dict[str, Any]:
    return schema(op).typed({k: v for k, v in attrs.items() if not k.startswith("__")}, op)


def _of_images(pooled: Entry, inputs: list[Entry], add: Add) -> Entry:
    """Zeros for regions of no image, which MXNet leaves uninitialized on a CPU."""
    image = add("slice_axis", inputs[1], axis="1", begin="0", end="1")
    inside = add("Reshape", add("_greater_equal_scalar", image, scalar="0"), shape="(-1,)")
    return add("where", inside, pooled, add("zeros_like", pooled))


def _instance_norm(inputs: list[Entry], eps: str, add: Add) -> Entry:
    x, gamma, beta = inputs
    centred = add("broadcast_sub", x, add("mean", x, axis="(0, 1)", exclude="True", keepdims="True"))
    spread = add("mean", add("square", centred), axis="(0, 1)", exclude="True", keepdims="True")
    out = add("broadcast_mul", centred, add("rsqrt", add("_plus_scalar", spread, scalar=repr(float(np.float32(eps))))))
    last = add("SwapAxis", out, dim1="1", dim2="-1")  # gamma and beta broadcast from behind
    out = add("broadcast_add", add("broadcast_mul", last, gamma), beta)
    return add("SwapAxis", out, dim1="1", dim2="-1")


def _erf(x: Entry, add: Add) -> Entry:
    """2 x / sqrt(pi) times the mean of exp(-(x t)^2) for t from 0 to 1, by Gauss: MXNet's has seven digits."""
    places, shares = np.polynomial.legendre.leggauss(40)
    near = add("clip", x, a_min="-6.5", a_max="6.5")
    square = add("square", near)
    terms = [
        add("_mul_scalar", add("exp", add("_mul_scalar", square, scalar=repr(-((t + 1) ** 2) / 4))), scalar=repr(w / 2))
        for t, w in zip(places.tolist(), shares.tolist())
    ]
    return add("_mul_scalar", add("elemwise_mul", near, add("add_n", *terms, num_args=str(len(terms)))),
               scalar=repr(2 / np.pi**0.5))  # fmt: skip


def _gammaln(x: Entry, add: Add) -> Entry:
    """Stirling's series at x + 9 and nine steps back, for positive x; MXNet's has seven digits."""
    z = add("_plus_scalar", x, scalar="9")
    steps = [add("log", add("_plus_scalar", x, scalar=str(k))) for k in range(9)]
    inverse = add("reciprocal", z)
    square, series = add("square", inverse), None
    for number in (-691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12):
        series = add("_mul_scalar", add("ones_like", z), scalar=repr(number)) if series is None else (
            add("_plus_scalar", add("elemwise_mul", series, square), scalar=repr(number)))  # fmt: skip
    main = add("elemwise_sub", add("elemwise_mul", add("_minus_scalar", z, scalar="0.5"), add("log", z)), z)
    main = add("_plus_scalar", main, scalar=repr(float(np.log(2 * np.pi)) / 2))
    whole = add("elemwise_add", main, add("elemwise_mul", series or z, inverse))
    return add("elemwise_sub", whole, add("add_n", *steps, num_args="9"))


def _leaky(inputs: list[Entry], kind: str, slope: str, add: Add) -> Entry:
    """MXNet rounds negative inputs to float32."""

    def scaled(entry: Entry, scale: float) -> Entry:
        return add("_mul_scalar", entry, scalar=repr(scale))

    x = inputs[0]
    if kind == "gelu":
        raised = add("_plus_scalar", _erf(scaled(x, 0.5**0.5), add), scalar="1")
        return scaled(add("elemwise_mul", x, raised), 0.5)
    where = add("BlockGrad", add("_greater_scalar", x, scalar="0"))
    rest = float(np.float32(slope))
    share = add("_plus_scalar", scaled(where, 1 - rest), scalar=repr(rest))
    return add("elemwise_mul", x, share)


def _attention(kind: str, inputs: list[Entry], heads: str, add: Add) -> Entry:
    """Attention of several heads by products of matrices; MXNet's operator is float32 only on CPUs."""

    def part(source: Entry, count: int, which: int) -> Entry:
        """One of the interleaved arrays as (batch · heads, steps, size)."""
        split = add("Reshape", source, shape=f"(0, 0, {heads}, {count}, -1)")
        piece = add("slice_axis", split, axis="3", begin=str(which), end=str(which + 1))
        one = add("Reshape", piece, shape="(0, 0, 0, -1)")
        return add("Reshape", add("transpose", one, axes="(1, 2, 0, 3)"), shape="(-3, 0, 0)")

    count = 3 if kind.startswith("self") else 2
    if kind.endswith("qk"):
        queries = part(inputs[0], 3, 0) if count == 3 else part(inputs[0], 1, 0)
        keys = part(inputs[0], 3, 1) if count == 3 else part(inputs[1], 2, 0)
        return add("batch_dot", add("_contrib_div_sqrt_dim", queries), keys, transpose_b="True")
    found = add("batch_dot", inputs[1], part(inputs[0], count, count - 1))
    split = add("Reshape", found, shape=f"(-4, -1, {heads}, 0, 0)")
    return add("Reshape", add("transpose", split, axes="(2, 0, 1, 3)"), shape="(0, 0, -3)")


def _repeated(entry: Entry, shape: Any, add: Add) -> Entry:
    for size in (shape,) if isinstance(shape, int) else shape or ():
        entry = add("repeat", add("expand_dims", entry, axis="-1"), axis="-1", repeats=str(size))
    return entry


def _middle(name: str, inputs: list[Entry], add: Add) -> Entry:
    """The fixed number of ``STEADY`` for draws with parameter arrays."""
    first, second = inputs[0], inputs[-1]
    if name == "uniform":
        return add("_mul_scalar", add("elemwise_add", first, second), scalar="0.5")
    if name == "gamma":
        return add("elemwise_mul", first, second)
    if name == "exponential":
        return add("_rdiv_scalar", first, scalar=repr(float(np.log(2))))
    if name == "negative_binomial":
        return add("elemwise_mul", first, add("elemwise_div", add("_rminus_scalar", second, scalar="1"), second))
    return first  # normal, poisson, generalized_negative_binomial: the mean


def _fixed(op: str, attrs: dict[str, str], inputs: list[Entry], add: Add) -> Entry:
    """The fixed number of the bridge's draw."""
    from gluontune.convert.bridge.operators import creating

    size = "size" if op.startswith("_npi_") else "shape"  # in mx.np "shape" is gamma's parameter
    typed = {k: v for k, v in _typed(op, attrs).items() if k not in (size, "ctx", "dtype", "is_logit")}
    library = torch()
    like = [library.zeros(1, dtype=library.float64)] if inputs else []
    with creating.steady():
        value = float(OPERATORS[op].run(*like, **({} if inputs else {size: (1,), "dtype": "float64"}), **typed))
    if inputs:
        return add("_plus_scalar", add("zeros_like", inputs[0]), scalar=repr(value))
    kind = attrs.get("dtype", "float32").replace("None", "float32")
    return add("_full", shape=attrs.get(size, "()"), value=repr(value), dtype=kind)
