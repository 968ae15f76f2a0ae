"""MXNet's wrong gradients, each seen by finite differences; the other way through MXNet gives the right ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gluontune as gt
from gluontune.convert.bridge.agreement import _steady
from gluontune.convert.bridge.references import FAULTS, NOTHING, doubtful, right_way
from gluontune.runtime import mxnet

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
mx = mxnet()
S, nn, rnn = mx.sym, mx.gluon.nn, mx.gluon.rnn


class Compiled:
    """A symbol on drawn arrays, its loss a weighted sum of its outputs, in float64."""

    def __init__(self, symbol, shapes):
        drawn = np.random.default_rng(0)
        self.arrays = {name: drawn.uniform(-0.6, 0.6, shape) for name, shape in shapes.items()}
        self.symbol, self.heads = symbol, None
        if NOTHING in symbol.list_inputs():
            self.arrays[NOTHING] = np.zeros(1)
        self.block = mx.gluon.SymbolBlock(symbol, [S.var(name) for name in self.arrays])
        self.block.hybridize()

    def loss(self, arrays):
        outputs = self.block(*arrays)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        drawn = np.random.default_rng(1)
        return sum((o * mx.nd.array(drawn.normal(size=o.shape), dtype="float64")).sum() for o in outputs)

    def value(self):
        return self.loss([mx.nd.array(a, dtype="float64") for a in self.arrays.values()]).asscalar()

    def gradient(self, of, *others):
        arrays = {name: mx.nd.array(a, dtype="float64") for name, a in self.arrays.items()}
        for name in (of, *others):
            arrays[name].attach_grad()
        with mx.autograd.record():
            loss = self.loss(arrays.values())
        loss.backward()
        return arrays[of].grad.asnumpy()

    def differences(self, of, step=1e-3):
        """LeakyReLU computes in float32 whatever it is given, so the steps are long."""
        array, found = self.arrays[of], np.zeros(self.arrays[of].shape)
        for place in np.ndindex(array.shape):
            kept = array[place]
            array[place] = kept + step
            above = self.value()
            array[place] = kept - step
            below = self.value()
            array[place] = kept
            found[place] = (above - below) / (2 * step)
        return found


def fused(mode, layers, both):
    ways, hidden, taken = 1 + both, 2, 3
    rows = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}[mode] * hidden
    count = ways * (rows * (taken + hidden) + (layers - 1) * rows * (hidden * ways + hidden) + layers * 2 * rows)
    states = dict.fromkeys(("h", "c")[: 2 if mode == "lstm" else 1], (layers * ways, 2, hidden))
    shapes = {"x": (4, 2, taken), "w": (count,), **states}
    made = S.RNN(*[S.var(n) for n in shapes], state_size=hidden, num_layers=layers, bidirectional=both, mode=mode,
                 state_outputs=True)  # fmt: skip
    return made, shapes


def chosen(choose):
    """By the sign of ``c``, which is one number for two of x."""
    sign, x = (S.var("c") > 0).as_np_ndarray(), S.var("x").as_np_ndarray()
    return (choose(sign, x) * x).as_nd_ndarray(), {"x": (2, 3, 4), "c": (2, 1, 4)}


def moment(of, **how):
    x = S.var("x").as_np_ndarray()
    return (of(x, **how) * x).as_nd_ndarray()


CASES = {
    **{f"{m}, {n} layers{', both ways' if b else ''}": (lambda m=m, n=n, b=b: fused(m, n, b), "w")
       for m, n, b in [("lstm", 2, False), ("gru", 2, False), ("gru", 2, True), ("rnn_tanh", 3, False),
                       ("lstm", 3, False), ("rnn_tanh", 3, True)]},
    "prelu": (lambda: (S.tanh(S.LeakyReLU(S.var("x") * 2, S.var("w"), act_type="prelu")),
                       {"x": (2, 3, 4), "w": (3,)}), "w"),
    "prelu of one slope": (lambda: (S.tanh(S.LeakyReLU(S.var("x") * 2, S.var("w"), act_type="prelu")),
                                    {"x": (4, 5), "w": (1,)}), "w"),
    "selu": (lambda: (S.LeakyReLU(S.var("x"), act_type="selu"), {"x": (3, 4)}), "x"),
    "np.where, a number": (lambda: chosen(lambda c, x: S.np.where(c, x, -2.5)), "x"),
    "np.std": (lambda: (moment(S.np.std, axis=(0, 2), keepdims=True), {"x": (2, 3, 4)}), "x"),
    "np.var, of a sample": (lambda: (moment(S.np.var, axis=-1, ddof=1, keepdims=True), {"x": (2, 3, 4)}), "x"),
    "np.where of a number": (lambda: chosen(lambda c, x: S.np.where(c, -2.5, x)), "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_mxnets_gradient_is_wrong_and_another_way_through_mxnet_is_right(name):
    make, of = CASES[name]
    symbol, shapes = make()
    other, told = right_way(symbol, shapes, "float64")
    assert len(told) == 1
    theirs, right = Compiled(symbol, shapes), Compiled(other, shapes)
    assert right.value() == pytest.approx(theirs.value(), rel=1e-6)  # the same net
    true = theirs.differences(of)
    scale = np.abs(true).max()
    wanted = [of] if "layers" in name or "where" in name else [of, *({"x"} - {of})]
    wrong = np.abs(theirs.gradient(*wanted) - true).max()
    assert not wrong < 0.01 * scale, "MXNet is right now: take it from the table"
    assert np.abs(right.gradient(*wanted) - true).max() < 1e-3 * scale


@pytest.mark.parametrize("mode, layers", [("gru", 1), ("rnn_tanh", 1), ("gru", 2), ("lstm", 2), ("rnn_tanh", 3)])
def test_frozen_weights_are_asked_for_all_the_same(mode, layers):
    """The gradients of an input and a state are wrong where nobody asks for the weights'."""
    symbol, shapes = fused(mode, layers, False)
    other, told = right_way(symbol, shapes, "float64", frozen=["x", "w"])
    assert len(told) == 1
    theirs, right = Compiled(symbol, shapes), Compiled(other, shapes)
    true = theirs.differences("h")
    assert not np.abs(theirs.gradient("h") - true).max() < 0.01 * np.abs(true).max(), "MXNet is right now"
    np.testing.assert_allclose(right.gradient("h", NOTHING), true, atol=1e-5)


