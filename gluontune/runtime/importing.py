"""Making mxnet importable: numpy's removed aliases, distutils, CUDA libraries of pip, gluoncv beside PyTorch 2.

gluoncv 0.10 asks for ``torch<2`` and raises RuntimeError for a newer one, though its MXNet half needs none. Its check
is answered with "no torch" here, which gluoncv accepts; torch is then not imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import re
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.core.interpreter import MARKER
from gluontune.runtime import cpu, cuda, elf, packages
from gluontune.runtime.frontend import quicken
from gluontune.runtime.import_hooks import Finder, PatchingLoader, kept_operators, lazily, plain_distutils

# numpy 1.24 removed them; MXNet 1.9.1 uses them.
NUMPY_ALIASES = {kind.__name__: kind for kind in (bool, int, float, complex, object, str)}

CPU_WHEEL = "pip install 'mxnet==1.9.1' (or 'gluontune[cpu]'; with an NVIDIA GPU 'gluontune[cu112]')"
REINSTALL_CPU = "pip install --force-reinstall --no-deps 'mxnet==1.9.1'"

# What `import mxnet` imports for a few calls.
_RARELY_USED = (
    "scipy.stats", "scipy.sparse", "requests",
    "mxnet.test_utils", "mxnet.onnx", "mxnet.contrib.onnx", "mxnet.contrib.text",
)  # fmt: skip

_lock = threading.RLock()
_loaded: ModuleType | None = None


def mxnet() -> ModuleType:
    """Import mxnet so that it works here, and return it. A plain ``import mxnet`` works from then on.

    Restores the aliases that numpy 1.24 removed, uses setuptools for the distutils that Python 3.12 dropped, makes
    gluoncv importable beside PyTorch 2, and loads the CUDA libraries of pip's ``nvidia-*`` wheels for a GPU build of
    MXNet. It is idempotent, thread-safe, and free after the first call.

    Raises:
        GluontuneError: mxnet cannot be imported; names the missing library or wheel and the command that mends it.

    >>> mx = mxnet()
    >>> float(mx.nd.ones((2, 3)).sum().asscalar())
    6.0
    """
    global _loaded
    if _loaded is not None:
        return _loaded
    with _lock:
        if _loaded is None:
            _loaded = _import_mxnet()
    return _loaded


def mxnet_library() -> Path | None:
    """The ``libmxnet.so`` that ``import mxnet`` would load, or None; mxnet is not imported.

    The search is mxnet's (``mxnet.libinfo.find_lib_path``): ``MXNET_LIBRARY_PATH``, then ``LD_LIBRARY_PATH``, then the
    package's folder.
    """
    chosen = os.environ.get("MXNET_LIBRARY_PATH")
    if chosen and os.path.isabs(chosen) and os.path.isfile(chosen):
        return Path(chosen)
    package = _package_folder()
    if package is None:
        return None
    folders = [Path(p.strip()) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p.strip()]
    folders += [package, package / "../../lib", package / "../../build", package / "../../../"]
    return next((f / "libmxnet.so" for f in folders if (f / "libmxnet.so").is_file()), None)


def _package_folder() -> Path | None:
    if "mxnet" in sys.modules and getattr(sys.modules["mxnet"], "__file__", None):
        return Path(str(sys.modules["mxnet"].__file__)).parent
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("mxnet")
        return Path(spec.origin).parent if spec is not None and spec.origin else None
    return None


def _import_mxnet() -> ModuleType:
    if sys.version_info >= (3, 13):  # no numpy 1.x has a wheel there
        version = ".".join(map(str, sys.version_info[:2]))
        raise GluontuneError(
            f"Python {version}: MXNet 1.9.1 needs numpy 1, which ends at Python 3.12; use Python 3.9-3.12"
        )
    if _package_folder() is None:
        raise GluontuneError(f"mxnet is not installed in {sys.prefix}: {CPU_WHEEL}")
    _repair_numpy()
    _repair_distutils()
    library = mxnet_library()
    try:
        needs = elf.external_needs(library) if library else ()
    except (OSError, ValueError):
        needs = ()  # a library of another platform: the import raises
    elf.preload(needs)
    missing = cuda.preload(needs)
    if library and missing == [cuda.DRIVER_LIBRARY] and cuda.load_stand_in(library):
        missing = []
    if missing:
        raise _missing_cuda(missing)
    cpu.prepare_amx()
    spare_from_torch()
    try:
        with kept_operators(library), lazily(*_RARELY_USED), plain_distutils():
            found = importlib.import_module("mxnet")
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module("mxnet.onnx")  # MXNet's own import of it stands in mxnet.contrib.onnx
            store = getattr(sys.modules.get("mxnet.kvstore.kvstore"), "KVStore", None)
            for name in ("init", "broadcast") if store else ():
                setattr(store, name, _row_major(getattr(store, name)))
            if os.environ.get(MARKER):  # of a tuned process
                quicken(found)
            return found
    except Exception as error:
        raise explain_import_error(error) from error


def to_row_major(array: Any) -> None:
    """Bring an array to row-major order, in place, from one of oneDNN's layouts, as a forward pass leaves it."""
    array.wait_to_read()
    base = sys.modules["mxnet.base"]
    base.check_call(base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(ctypes.c_void_p())))  # reorders it


