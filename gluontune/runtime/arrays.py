"""MXNet's two kinds of array: ``mx.nd`` and, under ``npx.set_np()``, ``mx.np``.

Operators of one kind refuse arrays of the other, with a message about "legacy" arrays. The kind that a network takes
depends on the semantics active when it was built, and loaders make arrays in other threads, which ``set_np`` does not
reach (array semantics belong to a thread). So the code that feeds a network converts. A conversion shares the memory
and is recorded by autograd.

Under ``mx.np`` semantics, methods such as ``square()``, ``asscalar()`` or ``log()`` do not exist on ``mx.np`` arrays
(write ``float(a)``, or call :func:`as_nd_array` first), and a sum has the shape ``()``.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gluontune.core.arrays import mapped
from gluontune.runtime.importing import mxnet


def uses_np(net: Any = None) -> bool:
    """Whether ``net`` computes with ``mx.np`` arrays.

    Args:
        net: a Gluon block. Its parameters' arrays decide; without arrays, or without a net, the active semantics of
            this thread.

    >>> mx = mxnet()
    >>> net = mx.gluon.nn.Dense(2, in_units=3)
    >>> net.initialize()
    >>> uses_np(net)
    False
    >>> with mx.util.np_shape(True), mx.util.np_array(True):
    ...     uses_np()
    True
    """
    mx = mxnet()
    if net is not None:
        for parameter in net.collect_params().values():
            if parameter._data:
                return isinstance(parameter._data[0], mx.np.ndarray)
    return bool(mx.util.is_np_array())


def as_net_array(value: Any, net: Any = None) -> Any:
    """``value`` as the kind of array that ``net`` takes; nothing is copied.

    Args:
        value: an ``mx.nd`` or ``mx.np`` array, or nested lists and tuples of them; other values are unchanged.
        net: as for :func:`uses_np`.

    >>> mx = mxnet()
    >>> with mx.util.np_shape(True), mx.util.np_array(True):
    ...     type(as_net_array([mx.nd.ones((2, 3))])[0]) is mx.np.ndarray
    True
    """
    return _converted(value, uses_np(net))


def as_nd_array(value: Any) -> Any:
    """``value`` with its ``mx.np`` arrays as ``mx.nd`` ones, for code that uses operators of ``mx.nd``.

    >>> mx = mxnet()
    >>> type(as_nd_array(mx.np.ones((2, 3)))) is mx.nd.NDArray
    True
    """
    return _converted(value, to_np=False)


def put_values(array: Any, values: Any) -> None:
    """Write ``values`` into an NDArray of any layout. All code that sets arrays of a net calls this.

    A ``Conv1D`` in prediction mode leaves its weight in one of oneDNN's layouts, into which MXNet 1.9.1 cannot copy
    (``Check failed: to.IsDefaultData()``); an operator can.

    >>> nd = mxnet().nd
    >>> array = nd.zeros((2,))
    >>> put_values(array, nd.ones((2,), dtype="float64"))
    >>> array.asnumpy().tolist()
    [1.0, 1.0]
    """
    array, values = as_nd_array(array), as_nd_array(values)
    if array.stype != "default" or values.stype != "default" or array.shape != values.shape:
        values.copyto(array)
        return
    if values.dtype != array.dtype:
        values = values.astype(array.dtype)
    mxnet().nd.identity(values.as_in_context(array.context), out=array)


def set_data(parameter: Any, values: Any) -> None:
    """``parameter.set_data(values)``, for a parameter in any layout; see :func:`put_values`.

    >>> layer = mxnet().gluon.nn.Dense(1, in_units=2)
    >>> layer.initialize()
    >>> set_data(layer.weight, mxnet().nd.ones((1, 2)))
    >>> layer.weight.data().asnumpy().tolist()
    [[1.0, 1.0]]
    """
    if not parameter._data:  # deferred: it holds the values until its shape is known
        parameter.set_data(values)
        return
    parameter.shape = values.shape
    trainer = parameter._trainer
    if trainer and trainer._kv_initialized and trainer._update_on_kvstore and parameter not in trainer._params_to_init:
        trainer._reset_kvstore()  # as Parameter.set_data does: the store has a copy
    for array in parameter._data:
        put_values(array, values)


def _converted(value: Any, to_np: bool) -> Any:
    mx = mxnet()

    def one(item: Any) -> Any:
        if isinstance(item, mx.nd.NDArray) and isinstance(item, mx.np.ndarray) != to_np:
            return item.as_np_ndarray() if to_np else item.as_nd_ndarray()
        return item

    return mapped(one, value)


# Memory of numpy's lent to MXNet, without a copy. ``mx.nd.from_numpy`` gives MXNet a Python function for the end of an
# array. MXNet's own thread calls it, and waits for Python's lock; a fork (a DataLoader's workers, ``subprocess``) holds
# that lock while MXNet joins its threads: the script hangs for ever. Here MXNet calls the C library's
# ``pthread_spin_unlock``, and the lender looks at the lock the next time.
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
    not aligned, no elements or no dimensions, a C library without spin locks. ``kind``: ``mx.nd.NDArray`` (the default)
    or ``mx.np.ndarray``.
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
