"""Networks of ``npx.set_np()``: the arrays that they take, and everything of compute on them."""

from __future__ import annotations

import contextlib
import threading

import numpy as np

from gluontune.runtime import as_nd_array, as_net_array, mxnet, uses_np

mx = mxnet()
nn = mx.gluon.nn


@contextlib.contextmanager
def np_semantics():
    """What ``npx.set_np()`` does, for a while."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        yield


def test_batches_of_another_thread_become_arrays_that_an_np_net_takes():
    with np_semantics():
        net = nn.Dense(2)
        net.initialize()
        made = []
        loader = threading.Thread(target=lambda: made.append((mx.nd.ones((4, 3)), [mx.nd.zeros((4,))])))
        loader.start()
        loader.join()
        x, (y,) = as_net_array(made[0], net)
        assert {type(x), type(y)} == {mx.np.ndarray}
        assert net(x).shape == (4, 2) and uses_np(net)
        assert as_net_array({"not": "an array"}, net) == {"not": "an array"}
    assert uses_np(net)  # it stays an np net outside
    assert not uses_np()


def test_arrays_are_converted_without_a_copy_and_gradients_go_through():
    plain = nn.Dense(2, in_units=3)
    plain.initialize()
    x = mx.np.ones((4, 3))
    x.attach_grad()
    with mx.autograd.record():
        plain(as_net_array(x, plain)).sum().backward()
    np.testing.assert_allclose(x.grad.asnumpy()[0], plain.weight.data().asnumpy().sum(axis=0), rtol=1e-6)
    as_nd_array(x)[:] = 7
    assert x.asnumpy().max() == x.asnumpy().min() == 7
