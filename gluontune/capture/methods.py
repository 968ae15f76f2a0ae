"""Methods of MXNet's that do less, or note more, where every operator is to be seen."""

from __future__ import annotations

import functools
import threading
from typing import Any


def without_store(before: Any) -> Any:
    def init(trainer: Any) -> None:
        """A store of one device adds nothing but calls that Python does not see."""
        store = trainer._kvstore_params["kvstore"]
        if len(trainer._contexts) == 1 and "dist" not in str(getattr(store, "type", store)):
            trainer._kvstore_params.update(kvstore=None, update_on_kvstore=None)
        before(trainer)

    return functools.wraps(before)(init)


TAKES = "_gluontune_takes"  # of a block that the script compiles: what it was called with, or nothing yet


COMPILES = "_gluontune_compiles"  # of a block that MXNet would call as a compiled graph
SETS = "_gluontune_sets"  # how often an attribute of a block was given another value


def inert(before: Any) -> Any:
    def hybridize(block: Any, active: bool = True, *args: Any, **kwargs: Any) -> None:
        """As imperative as it was: each operator is seen."""
        before(block, False)
        waiting = [block]
        while waiting:
            each = waiting.pop()
            each.__dict__[COMPILES] = bool(active)
            waiting += each._children.values()
        if active:
            block.__dict__.setdefault(TAKES, None)

    return functools.wraps(before)(hybridize)


def counting(before: Any) -> Any:
    def set_attribute(block: Any, name: str, value: Any) -> None:
        """Counts attributes that change."""
        values = block.__dict__
        if values.get(name, values) is not value:
            values[SETS] = values.get(SETS, 0) + 1
        before(block, name, value)

    return functools.wraps(before)(set_attribute)


def noting(before: Any, hooks: Any) -> Any:
    def call(block: Any, *args: Any) -> Any:
        """Notes what a block takes that the script compiles: ``export`` writes its graph."""
        if block.__dict__.get(TAKES, args) is None:
            block.__dict__[TAKES] = _without_values(args)
        if not hooks.active:
            return before(block, *args)
        return hooks.handler.block(block, args, functools.partial(before, block, *args))

    return functools.wraps(before)(call)


def _without_values(given: Any) -> Any:
    """Arguments of a block with other arrays in the places of arrays."""
    if isinstance(given, (list, tuple)):
        return type(given)(_without_values(each) for each in given)
    return type(given)(None) if hasattr(given, "asnumpy") else given


def noting_mode(before: Any, modes: list[bool], at: int) -> Any:
    """A function that sets a mode of a thread, and notes it of this one: to ask MXNet takes longer."""
    thread = threading.get_ident()

    @functools.wraps(before)
    def change(on: bool) -> Any:
        was = before(on)
        if threading.get_ident() == thread:
            modes[at] = bool(on)
        return was

    return change


def noting_modes(before: Any, modes: list[bool], autograd: Any) -> Any:
    """A function that sets both modes."""
    thread = threading.get_ident()

    @functools.wraps(before)
    def change(*args: Any, **kwargs: Any) -> Any:
        was = before(*args, **kwargs)
        if threading.get_ident() == thread:
            modes[:] = [autograd.is_recording(), autograd.is_training()]
        return was

    return change
