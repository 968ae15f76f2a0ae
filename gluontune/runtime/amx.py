"""AMX: Intel's matrix unit, which MXNet's oneDNN leaves off unless it is told and the kernel agrees.

oneDNN 2.4 (in the mxnet 1.9.1 wheel) has AMX kernels for bfloat16 convolutions, but takes them only where
``DNNL_MAX_CPU_ISA=AVX512_CORE_AMX`` stands in the environment before the library is loaded. Linux gives a
process the registers' space (8 KiB a thread) only after it has asked; without asking, the first tile
instruction ends the process with SIGILL. oneDNN 2.4 does not ask, so :func:`prepare` does.

Source: Linux, Documentation/arch/x86/xstate.rst ("Using XSTATE features in user space applications").
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import sys
from collections.abc import Collection, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

__all__ = ["AMX_ENV", "AmxSupport", "amx_support", "ask_kernel", "hidden_amx", "prepare", "processor"]

logger = logging.getLogger("gluontune.runtime")

AMX_ENV = {"DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}

_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_WITH_AMX = ("AVX512_CORE_AMX", "ALL")
_WITHOUT_AMX = "AVX512_CORE_BF16"

_SYS_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


@dataclass(frozen=True)
class AmxSupport:
    """Whether this process may use AMX.

    ``level`` is ``granted``, ``refused`` (the processor has it, the kernel does not give it) or ``absent``;
    ``message`` is one sentence for the reader.
    """

    level: str
    message: str


def ask_kernel() -> bool:
    """Ask Linux for AMX's tile data for this process and its threads; True if granted.

    Asking again does no harm. The permission is inherited by ``fork`` and lost by ``exec``.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return False
    syscall.restype = ctypes.c_long
    number, request, feature = map(ctypes.c_long, (_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA))
    return int(syscall(number, request, feature)) == 0


def amx_support(flags: set[str] | None = None, ask: Callable[[], bool] = ask_kernel) -> AmxSupport:
    """Say whether this process may use AMX for bfloat16; the kernel is asked where the processor has it.

    Args:
        flags: CPU flags as Linux names them; None reads those of this machine.
        ask: the question to the kernel.

    >>> amx_support({"avx2", "avx512_bf16"}).level
    'absent'
    >>> amx_support({"amx_bf16", "amx_tile"}, ask=lambda: False).level
    'refused'
    """
    found = processor()[0] if flags is None else flags
    if not {"amx_bf16", "amx_tile"} <= found:
        return AmxSupport("absent", "this CPU has no AMX (amx_bf16, amx_tile)")
    if not ask():
        return AmxSupport(
            "refused",
            "this CPU has AMX, but the kernel does not give it to processes (Linux before 5.16, or a sandbox)",
        )
    return AmxSupport("granted", "this CPU has AMX, and the kernel gives it to processes")


def prepare(environ: MutableMapping[str, str] | None = None, support: Callable[[], AmxSupport] = amx_support) -> None:
    """Before mxnet is loaded: ask for AMX if the environment wants it, and take the wish back if refused.

    Nothing happens where no variable asks for AMX. Where it cannot be had, oneDNN is told to stay below it:
    the process is as fast as it would have been, instead of ended by SIGILL.

    Args:
        environ: what to read and mend; default ``os.environ``.
        support: says what is possible.

    >>> wish = dict(AMX_ENV)
    >>> prepare(wish, lambda: AmxSupport("refused", "the kernel does not give it"))
    >>> wish
    {'DNNL_MAX_CPU_ISA': 'AVX512_CORE_BF16'}
    """
    mapping = os.environ if environ is None else environ
    wishes = [name for name in _VARIABLES if mapping.get(name, "").upper() in _WITH_AMX]
    if not wishes:
        return
    answer = support()
    if answer.level == "refused":
        for name in wishes:
            mapping[name] = _WITHOUT_AMX
        logger.warning("%s: oneDNN goes without it", answer.message)


def processor() -> tuple[set[str], str]:
    """This processor's flags and vendor, as Linux names them; empty where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set(), ""
    found = {}
    for name in ("flags", "vendor_id"):
        line = next((line for line in text.splitlines() if line.startswith(name)), "")
        found[name] = line.partition(":")[2].strip()
    return set(found["flags"].split()), found["vendor_id"]


def hidden_amx(flags: Collection[str], maker: str) -> bool:
    """Whether bfloat16 is avx512_bf16 of Intel's without AMX: no more products in a cycle than float32 has.

    Args:
        maker: vendor or model, as Linux names them.

    >>> hidden_amx({"avx512_bf16"}, "GenuineIntel"), hidden_amx({"avx512_bf16"}, "AuthenticAMD")
    (True, False)
    """
    return "Intel" in maker and "avx512_bf16" in flags and "amx_bf16" not in flags
