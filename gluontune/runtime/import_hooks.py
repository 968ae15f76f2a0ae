"""Other loaders for modules that somebody else imports."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["loading_by"]


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
