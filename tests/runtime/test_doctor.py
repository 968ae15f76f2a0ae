"""Every check of the doctor fires where it should and is quiet where it should be."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from runtime_fakes import CPU_NEEDS, CUDA_NEEDS, H200, V100, make_system, with_gpu

from gluontune.core.errors import UnknownNameError
from gluontune.runtime import launch
from gluontune.runtime.disk import DiskSpace, measure_reading
from gluontune.runtime.doctor import CHECKS, SEVERITIES, Check, Options, Verdict, iter_checks, run_checks
from gluontune.runtime.doctor._base import run_check
from gluontune.runtime.elf import GpuCode
from gluontune.runtime.nvml import GpuReport

NO_DRIVER = GpuReport("no-driver", reason="Driver Not Loaded")


def without(*names):
    return lambda name: name not in (*names, "distutils")


def missing(*names):
    return lambda needs: {n: f"{n}: cannot open shared object file" for n in needs if n in names}


AMX_CPU = "model name : X\nflags : avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n"

# check, severity, changes of the sound machine, a word that message, evidence or fix must hold
FIRING = [
    ("operating-system", "warning", {"os_name": "Darwin"}, "macOS"),
    ("operating-system", "error", {"os_name": "Windows"}, "wsl --install"),
    ("architecture", "warning", {"architecture": "aarch64"}, "none for CUDA"),
    ("architecture", "error", {"architecture": "ppc64le"}, "ppc64le"),
    ("libc", "error", {"libc": ("", "")}, "musl"),
    ("libc", "error", {"libc": ("glibc", "2.12")}, "2.17"),
    ("python", "error", {"python": (3, 13, 0)}, "3.12"),
    ("python", "error", {"python": (3, 8, 1)}, "too old"),
    ("cpu-features", "warning", {"files": {"/proc/cpuinfo": "model name: Old\nflags : sse4_2 avx\n"}}, "AVX2"),
    ("cpu-features", "info", {"files": {"/proc/cpuinfo": "model name: X\nflags : avx avx2\n"}}, "bfloat16"),
    ("cpu-features", "info", {"architecture": "aarch64"}, "oneDNN"),
    ("cpu-features", "info", {"files": {"/proc/cpuinfo": "model name: Intel X\nflags : avx2 avx512_bf16\n"}}, "AMX"),
    ("amx", "info", {"files": {"/proc/cpuinfo": AMX_CPU}}, "AVX512_CORE_AMX"),
    ("amx", "info", {"files": {"/proc/cpuinfo": AMX_CPU}, "grants_amx": lambda: False}, "refuses"),
    ("mxnet", "error", {"module_exists": without("mxnet")}, "mxnet==1.9.1"),
    ("mxnet", "info", {"packages": {"mxnet": None}}, "container"),
    ("mxnet", "warning", {"packages": {"mxnet": "2.0.0"}}, "mxnet 2.0.0"),
    ("mxnet-twice", "error", {"packages": {"mxnet-cu112": "1.9.1"}}, "pip uninstall -y mxnet-cu112 mxnet"),
    ("mxnet-files", "error", {"mxnet_library": None}, "force-reinstall"),
    (
        "mxnet-files",
        "error",
        {"files": {"/lib/mxnet-1.9.1.dist-info/RECORD": "mxnet/libmxnet.so,sha256=x,999\n"}},
        "999",
    ),
    ("shared-libraries", "error", {"unloadable": missing("libgomp.so.1")}, "apt install libgomp1"),
    (
        "shared-libraries",
        "error",
        with_gpu(unloadable=missing("libcudnn.so.8", "libcuda.so.1")),
        "pip install 'nvidia-cudnn-cu11<9'",
    ),
    ("shared-libraries", "info", {"mxnet_library": None}, "not installed"),
    ("mxnet-path", "warning", {"environ": {"MXNET_LIBRARY_PATH": "/x.so"}}, "unset MXNET_LIBRARY_PATH"),
    ("numpy", "error", {"packages": {"numpy": "2.1.0"}}, "pip install 'numpy=="),
    ("numpy", "error", {"packages": {"numpy": None}}, "not installed"),
    ("numpy", "info", {"packages": {"numpy": "1.26.4"}}, "aliases"),
    ("distutils", "error", {"python": (3, 12, 1), "module_exists": without("setuptools")}, "setuptools<81"),
    ("mxnet-requirements", "error", {"module_exists": without("graphviz")}, "graphviz<0.9"),
    ("gluoncv", "warning", {"packages": {"gluoncv": None}}, "gluoncv==0.10.5.post0"),
    ("gluoncv", "warning", {"packages": {"gluoncv": "0.4.0"}}, "0.4.0"),
    ("gluoncv", "error", {"module_exists": without("yacs")}, "pip install yacs"),
    ("gluoncv", "info", {"packages": {"torch": "2.13.0+cpu"}}, "gluontune.runtime.mxnet()"),
    ("opencv", "error", {"packages": {"opencv-python-headless": None}, "module_exists": without("cv2")}, "pip"),
    ("opencv", "warning", {"packages": {"opencv-python": "4.5.1.48"}}, "4.5.1.48"),
    ("jpeg-decoder", "warning", {"jpeg_decoder": ("OpenCV", "no C compiler")}, "ziglang"),
    ("jpeg-decoder", "warning", {"jpeg_decoder": ("OpenCV", "switched off")}, "unset GLUONTUNE_NATIVE"),
    ("jpeg-decoder", "warning", {"jpeg_decoder": ("OpenCV", "not compiled")}, "cache folder"),
    ("onnx", "error", {"packages": {"onnx": "1.18.0"}}, "onnx==1.17.0"),
    ("onnx", "info", {"packages": {"onnx": None}}, "export"),
    ("protobuf", "warning", {"packages": {"protobuf": "6.30.0"}}, "protobuf 6.30.0"),
    ("protobuf", "error", {"packages": {"protobuf": None}}, "protobuf<6"),
    ("onnxruntime", "warning", {"packages": {"onnxruntime": "1.23.0"}}, "onnxruntime<1.20"),
    ("onnxruntime", "info", {"packages": {"onnxruntime": None}}, "checked"),
    ("horovod", "info", {"packages": {"horovod": None}}, "make horovod"),
    ("horovod", "error", {"site_folders": []}, "HOROVOD_WITH_MXNET=1"),
    ("horovod", "error", {"horovod_lacks": ["_ZN5mxnet12on_enter_apiEPKc"]}, "another mxnet"),
    ("horovod", "error", {"horovod_engines": ["MPI"]}, "without Gloo"),
    ("horovod", "error", {"horovod_engines": []}, "cannot meet"),
    ("horovod", "warning", with_gpu(), "HOROVOD_GPU_OPERATIONS=NCCL"),
    ("gpu-driver", "info", {}, "CPU"),
    ("gpu-driver", "warning", with_gpu(gpu_report=NO_DRIVER), "the GPU build computes on the CPU"),
    (
        "gpu-driver",
        "error",
        with_gpu(gpu_report=NO_DRIVER, files={"/proc/driver/nvidia/version": "NVRM version: 550"}),
        "pip uninstall -y mxnet-cu112",
    ),
    ("gpu-driver", "info", {"gpu_report": GpuReport("denied", reason="Insufficient Permissions")}, "nvml"),
    ("driver-version", "error", with_gpu(driver="418.39"), "450.80.02"),
    ("nvml", "warning", {"gpu_report": GpuReport("no-binding", reason="No module")}, "nvidia-ml-py"),
    ("nvml", "warning", {"gpu_report": GpuReport("denied", reason="Insufficient Permissions")}, "not 0"),
    ("nvml", "warning", {"gpu_report": GpuReport("error", reason="Driver/library version mismatch")}, "mismatch"),
    ("nvml", "warning", with_gpu(dataclasses.replace(V100, utilization_readable=False)), "MIG"),
    ("gpu-code", "error", with_gpu(H200), "nvcr.io/nvidia/mxnet:24.06-py3"),
    ("gpu-code", "error", with_gpu(dataclasses.replace(V100, compute_capability=(3, 5))), "Maxwell"),
    ("gpu-code", "info", with_gpu(gpu_code=GpuCode((), ())), "does not show"),
    ("gpu-code", "info", with_gpu(dataclasses.replace(V100, compute_capability=None)), "N/A"),
    ("gpu-unused", "warning", {"gpu_report": GpuReport("ok", (V100,), "550")}, "gluontune[cu112]"),
    ("visible-devices", "warning", with_gpu(environ={"CUDA_VISIBLE_DEVICES": "-1"}), "all GPUs are hidden"),
    ("visible-devices", "error", with_gpu(environ={"CUDA_VISIBLE_DEVICES": "3"}), "does not exist"),
    ("usable-cores", "warning", {"files": {"/sys/fs/cgroup/cpu.max": "150000 100000\n"}}, "1.5"),
    ("usable-cores", "info", {"affinity": lambda: [1, 2]}, "1-2"),
    ("omp-threads", "warning", {"environ": {"OMP_NUM_THREADS": None}}, "half"),
    ("omp-threads", "warning", {"environ": {"OMP_NUM_THREADS": "64"}}, "OMP_NUM_THREADS=64"),
    ("omp-threads", "info", {"environ": {"OMP_NUM_THREADS": "1"}}, "fewer"),
    ("omp-threads", "error", {"environ": {"OMP_NUM_THREADS": "all"}}, "OMP_NUM_THREADS=all"),
    ("allocator", "warning", {"environ": {"MALLOC_MMAP_MAX_": None}}, "export MALLOC_MMAP_MAX_=0"),
    ("allocator", "info", {"libc": ("", "")}, "musl"),
    (
        "openmp-runtimes",
        "warning",
        {"files": {"/proc/self/maps": "1 r 0 0 1 /a/libgomp.so.1\n1 r 0 0 1 /b/torch/libgomp-a34b3233.so.1\n"}},
        "another process",
    ),
    ("openmp-runtimes", "warning", {"environ": {"LD_PRELOAD": "/opt/libiomp5.so"}}, "LD_PRELOAD"),
    ("openmp-runtimes", "info", {"files": {"/site-packages/torch/lib/libgomp-1.so.1": ""}}, "torch/lib"),
    ("mxnet-variables", "warning", {"environ": {"MXNET_ENGINE_TYPE": "NaiveEngine"}}, "unset MXNET_ENGINE_TYPE"),
    ("dmlc-role", "error", {"environ": {"DMLC_ROLE": "server"}}, "unset DMLC_ROLE"),
    ("dmlc-role", "info", {"environ": {"DMLC_NUM_WORKER": "2"}}, "DMLC_NUM_WORKER=2"),
    ("machine-busy", "warning", {"files": {"/proc/loadavg": "3.90 1 1 1/1 1\n"}}, "3.90"),
    ("machine-busy", "info", {"files": {"/proc/loadavg": None}}, "N/A"),
    (
        "cpu-governor",
        "warning",
        {"files": {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n"}},
        "cpupower",
    ),
    ("shared-memory", "error", {"disk": lambda path: DiskSpace(64, 64)}, "--shm-size"),
    ("shared-memory", "warning", {"disk": lambda path: DiskSpace(600, 500)}, "only just"),
    ("shared-memory", "warning", {"disk": lambda path: None}, "no /dev/shm"),
    ("open-files", "warning", {"open_files": lambda: (256, 4096)}, "ulimit -n 4096"),
    ("memory", "warning", {"files": {"/sys/fs/cgroup/memory.max": f"{1 << 30}\n"}}, "1024 MiB"),
    ("memory", "info", {"files": {"/sys/fs/cgroup/memory.max": f"{4 << 30}\n"}}, "4096 MiB of 16384"),
    ("thread-pool", "info", {}, "wrong records"),
    ("disk-space", "error", {"disk": lambda path: DiskSpace(1000, 3)}, "GLUONTUNE_DATA"),
    ("disk-space", "warning", {"disk": lambda path: DiskSpace(9000, 1000)}, "1000 of 9000"),
    ("file-system", "warning", {"files": {"/proc/mounts": "srv:/x / nfs4 rw 0 0\n"}}, "gluontune pack"),
    ("file-system", "info", {"files": {"/proc/mounts": None}}, "not known"),
    ("read-speed", "warning", {"read_mib_per_sec": lambda *a: (12.0, "x")}, "12 MiB/s"),
    ("read-speed", "info", {"read_mib_per_sec": lambda *a: (None, "Permission denied")}, "Permission"),
    ("notebook-tools", "info", {"packages": {"papermill": None}}, "missing: papermill"),
    ("jupyter-kernel", "warning", {}, "--install-kernel"),
    ("jupyter-kernel", "info", {"packages": {"ipykernel": None}}, "notebooks"),
]  # fmt: skip

# changes under which a check is content; those that are not named are with the sound machine
QUIET = {
    "mxnet-files": {"files": {"/lib/mxnet-1.9.1.dist-info/RECORD": "mxnet/libmxnet.so,sha256=x,2048\n"}},
    "distutils": {"python": (3, 12, 1)},
    "gpu-driver": with_gpu(),
    "driver-version": with_gpu(),
    "nvml": with_gpu(),
    "gpu-code": with_gpu(),
    "gpu-unused": with_gpu(),
    "visible-devices": with_gpu(environ={"CUDA_VISIBLE_DEVICES": "0"}),
    "allocator": {"environ": {"LD_PRELOAD": "/usr/lib/libtcmalloc_minimal.so.4", "MALLOC_MMAP_MAX_": None}},
}
# fires on every machine, as an explanation / has tests of its own below, with real folders
EXPLAINS, WITH_FOLDERS = {"thread-pool"}, {"data-folder"}


def find(system, check, **options):
    (finding,) = run_checks(system, Options(**options), only=[check])
    return finding


def test_there_are_enough_checks_and_each_is_tested_both_ways():
    assert len(CHECKS) >= 25
    assert {case[0] for case in FIRING} == set(CHECKS.names()) - WITH_FOLDERS
    assert set(QUIET) <= set(CHECKS.names())


@pytest.mark.parametrize(
    ("check", "severity", "changes", "word"), FIRING, ids=[f"{c[0]}-{c[1]}-{n}" for n, c in enumerate(FIRING)]
)
def test_check_fires(tmp_path, check, severity, changes, word):
    finding = find(make_system(tmp_path, **changes), check, data=tmp_path)
    assert finding.id == check
    assert finding.severity == severity, finding
    assert word in f"{finding.message} {finding.evidence} {finding.fix}"
    assert severity == "info" or finding.fix, "a warning or error says what mends it"
    assert "the check itself failed" not in finding.message


@pytest.mark.parametrize("check", [c for c in CHECKS.names() if c not in EXPLAINS])
def test_check_is_quiet_where_nothing_is_wrong(tmp_path, check):
    system = make_system(tmp_path, **QUIET.get(check, {}))
    if check == "jupyter-kernel":
        launch.install_kernel(prefix=system.prefix, system=system)
    finding = find(system, check, data=tmp_path)
    assert finding.severity == "ok", finding


def test_a_check_that_breaks_is_a_finding_and_the_others_still_run(tmp_path):
    def broken(path):
        raise OSError(5, "Input/output error")

    system = make_system(tmp_path, disk=broken)
    findings = {f.id: f for f in run_checks(system, Options(data=tmp_path))}
    assert list(findings) == CHECKS.names()
    assert findings["disk-space"].severity == "warning"
    assert "Input/output error" in findings["disk-space"].evidence
    assert findings["python"].severity == "ok"


def test_a_severity_that_does_not_exist_is_a_fault_of_the_check(tmp_path):
    entry = Check("odd", "odd", lambda system, options: Verdict("fatal", "x"))
    assert run_check(entry, make_system(tmp_path), Options()).severity == "warning"


def test_unknown_check_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'numpy'"):
        run_checks(only=["numpi"])


def test_this_machine_gives_whole_findings_without_importing_mxnet(tmp_path):
    before = "mxnet" in sys.modules
    seen = list(iter_checks(options=Options(data=tmp_path)))
    assert [entry.id for entry, _ in seen] == CHECKS.names()
    for entry, finding in seen:
        assert finding.severity in SEVERITIES and finding.message and entry.title
        assert "the check itself failed" not in finding.message, finding
        assert json.loads(json.dumps(finding.to_dict())) == finding.to_dict()
    assert ("mxnet" in sys.modules) == before


# -- where the table would not say enough


def test_the_drivers_library_is_no_missing_library_where_none_can_be(tmp_path):
    gpu_build = with_gpu(gpu_report=NO_DRIVER, unloadable=missing("libcuda.so.1"))
    assert find(make_system(tmp_path, **gpu_build), "shared-libraries").severity == "ok"


def test_missing_libraries_are_named_with_one_command_for_all_wheels(tmp_path):
    gone = ("libcudnn.so.8", "libcudart.so.11.0", "libgomp.so.1")
    finding = find(make_system(tmp_path, **with_gpu(unloadable=missing(*gone))), "shared-libraries")
    assert all(name in finding.message for name in gone)
    assert "pip install 'nvidia-cuda-runtime-cu11' 'nvidia-cudnn-cu11<9'" in finding.fix
    assert "libgomp1" in finding.fix


@pytest.mark.parametrize(("gpus", "kept"), [((V100,), "mxnet-cu112"), ((), "mxnet")])
def test_of_two_wheels_the_one_that_fits_the_machine_is_kept(tmp_path, gpus, kept):
    report = GpuReport("ok", gpus, "550") if gpus else NO_DRIVER
    system = make_system(tmp_path, packages={"mxnet-cu112": "1.9.1"}, gpu_report=report)
    assert f"pip install '{kept}==1.9.1'" in find(system, "mxnet-twice").fix


def test_a_fitting_gpu_beside_one_that_does_not_fit_is_offered(tmp_path):
    two = GpuReport("ok", (H200, dataclasses.replace(V100, index=1, uuid="GPU-cc")), "550")
    finding = find(make_system(tmp_path, **with_gpu(gpu_report=two)), "gpu-code")
    assert finding.severity == "error" and "CUDA_VISIBLE_DEVICES=1 " in finding.fix
    hidden = make_system(tmp_path, **with_gpu(gpu_report=two, environ={"CUDA_VISIBLE_DEVICES": "1"}))
    assert find(hidden, "gpu-code").severity == "ok"


def test_a_vendor_build_with_code_for_hopper_is_content(tmp_path):
    system = make_system(tmp_path, **with_gpu(H200, gpu_code=GpuCode((70, 80, 90), (90,))))
    assert find(system, "gpu-code").severity == "ok"


def test_shared_memory_counts_batch_workers_and_prefetch(tmp_path):
    system = make_system(tmp_path, disk=lambda path: DiskSpace(1024, 1024))
    small = find(system, "shared-memory", batch_size=64, image_size=32, num_workers=2, prefetch=4)
    large = find(system, "shared-memory", batch_size=512, image_size=224, num_workers=2, prefetch=4)
    assert (small.severity, large.severity) == ("ok", "error")
    assert "1764 MiB" in large.evidence  # 512 * 3 * 224**2 * 4 bytes * (4 + 2)


def test_library_path_with_another_libmxnet(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "libmxnet.so").write_bytes(b"")
    system = make_system(tmp_path, environ={"LD_LIBRARY_PATH": f"/nowhere:{other}"})
    finding = find(system, "mxnet-path")
    assert finding.severity == "warning" and str(other) in finding.evidence


def test_opencv_that_lacks_a_library_of_the_system(tmp_path):
    import shutil

    import cv2

    extension = next(Path(cv2.__file__).parent.glob("cv2*.so"))
    place = tmp_path / "site-packages" / "cv2"
    place.mkdir(parents=True)
    shutil.copy(extension, place / extension.name)
    system = make_system(tmp_path, unloadable=missing("libz.so.1", "libstdc++.so.6", "libGL.so.1"))
    finding = find(system, "opencv")
    assert finding.severity == "error" and "libstdc++.so.6" in finding.message
    assert "opencv-python-headless" in finding.fix


def test_kernel_of_another_python_and_stale_settings(tmp_path):
    system = make_system(tmp_path)
    folder = launch.install_kernel(prefix=system.prefix, system=system)
    spec = json.loads((folder / "kernel.json").read_text())
    spec["env"]["OMP_NUM_THREADS"] = "9"
    (folder / "kernel.json").write_text(json.dumps(spec))
    assert "OMP_NUM_THREADS=9" in find(system, "jupyter-kernel").evidence
    spec["argv"][0] = "/usr/bin/python-of-another"
    (folder / "kernel.json").write_text(json.dumps(spec))
    assert "another Python" in find(system, "jupyter-kernel").message


def test_data_folder_missing_present_and_not_writable(tmp_path, monkeypatch):
    system = make_system(tmp_path)
    assert find(system, "data-folder", data=tmp_path / "gone").severity == "error"
    assert find(system, "data-folder", data=tmp_path).severity == "ok"
    monkeypatch.setenv("GLUONTUNE_DATA", str(tmp_path / "later" / "on"))
    assert "will be made" in find(system, "data-folder").message
    monkeypatch.setattr("os.access", lambda path, mode: mode != 2)  # os.W_OK; root may write anywhere
    assert find(system, "data-folder").severity == "error"
    assert "read-only" in find(system, "data-folder", data=tmp_path).message


def test_reading_speed_of_real_files_and_of_an_empty_folder(tmp_path):
    rate, what = measure_reading(tmp_path, 16 << 20, 2.0)
    assert rate and rate > 0 and "written there" in what
    assert list(tmp_path.iterdir()) == [], "what was written is gone"
    (tmp_path / "a").mkdir()
    for n in range(3):
        (tmp_path / "a" / f"{n}.rec").write_bytes(bytes(5 << 20))
    rate, what = measure_reading(tmp_path, 12 << 20, 30.0)
    assert rate and what == "12 MiB of 3 files"
    assert measure_reading(tmp_path / "a" / "0.rec", 12 << 20, 30.0)[0]
    rate, what = measure_reading(tmp_path / "gone", 1, 1.0)
    assert rate is None and "No such file" in what


def test_needs_of_the_fakes_are_real_names():
    assert set(CPU_NEEDS) < set(CUDA_NEEDS)
