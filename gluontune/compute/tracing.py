"""A block's graphs in prediction and in training mode, which a branch on ``autograd.is_training()`` makes two.

Gluon traces a block once and keeps that graph for both modes. Whatever traces, exports, compares or compiles a net here
asks this module, which traces it in both.
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
from gluontune.errors import GluontuneError
from gluontune.runtime import mxnet, uses_np

__all__ = [
    "ByMode",
    "Traced",
    "asks_for_mode",
    "in_both_modes",
    "lasting",
    "meant",
    "of_call",
    "place_of_branch",
    "structure",
    "told",
    "traced",
]

_ASKS = {"is_training", "is_recording"}
_CACHE = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")


@dataclass(frozen=True)
class Traced:
    """The graphs of a block.

    Args:
        names: of its inputs, in order. predict: the symbol in prediction mode.
        train: that in training mode: ``predict`` itself where they are alike, None where it cannot be traced.
        why: it cannot be traced.
    """

    names: list[str]
    predict: Any
    train: Any
    why: str = ""

    @property
    def differs(self) -> bool:
        """Whether the block computes something else in training, beside what dropout and BatchNorm do."""
        return self.train is not self.predict


def traced(net: Any, inputs: int | None = None) -> Traced:
    """The graphs of a block, as ``export`` would write them. ``net`` is left as it was.

    Args:
        inputs: how many arrays it takes, where it was not hybridized and run before.

    Raises:
        GluontuneError: it is no HybridBlock, or its ``hybrid_forward`` cannot be traced; has the line.

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
        known = []  # a recurrent layer that was called without states, or another call is meant
    count = len(known) or inputs or 1
    names = known or (["data"] if count == 1 else [f"data{i}" for i in range(count)])
    variables = [mx.sym.var(name) for name in names]
    if uses_np(net):
        variables = [variable.as_np_ndarray() for variable in variables]
    given = _nested(net._in_format, iter(variables)) if known else variables

    def call() -> Any:
        outputs = list(_flat(net(*given)))
        symbol = mx.sym.Group(outputs) if len(outputs) > 1 else outputs[0]
        return meant(symbol) if uses_np(net) else symbol

    try:
        predict, train, why = in_both_modes(call)
    except Exception as error:
        several = "Give it inputs= if it takes several; a" if inputs is None else "A"
        if inputs and isinstance(error, TypeError) and "positional argument" in str(error):
            several = "If it takes lists of arrays, as states are, hybridize it and run it once first; a"
        raise GluontuneError(
            f"{type(net).__name__} cannot be traced{told(error)}. {several} hybrid_forward must use F for all that it "
            "computes"
        ) from error
    return Traced(names, predict, train, f"in training mode it cannot be traced{why}" if why else "")


