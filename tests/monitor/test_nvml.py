"""NVML faults, each driven by a stand-in that raises NVML's own errors."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pynvml as real
import pytest
from waiting import until

from gluontune.core.errors import UsageError
from gluontune.monitor import Monitor, throttle_reasons
from gluontune.monitor.nvml import GPU_FIELDS, NvmlSampler

CODES = sorted(
    {value for name, value in vars(real).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)}
)


class FakeNvml:
    """A machine of GPUs; ``fail`` maps a function's name (or "*") to an error code or an exception."""

    def __init__(self, count=2, mig=None, processes=()):
        self.count, self.mig, self.processes = count, mig or {}, list(processes)
        self.fail: dict[str, object] = {}
        self.calls: list[str] = []
        for name, value in vars(real).items():
            if name.startswith("NVML_") and isinstance(value, int):
                setattr(self, name, value)

    def _call(self, name, answer):
        self.calls.append(name)
        fault = self.fail.get(name, self.fail.get("*"))
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            raise real.NVMLError(fault)
        return answer

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)
        answers = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda index: f"gpu{index}",
            "nvmlDeviceGetName": lambda handle: b"Tesla V100",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}-uuid",
            "nvmlDeviceGetMigMode": lambda handle: [1 if handle in self.mig else 0, 0],
            "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._slice,
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=31, memory=12),
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=2 << 30, total=16 << 30),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: self.processes,
            "nvmlDeviceGetPowerUsage": lambda handle: 123_000,
            "nvmlDeviceGetClockInfo": lambda handle, kind: 1380,
            "nvmlDeviceGetTemperature": lambda handle, kind: 61,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x20,
            "nvmlDeviceGetPcieThroughput": lambda handle, kind: 2048 * (kind + 1),
        }
        if name not in answers:
            raise AttributeError(name)
        return lambda *args: self._call(name, answers[name](*args))

    def _slice(self, handle, number):
        if number not in self.mig[handle]:
            raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)
        return f"{handle}/{number}"


def sampler(fake, gpus="all", **more):
    return NvmlSampler(gpus, pynvml=fake, environ=more.pop("environ", {}), **more)


def test_all_fields_in_their_units():
    fake = FakeNvml(1, processes=[SimpleNamespace(pid=7, usedGpuMemory=3 << 20)])
    sample = sampler(fake, pcie=True).read(0.0, {7})["0"]
    assert sample == {
        "gpu_util_pct": 31, "gpu_mem_util_pct": 12, "gpu_mem_mib": 2048, "gpu_tree_mem_mib": 3, "gpu_power_w": 123,
        "gpu_sm_clock_mhz": 1380, "gpu_temp_c": 61, "gpu_pcie_tx_mib_per_s": 2, "gpu_pcie_rx_mib_per_s": 4,
        "gpu_throttle_mask": 0x20,
    }  # fmt: skip
    assert set(sample) == set(GPU_FIELDS)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("where", ["nvmlInit", "nvmlDeviceGetCount"])
def test_nvml_that_does_not_open_is_said_and_samples_nothing(code, where):
    fake = FakeNvml()
    fake.fail[where] = code
    found = sampler(fake)
    assert found.keys == [] and found.read(0.0) == {}
    assert found.note.startswith("no GPU is sampled: ")


@pytest.mark.parametrize("code", CODES)
def test_each_error_code_in_mid_run_gives_na_and_no_crash(code):
    fake = FakeNvml(1)
    found = sampler(fake)
    assert found.read(0.0)["0"]["gpu_util_pct"] == 31
    fake.fail["*"] = code
    assert set(found.read(1.0)["0"].values()) == {None}
    found.close()
    assert set(found.read(2.0)["0"].values()) == {None}


