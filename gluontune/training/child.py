"""The entry of a training process: ``python -m gluontune.training.child --events FD``.

It reads one JSON command a line from stdin, and answers each with one JSON event a line on the pipe FD
(stdout belongs to the user's own code). The first line is the set-up: recipe, rank and world.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.parent_death import die_with_parent
from gluontune.core.piped import event_sender
from gluontune.job.user_file import in_words
from gluontune.recipe import Recipe

if TYPE_CHECKING:
    from gluontune.engines.base import BaseSession

__all__ = ["main", "serve"]

Command = Callable[[dict[str, Any]], Optional[dict[str, Any]]]

_BEAT_S = 2.0  # between signs of life while a command is carried out


def serve(setup: dict[str, Any], send: Any) -> None:
    """Build the session, then answer commands until ``quit`` or the end of stdin."""
    start = time.perf_counter()
    recipe = Recipe.from_dict(setup["recipe"])
    session: Optional[BaseSession] = None
    try:
        session, more = _make_session(recipe, setup)
        session.build((lambda: _await_go(session, send)) if setup.get("compares") else None)
        for text in session.warnings():
            send(event="note", text=text)
        send(
            event="ready",
            batches_per_epoch=session.batches_per_epoch,
            samples_per_step=session.samples_per_step,
            num_train=session.feed.num_train,
            **session.site(),
            seconds=time.perf_counter() - start,
        )
        commands = {**_commands(session), **more}
        busy = threading.Event()
        threading.Thread(target=_beat, args=(session, busy, send), daemon=True).start()
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "quit":
                break
            busy.set()
            if command["do"] not in commands:
                raise UsageError(f"{command['do']}: works on MXNet's engine only; use backend='mxnet'")
            answer = commands[command["do"]](command)
            busy.clear()
            send(event="done", **(answer or {}))
    except Exception as error:
        traceback.print_exc()
        send(
            event="error",
            type=type(error).__name__,
            message=_told(error, recipe.job),
            phase=session.phase if session is not None else "starting",
            expected=isinstance(error, GluontuneError),
            traceback=traceback.format_exc(),
        )
    finally:
        with contextlib.suppress(Exception):
            if session is not None:
                session.close()


def _make_session(recipe: Recipe, setup: dict[str, Any]) -> tuple[BaseSession, dict[str, Command]]:
    """The session of the recipe's engine, and the commands that only this engine knows."""
    given = [setup["rank"], setup["world"], setup.get("checkpoints")]
    given += [setup.get("rejoins", False), setup.get("local_rank")]
    if recipe.backend == "torch":
        from gluontune.engines.torch.session import TorchSession

        return TorchSession(recipe, *given), {}
    from gluontune.engines import probe
    from gluontune.engines.mxnet import individual
    from gluontune.engines.mxnet.session import Session

    session = Session(recipe, *given)
    return session, {
        "training": lambda c: {"found": probe.training_alone(session, c["sizes"], c["seconds"])},
        "gradients": lambda c: probe.gradients(session),
        "exchange": lambda c: {"found": probe.exchange_alone(session, c["kinds"], c["repeats"])},
        "individual": lambda c: {"found": individual.answer(session, c["what"], c["given"])},
    }


def _commands(session: BaseSession) -> dict[str, Command]:
    from gluontune.engines.probe import loading_alone

    return {
        "steps": lambda c: session.steps(c["count"]),
        "agree": lambda c: session.agree(),
        "validate": lambda c: session.validate(),
        "reset": lambda c: session.reset(c.get("epochs")),
        "checkpoint": lambda c: session.checkpoint(c["extra"], c["wait"]),
        "restore": lambda c: session.restore(**{k: v for k, v in c.items() if k != "do"}),
        "phases": lambda c: {"report": session.phases.report()},
        "attribution": lambda c: session.phases.enable(c["on"]),
        "loading": lambda c: {"found": loading_alone(session, c["seconds"])},
        "memory": lambda c: session.memory_mib(),
    }


def _await_go(session: BaseSession, send: Any) -> None:
    """Tell what must be alike on all ranks, and go on when it is: ranks that differ may break each other's engine."""
    send(event="opened", **session.common())
    if json.loads(sys.stdin.readline() or '{"do": "quit"}')["do"] != "go":
        os._exit(0)


def _beat(session: BaseSession, busy: threading.Event, send: Any) -> None:
    """Tell that this process lives, and which step it is at: who waits for another rank still does so."""
    while busy.wait():
        time.sleep(_BEAT_S)
        if busy.is_set():
            send(event="beat", step=session.steps_taken)


def _leave_signals_to_parent() -> None:
    """A cluster's SIGTERM goes to all processes: the one that drives this one decides when to stop."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
        # Loaders' workers are forked, and ended by SIGTERM.
        os.register_at_fork(after_in_child=functools.partial(signal.signal, number, signal.SIG_DFL))


def _told(error: BaseException, job: str | None) -> str:
    """The message without MXNet's C++ stack trace; of an error that nobody foresaw, with its kind and its place."""
    if isinstance(error, GluontuneError):
        return " ".join(str(error).split())[:1200]
    said = in_words(error)
    frames = list(traceback.walk_tb(error.__traceback__))
    for known in (job and str(Path(job).resolve()), str(Path(__file__).parents[1])):
        for frame, line in reversed(frames):
            if known and frame.f_code.co_filename.startswith(known):
                return f"{said} (at {frame.f_code.co_filename}:{line})"
    return said


def main() -> None:
    send = event_sender()
    setup = json.loads(sys.stdin.readline())
    die_with_parent(setup["parent"])
    if setup.get("checkpoints"):
        _leave_signals_to_parent()
    if setup.get("cpus"):
        runtime.bind_to_cpus(setup["cpus"])
    serve(setup, send)
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing is left to save, and MXNet's threads may be stuck: end at once, and any forked worker with us.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
