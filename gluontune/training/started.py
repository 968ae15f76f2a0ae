"""A rank that something else started: ``srun``, ``mpirun``, ``torchrun``, … (:mod:`gluontune.parallel.environment`).

Rank 0 drives the run and has its result (:func:`lead`); the others call it and follow its commands
(:func:`follow`), each as ``python -m gluontune.training.started LINE [RESULT]``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import write_json
from gluontune.core.interpreter import python
from gluontune.core.processes import end_with_launcher
from gluontune.parallel.environment import LOOPBACK, Place, address_of
from gluontune.parallel.mpi import is_loopback, own_addresses
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.training.api import run
from gluontune.training.child import leave_signals_to_parent, serve
from gluontune.training.hooks import Checkpoints
from gluontune.training.meeting import Meeting, MetSite, keep_alive, no_password, read_line
from gluontune.training.rank_messages import RunFailed, fingerprint, hello_of, resources

_CALL_S = 120.0  # until rank 0 must listen
_ANSWER_S = 5.0
_WORD_S = 5.0  # after the end of the connection, for the current command
_PORTS = 8  # to choose from
_LATE_S = 10.0  # for which a failed rank 0 waits for the others
_FIRST_PORT, _LAST_PORT = 20_000, 32_000  # below those that Linux gives away


def recipe_of(recipe: Recipe, place: Place) -> Recipe:
    """The recipe with as many devices as there are ranks.

    >>> two = Place("srun", ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), rank=1, world=2, local_world=2)
    >>> recipe_of(Recipe(engine="kvstore"), two).num_devices
    2
    >>> try:
    ...     recipe_of(Recipe(), two)
    ... except UsageError as error:
    ...     print(str(error).split(", one")[0])
    engine='local' trains in one process, and this is rank 1 of 2
    """
    if recipe.engine in ("local", "async"):
        how = "trains in one process" if recipe.engine == "local" else "starts its learners itself"
        raise UsageError(
            f"engine={recipe.engine!r} {how}, and this is {place}: choose --engine kvstore, shared-memory, horovod or "
            "(with --backend torch) ddp, or start one process"
        )
    return recipe.override(num_devices=place.world)


def ports_of(place: Place) -> list[int]:
    """The ports at which ranks of this run look for rank 0.

    >>> ports_of(Place("torchrun", ("RANK", "WORLD_SIZE"), 0, 2, port=29400))
    [29400]
    """
    if place.port is not None:
        return [place.port]
    begin = zlib.crc32(place.job.encode())
    return [_FIRST_PORT + (begin + k * 1499) % (_LAST_PORT - _FIRST_PORT) for k in range(_PORTS)]


def open_meeting(recipe: Recipe, place: Place, insecure_network: bool) -> Meeting:
    alike, address = fingerprint(recipe.to_dict()), address_of(place.host)
    if not is_loopback(address) and not insecure_network:
        raise UsageError(no_password(address))
    own = [known for _, known in own_addresses()]
    if place.host != LOOPBACK and (is_loopback(address) or address not in own):
        address = ""  # of the host's own name, perhaps, as Debian writes it to /etc/hosts
    return Meeting(address, ports_of(place), place.world, alike, place.job)


def lead(
    recipe: Recipe, place: Place, checkpoints: Checkpoints | None = None, *, insecure_network: bool = False, **how: Any
) -> RunResult:
    """Drive the run as its rank 0, and return the result, also of a failed run.

    A job that its scheduler started again goes on from the newest checkpoint.

    Args:
        recipe: of :func:`recipe_of`. how: further arguments of :func:`gluontune.training.api.run`.
    """
    if checkpoints is not None and place.attempt:
        checkpoints = replace(checkpoints, resume=True)
    meeting = open_meeting(recipe, place, insecure_network)
    try:
        site = functools.partial(MetSite, meeting=meeting, place=place, insecure_network=insecure_network)
        result = run(recipe, checkpoints=checkpoints, site=site, **how)
        meeting.finish(result.to_dict(), exit_code(result))
        return result
    except GluontuneError:
        with contextlib.suppress(RunFailed):
            meeting.gather(_LATE_S)
        meeting.finish({}, 2)
        raise
    finally:
        meeting.close()


def exit_code(result: RunResult) -> int:
    """The exit code of a command with this result: 0, 1 (failed), or 130 (interrupted)."""
    return 0 if result.ok else 130 if result.status == "interrupted" else 1


def follow(recipe: Recipe, place: Place, result: str | None = None, insecure_network: bool = False) -> NoReturn:
    """Become the rank of this place, a new program in this process; ``result``: the file for the run's result."""
    address, alike = address_of(place.host), fingerprint(recipe.to_dict())
    if not is_loopback(address) and not insecure_network:
        raise UsageError(no_password(address))
    line = _call(address, place, alike)
    try:
        start = json.loads(read_line(line))
    except (OSError, ValueError) as error:
        raise GluontuneError(f"rank 0 at {place.host} ended before the run began: see its message") from error
    if "code" in start:  # it has failed, and says why
        raise SystemExit(start["code"])
    env, cpus = resources(recipe, place.cpus, start["share"])
    runtime.bind_to_cpus(cpus or ())
    os.set_inheritable(line.fileno(), True)
    command = python("-m", __name__, str(line.fileno()), *([result] if result else []))
    sys.stdout.flush()
    os.execve(command[0], command, {**env, **start["env"]})


