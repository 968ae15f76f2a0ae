"""Views as operators, and the arrays of a batch."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any


def arrays_in(batch: Any, place: str = "") -> list[tuple[str, Any]]:
    """The arrays of a batch by their places in it: a list, a tuple, a dict or a ``DataBatch``."""
    if hasattr(batch, "asnumpy"):
        return [(place or "0", batch)]
    if hasattr(batch, "data") and hasattr(batch, "label"):
        return arrays_in({"data": batch.data or [], "label": batch.label or []}, place)
    items = batch.items() if isinstance(batch, dict) else enumerate(batch) if isinstance(batch, (list, tuple)) else ()
    return [found for key, part in items for found in arrays_in(part, f"{place}.{key}" if place else str(key))]


def arrays_behind(thing: Any, limit: int = 200_000) -> list[Any]:
    """The arrays that an object reads: of its attributes, its functions' variables, and whatever lists hold.

    Args:
        limit: objects that are looked at.
    """
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


def reshaping(array: Any) -> tuple[str, dict[str, str]]:
    """The operator that brings values into an array's shape."""
    odd = array.ndim == 0 or 0 in array.shape
    return "_np_reshape" if odd else "Reshape", {"newshape" if odd else "shape": str(tuple(array.shape))}


def view_operators(
    kind: str, arguments: tuple[Any, ...], array: Any, result: Any
) -> tuple[list[tuple[str, dict[str, str]]], tuple[int, ...]]:
    """The operators that compute a view anew, and the shape of what all but the last one give."""
    between = tuple(result.shape)
    reshape = reshaping(result)
    if kind in ("reshape", "same"):
        return [reshape] if kind == "reshape" else [("_copy", {})], between
    if kind == "detach":
        return [("BlockGrad", {})], between
    if kind == "at":
        begin = arguments[0] % array.shape[0]
        return [("slice_axis", {"axis": "0", "begin": str(begin), "end": str(begin + 1)}), reshape], (
            1,
            *array.shape[1:],
        )
    if kind == "slice":
        begin, end, _ = slice(*arguments).indices(array.shape[0])
        return [("slice_axis", {"axis": "0", "begin": str(begin), "end": str(end)})], between
    key = tuple(part for part in arguments[0] if part is not None)
    parts = [part if isinstance(part, slice) else slice(part, part + 1 if part != -1 else None) for part in key]
    bounds = [part.indices(size) for part, size in zip(parts, array.shape)]
    ends = tuple(None if end < 0 else end for _, end, _ in bounds)
    attrs = {
        "begin": str(tuple(b for b, _, _ in bounds)),
        "end": str(ends),
        "step": str(tuple(s for _, _, s in bounds)),
    }
    return [("slice", attrs), reshape], tuple(len(range(*bound)) for bound in bounds)
