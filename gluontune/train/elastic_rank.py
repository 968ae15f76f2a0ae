"""One rank under torchrun: ``python -m gluontune.train.elastic_rank SPEC``, started by its agent.

Rank 0 drives the run, and listens where torchrun says that the group meets; all others call there and obey. What a
rank does is what every training process does: :func:`gluontune.train.child.serve`.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluontune import runtime
from gluontune.events import Progress
from gluontune.files import write_json
from gluontune.parallel.parent_death import die_with_parent
from gluontune.recipe import Recipe
from gluontune.result import RunResult
from gluontune.train.child import serve
from gluontune.train.elastic import read_spec
from gluontune.train.elastic_site import Meeting, MetSite, fingerprint
from gluontune.train.faults import FAULTS
from gluontune.train.resume import Checkpoints
from gluontune.train.torch_ranks import MEETING_VARIABLE

_CALL_S = 60.0  # in which rank 0 must listen
_WORD_S = 5.0  # after a failure, in which rank 0 says what has happened
_LAST_WORD_S = 4.0  # the same, where its torchrun has told it to end: that kills it after 5 s
_TELL_S = 5.0  # between two lines on how far the run is


@dataclass(frozen=True)
class _Place:
    """Where torchrun has put this process."""

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
    """Drive the run; 1 where it shall begin anew, or has failed for good. ``held`` gets the meeting."""
    recipe = Recipe.from_dict(spec["recipe"]).override(num_devices=place.world)
    told = Path(spec["result"])
    before = RunResult.load(told) if told.exists() else None
    plan = spec["checkpoints"]
    checkpoints = None
    if plan is not None:
        checkpoints = Checkpoints(**{**plan, "resume": plan["resume"] or place.attempt > 0 or before is not None})
    meeting = Meeting(place.address, place.port, place.world, fingerprint(spec["recipe"]))
    held.append(meeting)
    try:
        from gluontune.train.running import run

        result = run(
            recipe,
            time_limit=spec["time_limit"],
            checkpoints=checkpoints,
            on_event=functools.partial(_tell, [0.0]),
            on_log=lambda rank, line: print(f"[{rank}] {line}", file=sys.stderr, flush=True),
            site=functools.partial(MetSite, meeting=meeting, cpus=place.cpus),
        )
        if before is not None:
            why = (before.error or {}).get("message", "the machines were others")
            result.notes = [*[n for n in before.notes if n.startswith("restarted")], f"restarted after a fault: {why}",
                            *result.notes]  # fmt: skip
        write_json(told, result.to_dict())
        meeting.finish(result.to_dict())
        return int(result.error is not None and result.error["type"] in FAULTS)
    finally:
        meeting.close()


def _tell(last: list[float], event: Progress) -> None:
    if time.monotonic() - last[0] > _TELL_S:
        last[0] = time.monotonic()
        rate = event.get("samples_per_sec")
        shown = f", {rate:,.0f} samples/s" if rate else ""
        print(f"{event['stage']}: {event['detail']}{shown}", file=sys.stderr, flush=True)


class _Commands:
    """What rank 0 says, as ``serve`` reads it; the result of the run is kept aside."""

    def __init__(self, stream: Any, told: Path, writes: bool):
        self._stream, self._told, self._writes, self.ended = stream, told, writes, False

    def readline(self) -> str:
        while line := self._next():
            message = json.loads(line)
            if message["do"] != "result":
                return line
            self.ended = message["result"]["error"] is None or message["result"]["error"]["type"] not in FAULTS
            if self._writes:
                write_json(self._told, message["result"])
        return ""

    def _next(self) -> str:
        try:
            return str(self._stream.readline())
        except OSError:  # rank 0 is gone
            return ""

    def __iter__(self) -> Any:
        return iter(self.readline, "")


def _follow(spec: dict[str, Any], place: _Place) -> int:
    """Obey rank 0 until it has said how the run ended, or is gone."""
    runtime.bind_to_cpus(place.cpus or ())
    line = _call(place)
    stream = line.makefile("rw", encoding="utf-8", newline="\n")
    lock = threading.Lock()

    def send(**event: Any) -> None:
        with lock, contextlib.suppress(OSError):  # who does not hear is gone
            stream.write(json.dumps(event) + "\n")
            stream.flush()

    send(
        rank=place.rank,
        world=place.world,
        recipe=fingerprint(spec["recipe"]),
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    commands = _Commands(stream, Path(spec["result"]), place.local_rank == 0)
    first = commands.readline()
    if first:
        setup = json.loads(first)["setup"]
        os.environ[MEETING_VARIABLE] = setup.pop("meeting")
        sys.stdin = commands  # type: ignore[assignment]
        serve({**setup, "local_rank": place.local_rank}, send)
        if not commands.ended:
            line.settimeout(_WORD_S)
            commands.readline()
    return int(not commands.ended)


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
        # torchrun of another machine that lost its rank may end this one before it has said why: it gets a moment.
        until = time.monotonic() + _LAST_WORD_S
        while thread.is_alive() and any(m.someone_left() for m in held) and time.monotonic() < until:
            time.sleep(0.05)
        os._exit(code[0])

    signal.signal(signal.SIGTERM, stop)
    thread.start()  # signals are torchrun's, and end this process
    thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code[0])


if __name__ == "__main__":
    main()
