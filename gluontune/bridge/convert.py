"""A graph of MXNet's as a ``torch.fx.GraphModule``."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import operator as python_operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gluontune.bridge.names import Places, identifier
from gluontune.bridge.registry import OPERATORS, Operator, keywords, unknown_output
from gluontune.bridge.source import Source, open_source
from gluontune.errors import GluontuneError, UnknownNameError
from gluontune.graph.schemas import parse, schema
from gluontune.graph.symbol import Graph, Node, read_symbol
from gluontune.runtime.pytorch import torch
from gluontune.texts import clean

__all__ = ["attributes", "inputs_of", "refuse_unknown", "to_torch"]

# Inputs that training gives and inference does not.
_LABELS = {"label"}
_STATES = {"weight", "bias", "gamma", "beta", "moving_mean", "moving_var", "running_mean", "running_var", "parameters"}
_FIRST_SIZE = {"Convolution": "num_filter", "FullyConnected": "num_hidden", "Embedding": "input_dim"}


def to_torch(
    net: Any,
    params: Any = None,
    *,
    inputs: int | Sequence[str] | None = None,
    dtype: str | None = None,
    training: Any = None,
) -> Any:
    """A PyTorch module that computes what the Gluon net or the symbol computes.

    Parameters keep Gluon's names (but for names that Python source cannot hold: ``from_torch`` knows those);
    running statistics are buffers; ``.train()`` and ``.eval()`` act as Gluon's training and predict modes, also where
    the net branches on ``autograd.is_training()``. A symbol needs no mxnet. The weights are copied, not shared.

    Args:
        net: a ``HybridBlock``, a symbol of mxnet's, or the path of a ``-symbol.json``.
        params: the ``.params`` file or a dict of arrays; of a block None takes its own.
        inputs: how many inputs a block takes, where it was not yet hybridized and run and takes more than one;
            of a symbol the names of its inputs, in the order that the module shall take them.
        dtype: "float32" or "float64" to convert the floating parameters to.
        training: beside a symbol: that of training mode, where it is another one. A block is traced in both modes.

    Returns:
        A ``torch.fx.GraphModule``. It takes the inputs in the net's order and returns a tensor, or a tuple of
        them. ``module.inputs`` has their names.

    Raises:
        GluontuneError: an operator is not known, an array is missing or of another shape, parameters are float16 and
            no dtype is given, or PyTorch is missing.

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
    places.tell(module)
    module.inputs = names
    return module.train(False)


def _both_modes(
    library: Any, places: Places, source: Source, names: list[str], dtype: str | None
) -> tuple[Any, list[str]]:
    """A graph that hands its inputs and all arrays to the graph of prediction or that of training; and its inputs."""
    modes: Any = importlib.import_module("gluontune.bridge.modes")
    why, graphs = source.untrained, [source.graph]
    if source.training is not None:
        trained = Source(source.training, source.arrays, source.inputs, source.frozen)
        try:
            refuse_unknown(source.training)
            more = inputs_of(trained)
            _put_arrays(library, places, trained, dtype)
            names = [*names, *[name for name in more if name not in names]]
            graphs.append(source.training)
        except GluontuneError as error:  # of prediction there is a module
            why = str(error)
    arrays = [name for name in source.arrays if any(name in graph.variables() for graph in graphs)]
    built = []
    for graph in graphs:
        part = library.nn.Module()
        taking = Source(graph, {}, None, set())
        built.append(library.fx.GraphModule(part, _Builder(library, Places(part), taking, [*names, *arrays]).build()))
    both = places.layer("modes_")
    places.root.add_module(both, modes.ByMode(built[0], built[1] if len(built) > 1 else None, why))
    graph = library.fx.Graph()
    used: set[str] = set()
    taken = [graph.placeholder(identifier(name, used)) for name in names]
    graph.output(graph.call_module(both, (*taken, *(graph.get_attr(places.of[name]) for name in arrays))))
    return graph, names


def refuse_unknown(graph: Graph) -> None:
    """Refuse operators that have no meaning here, by name and layer, and variables of one name."""
    importlib.import_module("gluontune.bridge.operators")
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
    if not missing:
        return
    told = "; ".join(f"{op} (layer {layers[0]}{_more(layers)})" for op, layers in sorted(missing.items()))
    raise GluontuneError(
        f"{graph.source}: not known to the bridge: {told}. Register it: "
        f"@gt.bridge.operator({min(missing)!r}) above a function of its inputs and attributes in torch"
    )


def _more(layers: list[str]) -> str:
    return f" and {len(layers) - 1} more" if len(layers) > 1 else ""


def _slots(node: Node) -> tuple[str, ...]:
    try:
        return schema(node.op or "").inputs
    except UnknownNameError:
        return ()


