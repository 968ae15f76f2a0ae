"""Wrong gradients of MXNet 1.9.1, and other operators of MXNet's with the right ones.

:data:`FAULTS` is the table; ``docs/mxnet-faults.md`` is the same for users of MXNet, and
``tests/convert/test_bridge_references.py`` proves each fault and replacement by finite differences.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune.compute._traversal import walk
from gluontune.compute.process import goes_on
from gluontune.runtime import mxnet

NOTHING = "gluontune_nothing"  # an added variable, zeros of shape (1,), that requires a gradient

_GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}
_SELU = 1.6732632423543772, 1.0507009873554805  # alpha, scale

Entry = list[int]


@dataclass(frozen=True)
class Fault:
    """A wrong gradient of MXNet's.

    Args:
        operator: MXNet's name. when: as a sentence.
        met: of a node's attributes, the dtype, and whether its second input (its weights) needs no gradient while
            another does: whether the gradient is wrong.
        instead: of a :class:`Writer`, the node and the number of axes of its inputs; adds operators with right
            gradients, and returns its outputs.
        onward: only where the gradient of its second input goes on, as that is computed or used again.
    """

    operator: str
    when: str
    met: Callable[[Mapping[str, str], str, bool], bool]
    instead: Callable[[Writer, dict[str, Any], Sequence[int]], list[Entry]]
    onward: bool = False


class Writer:
    """The nodes of a rewritten symbol; ``prefix``: of the added ones' names."""

    def __init__(self, prefix: str) -> None:
        self.nodes: list[dict[str, Any]] = []
        self._prefix = prefix
        self._nothing: Entry | None = None
        self.frozen = False  # whether the present node's weights need no gradient

    def asked(self, entry: Entry) -> Entry:
        """The weights with a required gradient: without it MXNet's kernel computes the other gradients wrongly."""
        if not self.frozen:
            return entry
        if self._nothing is None:
            self.nodes.append({"op": "null", "name": NOTHING, "inputs": []})
            self._nothing = [len(self.nodes) - 1, 0, 0]
        return self.add("broadcast_add", entry, self._nothing)

    def add(self, op: str, *inputs: Entry, **attrs: Any) -> Entry:
        attrs = {name: str(value) for name, value in attrs.items()}
        name = f"{self._prefix}{len(self.nodes)}"
        self.nodes.append({"op": op, "name": name, "attrs": attrs, "inputs": [list(entry) for entry in inputs]})
        return [len(self.nodes) - 1, 0, 0]

    def rewritten(
        self, document: dict[str, Any], change: Callable[[int, dict[str, Any], Entry], Sequence[Entry]]
    ) -> dict[str, Any]:
        """A symbol's JSON, in which other operators stand for outputs of nodes.

        Args:
            change: of a node's number, the node with its new inputs, and its own entry; adds operators, and returns
                those of its outputs, or none for the node itself.
        """
        outputs: list[tuple[int, Sequence[Entry]]] = []

        def now(entry: Entry) -> Entry:
            own, others = outputs[entry[0]]
            return others[entry[1]] if entry[1] < len(others) else [own, entry[1], 0]

        for number, node in enumerate(document["nodes"]):
            self.nodes.append({**node, "inputs": [now(entry) for entry in node["inputs"]]})
            own = len(self.nodes) - 1
            outputs.append((own, change(number, self.nodes[own], [own, 0, 0])))
        arguments = [number for number, node in enumerate(self.nodes) if node["op"] == "null"]
        heads = [now(entry) for entry in document["heads"]]
        rest = {name: value for name, value in document.items() if name != "node_row_ptr"}
        return {**rest, "nodes": self.nodes, "arg_nodes": arguments, "heads": heads}


def _layers(attrs: Mapping[str, str]) -> int:
    return int(attrs.get("num_layers", "1"))


