"""Cores, memory, GPUs and facts: read rightly from made-up and from real machines."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st
from runtime_fakes import CPU_NEEDS, H200, V100, make_system, topology, with_gpu, write_files

import gluontune as gt
from gluontune.runtime import nvml, packages
from gluontune.runtime.cpu import Cpu, parse_cpu_list, show_cpu_list
from gluontune.runtime.facts import can_run_mxnet_on_gpu, gpu_count, machine_facts
from gluontune.runtime.nvml import GpuReport

V1 = "9:cpuset:/\n4:memory:{path}\n2:cpu,cpuacct:{path}\n0::/\n"


def machine(root, files, cpus=8, threads=1):
    write_files(root, {**topology(cpus, threads), **files})
    cpu = Cpu(root)
    cpu.affinity = lambda: list(range(cpus))
    return cpu


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, 300), min_size=1, max_size=40))
def test_cpu_lists_read_back(cpus):
    assert parse_cpu_list(show_cpu_list(sorted(cpus))) == sorted(cpus)


@pytest.mark.parametrize(
    ("files", "quota", "cores"),
    [
        ({"/proc/self/cgroup": "0::/\n"}, None, 8),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "max 100000\n"}, None, 8),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5, 2),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "30000 100000\n"}, 0.3, 1),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "6400000 100000\n"}, 64.0, 8),
        # the tightest of the own group and those above it counts
        (
            {
                "/proc/self/cgroup": "0::/pods/mine\n",
                "/sys/fs/cgroup/pods/mine/cpu.max": "500000 100000\n",
                "/sys/fs/cgroup/pods/cpu.max": "300000 100000\n",
            },
            3.0,
            3,
        ),
        # v1, with the container's own group mounted as the top although the path is the host's
        (
            {
                "/proc/self/cgroup": V1.format(path="/docker/4f2a"),
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            4.0,
            4,
        ),
        (
            {
                "/proc/self/cgroup": V1.format(path="/job"),
                "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            },
            None,
            8,
        ),
    ],
)
def test_cgroup_quota(tmp_path, files, quota, cores):
    cpu = machine(tmp_path, files)
    assert (cpu.quota_cores(), cpu.usable_cores()) == (quota, cores)


def test_hyperthreads_count_as_usable_but_not_for_arithmetic(tmp_path):
    cpu = machine(tmp_path, {}, cpus=8, threads=2)
    assert (cpu.logical_cores(), cpu.physical_cores(), cpu.usable_cores(), cpu.compute_cores()) == (8, 4, 8, 4)
    cpu.affinity = lambda: [0, 1, 4]  # one whole core and half of another
    assert (cpu.usable_cores(), cpu.compute_cores()) == (3, 2)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, 16384),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "max\n"}, 16384),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": f"{3 << 30}\n"}, 3072),
        (
            {
                "/proc/self/cgroup": V1.format(path="/a"),
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{1 << 30}\n",
            },
            1024,
        ),
        (
            {
                "/proc/self/cgroup": V1.format(path="/"),
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            16384,
        ),
    ],
)
def test_memory_limit(tmp_path, files, limit):
    cpu = machine(tmp_path, {"/proc/meminfo": "MemTotal:       16777216 kB\n", **files})
    assert cpu.memory_limit_mib() == limit


def test_nothing_readable_gives_none_and_at_least_one_core(tmp_path):
    cpu = Cpu(tmp_path / "empty")
    cpu.affinity = lambda: [0]
    assert cpu.memory_limit_mib() is None and cpu.model() is None and cpu.quota_cores() is None
    assert cpu.flags() == () and cpu.container() is None
    assert cpu.usable_cores() == cpu.compute_cores() == 1


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"/.dockerenv": ""}, "docker"),
        ({"/run/.containerenv": ""}, "podman"),
        ({"/proc/1/cgroup": "0::/kubepods/burstable/pod1\n"}, "kubernetes"),
    ],
)
def test_container_hint(tmp_path, files, name):
    assert machine(tmp_path, files).container() == name


def test_this_machine():
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert 1 <= gt.runtime.usable_cores() <= mine
    assert gt.runtime.memory_limit_mib() > 100


def test_affinity_is_followed():
    one = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    code = f"import os; {one}; import gluontune as gt; print(gt.runtime.usable_cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


# -- packages


def test_packages_are_those_of_importlib_metadata():
    import importlib.metadata

    seen = packages.installed_packages()
    for name in ("numpy", "typer", "nvidia-ml-py", "pyyaml"):
        assert seen[name] == importlib.metadata.version(name)


def test_package_folders(tmp_path):
    for name in ("mxnet_cu112-1.9.1.dist-info", "Foo.Bar-2.0rc1-py3.11.egg-info", "notes.dist-info", "numpy"):
        (tmp_path / name).mkdir()
    assert packages.installed_packages([str(tmp_path), "/gone"]) == {"mxnet-cu112": "1.9.1", "foo-bar": "2.0rc1"}


# -- facts


def test_facts_are_json_quick_private_and_without_mxnet():
    code = (
        "import json, sys, time; import gluontune.runtime as r; t = time.perf_counter(); f = r.machine_facts();"
        "print(json.dumps([f, time.perf_counter() - t, 'mxnet' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    facts, seconds, imported = json.loads(done.stdout)
    assert not imported
    assert seconds < 5  # 0.06 on an idle machine; the bound is against reading every package's metadata twice
    text = json.dumps(facts)
    for secret in (socket.gethostname(), getpass.getuser()):
        assert len(secret) < 5 or secret not in text  # a shorter one may be a part of any word
    assert str(Path.home()) not in text and sys.prefix not in text
    assert facts["packages"]["numpy"] and facts["packages"]["gluontune"] == gt.__version__
    assert facts["cpu"]["logical_cores"] == os.cpu_count()


def test_facts_of_a_machine_with_a_gpu(tmp_path):
    facts = machine_facts(make_system(tmp_path, **with_gpu(H200)))
    assert facts["gpus"] == [{"index": 0, "name": "NVIDIA H200", "memory_mib": 143771, "compute_capability": "9.0"}]
    assert facts["gpu_driver"] == "550.54.15" and facts["gpu_status"] == "ok"
    assert facts["packages"]["mxnet-cu112"] == "1.9.1" and "mxnet" not in facts["packages"]
    assert facts["cpu"]["model"] == "Made-up CPU 9000"
    assert facts["cpu"]["flags"] == ["sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16"]
    assert facts["memory_mib"] == 16384 and facts["distribution"] == "Made-up Linux 1"
    assert str(tmp_path) not in json.dumps(facts)


def test_facts_that_cannot_be_had_are_none_and_not_zero(tmp_path):
    silent = nvml.Gpu(0)
    facts = machine_facts(make_system(tmp_path, **with_gpu(silent, driver=None)))
    assert facts["gpus"] == [{"index": 0, "name": None, "memory_mib": None, "compute_capability": None}]
    assert facts["gpu_driver"] is None and facts["cpu"]["quota_cores"] is None


# -- can MXNet use the GPU?


@pytest.mark.parametrize(
    ("changes", "able", "word"),
    [
        ({}, False, "no GPU"),
        (with_gpu(), True, "1 GPU that"),
        (with_gpu(H200), False, "no PTX"),
        (with_gpu(mxnet_needs=CPU_NEEDS), False, "CPU only"),
        (with_gpu(mxnet_library=None), False, "not installed"),
        (with_gpu(environ={"CUDA_VISIBLE_DEVICES": ""}), False, "hides all 1"),
        (with_gpu(unloadable=lambda needs: {"libcudnn.so.8": "gone"}), False, "libcudnn.so.8"),
    ],
)
def test_can_run_mxnet_on_gpu(tmp_path, changes, able, word):
    found, reason = can_run_mxnet_on_gpu(make_system(tmp_path, **changes))
    assert found is able and word in reason


@pytest.mark.parametrize(
    ("capability", "runs"),
    [((5, 2), True), ((7, 5), True), ((8, 9), True), ((9, 0), False), ((10, 0), False), ((3, 7), False)],
)
def test_compute_capability_against_the_wheel(tmp_path, capability, runs):
    gpu = dataclasses.replace(V100, compute_capability=capability)
    assert can_run_mxnet_on_gpu(make_system(tmp_path, **with_gpu(gpu)))[0] is runs


def test_gpu_count_follows_cuda_visible_devices(tmp_path):
    three = tuple(dataclasses.replace(V100, index=i, uuid=f"GPU-{i}{i}") for i in range(3))
    for number, (chosen, count) in enumerate(
        [(None, 3), ("", 0), ("-1", 0), ("2,0", 2), ("0,9,1", 1), ("0,0", 1), ("GPU-1", 1), ("GPU-", 0)]
    ):
        environ = {"CUDA_VISIBLE_DEVICES": chosen}
        report = GpuReport("ok", three, "550")
        system = make_system(tmp_path / str(number), **with_gpu(gpu_report=report, environ=environ))
        assert gpu_count(system) == count, chosen


# -- NVML, faked: every fault that it knows


class NvmlError(Exception):
    def __init__(self, value, text):
        super().__init__(text)
        self.value = value


class FakeNvml(SimpleNamespace):
    """As much of pynvml as is asked; ``faults`` maps a function's name to the exception that it raises."""

    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_NO_PERMISSION = 12, 9, 4

    def __init__(self, **faults):
        super().__init__()
        answers = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": 2,
            "nvmlSystemGetDriverVersion": b"550.1",
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": b"NVIDIA A100",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=40 << 30),
            "nvmlDeviceGetCudaComputeCapability": (8, 0),
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
        }
        for name, answer in answers.items():
            setattr(self, name, self._function(faults.get(name), answer))

    def _function(self, fault, answer):
        def call(*arguments):
            if fault is not None and (not isinstance(fault, tuple) or arguments[0] == fault[0]):
                raise fault[1] if isinstance(fault, tuple) else fault
            return answer

        return call


