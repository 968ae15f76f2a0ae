"""numpy's memory lent to MXNet: values, how long it is held, and a fork while MXNet's threads let go of it."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

from gluontune.runtime import arrays, mxnet
from gluontune.runtime.arrays import lent, take_back
from tests.support.waiting import until

FORKS = """
import os
import numpy as np
from gluontune.runtime import mxnet
from gluontune.runtime.arrays import lent
mx = mxnet()
big = mx.nd.ones((200, 200))
for _ in range(10):
    mx.nd.dot(big, big)
    for _ in range(5):
        lent(np.ones((10, 2), "float32")) + 1
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
print("all forked")
"""


@pytest.fixture(autouse=True)
def _none_left():
    gc.collect()
    mxnet().nd.waitall()
    until(lambda: take_back() == 0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (1, 1, 1, 5), (), (0, 2)])
def test_values_types_and_shapes_are_those_of_the_memory(dtype, shape):
    array = (np.random.default_rng(1).random(shape) * 100).astype(dtype)
    mx = mxnet()
    for kind in (mx.nd.NDArray, mx.np.ndarray):
        with mx.util.np_shape(True):
            given = lent(array, kind)
            assert type(given) is kind and given.shape == shape and np.dtype(given.dtype) == array.dtype
            assert np.array_equal(given.asnumpy(), array)


def test_the_memory_is_the_arrays_own_until_mxnet_lets_go_of_it():
    mx, before = mxnet(), take_back()
    array = np.zeros((4, 3), np.float32)
    given = lent(array)
    array[:] = 7.0
    assert given.asnumpy().min() == 7.0 and take_back() == before + 1
    late = given * 2
    del given, array
    mx.nd.waitall()
    late.wait_to_read()
    assert late.asnumpy().max() == 14.0
    until(lambda: take_back() == before)


def test_rows_that_are_not_contiguous_are_read_in_order():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert np.array_equal(lent(array[::2, ::-1]).asnumpy(), array[::2, ::-1])


def test_without_spin_locks_it_is_copied(monkeypatch):
    monkeypatch.setattr(arrays, "_UNLOCK", None)
    array, before = np.ones((2, 2), np.float32), take_back()
    given = lent(array)
    array[:] = 5.0
    assert given.asnumpy().max() == 1.0 and take_back() == before


def test_a_fork_does_not_wait_for_memory_that_mxnet_lets_go():
    """With ``mx.nd.from_numpy`` the first fork hangs: it holds Python's lock, which the array's end waits for."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert "all forked" in done.stdout, done.stderr


def test_what_mxnet_would_misread_or_must_not_write_to_is_copied():
    """A batch may be changed in place: memory that may not be written to ended the process, or the samples changed."""
    fixed, before = np.ones((2, 2), np.float32), take_back()
    fixed.flags.writeable = False
    given = lent(fixed)
    given[:] = 5.0
    assert given.asnumpy().max() == 5.0 and fixed.max() == 1.0
    assert lent(np.array([1.0, 2.0], np.dtype("f4").newbyteorder())).asnumpy().tolist() == [1.0, 2.0]
    aside = np.frombuffer(bytearray(41), np.float32, 10, 1)
    aside[:] = 3.0
    assert lent(aside).asnumpy().tolist() == [3.0] * 10 and take_back() == before


def test_of_large_arrays_none_is_held_longer_than_needed():
    mx, before = mxnet(), take_back()
    for _ in range(6):
        given = lent(np.ones((1 << 20,), np.float32))
        assert len(arrays._lent) <= before + 1
        assert given.sum().asscalar() == 1 << 20
        del given
        mx.nd.waitall()
        until(lambda: any(arrays._is_free(one.dl_tensor.data or 0) for one, _, _ in arrays._lent.values()))
