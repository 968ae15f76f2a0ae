"""What is known of a program's arrays: owners, views as operators, entries, the tape; and where arrays are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

Operator = tuple[str, dict[str, str]]  # with its attributes


class Owner(NamedTuple):
    """What an array belongs to: a ``parameter``, the ``gradient`` of one, or a ``variable`` of ``attach_grad``."""

    kind: str
    name: str  # as sources have it
    array: Any
    req: str = "null"  # how gradients go to a variable
    parameter: Any = None  # Gluon's


class View(NamedTuple):
    """How an array that shares another's memory follows from it: by operators, in order."""

    operators: list[Operator]
    between: tuple[int, ...]  # the shape of what all but the last one give
    shape: tuple[int, ...]  # the view's
    dtype: str
    recording: bool  # as it was made
    training: bool


class Held:
    """An array of the program's, the value that it holds, and what it is a view of; a gradient's has no array."""

    def __init__(self, array: Any, value: int, base: Held | None = None, view: View | None = None):
        self.array, self.value, self.base, self.view = array, value, base, view
        self.version, self.seen = 0, base.version if base else 0


@dataclass
class Tape:
    """What gradients can pass through in the step under way."""

    values: set[int] = field(default_factory=set)  # that a variable went into, while recording
    closed: set[int] = field(default_factory=set)  # whose tape, or a part of it, a backward pass has used up
    reached: set[int] = field(default_factory=set)  # variables that a backward pass has reached, by id
    overwritten: dict[int, str] = field(default_factory=dict)  # names of variables by values of old
    #: Values that no backward pass had used when the step could have ended, with what made them.
    left_open: list[tuple[int, Any]] = field(default_factory=list)
    waited: Counter[Any] = field(default_factory=Counter)  # how often the step went on for what was then not used
    statistics: dict[int, Any] = field(default_factory=dict)  # running ones by the output of their BatchNorm


class Alias(NamedTuple):
    """An array that shares memory of ``base``, made by ``run``; without a view, of the gradient of ``base``."""

    array: Any
    base: Any
    view: View | None = None
    run: Callable[[], Any] | None = None


def referred(alias: Alias) -> list[int]:
    """The ids of the arrays that an alias refers to, each as often as it does; ``run`` refers to the base, too."""
    return [id(alias.array), *[id(alias.base)] * (1 if alias.run is None else 2)]


def listed(arrays: Any) -> list[Any]:
    """An array, several, or None as a list."""
    return [] if arrays is None else list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]


def arrays_in(batch: Any, place: str = "") -> list[tuple[str, Any]]:
    """The arrays of a batch by their places in it: a list, a tuple, a dict or a ``DataBatch``."""
    if hasattr(batch, "asnumpy"):
        return [(place or "0", batch)]
    if hasattr(batch, "data") and hasattr(batch, "label"):
        return arrays_in({"data": batch.data or [], "label": batch.label or []}, place)
    items = batch.items() if isinstance(batch, dict) else enumerate(batch) if isinstance(batch, (list, tuple)) else ()
    return [found for key, part in items for found in arrays_in(part, f"{place}.{key}" if place else str(key))]


def arrays_behind(thing: Any, limit: int = 200_000) -> list[Any]:
    """The arrays that an object reads: of its attributes, its functions' variables, and whatever lists hold."""
    seen: set[int] = set()
    waiting, found = [thing], []
    while waiting and len(seen) < limit:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, (type, ModuleType, str, bytes, int, float)):
            continue
        seen.add(id(each))
        if hasattr(each, "asnumpy"):
            found.append(each)
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, (list, tuple, set)):
            waiting += each
        elif not hasattr(each, "__array__"):
            cells = [cell.cell_contents for cell in getattr(each, "__closure__", None) or () if _is_full(cell)]
            waiting += [*cells, *getattr(each, "__dict__", {}).values(), getattr(each, "__self__", None)]
            waiting += [*getattr(each, "args", ()), getattr(each, "func", None)] if isinstance(each, partial) else []
    return found


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def reshaping(array: Any) -> Operator:
    """The operator that brings values into an array's shape."""
    odd = array.ndim == 0 or 0 in array.shape
    return "_np_reshape" if odd else "Reshape", {"newshape" if odd else "shape": str(tuple(array.shape))}


def _rows(begin: int, end: int) -> Operator:
    return "slice_axis", {"axis": "0", "begin": str(begin), "end": str(end)}


def view_operators(
    kind: str, arguments: tuple[Any, ...], array: Any, result: Any
) -> tuple[list[Operator], tuple[int, ...]]:
    """The operators that compute a view anew, and the shape of what all but the last one give."""
    between = tuple(result.shape)
    reshape = reshaping(result)
    if kind in ("reshape", "same"):
        return [reshape] if kind == "reshape" else [("_copy", {})], between
    if kind == "detach":
        return [("BlockGrad", {})], between
    if kind == "at":
        begin = arguments[0] % array.shape[0]
        return [_rows(begin, begin + 1), reshape], (1, *array.shape[1:])
    if kind == "slice":
        begin, end, _ = slice(*arguments).indices(array.shape[0])
        return [_rows(begin, end)], between
    key = tuple(part for part in arguments[0] if part is not None)
    parts = [part if isinstance(part, slice) else slice(part, part + 1 if part != -1 else None) for part in key]
    bounds = [part.indices(size) for part, size in zip(parts, array.shape)]
    begins, steps = (tuple(bound[at] for bound in bounds) for at in (0, 2))
    ends = tuple(None if end < 0 else end for _, end, _ in bounds)
    attrs = {"begin": str(begins), "end": str(ends), "step": str(steps)}
    return [("slice", attrs), reshape], tuple(len(range(*bound)) for bound in bounds)
