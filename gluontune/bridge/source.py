"""What is converted: a Gluon block, a symbol of mxnet's or a symbol file, as a graph with its arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.errors import GluontuneError, UsageError
from gluontune.graph.params import read_params
from gluontune.graph.symbol import Graph, read_symbol

__all__ = ["Source", "open_source", "parameters_of", "traced"]


class Source:
    """A graph, its arrays by name, the order of its inputs (None: as the graph reads them), what is not trained."""

    def __init__(
        self, graph: Graph, arrays: dict[str, np.ndarray], inputs: list[str] | None, frozen: set[str]
    ):
        self.graph, self.arrays, self.inputs, self.frozen = graph, arrays, inputs, frozen


def open_source(net: Any, params: Any, inputs: int | Sequence[str] | None) -> Source:
    """Read ``net`` and ``params`` as ``to_torch`` takes them."""
    given = _arrays(params)
    if isinstance(net, (str, Path, Mapping)) or hasattr(net, "tojson"):
        graph = read_symbol(net.tojson() if hasattr(net, "tojson") else net)
        return Source(graph, given or {}, _named(graph, inputs), set())
    if hasattr(net, "collect_params"):
        if not isinstance(inputs, (int, type(None))):
            raise UsageError("to_torch: of a block, inputs= says how many there are")
        names, symbol = traced(net, inputs)
        found, frozen = _of_block(net, set(symbol.list_inputs()), given)
        return Source(read_symbol(symbol.tojson()), found, names, frozen)
    raise UsageError(
        f"to_torch takes a Gluon HybridBlock, a symbol or the path of a -symbol.json, not {type(net).__name__}"
    )


def settle() -> None:
    """Wait until MXNet is at rest: only then may weights be read.

    A convolution in predict mode orders its weight anew for oneDNN while other work goes on, and nothing holds back
    who copies it in that moment: ``asnumpy`` then returns other numbers (seen in ResNet-50 right after ``net(x)``).
    """
    from gluontune.runtime import mxnet

    mxnet().nd.waitall()


def _named(graph: Graph, inputs: int | Sequence[str] | None) -> list[str] | None:
    if inputs is None or isinstance(inputs, int):
        return None
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    unknown = [name for name in names if name not in graph.variables()]
    if unknown:
        raise UsageError(f"{graph.source}: has no input {unknown[0]!r}")
    return names


def traced(net: Any, inputs: int | None = None) -> tuple[list[str], Any]:
    """Names of the inputs and the symbol of a block, as ``export`` would write it. ``net`` is left as it was.

    Raises:
        GluontuneError: it is no HybridBlock, or its ``hybrid_forward`` cannot be traced; names the layer's class.
    """
    from gluontune.runtime import mxnet, uses_np

    mx = mxnet()
    if not isinstance(net, mx.gluon.HybridBlock):
        raise GluontuneError(
            f"{type(net).__name__} is a Block: only a HybridBlock has a graph. Derive it from HybridBlock"
        )
    kept = getattr(net, "_cached_graph", ())
    if kept:
        variables, symbol = kept
        return [v.name for v in variables], symbol
    count = inputs or 1
    names = ["data"] if count == 1 else [f"data{i}" for i in range(count)]
    variables = [mx.sym.var(name) for name in names]
    if uses_np(net):
        variables = [variable.as_np_ndarray() for variable in variables]
    try:
        outputs = net(*variables)
    except Exception as error:
        place = _own_line(error)
        raise GluontuneError(
            f"{type(net).__name__} cannot be traced{place}: {type(error).__name__}: {str(error).splitlines()[0]}. "
            "Give it inputs= if it takes several; a hybrid_forward must use F for all that it computes"
        ) from error
    return names, mx.sym.Group(list(_flat(outputs))) if isinstance(outputs, (list, tuple)) else outputs


def _flat(outputs: Any) -> Any:
    for item in outputs:
        if isinstance(item, (list, tuple)):
            yield from _flat(item)
        else:
            yield item


def _own_line(error: BaseException) -> str:
    """Where in code that is not mxnet's the error arose."""
    found, step = "", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if "/mxnet/" not in name and "/gluontune/" not in name:
            found = f" at {name}:{step.tb_lineno}"
        step = step.tb_next
    return found


def _of_block(
    net: Any, wanted: set[str], given: dict[str, np.ndarray] | None
) -> tuple[dict[str, np.ndarray], set[str]]:
    if given is not None:
        structural = {name: p.name for name, p in net._collect_params_with_prefix().items()}
        return {structural.get(name, name): array for name, array in given.items()}, set()
    return parameters_of(net, wanted)


def parameters_of(net: Any, wanted: set[str]) -> tuple[dict[str, np.ndarray], set[str]]:
    """The arrays of a block's parameters, those of ``wanted``, and the names of those that are not trained."""
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


def _arrays(params: Any) -> dict[str, np.ndarray] | None:
    if params is None:
        return None
    if isinstance(params, (str, Path)):
        return read_params(params)
    if isinstance(params, Mapping):
        if any(hasattr(v, "asnumpy") for v in params.values()):
            settle()
        return {
            (k[4:] if k.startswith(("arg:", "aux:")) else k): v.asnumpy()
            if hasattr(v, "asnumpy")
            else np.asarray(v)
            for k, v in params.items()
        }
    raise UsageError(f"params is the path of a .params file or a dict of arrays, not {type(params).__name__}")
