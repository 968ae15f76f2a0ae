"""Other loaders for modules that somebody else imports.

Modules that are run when something in them is first asked for, not when they are imported.

MXNet imports scipy's statistics and sparse matrices for two rare calls: a third of what its import takes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def loading_by(wrap: Callable[[Loader], Loader], *names: str) -> Iterator[None]:
    """Modules of these ``names`` that are imported inside the block are loaded by ``wrap`` of their loader.

    A module that was imported before is left as it is, and so is one that is not installed.
    """
    finder = _Finder(wrap, names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def __init__(self, wrap: Callable[[Loader], Loader], names: Sequence[str]):
        self._wrap, self._left = wrap, set(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._left:
            return None
        self._left.discard(fullname)  # the search below goes through all finders
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = self._wrap(spec.loader)
        return spec


def lazily(*names: str) -> contextlib.AbstractContextManager[None]:
    """What is imported inside the block, and is one of ``names``, is run later.

    A module that was imported before is left as it is, and so is one that is not installed.

    >>> with lazily("tabnanny"):
    ...     import tabnanny
    >>> "check" in vars(tabnanny), tabnanny.check.__name__, "check" in vars(tabnanny)
    (False, 'check', True)
    """
    return loading_by(_LazyLoader, *names)


class _LazyLoader(Loader):
    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Not yet. What the import system looks at is there; importing a submodule asks for ``__path__``."""
        values = vars(module)
        values["_later"] = (self._loader, values.pop("__path__", None))
        values["__loader__"] = module.__spec__.loader = self._loader  # type: ignore[union-attr]


class _LazyModule(ModuleType):
    """(``importlib.util.LazyLoader`` runs a module when it is imported a second time.)"""

    def __getattr__(self, name: str) -> Any:
        with _lock:  # held until the module has run: other threads wait for all of it
            values = vars(self)
            later = values.pop("_later", None)
            if later is not None:
                loader, path = later
                if path is not None:
                    values["__path__"] = path
                loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
                return getattr(self, name)
        if name in values:
            return values[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        self.__getattr__("__doc__")
        return sorted(vars(self))


_lock = threading.RLock()
