"""The machine behind one interface, for the doctor and the launch settings; tests pass a fake. Answers are cached, and
nothing imports mxnet.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gluontune.codec import native
from gluontune.core.interpreter import python
from gluontune.runtime import cpu, disk, elf, importing, nvml, packages


class System(cpu.Cpu):
    """The machine and this Python.

    Args:
        root: the folder that holds ``proc``, ``sys``, ``etc`` and ``dev``.
        environ: environment variables; default: of this process.
    """

    def __init__(self, root: cpu.Pathlike = "/", environ: Mapping[str, str] | None = None):
        super().__init__(root)
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        self.python: tuple[int, int, int] = sys.version_info[:3]
        self.prefix = Path(sys.prefix)
        self.os_name, self.architecture = platform.system(), platform.machine()

    # -- packages

    @functools.cached_property
    def site_folders(self) -> list[Path]:
        """The folders of packages."""
        folders = [Path(p) for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
        return [folder for folder in folders if folder.is_dir()]

    @functools.cached_property
    def packages(self) -> dict[str, str]:
        """Installed distributions, name to version."""
        return packages.installed_packages()

    @functools.cached_property
    def mxnet_wheels(self) -> dict[str, str]:
        """The installed distributions with an ``mxnet`` package."""
        return packages.mxnet_wheels(self.packages)

    def module_exists(self, name: str) -> bool:
        """Whether ``import name`` would succeed; nothing is imported."""
        return packages.module_exists(name)

    # -- shared libraries

    @functools.cached_property
    def libc(self) -> tuple[str, str]:
        """``("glibc", "2.36")``; ``("", "")`` on musl."""
        return platform.libc_ver()

    @functools.cached_property
    def mxnet_library(self) -> Path | None:
        return importing.mxnet_library()

    @functools.cached_property
    def mxnet_needs(self) -> tuple[str, ...]:
        """The libraries that ``libmxnet.so`` needs from outside its wheel."""
        return elf.external_needs(self.mxnet_library) if self.mxnet_library else ()

    @functools.cached_property
    def gpu_code(self) -> elf.GpuCode | None:
        """The GPU code in ``libmxnet.so``; or None."""
        return elf.gpu_code(self.mxnet_library) if self.mxnet_library else None

    @functools.cached_property
    def horovod_library(self) -> Path | None:
        """Horovod's extension for MXNet, which is compiled against one mxnet; or None."""
        folders = [folder / "horovod" / "mxnet" for folder in self.site_folders]
        return next((p for folder in folders for p in sorted(folder.glob("mpi_lib*.so"))), None)

    @functools.cached_property
    def horovod_engines(self) -> list[str]:
        """Horovod's engines among Gloo, MPI and NCCL."""
        names = {"13GlooAllreduceE": "Gloo", "12MPIAllreduceE": "MPI", "13NCCLAllreduceE": "NCCL"}
        return [names[found] for found in elf.holds(self.horovod_library, names)] if self.horovod_library else []

    @functools.cached_property
    def horovod_lacks(self) -> list[str]:
        """Symbols of mxnet that Horovod needs and this mxnet lacks: Horovod was built for another one."""
        if self.horovod_library is None or self.mxnet_library is None:
            return []
        return elf.missing_symbols(self.horovod_library, self.mxnet_library, "mxnet")

    def unloadable(self, needs: tuple[str, ...]) -> dict[str, str]:
        """The ``needs`` that a child process cannot load, with the loader's messages."""
        if not needs:
            return {}
        command = python("-c", _LOAD, json.dumps(list(needs)), json.dumps(sys.path))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(self.environ), check=False)
        if done.returncode != 0:  # a library that crashes the process on loading
            words = (done.stderr.strip().splitlines() or [f"the loader ended with {done.returncode}"])[-1]
            if len(needs) == 1:
                return {needs[0]: words}
            return {lacking: why for name in needs for lacking, why in self.unloadable((name,)).items()}
        return json.loads(done.stdout.strip().splitlines()[-1])

    @functools.cached_property
    def jpeg_decoder(self) -> tuple[str, str]:
        """The JPEG decoder and its origin; the reason why it is not the compiled codec, or ""."""
        return ", ".join(filter(None, (native.decoder_name(), native.origin()))), native.why_not()

    # -- GPUs

    @functools.cached_property
    def gpu_report(self) -> nvml.GpuReport:
        return nvml.query()

    @property
    def visible_gpus(self) -> tuple[nvml.Gpu, ...]:
        """The GPUs visible by ``CUDA_VISIBLE_DEVICES``."""
        return nvml.visible(self.gpu_report.gpus, self.environ)

    # -- limits and disks

    def open_files(self) -> tuple[int, int] | None:
        """(soft, hard) limit of open files; -1 is unlimited; None without such a limit."""
        try:
            import resource
        except ImportError:
            return None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = resource.RLIM_INFINITY
        return (-1 if soft == unlimited else soft, -1 if hard == unlimited else hard)

    def disk(self, path: cpu.Pathlike) -> disk.DiskSpace | None:
        """Space of the file system that holds ``path``; or None."""
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            return None
        return disk.DiskSpace(usage.total >> 20, usage.free >> 20)

    def read_mib_per_sec(self, place: Path, limit: int, seconds: float) -> tuple[float | None, str]:
        """The reading speed of files below ``place``, MiB/s, and a description of them."""
        return disk.measure_reading(place, limit, seconds)

    def grants_amx(self) -> bool:
        """Whether the kernel grants AMX to this process, on request."""
        return cpu.ask_kernel()

    def amx_support(self) -> cpu.AmxSupport:
        """The answer whether AMX may be used."""
        return cpu.amx_support(set(self.flags()), ask=self.grants_amx)

    def load_average(self) -> float | None:
        """The load average of the last minute."""
        try:
            return float((self.read("/proc/loadavg") or "").split()[0])
        except (IndexError, ValueError):
            return None

    def loaded_libraries(self) -> list[str]:
        """Files of the shared libraries of this process."""
        lines = (self.read("/proc/self/maps") or "").splitlines()
        return sorted({line.split(maxsplit=5)[5] for line in lines if ".so" in line and "/" in line})

    def find_library(self, *names: str) -> str | None:
        """The first of the shared libraries ``names`` that the loader can load, or None."""
        return next((name for name in names if not self.unloadable((name,))), None)


_LOAD = """
import ctypes, json, sys
sys.path += [place for place in json.loads(sys.argv[2]) if place and place not in sys.path]
from gluontune.runtime import cuda, elf
names = json.loads(sys.argv[1])
elf.preload(names)
missing = set(cuda.preload(names))
report = {}
for name in names:
    if cuda.is_cuda(name) and name not in missing:
        continue
    try:
        ctypes.CDLL(name)
    except OSError as error:
        report[name] = str(error)
print(json.dumps(report))
"""