def _roles(graph: Graph) -> dict[str, set[str]]:
    """Variable to the names of the operators' inputs that it fills."""
    found: dict[str, set[str]] = {name: set() for name in graph.variables()}
    for node in graph.nodes:
        for place, (at, _) in enumerate(node.inputs):
            slots = _slots(node)
            if graph.nodes[at].op is None and place < len(slots):
                found[graph.nodes[at].name].add(slots[place])
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
        structural = arrays and all(re.search(r"\.\w+$", name) for name in arrays)
        why = (
            f"The .params has names by structure ({next(iter(arrays))}), as save_parameters writes them: load it into "
            "the net and export that"
            if structural
            else "Are symbol and .params of the same net?"
        )
        raise GluontuneError(f"{graph.source}: the parameters lack {_listed(lacking)}. {why}")
    if source.inputs is None:
        return free
    known = set(graph.variables())  # what no operator reads is taken all the same
    return [*[n for n in source.inputs if n in free or n not in known], *[n for n in free if n not in named]]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _put_arrays(library: Any, places: Places, source: Source, dtype: str | None) -> None:
    graph = source.graph
    auxiliary, used = set(graph.auxiliary()), set(graph.variables())
    expected, roles = _first_sizes(graph), _roles(graph)
    for node in graph.nodes:
        if node.op is not None or node.name not in source.arrays or node.name not in used:
            continue
        if node.name in places.of:  # the other mode's graph has it, too
            continue
        array = source.arrays[node.name]
        _check_shape(graph, node, array, expected.get(node.name))
        if array.dtype == np.float16 and dtype is None:
            raise GluontuneError(
                f"{graph.source}: parameter {node.name} is float16: pass dtype='float32' to convert the parameters"
            )
        if array.dtype.name in ("int8", "uint8") and roles[node.name] & _STATES:
            raise GluontuneError(
                f"{graph.source}: parameter {node.name} is {array.dtype.name}, and the scale of its "
                "numbers does not stand in the file: convert the float32 parameters that it was made from"
            )
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
            for place in (1, 2):
                if place < len(node.inputs) and (place == 1 or node.op != "Embedding"):
                    found[graph.nodes[node.inputs[place][0]].name] = int(node.attrs[key])
    return found


def _check_shape(graph: Graph, node: Node, array: np.ndarray, first: int | None) -> None:
    wanted = node.shape
    if wanted is not None and wanted != array.shape:
        raise GluontuneError(
            f"{graph.source}: parameter {node.name} has shape {array.shape}, the symbol wants {wanted}"
        )
    if first is not None and (not array.shape or array.shape[0] != first):
        raise GluontuneError(
            f"{graph.source}: parameter {node.name} has shape {array.shape}, its layer wants {first} rows"
        )


def attributes(entry: Operator, node: Node) -> dict[str, Any]:
    """The attributes of a node as its entry in the registry takes them."""
    try:
        known = schema(node.op or "")
        defaults: Mapping[str, Any] = {
            key: parse(attribute, attribute.default, key) for key, attribute in known.attributes.items()
        }
    except UnknownNameError:
        defaults = {}
    return keywords(entry, node.attrs, node.name, defaults)


class _Builder:
    def __init__(self, library: Any, places: Places, source: Source, inputs: list[str]):
        self.torch, self.places, self.graph, self.inputs = library, places, source.graph, inputs
        self.fx = library.fx.Graph()
        self.arrays = source.arrays
        self.values: dict[int, Any] = {}
        self.tuples: set[int] = set()

    def build(self) -> Any:
        variables = {node.name: number for number, node in enumerate(self.graph.nodes) if node.op is None}
        roles = _roles(self.graph)
        needed = [name for name in self.inputs if not roles.get(name) or not roles[name] <= _LABELS]
        last = self.inputs.index(needed[-1]) if needed else -1
        taken: set[str] = set()
        for at, name in enumerate(self.inputs):  # labels may be left out, where nothing that is needed follows
            place = identifier(name, taken)
            made = self._node("placeholder", place, (None,) if at > last else ())
            if name in variables:  # the net's other mode may be what takes it
                self.values[variables[name]] = made
        self.like = self._like()
        for number, node in enumerate(self.graph.nodes):
            if node.op is not None:
                with self._named(node):
                    self._add(number, node)
            elif number not in self.values:
                self.values[number] = self._node("get_attr", self.places.of[node.name])
        outputs = [self._value(entry) for entry in self.graph.outputs]
        self.fx.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        return self.fx

    def _node(self, kind: str, target: str, args: tuple[Any, ...] = ()) -> Any:
        """A node; the variable that holds it is named here, as fx would name one ``self``."""
        return self.fx.create_node(kind, target, args, {}, name=identifier(target, set()))

    def _like(self) -> Any:
        """A tensor on the device that the arrays made from nothing belong on."""
        return next(iter(self.values.values()), None)

    def _value(self, entry: tuple[int, int]) -> Any:
        number, place = entry
        if number in self.tuples:
            return self.fx.call_function(python_operator.getitem, (self.values[number], place))
        if place:
            node = self.graph.nodes[number]
            raise unknown_output(node.name, node.op, place)
        return self.values[number]

    @contextlib.contextmanager
    def _named(self, node: Node) -> Iterator[None]:
        """Whatever an operator's inputs and attributes make it raise names its layer."""
        try:
            yield
        except GluontuneError:
            raise
        except Exception as error:
            raise GluontuneError(
                f"{self.graph.source}: layer {clean(node.name, 80)}: {node.op} cannot be made of its inputs and "
                f"attributes ({type(error).__name__}: {clean(error, 200)})"
            ) from error

    def _add(self, number: int, node: Node) -> None:
        entry = OPERATORS[node.op or ""]
        args = tuple(self._value(pair) for pair in node.inputs)
        attrs = attributes(entry, node)
        if entry.stateful:
            name = self.places.layer(node.name)
            self.places.root.add_module(name, entry.run(*map(self._body, node.subgraphs), **attrs))
            made = self._node("call_module", name, args)
        else:
            if entry.source:
                attrs["like"] = self.like
            with contextlib.suppress(ValueError):  # torch's own, in C, have no signature
                inspect.signature(entry.run).bind(*args, **attrs)
            made = self.fx.call_function(entry.run, args, attrs)
        self.values[number] = made
        if entry.returns_tuple(node.attrs):
            self.tuples.add(number)

    def _body(self, graph: Graph) -> Any:
        """The module of a subgraph, which takes its variables in their order."""
        root, names = self.torch.nn.Module(), graph.variables()
        inner = _Builder(self.torch, Places(root), Source(graph, {}, names, set()), names)
        return self.torch.fx.GraphModule(root, inner.build(), "Step")
