"""One ``hybrid_forward`` for networks of ``mx.nd`` and of ``mx.np``."""

from __future__ import annotations

import functools
import threading
from typing import Any

from gluontune.runtime import as_nd_array, mxnet

__all__ = ["as_called", "either_kind"]

_inside = threading.local()  # .np: a forward of a network of mx.np is running with old arrays


def either_kind(forward: Any) -> Any:
    """A ``hybrid_forward`` written with operators of ``mx.nd``, for networks of ``mx.np`` too.

    Most of ``npx``'s operators are the old ones by another name, and some old ones have no name there at all; so
    arrays and symbols change their kind at the door, which costs nothing.
    """

    @functools.wraps(forward)
    def hybrid_forward(self: Any, F: Any, *args: Any, **parameters: Any) -> Any:
        if not mxnet().util.is_np_array():
            return forward(self, F, *args, **parameters)
        before, _inside.np = getattr(_inside, "np", False), True
        try:
            with mxnet().util.np_array(False):
                out = forward(self, F, *map(_old, args), **{k: _old(v) for k, v in parameters.items()})
        finally:
            _inside.np = before
        return _new(out)

    return hybrid_forward


def as_called(forward: Any, F: Any, *args: Any, **parameters: Any) -> Any:
    """Within such a ``hybrid_forward``: that of Gluon's own layer, which takes the network's kind of array."""
    if not getattr(_inside, "np", False):
        return forward(F, *args, **parameters)
    _inside.np = False
    try:
        with mxnet().util.np_array(True):
            return _old(forward(F, *map(_new, args), **{k: _new(v) for k, v in parameters.items()}))
    finally:
        _inside.np = True


def _old(value: Any) -> Any:
    return value.as_nd_ndarray() if isinstance(value, mxnet().sym.Symbol) else as_nd_array(value)


def _new(value: Any) -> Any:
    return value.as_np_ndarray() if hasattr(value, "as_np_ndarray") else value