CALLS = [
    "nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName",
    "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetPcieThroughput",
]  # fmt: skip
LOST = {
    getattr(real, f"NVML_ERROR_{name}")
    for name in ("GPU_IS_LOST", "UNINITIALIZED", "DRIVER_NOT_LOADED", "RESET_REQUIRED")
}
FIELDS_OF = {
    "nvmlDeviceGetUtilizationRates": {"gpu_util_pct", "gpu_mem_util_pct"},
    "nvmlDeviceGetMemoryInfo": {"gpu_mem_mib"},
    "nvmlDeviceGetComputeRunningProcesses": {"gpu_tree_mem_mib"},
    "nvmlDeviceGetPowerUsage": {"gpu_power_w"},
    "nvmlDeviceGetClockInfo": {"gpu_sm_clock_mhz"},
    "nvmlDeviceGetTemperature": {"gpu_temp_c"},
    "nvmlDeviceGetCurrentClocksThrottleReasons": {"gpu_throttle_mask"},
    "nvmlDeviceGetPcieThroughput": {"gpu_pcie_rx_mib_per_s", "gpu_pcie_tx_mib_per_s"},
}


def test_the_stand_in_knows_every_call_that_the_sampler_makes():
    fake = FakeNvml(1, mig={"gpu0": [0]}, processes=[SimpleNamespace(pid=7, usedGpuMemory=1 << 20)])
    found = sampler(fake, "auto", environ={"CUDA_VISIBLE_DEVICES": "GPU-gpu0"}, pcie=True)
    found.read(0.0, {7})
    found.close()
    assert set(fake.calls) == set(CALLS)


@pytest.mark.parametrize("call", CALLS)
def test_each_error_code_at_each_call(call):
    for code in CODES:
        for moment in ("from the start", "in mid-run"):
            fails_at(call, code, moment)


def fails_at(call, code, moment):
    """Two GPUs, one in MIG mode: no exception ever, the failed fields N/A, all others as they were."""
    fake = FakeNvml(2, mig={"gpu0": [0, 2]}, processes=[SimpleNamespace(pid=7, usedGpuMemory=1 << 20)])
    if moment == "from the start":
        fake.fail[call] = code
    found = sampler(fake, pcie=True)
    whole = found.read(0.0, {7})
    fake.fail[call] = code
    later = found.read(1.0, {7})
    found.read(60.0, {7})  # a lost one is asked anew
    for key in later:
        values = {field: value for field, value in later[key].items() if value is None}
        gone = set(GPU_FIELDS) if code in LOST else FIELDS_OF.get(call, set())
        if call in FIELDS_OF:
            assert set(values) == gone, key
        else:
            assert later[key] == whole[key]
    fake.fail.clear()
    assert set(found.read(120.0, {7})) == set(later)
    found.close()
    if call in FIELDS_OF:
        assert ("was lost" in found.note) == (code in LOST)


def test_no_binding_at_all_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = NvmlSampler("auto", environ={})
    assert found.read(0.0) == {} and "pynvml" in found.note
    with Monitor(period_s=0.05) as monitor:
        time.sleep(0.06)
    assert monitor.faults == 0 and monitor.steadiness()["device"] == "cpu"


@pytest.mark.parametrize(
    "fault", [OSError("gone"), AttributeError("old binding"), TypeError("new binding"), ValueError("odd")]
)
def test_what_is_no_nvml_error_is_na_too(fault):
    fake = FakeNvml(1)
    fake.fail["nvmlDeviceGetPowerUsage"] = fault
    sample = sampler(fake).read(0.0)["0"]
    assert sample["gpu_power_w"] is None and sample["gpu_util_pct"] == 31


def test_a_field_that_is_not_supported_is_na_and_not_asked_again():
    fake = FakeNvml(1)
    fake.fail["nvmlDeviceGetUtilizationRates"] = real.NVML_ERROR_NOT_SUPPORTED
    found = sampler(fake)
    for k in range(3):
        sample = found.read(float(k))["0"]
    assert sample["gpu_util_pct"] is None and sample["gpu_mem_mib"] == 2048
    assert fake.calls.count("nvmlDeviceGetUtilizationRates") == 1


def test_a_passing_fault_is_asked_again():
    fake = FakeNvml(1)
    found = sampler(fake)
    fake.fail["nvmlDeviceGetTemperature"] = real.NVML_ERROR_UNKNOWN
    assert found.read(0.0)["0"]["gpu_temp_c"] is None
    fake.fail.clear()
    assert found.read(1.0)["0"]["gpu_temp_c"] == 61


