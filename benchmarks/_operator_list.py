"""Operators and their sizes, with arithmetic and traffic; the list beside the job's operators.

A case is a plain dict: ``kind`` (product, convolution, recurrent, all-reduce), ``name``, ``pass`` (forward, or
training: forward and both gradients), ``sizes``, ``source`` (job or list), ``count`` (layers of the job that
have it), ``flops``, ``values`` (numbers that must be read or written at least).

Source of the list: Baidu's DeepBench (github.com/baidu-research/DeepBench), sizes that fit a CPU's seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["KINDS", "all_reduce", "convolution", "default_list", "product", "recurrent"]

KINDS = ("product", "convolution", "recurrent", "all-reduce")
GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}
_TRAINING = 3  # forward, gradient of the data, gradient of the weights: three times the work and the traffic

Case = dict[str, Any]


def _case(kind: str, name: str, sizes: Mapping[str, Any], flops: float, values: float, training: bool) -> Case:
    times = _TRAINING if training else 1
    way = "training" if training else "forward"
    return {"kind": kind, "name": f"{name}, {way}" if kind != "all-reduce" else name, "pass": way,
            "sizes": dict(sizes), "source": "list", "count": 0, "flops": float(flops * times),
            "values": float(values * times)}  # fmt: skip


def product(m: int, n: int, k: int, training: bool = False) -> Case:
    """(m, k) times (k, n).

    >>> product(2, 3, 4)["flops"], product(2, 3, 4)["values"]
    (48.0, 26.0)
    """
    sizes = {"m": m, "n": n, "k": k}
    return _case("product", f"{m}×{k} · {k}×{n}", sizes, 2 * m * n * k, m * k + k * n + m * n, training)


def convolution(
    data: Sequence[int],
    filters: int,
    kernel: Sequence[int],
    stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0),
    groups: int = 1,
    dilate: Sequence[int] = (1, 1),
    training: bool = False,
) -> Case:
    """A 2-D convolution over ``data`` (N, C, H, W).

    >>> convolution((1, 3, 4, 4), 8, (3, 3), pad=(1, 1))["flops"]
    6912.0
    """
    batch, channels, *sides = data
    spans = zip(sides, kernel, stride, pad, dilate)
    high, wide = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in spans)
    weights = filters * channels // groups * kernel[0] * kernel[1]
    made = batch * filters * high * wide
    text = f"{batch}×{channels}×{sides[0]}×{sides[1]}, {filters} of {kernel[0]}×{kernel[1]}"
    text += f" stride {stride[0]}" if max(stride) > 1 else ""
    text += f" in {groups} groups" if groups > 1 else ""
    sizes = {"data": list(data), "filters": filters, "kernel": list(kernel), "stride": list(stride),
             "pad": list(pad), "groups": groups, "dilate": list(dilate)}  # fmt: skip
    values = batch * channels * sides[0] * sides[1] + weights + made
    return _case("convolution", text, sizes, 2 * made * weights / filters, values, training)


def recurrent(mode: str, steps: int, batch: int, inputs: int, hidden: int, training: bool = False) -> Case:
    """One recurrent layer over ``steps`` time steps; ``mode`` of MXNet's RNN: rnn_tanh, rnn_relu, gru, lstm.

    >>> recurrent("lstm", steps=1, batch=1, inputs=2, hidden=3)["flops"]
    120.0
    """
    weights = GATES[mode] * hidden * (inputs + hidden)
    sizes = {"mode": mode, "steps": steps, "batch": batch, "inputs": inputs, "hidden": hidden}
    name = f"{mode} {hidden}, input {inputs}, {steps} steps of {batch}"
    values = weights + steps * batch * (inputs + hidden)
    return _case("recurrent", name, sizes, 2 * steps * batch * weights, values, training)


def all_reduce(length: int, arrays: int) -> Case:
    """The sum of ``arrays`` arrays, one a device, returned to each; measured in bytes a second."""
    sizes = {"length": length, "arrays": arrays}
    name = f"{length:,} numbers over {arrays} devices"
    return _case("all-reduce", name, sizes, (arrays - 1) * length, 2 * arrays * length, False)


def default_list(arrays: int, quick: bool = False) -> list[Case]:
    """Sizes of DeepBench; ``quick`` takes the first of each kind."""
    found = []
    for training in (False, True):
        found += [product(m, n, k, training) for m, n, k in _PRODUCTS[: 1 if quick else None]]
        found += [convolution(**sizes, training=training) for sizes in _CONVOLUTIONS[: 1 if quick else None]]
        found += [recurrent(*sizes, training=training) for sizes in _RECURRENT[: 1 if quick else None]]
    return found + [all_reduce(length, arrays) for length in _REDUCED[: 1 if quick else None]]


_PRODUCTS = ((1760, 128, 1760), (1024, 1024, 1024), (2048, 64, 2048), (2560, 16, 2560), (35, 700, 2048))
_CONVOLUTIONS: tuple[dict[str, Any], ...] = (
    {"data": (8, 128, 28, 28), "filters": 128, "kernel": (3, 3), "pad": (1, 1)},
    {"data": (8, 64, 56, 56), "filters": 64, "kernel": (3, 3), "pad": (1, 1)},
    {"data": (8, 512, 7, 7), "filters": 512, "kernel": (3, 3), "pad": (1, 1)},
    {"data": (8, 256, 56, 56), "filters": 64, "kernel": (1, 1)},
    {"data": (8, 3, 224, 224), "filters": 64, "kernel": (7, 7), "stride": (2, 2), "pad": (3, 3)},
)
_RECURRENT = (("lstm", 25, 16, 512, 512), ("gru", 25, 32, 512, 512), ("rnn_tanh", 25, 16, 1760, 1760))
_REDUCED = (100_000, 3_097_600, 16_777_217)
