"""Every operator of the bridge: hypothesis draws attributes and shapes, MXNet says what is right.

``GLUONTUNE_OPERATOR_EXAMPLES=50`` draws more of each operator than the suite does.
"""

from __future__ import annotations

import importlib
import json
from unittest import mock

import numpy as np
import pytest
from drawn_operators import DRAWN, FEW, FIXED, OPERATORS, FromHypothesis, fill, symbol_of
from hypothesis import given, strategies as st
from operator_samples import SAMPLES
from operator_samples.cases import Sample

import gluontune as gt
from gluontune.convert.bridge.agreement import _steady
from gluontune.convert.bridge.stand_ins import rounded

drawing = importlib.import_module("gluontune.convert.bridge.operators.creating")
torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")


@pytest.mark.parametrize("name", DRAWN)
def test_an_operator_computes_what_mxnet_computes(name):
    @FEW
    @given(data=st.data())
    def compare(data):
        sample = SAMPLES[name](FromHypothesis(data))
        compare_with_mxnet(name, sample, np.random.default_rng(data.draw(st.integers(0, 9))))

    compare()


def compare_with_mxnet(name, sample, rng):
    mx = gt.runtime.mxnet()
    arrays = {f"x{i}": fill(*each, rng=rng) for i, each in enumerate(sample.inputs)}
    document = symbol_of(mx, name, sample)
    text = json.dumps(document)
    symbol = mx.sym.load_json(_steady(text, sample.dtype) if sample.random else text)
    types = reference_types(mx.sym.load_json(_steady(text, "float64")))
    assert np.float32 not in types or rounded(name, sample.attrs), "the reference is in float32 from here on"
    auxiliary = symbol.list_auxiliary_states()
    arguments = [f"x{i}" for i in range(len(arrays)) if f"x{i}" not in auxiliary]
    module = gt.bridge.to_torch(document, {n: arrays[n] for n in auxiliary}, inputs=arguments)
    assert gt.graph.read_symbol(document).auxiliary() == auxiliary
    assert module.inputs == arguments
    kinds = {f"x{i}": each[0] for i, each in enumerate(sample.inputs)}
    moved = [n for n in arguments if sample.grads and kinds[n] not in FIXED]

    kept = {n: "int32" if kinds[n] == "integer" else sample.dtype for n in arguments}
    given_to = {n: mx.nd.array(arrays[n], dtype=kept[n]) for n in arguments if n in symbol.list_arguments()}
    states = {n: mx.nd.array(arrays[n], dtype=sample.dtype) for n in auxiliary}
    slopes = {n: mx.nd.zeros(arrays[n].shape, dtype=sample.dtype) for n in moved}
    bound = symbol.bind(mx.cpu(), given_to, slopes, {n: "write" if n in slopes else "null" for n in given_to}, states)
    training = sample.train or sample.grads
    wanted = bound.forward(is_train=training)

    tensors = {n: torch.tensor(arrays[n], dtype=torch.float64) for n in arguments}
    for n in moved:
        tensors[n].requires_grad_()
    with mock.patch.object(drawing, "STEADY", sample.random):
        found = module.train(training)(*tensors.values())
    found = list(found) if isinstance(found, tuple) else [found]
    assert len(found) == len(wanted)
    close = (
        2e-5
        if sample.dtype == "float32"
        else 2e-6
        if sample.random or OPERATORS[name].is_rounded(sample.attrs)
        else 1e-11
    )
    for ours, theirs in zip(found, wanted):
        assert tuple(ours.shape) == theirs.shape
        np.testing.assert_allclose(
            ours.detach().double().numpy(), theirs.asnumpy().astype("float64"), rtol=close, atol=close
        )
    if not moved:
        return
    heads = [rng.standard_normal(w.shape) for w in wanted]
    bound.backward([mx.nd.array(h, dtype=w.dtype) for h, w in zip(heads, wanted)])
    losses = [(o * torch.tensor(h)).sum() for o, h in zip(found, heads) if o.requires_grad]
    if losses:
        sum(losses).backward()
    for n in moved:
        ours = torch.zeros(()) if tensors[n].grad is None else tensors[n].grad
        theirs = slopes[n].asnumpy()
        np.testing.assert_allclose(ours.expand(theirs.shape).numpy(), theirs, rtol=10 * close, atol=close)
    for n in auxiliary:  # MXNet changes them in the backward pass
        np.testing.assert_allclose(module.state_dict()[n].numpy(), states[n].asnumpy(), rtol=close, atol=close)


