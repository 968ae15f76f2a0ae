"""The training steps of a running script, as MXNet's Gluon sees them.

A step ends where the script's first ``gluon.Trainer`` has updated; in a script without one, where a backward pass
returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gluontune.capture.helpers.base import patched


class Steps:
    """Hears of a script's steps.

    Args:
        over: called at the end of each step, in the script's thread.
    """

    def __init__(self, over: Callable[[], None]):
        self._over = over
        self.trainers = 0
        self._first: Any = None

    def install(self, mx: Any) -> None:
        """Patch MXNet, which the script has just imported."""
        patched(mx.gluon.Trainer, "__init__", self._around_trainer)
        patched(mx.gluon.Trainer, "_update", self._around_update)
        for owner in (mx.nd.NDArray, mx.autograd):
            patched(owner, "backward", self._around_backward)

    def _around_trainer(self, original: Any, *args: Any, **kwargs: Any) -> None:
        self.trainers += 1
        original(*args, **kwargs)

    def _around_update(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(trainer, *args, **kwargs)
        if self._first is None:
            self._first = trainer
        if trainer is self._first:
            self._over()
        return found

    def _around_backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if not self.trainers:
            self._over()
        return found