def test_the_input_that_needs_a_gradient_is_the_way_out_that_the_docs_tell():
    net = Compiled(*fused("lstm", 2, False))
    np.testing.assert_allclose(net.gradient("w", "x"), net.differences("w"), atol=1e-5)


def test_what_is_right_is_left_alone():
    operators = {"RNN", "LeakyReLU", "FullyConnected", "_npi_where_lscalar", "_npi_where_rscalar", "_npi_std",
                 "_npi_var", "Deconvolution"}  # fmt: skip
    assert {fault.operator for fault in FAULTS} == operators
    for symbol, shapes in (fused("lstm", 1, True), (S.LeakyReLU(S.var("x"), act_type="elu"), {"x": (2, 3)})):
        assert right_way(symbol, shapes, "float64") == (symbol, [])
    symbol, shapes = fused("lstm", 2, False)
    assert right_way(symbol, shapes, "float32")[1] == []  # oneDNN's kernel
    symbol, shapes = fused("gru", 1, False)
    assert right_way(symbol, shapes, "float64", frozen=["x", "h"])[1] == []


@pytest.mark.parametrize("computed", [False, True])
def test_a_deconvolution_that_would_end_the_process_is_compared_in_float64(computed):
    def made(x, w):
        return S.Deconvolution(x, S.square(w) if computed else w, kernel=(3, 3), pad=(1, 1), num_filter=4)

    x, w, shapes = S.var("x"), S.var("w"), {"x": (2, 4, 5, 5), "w": (4, 4, 3, 3)}
    assert right_way(S.Deconvolution(x, w, kernel=(3, 3), num_filter=4), shapes, "float32")[1] == []
    symbol = made(x, w) if computed else made(S.sin(made(x, w)), w)
    assert right_way(symbol, shapes, "float64")[1] == []  # a kernel of MXNet's own
    other, told = right_way(symbol, shapes, "float32")
    assert len(told) == 1 and "the process ends" in told[0]
    arrays = {name: mx.nd.array(np.random.default_rng(0).uniform(-1, 1, shape)) for name, shape in shapes.items()}
    found = []
    for way, dtype in ((other, "float32"), (symbol, "float64")):
        block = mx.gluon.SymbolBlock(way, [x, w])
        given = [arrays[name].astype(dtype) for name in ("x", "w")]
        for array in given:
            array.attach_grad()
        with mx.autograd.record():
            loss = block(*given).square().sum()
        loss.backward()
        found.append([array.grad.asnumpy() for array in given])
    for mine, its in zip(*found):
        np.testing.assert_allclose(mine, its, rtol=1e-3, atol=1e-3 * np.abs(its).max())