def _own_kernel(attrs: Mapping[str, str], dtype: str) -> bool:
    plain = attrs.get("projection_size", "None") == "None" and attrs.get("use_sequence_length") != "True"
    return plain and (dtype == "float64" or os.environ.get("MXNET_USE_MKLDNN_RNN") == "0")


def _asked(write: Writer, node: dict[str, Any], axes: Sequence[int]) -> list[Entry]:
    data, weights, *rest = node["inputs"]
    made = write.add(node["op"], data, write.asked(weights), *rest, **node["attrs"])
    return [[made[0], place, 0] for place in range(1 + len(rest))]


def _one_by_one(write: Writer, node: dict[str, Any], axes: Sequence[int]) -> list[Entry]:
    """The layers of a fused RNN as operators of one layer each, with right gradients."""
    attrs = node["attrs"]
    mode, hidden, count = attrs["mode"], int(attrs["state_size"]), _layers(attrs)
    ways = 2 if attrs.get("bidirectional") == "True" else 1
    rows = _GATES[mode] * hidden
    biases, later = (2 * rows * ways, ways * (rows * hidden * ways + rows * hidden))  # of one layer; from the second on
    data, parameters, *states = node["inputs"]
    parameters = write.asked(parameters)
    whole, ends = count * biases, []
    for layer in range(count):
        first = "0" if layer == 0 else -whole - (count - layer) * later
        weights = write.add("slice_axis", parameters, axis=0, begin=first, end=-whole - (count - layer - 1) * later)
        last = "None" if layer == count - 1 else -whole + (layer + 1) * biases
        offsets = write.add("slice_axis", parameters, axis=0, begin=-whole + layer * biases, end=last)
        packed = write.add("Concat", weights, offsets, dim=0, num_args=2)
        begins = [_of_layer(write, state, layer, ways) for state in states]
        rest = {k: v for k, v in attrs.items() if k not in ("num_layers", "state_outputs")}
        made = write.add("RNN", data, packed, *begins, **rest, num_layers=1, state_outputs=True)
        data = made
        ends.append([[made[0], 1 + place, 0] for place in range(len(states))])
    stacked = [write.add("Concat", *each, dim=0, num_args=count) for each in zip(*ends)]
    return [data, *stacked]


def _of_layer(write: Writer, state: Entry, layer: int, ways: int) -> Entry:
    made = write.nodes[state[0]]
    if made["op"] == "_zeros":  # of an unknown batch: it cannot be sliced
        shape = made["attrs"]["shape"].strip("()[] ").split(",")
        return write.add("_zeros", **{**made["attrs"], "shape": f"({ways},{','.join(shape[1:])})"})
    return write.add("slice_axis", state, axis=0, begin=layer * ways, end=(layer + 1) * ways)


def _prelu(write: Writer, node: dict[str, Any], axes: Sequence[int]) -> list[Entry]:
    data, slope = node["inputs"][:2]
    beside = f"(1,-1{',1' * (axes[0] - 2)})" if axes[0] > 1 else "(-1,)"
    below = write.add("_minimum_scalar", data, scalar=0)
    sloped = write.add("broadcast_mul", below, write.add("Reshape", slope, shape=beside))
    return [write.add("elemwise_add", write.add("_maximum_scalar", data, scalar=0), sloped)]


def _selu(write: Writer, node: dict[str, Any], axes: Sequence[int]) -> list[Entry]:
    data, (alpha, scale) = node["inputs"][0], _SELU
    above = write.add("_maximum_scalar", data, scalar=0)
    below = write.add("expm1", write.add("_minimum_scalar", data, scalar=0))
    whole = write.add("elemwise_add", above, write.add("_mul_scalar", below, scalar=repr(alpha)))
    return [write.add("_mul_scalar", whole, scalar=repr(scale))]


