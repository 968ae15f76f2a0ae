"""Work in a forked copy of the process: its state stays untouched, and a crash is survived."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

from gluontune.core.processes import die_with_parent


class Forked:
    """A copy of this process that does ``work``, answers in JSON, and is killed after ``limit_s`` seconds."""

    def __init__(self, work: Callable[[], Any], limit_s: float = 240.0):
        self._limit_s, self._heard, self._began = limit_s, b"", time.monotonic()
        self._reading, writing = os.pipe()
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of threads; MXNet stops its own around a fork
            self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                _become_quiet(parent, self._reading)
                answer = json.dumps(work()).encode()
                while answer:
                    answer = answer[os.write(writing, answer) :]
                code = 0
            finally:
                os._exit(code)
        os.close(writing)

    def ended(self, wait_s: float = 0.0) -> bool:
        """Whether the copy has come to its end, after waiting for it at most so long."""
        until, killed_at = time.monotonic() + wait_s, self._began + self._limit_s
        while self._reading >= 0:
            left = min(until, killed_at) - time.monotonic()
            if not select.select([self._reading], [], [], max(0.0, left))[0]:
                if time.monotonic() < killed_at:
                    return False
                os.kill(self._pid, signal.SIGKILL)
            chunk = os.read(self._reading, 65536)
            self._heard += chunk
            if not chunk:
                os.close(self._reading)
                self._reading = -1
                os.waitpid(self._pid, 0)
        return True

    def answer(self) -> Any:
        """The answer; None where the copy died, or was killed."""
        try:
            return json.loads(self._heard)
        except ValueError:
            return None


def _become_quiet(parent: int, reading: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(name, signal.SIG_DFL)
    os.close(reading)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    die_with_parent(parent)