def _call(address: str, place: Place, alike: str) -> socket.socket:
    """A connection to rank 0, which has accepted this rank."""
    until = time.monotonic() + _CALL_S
    why = "no answer"
    while time.monotonic() < until:
        for port in ports_of(place):
            try:
                line = socket.create_connection((address, port), timeout=_ANSWER_S)
            except OSError as error:
                why = error.strerror or str(error)
                continue
            try:
                hello = hello_of(place, alike, line.getsockname()[0])
                line.sendall(json.dumps(hello).encode() + b"\n")
                if read_line(line) == b"welcome\n":
                    keep_alive(line)
                    line.settimeout(None)
                    return line
            except (OSError, ValueError) as error:
                why = f"another program answers ({error})"
            line.close()
        time.sleep(0.1)
    raise GluontuneError(
        f"rank 0 does not answer at {place.host} for {_CALL_S:.0f} s ({why}): did it fail, or is a firewall between? "
        f"This is {place}"
    )


class Orders:
    """Rank 0's commands for :func:`serve`, and its last word, which is the run's result.

    The process ends when the connection does, even in the middle of a command.
    """

    def __init__(self, line: socket.socket, result: str | None):
        self.code, self._result = 1, result
        self._inbox: queue.Queue[str | None] = queue.Queue()
        self.commands: Iterator[str] = iter(self._inbox.get, None)
        self._stream = line.makefile("r", encoding="utf-8", newline="\n")
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while text := self._stream.readline():
                message = json.loads(text)
                if message.get("do") == "result":
                    self.code = message["code"]
                    if self._result is not None:
                        write_json(Path(self._result), message["result"])
                    self._stream.read()  # until rank 0 has ended
                    break
                self._inbox.put(text)
        self._inbox.put(None)
        time.sleep(_WORD_S)
        os._exit(self.code)


def sender(line: socket.socket) -> Callable[..., None]:
    lock = threading.Lock()

    def send(**event: Any) -> None:
        with lock, contextlib.suppress(OSError):  # rank 0 is gone, which the reader notices
            line.sendall(json.dumps(event).encode() + b"\n")

    return send


def main() -> None:
    os.dup2(2, 1)  # a document on stdout is rank 0's
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    send = sender(line)
    end_with_launcher(lambda text: send(event="error", type="ProcessDied", message=text, phase="training"))
    orders = Orders(line, sys.argv[2] if len(sys.argv) > 2 else None)
    commands = orders.commands
    if first := next(commands, ""):
        begin = json.loads(first)
        if begin["saves"]:
            leave_signals_to_parent()
        serve(begin["setup"], send, commands)
        sys.stderr.flush()
        for _ in commands:  # until the result
            pass
    os._exit(orders.code)


if __name__ == "__main__":
    main()
