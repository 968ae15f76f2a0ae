"""Pretrained files as people hold them: each is read, converted and computes what MXNet does, or is refused by name."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

import gluontune as gt
from gluontune.core.errors import GluontuneError

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
mx = gt.runtime.mxnet()
S = mx.sym


def head_of(kind, body):
    label = S.var("softmax_label")
    return {
        "SoftmaxOutput": lambda: S.SoftmaxOutput(body, label, name="softmax"),
        "SoftmaxOutput and its input": lambda: S.Group([S.SoftmaxOutput(body, label, name="softmax"), body]),
        "LinearRegressionOutput": lambda: S.LinearRegressionOutput(body, label, name="softmax"),
        "LogisticRegressionOutput": lambda: S.LogisticRegressionOutput(body, label, name="softmax"),
        "L2Normalization": lambda: S.L2Normalization(
            S.BatchNorm(body, fix_gamma=True, eps=2e-5, name="fc1"), name="embedding"
        ),
    }[kind]()


def checkpoint(head="SoftmaxOutput"):
    """A symbol's document and the arrays of a ``Module`` checkpoint, by their prefixed names."""
    data = (S.var("data") - 127.5) * 0.0078125  # as ArcFace's nets begin
    body = S.Convolution(data, num_filter=4, kernel=(3, 3), pad=(1, 1), no_bias=True, name="conv0")
    body = S.BatchNorm(body, fix_gamma=True, eps=2e-5, momentum=0.9, name="bn0")
    body = S.Pooling(S.Activation(body, act_type="relu"), kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
    body = S.Dropout(S.Flatten(body), p=0.4)
    symbol = head_of(head, S.FullyConnected(body, num_hidden=3, name="fc"))
    shapes, _, states = symbol.infer_shape(data=(2, 3, 6, 6))
    drawn = np.random.default_rng(0)
    arrays = {}
    for kind, names, found in (
        ("arg", symbol.list_arguments(), shapes),
        ("aux", symbol.list_auxiliary_states(), states),
    ):
        for name, shape in zip(names, found):
            if name not in ("data", "softmax_label"):
                low = 0.5 if "gamma" in name or "var" in name else -1
                arrays[f"{kind}:{name}"] = drawn.uniform(low, 1.5, shape).astype("float32")
    return json.loads(symbol.tojson()), arrays


x = np.random.default_rng(1).uniform(0, 255, (2, 3, 6, 6)).astype("float32")


def of_mxnet(document, arrays):
    """The outputs that MXNet computes of a symbol that it wrote itself."""
    symbol = mx.sym.load_json(json.dumps(document))
    known = {name.partition(":")[2]: mx.nd.array(a, dtype="float32") for name, a in arrays.items()}
    args = {n: known[n] for n in symbol.list_arguments() if n in known}
    if "softmax_label" in symbol.list_arguments():
        shapes = symbol.infer_shape_partial(data=x.shape)[0]
        label = dict(zip(symbol.list_arguments(), shapes))["softmax_label"]
        args["softmax_label"] = mx.nd.zeros(label)
    states = {n: known[n] for n in symbol.list_auxiliary_states()}
    bound = symbol.bind(mx.cpu(), {"data": mx.nd.array(x), **args}, aux_states=states)
    return [o.asnumpy() for o in bound.forward(is_train=False)]


def written(folder, document, arrays):
    """The two files, as ``Module.save_checkpoint`` names them."""
    (folder / "net-symbol.json").write_text(json.dumps(document))
    mx.nd.save(str(folder / "net-0000.params"), {n: mx.nd.array(a, dtype=a.dtype) for n, a in arrays.items()})
    return str(folder / "net-symbol.json"), str(folder / "net-0000.params")


def nodes_of(document, op):
    return [node for node in document["nodes"] if node["op"] == op]


def no_version(document, arrays):
    del document["attrs"]


def no_rows(document, arrays):
    del document["node_row_ptr"]


def param_of_0_8(document, arrays):
    """MXNet before 0.9: ``param``, two numbers for an input, no version, states that are no inputs."""
    del document["attrs"], document["node_row_ptr"]
    states = {n for n, node in enumerate(document["nodes"]) if node["name"].startswith("bn0_moving")}
    places = {}
    for number in range(len(document["nodes"])):
        places[number] = number - sum(s < number for s in states)
    for node in document["nodes"]:
        node["param"], node["backward_source_id"] = node.pop("attrs", {}), -1
        node["inputs"] = [[places[i], j] for i, j, *_ in node["inputs"] if i not in states]
    document["nodes"] = [node for n, node in enumerate(document["nodes"]) if n not in states]
    document["arg_nodes"] = [places[n] for n in document["arg_nodes"] if n not in states]
    document["heads"] = [[places[i], j] for i, j, *_ in document["heads"]]


def attr_of_0_9(document, arrays):
    document["attrs"]["mxnet_version"] = ["int", 903]
    for node in document["nodes"]:
        if "attrs" in node:
            node["attr"] = node.pop("attrs")


def param_beside_attr(document, arrays):
    """0.8 with attributes of the user's: multipliers and groups of devices."""
    param_of_0_8(document, arrays)
    for node in document["nodes"]:
        node["attr"] = {"ctx_group": "stage1", "lr_mult": "0.1"}


def multipliers(document, arrays):
    for node in nodes_of(document, "null"):
        node["attrs"] = {**node.get("attrs", {}), "__lr_mult__": "2.0", "__shape__": "(0, 3, 6, 6)"}
        if node["name"] != "data":
            del node["attrs"]["__shape__"]


def longs(document, arrays):
    """Of Python 2."""
    for node in document["nodes"]:
        for name, text in node.get("attrs", {}).items():
            if text.startswith("("):
                node["attrs"][name] = text.replace(")", "L)").replace(",", "L,")


def number_words(document, arrays):
    for node in nodes_of(document, "BatchNorm"):
        node["attrs"]["fix_gamma"] = "1"
    for node in nodes_of(document, "Convolution"):
        node["attrs"]["no_bias"] = "true"


def old_names(document, arrays):
    for node in document["nodes"]:
        new = {"_minus_scalar": "_MinusScalar", "_mul_scalar": "_MulScalar", "SoftmaxOutput": "Softmax"}
        node["op"] = new.get(node["op"], node["op"])


def first_operators(document, arrays):
    """MXNet keeps the first layers under names of their own."""
    for node in document["nodes"]:
        if node["op"] in ("BatchNorm", "Convolution"):
            node["op"] += "_v1"


def no_prefixes(document, arrays):
    for name in list(arrays):
        arrays[name.partition(":")[2]] = arrays.pop(name)


def more_arrays(document, arrays):
    arrays["arg:another_weight"] = np.ones((2, 2), "float32")
    arrays["arg:softmax_label"] = np.zeros(2, "float32")


def plain(document, arrays):
    pass


READ = {
    **{f"{head} at its end": (head, plain)
       for head in ("SoftmaxOutput", "SoftmaxOutput and its input", "LinearRegressionOutput",
                    "LogisticRegressionOutput", "L2Normalization")},
    **{change.__name__: ("SoftmaxOutput", change)
       for change in (no_version, no_rows, param_of_0_8, attr_of_0_9, param_beside_attr, multipliers, longs,
                      number_words, old_names, first_operators, no_prefixes, more_arrays)},
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
def test_a_file_is_read_and_computes_what_mxnet_computes(kind, tmp_path):
    head, change = READ[kind]
    document, arrays = checkpoint(head)
    wanted = of_mxnet(document, arrays)
    change(document, arrays)
    module = gt.bridge.to_torch(*written(tmp_path, document, arrays), inputs=["data"])
    with torch.no_grad():
        found = module.eval()(torch.from_numpy(x))
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=2e-4, atol=2e-5)


def test_a_block_of_the_files_is_read_and_its_gamma_stays_one(tmp_path):
    """``SymbolBlock.imports``; in training, too, where MXNet writes ones into a gamma that is fixed."""
    document, arrays = checkpoint("L2Normalization")
    symbol, params = written(tmp_path, document, arrays)
    net = mx.gluon.SymbolBlock.imports(symbol, ["data"], params)
    found = gt.bridge.check(net, gt.bridge.to_torch(net), x)
    assert found.output < 1e-5
    found = gt.bridge.check(net, gt.bridge.to_torch(symbol, params), x, train=True, dtype="float64")
    assert max(found.output, found.gradient) < 1e-8


def test_a_reader_of_text_takes_its_begin_states_as_inputs(tmp_path):
    """As cnocr's and mxnet-ocr's: PReLU, a fused LSTM whose begin states are data, a softmax for each step."""
    body = S.Convolution(S.var("data"), num_filter=4, kernel=(3, 3), pad=(1, 1), name="conv0")
    body = S.LeakyReLU(body, act_type="prelu", name="relu0")
    steps = S.Reshape(S.transpose(body, axes=(3, 0, 1, 2)), shape=(0, 0, -1))
    states = [S.var(n) for n in ("l0_init_h", "l0_init_c")]
    steps = S.RNN(steps, S.var("lstm_parameters"), *states, state_size=5, num_layers=1, bidirectional=True, mode="lstm")
    symbol = S.softmax(S.FullyConnected(S.Reshape(steps, shape=(-3, 0)), num_hidden=7, name="fc"), name="pred")
    zeros = np.zeros((2, 2, 5), "float32")
    shapes = symbol.infer_shape(data=x.shape, l0_init_h=zeros.shape, l0_init_c=zeros.shape)[0]
    given = {"data": x / 255, "l0_init_h": zeros, "l0_init_c": zeros + 0.1}
    drawn = np.random.default_rng(0)
    arrays = {f"arg:{name}": drawn.uniform(-0.5, 0.5, shape).astype("float32")
              for name, shape in zip(symbol.list_arguments(), shapes) if name not in given}  # fmt: skip
    known = {n: mx.nd.array(a) for n, a in [*given.items(), *((n[4:], a) for n, a in arrays.items())]}
    wanted = symbol.bind(mx.cpu(), known).forward()[0].asnumpy()
    module = gt.bridge.to_torch(*written(tmp_path, json.loads(symbol.tojson()), arrays), inputs=list(given))
    found = module.eval()(*[torch.from_numpy(a.astype("float32")) for a in given.values()])
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=2e-4, atol=2e-5)


