"""The packages around mxnet: gluoncv, OpenCV, ONNX and its friends, Horovod."""

from __future__ import annotations

from gluontune.runtime.doctor._base import Options, Verdict, check
from gluontune.runtime.elf import external_needs
from gluontune.runtime.importing import library_fix
from gluontune.runtime.packages import to_make
from gluontune.runtime.system import System


def _numbers(version: str) -> tuple[int, ...]:
    """``(1, 17)`` of ``1.17.0rc1``."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


@check("gluoncv", "gluoncv")
def gluoncv(system: System, options: Options) -> Verdict:
    version = system.packages.get("gluoncv")
    if version is None:
        message = "gluoncv is not installed: the nets of its model zoo (cifar_resnet20_v1, …) are missing"
        return Verdict("warning", message, "not installed", "pip install 'gluoncv==0.10.5.post0'")
    if _numbers(version) < (0, 10):
        fix = "pip install 'gluoncv==0.10.5.post0'"
        return Verdict("warning", "an old gluoncv, with which gluontune is not tested", version, fix)
    missing = [name for name in ("yacs", "autocfg", "portalocker", "pandas") if not system.module_exists(name)]
    if missing:
        message = "gluoncv cannot be imported: packages that it imports are missing"
        return Verdict("error", message, ", ".join(missing), f"pip install {' '.join(missing)}")
    note = "its pretrained weights' storage no longer answers: train from scratch"
    if _numbers(system.packages.get("torch", "0")) >= (2, 0):
        message = f"a plain 'import gluoncv' fails beside PyTorch 2 ({note})"
        fix = "call gluontune.runtime.mxnet() before it: import gluontune; gluontune.runtime.mxnet()"
        return Verdict("info", message, f"gluoncv {version}, torch {system.packages['torch']}", fix)
    return Verdict("ok", f"gluoncv is there ({note})", f"gluoncv {version}")


@check("opencv", "OpenCV: one build, and what it needs")
def opencv(system: System, options: Options) -> Verdict:
    builds = {n: v for n, v in system.packages.items() if n.startswith("opencv-") and "python" in n}
    evidence = ", ".join(f"{name} {version}" for name, version in builds.items()) or "none"
    if not builds and not system.module_exists("cv2"):
        fix = "pip install opencv-python-headless"
        return Verdict("error", "OpenCV is not installed: images cannot be decoded", evidence, fix)
    missing = _missing_for_opencv(system)
    if missing:
        fix = "pip install --force-reinstall --no-deps opencv-python-headless"
        fix += "".join(f"; or {library_fix(n)}" for n in missing if n.startswith("libgomp"))
        return Verdict("error", f"cv2 cannot be imported: {', '.join(missing)} missing", evidence, fix)
    if len(set(builds.values())) > 1:
        message = "several OpenCV builds of different versions overwrite each other's files"
        fix = f"pip uninstall -y {' '.join(builds)} && pip install opencv-python-headless"
        return Verdict("warning", message, evidence, fix)
    return Verdict("ok", "OpenCV is there", evidence)


def _missing_for_opencv(system: System) -> list[str]:
    """Libraries missing for the ``cv2`` extension, mostly libGL.so.1."""
    for folder in system.site_folders:
        for extension in sorted((folder / "cv2").glob("cv2*.so")):
            return sorted(system.unloadable(external_needs(extension, folder.glob("opencv_*.libs"))))
    return []


@check("jpeg-decoder", "what decodes JPEG files")
def jpeg_decoder(system: System, options: Options) -> Verdict:
    name, reason = system.jpeg_decoder
    if not reason:
        return Verdict("ok", "JPEG files are decoded by regions, in compiled code", name)
    fixes = {
        "no C compiler": "pip install 'ziglang<0.14' (a C compiler, 81 MB), or apt-get install gcc libc6-dev, or a "
        "wheel of gluontune for this system: pip install --force-reinstall --no-deps --only-binary :all: gluontune",
        "no libjpeg-turbo": "pip install pillow (its wheel carries libjpeg-turbo)",
        "switched off": "unset GLUONTUNE_NATIVE",
    }
    fix = fixes.get(reason, "check that `cc` works and that the cache folder ($XDG_CACHE_HOME) is yours alone")
    message = "JPEG files are decoded by OpenCV, whole, at about two thirds of the speed; packing is slower too"
    return Verdict("warning", message, f"{name}; {reason}", fix)


@check("onnx", "onnx against MXNet's exporter")
def onnx(system: System, options: Options) -> Verdict:
    version = system.packages.get("onnx")
    if version is None:
        fix = "pip install 'gluontune[export]'"
        return Verdict("info", "onnx is not installed: 'gluontune export' will not work", "not installed", fix)
    if _numbers(version) >= (1, 18):
        message = "onnx 1.18 dropped onnx.mapping, which MXNet's exporter imports: exporting will fail"
        return Verdict("error", message, f"onnx {version}", "pip install 'onnx==1.17.0'")
    return Verdict("ok", "onnx still has the module that MXNet's exporter imports", f"onnx {version}")


@check("protobuf", "protobuf against onnx")
def protobuf(system: System, options: Options) -> Verdict:
    version, onnx_version = system.packages.get("protobuf"), system.packages.get("onnx")
    if onnx_version is None:
        return Verdict("ok", "onnx is not installed: nothing depends on protobuf", version or "not installed")
    if version is None:
        return Verdict("error", "onnx needs protobuf", "not installed", "pip install 'protobuf<6'")
    if not (3, 20) <= _numbers(version) < (6, 0):
        fix = "pip install 'protobuf>=3.20.2,<6'"
        evidence = f"protobuf {version}, onnx {onnx_version}"
        return Verdict("warning", "this protobuf is outside what onnx 1.16-1.17 is tested with", evidence, fix)
    return Verdict("ok", "protobuf fits onnx", f"protobuf {version}")


@check("onnxruntime", "onnxruntime against numpy 1")
def onnxruntime(system: System, options: Options) -> Verdict:
    version = system.packages.get("onnxruntime") or system.packages.get("onnxruntime-gpu")
    if version is None:
        fix = "pip install 'gluontune[export]'"
        return Verdict("info", "onnxruntime is not installed: exports cannot be checked", "not installed", fix)
    numpy_version = system.packages.get("numpy", "0")
    evidence = f"onnxruntime {version}, numpy {numpy_version}"
    if _numbers(version) >= (1, 20) and _numbers(numpy_version) < (1, 26):
        message = "onnxruntime 1.20 and later are made for newer numpy; pip may exchange numpy 1.23 for numpy 2"
        return Verdict("warning", message, evidence, "pip install 'onnxruntime<1.20'")
    return Verdict("ok", "onnxruntime fits this numpy", evidence)


_REBUILD = (
    "HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 pip install --no-cache-dir --force-reinstall --no-deps "
    "--no-build-isolation horovod==0.28.1 (after mxnet)"
)


@check("horovod", "Horovod: built with MXNet, against this mxnet, with an engine for its devices")
def horovod(system: System, options: Options) -> Verdict:
    version = system.packages.get("horovod")
    if version is None:
        fix = f"{to_make('horovod')} (needs g++ and cmake)"
        message = "Horovod is not installed: several processes work through MXNet's kvstore alone"
        return Verdict("info", message, "not installed", fix)
    library = system.horovod_library
    if library is None:
        message = "Horovod was built without its MXNet extension: 'import horovod.mxnet' fails"
        return Verdict("error", message, f"horovod {version}, no horovod/mxnet/mpi_lib*.so", _REBUILD)
    try:
        lacks, engines = system.horovod_lacks, system.horovod_engines
    except (OSError, ValueError) as error:
        return Verdict("error", "Horovod's MXNet extension is not whole", f"{library.name}: {error}", _REBUILD)
    built = f"horovod {version}, {library.name}, built with {', '.join(engines) or 'no engine'}"
    if lacks:
        evidence = f"{built}; this mxnet has no {lacks[0]}" + (f" and {len(lacks) - 1} others" if lacks[1:] else "")
        return Verdict("error", "Horovod was built against another mxnet than this one", evidence, _REBUILD)
    if not engines:
        return Verdict("error", "Horovod was built without Gloo, MPI and NCCL: ranks cannot meet", built, _REBUILD)
    if "Gloo" not in engines:
        message = "Horovod was built without Gloo, by which gluontune's launcher has the ranks meet"
        return Verdict("error", message, built, _REBUILD)
    if system.gpu_report.gpus and "NCCL" not in engines:
        message = "Horovod was built without NCCL: gradients of GPUs are summed by way of the CPU"
        fix = f"export HOROVOD_GPU_OPERATIONS=NCCL; {to_make('horovod')} (needs NCCL's headers)"
        return Verdict("warning", message, built, fix)
    return Verdict("ok", "Horovod fits this mxnet", built)
