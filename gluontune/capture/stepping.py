"""A script's process that trains on command, with the words of :mod:`gluontune.training.child`, and anew where it ends.

python -m gluontune.capture.stepping OPTIONS SCRIPT ARGS… --events FD
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import psutil

from gluontune.capture.changes import InForce
from gluontune.capture.running import run
from gluontune.capture.script import Program, command, with_hint
from gluontune.capture.watch import Watch
from gluontune.core.processes import die_with_parent, event_sender

_LOOKED_AT = 12  # steps before the first command: their losses are kept, changes are proven in them
_LOOKED_S = 10.0  # fewer, where steps are slow
_LEAST = 5  # of them, if the script has as many
_RECENT = 4  # steps from which the time of one is known, before the first command
_STARTS = 8  # of a short script, at most, for the same
_SETTLED_S = 45.0  # at most, until a change that was asked for is in force


class Stepping:
    """Lets the script train when it is told to, and tells how long that took.

    Args:
        options: ``changes`` (names of :data:`~gluontune.capture.script.CHANGES`), ``state`` (of compiled blocks, or
            :data:`~gluontune.capture.script.DECIDED`), ``dtype``, ``backend``, ``look`` (losses to be kept); of a
            script that was started again what :meth:`_again` kept.
    """

    def __init__(self, options: dict[str, Any], program: Program, send: Callable[..., None], commands: int):
        self.options, self.program, self._send, self._commands = options, program, send, commands
        self._heard = b""
        self.changes: InForce  # both since mxnet was imported
        self.watch: Watch
        self.steps, self._began, self._settled = 0, options.get("began", 0.0), False
        seen = options.get("steps_seen")
        look = options["look"] or _LOOKED_AT
        self._look = look if seen is None else max(1, min(look, seen // 3))
        self._pending: dict[str, Any] | None = options.get("pending")
        self._left, self._asked = 0, 0
        self._start = 0.0
        self._durations: list[float] = []  # of the steps before the first command, without our own work
        self._resumed = 0.0

    def begin(self, mx: Any) -> None:
        mx.random.seed(0)
        self.changes = InForce(self.options, mx, self.program.folder)
        self.watch = Watch(mx, self._step)
        self.watch.reads_losses, self.watch.losses = "losses" not in self.options, self.options.get("losses", [])
        self.watch.install(mx)  # last, around all the others

    # -- between two steps

    def _step(self) -> None:
        self.steps += 1
        if not self._settled:
            self._settle()
        elif self._left > 0:
            self._left -= 1
            if self._left == 0 or self.steps == self.options.get("steps_seen"):  # what follows the last trains nothing
                self._answer(self._asked - self._left)
                self._listen()

    def _settle(self) -> None:
        """Bring the changes in force, which takes a few steps."""
        now = time.monotonic()
        if self.steps > 1:
            self._durations.append(now - self._resumed)
        self._began = self._began or now
        self.changes.step(self.steps)
        enough = self.steps >= self._look
        enough = enough or (self.steps >= _LEAST and sum(self._durations) > _LOOKED_S)
        if (enough and (self._late or not self._missing())) or (self._late and self.steps > 1):
            self._ready()
            self._listen()
        self._resumed = time.monotonic()

    @property
    def _late(self) -> bool:
        return time.monotonic() - self._began > _SETTLED_S

    def _missing(self) -> str:
        return self.changes.missing(time.monotonic() - self._began, self.watch)

    def _ready(self) -> None:
        why_not, self._settled = self._missing(), True
        self.watch.reads_losses = False
        if self.changes.contest is not None:
            self.changes.contest.end()
        if why_not and not self.changes.enough:
            self._fail("NothingToChange", why_not)
        if not self.options.get("ready"):
            self._send(event="ready", **self._facts())

    def _facts(self) -> dict[str, Any]:
        step_s = statistics.median(self._durations[-_RECENT:] or [0.0])
        return {
            "steps": self.steps, "step_s": step_s, "losses": self.watch.losses, "trainers": self.watch.trainers,
            "loaders": self.watch.loaders, "workers": self.watch.workers, "samples_per_step": self.watch.samples,
            **self.changes.facts(),
        }  # fmt: skip

    # -- commands

    def _listen(self) -> None:
        """Obey until steps are wanted."""
        while True:
            command, self._pending = self._pending or self._next(), None
            if self._left == 0 and command["do"] in ("steps", "individual"):
                self._begin_steps(command)
                return
            self._obey(command)

    def _obey(self, command: dict[str, Any]) -> None:
        """A command that takes no steps."""
        if command["do"] == "memory":
            self._send(event="done", peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        elif command["do"] == "quit":
            os._exit(0)

    def _begin_steps(self, command: dict[str, Any]) -> None:
        self._pending = command  # until it is answered
        self._asked = self._left = command["count"] if command["do"] == "steps" else command["given"]["steps"]
        self.watch.wait()
        self.watch.begin(phases=command["do"] == "individual")
        self._start = time.perf_counter()

    def _answer(self, done: int) -> None:
        watch, command = self.watch, self._pending
        assert command is not None
        watch.wait()
        seconds = max(time.perf_counter() - self._start - watch.left_out_s, 1e-9)
        self._pending, self._left = None, 0
        if command["do"] == "steps":
            self._send(event="done", samples=watch.counted, seconds=seconds, loss=0.0, count=done, at=self.steps)
        else:
            self._send(event="done", found={**self._facts(), "phases_pct": watch.phases_pct(seconds)})

    def _next(self) -> dict[str, Any]:
        while b"\n" not in self._heard:
            chunk = os.read(self._commands, 65536)
            if not chunk:
                os._exit(0)
            self._heard += chunk
        line, _, self._heard = self._heard.partition(b"\n")
        return dict(json.loads(line))

    # -- the script's end

    def ended(self) -> NoReturn:
        """The script has ended: answer with what there was, and start it again when more is asked for."""
        if self.steps == 0:
            what = "no gluon.Trainer has updated, and no backward pass was made"
            self._fail("NoTraining", f"{self.program.target} ended without a training step: {what}")
        if self.steps < 3:
            ends = f"{self.program.target} ends after {self.steps} training step(s)"
            self._fail("TooShort", f"{ends}: too few to measure")
        if not self._settled:
            decides = self.changes.decides and self.changes.engine is None
            again = self.options.get("starts", 0) < _STARTS and not self._late
            if decides and again and self._missing():
                self._again()  # contests in place go on with the next start
            self._ready()
        if not self.options.get("ready"):
            self._send(event="note", text=f"the script ends after {self.steps} steps: it was started again to go on")
        if self._left and self._asked - self._left > 0:
            self._answer(self._asked - self._left)
        while self._pending is None:
            command = self._next()
            if command["do"] in ("steps", "individual"):
                self._pending = command
            else:
                self._obey(command)
        self._again()

    def _again(self) -> NoReturn:
        told = self._settled or self.options.get("ready", False)
        options = {
            **self.options, "steps_seen": self.steps, "pending": self._pending, "commands": self._commands,
            "began": 0.0 if told else self._began, "losses": self.watch.losses, "ready": told,
            "starts": self.options.get("starts", 0) + 1,
        }  # fmt: skip
        if self.changes.contest is not None:
            options["contest"] = self.changes.contest.kept()
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
        started = command(self.program, "gluontune.capture.stepping", json.dumps(options))
        for number in (self._commands, int(EVENTS[-1])):
            os.set_inheritable(number, True)
        os.execv(started[0], [*started, *EVENTS])

    def failed(self, error: BaseException) -> NoReturn:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self._fail("ScriptFailed", with_hint(f"{self.program.target}: {' '.join(text.split())[:600]}"))

    def _fail(self, kind: str, message: str) -> NoReturn:
        phase = "training" if self._settled and self.steps else "starting"
        self._send(event="error", type=kind, message=message, phase=phase)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


EVENTS: list[str] = []  # the two words that name the pipe of events


def main() -> None:
    """``OPTIONS SCRIPT ARGS… --events FD``: options as one JSON document."""
    EVENTS[:] = sys.argv[-2:]
    options, program = json.loads(sys.argv[1]), Program.of(sys.argv[2:-2])
    sys.argv[:] = [sys.argv[0], *EVENTS]
    send = event_sender()
    commands = options.get("commands")
    if commands is None:  # the script's own stdin is empty
        commands = os.dup(0)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
    stepping = Stepping(options, program, send, commands)
    if "steps_seen" not in options:
        die_with_parent(stepping._next()["parent"])
    random.seed(0)  # a script that sets no seed starts alike each time; one that does overrides it
    np.random.seed(0)
    try:
        run(program, [stepping.begin])
    except SystemExit as error:
        if error.code not in (None, 0):
            print(error.code, file=sys.stderr)
            stepping.failed(error)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        stepping.failed(error)
    stepping.ended()


if __name__ == "__main__":
    main()
