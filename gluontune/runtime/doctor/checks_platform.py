"""The operating system, the processor and Python, against what the MXNet wheels were built for."""

from __future__ import annotations

from gluontune.runtime.amx import AMX_ENV, hidden_amx
from gluontune.runtime.doctor._base import Options, Verdict, check
from gluontune.runtime.facts import CONTAINER
from gluontune.runtime.system import System

__all__: list[str] = []


@check("operating-system", "operating system against the MXNet wheels")
def operating_system(system: System, options: Options) -> Verdict:
    name = system.os_name
    if name == "Linux":
        return Verdict("ok", "Linux: MXNet 1.9.1 has wheels for it", name)
    if name == "Darwin":
        return Verdict(
            "warning",
            "macOS: MXNet 1.9.1 has a CPU wheel for Intel processors only, and gluontune is not tested there",
            f"{name} {system.architecture}",
            "run in Linux: a container, a virtual machine or a server",
        )
    return Verdict(
        "error", f"{name}: MXNet 1.9.1 has no wheel for it", name, "run in Linux: on Windows, 'wsl --install' gives one"
    )


@check("architecture", "processor architecture against the MXNet wheels")
def architecture(system: System, options: Options) -> Verdict:
    machine = system.architecture
    if machine in ("x86_64", "AMD64"):
        return Verdict("ok", "x86-64: all MXNet wheels fit", machine)
    if machine in ("aarch64", "arm64") and system.os_name == "Linux":
        return Verdict(
            "warning",
            "64-bit Arm: there is a CPU wheel of MXNet 1.9.1, but none for CUDA",
            machine,
            "pip install 'gluontune[cpu]'; for training with a GPU use an x86-64 machine",
        )
    return Verdict(
        "error",
        f"MXNet 1.9.1 has no wheel for the architecture {machine}",
        f"{system.os_name} {machine}",
        "use an x86-64 machine, or build MXNet from source",
    )


@check("libc", "C library against the MXNet wheels")
def libc(system: System, options: Options) -> Verdict:
    name, version = system.libc
    if system.os_name != "Linux":
        return Verdict("ok", "this question is about Linux only", system.os_name)
    if name != "glibc":
        return Verdict(
            "error",
            "no glibc here (Alpine's musl?): the MXNet wheels are manylinux2014 and need glibc 2.17",
            name or "not glibc",
            "use an image with glibc: python:3.11-slim instead of python:3.11-alpine",
        )
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < (2, 17):
        fix = f"use a newer system or a container such as {CONTAINER}"
        return Verdict("error", "glibc is too old: the MXNet wheels need 2.17", f"glibc {version}", fix)
    return Verdict("ok", "glibc is new enough", f"glibc {version}")


@check("python", "Python against MXNet and numpy 1")
def python(system: System, options: Options) -> Verdict:
    version = ".".join(map(str, system.python))
    if system.python >= (3, 13):
        return Verdict(
            "error",
            f"Python {version}: numpy 1, which MXNet 1.9.1 needs, ends at Python 3.12",
            version,
            "set up an environment with Python 3.11: python3.11 -m venv .venv, or conda create -n gt python=3.11",
        )
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
        return Verdict(
            "info",
            "bfloat16 without AMX: on Intel's processors it is no faster than float32",
            evidence,
            "where a virtual machine hides AMX, let it show the host's processor (cpu host); the ladder measures it",
        )
    if "avx512_bf16" in flags or "amx_bf16" in flags:
        return Verdict("ok", "bfloat16 in hardware: mixed precision can pay on this CPU", evidence)
    return Verdict(
        "info",
        "no bfloat16 in hardware: mixed precision on this CPU will probably not help",
        evidence,
        "nothing to mend; the ladder measures it",
    )


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
