"""A script's process that trains on command, so many steps at a time: how the ladder measures a script.

python -m gluontune.capture.stepping OPTIONS SCRIPT ARGS… --events FD

Between two training steps it waits for commands as :mod:`gluontune.training.child` does, and answers in the same words.
A script that ends is started again in the same process when more steps are asked for.
"""

from __future__ import annotations

import contextlib
import json
import math
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

from gluontune.capture import script
from gluontune.capture.helpers.base import Helper
from gluontune.capture.helpers.samples import Samples
from gluontune.capture.names import ALL_THREADS, CHANGES, DECIDED, THREADS
from gluontune.capture.watch import Watch
from gluontune.core.processes import die_with_parent, event_sender
from gluontune.recipe.registry import resolve
from gluontune.runtime import applied

_LOOKED_AT = 12  # steps before the first command: their losses are kept, changes are proven in them
_LOOKED_S = 10.0  # fewer, where steps are slow
_LEAST = 5  # of them, if the script has as many
_RECENT = 4  # steps from which the time of one is known, before the first command
_SETTLED_S = 90.0  # at most, until a change that was asked for is in force
_DECIDING_S = 4.0  # at least, for contests in place to begin
_TICK_S = 0.02


class Stepping:
    """Lets the script train when it is told to, and tells how long that took.

    Args:
        options: ``changes`` (names of :data:`CHANGES`), ``state`` (of compiled blocks, or :data:`DECIDED`), ``dtype``,
            ``backend``, ``look`` (losses to be kept); of a script that was started again ``steps_seen``, ``states`` and
            the ``pending`` command.
        program: the script. send: of an event. commands: their descriptor.
    """

    def __init__(self, options: dict[str, Any], program: script.Program, send: Callable[..., None], commands: int):
        self.options, self.program, self._send, self._commands = options, program, send, commands
        self._heard = b""
        self.helpers: list[Helper] = []
        self.contest: Any = None  # of changes that are kept only where they are faster
        self.engine: Any = None  # PyTorch's
        self.watch: Watch | None = None
        self.steps, self._began, self._settled = 0, time.monotonic(), False
        seen = options.get("steps_seen")
        look = options["look"] or _LOOKED_AT
        self._look = look if seen is None else max(1, min(look, seen // 3))
        self._pending: dict[str, Any] | None = options.get("pending")
        self._left, self._asked = 0, 0
        self._start = 0.0
        self._durations: list[float] = []  # of the steps before the first command, without our own work
        self._resumed = 0.0

    def begin(self, mx: Any) -> None:
        """Mxnet was imported: install what was asked for, and listen to the steps."""
        mx.random.seed(0)
        if self.options["dtype"] != "float32":
            from gluontune.compute.process import start_process

            start_process(self.options["dtype"], "cpu")
        places = [CHANGES[name] for name in self.options["changes"]]
        if self._decides and self.options["backend"] == "mxnet" and "OMP_NUM_THREADS" in applied(os.environ):
            places.insert(0, THREADS)
        for place in places:
            helper = resolve(place)()
            helper.install(mx)
            self.helpers.append(helper)
        if self._decides and "states" not in self.options:
            from gluontune.capture.contest import Contest

            self.contest = Contest(self.helpers)
            self.contest.time_by(mx.nd.waitall)
        if self.options["backend"] == "torch":
            from gluontune.capture.on_torch import OnTorch
            from gluontune.runtime.pytorch import torch

            torch().manual_seed(0)
            torch().set_num_threads(int(os.environ.get(ALL_THREADS) or os.environ.get("OMP_NUM_THREADS") or 1))
            self.engine = OnTorch(mx, self.program.folder, lambda line: None)
            for helper in self.helpers:
                if isinstance(helper, Samples):
                    helper.giving = self.engine.recorder.give
        self.watch = Watch(mx, self._step)
        self.watch.reads_losses = True
        self.watch.install(mx)  # last, around all the others

    @property
    def _decides(self) -> bool:
        return bool(self.options["state"] == DECIDED)

    # -- between two steps

    def _step(self) -> None:
        self.steps += 1
        if not self._settled:
            self._settle()
        elif self._left > 0:
            self._left -= 1
            if self._left == 0:
                self._answer(self._asked)
                self._listen()

    def _settle(self) -> None:
        """Bring the changes in force, which takes a few steps."""
        now = time.monotonic()
        if self.steps == 1:
            self._began = now
        else:
            self._durations.append(now - self._resumed)
        if self.contest is not None:
            self.contest.step()
        for helper in self.helpers if self.contest is None else ():
            self._bring_in_force(helper)
        enough = self.steps >= self._look
        enough = enough or (self.steps >= _LEAST and sum(self._durations) > _LOOKED_S)
        late = time.monotonic() - self._began > _SETTLED_S
        if (enough and (late or not self._missing())) or (late and self.steps > 1):
            self._ready()
            self._listen()
        self._resumed = time.monotonic()

    def _bring_in_force(self, helper: Helper) -> None:
        if helper.state or helper.broken:
            return
        helper.after_step(self.steps, math.inf)
        while helper.waits:
            time.sleep(_TICK_S)
            helper.after_step(self.steps, math.inf)
        wanted = self.options.get("states", {}).get(helper.name, "") if self._decides else self.options["state"]
        if helper.states and (wanted or not self._decides):
            helper.state = wanted if wanted in helper.states else helper.states[0]
            helper.settled([])

    def _missing(self) -> str:
        """Why what was asked for is not in force; "" where it is."""
        assert self.watch is not None
        if self.engine is not None and not self.engine.recorder.lazy:
            return str(self.engine.why_not)
        if self._decides:
            early = self.contest is not None and time.monotonic() - self._began < _DECIDING_S
            return "contests in place" if early or (self.contest is not None and not self.contest.idle) else ""
        for helper in self.helpers:
            facts = helper.facts()
            if "kept_batches" in facts and not facts["kept_batches"]:
                none = "no DataLoader of Gluon's was seen: the script reads its data itself"
                return _notes(helper) or ("no sample came a second time yet" if self.watch.loaders else none)
            if "blocks_left" not in facts:
                continue
            if helper.state and self.options["state"] not in ("", helper.state):
                return "no layer of its blocks is slow in a way that a rewrite cures"
            if not helper.state:
                kinds = ", ".join(f"{kind}: {why}" for kind, why in facts["blocks_left"].items())
                return _notes(helper) or kinds or "there is no block to compile"
        return ""

    def _ready(self) -> None:
        assert self.watch is not None
        why_not, self._settled = self._missing(), True
        self.watch.reads_losses = False
        if self.contest is not None:
            self.contest.stop()
        if why_not and not (self._decides and (self.engine is None or self.engine.recorder.lazy)):
            self._fail("NothingToChange", why_not)
        if "steps_seen" not in self.options:
            self._send(event="ready", **self._facts())

    def _facts(self) -> dict[str, Any]:
        """What is known of the training so far."""
        assert self.watch is not None
        step_s = statistics.median(self._durations[-_RECENT:] or [0.0])
        return {
            "steps": self.steps, "step_s": step_s, "losses": self.watch.losses, "trainers": self.watch.trainers,
            "loaders": self.watch.loaders, "workers": self.watch.workers, "samples_per_step": self.watch.samples,
            "notes": [note for helper in self.helpers for note in helper.notes],
            "changed": {helper.name: helper.state or helper.facts().get("kept_batches") for helper in self.helpers},
            "why_not": self.engine.why_not if self.engine is not None else "",
            "draws": self.engine is not None and self.engine.draws,
        }  # fmt: skip

    # -- commands

    def _listen(self) -> None:
        """Obey until steps are wanted."""
        assert self.watch is not None
        while True:
            command, self._pending = self._pending or self._next(), None
            if self._left == 0 and command["do"] in ("steps", "individual"):
                self._begin_steps(command)
                return
            if command["do"] == "memory":
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                self._send(event="done", peak_rss_mib=peak)
            elif command["do"] == "quit":
                os._exit(0)

    def _begin_steps(self, command: dict[str, Any]) -> None:
        assert self.watch is not None
        self._pending = command  # until it is answered
        self._asked = self._left = command["count"] if command["do"] == "steps" else command["given"]["steps"]
        self.watch.wait()
        self.watch.begin(phases=command["do"] == "individual")
        self._start = time.perf_counter()

    def _answer(self, done: int) -> None:
        watch, command = self.watch, self._pending
        assert watch is not None and command is not None
        watch.wait()
        seconds = max(time.perf_counter() - self._start - watch.left_out_s, 1e-9)
        self._pending, self._left = None, 0
        if command["do"] == "steps":
            self._send(event="done", samples=watch.counted, seconds=seconds, loss=0.0, count=done)
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
        if self.steps == 0 or self.watch is None:
            what = "no gluon.Trainer has updated, and no backward pass was made"
            self._fail("NoTraining", f"{self.program.target} ended without a training step: {what}")
        if self.steps < 3:
            self._fail(
                "TooShort", f"{self.program.target} ends after {self.steps} training step(s): too few to measure"
            )
        if not self._settled:
            self._ready()
        if "steps_seen" not in self.options:
            self._send(event="note", text=f"the script ends after {self.steps} steps: it was started again to go on")
        if self._left and self._asked - self._left > 0:
            self._answer(self._asked - self._left)
        while self._pending is None:
            command = self._next()
            if command["do"] in ("steps", "individual"):
                self._pending = command
            elif command["do"] == "quit":
                os._exit(0)
            else:
                self._send(event="done", peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        self._again()

    def _again(self) -> NoReturn:
        options = {**self.options, "steps_seen": self.steps, "pending": self._pending, "commands": self._commands}
        if self.contest is not None:
            options["states"] = {helper.name: helper.state for helper in self.helpers}
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
        command = script.command(self.program, "gluontune.capture.stepping", json.dumps(options))
        for number in (self._commands, int(EVENTS[-1])):
            os.set_inheritable(number, True)
        os.execv(command[0], [*command, *EVENTS])

    def failed(self, error: BaseException) -> NoReturn:
        """The script has raised."""
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self._fail("ScriptFailed", f"{self.program.target}: {' '.join(text.split())[:600]}")

    def _fail(self, kind: str, message: str) -> NoReturn:
        phase = "training" if self._settled and self.steps else "starting"
        self._send(event="error", type=kind, message=message, phase=phase)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _notes(helper: Helper) -> str:
    return "; ".join(note.partition(": ")[2] or note for note in helper.notes)


EVENTS: list[str] = []  # the two words that name the pipe of events


def main() -> None:
    """``OPTIONS SCRIPT ARGS… --events FD``: options as one JSON document."""
    EVENTS[:] = sys.argv[-2:]
    options, program = json.loads(sys.argv[1]), script.Program.of(sys.argv[2:-2])
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
        script.run(program, [stepping.begin])
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
