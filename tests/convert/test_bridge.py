"""Gluon nets as PyTorch modules: outputs, gradients, statistics; weights given back; every refusal a sentence."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import numpy as np
import pytest

import gluontune as gt
from gluontune.core.errors import GluontuneError, UsageError

torch = pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")


def net_of(name, shape, seed=1):
    mx = gt.runtime.mxnet()
    mx.random.seed(seed)
    net = gt.train.build_net(name, 10)
    net.initialize(mx.init.Xavier(magnitude=2))
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    net(mx.nd.array(x))
    return net, x


@pytest.fixture(scope="module")
def resnet():
    return net_of("cifar_resnet20_v1", (4, 3, 32, 32))


def test_a_residual_net_agrees_in_outputs_gradients_and_statistics(resnet):
    net, x = resnet
    module = gt.bridge.to_torch(net)
    assert module.inputs == ["data"] and not module.training
    assert set(dict(module.named_parameters())) | set(dict(module.named_buffers())) == set(net.collect_params())
    assert gt.bridge.check(net, module, x).output < 1e-5
    found = gt.bridge.check(net, module, x, train=True, dtype="float64")
    assert found.output < 1e-10 and found.gradient < 1e-10
    assert len(found.gradients) > 50 and found.statistics and max(found.statistics.values()) < 1e-6
    assert "gradients by" in str(found)


def test_running_means_of_zero_are_compared_by_their_deviation():
    """In MobileNet v2 a BatchNorm reads what another has centred: its running mean is nothing but rounding."""
    net, x = net_of("mobilenetv2_0.25", (4, 3, 32, 32))
    found = gt.bridge.check(net, gt.bridge.to_torch(net), x, train=True, dtype="float64")
    assert max(found.statistics.values()) < 1e-6 and found.gradient < 1e-10


def test_statistics_that_no_gradient_passes_stay_as_mxnet_leaves_them():
    """ResNet v2 begins with a BatchNorm of fixed gamma and beta: MXNet, which counts in the backward pass, skips it."""
    net, x = net_of("cifar_resnet20_v2", (4, 3, 32, 32))
    module = gt.bridge.to_torch(net)
    found = gt.bridge.check(net, module, x + 1, train=True, dtype="float64")
    assert max(found.statistics.values()) < 1e-6
    first = next(iter(dict(module.named_buffers()).values()))
    others = [b.clone() for b in module.buffers()]
    module.train()(torch.from_numpy(x + 1))
    assert torch.equal(first, others[0])
    assert not torch.equal(list(module.buffers())[-1], others[-1])


def test_statistics_are_counted_where_only_a_fixed_gamma_wants_a_gradient():
    """As ``F.BatchNorm``, or a loaded symbol, of what needs none: MXNet's backward pass comes to its gamma."""
    mx = gt.runtime.mxnet()

    class Net(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            kept = {"shape": (3,), "grad_req": "null"}
            self.gamma = self.params.get("gamma", shape=(3,), init="ones")
            self.beta = self.params.get("beta", init="zeros", **kept)
            self.mean = self.params.get("mean", init="zeros", **kept)
            self.var = self.params.get("var", init="ones", **kept)

        def hybrid_forward(self, F, x, gamma, **kept):
            return F.BatchNorm(x, gamma, kept["beta"], kept["mean"], kept["var"]), gamma * 2

    net = Net()
    net.initialize()
    x = np.random.default_rng(0).standard_normal((4, 3, 5)).astype("float32") + 2
    net(mx.nd.array(x))
    module = gt.bridge.to_torch(net)
    assert max(gt.bridge.check(net, module, x, train=True, dtype="float64").statistics.values()) < 1e-9


def test_weights_are_read_when_mxnet_is_at_rest(resnet, monkeypatch):
    """In predict mode MXNet orders convolutions' weights anew behind the back of who reads them."""
    mx = gt.runtime.mxnet()
    told = []
    wait, read = mx.nd.waitall, mx.gluon.Parameter.data
    monkeypatch.setattr(mx.nd, "waitall", lambda: (told.append("waits"), wait()))
    monkeypatch.setattr(mx.gluon.Parameter, "data", lambda self, ctx=None: (told.append("reads"), read(self, ctx))[1])
    module = gt.bridge.to_torch(resnet[0])
    assert told[0] == "waits" and "reads" in told
    told.clear()
    gt.bridge.check(resnet[0], module, resnet[1])
    assert "waits" in told


def test_a_wrong_weight_is_seen_by_check(resnet):
    net, x = resnet
    module = gt.bridge.to_torch(net)
    name = next(n for n, p in module.named_parameters() if p.dim() == 4)
    with torch.no_grad():
        module.get_parameter(name).mul_(1.01)
    assert gt.bridge.check(net, module, x).output > 1e-4
    assert gt.bridge.check(net, module, x, train=True, dtype="float64").gradient > 1e-4


def test_exported_files_need_no_mxnet(resnet, tmp_path):
    net, x = resnet
    mx = gt.runtime.mxnet()
    copy = gt.train.build_net("cifar_resnet20_v1", 10)
    copy.initialize()
    copy(mx.nd.array(x))
    gt.bridge.from_torch(gt.bridge.to_torch(net), to=_same_names(copy, net))
    copy.hybridize()
    expected = copy(mx.nd.array(x)).asnumpy()
    copy.export(str(tmp_path / "net"))
    np.save(tmp_path / "x.npy", x)
    script = (
        "import sys; sys.modules['mxnet'] = sys.modules['gluoncv'] = None\n"
        "import numpy as np, torch, gluontune as gt\n"
        f"m = gt.bridge.to_torch(r'{tmp_path}/net-symbol.json', r'{tmp_path}/net-0000.params')\n"
        f"x = torch.from_numpy(np.load(r'{tmp_path}/x.npy'))\n"
        f"np.save(r'{tmp_path}/y.npy', m(x).detach().numpy())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-4, atol=1e-5)


def _same_names(copy, net):
    """``copy`` with its parameters called as those of ``net``."""
    assert len(list(copy.collect_params())) == len(list(net.collect_params()))

    class Renamed:
        @staticmethod
        def collect_params():
            return dict(zip(net.collect_params(), copy.collect_params().values()))

    return Renamed()


def test_a_step_in_torch_comes_back_to_gluon(resnet, tmp_path):
    net, x = resnet
    mx = gt.runtime.mxnet()
    module = gt.bridge.to_torch(net).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    module(torch.from_numpy(x)).square().mean().backward()
    optimizer.step()
    module.eval()
    ours = module(torch.from_numpy(x)).detach().numpy()
    net.hybridize()
    net(mx.nd.array(x))
    net.export(str(tmp_path / "before"))
    found = gt.bridge.from_torch(module, to=tmp_path / "after-0000.params")
    assert set(found) == set(net.collect_params())
    read = mx.gluon.SymbolBlock.imports(
        str(tmp_path / "before-symbol.json"), ["data"], str(tmp_path / "after-0000.params")
    )
    np.testing.assert_allclose(read(mx.nd.array(x)).asnumpy(), ours, rtol=1e-4, atol=1e-5)


class Stacked:
    """Nets with what the residual ones lack, made when mxnet is there."""

    @staticmethod
    def recurrent():
        mx = gt.runtime.mxnet()
        nn, rnn = mx.gluon.nn, mx.gluon.rnn
        net = nn.HybridSequential()
        net.add(nn.Embedding(11, 6), rnn.LSTM(5, num_layers=2, bidirectional=True, layout="NTC", dropout=0.5))
        net.add(nn.LayerNorm(), nn.Dropout(0.5), nn.Dense(3, flatten=False))
        return net, np.random.default_rng(0).integers(0, 11, (2, 7)).astype("float32")

    @staticmethod
    def convolutional():
        mx = gt.runtime.mxnet()
        nn = mx.gluon.nn
        net = nn.HybridSequential()
        net.add(nn.Conv2D(8, 3), nn.LeakyReLU(0.1), nn.AvgPool2D(3, 2, 1, ceil_mode=True))
        net.add(nn.Conv2DTranspose(4, 4, 2, 1), nn.GroupNorm(2), nn.Swish(), nn.GlobalMaxPool2D(), nn.Dense(5))
        return net, np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype("float32")


@pytest.mark.parametrize("kind", ["recurrent", "convolutional"])
def test_gluons_other_layers_agree(kind):
    mx = gt.runtime.mxnet()
    net, x = getattr(Stacked, kind)()
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(x))
    module = gt.bridge.to_torch(net)
    assert gt.bridge.check(net, module, x).output < 1e-5
    found = gt.bridge.check(net, module, x, train=True, dtype="float64")
    assert found.output < 1e-7 and found.gradient < 1e-7
    assert len(found.gradients) == len(dict(module.named_parameters()))


def test_several_inputs_keep_their_order():
    mx = gt.runtime.mxnet()

    class Two(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, a, b):
            return F.broadcast_sub(a, b), a * 2

    net = Two()
    module = gt.bridge.to_torch(net, inputs=2)
    first, second = module(torch.ones(2, 3), torch.zeros(2, 1))
    assert first.tolist() == [[1.0] * 3] * 2 and second.tolist() == [[2.0] * 3] * 2
    text = mx.sym.broadcast_sub(mx.sym.var("a"), mx.sym.var("b"))
    turned = gt.bridge.to_torch(text, inputs=["b", "a"])
    assert turned.inputs == ["b", "a"] and turned(torch.zeros(1), torch.ones(1)).tolist() == [1.0]


def test_dropout_drops_in_training_alone():
    document = _symbol(("Dropout", {"p": "0.5", "axes": "(1,)"}, []))
    module, x = gt.bridge.to_torch(document), torch.ones(64, 50)
    assert torch.equal(module(x), x)
    dropped = module.train()(x)
    rows = dropped[:, 0]
    assert torch.equal(dropped, rows.unsqueeze(1).expand_as(dropped))  # one mask along axis 1
    assert set(rows.tolist()) == {0.0, 2.0}


def _symbol(layer, shapes=None):
    op, attrs, parameters = layer
    nodes = [{"op": "null", "name": n, "inputs": []} for n in ["data", *parameters]]
    for node in nodes:
        if (shapes or {}).get(node["name"]):
            node["attrs"] = {"__shape__": shapes[node["name"]]}
    inputs = [[i, 0, 0] for i in range(len(nodes))]
    nodes.append({"op": op, "name": "layer0", "attrs": attrs, "inputs": inputs})
    return {
        "nodes": nodes,
        "arg_nodes": list(range(len(nodes) - 1)),
        "heads": [[len(nodes) - 1, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }


DENSE = ("FullyConnected", {"num_hidden": "3", "no_bias": "True"}, ["w"])
NORM = ("BatchNorm", {}, ["gamma", "beta", "mean", "var"])
FOUR = {n: np.ones(2, "float32") for n in ("gamma", "beta", "mean", "var")}


@pytest.mark.parametrize(
    ("layer", "params", "words"),
    [
        (("my_own", {"k": "2"}, []), {}, ["my_own (layer layer0)", "@gt.bridge.operator('my_own')"]),
        (DENSE, {}, ["the parameters lack w"]),
        (DENSE, {"w": np.ones((4, 2), "float32")}, ["w has shape (4, 2)", "3 rows"]),
        (DENSE, {"w": np.ones((3, 2), "float16")}, ["w is float16", "dtype='float32'"]),
        (NORM, {n: FOUR[n] for n in ("gamma", "beta")}, ["auxiliary states are missing: mean, var"]),
    ],
)
def test_what_cannot_be_converted_is_told(layer, params, words):
    with pytest.raises(GluontuneError) as refused:
        gt.bridge.to_torch(_symbol(layer), params)
    assert all(word in str(refused.value) for word in words), refused.value


def test_control_flow_is_converted():
    sym = gt.runtime.mxnet().sym
    out, last = sym.contrib.foreach(lambda x, s: (x + s, x + s), sym.var("data"), sym.var("state"))
    module = gt.bridge.to_torch(sym.Group([out, last]), inputs=["data", "state"])
    sums, end = module(torch.ones(3, 2), torch.zeros(2))
    assert sums.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]] and end.tolist() == [3.0, 3.0]


def test_an_input_that_nothing_reads_is_taken_all_the_same():
    net = block_of(lambda self, F, a, b: a * 2)
    module = gt.bridge.to_torch(net, inputs=2)
    assert module(torch.ones(2), torch.zeros(3)).tolist() == [2.0, 2.0]


def block_of(forward):
    kind = gt.runtime.mxnet().gluon.HybridBlock
    return type("Net", (kind,), {"hybrid_forward": forward})()


def rnn_of(mode, hidden, *more, **attrs):
    """The module of a fused RNN, and its arrays: data, weights, states and what else there is."""
    sym = gt.runtime.mxnet().sym
    named = {"state_cell": sym.var("c")} if mode == "lstm" else {}
    named.update({name: sym.var(name) for name in more})
    how = {"mode": mode, "state_size": hidden, "state_outputs": True, **attrs}
    symbol = sym.RNN(*map(sym.var, ("x", "w", "h")), **named, **how)
    return gt.bridge.to_torch(symbol.tojson(), {}, inputs=symbol.list_arguments())


def test_sequences_of_different_lengths_end_where_they_end():
    """MXNet has them on GPUs alone; each sample alone, cut at its length, is the same."""
    draw = np.random.default_rng(2).standard_normal
    sizes, ways = (5, 3, 2, 4), 2
    weights = {"lstm": 4, "gru": 3, "rnn_tanh": 1}
    for mode, gates in weights.items():
        count = 2 * gates * 4 * (2 + 4 + 2) + 2 * gates * 4 * (8 + 4 + 2)
        w = torch.tensor(draw(count) / 3)
        x = torch.tensor(draw(sizes[:3]))
        states = [torch.tensor(draw((2 * ways, 3, 4))) for _ in range(2 if mode == "lstm" else 1)]
        lengths = torch.tensor([5.0, 2.0, 3.0])
        how = {"num_layers": 2, "bidirectional": True}
        whole = rnn_of(mode, 4, "sequence_length", use_sequence_length=True, **how)(x, w, *states, lengths)
        plain = rnn_of(mode, 4, **how)
        for sample, length in enumerate(lengths.int().tolist()):
            alone = [x[:length, sample : sample + 1], w, *(s[:, sample : sample + 1] for s in states)]
            out, *ends = plain(*alone)
            torch.testing.assert_close(whole[0][:length, sample], out[:, 0])
            assert not whole[0][length:, sample].any()
            for ours, theirs in zip(whole[1:], ends):
                torch.testing.assert_close(ours[:, sample], theirs[:, 0])


def test_projections_and_clipped_cells_are_those_of_unrolled_cells():
    mx = gt.runtime.mxnet()
    cell = mx.gluon.contrib.rnn.LSTMPCell(6, 4, input_size=5)
    cell.initialize(mx.init.Uniform(1.0))
    x = np.random.default_rng(4).standard_normal((2, 3, 5)).astype("float32")
    theirs, (h, c) = cell.unroll(3, mx.nd.array(x), layout="NTC", merge_outputs=True)
    order = ("i2h_weight", "h2h_weight", "h2r_weight", "i2h_bias", "h2h_bias")
    w = np.concatenate([getattr(cell, name).data().asnumpy().ravel() for name in order])
    given = [torch.from_numpy(a) for a in (x.transpose(1, 0, 2), w, np.zeros((1, 2, 4), "f"), np.zeros((1, 2, 6), "f"))]
    ours = rnn_of("lstm", 6, num_layers=1, projection_size=4)(*given)
    np.testing.assert_allclose(ours[0].transpose(0, 1), theirs.asnumpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours[1][0], h.asnumpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours[2][0], c.asnumpy(), rtol=1e-5, atol=1e-6)
    limits = {"lstm_state_clip_min": -0.1, "lstm_state_clip_max": 0.1}
    clipped = rnn_of("lstm", 6, num_layers=1, projection_size=4, **limits)(*given)
    assert float(clipped[2].abs().max()) == pytest.approx(0.1) and float(ours[2].abs().max()) > 0.1


def test_a_shape_that_the_symbol_knows_is_held():
    with pytest.raises(GluontuneError, match=r"w has shape \(3, 2\), the symbol wants \(3, 5\)"):
        gt.bridge.to_torch(_symbol(DENSE, {"w": "(3, 5)"}), {"w": np.ones((3, 2), "float32")})


def test_float16_parameters_are_converted_where_asked():
    module = gt.bridge.to_torch(_symbol(DENSE), {"w": np.ones((3, 2), "float16")}, dtype="float32")
    assert module(torch.ones(1, 2)).tolist() == [[2.0] * 3]


def test_an_attribute_that_is_not_known_is_refused():
    with pytest.raises(GluontuneError, match="layer layer0: LRN with"):
        gt.bridge.to_torch(_symbol(("LRN", {"nsize": "3", "own": "7"}, [])))


def test_an_operator_of_ones_own():
    registry = importlib.import_module("gluontune.convert.bridge.registry").OPERATORS
    try:

        @gt.bridge.operator("my_scale")
        def scale(x, by="1"):
            return x * float(by)

        module = gt.bridge.to_torch(_symbol(("my_scale", {"by": "3"}, [])))
        assert module(torch.ones(2)).tolist() == [3.0, 3.0]
    finally:
        registry.remove("my_scale")


def test_nets_that_have_no_graph_are_refused():
    mx = gt.runtime.mxnet()

    class Own(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x if x.shape[0] > 2 else x * 2

    with pytest.raises(GluontuneError, match=r"Own cannot be traced at .*test_bridge\.py:\d+"):
        gt.bridge.to_torch(Own())
    with pytest.raises(GluontuneError, match="Sequential is a Block"):
        gt.bridge.to_torch(mx.gluon.nn.Sequential())
    fresh = mx.gluon.nn.Dense(2)
    fresh.initialize()
    with pytest.raises(GluontuneError, match="has no values yet"):
        gt.bridge.to_torch(fresh)
    with pytest.raises(UsageError, match="not int"):
        gt.bridge.to_torch(3)
    with pytest.raises(UsageError, match="has no input 'nothing'"):
        gt.bridge.to_torch(_symbol(DENSE), inputs=["nothing"])


def test_weights_of_another_net_are_refused(resnet):
    mx = gt.runtime.mxnet()
    module = gt.bridge.to_torch(resnet[0])
    other = mx.gluon.nn.Dense(2)
    with pytest.raises(GluontuneError, match="not the same net"):
        gt.bridge.from_torch(module, to=other)
    with pytest.raises(UsageError, match="not dict"):
        gt.bridge.from_torch({})


def test_pytorch_absent_or_too_old_is_told(monkeypatch):
    place = importlib.import_module("gluontune.runtime.pytorch")
    monkeypatch.setattr(torch, "__version__", "1.13.1+cpu")
    with pytest.raises(GluontuneError, match=r"PyTorch 1\.13\.1\+cpu is too old, 2\.1 or newer"):
        place.torch()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(GluontuneError, match="PyTorch is not installed: pip install torch"):
        place.torch()


def test_every_entry_is_an_operator_of_mxnets():
    importlib.import_module("gluontune.convert.bridge.operators")
    known = json.loads(importlib.import_module("gluontune.convert.graph.schemas").table_path().read_text())["operators"]
    names = [entry.name for entry in gt.bridge.OPERATORS]
    assert [name for name in names if name not in known] == ["_after_loss"] and len(names) >= 380


def test_roi_align_makes_no_copy_of_the_image_for_each_region():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from gluontune.convert.bridge.operators.vision import roi_align

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for one in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(one, torch.Tensor):
                    self.numbers = max(self.numbers, one.numel())
            return out

    x = torch.randn(1, 16, 64, 64, requires_grad=True)
    rois = torch.tensor([[0.0, 1, 2, 50, 60]] * 200, requires_grad=True)
    with Largest() as seen:
        out = roi_align(x, rois, (7, 7), 0.5, 2)
    assert out.shape == (200, 16, 7, 7) and seen.numbers <= 2 * out.numel()  # a copy for each were 13 million
    (out**2).sum().backward()
    assert x.grad.abs().sum() > 0 and rois.grad is None  # as in MXNet


def test_roi_align_of_a_region_without_an_image_is_zero():
    import torch

    from gluontune.convert.bridge.operators.vision import roi_align

    rois = torch.tensor([[-1.0, -1, -1, -1, -1], [0, 1, 1, 6, 6]])  # gluoncv's pyramids mask other levels so
    out = roi_align(torch.rand(1, 2, 8, 8) + 1, rois, (2, 2), 1.0, 2)
    assert not out[0].any() and bool((out[1] >= 1).all())


def test_regions_of_no_image_are_compared_as_zeros():
    mx = gt.runtime.mxnet()

    class Pyramid(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, rois, noise):
            used = (noise + 1e9).sum() * 0  # ROIAlign gets its memory, in which MXNet leaves what it held
            return F.broadcast_add(used, F.contrib.ROIAlign(x, rois, (4, 4), 1.0, 2) * 2)

    x = np.random.default_rng(4).random((1, 16, 9, 9), "float32") + 1
    rois = np.array([[-1, -1, -1, -1, -1], [0, 1, 2, 6, 7], [-1, 0, 0, 3, 3], [0, 0, 0, 5, 8]], "float32")
    net = Pyramid()
    module = gt.bridge.to_torch(net, inputs=3)
    assert gt.bridge.check(net, module, (x, rois, np.ones((4, 16, 4, 4), "float32"))).output < 1e-6