def agree(net, *sample, **how):
    net.initialize(mx.init.Uniform(0.5))
    net(*[mx.nd.array(s, dtype=s.dtype) for s in sample])
    return gt.bridge.check(net, gt.bridge.to_torch(net), sample, train=True, dtype="float64", **how)


x = np.random.default_rng(0).normal(size=(4, 2, 3)).astype("float32")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_nets_are_compared_with_right_gradients(kind):
    found = agree(getattr(rnn, kind)(5, num_layers=3, bidirectional=True), x)
    assert max(found.output, found.gradient) < (1e-6 if kind == "RNN" else 1e-12)  # its relu is one of float32
    assert "a fused LSTM, GRU or RNN of several layers" in str(found)


class Encodes(nn.HybridBlock):
    """A recurrent layer of weights that stay, before which something is trained."""

    def __init__(self):
        super().__init__()
        self.before, self.encoder = nn.Dense(3, flatten=False), rnn.GRU(4)
        self.encoder.collect_params().setattr("grad_req", "null")

    def hybrid_forward(self, F, x):
        return self.encoder(self.before(x))


def test_what_stands_before_a_frozen_recurrent_layer_is_compared_with_right_gradients():
    net = Encodes()
    found = agree(net, x)
    assert max(found.output, found.gradient) < 1e-12
    assert "whose weights are frozen" in str(found)
    net.cast("float64")
    assert ["frozen" in note for note in doubtful(net)] == [True]


def test_a_net_of_lists_is_told_to_run_once_and_converts_then():
    class Unrolled(nn.HybridBlock):
        def hybrid_forward(self, F, x, states):
            return x + states[0] * states[1]

    net = Unrolled()
    given = [mx.nd.array(x), [mx.nd.array(x), mx.nd.array(x)]]
    net(*given)
    with pytest.raises(gt.errors.GluontuneError, match="lists of arrays, as states are, hybridize it and run"):
        gt.bridge.to_torch(net, inputs=3)
    net.hybridize()
    net(*given)
    assert gt.bridge.check(net, gt.bridge.to_torch(net, inputs=3), (x, x, x)).output < 1e-6