def test_parameters_of_the_first_versions_are_read(tmp_path):
    """Arrays without a magic number of their own: the count of axes comes first, each axis in four bytes."""
    document, arrays = checkpoint()
    wanted = of_mxnet(document, arrays)
    symbol, params = written(tmp_path, document, arrays)
    rows = [struct.pack("<QQQ", 0x112, 0, len(arrays))]
    for array in arrays.values():
        rows.append(struct.pack(f"<I{array.ndim}I", array.ndim, *array.shape))
        rows.append(struct.pack("<iii", 1, 0, 0) + array.tobytes())
    rows.append(struct.pack("<Q", len(arrays)))
    rows += [struct.pack("<Q", len(name)) + name.encode() for name in arrays]
    (tmp_path / "net-0000.params").write_bytes(b"".join(rows))
    found = gt.bridge.to_torch(symbol, params, inputs=["data"]).eval()(torch.from_numpy(x))
    np.testing.assert_allclose(found.detach().numpy(), wanted[0], rtol=2e-4, atol=2e-5)


def half(document, arrays):
    arrays.update({name: array.astype("float16") for name, array in arrays.items()})


def test_float16_weights_are_converted_where_asked_and_refused_where_not(tmp_path):
    document, arrays = checkpoint()
    half(document, arrays)
    files = written(tmp_path, document, arrays)
    with pytest.raises(GluontuneError, match=r"parameter \w+ is float16: pass dtype='float32'"):
        gt.bridge.to_torch(*files)
    found = gt.bridge.to_torch(*files, inputs=["data"], dtype="float32").eval()(torch.from_numpy(x))
    np.testing.assert_allclose(found.detach().numpy(), of_mxnet(document, arrays)[0], rtol=2e-4, atol=2e-5)


