"""Shapes inferred without mxnet: each operator, and whole symbols, against MXNet's own ``infer_shape``."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest
from drawn_operators import DRAWN, FEW, FromHypothesis, symbol_of
from hypothesis import given
from hypothesis import strategies as st

import gluontune as gt
from gluontune.errors import GluontuneError, UsageError
from gluontune.graph import infer_shapes, read_symbol


@pytest.mark.parametrize("name", DRAWN)
def test_an_operator_gives_the_shapes_that_mxnet_infers(name):
    @FEW
    @given(data=st.data())
    def compare(data):
        from gluontune.bridge import OPERATORS

        mx = gt.runtime.mxnet()
        sample = OPERATORS[name].sample(FromHypothesis(data))
        document = symbol_of(mx, name, sample)
        symbol, graph = mx.sym.load_json(json.dumps(document)), read_symbol(document)
        given = {f"x{i}": tuple(each[1]) for i, each in enumerate(sample.inputs)}
        arguments, outputs, states = symbol.infer_shape(**given)
        if outputs is None:
            return  # MXNet cannot tell, of hstack and dstack
        found = infer_shapes(graph, given)
        assert found.outputs == [tuple(s) for s in outputs]
        first = {k: given[k] for k in list(given)[:1]}  # parameters follow from the data
        try:
            arguments, outputs, states = symbol.infer_shape(**first)
        except mx.MXNetError:
            return  # MXNet needs more of them
        if outputs is not None and all(s and 0 not in s for s in [*arguments, *outputs]):
            found = infer_shapes(graph, first)
            assert found.outputs == [tuple(s) for s in outputs]
            names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
            assert found.variables == {n: tuple(s) for n, s in zip(names, [*arguments, *states])}

    compare()


def _zoo(mx, name):
    backbone = {"pretrained_base": False} if "_coco" in name or name.startswith("c3d") else {}
    net = importlib.import_module("gluoncv.model_zoo").get_model(name, **backbone)
    outputs = net(mx.sym.var("data"))
    return mx.sym.Group(list(outputs)) if isinstance(outputs, (list, tuple)) else outputs


def _layers(mx, *layers):
    net = mx.gluon.nn.HybridSequential()
    net.add(*layers)
    return net(mx.sym.var("data"))


def _unrolled(mx):
    cell = mx.gluon.rnn.HybridSequentialRNNCell()
    cell.add(mx.gluon.rnn.LSTMCell(7))
    cell.add(mx.gluon.rnn.BidirectionalCell(mx.gluon.rnn.GRUCell(5), mx.gluon.rnn.GRUCell(5)))
    outputs, _ = cell.unroll(4, mx.sym.var("data"), layout="NTC", merge_outputs=True)
    return outputs


def _own_parts(mx):
    """What has parts of its own: a shared weight, several outputs, a hidden size that only a later layer tells."""
    sym = mx.sym
    data, weight = sym.var("data"), sym.var("weight")
    a = sym.FullyConnected(data, weight, num_hidden=6, no_bias=True, name="a")
    b = sym.FullyConnected(a, weight, num_hidden=6, no_bias=True, name="b")
    parts = sym.split(b + sym.var("offset", shape=(1, 6)).broadcast_like(b), 2, axis=1, name="parts")
    mean = sym.LayerNorm(parts[0], name="norm")
    return sym.Group([sym.concat(mean, parts[1], dim=1), sym.topk(parts[1], k=2, ret_typ="both")])


SYMBOLS = {
    "resnet": (lambda mx: _zoo(mx, "cifar_resnet20_v1"), (2, 3, 32, 32)),
    "resnext": (lambda mx: _zoo(mx, "cifar_resnext29_16x64d"), (2, 3, 32, 32)),
    "mobilenet v3": (lambda mx: _zoo(mx, "mobilenetv3_small"), (2, 3, 64, 64)),
    "inception": (lambda mx: _zoo(mx, "inceptionv3"), (1, 3, 299, 299)),
    "densenet": (lambda mx: _zoo(mx, "densenet121"), (1, 3, 224, 224)),
    "ssd": (lambda mx: _zoo(mx, "ssd_300_vgg16_atrous_coco"), (1, 3, 300, 300)),
    "yolo": (lambda mx: _zoo(mx, "yolo3_mobilenet1.0_coco"), (1, 3, 96, 96)),
    "mask rcnn": (lambda mx: _zoo(mx, "mask_rcnn_resnet18_v1b_coco"), (1, 3, 256, 256)),
    "c3d": (lambda mx: _zoo(mx, "c3d_kinetics400"), (1, 3, 16, 112, 112)),
    "lstm": (
        lambda mx: _layers(mx, mx.gluon.rnn.LSTM(9, 2, bidirectional=True), mx.gluon.nn.Dense(3)),
        (5, 2, 4),
    ),
    "unrolled cells": (_unrolled, (2, 4, 6)),
    "channels last": (
        lambda mx: _layers(
            mx,
            mx.gluon.nn.Conv2D(8, 3, 2, 1, groups=2, layout="NHWC"),
            mx.gluon.nn.MaxPool2D(3, 2, ceil_mode=True, layout="NHWC"),
            mx.gluon.nn.Conv2DTranspose(4, 4, 2, 1),
        ),
        (2, 15, 16, 4),
    ),
    "begin states": (
        lambda mx: _layers(mx, mx.gluon.rnn.GRU(5, layout="NTC"), mx.gluon.nn.Dense(4, flatten=False)),
        (2, 6, 3),
    ),
    "own parts": (_own_parts, (3, 6)),
}


def compare_symbol(symbol, shape):
    """All nodes' shapes, parameters' included, as MXNet infers them."""
    internals = symbol.get_internals()
    arguments, outputs, states = internals.infer_shape(data=shape)
    document = json.loads(internals.tojson())
    found = infer_shapes(read_symbol(document), {"data": shape})
    assert len(found.outputs) == len(outputs) > 5
    heads = [(document["nodes"][at]["name"], place) for at, place, *_ in document["heads"]]
    assert dict(zip(heads, found.outputs)) == dict(zip(heads, map(tuple, outputs)))
    names = [*internals.list_arguments(), *internals.list_auxiliary_states()]
    assert found.variables == {n: tuple(s) for n, s in zip(names, [*arguments, *states])}


@pytest.mark.parametrize("name", SYMBOLS)
def test_a_whole_symbol_has_the_shapes_that_mxnet_infers(name):
    make, shape = SYMBOLS[name]
    mx = gt.runtime.mxnet()
    with mx.name.NameManager():
        compare_symbol(make(mx), shape)


DENSE = {
    "nodes": [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "w", "attrs": {"__shape__": "(3, 0)"}, "inputs": []},
        {"op": "FullyConnected", "name": "fc", "attrs": {"num_hidden": "3", "no_bias": "True"},
         "inputs": [[0, 0, 0], [1, 0, 0]]},
        {"op": "Reshape", "name": "halves", "attrs": {"shape": "(-1, 2)"}, "inputs": [[2, 0, 0]]},
    ],
    "heads": [[3, 0, 0]],
    "attrs": {"mxnet_version": ["int", 10901]},
}  # fmt: skip


def test_what_does_not_follow_is_none_and_a_known_part_is_held():
    graph = read_symbol(DENSE)
    assert infer_shapes(graph, {}).outputs == [None]
    found = infer_shapes(graph, {"data": (4, 5)})
    assert found.variables == {"data": (4, 5), "w": (3, 5)} and found.nodes[3] == ((6, 2),)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"data": (4, 5), "w": (3, 6)}, ["layer fc: FullyConnected cannot take shapes (4, 5), (3, 6)"]),
        ({"data": (4, 5), "w": (2, 5)}, ["w is given as (2, 5), the symbol wants (3, -1)"]),
        ({"data": (1, 5)}, ["layer halves: Reshape", "3 numbers do not fill"]),
    ],
)
def test_shapes_that_do_not_fit_are_told_with_their_layer(shapes, words):
    with pytest.raises(GluontuneError) as refused:
        infer_shapes(read_symbol(DENSE), shapes)
    assert all(word in str(refused.value) for word in words), refused.value


def test_an_unknown_input_and_an_operator_without_a_rule_are_told():
    with pytest.raises(UsageError, match="has no input 'image'; it has data, w"):
        infer_shapes(read_symbol(DENSE), {"image": (1,)})
    own = json.loads(json.dumps(DENSE).replace("FullyConnected", "my_own"))
    with pytest.raises(
        GluontuneError, match=r"layer fc: no shape rule for my_own; .*@gt\.graph\.rule\('my_own'\)"
    ):
        infer_shapes(read_symbol(own), {"data": (4, 5)})


def test_neither_mxnet_nor_torch_is_imported(tmp_path):
    (tmp_path / "net-symbol.json").write_text(json.dumps(DENSE))
    code = (
        "import sys; sys.modules['mxnet'] = sys.modules['torch'] = None; import gluontune as gt; "
        "g = gt.graph.read_symbol(sys.argv[1]); print(gt.graph.infer_shapes(g, {'data': (2, 9)}).outputs)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "net-symbol.json")], capture_output=True, text=True
    )
    assert said.stdout.strip() == "[(3, 2)]", said.stderr
