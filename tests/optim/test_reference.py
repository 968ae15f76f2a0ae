"""One table drives every optimizer through the same 50 updates, against numpy references in float64."""

from __future__ import annotations

import numpy as np
import pytest
from optim_cases import (
    BATCH,
    CASES,
    ONE,
    SHAPES,
    TWO,
    WD,
    distance,
    make,
    norm,
    optimizer_of,
    reference,
    schedule_of,
    steps,
    weights_and_grads,
)

from gluontune import optim
from gluontune.core.errors import UsageError
from gluontune.optim import _base
from gluontune.optim.torch_rules import TORCH_RULES, TorchOptimizer
from gluontune.runtime import mxnet

mx = mxnet()
TORCH = [name for name in CASES if optimizer_of(name) in TORCH_RULES]


def test_the_torch_backend_has_all_optimizers_but_one():
    assert set(CASES) - set(TORCH) == {"yellowfin"}


@pytest.mark.parametrize("name", TORCH)
def test_the_torch_backend_follows_the_reference(name):
    torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")
    case = CASES[name]
    weights, grads = weights_and_grads("float64")
    params = {n: torch.nn.Parameter(torch.tensor(w)) for n, w in weights.items()}
    options = {"momentum": 0.9, **case.options}
    optimizer = TorchOptimizer(optimizer_of(name), params, schedule_of(case), wd=WD, **options)
    for step in grads:
        for n, g in step.items():
            params[n].grad = torch.tensor(g) * BATCH
        optimizer.step(1 / BATCH)
    expected = reference(case, weights, grads)
    for n, w in expected.items():
        assert norm(params[n].detach().numpy() - w) <= 1e-9 * norm(w), n


def test_every_optimizer_has_a_reference():
    assert {optimizer_of(name) for name in CASES} == set(optim.list_optimizers())


@pytest.mark.parametrize(
    ("ctx", "on_kvstore"), [(ONE, False), (TWO, False), (TWO, True)], ids=["one", "two", "two-kvstore"]
)
@pytest.mark.parametrize("name", CASES)
def test_float32_follows_the_reference(name, ctx, on_kvstore):
    follows(name, ctx, on_kvstore)


def test_an_update_on_a_kvstore_that_gluon_does_not_make_follows_it_too():
    follows("nag", [mx.cpu(1)], on_kvstore=True)  # one device: gluon makes no kvstore for it


def follows(name, ctx, on_kvstore):
    weights, grads = weights_and_grads()
    params, trainer = make(name, weights, ctx, update_on_kvstore=on_kvstore)
    steps(params, trainer, grads, ctx)
    expected = reference(CASES[name], weights, grads)
    assert distance(params, expected, ctx[0]) <= 1e-6
    assert min(norm(expected[n] - weights[n]) / norm(weights[n]) for n in SHAPES) > 1e-3
    for n in SHAPES:  # replicas never drift
        assert all((params[n].data(c).asnumpy() == params[n].data(ctx[0]).asnumpy()).all() for c in ctx)


@pytest.mark.parametrize("ctx", [ONE, pytest.param(TWO, marks=pytest.mark.slow)], ids=["one", "two"])
@pytest.mark.parametrize("name", CASES)
def test_large_layers_have_kernels_of_their_own_and_follow_the_reference(name, ctx, monkeypatch):
    monkeypatch.setattr(_base, "LARGE", 20)
    weights, grads = weights_and_grads()
    assert any(w.size < 20 for w in weights.values()) and any(w.size >= 20 for w in weights.values())
    params, trainer = make(name, weights, ctx)
    steps(params, trainer, grads, ctx)
    assert distance(params, reference(CASES[name], weights, grads), ctx[0]) <= 1e-6


def arrays_of(state):
    if isinstance(state, mx.nd.NDArray):
        return [state]
    return [a for part in state for a in arrays_of(part)] if isinstance(state, (list, tuple)) else []


