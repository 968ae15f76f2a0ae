"""The system, processor and Python, compared with those of the wheels; mxnet without an import."""

from __future__ import annotations

import csv
from pathlib import Path

from gluontune.runtime import cuda
from gluontune.runtime.cpu import AMX_ENV, hidden_amx
from gluontune.runtime.doctor._base import Options, Verdict, check
from gluontune.runtime.facts import CONTAINER
from gluontune.runtime.importing import CPU_WHEEL, REINSTALL_CPU, library_fix, wanted_numpy
from gluontune.runtime.system import System


@check("operating-system", "operating system against the MXNet wheels")
def operating_system(system: System, options: Options) -> Verdict:
    name = system.os_name
    if name == "Linux":
        return Verdict("ok", "Linux: MXNet 1.9.1 has wheels for it", name)
    if name == "Darwin":
        message = "macOS: MXNet 1.9.1 has a CPU wheel for Intel processors only, and gluontune is not tested there"
        fix = "run in Linux: a container, a virtual machine or a server"
        return Verdict("warning", message, f"{name} {system.architecture}", fix)
    fix = "run in Linux: on Windows, 'wsl --install' gives one"
    return Verdict("error", f"{name}: MXNet 1.9.1 has no wheel for it", name, fix)


@check("architecture", "processor architecture against the MXNet wheels")
def architecture(system: System, options: Options) -> Verdict:
    machine = system.architecture
    if machine in ("x86_64", "AMD64"):
        return Verdict("ok", "x86-64: all MXNet wheels fit", machine)
    if machine in ("aarch64", "arm64") and system.os_name == "Linux":
        fix = "pip install 'gluontune[cpu]'; for training with a GPU use an x86-64 machine"
        return Verdict("warning", "64-bit Arm: there is a CPU wheel of MXNet 1.9.1, but none for CUDA", machine, fix)
    message = f"MXNet 1.9.1 has no wheel for the architecture {machine}"
    return Verdict("error", message, f"{system.os_name} {machine}", "use an x86-64 machine, or build MXNet from source")


@check("libc", "C library against the MXNet wheels")
def libc(system: System, options: Options) -> Verdict:
    name, version = system.libc
    if system.os_name != "Linux":
        return Verdict("ok", "this question is about Linux only", system.os_name)
    if name != "glibc":
        message = "no glibc here (Alpine's musl?): the MXNet wheels are manylinux2014 and need glibc 2.17"
        fix = "use an image with glibc: python:3.11-slim instead of python:3.11-alpine"
        return Verdict("error", message, name or "not glibc", fix)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < (2, 17):
        fix = f"use a newer system or a container such as {CONTAINER}"
        return Verdict("error", "glibc is too old: the MXNet wheels need 2.17", f"glibc {version}", fix)
    return Verdict("ok", "glibc is new enough", f"glibc {version}")


@check("python", "Python against MXNet and numpy 1")
def python(system: System, options: Options) -> Verdict:
    version = ".".join(map(str, system.python))
    if system.python >= (3, 13):
        message = f"Python {version}: numpy 1, which MXNet 1.9.1 needs, ends at Python 3.12"
        fix = "set up an environment with Python 3.11: python3.11 -m venv .venv, or conda create -n gt python=3.11"
        return Verdict("error", message, version, fix)
    if system.python < (3, 9):
        wanted = f"Python {version} is too old: gluontune needs 3.9 or later, MXNet 3.9-3.12"
        return Verdict("error", wanted, version, "use 3.11")
    return Verdict("ok", f"Python {version} fits", version)


@check("cpu-features", "the processor's instructions that oneDNN is fast with")
def cpu_features(system: System, options: Options) -> Verdict:
    flags = system.flags()
    evidence = f"{system.model() or 'processor N/A'}: {' '.join(flags) or 'no flags known'}"
    if system.architecture not in ("x86_64", "AMD64"):
        return Verdict("info", "MXNet's wheel has its fast kernels (oneDNN) for x86-64 only", evidence)
    if not flags:
        return Verdict("info", "the processor's features are not shown here", evidence)
    if "avx2" not in flags:
        fix = "use a processor from 2015 or later, or let the virtual machine show the host's (cpu host)"
        return Verdict("warning", "no AVX2: convolutions will be several times slower", evidence, fix)
    if hidden_amx(flags, system.model() or ""):
        message = "bfloat16 without AMX: on Intel's processors it is no faster than float32"
        fix = "where a virtual machine hides AMX, let it show the host's processor (cpu host); the ladder measures it"
        return Verdict("info", message, evidence, fix)
    if "avx512_bf16" in flags or "amx_bf16" in flags:
        return Verdict("ok", "bfloat16 in hardware: mixed precision can pay on this CPU", evidence)
    message = "no bfloat16 in hardware: mixed precision on this CPU will probably not help"
    return Verdict("info", message, evidence, "nothing to mend; the ladder measures it")


