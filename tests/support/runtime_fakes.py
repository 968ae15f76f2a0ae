"""A made-up machine for the tests of runtime/: sound in every respect until a test changes something."""

from __future__ import annotations

from pathlib import Path

from gluontune.runtime.disk import DiskSpace
from gluontune.runtime.elf import GpuCode
from gluontune.runtime.nvml import Gpu, GpuReport
from gluontune.runtime.system import System

CPUINFO = "processor : 0\nmodel name : Made-up CPU  9000\nflags : fpu sse4_2 avx avx2 fma avx512f avx512_bf16 ht\n"
CPU_NEEDS = ("libgomp.so.1", "libstdc++.so.6", "libm.so.6")
CUDA_NEEDS = ("libcudnn.so.8", "libcuda.so.1", "libcudart.so.11.0", *CPU_NEEDS)
V100 = Gpu(0, "Tesla V100", 16384, (7, 0), "GPU-aa", True)
H200 = Gpu(0, "NVIDIA H200", 143771, (9, 0), "GPU-bb", True)
WHEEL_CODE = GpuCode(sm=(50, 60, 70, 80, 86), ptx=())
TUNED = {
    "OMP_NUM_THREADS": "4",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": "268435456",
}


def write_files(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def topology(cpus: int, threads: int = 1, packages: int = 1) -> dict[str, str]:
    """Files of ``/sys`` for a machine whose hyper-threads are numbered as Linux does: 0, 1, …, 0', 1', …"""
    cores = cpus // threads
    files = {"/sys/devices/system/cpu/online": f"0-{cpus - 1}\n"}
    for cpu in range(cpus):
        here = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        mates = [cpu % cores + cores * t for t in range(threads)]
        files[f"{here}/thread_siblings_list"] = ",".join(map(str, mates)) + "\n"
        files[f"{here}/physical_package_id"] = f"{(cpu % cores) * packages // cores}\n"
    return files


def make_system(root: Path, **changes) -> System:
    """A sound Linux machine with four cores and no GPU.

    Args:
        root: an empty folder that stands for ``/``.
        changes: attributes and methods to replace; ``files`` adds files below ``root`` (None removes one),
            ``environ`` and ``packages`` are added to the sound ones (None removes an entry).
    """
    files = {
        "/proc/cpuinfo": CPUINFO,
        "/proc/meminfo": "MemTotal:       16777216 kB\n",
        "/proc/loadavg": "0.10 0.10 0.10 1/100 999\n",
        "/proc/mounts": "/dev/sda1 / ext4 rw 0 0\n",
        "/proc/self/cgroup": "0::/\n",
        "/proc/self/maps": "7f00-7f01 r-xp 00000000 08:01 1   /usr/lib/libgomp.so.1.0.0\n",
        "/etc/os-release": 'PRETTY_NAME="Made-up Linux 1"\n',
        "/lib/mxnet/libmxnet.so": "x" * 2048,
        **topology(4),
        **changes.pop("files", {}),
    }
    write_files(root, {path: text for path, text in files.items() if text is not None})
    environ = {"PATH": "/bin", **TUNED, **changes.pop("environ", {})}
    packages = {
        "mxnet": "1.9.1", "numpy": "1.23.5", "gluoncv": "0.10.5.post0", "onnx": "1.17.0", "onnxruntime": "1.19.2",
        "protobuf": "5.29.6", "opencv-python-headless": "4.11.0.86", "horovod": "0.28.1", "jupyterlab": "4.6.6",
        "papermill": "2.7.0", "ipykernel": "7.4.0", "matplotlib": "3.10.9", **changes.pop("packages", {}),
    }  # fmt: skip
    site = root / "site-packages"
    write_files(site, {"horovod/mxnet/mpi_lib.cpython-311-x86_64-linux-gnu.so": "x"})
    system = System(root, {name: value for name, value in environ.items() if value is not None})
    sound = {
        "affinity": lambda: [0, 1, 2, 3],
        "python": (3, 11, 7),
        "prefix": root / "venv",
        "site_folders": [site],
        "packages": {name: version for name, version in packages.items() if version is not None},
        "module_exists": lambda name: name not in ("distutils",),
        "os_name": "Linux",
        "architecture": "x86_64",
        "libc": ("glibc", "2.36"),
        "mxnet_library": root / "lib/mxnet/libmxnet.so",
        "mxnet_needs": CPU_NEEDS,
        "gpu_code": GpuCode((), ()),
        "unloadable": lambda needs: {},
        "gpu_report": GpuReport("no-driver", reason="NVML Shared Library Not Found"),
        "open_files": lambda: (65536, 65536),
        "disk": lambda path: DiskSpace(100_000, 50_000),
        "read_mib_per_sec": lambda place, limit, seconds: (500.0, "128 MiB of 3 files"),
        "find_library": lambda *names: None,
        "grants_amx": lambda: True,
        "horovod_engines": ["Gloo"],
        "horovod_lacks": [],
        "jpeg_decoder": ("libjpeg-turbo, by regions", ""),
    }
    unknown = [name for name in changes if name not in sound]
    assert not unknown, f"the fake machine has no {unknown}"
    for name, value in {**sound, **changes}.items():
        setattr(system, name, value)
    return system


def with_gpu(gpu: Gpu = V100, driver: str = "550.54.15", **more):
    """The changes that make the sound machine one with a GPU and the CUDA build of mxnet."""
    return {
        "gpu_report": GpuReport("ok", (gpu,), driver),
        "packages": {"mxnet": None, "mxnet-cu112": "1.9.1"},
        "mxnet_needs": CUDA_NEEDS,
        "gpu_code": WHEEL_CODE,
        **more,
    }
