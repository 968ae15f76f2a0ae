"""Whether a Python function gives the same for the same arguments: read from its byte code, before anything is kept.

It draws no random numbers, writes its own variables alone, and reads modules, classes, pure functions and constants.
"""

from __future__ import annotations

import builtins
import dis
import functools
import re
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from gluontune.compute._traversal import walk

#: Names of functions and methods that draw, count, print, read or change something outside.
_IMPURE = re.compile(
    r"rand|shuffle|choice|permut|sample|poisson|uniform|^normal$|exponential|gamma$|multinomial|bernoulli|dropout|seed"
    r"|augment|^print$|^open$|^input$|^next$|^iter$|^exec$|^eval$|^globals$|^setattr$|^delattr$|time|^now$|uuid"
    r"|^append$|^extend$|^insert$|^pop$|^update$|^setdefault$|^remove$|^clear$|^write|^save|is_training|is_recording"
    r"|_attach_grad|^attach_grad$|^backward$|^environ$|^getenv$|^log_",
    re.IGNORECASE,
)
_WRITES = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR", "YIELD_VALUE"}
_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
_DEPTH, _DEPTH_TRACED = 6, 4
_PRINTS = {"print", "logging", "write"}
_LISTS = {"append", "extend"}
_DRAWS = {"random", "rand", "randn", "randint", "uniform", "choice", "normal", "time"}


def why_impure(function: Any, depth: int = 0) -> str:
    """Why the results of ``function`` must not be kept; "" for a function that is pure as far as its code shows.

    Args:
        function: a Python function or method.

    >>> import random
    >>> why_impure(lambda x: x + random.random())
    'it calls random'
    >>> why_impure(lambda x, y: (x / 255, y))
    ''
    """
    if isinstance(function, functools.partial):
        held = (*function.args, *function.keywords.values())
        if not all(is_constant(value) for value in held):
            return "it is bound to values that may change"
        return why_impure(function.func, depth)
    if isinstance(function, MethodType):
        return why_impure(function.__func__, depth)
    if not isinstance(function, FunctionType):
        return f"its code cannot be read ({type(function).__name__})"
    if depth > _DEPTH:
        return "it calls too deep"
    for name in written_names(function.__code__):
        return f"it changes {name}"
    for name in read_names(function.__code__):
        if _IMPURE.search(name):
            return f"it calls {name}"
    for name, value in surroundings(function):
        reason = _why_not(value, depth)
        if reason:
            return f"it reads {name}, {reason}"
    return ""


def branches(function: Any) -> bool:
    """Whether the code of ``function``, or of a function in it, takes decisions or loops."""
    target = function.__func__ if isinstance(function, MethodType) else function
    codes = _codes(getattr(target, "__code__", None))
    return any(
        "JUMP" in step.opname or "FOR_ITER" in step.opname for code in codes for step in dis.get_instructions(code)
    )


def _why_not(value: Any, depth: int) -> str:
    if isinstance(value, ModuleType):
        return "" if not _IMPURE.search(value.__name__.rpartition(".")[2]) else "which draws"
    if isinstance(value, (type, BuiltinFunctionType)) or is_constant(value):
        return ""
    if isinstance(value, FunctionType):
        if value.__module__.partition(".")[0] in ("numpy", "mxnet", "cv2", "math"):
            return ""
        reason = why_impure(value, depth + 1)
        return f"where {reason}" if reason else ""
    return f"a {type(value).__name__} that may change"


def is_constant(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(is_constant(part) for part in value)
    return isinstance(value, _CONSTANTS)


def _codes(code: CodeType | None) -> Iterator[CodeType]:
    if code is not None:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _codes(constant)


def written_names(code: CodeType) -> Iterator[str]:
    """What a function writes besides its own variables."""
    for part in _codes(code):
        for step in dis.get_instructions(part):
            if step.opname in _WRITES:
                yield str(step.argval) if isinstance(step.argval, str) else "an item of something"
            elif step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in part.co_freevars:
                yield str(step.argval)


def read_names(code: CodeType) -> Iterator[str]:
    """Names of attributes, methods, globals and imports."""
    for part in _codes(code):
        yield from part.co_names


def surroundings(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function reads from outside: globals, its closure, its defaults."""
    read = {
        str(step.argval)
        for part in _codes(function.__code__)
        for step in dis.get_instructions(part)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for name in sorted(read):
        if name in function.__globals__:
            yield name, function.__globals__[name]
        elif not hasattr(builtins, name):
            yield name, _MISSING
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            yield name, _MISSING
    for number, value in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
        yield f"default {number}", value


class _Missing:
    """Stands for a name that has no value yet."""


_MISSING = _Missing()


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

    ``strict`` reads the functions of modules, too, and lets no number of a module pass, which may change.
    """
    if function is None or isinstance(function, (type, BuiltinFunctionType)):
        return ""
    if not isinstance(function, FunctionType) or depth > _DEPTH_TRACED:
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
