"""Threads of MXNet's operators, fewer where that measures faster: small nets, and cores that other programs want."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from gluontune.capture.helpers.base import Helper
from gluontune.runtime import usable_cores


class Threads(Helper):
    """Tries MXNet's own number of threads, and one, in the place of those that ``OMP_NUM_THREADS`` gives."""

    name = "fewer threads"
    does = "operators run on fewer threads"

    def install(self, mx: Any) -> None:
        self._mx, self._all = mx, int(os.environ["OMP_NUM_THREADS"])
        fewer = {max(1, usable_cores() // 2), 1}  # MXNet itself takes half the cores
        self.states = [str(count) for count in sorted(fewer, reverse=True) if count < self._all]

    @property
    def state(self) -> str:
        """How many threads, in words; "" for as many as at first."""
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        before, self._state = getattr(self, "_state", ""), state
        if state != before:
            count = int(state or self._all)
            self.in_engine(lambda: self._mx.base._LIB.MXSetNumOMPThreads(count))

    def in_engine(self, function: Callable[[], Any]) -> None:
        """Call a function in the thread that computes operators, and wait: a fork of the script's may come next."""
        mx, call = self._mx, ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: function())
        cpu = (ctypes.c_int * 2)(mx.Context.devstr2type["cpu"], 0)
        push = mx.base._LIB.MXEnginePushSync
        mx.base.check_call(push(call, None, None, cpu, None, 0, None, 0, None, 0, b"gluontune"))
        mx.nd.waitall()
