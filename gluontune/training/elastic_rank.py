"""One rank under torchrun: ``python -m gluontune.training.elastic_rank SPEC``, started by its agent.

Rank 0 drives the run, and listens at torchrun's address of the group; the others connect and follow its commands, as
every training process does: :func:`gluontune.training.child.serve`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluontune import runtime
from gluontune.core.events import Progress
from gluontune.core.files import write_json
from gluontune.core.processes import die_with_parent
from gluontune.engines import ENGINES
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.training.api import run
from gluontune.training.checkpoints import Checkpoints
from gluontune.training.child import serve
from gluontune.training.elastic import read_spec
from gluontune.training.elastic_site import Meeting, MetSite, fingerprint
from gluontune.training.rank_messages import FAULTS

_CALL_S = 60.0  # until rank 0 must listen
_WORD_S = 5.0  # after a failure, for rank 0's result
_LAST_WORD_S = 4.0  # the same after torchrun's SIGTERM, which is followed by a kill after 5 s
_PROGRESS_S = 5.0  # between two lines of progress


@dataclass(frozen=True)
class _Place:
    """This process's place in the group, from torchrun's variables."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    port: int
    attempt: int
    attempts: int

    @classmethod
    def here(cls) -> _Place:
        number = lambda name: int(os.environ[name])  # noqa: E731
        return cls(
            number("RANK"), number("WORLD_SIZE"), number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE"),
            os.environ["MASTER_ADDR"], number("MASTER_PORT"), number("TORCHELASTIC_RESTART_COUNT"),
            number("TORCHELASTIC_MAX_RESTARTS"),
        )  # fmt: skip

    @property
    def cpus(self) -> Any:
        return runtime.cpus_for_rank(self.local_rank, self.local_world) if self.local_world > 1 else None


def _lead(spec: dict[str, Any], place: _Place, held: list[Meeting]) -> int:
    """Drive the run. Returns 1 if torchrun shall restart it. ``held`` gets the meeting."""
    recipe = Recipe.from_dict(spec["recipe"]).override(num_devices=place.world)
    target = Path(spec["result"])
    before = RunResult.load(target) if target.exists() else None
    plan = spec["checkpoints"]
    checkpoints = None
    if plan is not None:
        checkpoints = Checkpoints(**{**plan, "resume": plan["resume"] or place.attempt > 0 or before is not None})
    meeting = Meeting(place.address, place.port, place.world, fingerprint(spec["recipe"]))
    held.append(meeting)
    try:
        result = run(
            recipe,
            time_limit=spec["time_limit"],
            checkpoints=checkpoints,
            on_event=functools.partial(_print_progress, [0.0]),
            on_log=lambda rank, line: print(f"[{rank}] {line}", file=sys.stderr, flush=True),
            site=functools.partial(MetSite, meeting=meeting, cpus=place.cpus),
        )
        if before is not None:
            why = (before.error or {}).get("message", "the machines were others")
            result.notes = [*[n for n in before.notes if n.startswith("restarted")], f"restarted after a fault: {why}",
                            *result.notes]  # fmt: skip
        write_json(target, result.to_dict())
        meeting.finish(result.to_dict())
        return int(result.error is not None and result.error["type"] in FAULTS)
    finally:
        meeting.close()


def _print_progress(last: list[float], event: Progress) -> None:
    if time.monotonic() - last[0] > _PROGRESS_S:
        last[0] = time.monotonic()
        rate = event.get("samples_per_sec")
        shown = f", {rate:,.0f} samples/s" if rate else ""
        print(f"{event['stage']}: {event['detail']}{shown}", file=sys.stderr, flush=True)


def _commands(stream: Any, target: Path | None, ended: list[bool]) -> Iterator[str]:
    """Rank 0's commands, for ``serve``; the run's result goes to ``target``, whether it is final to ``ended``."""
    with contextlib.suppress(OSError):  # rank 0 is gone
        while line := stream.readline():
            message = json.loads(line)
            if message["do"] != "result":
                yield str(line)
                continue
            error = message["result"]["error"]
            ended[:] = [error is None or error["type"] not in FAULTS]
            if target is not None:
                write_json(target, message["result"])


def _follow(spec: dict[str, Any], place: _Place) -> int:
    """Follow rank 0's commands until the run's result, or the end of the connection."""
    runtime.bind_to_cpus(place.cpus or ())
    line = _call(place)
    stream = line.makefile("rw", encoding="utf-8", newline="\n")
    lock = threading.Lock()

    def send(**event: Any) -> None:
        with lock, contextlib.suppress(OSError):  # rank 0 is gone
            stream.write(json.dumps(event) + "\n")
            stream.flush()

    facts = {"recipe": fingerprint(spec["recipe"]), "host": socket.gethostname(), "pid": os.getpid()}
    send(rank=place.rank, world=place.world, **facts)
    ended: list[bool] = []
    commands = _commands(stream, Path(spec["result"]) if place.local_rank == 0 else None, ended)
    if first := next(commands, ""):
        setup = json.loads(first)["setup"]
        os.environ[ENGINES[spec["recipe"]["backend"]].meeting] = setup.pop("meeting")
        serve({**setup, "local_rank": place.local_rank}, send, commands)
        if not any(ended):
            line.settimeout(_WORD_S)
            next(commands, "")
    return int(not any(ended))


def _call(place: _Place) -> socket.socket:
    until = time.monotonic() + _CALL_S
    while True:
        try:
            line = socket.create_connection((place.address, place.port), timeout=_CALL_S)
            line.settimeout(None)
            return line
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def main() -> None:
    die_with_parent(os.getppid())
    spec, place = read_spec(sys.argv[1]), _Place.here()
    code: list[int] = [1]
    held: list[Meeting] = []

    def work() -> None:
        code[0] = _lead(spec, place, held) if place.rank == 0 else _follow(spec, place)

    thread = threading.Thread(target=work, daemon=True)

    def stop(number: int, frame: Any) -> None:
        # another machine's torchrun may end this rank before it has sent the reason: it gets a moment
        until = time.monotonic() + _LAST_WORD_S
        while thread.is_alive() and any(m.someone_left() for m in held) and time.monotonic() < until:
            time.sleep(0.05)
        os._exit(code[0])

    signal.signal(signal.SIGTERM, stop)
    thread.start()  # the main thread handles torchrun's signals
    thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code[0])


if __name__ == "__main__":
    main()
