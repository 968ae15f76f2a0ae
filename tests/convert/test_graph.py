"""MXNet's files without mxnet: symbols of all versions, typed attributes, parameter files of all generations."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest

import gluontune as gt
from gluontune.convert.graph.schemas import as_mxnet_reads
from gluontune.core.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.graph import read_params, read_symbol, schema, write_params


def symbol(*nodes, version=10901, heads=None):
    """A symbol's document of (operator, name, attributes, inputs) with the attributes under MXNet 1.x's key."""
    made = [
        {"op": op or "null", "name": name, "attrs": attrs, "inputs": [[i, 0, 0] for i in inputs]}
        for op, name, attrs, inputs in nodes
    ]
    arguments = [i for i, node in enumerate(made) if node["op"] == "null"]
    document = {"nodes": made, "arg_nodes": arguments, "heads": heads or [[len(made) - 1, 0, 0]]}
    return {**document, "attrs": {"mxnet_version": ["int", version]}}


DENSE = (
    (None, "data", {}, []),
    (None, "w", {"__shape__": "(3, 4)"}, []),
    ("FullyConnected", "fc", {"num_hidden": "3", "no_bias": "True"}, [0, 1]),
)


def test_attributes_have_types_and_mxnets_defaults():
    graph = read_symbol(symbol(*DENSE))
    node = graph.nodes[-1]
    assert node.attrs == {"num_hidden": 3, "no_bias": True, "flatten": True}
    assert graph.nodes[1].shape == (3, 4) and graph.nodes[0].shape is None
    assert graph.variables() == ["data", "w"] and graph.outputs == [(2, 0)]
    assert graph.operators() == {"FullyConnected": ["fc"]}


def test_a_float_keeps_the_four_bytes_that_mxnet_keeps():
    graph = read_symbol(symbol((None, "x", {}, []), ("LeakyReLU", "a", {"act_type": "leaky", "slope": "0.1"}, [0])))
    assert graph.nodes[1].attrs["slope"] == float(np.float32(0.1)) != 0.1


def test_aliases_are_read_as_the_operator_that_they_are():
    graph = read_symbol(symbol((None, "a", {}, []), (None, "b", {}, []), ("_Plus", "sum", {}, [0, 1])))
    assert graph.nodes[-1].op == "elemwise_add"
    assert schema("Cast").name == schema("cast").name == "Cast"


def test_symbols_of_mxnet_0_8_are_brought_up_to_date():
    document = {
        "nodes": [
            {"op": "null", "param": {}, "name": "data", "inputs": [], "backward_source_id": -1},
            {"op": "null", "param": {}, "name": "bn_gamma", "inputs": [], "backward_source_id": -1},
            {"op": "null", "param": {}, "name": "bn_beta", "inputs": [], "backward_source_id": -1},
            {
                "op": "BatchNorm",
                "param": {"eps": "0.001", "momentum": "0.9", "fix_gamma": "True"},
                "attr": {"lr_mult": "2"},
                "name": "bn",
                "inputs": [[0, 0], [1, 0], [2, 0]],
                "backward_source_id": -1,
            },
            {"op": "argmax", "param": {"axis": "-1"}, "name": "best", "inputs": [[3, 0]]},
        ],
        "arg_nodes": [0, 1, 2],
        "heads": [[4, 0]],
    }
    graph = read_symbol(json.dumps(document))
    assert graph.version == 800
    assert graph.auxiliary() == ["bn_moving_mean", "bn_moving_var"]
    layer = next(node for node in graph.nodes if node.op == "BatchNorm")
    assert layer.attrs["fix_gamma"] is True and layer.hidden == {"__lr_mult__": "2"}
    assert [graph.nodes[at].name for at, _ in layer.inputs][3:] == graph.auxiliary()
    best = graph.nodes[-1]
    assert best.attrs["axis"] is None and graph.nodes[best.inputs[0][0]] is layer


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"num_hidden": "three"}, ["num_hidden='three'", "fc"]),
        ({}, ["lacks its attribute 'num_hidden'"]),
        ({"num_hidden": "3", "no_bias": "maybe"}, ["no_bias='maybe'", "boolean"]),
    ],
)
def test_an_attribute_of_another_type_is_named_with_its_layer(attrs, words):
    with pytest.raises(UsageError) as refused:
        read_symbol(symbol((None, "x", {}, []), (None, "w", {}, []), ("FullyConnected", "fc", attrs, [0, 1])))
    assert all(word in str(refused.value) for word in words)


def test_what_is_no_symbol_is_told(tmp_path):
    params = tmp_path / "net-0000.params"
    write_params(params, {"arg:w": np.ones(3, "float32")})
    cut = tmp_path / "cut-symbol.json"
    cut.write_text(json.dumps(symbol(*DENSE))[:80])
    other = tmp_path / "other.json"
    other.write_text("{}")
    wrong = symbol(*DENSE)
    wrong["nodes"][2]["inputs"] = [[7, 0, 0]]
    for source, word in [
        (params, "params"),
        (cut, "cut-symbol.json"),
        (other, "'nodes' and 'heads'"),
        (tmp_path / "none-symbol.json", "none-symbol.json"),
        (json.dumps(wrong), "damaged symbol"),
    ]:
        with pytest.raises(GluontuneError, match=word):
            read_symbol(source)


def test_an_unknown_operator_is_kept_and_its_schema_refused():
    graph = read_symbol(symbol((None, "x", {}, []), ("my_own", "mine", {"k": "3"}, [0])))
    assert graph.nodes[1].attrs == {"k": "3"}
    with pytest.raises(UnknownNameError):
        schema("my_own")


KINDS = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")


def test_params_come_back_as_they_were_written(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"arg:{kind}": (rng.standard_normal((2, 3)) * 9).astype(kind) for kind in KINDS}
    arrays["aux:mean"] = np.zeros((0, 4), "float32")
    arrays["scalar"] = np.array(2.5, "float32")
    write_params(tmp_path / "a.params", arrays)
    found = read_params(tmp_path / "a.params")
    assert list(found) == [*KINDS, "mean", "scalar"]
    for name, array in arrays.items():
        ours = found[name.rpartition(":")[2]]
        assert ours.dtype == array.dtype and ours.shape == array.shape and np.array_equal(ours, array)


def _file(*headers_and_arrays):
    body = b"".join(headers_and_arrays)
    names = struct.pack("<Q", 1) + struct.pack("<Q", 5) + b"arg:w"
    return struct.pack("<QQQ", 0x112, 0, 1) + body + names


def test_older_generations_and_bfloat16_are_read(tmp_path):
    numbers = np.arange(6, dtype="float32")
    oldest = struct.pack("<III", 2, 2, 3) + struct.pack("<iii", 1, 0, 0) + numbers.tobytes()
    first = struct.pack("<IIqq", 0xF993FAC8, 2, 2, 3) + struct.pack("<iii", 1, 0, 0) + numbers.tobytes()
    half = (numbers.view("uint32") >> 16).astype("uint16")
    brain = struct.pack("<Iiiqq", 0xF993FAC9, 0, 2, 2, 3) + struct.pack("<iii", 1, 0, 12) + half.tobytes()
    for body in (oldest, first, brain):
        path = tmp_path / "old.params"
        path.write_bytes(_file(body))
        found = read_params(path)["w"]
        assert found.dtype == np.float32 and np.array_equal(found, numbers.reshape(2, 3))


def test_damaged_parameter_files_are_refused(tmp_path):
    path = tmp_path / "a.params"
    write_params(path, {"arg:w": np.ones((4, 4), "float32")})
    whole = path.read_bytes()
    for size in range(0, len(whole), 3):
        path.write_bytes(whole[:size])
        with pytest.raises(GluontuneError, match="damaged or cut"):
            read_params(path)
    path.write_bytes(b"\x00" * 64)
    with pytest.raises(GluontuneError, match="not a parameter file"):
        read_params(path)
    sparse = struct.pack("<Ii", 0xF993FAC9, 1)
    path.write_bytes(_file(sparse))
    with pytest.raises(GluontuneError, match="sparse"):
        read_params(path)
    path.write_bytes(struct.pack("<QQQQ", 0x112, 0, 0, 1) + struct.pack("<Q", 1) + b"w")
    with pytest.raises(GluontuneError, match="0 arrays but 1 names"):
        read_params(path)


@pytest.mark.mxnet
def test_mxnet_reads_what_we_write_and_we_what_it_writes(tmp_path):
    mx = gt.runtime.mxnet()
    rng = np.random.default_rng(1)
    arrays = {"arg:w": rng.standard_normal((3, 4)).astype("float32"), "aux:m": np.arange(5, dtype="int32")}
    write_params(tmp_path / "ours.params", arrays)
    theirs = mx.nd.load(str(tmp_path / "ours.params"))
    assert {k: v.asnumpy().tolist() for k, v in theirs.items()} == {k: v.tolist() for k, v in arrays.items()}
    mx.nd.save(str(tmp_path / "theirs.params"), {k: mx.nd.array(v, dtype=v.dtype) for k, v in arrays.items()})
    assert (tmp_path / "theirs.params").read_bytes() == (tmp_path / "ours.params").read_bytes()
    assert np.array_equal(read_params(tmp_path / "theirs.params")["w"], arrays["arg:w"])


@pytest.mark.mxnet
def test_the_table_is_this_mxnets_own():
    from gluontune.convert.graph import schemas
    from tools import operator_table

    mx = gt.runtime.mxnet()
    made, table = operator_table.describe(mx), json.loads(schemas.table_path().read_text("utf-8"))
    if mx.runtime.Features().is_enabled("CUDA"):  # it has more operators, and other words for types
        assert set(table["operators"]) <= set(made["operators"])
    else:
        assert made == table


@pytest.mark.mxnet
def test_numbers_are_those_that_mxnet_reads():
    """By both texts of it: the table's, and that of the projects' check, which is written beside them."""
    nd = gt.runtime.mxnet().nd
    text = (Path(gt.capture.__file__).parent / "project" / "templates" / "check.py.j2").read_text()
    scope = {"np": np}
    exec(text[text.index("def as_mxnet_reads") : text.index("class Check")], scope)
    rng = random.Random(23)
    for _ in range(300):
        number = rng.choice((1, -1)) * rng.random() * 10.0 ** rng.randint(-30, 20)
        weight = nd.zeros((1,), dtype="float64")
        nd.sgd_update(weight, nd.ones((1,), dtype="float64"), lr=number, out=weight)
        assert as_mxnet_reads(str(number)) == scope["as_mxnet_reads"](number) == -weight.asscalar()
