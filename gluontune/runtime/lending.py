"""Memory of numpy's lent to MXNet: no copy, and nothing of Python's that MXNet's threads would call.

``mx.nd.from_numpy`` gives MXNet a Python function for the end of an array. MXNet's own thread calls it, and waits for
Python's lock; a fork (a DataLoader's workers, ``subprocess``) holds that lock while MXNet joins its threads: the script
hangs for ever. Here MXNet calls the C library's ``pthread_spin_unlock``, and the lender
looks at the lock the next time.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gluontune.runtime.importing import mxnet

_UNLOCK = getattr(ctypes.CDLL(None), "pthread_spin_unlock", None)
_lock = ctypes.c_uint32()
if _UNLOCK:
    ctypes.CDLL(None).pthread_spin_init(ctypes.byref(_lock), 0)
_FREE = _lock.value  # 1 on x86-64, elsewhere 0
_LOOK_AT, _LARGE = 8, 1 << 20  # arrays that are lent, fewer are not looked at; but before each of so many bytes
_look_at = [_LOOK_AT]
_lent: dict[
    int, tuple[Any, Any, np.ndarray]
] = {}  # by the address of what MXNet was given: that, its shape, the memory
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_lent))  # MXNet's threads may read, and unlock, when Python has ended


def lent(array: np.ndarray, kind: Any = None) -> Any:
    """MXNet's array over the memory of ``array``, which must not be written to before MXNet lets go of it.

    The memory is referred to until then. It is copied where it cannot be lent: a data type that MXNet does not take so,
    bytes in another machine's order, memory that may not be written to (a script may change its batch in place) or is
    not aligned, no elements or no dimensions, a C library without spin locks.

    Args:
        array: of any shape. kind: ``mx.nd.NDArray`` (the default) or ``mx.np.ndarray``.

    >>> lent(np.arange(3, dtype="float32")).asnumpy().tolist()
    [0.0, 1.0, 2.0]
    """
    mx = mxnet()
    module, kind = mx.nd.ndarray, kind or mx.nd.NDArray
    if len(_lent) >= _look_at[0] or array.nbytes >= _LARGE:  # not at each: scripts may be hundreds of steps ahead
        _look_at[0] = _LOOK_AT + 2 * take_back()
    plain = array.flags.behaved and array.dtype.isnative and array.dtype.name in module.DLDataType.TYPE_MAP
    if not (_UNLOCK and plain and array.size and array.ndim):
        return (mx.np if kind is mx.np.ndarray else mx.nd).array(array, dtype=array.dtype)
    array = np.ascontiguousarray(array)
    address = array.ctypes.data
    if _is_free(address):
        return lent(array.copy(), kind)  # one in four thousand million
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    given = module.DLManagedTensor()
    tensor = given.dl_tensor
    tensor.data, tensor.ctx, tensor.ndim = address, module.DLContext(1, 0), array.ndim
    tensor.dtype, tensor.shape = module.DLDataType.TYPE_MAP[array.dtype.name], shape
    given.deleter = ctypes.cast(_UNLOCK, module.DeleterFunc)
    handle = module.NDArrayHandle()
    call = mx.base._LIB.MXNDArrayFromDLPackEx
    _lent[ctypes.addressof(given)] = given, shape, array
    mx.base.check_call(call(ctypes.byref(given), ctypes.c_bool(False), ctypes.byref(handle)))
    return kind(handle=handle)


def take_back() -> int:
    """Let go of the memory that MXNet has let go of; how many arrays are still lent."""
    for key, (given, _, _) in list(_lent.items()):
        if _is_free(given.dl_tensor.data or 0):  # the lock is where the address was, which MXNet has read
            _lent.pop(key, None)
    return len(_lent)


def _is_free(address: int) -> bool:
    return address & 0xFFFFFFFF == _FREE
