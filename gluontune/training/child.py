"""The entry of a training process: ``python -m gluontune.training.child --events FD``.

It reads one JSON command per line from stdin, and answers each with one JSON event per line on the pipe FD
(stdout belongs to the user's code). The first line is the set-up: recipe, rank and world.
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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.processes import STOPS, die_with_parent, event_sender
from gluontune.engines import ENGINES
from gluontune.engines.base import Engine
from gluontune.job.user_file import in_words
from gluontune.recipe import Recipe
from gluontune.recipe.registry import resolve

_BEAT_S = 2.0  # between heartbeats during a command


def serve(setup: dict[str, Any], send: Any, lines: Iterable[str] | None = None) -> None:
    """Build the session of the recipe's engine, then execute commands (``lines``, or stdin's) until ``quit``."""
    start, lines = time.perf_counter(), iter(sys.stdin if lines is None else lines)
    recipe = Recipe.from_dict(setup["recipe"])
    session: Optional[Engine] = None
    busy = threading.Event()
    try:
        given = [setup["rank"], setup["world"], setup.get("checkpoints")]
        given += [setup.get("rejoins", False), setup.get("local_rank")]
        session = resolve(ENGINES[recipe.backend].session)(recipe, *given)
        session.build((lambda: _await_go(session, send, lines)) if setup.get("compares") else None)
        _tell(session, send)
        send(
            event="ready", batches_per_epoch=session.batches_per_epoch, samples_per_step=session.samples_per_step,
            num_train=session.feed.num_train, **session.site(), seconds=time.perf_counter() - start,
        )  # fmt: skip
        commands = session.commands()
        threading.Thread(target=_beat, args=(session, busy, send), daemon=True).start()
        for line in lines:
            command = json.loads(line)
            if command["do"] == "quit":
                break
            busy.set()
            if command["do"] not in commands:
                raise _unsupported(command["do"])
            answer = commands[command["do"]](command)
            busy.clear()
            _tell(session, send)
            send(event="done", **(answer or {}))
    except Exception as error:
        traceback.print_exc()
        send(
            event="error", type=type(error).__name__, message=_message(error, recipe.job),
            phase=session.phase if session is not None else "starting", expected=isinstance(error, GluontuneError),
            traceback=traceback.format_exc(),
        )  # fmt: skip
    finally:
        busy.clear()
        with contextlib.suppress(Exception):
            if session is not None:
                session.close()


def _tell(session: Engine, send: Any) -> None:
    while session.news:
        send(event="note", text=session.news.pop(0))


def _unsupported(command: str) -> UsageError:
    """The error for a command that this engine lacks; it names the engine that has it."""
    name, card = next((name, card) for name, card in ENGINES.items() if command in card.commands)
    return UsageError(f"{command}: works on {card.title}'s engine only; use backend={name!r}")


def _await_go(session: Engine, send: Any, lines: Iterator[str]) -> None:
    """Send the properties that all ranks must share, and wait for ``go``, because differing ranks may hang."""
    send(event="opened", **session.common())
    if json.loads(next(lines, '{"do": "quit"}'))["do"] != "go":
        os._exit(0)


def _beat(session: Engine, busy: threading.Event, send: Any) -> None:
    """Send heartbeats with the current step, also while waiting for another rank."""
    while busy.wait():
        time.sleep(_BEAT_S)
        if busy.is_set():
            send(event="beat", step=session.progress.steps)


def leave_signals_to_parent() -> None:
    """Ignore the signals that a cluster sends to all processes: the driving process decides when to stop."""
    for number in STOPS:
        signal.signal(number, lambda *_: None)
        # Loaders end their forked workers by SIGTERM.
        os.register_at_fork(after_in_child=functools.partial(signal.signal, number, signal.SIG_DFL))


def _message(error: BaseException, job: str | None) -> str:
    """The message without MXNet's C++ stack trace; of an unexpected error, with its type and place."""
    if isinstance(error, GluontuneError):
        return " ".join(str(error).split())[:1200]
    text = in_words(error)
    frames = list(traceback.walk_tb(error.__traceback__))
    for known in (job and str(Path(job).resolve()), str(Path(__file__).parents[1])):
        for frame, line in reversed(frames):
            if known and frame.f_code.co_filename.startswith(known):
                return f"{text} (at {frame.f_code.co_filename}:{line})"
    return text


def main() -> None:
    send = event_sender()
    setup = json.loads(sys.stdin.readline())
    die_with_parent(setup["parent"])
    if setup.get("checkpoints"):
        leave_signals_to_parent()
    if setup.get("cpus"):
        runtime.bind_to_cpus(setup["cpus"])
    serve(setup, send)
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing is left to save, and MXNet's threads may be stuck: end at once, with all forked workers.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