def test_a_lost_gpu_is_a_gap_and_comes_back():
    fake = FakeNvml(2)
    found = sampler(fake)
    fake.fail["*"] = real.NVML_ERROR_GPU_IS_LOST
    assert found.read(1.0)["1"]["gpu_util_pct"] is None
    assert "was lost" in found.note
    asked = len(fake.calls)
    found.read(2.0)
    assert len(fake.calls) == asked  # not hammered
    found.read(7.0)  # tried again, still lost
    fake.fail.clear()
    assert found.read(8.0)["0"]["gpu_util_pct"] is None
    assert found.read(13.0)["0"]["gpu_util_pct"] == 31


def test_one_gpu_that_cannot_be_opened_leaves_the_others():
    fake = FakeNvml(2)
    opened = fake.nvmlDeviceGetHandleByIndex

    def handle(index):
        if index == 0:
            raise real.NVMLError(real.NVML_ERROR_NO_PERMISSION)
        return opened(index)

    fake.nvmlDeviceGetHandleByIndex = handle
    sample = sampler(fake).read(0.0)
    assert sample["0"]["gpu_util_pct"] is None and sample["1"]["gpu_util_pct"] == 31


def test_mig_slices_are_devices_of_their_own():
    found = sampler(FakeNvml(1, mig={"gpu0": [0, 2]}))
    assert found.keys == ["0", "0:0", "0:1"]
    assert found.read(0.0)["0:1"]["gpu_mem_mib"] == 2048


def test_wsl_without_sizes_and_containers_with_other_pids_are_na():
    wsl = FakeNvml(1, processes=[SimpleNamespace(pid=7, usedGpuMemory=None)])
    assert sampler(wsl).read(0.0, {7})["0"]["gpu_tree_mem_mib"] is None
    container = FakeNvml(1, processes=[SimpleNamespace(pid=31337, usedGpuMemory=5 << 20)])
    assert sampler(container).read(0.0, {7})["0"]["gpu_tree_mem_mib"] is None


@pytest.mark.parametrize(
    ("visible", "keys"),
    [("1", ["1"]), ("1,0", ["1", "0"]), ("", []), ("-1", []), ("0,9,1", ["0"]), ("GPU-gpu1", ["1"])],
)
def test_auto_takes_what_cuda_shows(visible, keys):
    assert sampler(FakeNvml(2), "auto", environ={"CUDA_VISIBLE_DEVICES": visible}).keys == keys


def test_chosen_gpus_must_be_there():
    assert sampler(FakeNvml(2), [1]).keys == ["1"]
    with pytest.raises(UsageError, match="no GPU 5"):
        sampler(FakeNvml(2), [0, 5])
    with pytest.raises(UsageError, match="'auto', 'all', 'none'"):
        sampler(FakeNvml(2), "first")


def test_none_never_opens_nvml():
    fake = FakeNvml()
    assert sampler(fake, "none").keys == [] and fake.calls == []


def test_pcie_is_asked_only_on_demand():
    fake = FakeNvml(1)
    assert sampler(fake).read(0.0)["0"]["gpu_pcie_rx_mib_per_s"] is None
    assert "nvmlDeviceGetPcieThroughput" not in fake.calls


def test_throttle_reasons_in_words():
    assert throttle_reasons(0) == []
    assert throttle_reasons(0x21) == ["idle", "thermal (software)"]


def test_the_monitor_carries_gpus_into_its_series_over_a_loss(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake = FakeNvml(2)
    with Monitor(period_s=0.02, pynvml=fake) as monitor:
        until(lambda: monitor.taken >= 3)
        fake.fail["*"] = real.NVML_ERROR_GPU_IS_LOST
        before = monitor.taken
        until(lambda: monitor.taken >= before + 3)
    row = monitor.series()["gpu_util_pct"]["1"]
    assert row[0] == 31 and row[-1] is None
    assert monitor.faults == 0
    assert monitor.peak_gpu_mib == 4096
    figures = monitor.steadiness()
    assert figures["device"] == "gpu" and figures["mean_pct"] == pytest.approx(31)
    assert figures["by_device"]["0"]["measured_s"] < figures["by_device"]["cpu"]["measured_s"] + 0.05
