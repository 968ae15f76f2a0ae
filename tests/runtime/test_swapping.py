"""Swapped axes by a transpose: the same values and gradients, whoever asks for them."""

from __future__ import annotations

import random
import subprocess

import numpy as np
import pytest

from gluontune import runtime
from gluontune.core.interpreter import python
from gluontune.runtime.importing import _transposed

pytestmark = pytest.mark.mxnet
_SEEN = """
import gluontune as gt
mx = gt.runtime.mxnet()
ways = {
    "nd": ("mx.nd.swapaxes(x, 1, -1)", "mx.nd.SwapAxis(data=x, dim2=-1, dim1=1)", "x.swapaxes(1, -1)"),
    "np": ("mx.np.swapaxes(x, 1, -1)", "x.swapaxes(1, -1)"),
}
names = []
for kind in ways:
    x = getattr(mx, kind).ones((2, 3, 4))
    for way in ways[kind]:
        mx.profiler.set_config(profile_imperative=True, aggregate_stats=True, filename="none.json")
        mx.profiler.set_state("run")
        assert eval(way).shape == (2, 4, 3)
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        names.append("transpose" in mx.profiler.dumps(reset=True))
print(names)
"""


@pytest.mark.process
@pytest.mark.parametrize("kind, transposes", [("tuned", True), ("as-installed", False)])
def test_a_tuned_process_transposes_and_another_is_mxnets(kind, transposes, tmp_path):
    env = runtime.child_env(kind)
    done = subprocess.run(python("-c", _SEEN), env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == f"{[transposes] * 5}\n", done.stderr


@pytest.mark.parametrize("kind", ["nd", "np"])
def test_values_and_gradients_are_mxnets(kind):
    mx = runtime.mxnet()
    array, plain = getattr(mx, kind).array, (mx.nd if kind == "nd" else mx.nd.numpy._internal).swapaxes
    mine, rng = _transposed(plain, (mx.nd.NDArray, mx.np.ndarray)), random.Random(6)
    for _ in range(60):
        count = rng.randint(1, 6)
        shape = [rng.choice([1, 2, 3, 5, 9]) for _ in range(count)]
        a, b = rng.randint(-count, count - 1), rng.randint(-count, count - 1)
        dtype = rng.choice(["float32", "float64", "float16", "int32", "int64", "int8", "uint8"])
        x = array(np.random.RandomState(rng.randint(0, 99)).randn(*shape) * 50, dtype=dtype)
        found = []
        for way in (plain, mine):
            x.attach_grad()
            with mx.autograd.record():
                y = way(x, dim1=a, dim2=b)
            y.backward(y)
            assert type(y) is type(x) and y.dtype == x.dtype
            found.append((y.asnumpy(), x.grad.asnumpy()))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        np.testing.assert_array_equal(found[0][1], found[1][1])


def test_what_transpose_cannot_do_is_left_to_mxnet():
    mx = runtime.mxnet()
    asked = []
    mine = _transposed(lambda *args, **more: asked.append(args[1:]), (mx.nd.NDArray, mx.np.ndarray))
    x = mx.nd.ones((2, 3))
    for dims, more in [((0, 2), {}), ((-3, 0), {}), ((0, 1), {"out": x}), ((None, 1), {}), ((True, 1), {})]:
        mine(x, *dims, **more)
        assert asked.pop() == dims and not asked
    mine(mx.nd.ones((1,) * 7), 0, 1)
    mine(mx.nd.sparse.zeros("csr", (2, 3)), 0, 1)
    mine(mx.sym.var("x"), dim1=0, dim2=1)
    assert len(asked) == 3
