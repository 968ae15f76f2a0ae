"""A compiled graph beside a block, which is called in its place; the block itself stays as it is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from gluontune.capture.purity import is_constant, read_names, surroundings, written_names
from gluontune.compute._traversal import walk

_DEPTH = 4
_PRINTS = {"print", "logging", "write"}
_LISTS = {"append", "extend"}
_DRAWS = {"random", "rand", "randn", "randint", "uniform", "choice", "normal", "time"}

_CACHE: dict[str, Any] = {
    "_cached_graph": (),
    "_cached_op": None,
    "_cached_op_args": [],
    "_in_format": None,
    "_out_format": None,
}


class Compiled:
    """One block compiled in one way, with a graph for each mode (training or not, recording or not).

    Args:
        block: a HybridBlock, or a plain Sequential of hybrid layers. flags: as of ``hybridize``.
        rewrites: names for :func:`gluontune.compute.apply_rewrites`. sample: arguments of a call.
    """

    def __init__(
        self, mx: Any, block: Any, flags: Mapping[str, bool], rewrites: Sequence[str], sample: tuple[Any, ...]
    ):
        self._mx, self._block, self._rewrites, self._sample = mx, block, list(rewrites), sample
        self._flags = [("static_alloc", False), ("static_shape", False), ("inline_limit", 2)]
        self._flags = [(name, flags.get(name, value)) for name, value in self._flags]
        self._form = _form(sample)
        self._children: list[Any] = []
        self._graphs: dict[tuple[bool, bool], dict[str, Any]] = {}
        self._target = block
        if not isinstance(block, mx.gluon.HybridBlock):
            self._target = mx.gluon.nn.HybridSequential(prefix=block.prefix, params=block.params)
            self._children = list(block._children.values())
            vars(self._target)["_children"] = block._children
            self._rewrites = ["whole-sequential", *self._rewrites]
        self._blocks = {id(part) for _, part in walk(block)}

    def takes(self, args: tuple[Any, ...]) -> bool:
        """Whether a call is of the kind that was proven."""
        if self._children and [*map(id, self._block._children.values())] != [*map(id, self._children)]:
            return False
        return _form(args) == self._form

    def holds(self, block: Any) -> bool:
        """Whether the graph was made of this block among others."""
        return id(block) in self._blocks

    def __call__(self, *args: Any) -> Any:
        autograd, target = self._mx.autograd, self._target
        args = tuple(_out_of_shared(self._mx, arg) for arg in args)
        mode = (autograd.is_training(), autograd.is_recording())
        kept = self._graphs.get(mode)
        values = vars(target)
        before = {name: values[name] for name in (*_CACHE, "_flags", "_backend")}
        values.update(kept or {**_CACHE, "_cached_op_args": []}, _flags=self._flags, _backend=None)
        try:
            with args[0].context:
                if kept is None:
                    self._build(args)
                found = type(target)._call_cached_op(target, *args)
            if kept is None:
                self._graphs[mode] = {name: values[name] for name in _CACHE}
            return found
        finally:
            values.update(before)

    def _build(self, args: tuple[Any, ...]) -> None:
        """Trace and compile, with the layers' classes rewritten for that moment."""
        from gluontune.compute._blocks import take_back
        from gluontune.compute.rewriting import apply_rewrites

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept = {name: vars(self._target)[name] for name in _CACHE}
            done = apply_rewrites(self._target, self._rewrites, *args, verify=False) if self._rewrites else None
            vars(self._target).update(kept)
            try:
                type(self._target)._build_cache(self._target, *args)
            finally:
                if done is not None:
                    take_back(done._before)


def _out_of_shared(mx: Any, array: Any) -> Any:
    """A batch of a loader's workers lies in memory that they share, and a graph takes one kind alone."""
    shared = getattr(getattr(array, "context", None), "device_type", "") == "cpu_shared"
    return array.as_in_context(mx.cpu()) if shared else array


def why_not_compiled(mx: Any, block: Any) -> str:
    """Why a block must not be compiled, as far as its code shows; "" where it may."""
    gluon = mx.gluon
    hybrid = isinstance(block, gluon.HybridBlock)
    if not hybrid and type(block) is not gluon.nn.Sequential:
        return "a Block, which has no graph"
    if hybrid and isinstance(block, (gluon.rnn.rnn_layer._RNNLayer, gluon.rnn.RecurrentCell, gluon.SymbolBlock)):
        return "a recurrent layer or a symbol, which is compiled already"
    if not block._children and type(block).__module__.startswith("mxnet.gluon.nn"):
        return "a single layer"
    for _, part in walk(block):
        if not isinstance(part, gluon.HybridBlock) and type(part) is not gluon.nn.Sequential:
            return f"{type(part).__name__} in it is a plain Block"
        if part._forward_hooks or part._forward_pre_hooks:
            return "a block in it has a hook"
        if isinstance(part, gluon.rnn.RecurrentCell):
            return "a recurrent cell in it keeps count"
        reason = _why_not_code(type(part))
        if reason:
            return f"{type(part).__name__} {reason}"
    return ""


