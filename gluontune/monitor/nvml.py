"""NVIDIA GPUs by NVML. A value that a GPU, a driver or a container withholds is None (N/A), never 0.

NVML's utilization is the share of the last 1/6 to 1 second in which at least one kernel ran: at 100 % the GPU was never
idle, but not necessarily full.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Callable, Union

from gluontune.core.errors import UsageError
from gluontune.runtime.nvml import ask, gpu_of, visible

_MIB = 1 << 20
_RETRY_S = 5.0  # interval of retries of a lost GPU

#: Fields of a GPU's sample, with their units in the name.
GPU_FIELDS = (
    "gpu_util_pct", "gpu_mem_util_pct", "gpu_mem_mib", "gpu_tree_mem_mib", "gpu_power_w", "gpu_sm_clock_mhz",
    "gpu_temp_c", "gpu_pcie_rx_mib_per_s", "gpu_pcie_tx_mib_per_s", "gpu_throttle_mask",
)  # fmt: skip

# Bits of nvmlClocksThrottleReasons (nvml.h).
_REASONS = {
    0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "thermal (software)", 0x40: "thermal (hardware)", 0x80: "power brake", 0x100: "display clock",
}  # fmt: skip
THERMAL = 0x20 | 0x40  # heat holds the clocks down


def throttle_reasons(mask: int) -> list[str]:
    """The reasons in NVML's throttle mask, in words.

    >>> throttle_reasons(0x44)
    ['power cap', 'thermal (hardware)']
    """
    return [word for bit, word in _REASONS.items() if mask & bit]


class NvmlSampler:
    """Samples GPUs (and MIG slices, as ``"0:1"`` for slice 1 of GPU 0).

    Args:
        gpus: ``"auto"``: those of ``CUDA_VISIBLE_DEVICES``; ``"all"``; a list of indices; ``"none"`` or an empty list.
        pynvml: the binding; default the installed nvidia-ml-py. Tests pass a fake.
        pcie: also PCIe traffic, which NVML measures for 20 ms a direction and GPU.
        environ: the environment with ``CUDA_VISIBLE_DEVICES``.

    Attributes:
        note: NVML's reason why nothing is sampled, or "".
        names: the name of each device by its key.

    Raises:
        UsageError: an index in ``gpus`` that is no GPU here.
    """

    def __init__(
        self, gpus: Union[str, Iterable[int]] = "auto", pynvml: Any = None, pcie: bool = False,
        environ: Mapping[str, str] | None = None,
    ):  # fmt: skip
        self.note = ""
        self.names: dict[str, str] = {}
        self._handles: dict[str, Any] = {}
        self._lost_until: dict[str, float] = {}
        self._never: set[tuple[str, str]] = set()
        self._pcie = pcie
        self._nvml: Any = None
        if gpus != "none" and gpus != []:
            chosen = gpus if isinstance(gpus, str) else [int(g) for g in gpus]
            self._open(chosen, pynvml, os.environ if environ is None else environ)

    @property
    def keys(self) -> list[str]:
        """The sampled devices."""
        return list(self._handles)

    def _open(self, gpus: Union[str, list[int]], binding: Any, environ: Mapping[str, str]) -> None:
        try:
            self._nvml = importlib.import_module("pynvml") if binding is None else binding
            self._nvml.nvmlInit()
            count = int(self._nvml.nvmlDeviceGetCount())
        except Exception as error:
            self._nvml, self.note = None, f"no GPU is sampled: {error}"
        else:
            self._find(self._chosen(gpus, count, environ))
        if isinstance(gpus, list):
            missing = [g for g in gpus if str(g) not in self.names and f"{g}:0" not in self.names]
            if missing:
                reason = self.note or f"NVML lists {len(self.names)} here"
                raise UsageError(f"gpus={gpus}: no GPU {missing[0]} on this machine ({reason})")

    def _chosen(self, gpus: Union[str, list[int]], count: int, environ: Mapping[str, str]) -> list[int]:
        if isinstance(gpus, list):
            return [g for g in gpus if 0 <= g < count]
        if gpus not in ("auto", "all"):
            raise UsageError(f"gpus={gpus!r}: give 'auto', 'all', 'none' or a list of indices such as [0, 1]")
        if gpus == "all" or "CUDA_VISIBLE_DEVICES" not in environ:
            return list(range(count))
        return [gpu.index for gpu in visible(tuple(gpu_of(self._nvml, index) for index in range(count)), environ)]

    def _find(self, indices: list[int]) -> None:
        for index in indices:
            key = str(index)
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            except Exception as error:
                handle, self.note = None, f"GPU {index}: {error}"
            self._handles[key] = handle
            self.names[key] = ask(self._nvml, "nvmlDeviceGetName", handle) or f"GPU {key}"
            for number, slice_handle in enumerate(self._slices(handle)):
                self._handles[f"{key}:{number}"] = slice_handle
                name = ask(self._nvml, "nvmlDeviceGetName", slice_handle)
                self.names[f"{key}:{number}"] = name or f"GPU {key}, MIG slice {number}"

    def _slices(self, handle: Any) -> list[Any]:
        """The handles of a GPU's MIG slices; none if MIG is off or unknown."""
        mode = ask(self._nvml, "nvmlDeviceGetMigMode", handle)
        count = ask(self._nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) if mode and mode[0] else 0
        # places without a slice answer "not found"
        handles = (ask(self._nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, n) for n in range(int(count or 0)))
        return [slice_ for slice_ in handles if slice_ is not None]

    def read(self, now_s: float, pids: Collection[int] = ()) -> dict[str, dict[str, float | None]]:
        """One sample: ``{device: {field: value}}`` with the fields of :data:`GPU_FIELDS`.

        ``now_s`` is the monitor's time (a lost GPU is retried every five seconds), ``pids`` the tree's processes.
        """
        return {key: self._device(key, now_s, pids) for key in self._handles}

    def _device(self, key: str, now_s: float, pids: Collection[int]) -> dict[str, float | None]:
        sample: dict[str, float | None] = dict.fromkeys(GPU_FIELDS)
        if self._lost_until.get(key, now_s) > now_s:
            return sample
        if key in self._lost_until and not self._revive(key, now_s):
            return sample
        for query, take in self._queries(pids).items():
            if self._handles[key] is None or (key, query) in self._never:
                continue
            try:
                sample.update(take(self._handles[key]))
            except Exception as error:
                if self._judge(key, query, error, now_s):
                    return dict.fromkeys(GPU_FIELDS)
        return sample

    def _queries(self, pids: Collection[int]) -> dict[str, Callable[[Any], dict[str, float | None]]]:
        nvml = self._nvml

        def utilization(handle: Any) -> dict[str, float | None]:
            rates = nvml.nvmlDeviceGetUtilizationRates(handle)
            return {"gpu_util_pct": _number(rates.gpu), "gpu_mem_util_pct": _number(rates.memory)}

        def tree(handle: Any) -> dict[str, float | None]:
            ours = [p for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid in pids]
            sizes = [p.usedGpuMemory for p in ours if p.usedGpuMemory is not None]
            # a container may show other process ids than we know, WSL no sizes: that is N/A, not 0
            return {"gpu_tree_mem_mib": sum(sizes) / _MIB if sizes else None}

        def pcie(handle: Any) -> dict[str, float | None]:
            ways = {"rx": nvml.NVML_PCIE_UTIL_RX_BYTES, "tx": nvml.NVML_PCIE_UTIL_TX_BYTES}
            kib = {w: nvml.nvmlDeviceGetPcieThroughput(handle, counter) for w, counter in ways.items()}
            return {f"gpu_pcie_{way}_mib_per_s": value / 1024 for way, value in kib.items()}

        queries: dict[str, Callable[[Any], dict[str, float | None]]] = {
            "utilization": utilization,
            "memory": lambda h: {"gpu_mem_mib": nvml.nvmlDeviceGetMemoryInfo(h).used / _MIB},
            "tree": tree,
            "power": lambda h: {"gpu_power_w": nvml.nvmlDeviceGetPowerUsage(h) / 1000},
            "clock": lambda h: {"gpu_sm_clock_mhz": _number(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM))},
            "heat": lambda h: {"gpu_temp_c": _number(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU))},
            "throttle": lambda h: {"gpu_throttle_mask": self._throttle_mask(h)},
        }
        if self._pcie:
            queries["pcie"] = pcie
        return queries

    def _throttle_mask(self, handle: Any) -> int:
        ask = getattr(self._nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        return int((ask or self._nvml.nvmlDeviceGetCurrentClocksEventReasons)(handle))

    def _judge(self, key: str, query: str, error: Exception, now_s: float) -> bool:
        """Classify a failed query: never supported, failed once, or (returns True) the device is lost."""
        code = getattr(error, "value", None)
        names = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH")
        if code in self._codes(*names) or isinstance(error, (AttributeError, TypeError)):
            self._never.add((key, query))
        lost = code in self._codes("GPU_IS_LOST", "UNINITIALIZED", "DRIVER_NOT_LOADED", "RESET_REQUIRED")
        if lost:
            self._lost_until[key] = now_s + _RETRY_S
            self.note = f"GPU {key} was lost: {error}"
        return lost

    def _codes(self, *names: str) -> set[Any]:
        return {getattr(self._nvml, f"NVML_ERROR_{name}", object()) for name in names}

    def _revive(self, key: str, now_s: float) -> bool:
        """Get a new handle of a lost GPU, and initialize NVML again."""
        index, _, number = key.partition(":")
        try:
            self._nvml.nvmlInit()
            handle = self._nvml.nvmlDeviceGetHandleByIndex(int(index))
            if number:
                handle = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, int(number))
        except Exception:
            self._lost_until[key] = now_s + _RETRY_S
            return False
        self._handles[key] = handle
        del self._lost_until[key]
        return True

    def close(self) -> None:
        """Shut NVML down; later readings are N/A."""
        if self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except Exception:
                self.note = self.note or "NVML did not shut down cleanly"
        self._handles = dict.fromkeys(self._handles)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