def _where(write: Writer, node: dict[str, Any], axes: Sequence[int]) -> list[Entry]:
    condition, data = node["inputs"]
    other = write.add("_plus_scalar", write.add("zeros_like", data), scalar=node.get("attrs", {}).get("scalar", "0"))
    sides = (data, other) if node["op"] == "_npi_where_rscalar" else (other, data)
    return [write.add("_npi_where", condition, *sides)]


def _moment(write: Writer, node: dict[str, Any], axes: Sequence[int]) -> list[Entry]:
    data, attrs = node["inputs"][0], {k: v for k, v in node.get("attrs", {}).items() if k in ("axis", "keepdims")}
    whole = {**attrs, "keepdims": "True"}
    square = write.add("_npi_square", write.add("_npi_subtract", data, write.add("_npi_mean", data, **whole)))
    found = write.add("_npi_mean", square, **attrs)
    if int(node.get("attrs", {}).get("ddof", "0")):
        count = write.add("_np_sum", write.add("ones_like", data), **attrs)
        freed = write.add("_npi_subtract_scalar", count, scalar=node["attrs"]["ddof"])
        found = write.add("_npi_multiply", found, write.add("_npi_true_divide", count, freed))
    return [write.add("_npi_sqrt", found) if node["op"] == "_npi_std" else found]


def _in_float64(write: Writer, node: dict[str, Any], axes: Sequence[int]) -> list[Entry]:
    wide = [write.add("Cast", entry, dtype="float64") for entry in node["inputs"]]
    return [write.add("Cast", write.add("Deconvolution", *wide, **node["attrs"]), dtype="float32")]


FAULTS = (
    Fault(
        "RNN", "a fused LSTM, GRU or RNN of several layers on a CPU in float64, or in float32 with "
        "MXNET_USE_MKLDNN_RNN=0: the gradients of its weights are wrong where its input needs no gradient",
        lambda attrs, dtype, frozen: _own_kernel(attrs, dtype) and _layers(attrs) > 1, _one_by_one,
    ),
    Fault(
        "RNN", "a fused GRU or RNN of one layer whose weights are frozen, on a CPU in float64, or in float32 with "
        "MXNET_USE_MKLDNN_RNN=0: the gradients of its input and its states are wrong",
        lambda attrs, dtype, frozen: (
            _own_kernel(attrs, dtype) and _layers(attrs) == 1 and frozen and attrs["mode"] != "lstm"
        ), _asked,
    ),
    Fault(
        "LeakyReLU", "PReLU in a compiled graph, between other layers: the gradient of its slope is wrong",
        lambda attrs, dtype, frozen: attrs.get("act_type") == "prelu", _prelu,
    ),
    Fault(
        "LeakyReLU", "selu below zero: its gradient is up to 5 % off",
        lambda attrs, dtype, frozen: attrs.get("act_type") == "selu", _selu,
    ),
    Fault(
        "FullyConnected", "a dense layer whose weights are frozen, on a CPU in float32: its bias gets no gradient",
        lambda attrs, dtype, frozen: (
            frozen and dtype == "float32" and attrs.get("no_bias", "False") not in ("True", "1")
        ), _asked,
    ),
    *(
        Fault(
            name, "np.where of an array and a number: the array's gradient is that of the other side",
            lambda attrs, dtype, frozen: True, _where,
        )
        for name in ("_npi_where_lscalar", "_npi_where_rscalar")
    ),
    *(
        Fault(name, "np.std and np.var: their gradient is zero", lambda attrs, dtype, frozen: True, _moment)
        for name in ("_npi_std", "_npi_var")
    ),
    Fault(
        "Deconvolution", "a deconvolution in float32 on a CPU whose weight is computed, or used more than once: the "
        "process ends in its backward pass", lambda attrs, dtype, frozen: dtype == "float32", _in_float64, True,
    ),
)  # fmt: skip


