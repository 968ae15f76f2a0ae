"""Names and texts that somebody else has chosen, on their way into source, pages and terminals: text, never code."""

from __future__ import annotations

import copy
import json
import os

import numpy as np
import pytest

import gluontune as gt
from gluontune.errors import GluontuneError

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

NAMES = [
    'w", getattr(__import__("os"),"system")("touch RAN") or "', "w\n__import__('os').mkdir('RAN')", "a'b\"c\\", "\\",
    "{}", "{0.__class__}", "{{ 7 * 7 }}", "{% raw %}", "class", "None", "training", "forward", "inputs", "graph",
    "meta", "__class__", "__init__", "", ".", "a..b", "self.weight", "ﬁ", "ｗ", "a\u202eb", "a\x1b[2Jb", "\0", "\ud800",
    "x" * 9000, ".".join("a" * 300), "torch", "getattr", "gluontune_bridge_operators_neural_fully_connected", "0",
    "重み", "'''", '"""',
]  # fmt: skip
KEPT = ["fc_weight", "0.weight", "stage1/conv-1:weight", "body.1.gamma", "重み"]  # as before


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not os.listdir(tmp_path), "code was run"


def symbol(weights, data="data", attrs=(), layer="fc"):
    """A dense layer without bias for each of ``weights``, one behind the other, as a document."""
    nodes = [{"op": "null", "name": data, "inputs": []}]
    at = 0
    for name in weights:
        nodes.append({"op": "null", "name": name, "inputs": []})
        given = {"num_hidden": "2", "no_bias": "True", **dict(attrs)}
        place = len(nodes)
        nodes.append(
            {"op": "FullyConnected", "name": layer, "attrs": given, "inputs": [[at, 0, 0], [place - 1, 0, 0]]}
        )
        at = place
    return {
        "nodes": nodes,
        "arg_nodes": [],
        "heads": [[at, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }


def arrays(names):
    return {name: np.full((2, 2), 0.5 + n / 64, "float32") for n, name in enumerate(names)}


@pytest.mark.parametrize(
    "names", [NAMES[:1], NAMES[1:3], NAMES, NAMES[::-1], ["a", "a.b", 'a"'], ["a.training", "a"]]
)
def test_names_of_parameters_are_no_code_and_come_back(in_a_folder, names):
    module = gt.bridge.to_torch(symbol(names), arrays(names))
    expected = torch.ones(1, 2)
    for array in arrays(names).values():
        expected = expected @ torch.from_numpy(array).T
    assert torch.equal(module(torch.ones(1, 2)), expected)
    for one in (module, copy.deepcopy(module)):
        found = gt.bridge.from_torch(one)
        assert {n: a.tolist() for n, a in found.items()} == {n: a.tolist() for n, a in arrays(names).items()}
    for line in module.code.splitlines():
        assert all(name not in line for name in names if len(name) > 20 and not name.isidentifier())
    module.load_state_dict(module.state_dict())


@pytest.mark.parametrize("name", KEPT)
def test_names_that_source_can_hold_stay(name):
    module = gt.bridge.to_torch(symbol([name]), arrays([name]))
    assert list(module.state_dict()) == [name]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_inputs_and_layers_are_no_code(in_a_folder, name):
    document = symbol(["w"], data=name, layer=name)
    document["nodes"].append({"op": "Dropout", "name": name, "inputs": [[2, 0, 0]]})
    document["nodes"].append({"op": "BatchNorm_v1", "name": name, "inputs": [[0, 0, 0]]})
    document["heads"] = [[3, 0, 0]]
    del document["nodes"][4]
    module = gt.bridge.to_torch(document, arrays("w"))
    assert module.inputs == [name] and module(torch.ones(1, 2)).tolist() == [[1.0, 1.0]]


def test_inputs_that_would_share_a_name_do_not(in_a_folder):
    names = ["a.b", "a/b", "a_b"]
    nodes = [{"op": "null", "name": name, "inputs": []} for name in names]
    nodes.append({"op": "Concat", "name": "c", "attrs": {"num_args": "3", "dim": "0"},
                  "inputs": [[0, 0], [1, 0], [2, 0]]})  # fmt: skip
    module = gt.bridge.to_torch({"nodes": nodes, "heads": [[3, 0]]}, {})
    assert module(*[torch.full((1,), float(n)) for n in range(3)]).tolist() == [0, 1, 2]


def test_two_variables_of_one_name_are_refused():
    with pytest.raises(GluontuneError, match="more than one variable named w"):
        gt.bridge.to_torch(symbol(["w", "w"]), arrays("w"))


@pytest.mark.parametrize("name", [n for n in NAMES if not n.isidentifier()])
def test_names_of_attributes_are_no_code(in_a_folder, name):
    from gluontune.bridge import registry

    @gt.bridge.operator("hostile_names_own")
    def own(x, **attrs):
        return x

    try:
        node = {"op": "hostile_names_own", "name": "own", "attrs": {name: name}, "inputs": [[0, 0]]}
        document = {"nodes": [{"op": "null", "name": "data", "inputs": []}, node], "heads": [[1, 0]]}
        with pytest.raises(GluontuneError, match="no name of an attribute"):
            gt.bridge.to_torch(document, {})
        node["attrs"] = {"mode": name}
        assert gt.bridge.to_torch(document, {})(torch.ones(1)).tolist() == [1.0]
    finally:
        del registry.OPERATORS._entries["hostile_names_own"]


def test_pytorchs_engine_finds_its_parameters_by_the_names_in_the_module():
    from gluontune.bridge.names import gluon_names
    from gluontune.train.torch_export import Exported

    names = ['a"b_weight', "fc_bias"]
    module = gt.bridge.to_torch(symbol(names), arrays(names))
    job = Exported("", "", {}, dict(zip(names, ["0.weight", "0.bias"])), "sample", {}, -1,
                   {names[0]: 2.0}, {names[1]: 0.0}, [names[0]], [[names[0]], [names[1]]])  # fmt: skip
    job = job.renamed(gluon_names(module))
    there = set(dict(module.named_parameters()))
    assert set(job.names) == there and list(job.names.values()) == ["0.weight", "0.bias"]
    assert {*job.lr_mult, *job.wd_mult} == there and set(job.frozen) < there and job.layers[1] == ["fc_bias"]
    assert json.dumps(job.layers) == json.dumps([job.frozen, ["fc_bias"]])