def _row_major(send: Any) -> Any:
    """``send`` of a ``dist`` kvstore, which sends nothing of other layouts, and whose first pull then never ends."""

    @functools.wraps(send)
    def sends(store: Any, key: Any, value: Any, *rest: Any, **more: Any) -> Any:
        values = [value] if "dist" in store.type else []
        for one in values:
            if isinstance(one, (list, tuple)):
                values += one
            elif one.stype == "default":
                to_row_major(one)
        return send(store, key, value, *rest, **more)

    return sends


def _repair_numpy() -> None:
    try:
        import numpy
    except ImportError as error:
        raise GluontuneError(
            f"numpy cannot be imported ({error}): pip install --force-reinstall '{wanted_numpy()}'"
        ) from error
    major, minor = (int(part) for part in numpy.__version__.split(".")[:2])
    if major >= 2:
        raise GluontuneError(
            f"numpy {numpy.__version__} is installed, but MXNet 1.9.1 cannot be imported with numpy 2: "
            f"pip install '{wanted_numpy()}'"
        )
    if (major, minor) >= (1, 24):
        for name, kind in NUMPY_ALIASES.items():
            numpy.__dict__.setdefault(name, kind)


def wanted_numpy() -> str:
    """The numpy that MXNet 1.9.1 works with on this Python, as a requirement."""
    return "numpy==1.26.4" if sys.version_info >= (3, 12) else "numpy==1.23.5"


def _repair_distutils() -> None:
    if sys.version_info < (3, 12) or importlib.util.find_spec("distutils") is not None:
        return
    try:
        importlib.import_module("setuptools")  # installs its distutils
        importlib.import_module("distutils.version")
    except ImportError as error:
        raise GluontuneError(
            "mxnet needs distutils, which Python 3.12 dropped and setuptools replaces: pip install 'setuptools<81'"
        ) from error


def _missing_cuda(missing: list[str]) -> GluontuneError:
    wheels = sorted({library.wheel for name in missing if (library := cuda.family(name))})
    names = ", ".join(missing)
    installed = next(iter(packages.mxnet_wheels()), "this mxnet")
    if not wheels:
        return GluontuneError(
            f"{installed} cannot load {names}, which comes with the NVIDIA driver: install the driver, or, "
            f"without a GPU: pip uninstall -y {installed.split()[0]} && {REINSTALL_CPU}"
        )
    driver = "; libcuda.so.1 comes with the NVIDIA driver" if cuda.DRIVER_LIBRARY in missing else ""
    command = " ".join(f"'{wheel}'" for wheel in wheels)
    return GluontuneError(f"{installed} cannot load {names}: pip install {command}{driver}")


def library_fix(name: str) -> str:
    """The command or act that installs the shared library ``name``.

    >>> library_fix("libcudnn.so.8")
    "pip install 'nvidia-cudnn-cu11<9'"
    >>> library_fix("libquadmath.so.0")
    'apt install libquadmath0 (or the like for your system), or without root: pip install scipy'
    """
    library = cuda.family(name)
    if library is not None:
        return f"pip install '{library.wheel}'"
    if name == cuda.DRIVER_LIBRARY:
        return "install the NVIDIA driver; on a machine without a GPU use the wheel mxnet instead of mxnet-cu112"
    known = next((p for prefix, p in elf.SYSTEM_PACKAGES.items() if name.startswith(prefix)), None)
    if known:
        package, wheel = known
        without_root = f", or without root: pip install {wheel}" if wheel else ""
        return f"apt install {package} (or the like for your system){without_root}"
    return f"install the system package that holds {name}"


def explain_import_error(error: BaseException) -> GluontuneError:
    """The :class:`GluontuneError` for an exception that ``import mxnet`` raised."""
    text = " ".join(str(error).split())
    library = re.search(r"(lib[\w.+-]+?\.so[\w.]*): cannot open shared object file", text)
    if library:
        return GluontuneError(f"mxnet cannot load {library[1]}: {library_fix(library[1])}")
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.partition(".")[0]
        if name != "mxnet":
            wanted = "setuptools<81" if name == "distutils" else name
            return GluontuneError(f"mxnet needs the package {name}: pip install '{wanted}'")
    if isinstance(error, RuntimeError) and "Cannot find the MXNet library" in text:
        return GluontuneError(
            f"the mxnet package holds no libmxnet.so (two mxnet wheels overwrote each other?): {REINSTALL_CPU}"
        )
    kind = type(error).__name__
    return GluontuneError(
        f"mxnet cannot be imported ({kind}: {text[:300]})\nrun 'gluontune doctor', or try: {REINSTALL_CPU}"
    )


_GLUONCV_CHECK = "gluoncv.check"
_finder = Finder(lambda loader: PatchingLoader(loader, _without_torch), (_GLUONCV_CHECK,))


def spare_from_torch() -> None:
    """Make ``import gluoncv`` ignore torch, from now on in this process. It is idempotent."""
    if _GLUONCV_CHECK not in sys.modules and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _without_torch(check: ModuleType) -> None:
    def refused(*_versions: str) -> None:
        raise ImportError("gluontune runs gluoncv on MXNet alone")

    check._require_pytorch_version = refused  # type: ignore[attr-defined]