class Draws(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.random.poisson(2.0, shape=(2, 3)), F.random.uniform(0, 3, shape=(4,))


def test_a_variance_whose_mean_nobody_reads_is_compared_with_the_right_one():
    symbol = S.moments(S.tanh(S.var("x")), axes=(0, 2))[1]
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    wrong = symbol.bind(mx.cpu(), {"x": mx.nd.array(x)}).forward()[0].asnumpy()
    assert not np.abs(wrong - np.tanh(x).var((0, 2))).max() <= 0.01, "MXNet is right now"  # it may be NaN
    net = mx.gluon.SymbolBlock(symbol, [S.var("x")])
    assert gt.bridge.check(net, gt.bridge.to_torch(net), x, dtype="float64").output < 1e-9


def test_outputs_of_another_precision_have_their_share_of_the_gradients():
    x = S.var("x")
    net = mx.gluon.SymbolBlock([S.tanh(x), S.cast(x, "float64") * 2, S.cast(x, "float16") * 3], [x])
    module, x = gt.bridge.to_torch(net), np.array([[0.5, -0.25]], "float32")
    for dtype, bar in {"float32": 1e-3, "float64": 1e-3}.items():
        assert gt.bridge.check(net, module, x, train=True, dtype=dtype).gradient < bar, dtype


def test_draws_of_no_type_are_of_the_type_that_is_compared():
    assert agree(Draws(), x).outputs == (0.0, 0.0)


class ReadsNothing(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.ones((2, 3)) * 2, F.arange(0, 4)


def test_a_graph_without_a_variable_is_compared():
    """MXNet compiles none: 'There are no inputs in computation graph that require gradients'."""
    found = agree(ReadsNothing(), x)
    assert found.outputs == (0.0, 0.0)
    assert gt.bridge.check(ReadsNothing(), gt.bridge.to_torch(ReadsNothing()), x).outputs == (0.0, 0.0)


class ReadsTheSecond(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.act = nn.SELU()

    def hybrid_forward(self, F, unread, x):
        return self.act(x)


def test_a_label_has_no_gradient_in_the_reference():
    """MXNet leaves there what the memory held, zeros mostly."""
    label = S.tanh(S.var("y"), name="label")
    nodes = json.loads(_steady(S.LinearRegressionOutput(S.var("x"), label).tojson(), "float64"))["nodes"]
    (last,) = [node for node in nodes if node["op"] == "LinearRegressionOutput"][-1:]
    assert nodes[last["inputs"][1][0]]["op"] == "BlockGrad"


def test_a_normalized_net_of_small_spread_is_compared_with_the_epsilon_that_mxnet_has():
    """Four bytes of it, in the reference too."""
    net = nn.HybridSequential()
    net.add(nn.Dense(8, flatten=False), nn.InstanceNorm(epsilon=1e-3))
    assert agree(net, x / 100).gradient < 1e-12


def test_an_input_that_nothing_reads_is_no_reason_to_fail_where_a_gradient_is_wrong():
    net = ReadsTheSecond()
    net.initialize()
    module = gt.bridge.to_torch(net, inputs=2)
    found = gt.bridge.check(net, module, (x, x), train=True)
    assert found.output < 1e-6 and len(found.faults) == 1


def test_activations_are_compared_with_right_gradients():
    net = nn.HybridSequential()
    net.add(nn.Dense(4), nn.PReLU(), nn.Dense(5, activation="relu"), nn.SELU(), nn.Dense(2))
    found = agree(net, x)
    assert found.gradient < 1e-6 and len(found.faults) == 2  # LeakyReLU computes in float32


def test_a_sparse_gradient_is_compared_as_a_dense_one():
    net = nn.HybridSequential()
    net.add(nn.Embedding(20, 5, sparse_grad=True), nn.Dense(3))
    found = agree(net, np.array([[1, 2], [3, 19]], "float32"))
    assert found.gradient < 1e-12 and not found.faults
    assert net[0].weight.grad().stype == "row_sparse"  # the net itself is left as it was


def test_a_recurrent_layer_alone_takes_what_it_was_called_with():
    net = rnn.LSTM(5, 2)
    net.initialize()
    states = net.begin_state(2)
    net(mx.nd.array(x))
    assert gt.bridge.check(net, gt.bridge.to_torch(net), x).output < 1e-5
    net(mx.nd.array(x), states)
    module = gt.bridge.to_torch(net, inputs=3)
    found = gt.bridge.check(net, module, (x, *[s.asnumpy() for s in states]))
    assert found.output < 1e-5 and len(found.outputs) == 3
    with pytest.raises(gt.errors.UsageError, match="takes more than 2 inputs: "):
        gt.bridge.check(net, module, (x, x))


class Concatenates(nn.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = nn.Dense(5, flatten=False)

    def hybrid_forward(self, F, x):
        y = F.np.tanh(self.dense(x))
        return F.np.concatenate([y, y * 2], axis=-1).sum(axis=1), F.np.mean(y, axis=0)


def test_nets_of_set_np_are_checked():
    with mx.util.np_shape(True), mx.util.np_array(True):
        plain = nn.HybridSequential()
        plain.add(nn.Conv1D(4, 2, activation="relu"), nn.BatchNorm(), nn.MaxPool1D(), nn.Dense(3))
        for net in (plain, Concatenates()):
            net.initialize()
            net(mx.np.array(x))
            module = gt.bridge.to_torch(net)
            for train in (False, True):
                found = gt.bridge.check(net, module, x, train=train, dtype="float64")
                assert max(found.output, found.gradient) < 1e-12


class ReducesNothing(nn.HybridBlock):
    """As L2Loss does in mx.np where an output has the batch's axis alone."""

    def hybrid_forward(self, F, x):
        y = x.sum(axis=2)
        same = [getattr(F.np, name)(y, axis=()) for name in ("mean", "sum", "max", "min", "prod", "squeeze", "flip")]
        spread = [F.np.var(y, axis=()), F.np.mean(y, axis=(), keepdims=True)]
        truth = [F.np.where(getattr(F.np, name)(y, axis=()), y, y * 2) for name in ("any", "all")]
        return F.np.concatenate([*same, *spread, *truth], axis=1) * F.np.mean(y)


def test_no_axes_are_none_to_numpy(tmp_path):
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = ReducesNothing()
        net.hybridize()
        net(mx.np.array(x))
        module = gt.bridge.to_torch(net)
        found = gt.bridge.check(net, module, x, dtype="float64")
        assert max(found.output, found.gradient) < 1e-12
        assert gt.bridge.migrate(net, tmp_path / "out", mx.np.array(x)).agrees


JOB = """
import numpy as np
from mxnet import gluon

def net():
    net = gluon.nn.HybridSequential()
    net.add(gluon.rnn.LSTM(4, num_layers=2, layout="NTC"), gluon.nn.Dense(2))
    return net

def data():
    x = np.random.default_rng(0).normal(size=(64, 5, 3)).astype("float32")
    made = gluon.data.ArrayDataset(x, (x.mean((1, 2)) > 0).astype("float32"))
    return made, made
"""


@pytest.mark.parametrize("kernel", [{}, {"MXNET_USE_MKLDNN_RNN": "0"}])
def test_a_run_whose_gradients_may_be_wrong_says_so(tmp_path, kernel):
    (tmp_path / "job.py").write_text(JOB)
    result = gt.train.run(gt.Recipe(job=str(tmp_path / "job.py"), batch_size_per_device=32, epochs=1, env=kernel))
    assert result.ok, result.error
    assert [note.partition(":")[0] for note in result.notes] == (["layer 0"] if kernel else [])


def test_the_bias_of_a_frozen_dense_layer_gets_no_gradient_but_in_the_reference():
    symbol = S.FullyConnected(S.var("x"), S.var("w"), S.var("b"), num_hidden=3)
    shapes = {"x": (4, 5), "w": (3, 5), "b": (3,)}
    other, faults = right_way(symbol, shapes, "float32", frozen=("x", "w"))
    assert len(faults) == 1
    assert right_way(symbol, shapes, "float32", frozen=("x", "w", "b")) == (symbol, [])

    def gradient(of):
        block = mx.gluon.SymbolBlock(of, [S.var(name) for name in of.list_inputs()])
        arrays = {name: mx.nd.ones(shapes.get(name, (1,))) for name in of.list_inputs()}
        for name in {"b", NOTHING} & set(arrays):
            arrays[name].attach_grad()
        arrays["b"].grad[:] = 7
        with mx.autograd.record():
            loss = (block(*arrays.values()) * 2).sum()
        loss.backward()
        return arrays["b"].grad.asnumpy().tolist()

    assert gradient(symbol) == [7, 7, 7]
    assert gradient(other) == [8, 8, 8]
    net = nn.Dense(3, in_units=5)
    net.initialize()
    net.weight.grad_req = "null"
    assert "its bias gets no gradient" in doubtful(net)[0]
    sample = (mx.nd.ones((4, 5)),)
    agreement = gt.bridge.check(net, gt.bridge.to_torch(net), sample, train=True)
    assert agreement.gradient < 1e-5
    assert len(agreement.faults) == 1


def test_doubtful_layers_are_named():
    net = nn.HybridSequential()
    net.add(nn.Dense(2), nn.SELU(), nn.PReLU(), rnn.LSTM(3, 2))
    assert [note.partition(":")[0] for note in doubtful(net)] == ["layer 1", "layer 2"]
    net.cast("float64")
    assert [note.partition(":")[0] for note in doubtful(net)] == ["layer 1", "layer 2", "layer 3"]
