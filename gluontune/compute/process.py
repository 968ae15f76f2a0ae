"""Number formats of the whole process."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from gluontune.compute import deconvolution
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import AMX_ENV, amx_support
from gluontune.runtime.cpu import hidden_amx, processor

logger = logging.getLogger("gluontune.compute")

_started: str | None = None
_FLOAT32_OPERATORS = ("Convolution",)
# Without such kernels on a CPU, unknown to AMP; the second only where an attribute has one of these values.
_NO_BFLOAT16 = ("dot", "batch_dot", "_contrib_MultiBoxPrior")
_NOT_ALL_BFLOAT16 = [("Pooling", "pool_type", ["lp", "sum"])]
_MIXED = ("Concat", "concat", "LeakyReLU")  # refuse bfloat16 beside float32 (PReLU's slope), unknown to AMP
_operators: dict[tuple[Any, str], Any] = {}  # by module and name, before AMP patched them


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


def float32_operator(module: Any, name: str) -> Any:
    """The operator ``name`` of ``mx.nd`` or ``mx.sym`` as it is without AMP's casts to bfloat16."""
    return _operators.get((module, name)) or getattr(module, name)


def amx_bfloat16() -> bool:
    """Whether this process computes in bfloat16 and oneDNN is set to use AMX for it."""
    wish = os.environ.get("DNNL_MAX_CPU_ISA", "").upper()
    return _started == "bfloat16" and wish == AMX_ENV["DNNL_MAX_CPU_ISA"] and amx_support().level == "granted"


def _init_amp() -> None:
    from gluontune.runtime import mxnet

    mx = mxnet()
    from importlib import import_module

    for module in (mx.nd, mx.sym):
        for name in _FLOAT32_OPERATORS:
            _operators[module, name] = getattr(module, name)
    amp = import_module("mxnet.contrib.amp")
    listed = import_module("mxnet.contrib.amp.amp").list_fp32_ops(amp.amp.bfloat16)
    lists = import_module("mxnet.contrib.amp.lists.symbol_bf16")
    lists.WIDEST_TYPE_CASTS.extend(_MIXED)
    lists.CONDITIONAL_FP32_FUNCS.extend(_NOT_ALL_BFLOAT16)
    alone = [name for name in (*listed, *_NO_BFLOAT16) if _takes_arrays(mx, name) and name != "Deconvolution"]
    amp.init(target_dtype="bfloat16", fp32_ops=list(dict.fromkeys(alone)))
    deconvolution.keep_weights()


def _takes_arrays(mx: Any, name: str) -> bool:
    """Whether an operator has inputs: AMP's wrapper fails on a symbol of zeros, eye, arange or random numbers."""
    types = mx.operator.get_operator_arguments(name).types
    return not types or any("NDArray" in kind or "Symbol" in kind for kind in types)
