"""A block's graphs in prediction and in training mode, which differ if it branches on ``autograd.is_training()``.

Gluon traces a block once and uses that graph in both modes; here both are traced.
"""

from __future__ import annotations

import dis
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gluontune
from gluontune.compute._traversal import walk
from gluontune.core.arrays import flat, mapped
from gluontune.core.errors import GluontuneError
from gluontune.runtime import mxnet, uses_np

_ASKS = {"is_training", "is_recording"}
_CACHE = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")


@dataclass(frozen=True)
class Traced:
    """The graphs of a block.

    Args:
        names: of its inputs, in order. predict: the symbol in prediction mode.
        train: that in training mode: ``predict`` itself if they are alike, None if it cannot be traced.
        why: the reason for None.
    """

    names: list[str]
    predict: Any
    train: Any
    why: str = ""

    @property
    def differs(self) -> bool:
        """Whether the block differs in training, apart from dropout and BatchNorm."""
        return self.train is not self.predict


def traced(net: Any, inputs: int | None = None) -> Traced:
    """The graphs of a block, as ``export`` would write them. ``net`` stays unchanged.

    Args:
        inputs: its number of arrays, if it was not hybridized and run before.

    Raises:
        GluontuneError: no HybridBlock, or one that cannot be traced; names the line.

    >>> mx = mxnet()
    >>> class Net(mx.gluon.HybridBlock):
    ...     def hybrid_forward(self, F, x):
    ...         return x if mx.autograd.is_training() else -x
    >>> traced(Net()).differs, traced(mx.gluon.nn.Dropout(0.5)).differs
    (True, False)
    """
    mx = mxnet()
    if not isinstance(net, mx.gluon.HybridBlock):
        raise GluontuneError(
            f"{type(net).__name__} is a Block: only a HybridBlock has a graph. Derive it from HybridBlock"
        )
    if isinstance(net, mx.gluon.SymbolBlock):
        variables, symbol = net._cached_graph
        return Traced([v.name for v in variables], symbol, symbol)
    known = [v.name for v in net._cached_graph[0]] if net._cached_graph else []
    if getattr(net, "skip_states", False) or len(known) != (inputs or len(known)):
        known = []  # a recurrent layer called without states, or another number of inputs
    count = len(known) or inputs or 1
    names = known or (["data"] if count == 1 else [f"data{i}" for i in range(count)])
    variables = [mx.sym.var(name) for name in names]
    if uses_np(net):
        variables = [variable.as_np_ndarray() for variable in variables]
    each = iter(variables)  # in the nesting of the call that Gluon has recorded
    given = mapped(lambda part: None if part == -1 else next(each), net._in_format) if known else variables

    def call() -> Any:
        outputs = flat(net(*given))
        symbol = mx.sym.Group(outputs) if len(outputs) > 1 else outputs[0]
        return repaired(symbol) if uses_np(net) else symbol

    try:
        predict, train, why = in_both_modes(call)
    except Exception as error:
        several = "Give it inputs= if it takes several; a" if inputs is None else "A"
        if inputs and isinstance(error, TypeError) and "positional argument" in str(error):
            several = "If it takes lists of arrays, as states are, hybridize it and run it once first; a"
        raise GluontuneError(
            f"{type(net).__name__} cannot be traced{trace_failure(error)}. {several} hybrid_forward must use F for all "
            "that it computes"
        ) from error
    return Traced(names, predict, train, f"in training mode it cannot be traced{why}" if why else "")


def repaired(symbol: Any) -> Any:
    """A symbol of ``mx.np`` without two faults that keep MXNet from compiling it.

    The batch of a begin state is 0, which is a size in ``mx.np``, not an unknown; and ``x[-1]`` ends at 0.

    >>> x = mxnet().sym.var("x").as_np_ndarray()
    >>> json.loads(repaired(x[-1]).tojson())["nodes"][1]["attrs"]
    {'begin': '[-1]', 'end': '[None]'}
    """
    document, changed = json.loads(symbol.tojson()), False
    for node in document["nodes"]:
        attrs = node.get("attrs", {})
        if node["op"] == "_zeros" and "__layout__" in attrs:
            sizes = attrs["shape"].strip("()[] ").split(",")
            attrs["shape"] = f"({','.join('-1' if size.strip() == '0' else size for size in sizes)})"
            changed = True
        if node["op"] == "slice":
            begin, end = (attrs[name].strip("()[], ").split(",") for name in ("begin", "end"))
            last = [a.strip() == "-1" and b.strip() == "0" for a, b in zip(begin, end)]
            if any(last):
                attrs["end"] = f"[{','.join('None' if open_end else e.strip() for open_end, e in zip(last, end))}]"
                changed = True
    if not changed:
        return symbol
    symbol_now = mxnet().sym.load_json(json.dumps(document))
    return symbol_now if type(symbol) is type(symbol_now) else symbol_now.as_np_ndarray()


_OTHERWISE = ": it is another graph each time, as random numbers of Python's make it (draw them by F.random)"


def in_both_modes(call: Callable[[], Any]) -> tuple[Any, Any, str]:
    """Traces of ``call`` in prediction and training mode (one twice if alike; None if it fails), and the reason."""
    autograd = mxnet().autograd
    with autograd.pause(train_mode=False):
        predict = call()
    try:
        with autograd.record():
            train = call()
    except Exception as error:
        return predict, None, trace_failure(error)
    if structure(train) == structure(predict):
        return predict, predict, ""
    with autograd.pause(train_mode=False):
        if structure(call()) != structure(predict):  # Python's random numbers change each trace
            return predict, predict, ""
    with autograd.record():
        other = [structure(call()) for _ in range(3)]
    if any(each != structure(train) for each in other):
        return predict, None, _OTHERWISE
    return predict, train, ""


