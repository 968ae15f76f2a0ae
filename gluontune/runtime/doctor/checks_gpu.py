"""Processors: the driver and GPUs, against the code in the MXNet wheel; cores, threads, the allocator."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gluontune.runtime import cuda
from gluontune.runtime.cpu import show_cpu_list
from gluontune.runtime.doctor._base import Options, Verdict, check
from gluontune.runtime.facts import CONTAINER, describe_code, unfit_gpus
from gluontune.runtime.launch import launch_settings
from gluontune.runtime.system import System

_FOR_A_GPU = "to compute on a GPU install the driver, or start the container with --gpus all"


def _built_for_cuda(system: System) -> bool:
    try:
        return any(cuda.is_cuda(name) for name in system.mxnet_needs)
    except ValueError:
        return False


@check("gpu-driver", "NVIDIA driver")
def gpu_driver(system: System, options: Options) -> Verdict:
    report = system.gpu_report
    if report.status == "ok":
        return Verdict("ok", "the NVIDIA driver answers", f"driver {report.driver or 'version N/A'}")
    if report.status == "no-driver":
        if _built_for_cuda(system):
            if cuda.stand_in_possible(system.root):
                return Verdict("warning", "no driver: the GPU build computes on the CPU", report.reason, _FOR_A_GPU)
            message = "mxnet is built for CUDA, but the NVIDIA driver's library is missing: it cannot be imported"
            wheel = next(iter(system.mxnet_wheels), "mxnet-cu112")
            fix = f"{_FOR_A_GPU}; without a GPU: pip uninstall -y {wheel} && pip install 'mxnet==1.9.1'"
            return Verdict("error", message, report.reason, fix)
        return Verdict("info", "no NVIDIA driver: training uses the CPU", report.reason)
    return Verdict("info", "the driver cannot be asked; see the finding 'nvml'", report.reason)


@check("driver-version", "driver against CUDA 11")
def driver_version(system: System, options: Options) -> Verdict:
    driver = system.gpu_report.driver
    if driver is None or not _built_for_cuda(system):
        return Verdict("ok", "no CUDA build of mxnet with a driver: nothing to compare", driver or "N/A")
    major = int(driver.partition(".")[0]) if driver.partition(".")[0].isdigit() else None
    if major is None:
        return Verdict("info", "the driver's version is not a number", driver)
    if major < 450:
        fix = "install an NVIDIA driver of version 450.80.02 or later"
        return Verdict("error", "the driver is too old for CUDA 11", f"driver {driver}", fix)
    return Verdict("ok", "the driver runs CUDA 11", f"driver {driver}")


@check("nvml", "NVML, through which GPUs are watched")
def nvml(system: System, options: Options) -> Verdict:
    report = system.gpu_report
    if report.status == "no-binding":
        fix = "pip install nvidia-ml-py"
        return Verdict("warning", "nvidia-ml-py is missing: GPU figures are N/A", report.reason, fix)
    if report.status == "no-driver":
        return Verdict("ok", "no NVIDIA driver here: GPU figures are N/A", report.reason)
    if report.status == "denied":
        fix = "let the administrator or the container's runtime permit it (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
        return Verdict("warning", "NVML is denied to you: GPU figures are N/A, not 0", report.reason, fix)
    if report.status != "ok":
        fix = "nvidia-smi shows the same fault; after an update of the driver restart the machine"
        return Verdict("warning", "NVML does not work: GPU figures are N/A, not 0", report.reason, fix)
    silent = [gpu for gpu in report.gpus if not gpu.utilization_readable]
    if silent:
        labels = ", ".join(gpu.label for gpu in silent)
        message = "NVML does not tell these GPUs' utilization (MIG or a virtual GPU): it is N/A, not 0"
        return Verdict("warning", message, labels, "watch throughput instead, or switch MIG off")
    return Verdict("ok", "NVML answers", f"{len(report.gpus)} GPUs")


@check("gpu-code", "the GPUs' compute capability against the code in libmxnet.so")
def gpu_code(system: System, options: Options) -> Verdict:
    if not system.visible_gpus or not _built_for_cuda(system):
        return Verdict("ok", "no GPU and CUDA build of mxnet together: nothing to compare", "N/A")
    code = system.gpu_code
    if code is None or not (code.sm or code.ptx):
        return Verdict("info", "libmxnet.so does not show its GPU code", describe_code(code))
    unfit = unfit_gpus(system)
    if not unfit:
        unknown = [gpu.label for gpu in system.visible_gpus if gpu.compute_capability is None]
        if unknown:
            return Verdict("info", "the compute capability of some GPUs is N/A", ", ".join(unknown))
        return Verdict("ok", "mxnet holds code for these GPUs", describe_code(code))
    new = all((gpu.compute_capability or (0, 0)) >= (9, 0) for gpu in unfit)
    others = [str(gpu.index) for gpu in system.visible_gpus if gpu not in unfit]
    way_out = f"use NVIDIA's container {CONTAINER} (it runs on Hopper)" if new else "use a GPU from Maxwell to Ada"
    if others:
        way_out = f"CUDA_VISIBLE_DEVICES={','.join(others)} leaves the GPUs that fit; or {way_out}"
    message = f"mxnet cannot compute on {', '.join(gpu.label for gpu in unfit)}"
    return Verdict("error", message, describe_code(code), f"{way_out}; or train on the CPU with the wheel mxnet")


@check("gpu-unused", "a GPU that the installed mxnet cannot use")
def gpu_unused(system: System, options: Options) -> Verdict:
    gpus = system.gpu_report.gpus
    if not gpus:
        return Verdict("ok", "no GPU: nothing lies idle", "N/A")
    if system.mxnet_library is not None and not _built_for_cuda(system):
        fix = "pip uninstall -y mxnet && pip install 'gluontune[cu112]'"
        evidence = ", ".join(gpu.label for gpu in gpus)
        return Verdict("warning", "there is a GPU, but this mxnet is built for the CPU only", evidence, fix)
    return Verdict("ok", "mxnet is built for CUDA, or not installed", f"{len(gpus)} GPUs")


@check("visible-devices", "CUDA_VISIBLE_DEVICES")
def visible_devices(system: System, options: Options) -> Verdict:
    chosen, gpus = system.environ.get("CUDA_VISIBLE_DEVICES"), system.gpu_report.gpus
    if chosen is None or not gpus:
        return Verdict("ok", "no GPU is hidden", "CUDA_VISIBLE_DEVICES is not set" if chosen is None else "N/A")
    shown = system.visible_gpus
    evidence = f"CUDA_VISIBLE_DEVICES={chosen!r}: {len(shown)} of {len(gpus)} GPUs"
    asked = [part for part in chosen.split(",") if part.strip() not in ("", "-1")]
    if len(shown) < len(asked):
        fix = f"name GPUs from 0 to {len(gpus) - 1}: the list ends at the first wrong entry"
        return Verdict("error", "CUDA_VISIBLE_DEVICES names a GPU that does not exist", evidence, fix)
    if not shown:
        return Verdict("warning", "all GPUs are hidden", evidence, "unset CUDA_VISIBLE_DEVICES")
    return Verdict("info" if len(shown) < len(gpus) else "ok", "CUDA_VISIBLE_DEVICES chooses GPUs", evidence)


TUNED = "run with gluontune (runtime: tuned), or export what 'gluontune doctor --settings' shows"


@check("usable-cores", "cores that affinity and cgroup leave")
def usable_cores(system: System, options: Options) -> Verdict:
    logical, usable, quota = system.logical_cores(), system.usable_cores(), system.quota_cores()
    allowed = system.affinity()
    evidence = f"{logical} online, affinity {show_cpu_list(allowed)}, quota {quota or 'none'}"
    if quota is not None and quota < len(allowed):
        share = f"the cgroup allows {quota:g} of {len(allowed)} cores"
        fix = f"{TUNED}; or raise the container's limit (docker --cpus, Kubernetes limits.cpu)"
        return Verdict("warning", f"{share}: programs that count cores start too many threads", evidence, fix)
    if usable < logical:
        fix = "taskset or the batch system set it; gluontune counts with it"
        return Verdict("info", f"this process may use {usable} of {logical} cores", evidence, fix)
    return Verdict("ok", f"all {logical} cores may be used", evidence)


@check("omp-threads", "OMP_NUM_THREADS against the usable cores")
def omp_threads(system: System, options: Options) -> Verdict:
    usable, wanted = system.usable_cores(), system.compute_cores()
    text = system.environ.get("OMP_NUM_THREADS")
    evidence = f"OMP_NUM_THREADS={text if text is not None else 'not set'}, {usable} usable cores"
    fix = f"export OMP_NUM_THREADS={wanted}, or {TUNED}"
    if text is None:
        if wanted == 1:
            return Verdict("ok", "one core: nothing to divide", evidence)
        return Verdict("warning", "OMP_NUM_THREADS is not set: MXNet computes on half of the cores", evidence, fix)
    first = text.split(",")[0].strip()
    if not first.isdigit() or int(first) < 1:
        return Verdict("error", "OMP_NUM_THREADS is not a number above 0", evidence, fix)
    if int(first) > usable:
        message = "more threads than usable cores: they wait for each other, which can cost far more than half"
        return Verdict("warning", message, evidence, fix)
    if int(first) < wanted:
        message = "fewer threads than cores: right for several processes, slow for one"
        return Verdict("info", message, evidence, f"for one process: {fix}")
    return Verdict("ok", "one thread for each core", evidence)


@check("allocator", "the memory allocator")
def allocator(system: System, options: Options) -> Verdict:
    preloaded = system.environ.get("LD_PRELOAD", "")
    found = re.search(r"(tcmalloc|jemalloc|mimalloc)", preloaded)
    if found:
        return Verdict("ok", f"{found[1]} is preloaded", f"LD_PRELOAD={preloaded}")
    settings = launch_settings(allocator="auto", system=system).env
    names = [name for name in settings if name.startswith("MALLOC_")]
    if not names:
        return Verdict("info", "not glibc's allocator: gluontune has no settings for it", system.libc[0] or "musl")
    unset = [name for name in names if name not in system.environ]
    evidence = ", ".join(f"{name}={system.environ.get(name, 'not set')}" for name in names)
    if unset:
        fix = f"export {' '.join(f'{n}={settings[n]}' for n in unset)}, or {TUNED}"
        return Verdict("warning", "glibc gives each step's memory back and takes it again", evidence, fix)
    return Verdict("ok", "glibc keeps freed memory for the next step", evidence)


_OPENMP = re.compile(r"(libgomp|libiomp5|libomp)([-.][^/]*)?\.so[^/]*$")


@check("openmp-runtimes", "two OpenMP runtimes in one process")
def openmp_runtimes(system: System, options: Options) -> Verdict:
    loaded = [path for path in system.loaded_libraries() if _OPENMP.search(path)]
    if len({os.path.realpath(path) for path in loaded}) > 1:
        message = "two OpenMP runtimes are loaded in this process: each starts its own threads and they fight for the "
        fix = "import torch, scikit-learn or the like in another process than mxnet"
        return Verdict("warning", message + "cores", ", ".join(loaded), fix)
    preloaded = [p for p in re.split(r"[: ]", system.environ.get("LD_PRELOAD", "")) if _OPENMP.search(p)]
    if any("gomp" not in Path(path).name for path in preloaded):
        message = "LD_PRELOAD brings another OpenMP runtime beside libgomp, which libmxnet.so is built with"
        return Verdict("warning", message, ", ".join(preloaded), "take it out of LD_PRELOAD")
    bundled = sorted({path for folder in system.site_folders for path in _bundled_openmp(folder)})
    if bundled:
        message = "packages here bring an OpenMP runtime of their own: in one process with mxnet there would be two"
        fix = "import them in another process than mxnet (gluontune's own processes do so)"
        return Verdict("info", message, ", ".join(bundled), fix)
    return Verdict("ok", "one OpenMP runtime", ", ".join(Path(path).name for path in loaded) or "none loaded")


def _bundled_openmp(folder: Path) -> list[str]:
    patterns = ("*.libs/lib*omp*.so*", "*/lib/lib*omp*.so*", "*/.dylibs/lib*omp*", "*/lib*omp*.so*")
    return [str(p.relative_to(folder)) for each in patterns for p in folder.glob(each) if _OPENMP.search(str(p))]


_SLOW_VARIABLES = {
    ("MXNET_ENGINE_TYPE", "NaiveEngine"): "operators run one after the other; it is meant for debugging",
    ("MXNET_EXEC_BULK_EXEC_TRAIN", "0"): "hybridized nets are handed over one operator at a time",
    ("MXNET_CUDNN_AUTOTUNE_DEFAULT", "0"): "cuDNN takes its first guess for convolutions",
    ("MXNET_MKLDNN_ENABLED", "0"): "oneDNN's fast kernels are switched off",
    ("MXNET_SUBGRAPH_BACKEND", "NONE"): "operators are not fused",
    ("MXNET_ENFORCE_DETERMINISM", "1"): "only repeatable kernels are used, which are slower",
}


@check("mxnet-variables", "MXNET_ variables that slow training down")
def mxnet_variables(system: System, options: Options) -> Verdict:
    slow = [(n, v, why) for (n, v), why in _SLOW_VARIABLES.items() if system.environ.get(n) == v]
    if slow:
        evidence = "; ".join(f"{name}={value}: {why}" for name, value, why in slow)
        fix = f"unset {' '.join(name for name, _, _ in slow)}"
        return Verdict("warning", "variables of MXNet are set that slow training down", evidence, fix)
    others = [f"{name}={v}" for name, v in sorted(system.environ.items()) if name.startswith("MXNET_")]
    return Verdict("ok", "no variable of MXNet is known to slow training down", ", ".join(others) or "none set")


@check("dmlc-role", "DMLC_ variables left over from a distributed job")
def dmlc_role(system: System, options: Options) -> Verdict:
    role = system.environ.get("DMLC_ROLE")
    if role in ("server", "scheduler"):
        message = f"DMLC_ROLE={role}: 'import mxnet' turns this process into a {role} and never comes back"
        fix = "unset DMLC_ROLE (gluontune launch sets it for its own processes)"
        return Verdict("error", message, f"DMLC_ROLE={role}", fix)
    names = sorted(name for name in system.environ if name.startswith("DMLC_"))
    if names:
        evidence = ", ".join(f"{name}={system.environ[name]}" for name in names)
        return Verdict("info", "variables of a distributed MXNet job are set", evidence, "unset them if there is none")
    return Verdict("ok", "no variables of a distributed job", "none set")


@check("machine-busy", "other work on this machine")
def machine_busy(system: System, options: Options) -> Verdict:
    load, cores = system.load_average(), system.logical_cores()
    if load is None:
        return Verdict("info", "the load is not known here", "N/A")
    evidence = f"load average {load:.2f} on {cores} cores"
    if load > 0.5 * cores:
        message = "other programs use this machine: training is slower and measurements are uncertain"
        return Verdict("warning", message, evidence, "wait, or stop them ('top' shows which)")
    return Verdict("ok", "the machine is quiet", evidence)


@check("cpu-governor", "the processor's frequency governor")
def cpu_governor(system: System, options: Options) -> Verdict:
    folder = "/sys/devices/system/cpu"
    names = {(system.read(f"{folder}/cpu{cpu}/cpufreq/scaling_governor") or "").strip() for cpu in system.affinity()}
    names.discard("")
    evidence = ", ".join(sorted(names)) or "N/A"
    if "powersave" in names and "intel_pstate" not in (system.read(f"{folder}/cpu0/cpufreq/scaling_driver") or ""):
        fix = "sudo cpupower frequency-set -g performance"
        return Verdict("warning", "the processor is held at its lowest frequency", evidence, fix)
    return Verdict("ok", "the frequency is not held down", evidence)
