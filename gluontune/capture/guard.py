"""What fails on our side is MXNet's to compute, and never the program's error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gluontune.capture.handler import Call
from gluontune.core.errors import GluontuneError

ERRORS = (GluontuneError, RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)


class LostGradient(Exception):
    """A program asks for a gradient that passes through an earlier step, which PyTorch has let go; no way back."""


class Once:
    """MXNet's own call, made at most once; its errors are the program's."""

    def __init__(self, run: Callable[..., Any]):
        self._run, self.done, self.result = run, False, None
        self.failed: BaseException | None = None

    def __call__(self, *args: Any) -> Any:
        try:
            self.result = self._run(*args)
        except BaseException as error:
            self.failed = error
            raise
        self.done = True
        return self.result


def or_mxnet(method: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of a handler with ``lazy`` and ``retreat(error)`` that MXNet takes over where PyTorch's side fails."""

    @functools.wraps(method)
    def entry(self: Any, *args: Any) -> Any:
        if not self.lazy:
            return method(self, *args)
        *given, last = args  # a call of an operator has what runs it; of the others it is the last argument
        run = Once(last.run if isinstance(last, Call) else last)
        try:
            found = method(self, *given, last._replace(run=run) if isinstance(last, Call) else run)
            run.result = None  # a view keeps what makes it
            return found
        except ERRORS as error:
            if run.failed is error or not self.lazy:
                raise
            self.retreat(error)
        return run.result if run.done else run()

    return entry