def check_stable(net: Any, *symbols: Any) -> None:
    """Refuse traces of one mode that differ."""
    if any(structure(symbol) != structure(symbols[0]) for symbol in symbols):
        raise GluontuneError(f"{type(net).__name__} cannot be traced in training mode{_OTHERWISE}")


def trace_of(block: Any, arguments: tuple[Any, ...]) -> Any:
    """The graph of a block called with ``arguments``, traced by Gluon's code; the cache stays unchanged."""
    before = {name: vars(block)[name] for name in _CACHE}
    try:
        block._cached_graph = ()
        return block._get_graph(*arguments)[1]
    finally:
        vars(block).update(before)


def structure(symbol: Any) -> Any:
    """Operators, attributes and variables of a graph, without names and counts that differ in each trace."""
    return _structure(json.loads(symbol.tojson(remove_amp_cast=False)), True)


def _structure(graph: Any, named: bool) -> Any:
    """``named``: with the names of variables; those in the body of a loop differ each time."""
    nodes = [
        [
            node["op"],
            node["name"] if named and node["op"] == "null" else "",
            {k: v for k, v in node.get("attrs", {}).items() if not k.startswith("__")},
            [entry[:2] for entry in node["inputs"]],
            [_structure(body, False) for body in node.get("subgraphs", ())],
        ]
        for node in graph["nodes"]
    ]
    return [nodes, [head[:2] for head in graph["heads"]]]


def place_of_branch(net: Any) -> str:
    """``Net, net.py:12``: the first block whose code asks for the mode, or the net's class.

    >>> place_of_branch(mxnet().gluon.nn.Dense(1))
    'Dense'
    """
    found = next(_branches(net), None)
    if found is None:
        return type(net).__name__
    path, kind, code = found
    return f"{f'{path} ({kind})' if path else kind}, {code.co_filename}:{_line_of(code)}"


def asks_for_mode(net: Any) -> bool:
    """Whether the code of a block of ``net`` asks for the mode."""
    return next(_branches(net), None) is not None


def _branches(net: Any) -> Iterator[tuple[str, str, Any]]:
    for path, block in walk(net):
        for kind in type(block).__mro__:
            for name in ("hybrid_forward", "forward", "__call__"):
                code = getattr(inspect.unwrap(vars(kind).get(name)), "__code__", None)  # type: ignore[arg-type]
                if code is not None and _ASKS & set(code.co_names) and "/mxnet/gluon/" not in code.co_filename:
                    yield path, kind.__name__, code


def _line_of(code: Any) -> int:
    """The line in ``code`` that first asks for the mode."""
    lines = list(dis.findlinestarts(code))
    asked = [step.offset for step in dis.get_instructions(code) if step.argval in _ASKS]
    return max((line for start, line in lines if line and start <= min(asked)), default=code.co_firstlineno)


class ByMode:
    """A hybridized block's ``_call_cached_op`` with a compiled graph for each mode whose graph differs.

    If the graphs are alike, as nearly always, one compiled graph serves both modes.
    """

    def __init__(self, block: Any):
        self.block = block
        self._known: dict[Any, dict[str, Any]] = {}  # by (training, recording); alike ones are one object
        self._present: Any = None

    def __reduce__(self) -> Any:
        return ByMode, (self.block,)  # a copy compiles for itself

    def __call__(self, *arguments: Any) -> Any:
        block, autograd = self.block, mxnet().autograd
        mode, compiled = (autograd.is_training(), autograd.is_recording()), block._cached_op
        if compiled is not self._known.get(self._present, {}).get("_cached_op"):  # restored by a measurement of modes
            self._present = next((m for m, kept in self._known.items() if kept["_cached_op"] is compiled), None)
        if compiled is None or self._present is None:  # new, or cleared since
            block._clear_cached_op()
            self._known, self._present = {}, mode
        if mode != self._present:
            self._enter(mode, arguments)
        found = type(block)._call_cached_op(block, *arguments)
        if block._cached_op is not compiled:
            self._known.setdefault(mode, {}).update(self._cache())
        return found

    def _enter(self, mode: Any, arguments: tuple[Any, ...]) -> None:
        """Set the compiled graph of ``mode``; a new one is traced, and compiled by the call."""
        if mode not in self._known:
            self.block._clear_cached_op()
            new = structure(self.block._get_graph(*arguments)[1])
            alike = [k for k in self._known.values() if structure(k["_cached_graph"][1]) == new]
            self._known[mode] = alike[0] if alike else self._cache()
        vars(self.block).update(self._known[mode])
        self._present = mode

    def _cache(self) -> dict[str, Any]:
        return {name: vars(self.block)[name] for name in _CACHE}


def trace_failure(error: BaseException) -> str:
    """The line, outside mxnet and gluontune, at which a trace failed, and the reason."""
    ours = tuple(f"{Path(str(module.__file__)).parent}/" for module in (mxnet(), gluontune))
    where, step = "", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if not name.startswith(ours):
            where = f" at {name}:{step.tb_lineno}"
        step = step.tb_next
    return f"{where}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