def test_nvml_answers():
    report = nvml.query(FakeNvml())
    assert report.status == "ok" and report.driver == "550.1" and len(report.gpus) == 2
    assert report.gpus[0] == nvml.Gpu(0, "NVIDIA A100", 40960, (8, 0), "GPU-1", True)


@pytest.mark.parametrize(
    ("value", "status"), [(12, "no-driver"), (9, "no-driver"), (4, "denied"), (999, "error"), (18, "error")]
)
@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_nvml_that_does_not_start(value, status, function):
    report = nvml.query(FakeNvml(**{function: NvmlError(value, "words of NVML")}))
    assert (report.status, report.reason, report.gpus) == (status, "words of NVML", ())


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetName", "name"),
        ("nvmlDeviceGetMemoryInfo", "memory_mib"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability"),
        ("nvmlDeviceGetUUID", "uuid"),
    ],
)
def test_an_unsupported_query_is_none_and_the_rest_stands(function, field):
    gpu = nvml.query(FakeNvml(**{function: NvmlError(3, "Not Supported")})).gpus[1]
    assert getattr(gpu, field) is None
    assert sum(value is None for value in dataclasses.asdict(gpu).values()) == 1


def test_utilization_that_is_not_supported_is_known():
    report = nvml.query(FakeNvml(nvmlDeviceGetUtilizationRates=NvmlError(3, "Not Supported")))
    assert report.status == "ok" and report.gpus[0].utilization_readable is False


def test_a_lost_gpu_keeps_its_place():
    report = nvml.query(FakeNvml(nvmlDeviceGetHandleByIndex=(0, NvmlError(15, "GPU is lost"))))
    assert report.gpus[0] == nvml.Gpu(0)
    assert report.gpus[1].name == "NVIDIA A100"


def test_without_the_binding(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.query().status == "no-binding"
