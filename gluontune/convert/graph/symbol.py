"""MXNet's symbol files (``-symbol.json``) as a graph of nodes with typed attributes, read without mxnet.

Files of older versions are updated by the rules of MXNet's loader: attribute sections under other names, hidden keys
without underlines (0.8), implied inputs (0.8: BatchNorm's statistics), ``axis=-1`` of argmax and argmin (0.9.4).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gluontune.convert.graph.schemas import known_schema
from gluontune.core.errors import GluontuneError, clean
from gluontune.core.reading import explain_os_error, parse_json, read_text

MOST_OUTPUTS = 10_000  # of a node

_HIDDEN = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage", "profiler_scope")
# Inputs that the operator changes (running statistics): MXNet's auxiliary states.
_AUXILIARY = {"BatchNorm": (3, 4), "BatchNorm_v1": (3, 4), "_contrib_SyncBatchNorm": (3, 4),
              "_contrib_BatchNormWithReLU": (3, 4), "IdentityAttachKLSparseReg": (1,)}  # fmt: skip

# Operators whose gradient is that of their loss; and those without one in PyTorch.
_LOSSES = ("MakeLoss", "make_loss", "SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput",
           "MAERegressionOutput", "SVMOutput")  # fmt: skip
_NO_GRADIENT = re.compile("BlockGrad|zeros_like|ones_like|arg(max|min|sort)|one_hot|topk|equal|greater|less|logical")


@dataclass
class Node:
    """One node.

    Args:
        op: the operator, or None for a variable. name: of the layer or variable.
        attrs: typed, with MXNet's defaults. inputs: (node's number, output's number).
        hidden: MXNet's other attributes (``__shape__``, ``__lr_mult__``), as text. subgraphs: of control flow.
    """

    op: str | None
    name: str
    attrs: dict[str, Any] = field(default_factory=dict)
    inputs: list[tuple[int, int]] = field(default_factory=list)
    hidden: dict[str, str] = field(default_factory=dict)
    subgraphs: list[Any] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """A variable's shape; None if missing or partly unknown."""
        text = self.hidden.get("__shape__")
        sizes = sizes_of(text)
        return sizes if text and sizes is not None and all(n > 0 for n in sizes) else None


def sizes_of(text: str | None) -> tuple[int, ...] | None:
    """A shape in a symbol's text, with 0 and -1 for unknown sizes; None if empty.

    >>> sizes_of("(3, 0)"), sizes_of("[2L, 4L]"), sizes_of("None")
    ((3, 0), (2, 4), None)

    Raises:
        ValueError: it is no shape.
    """
    if not text or text == "None":
        return None
    return tuple(int(n) for n in text.strip("()[] ").replace("L", "").split(",") if n.strip())


