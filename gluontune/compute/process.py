"""What holds for the whole process: its number formats, and another kernel for deconvolutions that would end it.

The backward pass of a deconvolution in float32 on a CPU writes the weight's gradient to memory that is allocated only
if it is a parameter's own. Where it goes on (the weight is computed or cast, or used twice in a pass), oneDNN's kernel
of MXNet 1.9.1 writes to nowhere. In float64 MXNet has its own kernel.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from gluontune.core.arrays import flat
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import AMX_ENV, amx_support, mxnet
from gluontune.runtime.cpu import hidden_amx, processor

logger = logging.getLogger("gluontune.compute")

_started: str | None = None
# Without such kernels on a CPU, unknown to AMP; the second only where an attribute has one of these values.
_NO_BFLOAT16 = ("dot", "batch_dot", "_contrib_MultiBoxPrior")
_NOT_ALL_BFLOAT16 = [("Pooling", "pool_type", ["lp", "sum"])]
_MIXED = ("Concat", "concat", "LeakyReLU")  # refuse bfloat16 beside float32 (PReLU's slope), unknown to AMP
_convolutions: dict[Any, Any] = {}  # by module, before AMP patched them


@dataclass(frozen=True)
class Bfloat16Support:
    """How this CPU computes in bfloat16.

    ``level`` is ``native`` (more multiplications in a cycle than float32), ``slow`` (instructions, but not more
    multiplications: Intel's without AMX), ``emulated`` (oneDNN converts on AVX-512) or ``none``; only the first can
    gain. ``message`` is one sentence for the reader.
    """

    level: str
    message: str


def bfloat16_support(flags: set[str] | None = None, vendor: str = "") -> Bfloat16Support:
    """How this CPU computes in bfloat16.

    Args:
        flags: CPU flags as Linux names them; None reads those of this machine, and its vendor.
        vendor: as Linux names it, such as ``GenuineIntel``.

    >>> bfloat16_support({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"}).level
    'native'
    >>> bfloat16_support({"avx2"}).level
    'none'
    """
    found, made_by = processor() if flags is None else (flags, vendor)
    if hidden_amx(found, made_by):
        return Bfloat16Support(
            "slow",
            "this Intel CPU has avx512_bf16 without AMX (or AMX is hidden from this virtual machine): its bfloat16 "
            "products are no faster than float32's, and the conversions come on top",
        )
    native = [f for f in ("amx_bf16", "avx512_bf16") if f in found]
    if native:
        return Bfloat16Support("native", f"this CPU computes in bfloat16 ({', '.join(native)})")
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= found:
        return Bfloat16Support(
            "emulated",
            "this CPU has AVX-512 but no bfloat16 instructions (avx512_bf16, amx_bf16): oneDNN emulates them, "
            "which is usually slower than float32",
        )
    return Bfloat16Support(
        "none", "this CPU has no bfloat16 (it needs avx512_bf16 or amx_bf16, or at least AVX-512 to emulate it)"
    )


def start_process(dtype: str, device: str) -> None:
    """Prepare this process for training in ``dtype``; call it once, before any network is built.

    bfloat16 on a CPU patches MXNet's operators (``mxnet.contrib.amp.init``) for as long as the process
    lives, so that no float32 network can be measured in it afterwards: one process, one format.

    Args:
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        device: ``cpu`` or ``gpu``.

    Raises:
        UsageError: a combination that MXNet cannot run: float16 on a CPU, bfloat16 on a GPU.
        GluontuneError: a CPU without bfloat16, or a process that was started with another format.

    >>> start_process("float16", "cpu")
    Traceback (most recent call last):
    gluontune.errors.UsageError: dtype 'float16' cannot run on a CPU: MXNet has no float16 convolution or
    dense layer there; use bfloat16 or float32
    """
    global _started
    if device not in ("cpu", "gpu"):
        raise UsageError(f"device {device!r}: choose cpu or gpu")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise UsageError(f"dtype {dtype!r}: choose float32, bfloat16 or float16")
    if dtype == "float16" and device == "cpu":
        raise UsageError(
            "dtype 'float16' cannot run on a CPU: MXNet has no float16 convolution or dense layer there; "
            "use bfloat16 or float32"
        )
    if dtype == "bfloat16" and device == "gpu":
        raise UsageError("dtype 'bfloat16' cannot run on a GPU: MXNet 1.9 has no bfloat16 kernels there; use float16")
    if _started == "bfloat16" and dtype != "bfloat16":
        raise GluontuneError(
            f"this process was started for bfloat16 and cannot go back to {dtype}: AMP has patched MXNet's "
            "operators; start another process"
        )
    if dtype == "bfloat16" and _started != "bfloat16":
        support = bfloat16_support()
        if support.level == "none":
            raise GluontuneError(f"dtype 'bfloat16' cannot run here: {support.message}; use float32")
        if support.level != "native":
            logger.warning("%s", support.message)
        _init_amp()
    _started = dtype


def started_dtype() -> str | None:
    """The format for which :func:`start_process` has prepared this process, or None."""
    return _started


def float32_convolution(module: Any) -> Any:
    """The convolution of ``mx.nd`` or ``mx.sym`` as it is without AMP's casts to bfloat16."""
    return _convolutions.get(module) or module.Convolution


def amx_bfloat16() -> bool:
    """Whether this process computes in bfloat16 and oneDNN is set to use AMX for it."""
    wish = os.environ.get("DNNL_MAX_CPU_ISA", "").upper()
    return _started == "bfloat16" and wish == AMX_ENV["DNNL_MAX_CPU_ISA"] and amx_support().level == "granted"


def _init_amp() -> None:
    mx = mxnet()
    _convolutions.update({module: module.Convolution for module in (mx.nd, mx.sym)})
    amp = import_module("mxnet.contrib.amp")
    listed = import_module("mxnet.contrib.amp.amp").list_fp32_ops(amp.amp.bfloat16)
    lists = import_module("mxnet.contrib.amp.lists.symbol_bf16")
    lists.WIDEST_TYPE_CASTS.extend(_MIXED)
    lists.CONDITIONAL_FP32_FUNCS.extend(_NOT_ALL_BFLOAT16)
    alone = [name for name in (*listed, *_NO_BFLOAT16) if _takes_arrays(mx, name) and name != "Deconvolution"]
    amp.init(target_dtype="bfloat16", fp32_ops=list(dict.fromkeys(alone)))
    _replace(float64=False)  # a parameter that is cast for a deconvolution would end the process


def _takes_arrays(mx: Any, name: str) -> bool:
    """Whether an operator has inputs: AMP's wrapper fails on a symbol of zeros, eye, arange or random numbers."""
    types = mx.operator.get_operator_arguments(name).types
    return not types or any("NDArray" in kind or "Symbol" in kind for kind in types)


_WHAT = "a deconvolution on a CPU, whose weight is computed or used more than once in a pass (docs/mxnet-faults.md)"
_TOLD = f"deconvolutions are computed in float64, as MXNet's float32 kernel would end the process: {_WHAT}"
_INPUTS = ("data", "weight", "bias")
_SHARED = "IOLogicalSwapDesc"  # what MXNet says in prediction mode where a convolution has the same weight
_plain: dict[tuple[Any, str], Any] = {}
_wide, _amp = False, False  # whether all of them are in float64, and whether AMP casts to bfloat16


class _Endangered(Exception):
    """A backward pass would end the process."""


def told_of_deconvolutions() -> list[str]:
    """A sentence, where this process computes deconvolutions in float64."""
    return [_TOLD] if _wide else []


def endangered(heads: Any) -> bool:
    """Whether the backward pass of recorded arrays would end the process.

    Raises:
        GluontuneError: it would, and nothing helps: a deconvolution of three dimensions.

    >>> from gluontune.runtime import mxnet
    >>> mx = mxnet()
    >>> layer = mx.gluon.nn.Conv2DTranspose(1, 2, in_channels=1)
    >>> layer.initialize()
    >>> with mx.autograd.record():
    ...     once = layer(mx.nd.ones((1, 1, 2, 2)))
    ...     twice = layer(once)
    >>> endangered(once), endangered(twice)
    (False, True)
    """
    mx = mxnet()
    found = [a for a in flat(heads) if isinstance(a, mx.nd.NDArray) and a.context.device_type == "cpu"]
    if _wide or any(np.dtype(a.dtype) == np.float64 for a in found):
        return False
    kernels = []
    for array in found:
        with contextlib.suppress(mx.base.MXNetError):  # not recorded
            nodes = json.loads(mx.autograd.get_symbol(array).tojson())["nodes"]
            uses = Counter(tuple(entry[:2]) for node in nodes for entry in node["inputs"])
            for node in nodes:
                if node["op"] == "Deconvolution" and goes_on(nodes, uses, node["inputs"][1]):
                    kernels.append(ast.literal_eval(node["attrs"]["kernel"]))
    if any(len(kernel) == 3 for kernel in kernels):
        raise GluontuneError(f"MXNet has no backward pass of three dimensions for {_WHAT}")
    return bool(kernels)


def goes_on(nodes: Sequence[Mapping[str, Any]], uses: Mapping[Any, int], entry: Sequence[int]) -> bool:
    """Whether the gradient of a node's output goes on, or is summed: it is no variable of one use."""
    return nodes[entry[0]]["op"] != "null" or uses[tuple(entry[:2])] > 1


def refuse_endangered(heads: Any) -> None:
    """Raise a GluontuneError if the backward pass of recorded arrays would end the process."""
    if endangered(heads):
        raise GluontuneError(f"MXNet's backward pass would end the process: {_WHAT}")


def explored(run: Callable[[], Any], record: bool = True) -> Any:
    """The result of ``run``, a first pass on a CPU; where a backward pass of it would end the process, that in float64.

    Deconvolutions are computed in float64 from then on, as long as the process lives.

    Args:
        record: whether its result is what a backward pass begins with; otherwise ``run`` makes backward passes itself.
    """
    mx = mxnet()
    with contextlib.suppress(_Endangered):
        try:
            with mx.autograd.record(train_mode=False) if record else _asking(mx):
                found = run()
            mx.nd.waitall()
        except mx.base.MXNetError as error:
            if _SHARED not in str(error):
                raise
        else:
            if not record or not endangered(found):
                return found
    _replace(float64=True)
    return run()


@contextlib.contextmanager
def _asking(mx: Any) -> Iterator[None]:
    """A context in which each backward pass that would end the process raises :class:`_Endangered`."""
    places = [(mx.autograd, mx.autograd.backward), (mx.nd.NDArray, mx.nd.NDArray.backward)]

    def asking(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def ask(heads: Any, *args: Any, **named: Any) -> Any:
            if endangered(heads):
                raise _Endangered
            return backward(heads, *args, **named)

        return ask

    for owner, backward in places:
        owner.backward = asking(backward)
    try:
        yield
    finally:
        for owner, backward in places:
            owner.backward = backward


def _replace(float64: bool) -> None:
    """Compute deconvolutions in float64; or, in a process with AMP, in float32, casting inputs but no parameter."""
    global _wide, _amp
    mx = mxnet()
    _wide, _amp = _wide or float64, _amp or not float64

    def cast(value: Any) -> Any:
        symbol = isinstance(value, mx.sym.Symbol)
        if not symbol and not isinstance(value, mx.nd.NDArray):
            return value
        if _amp and (value.get_children() is not None if symbol else np.dtype(value.dtype) != np.float32):
            value = (mx.sym if symbol else mx.nd).amp_cast(value, dtype="float32")
        return value.astype("float64") if float64 else value

    def casting(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def run(*args: Any, **named: Any) -> Any:
            given = {name: cast(value) if name in _INPUTS else value for name, value in named.items()}
            found = plain(*map(cast, args), **given)
            return found.astype("float32") if float64 else found

        return run

    for module in (mx.nd, mx.nd.op, mx.sym, mx.sym.op, mx.npx, mx.nd.numpy_extension, mx.sym.numpy_extension):
        for name in ("Deconvolution", "deconvolution"):
            if hasattr(module, name):
                plain = _plain.setdefault((module, name), getattr(module, name))
                setattr(module, name, casting(plain))