def reference_types(symbol):
    """The types of a float64 reference's outputs; none where MXNet has the operator in float32 only."""
    try:
        return symbol.infer_type(**dict.fromkeys(symbol.list_inputs(), "float64"))[1] or ()
    except gt.runtime.mxnet().MXNetError:
        return ()


STOPS = {
    "BlockGrad": lambda F, x: F.BlockGrad(x),
    "stopped further up": lambda F, x: F.tanh(F.BlockGrad(x * 2)).sum(axis=1),
    "sign": lambda F, x: F.sign(x),
    "ones_like": lambda F, x: F.ones_like(x) * 3,
    "a comparison": lambda F, x: x > 0.1,
    "one_hot": lambda F, x: F.one_hot(F.argmax(x, axis=1), depth=3),
    "argsort": lambda F, x: F.argsort(x),
    "topk": lambda F, x: F.topk(x, k=2),
}
LOSSES = {
    "MakeLoss": lambda F, x: F.MakeLoss(x * x, grad_scale=0.5),
    "SoftmaxOutput": lambda F, x: F.SoftmaxOutput(x, F.ones_like(x).sum(axis=1) - 2),
    "LogisticRegressionOutput": lambda F, x: F.LogisticRegressionOutput(x, F.ones_like(x)),
}


@pytest.mark.parametrize("stop", STOPS)
def test_a_loss_that_no_gradient_comes_to_has_its_own(stop):
    mx = gt.runtime.mxnet()
    for name, loss in LOSSES.items():
        net = mx.gluon.nn.HybridLambda(lambda F, x, loss=loss: (STOPS[stop](F, loss(F, x)), x.tanh()))
        x = mx.nd.array(np.random.default_rng(7).normal(size=(4, 3)))
        x.attach_grad()
        with mx.autograd.record():
            outputs = net(x)
        mx.autograd.backward(list(outputs))
        module = gt.bridge.to_torch(net, inputs=1)
        given = torch.tensor(x.asnumpy(), requires_grad=True)
        found = module.train()(given)
        sum(one.sum() for one in found if one.requires_grad).backward()
        assert np.allclose(given.grad.numpy(), x.grad.asnumpy(), atol=1e-6), name
        assert all(np.allclose(a.detach().numpy(), b.asnumpy()) for a, b in zip(found, outputs))


def test_an_operator_that_is_float32_for_any_input_has_a_stand_in_for_references():
    mx = gt.runtime.mxnet()
    sample = Sample([("index", (2, 3), 2)], {"x": 0.3, "y": -float("inf")}, grads=False)
    symbol = mx.sym.load_json(json.dumps(symbol_of(mx, "_npi_where_scalar2", sample)))
    assert reference_types(symbol) == [np.float32], "MXNet computes in the input's type now"
    net = mx.gluon.SymbolBlock(mx.sym.tanh(symbol), [mx.sym.var("x0")])
    x = np.array([[0, 1, 2], [1, 0, -1]], "float32")
    assert gt.bridge.check(net, gt.bridge.to_torch(net), x, dtype="float64").output < 1e-15


def test_a_mask_of_ones_leaves_a_deformable_convolution_as_it_is():
    """Inside the image, where both kinds read alike; MXNet has the masked one's gradients on GPUs only."""
    rng = np.random.default_rng(3)
    how = {"kernel": (2, 2), "num_filter": 3, "num_deformable_group": 2}
    arrays = [rng.standard_normal((2, 4, 7, 7)), rng.uniform(0, 0.9, (2, 16, 6, 6)), rng.standard_normal((3, 4, 2, 2))]
    arrays[1][..., -1, :] = arrays[1][..., -1] = 0.0  # there: the image's last pixels
    plain, masked = ([torch.tensor(a, requires_grad=True) for a in arrays] for _ in range(2))
    mask = torch.ones(2, 8, 6, 6, dtype=torch.float64, requires_grad=True)
    one = OPERATORS["_contrib_DeformableConvolution"].run(*plain, no_bias=True, **how)
    two = OPERATORS["_contrib_ModulatedDeformableConvolution"].run(*masked[:2], mask, masked[2], no_bias=True, **how)
    torch.testing.assert_close(one, two)
    (one**2).sum().backward()
    (two**2).sum().backward()
    for place in (0, 2):
        torch.testing.assert_close(plain[place].grad, masked[place].grad)
    # On the last pixels only one of the two reads nothing beyond.
    inner = (..., slice(None, -1), slice(None, -1))
    torch.testing.assert_close(plain[1].grad[inner], masked[1].grad[inner])
    assert torch.autograd.gradcheck(
        lambda m: OPERATORS["_contrib_ModulatedDeformableConvolution"].run(
            *masked[:2], m, masked[2], no_bias=True, **how
        ),
        mask,
    )
