"""Quicker ways through MXNet's Python front end, for tuned processes: each has the same values as the one it replaces.

- An operator's call: MXNet converts the names and values of its attributes anew at each call, and imports a module to
  check its arrays. Here they are kept, and what is no plain array goes MXNet's way.
- ``array[:] = value`` of the same shape, and so ``mx.nd.array`` and ``array[:] += …``: MXNet derives, five times over,
  that the whole array is meant.
- ``swapaxes``: MXNet copies by single elements where the last axis is one of the two, forward and backward, on one
  thread. Its ``transpose`` goes through memory in blocks. A compiled graph keeps its own operator.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

_MOST_AXES = 6  # of transpose
_MOST_TEXTS = 1024  # kept at once
_WHOLE = slice(None)


def quicken(mx: Any) -> None:
    """Put the quicker ways into the mxnet module; a second call changes nothing."""
    register: Any = sys.modules["mxnet.ndarray.register"]
    kinds = (mx.nd.NDArray, mx.np.ndarray)
    if kinds[0].__setitem__.__module__ == __name__:
        return
    if register._imperative_invoke.__module__ == "mxnet._ctypes.ndarray":  # a build with Cython has its own
        register._imperative_invoke = _invoking(mx, kinds)
    for place, name in enumerate(("_verify_all_legacy_ndarrays", "_verify_all_np_ndarrays")):
        setattr(register, name, _verifying(getattr(register, name), kinds[place]))
    for kind in kinds:
        kind.__setitem__ = _setting(kind.__setitem__, kind, mx.autograd.is_recording)
    for part in ("", ".op", ".gen_op", ".numpy._internal"):
        module = sys.modules[f"mxnet.ndarray{part}"]
        for name in {"swapaxes", "SwapAxis"} & vars(module).keys():
            setattr(module, name, _transposed(getattr(module, name), kinds))


class _Kept(dict[Any, Any]):
    """What is made of a key, kept."""

    def __init__(self, make: Callable[[Any], Any]):
        super().__init__()
        self.make = make

    def __missing__(self, key: Any) -> Any:
        if len(self) >= _MOST_TEXTS:  # rates of a schedule: each is another text
            self.clear()
        found = self[key] = self.make(key)
        return found


def _texts(words: tuple[str, ...]) -> Any:
    return (ctypes.c_char_p * len(words))(*[word.encode() for word in words])


def _invoking(mx: Any, kinds: tuple[Any, Any]) -> Callable[..., Any]:
    """``mxnet._ctypes.ndarray._imperative_invoke``, which all operators of ``mx.nd`` and ``mx.np`` call."""
    base, classes, handle_of = mx.base, sys.modules["mxnet._global_var"], mx.base.NDArrayHandle
    call, check = base._LIB.MXImperativeInvokeEx, base.check_call
    handles, kinds_of_store = ctypes.POINTER(handle_of), ctypes.POINTER(ctypes.c_int)
    integer, byref = ctypes.c_int, ctypes.byref
    operators, texts = _Kept(ctypes.c_void_p), _Kept(_texts)
    room = _Kept(lambda count: ctypes.c_void_p * count)

    def _imperative_invoke(
        handle: int, ndargs: Any, keys: Any, vals: Any, out: Any, is_np_op: bool, output_is_list: bool
    ) -> Any:  # fmt: skip
        stores = kinds_of_store()
        if out is None:
            number, outputs = integer(0), handles()
        else:
            given = (out,) if isinstance(out, kinds) else out
            number = integer(len(given))
            outputs = ctypes.cast(room[len(given)](*[array.handle for array in given]), handles)
        code = call(
            operators[handle], len(ndargs), room[len(ndargs)](*[array.handle for array in ndargs]),
            byref(number), byref(outputs), len(keys), texts[tuple(keys)], texts[tuple([str(value) for value in vals])],
            byref(stores),
        )  # fmt: skip
        if code:
            check(code)
        if out is not None:
            return out
        if number.value == 1 and not output_is_list and stores[0] == 0:  # dense
            return kinds[is_np_op](handle_of(outputs[0]))
        made = classes._np_ndarray_cls if is_np_op else classes._ndarray_cls
        found = [made(handle_of(outputs[place]), stype=stores[place]) for place in range(number.value)]
        return found[0] if number.value == 1 and not output_is_list else found

    return _imperative_invoke


def _verifying(plain: Callable[..., None], kind: Any) -> Callable[..., None]:
    """``plain``, asked only about arrays that are not of this kind."""

    def verify(op_name: str, func_name: str, args: Any, out: Any) -> None:
        if out is None or type(out) is kind:
            for array in args:
                if type(array) is not kind:
                    break
            else:
                return
        plain(op_name, func_name, args, out)

    return verify


def _setting(plain: Callable[..., None], kind: Any, recording: Callable[[], bool]) -> Callable[..., None]:
    plain_array = sys.modules["numpy"].ndarray

    def __setitem__(self: Any, key: Any, value: Any) -> None:
        if type(key) is slice and key == _WHOLE and type(self) is kind:
            shape = self.shape
            if shape and 0 not in shape and not recording():
                if value is self:
                    return
                if type(value) in (int, float):
                    self._full(value)
                    return
                if getattr(value, "shape", None) == shape:
                    if type(value) is kind and value.dtype == self.dtype and value.context == self.context:
                        value.copyto(self)
                        return
                    if type(value) is plain_array:
                        self._sync_copyfrom(value)
                        return
        plain(self, key, value)

    __setitem__.__doc__ = plain.__doc__
    return __setitem__


def _transposed(plain: Callable[..., Any], kinds: tuple[Any, ...]) -> Callable[..., Any]:
    def swapaxes(data: Any = None, dim1: Any = 0, dim2: Any = 0, out: Any = None, name: Any = None, **more: Any) -> Any:
        if type(data) in kinds and out is None and not more and type(dim1) is type(dim2) is int:
            axes = list(range(data.ndim))
            if 0 < len(axes) <= _MOST_AXES and -len(axes) <= min(dim1, dim2) and max(dim1, dim2) < len(axes):
                axes[dim1], axes[dim2] = axes[dim2], axes[dim1]
                return data.transpose(axes)
        return plain(data, dim1, dim2, out=out, name=name, **more)

    swapaxes.__doc__, swapaxes.__module__ = plain.__doc__, plain.__module__
    return swapaxes