@check("amx", "Intel's matrix unit, which bfloat16 convolutions can use")
def amx(system: System, options: Options) -> Verdict:
    found = system.amx_support()
    if found.level == "absent":
        return Verdict("ok", "no AMX here, and none is needed", found.message)
    if found.level == "refused":
        fix = "nothing to mend for training, which goes on without it; AMX needs Linux 5.16 and no sandbox"
        return Verdict("info", "AMX is there and the kernel refuses it: oneDNN computes without", found.message, fix)
    name, value = next(iter(AMX_ENV.items()))
    fix = f"nothing to mend; the ladder measures bfloat16 with {name}={value} and keeps it where it is faster"
    return Verdict("info", "AMX is there and MXNet leaves it off unless asked", found.message, fix)


@check("mxnet", "mxnet is installed")
def mxnet(system: System, options: Options) -> Verdict:
    wheels = ", ".join(f"{name} {version}" for name, version in system.mxnet_wheels.items())
    if not system.module_exists("mxnet"):
        return Verdict("error", "mxnet is not installed", "no package mxnet in this Python", CPU_WHEEL)
    if not wheels:
        return Verdict("info", "an mxnet that pip did not install (a container's?) is used", "no metadata")
    if not all(version.startswith("1.9.") for version in system.mxnet_wheels.values()):
        fix = "pip install 'mxnet==1.9.1' (or 'mxnet-cu112==1.9.1')"
        return Verdict("warning", "gluontune is made and tested for MXNet 1.9.1", wheels, fix)
    return Verdict("ok", "mxnet is installed", wheels)


@check("mxnet-twice", "mxnet and mxnet-cu112 not both installed")
def mxnet_twice(system: System, options: Options) -> Verdict:
    wheels = list(system.mxnet_wheels)
    if len(wheels) < 2:
        return Verdict("ok", "one MXNet wheel at most", ", ".join(wheels) or "none")
    keep = wheels[0] if system.visible_gpus else wheels[-1]
    message = "several MXNet wheels are installed: they write the same files, the later one has overwritten the other"
    fix = f"pip uninstall -y {' '.join(wheels)} && pip install '{keep}==1.9.1'"
    return Verdict("error", message, ", ".join(wheels), fix)


@check("mxnet-files", "libmxnet.so is there and whole")
def mxnet_files(system: System, options: Options) -> Verdict:
    library = system.mxnet_library
    if library is None:
        if not system.module_exists("mxnet"):
            return Verdict("info", "mxnet is not installed", "no libmxnet.so")
        return Verdict("error", "the mxnet package holds no libmxnet.so", "not found", REINSTALL_CPU)
    size = library.stat().st_size
    recorded = _recorded_size(library)
    if recorded is not None and recorded != size:
        message = "libmxnet.so is not the one that its wheel brought (overwritten by another wheel, or cut off)"
        fix = f"pip install --force-reinstall --no-deps '{next(iter(system.mxnet_wheels), 'mxnet')}==1.9.1'"
        return Verdict("error", message, f"{size} bytes, its wheel says {recorded}", fix)
    return Verdict("ok", "libmxnet.so is there and whole", f"{size >> 20} MiB")


def _recorded_size(library: Path) -> int | None:
    """The size of ``mxnet/libmxnet.so`` in the RECORD of the wheel; or None unless exactly one has it."""
    sizes = []
    for record in library.parent.parent.glob("mxnet*.dist-info/RECORD"):
        with open(record, newline="", encoding="utf-8") as stream:
            sizes += [int(row[2]) for row in csv.reader(stream) if row[:1] == ["mxnet/libmxnet.so"] and row[2]]
    return sizes[0] if len(sizes) == 1 else None


