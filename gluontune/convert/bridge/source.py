"""The source of a conversion: a Gluon block, a symbol of mxnet's or a symbol file, as a graph with its arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.compute.tracing import traced
from gluontune.convert.graph.params import read_params
from gluontune.convert.graph.symbol import Graph, read_symbol
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import mxnet


@dataclass
class Source:
    """A graph, its arrays by name, the order of its inputs (None: the graph's), and the names of frozen parameters.

    Args:
        training: the graph in training mode, if it differs. untrained: the reason why it is missing.
    """

    graph: Graph
    arrays: dict[str, np.ndarray]
    inputs: list[str] | None
    frozen: set[str]
    training: Graph | None = None
    untrained: str = ""


def open_source(net: Any, params: Any, inputs: int | Sequence[str] | None) -> Source:
    given = _arrays(params)
    if isinstance(net, (str, Path, Mapping)) or hasattr(net, "tojson"):
        graph = read_symbol(net.tojson() if hasattr(net, "tojson") else net)
        return Source(graph, given or {}, _named(graph, inputs), set())
    if hasattr(net, "collect_params"):
        if not isinstance(inputs, (int, type(None))):
            raise UsageError("to_torch: of a block, inputs= says how many there are")
        graphs = traced(net, inputs)
        both = graphs.differs and graphs.train is not None
        wanted = {*graphs.predict.list_inputs(), *(graphs.train.list_inputs() if both else ())}
        if given is None:
            found, frozen = parameters_of(net, wanted)
        else:
            structural = {name: p.name for name, p in net._collect_params_with_prefix().items()}
            found, frozen = {structural.get(name, name): array for name, array in given.items()}, set()
        training = read_symbol(graphs.train.tojson()) if both else None
        return Source(read_symbol(graphs.predict.tojson()), found, graphs.names, frozen, training, graphs.why)
    raise UsageError(
        f"to_torch takes a Gluon HybridBlock, a symbol or the path of a -symbol.json, not {type(net).__name__}"
    )


def settle() -> None:
    """Wait until MXNet is idle, before weights are read.

    A convolution in predict mode reorders its weight for oneDNN beside other work, and a copy in that moment is not
    blocked: ``asnumpy`` then returns other numbers (seen in ResNet-50 right after ``net(x)``).
    """
    mxnet().nd.waitall()


def _named(graph: Graph, inputs: int | Sequence[str] | None) -> list[str] | None:
    if inputs is None or isinstance(inputs, int):
        return None
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    unknown = [name for name in names if name not in graph.variables()]
    if unknown:
        raise UsageError(f"{graph.source}: has no input {unknown[0]!r}")
    return names


def parameters_of(net: Any, wanted: set[str]) -> tuple[dict[str, np.ndarray], set[str]]:
    """The arrays of a block's parameters in ``wanted``, and the names of the frozen ones."""
    arrays, frozen = {}, set()
    settle()
    for name, parameter in net.collect_params().items():
        if name not in wanted:
            continue
        if parameter.grad_req == "null":
            frozen.add(name)
        try:
            arrays[name] = parameter.data(parameter.list_ctx()[0]).asnumpy()
        except Exception as error:
            raise GluontuneError(
                f"parameter {name} has no values yet: initialize the net and run it once on a batch first"
            ) from error
    return arrays, frozen


def as_numpy(array: Any) -> np.ndarray:
    return array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def _arrays(params: Any) -> dict[str, np.ndarray] | None:
    if params is None:
        return None
    if isinstance(params, (str, Path)):
        return read_params(params)
    if isinstance(params, Mapping):
        if any(hasattr(v, "asnumpy") for v in params.values()):
            settle()
        return {k[4:] if k.startswith(("arg:", "aux:")) else k: as_numpy(v) for k, v in params.items()}
    raise UsageError(f"params is the path of a .params file or a dict of arrays, not {type(params).__name__}")
