"""What changes in place share: what one is, how the running script comes under it, work in a copy of the process."""

from __future__ import annotations

import abc
import ctypes
import functools
import json
import logging
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

from gluontune.capture.script import ALL_THREADS
from gluontune.core.forking import at_work
from gluontune.core.processes import die_with_parent

logger = logging.getLogger("gluontune.capture")
_TICK_S = 0.02


class Helper(abc.ABC):
    """One change of a running script: it patches MXNet when the script imports it.

    What it patches calls MXNet's own code unless there is something better to do. An error of its own switches it off.
    """

    name = ""
    trusted = ""  # the state that is in force before its contest, which may take it back
    costs_short_steps = False  # a match may cost much: others come first there; of tiny steps it is not tried

    def __init__(self) -> None:
        self.states: list[str] = []  # names of its ways, beside "", which leaves the script as it is
        self.state = self.trusted
        self.seconds_saved = 0.0  # estimated, where slices of steps cannot show it
        self.notes: list[str] = []  # what it left alone, and why
        self.broken = False

    @abc.abstractmethod
    def install(self, mx: Any) -> None:
        """Patch MXNet, which the script has just imported."""

    def after_step(self, step: int, seconds: float) -> None:  # noqa: B027 - most have nothing to do
        """Called after each step of the training with its number, and how long the training has run."""

    @property
    def waits(self) -> bool:
        """Whether it will know more without another step."""
        return False

    def awaited(self, step: int, seconds: float) -> None:
        """Wait until it knows all that it will know by this step."""
        while self.waits:
            time.sleep(_TICK_S)
            self.after_step(step, seconds)

    @property
    def took_over(self) -> bool:
        """Whether it has changed what the script's steps take without a contest: others are then measured anew."""
        return False

    def settled(self, left: list[str]) -> None:  # noqa: B027
        """Called when a contest is over; ``left`` are the states that will still be tried."""

    def facts(self) -> dict[str, Any]:
        """What the document says of it, beside what contests measured."""
        return {}

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def gave_up(self, error: BaseException) -> None:
        """Leave the script alone from now on."""
        self.broken, self.state, self.states = True, "", []
        self.note(f"{self.name}: left alone after an error of gluontune's ({type(error).__name__}: {error})")
        logger.debug("%s", self.name, exc_info=error)


def patched(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Have calls of ``owner.name`` call ``around(original, …)``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, method)


def with_subclasses(kind: Any) -> list[Any]:
    """A class and all that were made of it."""
    return [kind, *[each for one in kind.__subclasses__() for each in with_subclasses(one)]]


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


class Threads(Helper):
    """Tries a thread of each core in the place of MXNet's own number, with which the script begins.

    Kept where that measures faster: not for small nets, nor on cores that others want.

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
