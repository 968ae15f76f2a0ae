"""The NVIDIA driver and GPUs, asked through NVML, against the code in the MXNet wheel."""

from __future__ import annotations

from gluontune.runtime import cuda
from gluontune.runtime.doctor._base import Options, Verdict, check
from gluontune.runtime.facts import CONTAINER, describe_code, unfit_gpus
from gluontune.runtime.system import System

__all__: list[str] = []


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
            return Verdict(
                "error",
                "mxnet is built for CUDA, but there is no NVIDIA driver: it cannot be imported",
                report.reason,
                "install the driver; in a container start it with --gpus all; without a GPU: "
                f"pip uninstall -y {next(iter(system.mxnet_wheels), 'mxnet-cu112')} && pip install 'mxnet==1.9.1'",
            )
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
    labels = ", ".join(gpu.label for gpu in unfit)
    message = f"mxnet cannot compute on {labels}"
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
