"""Methods of MXNet's that do less, or note more, where every operator is to be seen; ``before`` is MXNet's own."""

from __future__ import annotations

import functools
import threading
from typing import Any

TAKES = "_gluontune_takes"  # of a block that the script compiles: what it was called with, or nothing yet
COMPILES = "_gluontune_compiles"  # of a block that MXNet would call as a compiled graph
SETS = "_gluontune_sets"  # how often an attribute of a block was given another value


def without_store(before: Any, trainer: Any) -> None:
    """A store of one device adds nothing but calls that Python does not see."""
    store = trainer._kvstore_params["kvstore"]
    if len(trainer._contexts) == 1 and "dist" not in str(getattr(store, "type", store)):
        trainer._kvstore_params.update(kvstore=None, update_on_kvstore=None)
    before(trainer)


def inert(before: Any, block: Any, active: bool = True, *args: Any, **kwargs: Any) -> None:
    """A block that is hybridized stays imperative: each operator is seen."""
    before(block, False)
    waiting = [block]
    while waiting:
        each = waiting.pop()
        each.__dict__[COMPILES] = bool(active)
        waiting += each._children.values()
    if active:
        block.__dict__.setdefault(TAKES, None)


def counting(before: Any, block: Any, name: str, value: Any) -> None:
    """Count attributes that change."""
    values = block.__dict__
    if values.get(name, values) is not value:
        values[SETS] = values.get(SETS, 0) + 1
    before(block, name, value)


def noted(hooks: Any, before: Any, block: Any, *args: Any) -> Any:
    """Note what a block takes that the script compiles: ``export`` writes its graph."""
    if block.__dict__.get(TAKES, args) is None:
        block.__dict__[TAKES] = _without_values(args)
    if not hooks.active:
        return before(block, *args)
    return hooks.handler.block(block, args, functools.partial(before, block, *args))


def _without_values(given: Any) -> Any:
    """Arguments of a block with other arrays in the places of arrays."""
    if isinstance(given, (list, tuple)):
        return type(given)(_without_values(each) for each in given)
    return type(given)(None) if hasattr(given, "asnumpy") else given


def mode_noted(hooks: Any, at: int, before: Any, on: bool) -> Any:
    """Set a mode of a thread, and note it of the one with hooks: to ask MXNet takes longer."""
    was = before(on)
    if threading.get_ident() == hooks.thread:
        hooks.modes[at] = bool(on)
    return was


def modes_noted(hooks: Any, before: Any, *args: Any) -> Any:
    """Set both modes."""
    was = before(*args)
    if threading.get_ident() == hooks.thread:
        hooks.modes[:] = [hooks.mx.autograd.is_recording(), hooks.mx.autograd.is_training()]
    return was
