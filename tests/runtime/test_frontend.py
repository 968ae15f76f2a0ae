"""The quicker ways through MXNet's front end: the same values, gradients and errors as its own."""

from __future__ import annotations

import random
import subprocess
import threading

import numpy as np
import pytest

from gluontune import runtime
from gluontune.core.interpreter import python
from gluontune.runtime.frontend import _invoking, _setting, _transposed, _verifying

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
ours = (mx.nd.NDArray.__setitem__, mx.np.ndarray.__setitem__, mx.ndarray.register._imperative_invoke)
print(names, [way.__module__.startswith("gluontune") for way in ours])
"""
_CYTHON = """
import gluontune as gt
from gluontune.runtime.frontend import quicken
mx = gt.runtime.mxnet()
theirs = mx.ndarray.register._imperative_invoke
theirs.__module__ = "mxnet._cy3.ndarray"
ways = []
for _ in range(2):
    quicken(mx)
    ways.append((mx.nd.NDArray.__setitem__, mx.nd.swapaxes))
print(mx.ndarray.register._imperative_invoke is theirs, ways[0] == ways[1])
"""


@pytest.mark.process
@pytest.mark.parametrize("kind, transposes", [("tuned", True), ("as-installed", False)])
def test_a_tuned_process_is_quicker_and_another_is_mxnets(kind, transposes, tmp_path):
    env = runtime.child_env(kind)
    done = subprocess.run(python("-c", _SEEN), env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == f"{[transposes] * 5} {[transposes] * 3}\n", done.stderr


@pytest.mark.process
def test_cythons_calls_stay_and_a_second_time_changes_nothing(tmp_path):
    env = runtime.child_env("as-installed")
    done = subprocess.run(python("-c", _CYTHON), env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "True True\n", done.stderr


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


@pytest.fixture
def quick(monkeypatch):
    """``mx`` with the quicker call of operators; ``mx.slow(do)`` does it MXNet's way."""
    mx = runtime.mxnet()
    register, kinds = mx.ndarray.register, (mx.nd.NDArray, mx.np.ndarray)
    names = ("_imperative_invoke", "_verify_all_legacy_ndarrays", "_verify_all_np_ndarrays")
    before = [getattr(register, name) for name in names]
    ways = [_invoking(mx, kinds), *(_verifying(plain, kind) for plain, kind in zip(before[1:], kinds))]

    def use(functions):
        for name, function in zip(names, functions):
            monkeypatch.setattr(register, name, function)

    def both(do):
        found = []
        for functions in (before, ways):
            use(functions)
            try:
                found.append(do())
            except (mx.MXNetError, AssertionError, TypeError, ValueError) as error:
                found.append((type(error), str(error).split("Stack trace")[0]))
        return found

    yield mx, both
    use(before)


def _shown(value):
    if isinstance(value, (list, tuple)):
        return [_shown(each) for each in value]
    return type(value), getattr(value, "stype", ""), getattr(value, "dtype", ""), np.asarray(value.asnumpy()).tobytes()


_CALLS = {
    "attributes": lambda mx, x, out: mx.nd.sum(x, axis=1, keepdims=True),
    "a scalar": lambda mx, x, out: (x * 0.1 + 3) / 7,
    "a type": lambda mx, x, out: x.astype("int32"),
    "several outputs": lambda mx, x, out: mx.nd.split(x, num_outputs=2, axis=1),
    "one in a list": lambda mx, x, out: mx.nd.split(x, num_outputs=1, axis=1),
    "out": lambda mx, x, out: mx.nd.square(x, out=out),
    "out of an update": lambda mx, x, out: (mx.nd.sgd_mom_update(x, x, out, lr=0.1, out=out), out),
    "many arrays": lambda mx, x, out: mx.nd.concat(x, x, out, dim=0),
    "a sparse result": lambda mx, x, out: x.tostype("csr"),
    "a sparse argument": lambda mx, x, out: mx.nd.sparse.retain(x.tostype("row_sparse"), mx.nd.array([0, 2])),
    "a sparse out": lambda mx, x, out: mx.nd.square(x.tostype("csr"), out=x.tostype("csr")),
    "no arrays": lambda mx, x, out: mx.nd.arange(2, 5, step=0.5),
    "np": lambda mx, x, out: mx.np.sum(x.as_np_ndarray(), axis=0),
    "np to a list": lambda mx, x, out: mx.np.split(x.as_np_ndarray(), 2, axis=1),
    "np and out": lambda mx, x, out: mx.np.add(x.as_np_ndarray(), 2, out=out.as_np_ndarray()),
    "shapes that do not fit": lambda mx, x, out: mx.nd.dot(x, out),
    "an attribute that is none": lambda mx, x, out: mx.nd.sum(x, axis="left"),
    "an array of the other kind": lambda mx, x, out: mx.nd.square(x.as_np_ndarray()),
    "an out of the other kind": lambda mx, x, out: mx.nd.square(x, out=out.as_np_ndarray()),
    "the other kind for np": lambda mx, x, out: mx.nd.numpy._internal.multiply_scalar(x, scalar=2),
    "no array at all": lambda mx, x, out: mx.nd.square(5),
}


