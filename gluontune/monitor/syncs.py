"""Where a program waits for the device: counts ``asnumpy``, ``asscalar``, ``wait_to_read`` by source line."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable

__all__ = ["SyncTrace", "trace_syncs"]

_NAMES = ("asnumpy", "wait_to_read", "asscalar", "item", "tolist")
# Frames of the framework itself: the line that matters is the first one outside.
_INSIDE = (os.sep + "mxnet" + os.sep, "<frozen", "contextlib.py")


class SyncTrace:
    """Calls that made the host wait, by the line they stand on."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], list[float]] = {}
        self._local = threading.local()

    def wrap(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """The same method, timed; a wait inside another one counts once, as the outer."""

        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._local, "inside", False):
                return method(*args, **kwargs)
            self._local.inside = True
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._local.inside = False
                entry = self._lines.setdefault((_caller(), name), [0, 0.0])
                entry[0] += 1
                entry[1] += time.perf_counter() - start

        return timed

    def report(self) -> list[dict[str, Any]]:
        """``[{"where": "file.py:12", "call", "calls", "blocked_ms"}]``, the longest first; ready for JSON."""
        rows = [
            {"where": where, "call": call, "calls": int(count), "blocked_ms": 1e3 * seconds}
            for (where, call), (count, seconds) in list(self._lines.items())
        ]
        return sorted(rows, key=lambda row: -row["blocked_ms"])


@contextlib.contextmanager
def trace_syncs(array_class: type, names: Sequence[str] = _NAMES) -> Iterator[SyncTrace]:
    """While it lasts, each blocking call of an array class is counted with the line that made it.

    Args:
        array_class: ``mx.nd.NDArray``; its methods are put back at the end.
        names: the methods that block.

    >>> class Array:
    ...     def asnumpy(self):
    ...         return 1
    >>> with trace_syncs(Array) as trace:
    ...     total = Array().asnumpy() + Array().asnumpy()
    >>> [(row["call"], row["calls"]) for row in trace.report()]
    [('asnumpy', 2)]
    """
    trace = SyncTrace()
    originals = {name: vars(array_class)[name] for name in names if name in vars(array_class)}
    for name, method in originals.items():
        setattr(array_class, name, trace.wrap(name, method))
    try:
        yield trace
    finally:
        for name, method in originals.items():
            setattr(array_class, name, method)


def _caller() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _INSIDE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