@pytest.mark.parametrize("name", CASES)
def test_float16_weights_follow_a_float32_master(name):
    weights, grads = weights_and_grads("float16")
    params, trainer = make(name, weights, ONE, "float16")
    steps(params, trainer, grads, ONE)
    expected = reference(CASES[name], weights, grads)
    for index, n in enumerate(sorted(SHAPES)):
        low, full = params[n].data().asnumpy(), expected[n]
        assert low.dtype == np.float16
        assert norm(low - full) / norm(full) < 1e-3
        kept = [a.asnumpy() for a in arrays_of(trainer._updaters[0].states[index]) if a.shape == full.shape]
        master = min((a for a in kept if a.dtype == np.float32), key=lambda a: norm(a - full))
        assert norm(master - full) / norm(full) <= 1e-6


@pytest.mark.parametrize("on_kvstore", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_saved_in_the_middle_and_resumed_is_the_same_run(name, on_kvstore, tmp_path):
    weights, grads = weights_and_grads()  # 24 updates: YellowFin's window of 20 is full after the resume alone
    whole, trainer = make(name, weights, TWO, update_on_kvstore=on_kvstore)
    steps(whole, trainer, grads[:12], TWO)
    trainer.save_states(tmp_path / "t.states")
    middle = {n: whole[n].data(TWO[0]).asnumpy() for n in SHAPES}
    steps(whole, trainer, grads[12:24], TWO)

    resumed, second = make(name, middle, TWO, update_on_kvstore=on_kvstore)
    second.load_states(tmp_path / "t.states")
    assert second.num_update == 12
    steps(resumed, second, grads[12:24], TWO)
    for n in SHAPES:
        for c in TWO:
            assert (resumed[n].data(c).asnumpy() == whole[n].data(c).asnumpy()).all()


@pytest.mark.parametrize("name", CASES)
def test_float16_without_masters_works_or_says_what_it_needs(name):
    weights, grads = weights_and_grads("float16")
    if optim.OPTIMIZERS[optimizer_of(name)].needs_masters:
        with pytest.raises(UsageError, match="multi_precision=True"):
            make(name, weights, ONE, "float16", multi_precision=False)
        return
    params, trainer = make(name, weights, ONE, "float16", multi_precision=False)
    steps(params, trainer, grads[:3], ONE)
    expected = reference(CASES[name], weights, grads[:3])
    assert distance(params, expected, ONE[0]) < 0.02


@pytest.mark.parametrize("shape", [(2, 64, 576), (2, 576, 64), (1, 48, 500)])
@pytest.mark.parametrize("spectrum", ["even", "steep", "rank 8"])
def test_muons_steps_on_the_gram_matrix_are_the_steps(shape, spectrum, monkeypatch):
    from gluontune.optim import layerwise

    rng = np.random.default_rng(0)
    matrices = rng.normal(size=shape)
    if spectrum == "rank 8":
        matrices = rng.normal(size=(*shape[:2], 8)) @ rng.normal(size=(shape[0], 8, shape[2]))
    elif spectrum == "steep":
        left, values, right = np.linalg.svd(matrices, full_matrices=False)
        matrices = left * np.logspace(0, -4, values.shape[1]) @ right
    taken = []
    steps = layerwise._steps_on_gram
    monkeypatch.setattr(layerwise, "_steps_on_gram", lambda *a: taken.append(1) or steps(*a))
    given = layerwise.nd.array(matrices.astype("float32"))
    found = layerwise.orthogonalized(layerwise.nd, given, *given.shape, steps=5).asnumpy()
    assert taken
    x = matrices / np.linalg.norm(matrices, axis=(1, 2), keepdims=True)
    for _ in range(5):
        gram = x @ x.swapaxes(1, 2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    assert np.abs(found - x).max() <= 5e-5 * np.abs(x).max()


def test_sums_of_squares_of_large_layers_keep_their_digits():
    large = mx.nd.random.normal(shape=(2**11, 2**11))
    found = _base.squares([mx.nd.full((3,), 2), large, mx.nd.ones((2,)), large[:32]]).asnumpy()
    exact = [float((a.asnumpy().astype("float64") ** 2).sum()) for a in (large, large[:32])]
    assert found[[0, 2]].tolist() == [12, 2]
    np.testing.assert_allclose(found[[1, 3]], exact, rtol=1e-4)  # MXNet's multi_sum_sq is 4e-3 off