def right_way(
    symbol: Any, shapes: Mapping[str, Sequence[int]], dtype: str, frozen: Collection[str] = ()
) -> tuple[Any, list[str]]:
    """``symbol`` with other operators for wrong gradients of MXNet's, and the faults of the replaced ones.

    If an unused gradient must be computed, the symbol has another variable, :data:`NOTHING`.

    Args:
        symbol: of mxnet's. shapes: of its inputs, by name. frozen: variables without gradients.

    >>> sym = mxnet().sym
    >>> other, faults = right_way(sym.LeakyReLU(sym.var("x"), act_type="selu"), {"x": (2, 3)}, "float32")
    >>> faults
    ['selu below zero: its gradient is up to 5 % off']
    """
    document = json.loads(symbol.tojson())
    faulty: dict[int, Fault] = {}
    still: list[bool] = []  # by node, whether no gradient passes it
    uses = Counter(tuple(entry[:2]) for node in document["nodes"] for entry in node["inputs"])
    for number, node in enumerate(document["nodes"]):
        fixed = [still[at] for at, *_ in node["inputs"]]
        still.append(node["name"] in frozen if node["op"] == "null" else all(fixed) or node["op"] == "BlockGrad")
        alone = all(fixed[1:2]) and not all(fixed)
        for fault in FAULTS:
            met = node["op"] == fault.operator and fault.met(node.get("attrs", {}), dtype, alone)
            if met and (not fault.onward or goes_on(document["nodes"], uses, node["inputs"][1])):
                faulty[number] = fault
    if not faulty:
        return symbol, []
    internals = symbol.get_internals()
    known = {name: shapes[name] for name in symbol.list_inputs() if name in shapes}
    sizes = dict(zip(internals.list_outputs(), internals.infer_shape_partial(**known)[1]))
    write = Writer("right")

    def change(number: int, node: dict[str, Any], own: Entry) -> Sequence[Entry]:
        if number not in faulty:
            return ()
        before = document["nodes"][number]["inputs"]
        axes = [_axes(document["nodes"][at], place, sizes) for at, place, *_ in before]
        write.frozen = all(still[at] for at, *_ in before[1:2])
        return faulty[number].instead(write, node, axes)

    sentences = list(dict.fromkeys(fault.when for fault in faulty.values()))
    return mxnet().sym.load_json(json.dumps(write.rewritten(document, change))), sentences


def doubtful(net: Any) -> list[str]:
    """Possible faults of MXNet's gradients of ``net`` on a CPU, a sentence for each layer.

    >>> doubtful(mxnet().gluon.rnn.LSTM(3, num_layers=2))
    []
    """
    found, (prelu, selu, dense) = [], FAULTS[2:5]
    by_class = {"PReLU": prelu, "SELU": selu}
    for path, block in walk(net):
        fault = by_class.get(type(block).__name__)
        attrs = {"num_layers": str(getattr(block, "_num_layers", 1))}
        parameters = list(block._reg_params.values())
        if hasattr(block, "_gates") and hasattr(block, "_mode") and parameters:
            attrs["mode"], dtype = block._mode, np.dtype(parameters[0].dtype).name
            frozen = all(p.grad_req == "null" for p in parameters)
            fault = next((f for f in FAULTS[:2] if f.met(attrs, dtype, frozen)), None)
        weight, bias = block._reg_params.get("weight"), block._reg_params.get("bias")
        if type(block).__name__ == "Dense" and bias is not None and weight.grad_req == "null" != bias.grad_req:
            fault = dense
        if fault is not None:
            found.append(f"layer {path or type(net).__name__}: {fault.when} (docs/mxnet-faults.md has ways out)")
    return found


def _axes(node: dict[str, Any], place: int, sizes: Mapping[str, Sequence[int]]) -> int:
    """The number of axes of an output, or 0 if unknown."""
    names = [node["name"]] if node["op"] == "null" else [f"{node['name']}_output", f"{node['name']}_output{place}"]
    return next((len(sizes[name]) for name in names if sizes.get(name)), 0)
