"""Import hooks for modules that other packages import.

- :func:`lazily`: modules that run on first use. MXNet imports scipy's statistics and sparse matrices for two rare
  calls: a third of the time of its import. Its test helpers, texts and ONNX, with requests, are a tenth.
- :func:`plain_distutils`: Python's own distutils, for two comparisons of versions. setuptools' takes a sixth.
- :func:`kept_operators`: MXNet's operator functions from a cache. At each import MXNet writes and compiles the Python
  source of some 4,000 functions, one for each operator in each of its modules: half of the time of its import. They
  differ between processes by one number each, the operator's handle. So the compiled code is stored in the user's
  cache, and gets the handle of this process.
- :class:`PatchingLoader`: modules that are changed after they have run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import marshal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from gluontune.codec.native import is_ours, is_private, user_folder
from gluontune.core.errors import GluontuneError
from gluontune.core.files import atomic_write


@contextlib.contextmanager
def loading_by(wrap: Callable[[Loader], Loader], *names: str) -> Iterator[None]:
    """Inside the block, the modules ``names`` are loaded by ``wrap`` of their loader.

    Modules imported before, and modules that are not installed, are unaffected.
    """
    finder = Finder(wrap, names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class Finder(MetaPathFinder):
    """Finds the modules ``names`` as the other finders do, and wraps their loaders."""

    def __init__(self, wrap: Callable[[Loader], Loader], names: Sequence[str]):
        self._wrap, self._names, self._busy = wrap, names, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names or self._busy:
            return None
        self._busy = True  # the search below asks all finders, this one too
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = self._wrap(spec.loader)
        return spec


class PatchingLoader(Loader):
    """Runs a module, then ``patch(module)``."""

    def __init__(self, loader: Loader, patch: Callable[[ModuleType], None]):
        self._loader, self._patch = loader, patch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)

    def __getattr__(self, name: str) -> Any:  # get_source and the like, for tracebacks
        return getattr(self._loader, name)


def lazily(*names: str) -> contextlib.AbstractContextManager[None]:
    """Inside the block, imports of the modules ``names`` are deferred to their first use."""
    return loading_by(_LazyLoader, *names)


class _LazyLoader(Loader):
    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Deferred. The attributes for the import system exist; the import of a submodule reads ``__path__``."""
        values = vars(module)
        values["_later"] = (self._loader, values.pop("__path__", None))
        values["__loader__"] = module.__spec__.loader = self._loader  # type: ignore[union-attr]


class _LazyModule(ModuleType):
    """A deferred module (``importlib.util.LazyLoader`` would run it at its second import)"""

    def __getattr__(self, name: str) -> Any:
        with _lock:  # held until the module has run: other threads wait
            values = vars(self)
            later = values.pop("_later", None)
            if later is not None:
                loader, path = later
                if path is not None:
                    values["__path__"] = path
                    _already.packages.add(self.__name__)
                    if _already not in sys.meta_path:
                        sys.meta_path.insert(0, _already)
                loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
                return getattr(self, name)
        if name in values:
            return values[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        self.__getattr__("__doc__")
        return sorted(vars(self))


class _Already(MetaPathFinder, Loader):
    """Finds submodules that a deferred package has imported itself while the import system asked for its path.

    Otherwise they would run again, and the package and its user would hold two of each class.
    """

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        known = target is None and fullname.rpartition(".")[0] in self.packages and fullname in sys.modules
        return ModuleSpec(fullname, self, loader_state=sys.modules[fullname].__spec__) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


_already = _Already()
_lock = threading.RLock()


@contextlib.contextmanager
def plain_distutils() -> Iterator[None]:
    """Inside the block, ``import distutils`` gives Python's own and not setuptools', which is imported with it.

    Afterwards ``distutils`` is as if nobody had imported it. One that was imported before stays; without setuptools,
    and from Python 3.12 on, nothing changes.

    >>> with plain_distutils():
    ...     from distutils.version import LooseVersion
    >>> LooseVersion("1.10") > LooseVersion("1.9")
    True
    """
    finder = getattr(sys.modules.get("_distutils_hack"), "DISTUTILS_FINDER", None)
    if sys.version_info >= (3, 12) or finder not in sys.meta_path or "distutils" in sys.modules:
        yield
        return
    place = sys.meta_path.index(finder)
    del sys.meta_path[place]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            importlib.import_module("distutils.version")
    finally:
        sys.meta_path.insert(place, finder)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "distutils"]:
            del sys.modules[name]