@check("shared-libraries", "every shared library that libmxnet.so needs")
def shared_libraries(system: System, options: Options) -> Verdict:
    if system.mxnet_library is None:
        return Verdict("info", "mxnet is not installed", "no libmxnet.so")
    try:
        needs = system.mxnet_needs
    except ValueError as error:
        return Verdict("error", "libmxnet.so is not a library for this platform", str(error), REINSTALL_CPU)
    missing = system.unloadable(needs)
    if cuda.stand_in_possible(system.root):
        missing.pop(cuda.DRIVER_LIBRARY, None)  # the finding 'gpu-driver' has it
    if not missing:
        message = f"all {len(needs)} shared libraries that libmxnet.so needs are there"
        return Verdict("ok", message, "each was loaded in a process of its own")
    wheels = sorted({f"'{library.wheel}'" for n in missing if (library := cuda.family(n))})
    fixes = [f"pip install {' '.join(wheels)}"] if wheels else []
    fixes += dict.fromkeys(library_fix(name) for name in missing if cuda.family(name) is None)
    message = f"mxnet cannot be imported: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    return Verdict("error", message, "; ".join(missing.values()), "; ".join(fixes))


@check("mxnet-path", "environment variables that lead to another libmxnet.so")
def mxnet_path(system: System, options: Options) -> Verdict:
    chosen = system.environ.get("MXNET_LIBRARY_PATH")
    if chosen:
        message = "MXNET_LIBRARY_PATH makes mxnet load another library than its own"
        return Verdict("warning", message, f"MXNET_LIBRARY_PATH={chosen}", "unset MXNET_LIBRARY_PATH")
    for folder in filter(None, system.environ.get("LD_LIBRARY_PATH", "").split(":")):
        if (Path(folder) / "libmxnet.so").is_file():
            evidence = f"LD_LIBRARY_PATH holds {folder}"
            fix = "take that folder out of LD_LIBRARY_PATH"
            return Verdict("warning", "LD_LIBRARY_PATH makes mxnet load another libmxnet.so", evidence, fix)
    return Verdict("ok", "mxnet loads its own library", "no override")


@check("numpy", "numpy against MXNet")
def numpy(system: System, options: Options) -> Verdict:
    version = system.packages.get("numpy")
    if version is None:
        return Verdict("error", "numpy is not installed", "", f"pip install '{wanted_numpy()}'")
    major, minor = (int(part) for part in version.split(".")[:2])
    if major >= 2:
        message = "MXNet 1.9.1 cannot be imported with numpy 2 (a plain 'pip install onnx' pulls it in)"
        return Verdict("error", message, f"numpy {version}", f"pip install '{wanted_numpy()}'")
    if (major, minor) >= (1, 24):
        older = system.python < (3, 12)  # has an older numpy, too
        message = "a plain 'import mxnet' fails with this numpy; gluontune puts the removed aliases back"
        fix = "call gluontune.runtime.mxnet() first" + (", or: pip install 'numpy==1.23.5'" if older else "")
        return Verdict("info" if older else "ok", message, f"numpy {version}", fix)
    return Verdict("ok", "numpy fits MXNet", f"numpy {version}")


@check("distutils", "distutils, which mxnet imports")
def distutils(system: System, options: Options) -> Verdict:
    if system.python < (3, 12):
        return Verdict("ok", "this Python still has distutils", ".".join(map(str, system.python)))
    if system.module_exists("distutils") or system.module_exists("setuptools"):
        version = system.packages.get("setuptools", "")
        return Verdict("ok", "setuptools stands in for the distutils that Python 3.12 dropped", version)
    message = "mxnet imports distutils, which Python 3.12 dropped, and setuptools is not installed"
    return Verdict("error", message, "no module distutils", "pip install 'setuptools<81'")


@check("mxnet-requirements", "the Python packages that mxnet imports")
def mxnet_requirements(system: System, options: Options) -> Verdict:
    missing = [name for name in ("requests", "graphviz") if not system.module_exists(name)]
    if missing:
        wanted = " ".join({"graphviz": "'graphviz<0.9'"}.get(name, name) for name in missing)
        return Verdict("error", f"mxnet needs {', '.join(missing)}", "not installed", f"pip install {wanted}")
    return Verdict("ok", "requests and graphviz are there", "")
