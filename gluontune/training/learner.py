"""The entry of an asynchronous learner: ``python -m gluontune.training.learner --events FD``.

It keeps one training process (:mod:`gluontune.training.child`) alive, and passes commands and events between it and the
group. A process that dies or falls silent is replaced by another, with the learners' shared weights and the remaining
steps of the current command. The other learners go on meanwhile.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import Any

from gluontune.core.interpreter import python
from gluontune.core.processes import STOPS, PipedProcess, die_with_parent, event_sender
from gluontune.parallel.shared import PATH_VARIABLE, steps_of

LIVES = 3  # consecutive deaths without a step, after which a learner is given up
_TICK_S = 0.5
_SILENT_S = 20.0
_BEAT_S = 2.0
_CHILD = python("-m", "gluontune.training.child")


class Learner:
    def __init__(self, setup: dict[str, Any], send: Callable[..., None]):
        self.setup, self.send = setup, send
        self.rank = int(setup["rank"])
        self.pending: dict[str, Any] | None = None  # the current command
        self._begun, self._began, self._per_step = 0, 0.0, 1
        self._ready, self._up, self._over, self._commands = False, False, False, b""
        self._quiet_s, self._beaten = 0.0, time.monotonic()
        self._lives, self._died_at = LIVES, -1
        self.selector = selectors.DefaultSelector()
        self._start(rejoins=False)

    def _start(self, rejoins: bool) -> None:
        setup = {**self.setup, "rejoins": rejoins, "parent": os.getpid()}
        self.child = PipedProcess(_CHILD, setup, os.environ, apart=False)
        self.selector.register(self.child.reading, selectors.EVENT_READ, "child")
        self._up, self._quiet_s = False, 0.0

    def serve(self, commands: int) -> None:
        """Run until ``quit``, the end of ``commands`` (a descriptor), or the learner's end."""
        os.set_blocking(commands, False)
        self.selector.register(commands, selectors.EVENT_READ, "commands")
        while not self._over:
            found = self.selector.select(_TICK_S)
            # Counted in turns, not by the clock, because a paused group stops this process, too.
            self._quiet_s = 0.0 if found else self._quiet_s + _TICK_S
            for key, _ in found:
                if key.data == "commands":
                    self._take(commands)
                else:
                    self._read_events()
            if self._quiet_s > _SILENT_S and self._up and self.pending:
                self._replace(f"gave no sign of life for {_SILENT_S:.0f} s")
            if time.monotonic() - self._beaten > _BEAT_S and self.pending:
                self._beaten = time.monotonic()
                self.send(event="beat", step=self.steps)

    @property
    def steps(self) -> int:
        """Steps of this learner, from the shared memory."""
        return steps_of(os.environ[PATH_VARIABLE], self.rank)

    def _take(self, commands: int) -> None:
        chunk = os.read(commands, 65536)
        if not chunk:
            self._over = True
        self._commands += chunk
        *lines, self._commands = self._commands.split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["do"] == "quit":
                self._over = True
                return
            self.pending, self._begun, self._began = command, self.steps, time.perf_counter()
            if self._up:
                self.child.say(command)

    def _read_events(self) -> None:
        while not self._over and (event := self.child.poll()) is not None:
            kind = event["event"]
            if kind == "end":
                self._replace(self.child.how_ended("").strip())
                return
            self._up = self._up or kind == "ready"
            if kind == "ready" and self._ready:
                self._go_on()
            elif kind == "done":
                self.send(**self._whole(event))
                self.pending = None
            elif kind != "beat":
                self._ready = self._ready or kind == "ready"
                self._per_step = event.get("samples_per_step", self._per_step)
                self.send(**event)
                self._over = kind == "error"

    def _replace(self, how: str) -> None:
        self.selector.unregister(self.child.reading)
        self.child.close()
        steps = self.steps
        self._lives = LIVES if steps > self._died_at else self._lives
        self._lives, self._died_at = self._lives - 1, steps
        if not self._ready or self._lives == 0:
            tried = "" if not self._ready else f", {LIVES} times without a step between"
            message = f"the training process {how}{tried}"
            self.send(event="error", type="ProcessDied", message=message, phase="training", expected=True)
            self._over = True
            return
        self.send(event="note", text=f"learner {self.rank} {how} at step {steps} and was started again")
        self._start(rejoins=True)

    def _go_on(self) -> None:
        """Send the rest of the current command to the new process."""
        if self.pending is None:
            return
        command = self.pending
        if command["do"] == "steps":
            command = {**command, "count": max(1, command["count"] - (self.steps - self._begun))}
        self.child.say(command)

    def _whole(self, event: dict[str, Any]) -> dict[str, Any]:
        """The answer for the whole command, including the part of a dead process."""
        command = self.pending or {}
        if command.get("do") == "steps" and self._died_at >= self._begun:
            event["samples"] = command["count"] * self._per_step
            event["seconds"] = time.perf_counter() - self._began
        return event

    def close(self) -> None:
        self.child.close()


def main() -> None:
    send = event_sender()
    setup = json.loads(_first_line())
    die_with_parent(setup["parent"])
    if setup.get("checkpoints"):  # a cluster's SIGTERM goes to all processes: the group decides when to stop
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
    learner = Learner(setup, send)
    try:
        learner.serve(0)
    finally:
        learner.close()


def _first_line() -> bytes:
    """The first line of stdin, without reading ahead: the rest is read without Python's buffer."""
    line = byte = os.read(0, 1)
    while byte not in (b"", b"\n"):
        line += (byte := os.read(0, 1))
    return line


if __name__ == "__main__":
    main()