def whole(document, arrays):
    arrays["arg:conv0_weight"] = (arrays["arg:conv0_weight"] * 80).astype("int8")


def without_states(document, arrays):
    del arrays["aux:bn0_moving_var"]


def another_shape(document, arrays):
    arrays["arg:fc_weight"] = arrays["arg:fc_weight"][:-1]


def quantized(document, arrays):
    nodes_of(document, "Convolution")[0]["op"] = "_contrib_quantized_conv"


def fused(document, arrays):
    nodes_of(document, "Convolution")[0]["op"] = "_sg_mkldnn_conv"


def custom(document, arrays):
    nodes_of(document, "Activation")[0].update(op="Custom", attrs={"op_type": "swish"})


def unknown(document, arrays):
    nodes_of(document, "Activation")[0].update(op="MyOwnActivation")


REFUSED = {
    "int8 weights": (whole, "conv0_weight"),
    "no states": (without_states, "bn0_moving_var"),
    "another shape": (another_shape, "fc"),
    "quantized": (quantized, "conv0"),
    "fused": (fused, "conv0"),
    "custom": (custom, "Custom|swish"),
    "unknown": (unknown, "MyOwnActivation"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_converted_is_refused_by_its_name(kind, tmp_path):
    change, name = REFUSED[kind]
    document, arrays = checkpoint()
    change(document, arrays)
    with pytest.raises(GluontuneError, match=name):
        gt.bridge.to_torch(*written(tmp_path, document, arrays))
