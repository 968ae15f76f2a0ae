"""AMX: Intel's matrix unit, which MXNet's oneDNN uses only if the environment and the kernel allow it.

oneDNN 2.4 (in the mxnet 1.9.1 wheel) has AMX kernels for bfloat16 convolutions, but uses them only if
``DNNL_MAX_CPU_ISA=AVX512_CORE_AMX`` is set before the library is loaded. Linux gives a process the registers' space
(8 KiB a thread) only on request; without it the first tile instruction ends the process with SIGILL. oneDNN 2.4 sends
no request, so :func:`prepare` does.

Source: Linux, Documentation/arch/x86/xstate.rst ("Using XSTATE features in user space applications").
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import re
import sys
from collections.abc import Collection, MutableMapping
from dataclasses import dataclass
from typing import Callable

from gluontune.runtime.cpu import Cpu

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
    """The answer whether this process may use AMX.

    ``level`` is ``granted``, ``refused`` (by the kernel, on a processor with AMX) or ``absent``; ``message`` is one
    sentence for the reader.
    """

    level: str
    message: str


def ask_kernel() -> bool:
    """Request AMX's tile data from Linux for this process and its threads; True if granted.

    Repeated requests are harmless. The permission is inherited by ``fork`` and lost by ``exec``.
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
    """The answer whether this process may use AMX for bfloat16; asks the kernel if the processor has it.

    Args:
        flags: CPU flags in Linux's spelling; None: of this machine.
        ask: the request to the kernel.

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
    """Before mxnet is loaded: request AMX if the environment wants it, and limit oneDNN to AVX-512 if refused.

    Without such a variable nothing happens. After a refusal the process is slower instead of ended by SIGILL.

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
    """This processor's flags and vendor in Linux's spelling, or empty ones."""
    text = Cpu().read("/proc/cpuinfo") or ""
    flags, vendor = (re.search(rf"^{name}\s*:\s*(.*)$", text, re.M) for name in ("flags", "vendor_id"))
    return set(flags[1].split()) if flags else set(), vendor[1].strip() if vendor else ""


def hidden_amx(flags: Collection[str], maker: str) -> bool:
    """Whether bfloat16 is Intel's avx512_bf16 without AMX, with no more products in a cycle than float32.

    Args:
        maker: vendor or model, in Linux's spelling.

    >>> hidden_amx({"avx512_bf16"}, "GenuineIntel"), hidden_amx({"avx512_bf16"}, "AuthenticAMD")
    (True, False)
    """
    return "Intel" in maker and "avx512_bf16" in flags and "amx_bf16" not in flags