_FORMAT = 1
_Key = tuple[str, str, str]  # module that makes the function, operator, function
#: Code with 0 for the handle, the index of that constant, the doc string, and which defaults are "_Null".
_Entry = tuple[CodeType, int, str, "tuple[bool, ...] | None"]


@contextlib.contextmanager
def kept_operators(library: Path | None) -> Iterator[None]:
    """Inside the block, ``import mxnet`` takes its functions from the cache, and adds missing ones to it.

    The functions are the same in name, signature, doc string and code. Without a readable and writable cache MXNet
    makes them as usual.
    """
    place = None if library is None else _place(library)
    if place is None:
        yield
        return
    operators = _Operators(_read(place))
    try:
        with loading_by(lambda loader: PatchingLoader(loader, operators.patch), "mxnet.base"):
            yield
    finally:
        operators.is_open = False
    if operators.new:
        _write(place, operators.entries)


def _place(library: Path) -> Path | None:
    """The cache file for this library and this Python, on which operators and code depend."""
    with contextlib.suppress(OSError):
        status = library.stat()
        what = (_FORMAT, str(library.resolve()), status.st_size, status.st_mtime_ns, sys.version)
        return user_folder() / f"operators-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.bin"
    return None


def _read(place: Path) -> dict[_Key, _Entry]:
    """The cached entries; none if the file is damaged or another user could have written it."""
    with contextlib.suppress(OSError, ValueError, TypeError, EOFError):
        if is_ours(place.parent) and is_ours(place):
            data = place.read_bytes()
            if hashlib.sha256(data[32:]).digest() == data[:32]:
                return marshal.loads(data[32:])  # type: ignore[no-any-return]
    return {}


def _write(place: Path, entries: dict[_Key, _Entry]) -> None:
    data = marshal.dumps(entries)
    with contextlib.suppress(OSError, GluontuneError):
        if is_private(place.parent):
            with atomic_write(place) as stream:
                stream.write(hashlib.sha256(data).digest() + data)
            place.chmod(0o600)


class _Operators:
    """The cached functions, by module, operator and name."""

    def __init__(self, entries: dict[_Key, _Entry]):
        self.entries = entries
        self.new = 0
        self.is_open = True  # operators of libraries loaded later are not MXNet's

    def maker(self, make: Any) -> Callable[[Any, str, str], Any]:
        """``make``, of ``mxnet.ndarray.register`` or ``mxnet.symbol.register``, with the cache before it."""
        if not self.is_open:
            return make  # type: ignore[no-any-return]
        null = make.__globals__["_Null"]
        home = make.__module__

        def cached(handle: Any, name: str, func_name: str) -> Any:
            entry = self.entries.get((home, name, func_name))
            if entry is None:
                function = make(handle, name, func_name)
                entry = _entry_of(function, handle.value, null)
                if entry is not None:
                    self.entries[home, name, func_name] = entry
                    self.new += 1
                return function
            code, place, doc, defaults = entry
            constants = (*code.co_consts[:place], handle.value, *code.co_consts[place + 1 :])
            values = None if defaults is None else tuple(null if is_null else None for is_null in defaults)
            function = FunctionType(code.replace(co_consts=constants), make.__globals__, func_name, values)
            function.__doc__ = doc
            function.__module__ = home.rpartition(".")[0]
            return function

        return cached

    def patch(self, base: ModuleType) -> None:
        """Let the two loops over all operators in ``mxnet.base`` use the cache."""
        for name in ("_init_op_module", "_init_np_op_module"):
            loop = getattr(base, name, None)
            if loop is not None:
                setattr(base, name, self._patched(loop))

    def _patched(self, loop: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(loop)
        def patched(*args: Any, **kwargs: Any) -> None:
            if "make_op_func" in kwargs:
                kwargs["make_op_func"] = self.maker(kwargs["make_op_func"])
            else:
                args = (*args[:-1], self.maker(args[-1]))
            loop(*args, **kwargs)

        return patched


def _entry_of(function: Any, handle: int, null: Any) -> _Entry | None:
    """A function's cache entry, or None for an unusual one."""
    code, defaults = function.__code__, function.__defaults__
    places = [k for k, value in enumerate(code.co_consts) if type(value) is int and value == handle]
    usual = defaults is None or all(value is None or value is null for value in defaults)
    if len(places) != 1 or not usual or function.__kwdefaults__ or function.__closure__:
        return None
    constants = list(code.co_consts)
    constants[places[0]] = 0
    if isinstance(constants[0], str):
        constants[0] = None  # the doc string once more, with other indents
    nulls = None if defaults is None else tuple(value is null for value in defaults)
    return code.replace(co_consts=tuple(constants)), places[0], function.__doc__, nulls
