"""A graph of MXNet's as a ``torch.fx.GraphModule``."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import operator as python_operator
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from gluontune.convert.bridge.names import Places, identifier
from gluontune.convert.bridge.registry import OPERATORS, attributes, unknown_output
from gluontune.convert.bridge.source import Source, open_source
from gluontune.convert.graph.schemas import known_schema
from gluontune.convert.graph.symbol import Graph, Node, read_symbol
from gluontune.core.errors import GluontuneError, clean
from gluontune.runtime.pytorch import torch

# Inputs of training alone.
_LABELS = {"label"}
_STATES = {"weight", "bias", "gamma", "beta", "moving_mean", "moving_var", "running_mean", "running_var", "parameters"}
_FIRST_SIZE = {"Convolution": "num_filter", "FullyConnected": "num_hidden", "Embedding": "input_dim"}


def to_torch(net: Any, params: Any = None, *, inputs: int | Sequence[str] | None = None, dtype: str | None = None,
             training: Any = None) -> Any:  # fmt: skip
    """A PyTorch module with the computation of a Gluon net or a symbol.

    Parameters have Gluon's names (except names that Python source cannot have: ``from_torch`` maps those); running
    statistics are buffers; ``.train()`` and ``.eval()`` act as Gluon's training and predict modes, also if the net
    branches on ``autograd.is_training()``. A symbol needs no mxnet. The weights are copied, not shared.

    Args:
        net: a ``HybridBlock``, a symbol of mxnet's, or the path of a ``-symbol.json``.
        params: the ``.params`` file or a dict of arrays; None takes a block's own.
        inputs: the number of inputs of a block that was not hybridized and run and takes several; of a symbol the
            names of its inputs, in the module's order.
        dtype: "float32" or "float64" to convert the floating parameters to.
        training: beside a symbol: that of training mode, if it differs. A block is traced in both modes.

    Returns:
        A ``torch.fx.GraphModule``. It takes the inputs in the net's order and returns a tensor, or a tuple of tensors.
        ``module.inputs`` has their names.

    Raises:
        GluontuneError: an unknown operator, an array that is missing or of another shape, float16 parameters without a
            dtype, or PyTorch is missing.

    >>> text = '''{"nodes": [{"op": "null", "name": "data", "inputs": []},
    ...   {"op": "null", "name": "fc_weight", "inputs": []},
    ...   {"op": "FullyConnected", "name": "fc", "attrs": {"num_hidden": "2", "no_bias": "True"},
    ...    "inputs": [[0, 0, 0], [1, 0, 0]]}],
    ...   "arg_nodes": [0, 1], "heads": [[2, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]}}'''
    >>> module = to_torch(text, {"fc_weight": np.array([[1, 2], [3, 4]], "float32")})
    >>> module(torch().ones(1, 2)).tolist()
    [[3.0, 7.0]]
    """
    library = torch()
    source = open_source(net, params, inputs)
    if training is not None:
        source.training = read_symbol(training.tojson() if hasattr(training, "tojson") else training)
    refuse_unknown(source.graph)
    names = inputs_of(source)
    root = library.nn.Module()
    places = Places(root)
    _put_arrays(library, places, source, dtype)
    if source.training is None and not source.untrained:
        graph = _Builder(library, places, source, names).build()
    else:
        graph, names = _both_modes(library, places, source, names, dtype)
    module = library.fx.GraphModule(root, graph, "GluonModule")
    places.store(module)
    module.inputs = names
    return module.train(False)


def _both_modes(
    library: Any, places: Places, source: Source, names: list[str], dtype: str | None
) -> tuple[Any, list[str]]:
    """A graph that passes its inputs and all arrays to the prediction or training graph; and its inputs."""
    from gluontune.convert.bridge.operators.recurrent import ByMode

    why, graphs = source.untrained, [source.graph]
    if source.training is not None:
        trained = Source(source.training, source.arrays, source.inputs, source.frozen)
        try:
            refuse_unknown(source.training)
            more = inputs_of(trained)
            _put_arrays(library, places, trained, dtype)
            names = [*names, *[name for name in more if name not in names]]
            graphs.append(source.training)
        except GluontuneError as error:  # the prediction module remains
            why = str(error)
    arrays = [name for name in source.arrays if any(name in graph.variables() for graph in graphs)]
    built = [_without_arrays(library, graph, [*names, *arrays]) for graph in graphs]
    both = places.layer("modes_")
    places.root.add_module(both, ByMode(built[0], built[1] if len(built) > 1 else None, why))
    graph = library.fx.Graph()
    used: set[str] = set()
    taken = [graph.placeholder(identifier(name, used)) for name in names]
    graph.output(graph.call_module(both, (*taken, *(graph.get_attr(places.of[name]) for name in arrays))))
    return graph, names


def refuse_unknown(graph: Graph) -> None:
    """Refuse unknown operators, by name and layer, and variables of one name."""
    importlib.import_module("gluontune.convert.bridge.operators")
    twice = [name for name, count in Counter(graph.variables()).items() if count > 1]
    if twice:
        raise GluontuneError(f"{graph.source}: has more than one variable named {clean(twice[0], 80)}: export it again")
    for node in graph.nodes:
        known = node.op is None or node.op in OPERATORS
        fused = node.subgraphs and not (known and OPERATORS[node.op or ""].loops)
        if fused or (not known and "quantize" in (node.op or "")):
            what = "fused" if fused else "quantized"
            raise GluontuneError(
                f"{graph.source}: layer {node.name} was {what} by MXNet ({node.op}), as in int8 nets: convert the "
                "float32 net that it was made from"
            )
        for inner in node.subgraphs:
            refuse_unknown(inner)
    custom = [node for node in graph.nodes if node.op == "Custom" and "Custom" not in OPERATORS]
    if custom:
        raise GluontuneError(
            f"{graph.source}: layer {custom[0].name} is a CustomOp ({custom[0].attrs.get('op_type')}), Python code of "
            "its own. Register what it computes: @gt.bridge.operator('Custom') above a function of its inputs and "
            "**attributes in torch"
        )
    missing = {op: layers for op, layers in graph.operators().items() if op not in OPERATORS}
    if missing:
        layers = "; ".join(f"{op} (layer {_listed(names, 1)})" for op, names in sorted(missing.items()))
        raise GluontuneError(
            f"{graph.source}: not known to the bridge: {layers}. Register it: "
            f"@gt.bridge.operator({min(missing)!r}) above a function of its inputs and attributes in torch"
        )


def _roles(graph: Graph) -> dict[str, set[str]]:
    """The names of the operators' inputs that each variable fills."""
    found: dict[str, set[str]] = {name: set() for name in graph.variables()}
    for node in graph.nodes:
        known = known_schema(node.op)
        for (at, _), slot in zip(node.inputs, known.inputs if known else ()):
            if graph.nodes[at].op is None:
                found[graph.nodes[at].name].add(slot)
    return found


