"""A run on several machines by ``torchrun``, which goes on with fewer or more of them.

:func:`run_elastic` is called on each machine and starts torchrun. Its agents meet at one address, start the ranks
(``python -m gluontune.training.elastic SPEC``), and restart all when one dies or a machine comes or goes; rank 0 then
resumes from the newest checkpoint, and the others follow it. Each call returns the same merged result.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.events import Progress
from gluontune.core.files import write_json
from gluontune.core.interpreter import python
from gluontune.core.processes import die_with_parent, supervise
from gluontune.core.reading import parse_json, read_text
from gluontune.parallel import environment
from gluontune.parallel.environment import Place
from gluontune.parallel.mpi import is_loopback, own_addresses
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.runtime.pytorch import torch
from gluontune.training.api import run
from gluontune.training.hooks import Checkpoints
from gluontune.training.meeting import Meeting, MetSite
from gluontune.training.rank_messages import FAULTS
from gluontune.training.started import follow, open_meeting

_LAST_CALL_S = 5  # for which the agents wait for further machines
_STOP_S = 5  # after which a rank that does not end is killed


@dataclass(frozen=True)
class Elastic:
    """Options of torchrun's rendezvous.

    Args:
        nodes: least and most machines. rendezvous: ``(host, port)`` of one of them, reachable by all.
        ranks: on this machine. restarts: at most, of all ranks. join_s: seconds to wait for the least machines.
        insecure_network: allow a rendezvous outside of loopback, because torchrun has no password.

    >>> Elastic.parse("1:4", "127.0.0.1:29400", ranks=2).nodes
    (1, 4)
    """

    nodes: tuple[int, int]
    rendezvous: tuple[str, int]
    ranks: int = 1
    restarts: int = 0
    join_s: float = 600.0
    insecure_network: bool = False

    @classmethod
    def parse(cls, nodes: str, rendezvous: str, **options: Any) -> Elastic:
        """Read ``--nnodes MIN:MAX`` (or a number) and ``--rendezvous HOST:PORT``.

        Raises:
            UsageError: another form, or a rendezvous on a network that is not allowed.
        """
        found = re.fullmatch(r"(\d+)(?::(\d+))?", nodes)
        least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= least <= most:
            raise UsageError(f"--nnodes {nodes!r}: give the least and the most machines, such as 1:4, or a number")
        place = re.fullmatch(r"([A-Za-z0-9_.-]+):(\d+)", rendezvous)
        if place is None or not 1 <= int(place[2]) <= 65535:
            raise UsageError(f"--rendezvous {rendezvous!r}: give the host and port where all meet: node1:29400")
        made = cls((least, most), (place[1], int(place[2])), **options)
        made.own_address()
        return made

    def own_address(self) -> str:
        """The address of this machine for the others.

        Raises:
            UsageError: an unknown host, or one on a network without ``--insecure-network``.
        """
        host, port = self.rendezvous
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
                way.connect((host, port))  # sends nothing
                own = way.getsockname()[0]
        except OSError as error:
            raise UsageError(f"--rendezvous {host}:{port}: {error.strerror or error}: is the name right?") from error
        if not is_loopback(own) and not self.insecure_network:
            raise UsageError(
                f"--rendezvous {host}:{port} is reached from {own}, and neither torchrun nor gloo has a password: on a "
                "network that is yours alone add --insecure-network (SECURITY.md)"
            )
        return own


def run_elastic(
    recipe: Recipe, elastic: Elastic, checkpoints: Checkpoints | None = None, time_limit: float = 600.0
) -> RunResult:
    """Take part in a run of several machines, each of which makes the same call.

    Args:
        recipe: with ``engine="ddp"``; its ``num_devices`` follows from the present machines.
        elastic: the rendezvous. checkpoints: in a folder that all machines share. time_limit: of ``run``.

    Returns:
        The merged result, the same on every machine. A failed run is a result, too.

    Raises:
        UsageError: restarts without checkpoints to go on from, or another engine.

    >>> run_elastic(Recipe(), Elastic.parse("1", "127.0.0.1:29400"))
    Traceback (most recent call last):
    gluontune.errors.UsageError: engine='local' does not meet by torchrun: use engine='ddp', backend='torch'
    """
    if recipe.engine != "ddp":
        raise UsageError(f"engine={recipe.engine!r} does not meet by torchrun: use engine='ddp', backend='torch'")
    if elastic.restarts and checkpoints is None:
        raise UsageError(f"--restart {elastic.restarts} needs checkpoints to go on from: give --checkpoint DIR")
    with tempfile.TemporaryDirectory(prefix="gluontune-elastic-") as folder:
        spec, path = Path(folder) / "run.json", Path(folder) / "result.json"
        plan = checkpoints and {**asdict(checkpoints), "folder": str(Path(checkpoints.folder).resolve())}
        content = {
            "recipe": recipe.to_dict(), "checkpoints": plan, "time_limit": time_limit, "result": str(path),
            "insecure_network": elastic.insecure_network,
        }  # fmt: skip
        spec.write_text(json.dumps(content), encoding="utf-8")
        code, stopped = supervise(_command(elastic, spec), _environment(recipe, elastic))
        if path.exists():
            result = RunResult.load(path)
        else:
            (host, port), least = elastic.rendezvous, elastic.nodes[0]
            message = (
                f"torchrun ended with code {code} and without a result of rank 0: see the messages above, here and "
                f"on the other machines (at least {least} must meet at {host}:{port} within {elastic.join_s:.0f} s)"
            )
            error = {"type": "GroupFailed", "message": message, "phase": "starting"}
            result = RunResult(recipe=recipe.to_dict(), machine=runtime.machine_facts(), status="failed", error=error)
    if stopped is not None:
        result.status, result.error = "interrupted", None
        result.notes.append(f"stopped by {stopped.name}")
    return result


def _command(elastic: Elastic, spec: Path) -> list[str]:
    (host, port), (least, most) = elastic.rendezvous, elastic.nodes
    own = elastic.own_address()
    meeting = f"join_timeout={elastic.join_s:.0f},last_call_timeout={_LAST_CALL_S}"
    options = {
        "nnodes": f"{least}:{most}", "nproc-per-node": elastic.ranks, "max-restarts": elastic.restarts,
        "rdzv-backend": "c10d", "rdzv-endpoint": f"{host}:{port}", "rdzv-id": "gluontune", "rdzv-conf": meeting,
        "local-addr": own, "monitor-interval": 0.5,
    }  # fmt: skip
    if tuple(int(n) for n in torch().__version__.split("+")[0].split(".")[:2]) >= (2, 9):
        options["shutdown-timeout"] = _STOP_S
    words = [f"--{name}={value}" for name, value in options.items()]
    rank = python("-m", "gluontune.training.elastic", str(spec))
    return [*python("-m", "torch.distributed.run"), *words, "--no-python", *rank]


def _environment(recipe: Recipe, elastic: Elastic) -> dict[str, str]:
    env = runtime.child_env(recipe.runtime, recipe.env, processes=elastic.ranks)
    own = elastic.own_address()
    interfaces = [name for name, address in own_addresses() if address == own]
    if interfaces:
        env = {**env, "GLOO_SOCKET_IFNAME": interfaces[0], "NCCL_SOCKET_IFNAME": interfaces[0]}
    # The store is not shared, because rank 0 listens at the address and port of each round.
    return {
        "OMP_NUM_THREADS": "1", **env, "PYTHONUNBUFFERED": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }  # fmt: skip


def read_spec(path: str) -> dict[str, Any]:
    """The specification of :func:`run_elastic` for the ranks of this machine."""
    try:
        content = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise GluontuneError(f"{path}: not a run of gluontune's: {error}") from error
    if not isinstance(content, dict):
        raise GluontuneError(f"{path}: not a run of gluontune's: no object")
    return content


_LAST_WORD_S = 4.0  # for the others' reasons after torchrun's SIGTERM, which is followed by a kill after 5 s
_PROGRESS_S = 5.0  # between two lines of progress


def _lead(spec: dict[str, Any], place: Place, held: list[Meeting]) -> int:
    """Drive the run. Returns 1 if torchrun shall restart it. ``held`` gets the meeting."""
    recipe = Recipe.from_dict(spec["recipe"]).override(num_devices=place.world)
    target = Path(spec["result"])
    before = RunResult.load(target) if target.exists() else None
    checkpoints = None
    if (plan := spec["checkpoints"]) is not None:
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