def meant(symbol: Any) -> Any:
    """A symbol of ``mx.np`` without two faults, for which MXNet itself cannot compile it.

    The batch of a begin state is 0 there, which is no "not known yet" in ``mx.np``; and ``x[-1]`` ends at 0.

    >>> x = mxnet().sym.var("x").as_np_ndarray()
    >>> json.loads(meant(x[-1]).tojson())["nodes"][1]["attrs"]
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
                attrs["end"] = f"[{','.join('None' if own else e.strip() for own, e in zip(last, end))}]"
                changed = True
    if not changed:
        return symbol
    found = mxnet().sym.load_json(json.dumps(document))
    return found if type(symbol) is type(found) else found.as_np_ndarray()


_OTHERWISE = ": it is another graph each time, as random numbers of Python's make it (draw them by F.random)"


def in_both_modes(call: Callable[[], Any]) -> tuple[Any, Any, str]:
    """What ``call`` traces in prediction and in training mode: one symbol twice, where they are alike.

    Returns:
        both symbols, and why there is none of training mode.
    """
    autograd = mxnet().autograd
    with autograd.pause(train_mode=False):
        predict = call()
    try:
        with autograd.record():
            train = call()
    except Exception as error:
        return predict, None, told(error)
    if structure(train) == structure(predict):
        return predict, predict, ""
    with autograd.pause(train_mode=False):
        if structure(call()) != structure(predict):  # each trace differs, as Python's random numbers make it
            return predict, predict, ""
    with autograd.record():
        other = [structure(call()) for _ in range(3)]
    if any(each != structure(train) for each in other):
        return predict, None, _OTHERWISE
    return predict, train, ""


def lasting(net: Any, *symbols: Any) -> None:
    """Raise where the traces of one mode differ.

    Raises:
        GluontuneError: some do.
    """
    if any(structure(symbol) != structure(symbols[0]) for symbol in symbols):
        raise GluontuneError(f"{type(net).__name__} cannot be traced in training mode{_OTHERWISE}")


def of_call(block: Any, arguments: tuple[Any, ...]) -> tuple[Any, Any, str]:
    """:func:`in_both_modes` of a block that takes ``arguments``, as its own compiling traces it; nothing is kept."""
    before = {name: vars(block)[name] for name in _CACHE}

    def call() -> Any:
        block._cached_graph = ()
        return block._get_graph(*arguments)[1]

    try:
        return in_both_modes(call)
    finally:
        vars(block).update(before)


def structure(symbol: Any) -> Any:
    """Operators, attributes and variables of a graph, without the names and counts that change with each trace."""
    return _structure(json.loads(symbol.tojson(remove_amp_cast=False)), True)


def _structure(graph: Any, named: bool) -> Any:
    """``named``: variables count with their names; those in the body of a loop are called otherwise each time."""
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
    """``Net, net.py:12``: the first block whose code asks for the mode; the net's own class where none is seen.

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
                if (
                    code is not None
                    and _ASKS & set(code.co_names)
                    and "/mxnet/gluon/" not in code.co_filename
                ):
                    yield path, kind.__name__, code


def _line_of(code: Any) -> int:
    """Of the first question for the mode in ``code``."""
    lines = list(dis.findlinestarts(code))
    asked = [step.offset for step in dis.get_instructions(code) if step.argval in _ASKS]
    return max((line for start, line in lines if line and start <= min(asked)), default=code.co_firstlineno)


class ByMode:
    """Stands before a hybridized block's ``_call_cached_op``: a compiled graph for each mode whose graph is another.

    Where the graphs are alike, as nearly always, one compiled graph serves both modes as before.
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
        if compiled is not self._known.get(self._present, {}).get(
            "_cached_op"
        ):  # put back by whoever measures modes
            self._present = next(
                (m for m, kept in self._known.items() if kept["_cached_op"] is compiled), None
            )
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
        """Set the compiled graph of ``mode``; one that is not known yet is traced, and compiled by the call."""
        if mode not in self._known:
            self.block._clear_cached_op()
            new = structure(self.block._get_graph(*arguments)[1])
            alike = [k for k in self._known.values() if structure(k["_cached_graph"][1]) == new]
            self._known[mode] = alike[0] if alike else self._cache()
        vars(self.block).update(self._known[mode])
        self._present = mode

    def _cache(self) -> dict[str, Any]:
        return {name: vars(self.block)[name] for name in _CACHE}


def _flat(outputs: Any) -> Any:
    if not isinstance(outputs, (list, tuple)):
        outputs = [outputs]
    for item in outputs:
        if isinstance(item, (list, tuple)):
            yield from _flat(item)
        elif item is not None:
            yield item


def _nested(form: Any, variables: Any) -> Any:
    """The variables in the nesting that Gluon has noted of a call's arguments."""
    if isinstance(form, (list, tuple)):
        return [_nested(part, variables) for part in form]
    return None if form == -1 else next(variables)


def told(error: BaseException) -> str:
    """Where in code that is neither mxnet's nor ours a trace failed, and why."""
    ours = tuple(f"{Path(str(module.__file__)).parent}/" for module in (mxnet(), gluontune))
    found, step = "", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if not name.startswith(ours):
            found = f" at {name}:{step.tb_lineno}"
        step = step.tb_next
    return f"{found}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
