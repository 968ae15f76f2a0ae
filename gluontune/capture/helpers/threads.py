"""Threads of MXNet's operators, more where that measures faster: not for small nets, nor on cores that others want."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from gluontune.capture.helpers.base import Forked, Helper
from gluontune.capture.script import ALL_THREADS
from gluontune.core.forking import at_work


class Threads(Helper):
    """Tries a thread of each core in the place of MXNet's own number, with which the script begins.

    The thread that computes operators keeps what it has prepared for so many threads. MXNet starts another one at each
    fork of the process, which is how that is dropped, and why the number is set anew after each.
    """

    name = "more threads"
    costs_short_steps = True

    def install(self, mx: Any) -> None:
        self._mx, self._pid, self._state = mx, os.getpid(), ""
        self._first = int(os.environ["OMP_NUM_THREADS"])
        every = int(os.environ.get(ALL_THREADS) or self._first)
        self.states = [str(every)] if every > self._first else []
        if self.states:
            os.register_at_fork(after_in_parent=self._forked)

    @property
    def state(self) -> str:
        """How many threads, in words; "" for as many as at first."""
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        before, self._state = getattr(self, "_state", ""), state
        if state != before:
            Forked(lambda: None, 10.0).ended(10.0)

    def _forked(self) -> None:
        if self._state and os.getpid() == self._pid:
            count = int(self._state)
            self.in_engine(lambda: self._mx.base._LIB.MXSetNumOMPThreads(count))

    def in_engine(self, function: Callable[[], Any]) -> None:
        """Call a function in the thread that computes operators, and wait.

        No other thread may fork meanwhile: it holds Python's lock, which the function needs, and awaits MXNet's thread.
        """
        mx, call = self._mx, ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: function())
        cpu = (ctypes.c_int * 2)(mx.Context.devstr2type["cpu"], 0)
        push = mx.base._LIB.MXEnginePushSync
        with at_work():
            mx.base.check_call(push(call, None, None, cpu, None, 0, None, 0, None, 0, b"gluontune"))
            mx.nd.waitall()
