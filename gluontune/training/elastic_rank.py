"""One rank under torchrun: ``python -m gluontune.training.elastic_rank SPEC``, started by its agent.

Rank 0 drives the run, the others follow it: :mod:`gluontune.training.started`.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gluontune.core.events import Progress
from gluontune.core.files import write_json
from gluontune.core.processes import die_with_parent
from gluontune.parallel import environment
from gluontune.parallel.environment import Place
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.training.api import run
from gluontune.training.checkpoints import Checkpoints
from gluontune.training.elastic import read_spec
from gluontune.training.meeting import Meeting, MetSite
from gluontune.training.rank_messages import FAULTS
from gluontune.training.started import follow, open_meeting

_LAST_WORD_S = 4.0  # for the others' reasons after torchrun's SIGTERM, which is followed by a kill after 5 s
_PROGRESS_S = 5.0  # between two lines of progress


def _lead(spec: dict[str, Any], place: Place, held: list[Meeting]) -> int:
    """Drive the run. Returns 1 if torchrun shall restart it. ``held`` gets the meeting."""
    recipe = Recipe.from_dict(spec["recipe"]).override(num_devices=place.world)
    target = Path(spec["result"])
    before = RunResult.load(target) if target.exists() else None
    plan = spec["checkpoints"]
    checkpoints = None
    if plan is not None:
        checkpoints = Checkpoints(**{**plan, "resume": plan["resume"] or place.attempt > 0 or before is not None})
    meeting = open_meeting(recipe, place, spec["insecure_network"])
    held.append(meeting)
    try:
        result = run(
            recipe,
            time_limit=spec["time_limit"],
            checkpoints=checkpoints,
            on_event=functools.partial(_print_progress, [0.0]),
            on_log=lambda rank, line: print(f"[{rank}] {line}", file=sys.stderr, flush=True),
            site=functools.partial(MetSite, meeting=meeting, place=place, insecure_network=spec["insecure_network"]),
        )
        if before is not None:
            why = (before.error or {}).get("message", "the machines were others")
            result.notes = [*[n for n in before.notes if n.startswith("restarted")], f"restarted after a fault: {why}",
                            *result.notes]  # fmt: skip
        write_json(target, result.to_dict())
        code = int(result.error is not None and result.error["type"] in FAULTS)
        meeting.finish(result.to_dict(), code)
        return code
    finally:
        meeting.close()


def _print_progress(last: list[float], event: Progress) -> None:
    if time.monotonic() - last[0] > _PROGRESS_S:
        last[0] = time.monotonic()
        rate = event.get("samples_per_sec")
        shown = f", {rate:,.0f} samples/s" if rate else ""
        print(f"{event['stage']}: {event['detail']}{shown}", file=sys.stderr, flush=True)


def main() -> None:
    die_with_parent(os.getppid())
    spec, place = read_spec(sys.argv[1]), environment.here(alone=True)
    assert place is not None  # torchrun's
    if place.rank > 0:
        follow(
            Recipe.from_dict(spec["recipe"]), place, spec["result"] if place.local_rank == 0 else None,
            spec["insecure_network"],
        )  # fmt: skip
    code: list[int] = [1]
    held: list[Meeting] = []

    def work() -> None:
        code[0] = _lead(spec, place, held)

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