def _why_not_code(kind: type) -> str:
    for base in kind.__mro__:
        if _is_known(base) or base is object:
            continue
        for name in ("forward", "__call__"):
            if name in vars(base):
                return f"has a {name} of its own"
        reason = _why_not_function(vars(base).get("hybrid_forward"), 0)
        if reason:
            return reason
    return ""


def why_not_run_once(code: Any) -> str:
    """Why a block's class, or a function, does more at a call than its arguments and attributes say; "" if it does not.

    >>> why_not_run_once(lambda x: x * 2), why_not_run_once(lambda x: print(x))
    ('', 'prints when called')
    """
    if not isinstance(code, type):
        return _why_not_function(code, 0, strict=True)
    waiting, seen = ["forward", "hybrid_forward", "__call__", "__getattr__", "__getattribute__"], set[str]()
    own = [base for base in code.__mro__ if not _is_known(base) and base is not object]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for found in [vars(base)[name] for base in own if name in vars(base)]:
            found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
            reason = _why_not_function(found, 0, strict=True)
            if reason:
                return reason
            waiting += read_names(found.__code__) if isinstance(found, FunctionType) else ()
    return ""


def _is_known(code: Any) -> bool:
    return str(code.__module__).partition(".")[0] in ("mxnet", "numpy", "math")


def _why_not_function(function: Any, depth: int, strict: bool = False) -> str:
    """Why what a function does once, when traced, is not what it does at each call.

    Args:
        strict: reads the functions of modules, too, and lets no number of a module pass, which may change.
    """
    if function is None or isinstance(function, (type, BuiltinFunctionType)):
        return ""
    if not isinstance(function, FunctionType) or depth > _DEPTH:
        return "calls what cannot be read"
    for written in written_names(function.__code__):
        return f"changes {written} when called"
    names = set(read_names(function.__code__))
    if names & (_PRINTS if strict else _PRINTS | _LISTS):
        return "prints when called"
    for name, value in surroundings(function):
        reason = _why_not_value(name, value, names, depth, strict)
        if reason:
            return reason
    return ""


def _why_not_value(name: str, value: Any, names: set[str], depth: int, strict: bool) -> str:
    if isinstance(value, ModuleType):
        kind = value.__name__.partition(".")[0]
        if kind in ("numpy", "random", "time") and names & _DRAWS:
            return "draws random numbers in Python"
        own = vars(value) if strict and kind not in ("mxnet", "numpy", "math") else {}
        reasons = (_why_not_value(each, own[each], set(), depth, strict) for each in names if each in own)
        return next(filter(None, reasons), "")
    if isinstance(value, FunctionType):
        return "" if _is_known(value) else _why_not_function(value, depth + 1, strict)
    fixed = not strict or name.startswith("default ") or value is None
    if isinstance(value, (type, BuiltinFunctionType)) or (fixed and is_constant(value)):
        return ""
    return f"reads {name}, which may change"


def _form(args: Any) -> Any:
    """How arguments are nested, and the number of dimensions and type of each array."""
    if isinstance(args, (list, tuple)):
        return tuple(_form(part) for part in args)
    if hasattr(args, "dtype") and hasattr(args, "shape"):
        return (type(args).__name__, len(args.shape), str(args.dtype))
    return None if args is None else type(args).__name__


def on_gpu(value: Any) -> bool:
    """Whether one of nested arrays is on a GPU: a forked process cannot use it, and nothing is proven there."""
    if isinstance(value, (list, tuple)):
        return any(on_gpu(part) for part in value)
    return getattr(getattr(value, "context", None), "device_type", "cpu") == "gpu"


def static_flags(often: bool, varied: bool) -> dict[str, bool]:
    """How a block is compiled.

    Args:
        often: it is called more than once in a step: MXNet 1.9 then computes wrong gradients with ``static_shape``
            where several compiled blocks follow each other. varied: its inputs have several shapes.
    """
    if varied:
        return {}
    return {"static_alloc": True} if often else {"static_alloc": True, "static_shape": True}