@pytest.mark.parametrize("call", list(_CALLS))
def test_a_call_has_the_result_or_the_error_of_mxnets(call, quick):
    mx, both = quick

    def do():
        x = mx.nd.array(np.random.RandomState(8).randn(3, 4))
        x.attach_grad()
        with mx.util.np_shape(True), mx.autograd.record():
            found = _CALLS[call](mx, x, mx.nd.ones((3, 4)))
        shown = _shown(found)
        first = found[0] if isinstance(found, (list, tuple)) else found
        if first.stype == "default" and first.dtype == np.float32 and call not in ("no arrays", "out of an update"):
            first.backward()
        return shown, x.grad.asnumpy().tobytes()

    theirs, mine = both(do)
    assert mine == theirs


def test_calls_of_many_threads_keep_apart(quick):
    mx, both = quick
    found = {}

    def work(number):
        x = mx.nd.full((5,), number)
        found[number] = [float((x * step + number).sum().asscalar()) for step in range(200)]

    def do():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return dict(found)

    theirs, mine = both(do)
    assert mine == theirs


def _drawn_values(mx, kind, shape, rng):
    array = getattr(mx, kind).array
    other = [1, *shape[1:]] if rng.random() < 0.5 else [*shape, 2]
    return rng.choice([
        lambda: 3, lambda: 0.1, lambda: True, lambda: np.float32(2.5), lambda: [[1.0]] * shape[0] if shape else 1.0,
        lambda: np.random.RandomState(1).randn(*shape), lambda: np.arange(int(np.prod(shape))).reshape(shape),
        lambda: array(np.random.RandomState(2).randn(*shape)), lambda: array(np.ones(shape), dtype="int32"),
        lambda: array(np.ones(other)), lambda: np.ones(other),
        lambda: getattr(mx, "np" if kind == "nd" else "nd").array(np.ones(shape or (1,))),
    ])  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_what_is_set_is_what_mxnet_sets(seed):
    mx, rng = runtime.mxnet(), random.Random(seed)
    for _ in range(40):
        kind = rng.choice(["nd", "np"])
        shape = tuple(rng.choice([1, 2, 3, 0]) for _ in range(rng.randint(0 if kind == "np" else 1, 3)))
        if kind == "nd" and 0 in shape:
            continue
        make = _drawn_values(mx, kind, shape, rng)
        key = rng.choice([slice(None)] * 4 + [slice(0, None), Ellipsis, 0])
        dtype, record = rng.choice(["float32", "float64", "int32", "float16"]), rng.random() < 0.3
        found = []
        with mx.util.np_shape(kind == "np"), mx.util.np_array(kind == "np"):
            owner = mx.np.ndarray if kind == "np" else mx.nd.NDArray
            for setter in (owner.__setitem__, _setting(owner.__setitem__, owner, mx.autograd.is_recording)):
                array = getattr(mx, kind).array(np.full(shape, 7), dtype=dtype)
                try:
                    value = make()
                    if record:
                        with mx.autograd.record():
                            setter(array, key, value)
                    else:
                        setter(array, key, value)
                    found.append((array.dtype, array.shape, array.asnumpy().tobytes()))
                except (mx.MXNetError, TypeError, ValueError, IndexError) as error:
                    found.append((type(error), str(error).split("Stack trace")[0]))
        assert found[1] == found[0], (kind, shape, key, dtype)


def test_an_array_set_to_itself_stays_and_one_added_to_in_place_is_added_to():
    mx = runtime.mxnet()
    owner = mx.nd.NDArray
    setter = _setting(owner.__setitem__, owner, mx.autograd.is_recording)
    array = mx.nd.ones((2, 3))
    setter(array, slice(None), array)
    part = array[:]
    part += 2
    setter(array, slice(None), part)
    assert array.asnumpy().tolist() == [[3.0] * 3] * 2