def inputs_of(source: Source) -> list[str]:
    graph, arrays = source.graph, source.arrays
    auxiliary = set(graph.auxiliary())
    free = [name for name in graph.variables() if name not in arrays]
    roles = _roles(graph)
    states = [n for n in free if n in auxiliary]
    if states:
        raise GluontuneError(
            f"{graph.source}: auxiliary states are missing: {_listed(states)}. Save them with net.export, "
            "or with save_checkpoint's aux_params"
        )
    named = set(source.inputs or ())
    lacking = [n for n in free if n not in named and roles[n] & _STATES]
    if lacking:
        why = "Are symbol and .params of the same net?"
        if arrays and all(re.search(r"\.\w+$", name) for name in arrays):
            why = (
                f"The .params has names by structure ({next(iter(arrays))}), as save_parameters writes them: load it "
                "into the net and export that"
            )
        raise GluontuneError(f"{graph.source}: the parameters lack {_listed(lacking)}. {why}")
    if source.inputs is None:
        return free
    known = set(graph.variables())  # a variable that no operator reads stays an input
    return [*[n for n in source.inputs if n in free or n not in known], *[n for n in free if n not in named]]


def _listed(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _put_arrays(library: Any, places: Places, source: Source, dtype: str | None) -> None:
    graph = source.graph
    auxiliary, used = set(graph.auxiliary()), set(graph.variables())
    expected, roles = _first_sizes(graph), _roles(graph)
    for node in graph.nodes:
        wanted = node.op is None and node.name in source.arrays and node.name in used
        if not wanted or node.name in places.of:  # set by the other mode's graph
            continue
        array = source.arrays[node.name]
        first, kind, fault = expected.get(node.name), array.dtype.name, ""
        if node.shape not in (None, array.shape):
            fault = f"has shape {array.shape}, the symbol wants {node.shape}"
        elif first is not None and array.shape[:1] != (first,):
            fault = f"has shape {array.shape}, its layer wants {first} rows"
        elif kind == "float16" and dtype is None:
            fault = "is float16: pass dtype='float32' to convert the parameters"
        elif kind in ("int8", "uint8") and roles[node.name] & _STATES:
            fault = (f"is {kind}, and the scale of its numbers does not stand in the file: convert the float32 "
                     "parameters that it was made from")  # fmt: skip
        if fault:
            raise GluontuneError(f"{graph.source}: parameter {node.name} {fault}")
        tensor = library.from_numpy(np.array(array, order="C"))
        if dtype and tensor.is_floating_point():
            tensor = tensor.to(getattr(library, dtype))
        home, leaf = places.home(node.name)
        if node.name in auxiliary or not tensor.is_floating_point():
            home.register_buffer(leaf, tensor)
        else:
            trained = node.name not in source.frozen
            home.register_parameter(leaf, library.nn.Parameter(tensor, requires_grad=trained))


def _first_sizes(graph: Graph) -> dict[str, int]:
    found = {}
    for node in graph.nodes:
        key = _FIRST_SIZE.get(node.op or "")
        if key:
            for at, _ in node.inputs[1 : 2 if node.op == "Embedding" else 3]:
                found[graph.nodes[at].name] = int(node.attrs[key])
    return found


def _without_arrays(library: Any, graph: Graph, names: list[str]) -> Any:
    """The module of a graph whose variables are all inputs, in the order of ``names``."""
    root = library.nn.Module()
    return library.fx.GraphModule(root, _Builder(library, Places(root), Source(graph, {}, names, set()), names).build())


class _Builder:
    def __init__(self, library: Any, places: Places, source: Source, inputs: list[str]):
        self.torch, self.places, self.graph, self.inputs = library, places, source.graph, inputs
        self.fx = library.fx.Graph()
        self.values: dict[int, Any] = {}
        self.tuples: set[int] = set()

    def build(self) -> Any:
        variables = {node.name: number for number, node in enumerate(self.graph.nodes) if node.op is None}
        roles = _roles(self.graph)
        needed = [name for name in self.inputs if not roles.get(name) or not roles[name] <= _LABELS]
        last = self.inputs.index(needed[-1]) if needed else -1
        taken: set[str] = set()
        for at, name in enumerate(self.inputs):  # trailing labels are optional
            place = identifier(name, taken)
            made = self._node("placeholder", place, (None,) if at > last else ())
            if name in variables:  # else the net's other mode takes it
                self.values[variables[name]] = made
        self.like = next(iter(self.values.values()), None)  # its device is that of arrays without inputs
        for number, node in enumerate(self.graph.nodes):
            if node.op is not None:
                try:
                    self._add(number, node)
                except GluontuneError:
                    raise
                except Exception as error:
                    raise GluontuneError(
                        f"{self.graph.source}: layer {clean(node.name, 80)}: {node.op} cannot be made of its inputs "
                        f"and attributes ({type(error).__name__}: {clean(error, 200)})"
                    ) from error
            elif number not in self.values:
                self.values[number] = self._node("get_attr", self.places.of[node.name])
        outputs = [self._value(entry) for entry in self.graph.outputs]
        self.fx.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        return self.fx

    def _node(self, kind: str, target: str, args: tuple[Any, ...] = ()) -> Any:
        """A node; its variable is named here, because fx may choose a name such as ``self``."""
        return self.fx.create_node(kind, target, args, {}, name=identifier(target, set()))

    def _value(self, entry: tuple[int, int]) -> Any:
        number, place = entry
        if number in self.tuples:
            return self.fx.call_function(python_operator.getitem, (self.values[number], place))
        if place:
            node = self.graph.nodes[number]
            raise unknown_output(node.name, node.op, place)
        return self.values[number]

    def _add(self, number: int, node: Node) -> None:
        entry = OPERATORS[node.op or ""]
        args = tuple(self._value(pair) for pair in node.inputs)
        attrs = attributes(entry, node)
        if entry.stateful:
            name = self.places.layer(node.name)
            bodies = [_without_arrays(self.torch, graph, graph.variables()) for graph in node.subgraphs]
            self.places.root.add_module(name, entry.run(*bodies, **attrs))
            made = self._node("call_module", name, args)
        else:
            if entry.source:
                attrs["like"] = self.like
            with contextlib.suppress(ValueError):  # torch's functions in C have no signature
                inspect.signature(entry.run).bind(*args, **attrs)
            made = self.fx.call_function(entry.run, args, attrs)
        self.values[number] = made
        if entry.returns_tuple(node.attrs):
            self.tuples.add(number)