@dataclass
class Graph:
    """A symbol.

    Args:
        nodes: each after its inputs. outputs: (node's number, output's number).
        version: of the MXNet that wrote it, such as 10901. source: the file, for messages.
    """

    nodes: list[Node]
    outputs: list[tuple[int, int]]
    version: int = 800
    source: str = "symbol"

    def variables(self) -> list[str]:
        """Names of all variables: inputs, parameters, auxiliary states."""
        return [node.name for node in self.nodes if node.op is None]

    def auxiliary(self) -> list[str]:
        """Names of the auxiliary states, which operators change and gradients do not."""
        found: dict[str, None] = {}
        for node in self.nodes:
            for place in _AUXILIARY.get(node.op or "", ()):
                if place < len(node.inputs):
                    found[self.nodes[node.inputs[place][0]].name] = None
        return list(found)

    def operators(self) -> dict[str, list[str]]:
        """The names of the layers of each operator."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            if node.op is not None:
                found.setdefault(node.op, []).append(node.name)
        return found


def read_symbol(source: str | Path | Mapping[str, Any]) -> Graph:
    """Read a symbol.

    Args:
        source: a ``-symbol.json`` file, its text (it begins with ``{``), or the parsed document.

    Raises:
        GluontuneError: no such file, not a symbol, or an attribute of a wrong type.

    >>> text = '''{"nodes": [{"op": "null", "name": "data", "inputs": []},
    ...   {"op": "Activation", "name": "relu0", "attrs": {"act_type": "relu"}, "inputs": [[0, 0, 0]]}],
    ...   "arg_nodes": [0], "heads": [[1, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]}}'''
    >>> graph = read_symbol(text)
    >>> graph.nodes[1].op, graph.nodes[1].attrs, graph.variables()
    ('Activation', {'act_type': 'relu'}, ['data'])
    """
    document, where = _document(source)
    raw = document.get("nodes") if isinstance(document, Mapping) else None
    if not isinstance(raw, list) or not isinstance(document.get("heads"), list):
        raise GluontuneError(f"{where}: not a symbol of MXNet's: it has no 'nodes' and 'heads'")
    try:
        version = _version(document.get("attrs"))
        graph = Graph([], [], version, where)
        places: list[int] = []
        loops = any(isinstance(node, Mapping) and node.get("subgraphs") for node in raw)
        known: dict[str, int] = {}  # a loop's variables are copies of the outer ones
        for node in raw:
            made = _node(node, where)
            if loops and made.op is None and made.name in known:
                places.append(known[made.name])
                continue
            made.inputs = [_entry(entry, places) for entry in node.get("inputs") or ()]
            _upgrade(made, graph)
            places.append(len(graph.nodes))
            if made.op is None:
                known[made.name] = len(graph.nodes)
            graph.nodes.append(made)
        graph.outputs = [_entry(entry, places) for entry in document["heads"]]
        _tie_losses(graph)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, GluontuneError):
            raise
        raise GluontuneError(
            f"{where}: a damaged symbol ({type(error).__name__}: {clean(error, 200)}); export it again"
        ) from error
    return graph


def _tie_losses(graph: Graph) -> None:
    """Outputs read, by ``_after_loss``, the losses that they are computed from by operators without a gradient alone.

    MXNet passes zeros on there, and an operator that is a loss gives its own gradient whatever comes.
    """
    for place, (head, output) in enumerate(graph.outputs):
        passed, reached = _above(graph, head, _NO_GRADIENT), _above(graph, head)
        for number in sorted(reached - passed):
            if graph.nodes[number].op in _LOSSES:
                graph.nodes.append(
                    Node("_after_loss", f"after_{graph.nodes[number].name}", {}, [(head, output), (number, 0)])
                )
                head, output = graph.outputs[place] = len(graph.nodes) - 1, 0


def _above(graph: Graph, head: int, behind: re.Pattern[str] | None = None) -> set[int]:
    """The numbers of the nodes that ``head`` is computed from, but for what only operators of ``behind`` read."""
    reached = {head}
    for number in range(head, -1, -1):
        node = graph.nodes[number]
        if number in reached and not (behind and node.op and behind.search(node.op)):
            reached.update(at for at, _ in node.inputs)
    return reached


def _entry(entry: Any, places: list[int]) -> tuple[int, int]:
    """The node and output of an input or a head; output 0 in old files without its number."""
    number, output = entry[0], entry[1] if len(entry) > 1 else 0
    if not all(type(part) is int and part >= 0 for part in (number, output)) or output >= MOST_OUTPUTS:
        raise ValueError(f"an input {entry!r}")
    return places[number], output


def _version(attrs: Any) -> int:
    """The version of the MXNet that wrote a symbol; missing before 0.9."""
    found = attrs.get("mxnet_version", 800) if isinstance(attrs, Mapping) else 800
    text = str(found[-1] if isinstance(found, (list, tuple)) and found else found)
    return int(text) if text.isdigit() else 800


def _document(source: Any) -> tuple[Any, str]:
    if isinstance(source, Mapping):
        return source, "symbol"
    text, where = str(source), "symbol"
    if not text.lstrip().startswith("{"):
        where = text
        try:
            text = read_text(source)
        except UnicodeDecodeError as error:
            raise GluontuneError(f"{where}: not a symbol of MXNet's, which is JSON; is it the .params file?") from error
        except OSError as error:
            raise explain_os_error(source, error) from error
        except ValueError as error:  # a NUL in the path
            raise GluontuneError(f"{where}: {error}") from error
    try:
        return parse_json(text), where
    except ValueError as error:
        raise GluontuneError(f"{where}: not a symbol of MXNet's: {error}") from error


def _node(raw: Mapping[str, Any], where: str) -> Node:
    texts: dict[str, str] = {}
    for section in ("param", "attr", "attrs"):  # MXNet 0.x wrote up to two of them
        texts.update({k: str(v) for k, v in (raw.get(section) or {}).items()})
    hidden = {k: v for k, v in texts.items() if k.startswith("__")}
    for key in _HIDDEN:
        if key in texts:
            hidden[f"__{key}__"] = texts.pop(key)
    name, op = raw["name"], raw["op"]
    if not isinstance(name, str) or not isinstance(op, str):
        raise TypeError(f"a node {op!r} named {name!r}")
    sizes_of(hidden.get("__shape__"))
    if op == "null":
        return Node(None, name, {}, [], hidden)
    subgraphs = [read_symbol(graph) for graph in raw.get("subgraphs") or ()]
    texts = {k: v for k, v in texts.items() if not k.startswith("__") and not k.endswith(("_lr_mult", "_wd_mult"))}
    known = known_schema(op)
    if known is None:
        return Node(op, name, dict(texts), [], hidden, subgraphs)  # an unknown one, refused by the bridge
    return Node(known.name, name, known.typed(texts, f"{where}: layer {clean(name, 80)}"), [], hidden, subgraphs)


def _upgrade(node: Node, graph: Graph) -> None:
    if node.op in ("argmax", "argmin") and graph.version < 905 and node.attrs.get("axis") == -1:
        node.attrs["axis"] = None
    known = known_schema(node.op) if node.op in _AUXILIARY and graph.version < 900 else None
    for key in known.inputs[len(node.inputs) :] if known else ():
        graph.nodes.append(Node(None, f"{node.name}_{key}"))
        node.inputs.append((len(graph.nodes) - 1, 0))
