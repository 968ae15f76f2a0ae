"""Trials of a launch in which something breaks.

``python tests/trials/launch_faults.py --trials 10`` launches two ranks, lets them train, then kills a rank, the
parameter server or the launcher, or stops a rank (SIGSTOP, as a hung machine would look). With ``launch --hosts`` by
each mpirun that is installed (two network namespaces as two hosts; needs root), it kills a rank, mpirun's daemon on the
other host, mpirun or the launcher, or cuts the host off. It measures how long all others take to end, whether the error
names the culprit, and whether a process is left over. ``--restarts``: the same with ``launch --restart 3``, whose
accuracies must then be those of a run left alone; none where the launcher itself is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional

import psutil
import typer
from two_hosts import TwoHosts, two_hosts

from gluontune.core.errors import GluontuneError
from gluontune.parallel.horovod import installed
from gluontune.parallel.kvstore import free_port

__all__ = ["FAULTS", "fault_trial", "restart_trial"]

# name: (engine, victim, signal, what the error must say)
FAULTS: dict[str, tuple[str, str, int, str]] = {
    "shared-memory rank killed": ("shared-memory", "rank", signal.SIGKILL, "rank 1"),
    "shared-memory rank hung": ("shared-memory", "rank", signal.SIGSTOP, "rank 1"),
    "ddp rank killed": ("ddp", "rank", signal.SIGKILL, "rank 1"),
    "ddp rank hung": ("ddp", "rank", signal.SIGSTOP, "rank 1"),
    "ddp of torchrun: rank killed": ("torchrun", "rank", signal.SIGKILL, "rank 1"),
    "ddp of torchrun: rank hung": ("torchrun", "rank", signal.SIGSTOP, "rank 1"),
    "ddp of torchrun: rank 0 killed": ("torchrun", "leader", signal.SIGKILL, "rank 0"),
    "kvstore rank killed": ("kvstore", "rank", signal.SIGKILL, "rank 1"),
    "kvstore rank hung": ("kvstore", "rank", signal.SIGSTOP, "rank 1"),
    "kvstore server killed": ("kvstore", "server", signal.SIGKILL, "server 0"),
    "horovod rank killed": ("horovod", "rank", signal.SIGKILL, "rank 1"),
    "horovod rank hung": ("horovod", "rank", signal.SIGSTOP, "rank 1"),
    # nobody is left who could name it
    "shared-memory launcher killed": ("shared-memory", "launcher", signal.SIGKILL, ""),
    "ddp launcher killed": ("ddp", "launcher", signal.SIGKILL, ""),
    "kvstore launcher killed": ("kvstore", "launcher", signal.SIGKILL, ""),
}
#: mpirun's own words on a rank are those with its host or process.
_RANK_1 = r"rank 1 on host host-b|rank 1 with PID \d+ on node host-b|host host-b: ended with"
_ON_HOSTS: dict[str, tuple[str, int, str]] = {
    "rank killed": ("rank", signal.SIGKILL, _RANK_1),
    "rank hung": ("rank", signal.SIGSTOP, _RANK_1),
    "rank 0 killed": ("leader", signal.SIGKILL, r"rank 0 with PID \d+ on node host-a|rank 0 on host host-a was killed"),
    "daemon killed": ("daemon", signal.SIGKILL, rf"{_RANK_1}|on node host-b|proxy .*host-b"),
    "mpirun killed": ("mpirun", signal.SIGKILL, ""),
    "launcher killed": ("launcher", signal.SIGKILL, ""),
    "host cut off": ("host", 0, rf"{_RANK_1}|on node host-b"),
}
for _kind in ("openmpi", "mpich"):
    if shutil.which(f"mpirun.{_kind}"):
        for _engine in ("kvstore", "ddp", "horovod"):
            for _name, _fault in _ON_HOSTS.items():
                if (_kind, _name) == ("mpich", "host cut off"):  # only ssh tells it, and no ssh is between these hosts
                    continue
                FAULTS[f"{_engine} on two hosts by {_kind}: {_name}"] = (f"{_engine} {_kind}", *_fault)

_LIMIT_S = 60.0
_MENDED_AFTER_S = 14.0  # a cable that was pulled is plugged in again: after both ends have given up


_LIVE: list[_Launch] = []


class _Launch:
    """``gluontune launch`` of two ranks in a process of its own, and what can be done to it.

    Of torchrun there are two such processes with a rank each: two machines, which meet at 127.0.0.1.
    """

    def __init__(self, engine: str, folder: str, flags: str, options: str = "", hosts: TwoHosts | None = None):
        self.folder, self.hosts = Path(folder), hosts
        self.log, machines = self.folder / "said.txt", 1
        where, path, under = ["-n", "2"], os.environ["PATH"], []
        engine, _, kind = engine.partition(" ")
        if hosts is not None:
            where = ["--hosts", ",".join(hosts.names), "--rsh", hosts.transport(self.folder), "--insecure-network"]
            under, path = hosts.inside(0), f"{_only(kind, self.folder)}:{path}"
        if engine == "torchrun":
            engine, machines = "ddp", 2
            where = ["-n", "1", "--nnodes", "2", "--rendezvous", f"127.0.0.1:{free_port('127.0.0.1')}"]
        train = (
            "train --net small_cnn --loader resident --devices cpu --batch-size-per-device 32 "
            f"--checkpoint {folder} --checkpoint-every 10steps --keep 1 {flags}"
        )
        train += " --backend torch" if engine == "ddp" else ""
        start = f"launch --engine {engine} {options}"
        with open(self.log, "ab") as said:
            self.commands = [
                subprocess.Popen(
                    [*under, sys.executable, "-m", "gluontune", *start.split(), *where, "--", *train.split()],
                    env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": path},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL if machine else subprocess.PIPE,
                    stderr=said,
                )
                for machine in range(machines)
            ]
        self.command = self.commands[0]
        self.family: list[psutil.Process] = []
        _LIVE.append(self)

    def said(self) -> str:
        return " ".join(self.log.read_text(errors="replace").split())

    def strike(self, victim: str, number: int, delay_s: float) -> None:
        """Wait until it trains, and break something."""
        while not list(self.folder.glob("*.ckpt")):
            if self.command.poll() is not None:
                raise GluontuneError(f"the launch failed by itself: {self.said()[-500:]}")
            time.sleep(0.05)
        time.sleep(delay_s)
        self.family = [c for p in self.commands for c in psutil.Process(p.pid).children(recursive=True)]
        if self.hosts is not None:  # a daemon of mpirun's has left the family
            known = {process.pid for process in self.family} | {p.pid for p in self.commands}
            self.family += [psutil.Process(pid) for pid in self.hosts.pids() if pid not in known]
        if victim == "launcher":
            self.command.send_signal(number)
        elif victim == "host":
            assert self.hosts is not None
            self.hosts.cut()
        else:
            _victim(self.family, victim).send_signal(number)

    def wait(self, limit_s: float) -> None:
        """Wait for the end of the command and of all that it had started."""
        until = time.monotonic() + limit_s
        for command in self.commands:
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(max(0.0, until - time.monotonic()))
        while self.left() and time.monotonic() < until:
            time.sleep(0.05)

    def left(self) -> int:
        """Processes that are still there."""
        return sum(_alive(p) for p in self.family) + sum(p.poll() is None for p in self.commands)

    def end(self) -> None:
        for command in self.commands:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.family += psutil.Process(command.pid).children(recursive=True)
        for process in self.family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for command in self.commands:
            command.kill()
            command.wait()
        _LIVE.remove(self)
        assert self.command.stdout is not None
        self.command.stdout.close()


@contextlib.contextmanager
def _launched(engine: str, victim: str, flags: str, options: str = "") -> Iterator[_Launch]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gluontune-faults-"))
        hosts = stack.enter_context(two_hosts()) if " " in engine else None
        launch = _Launch(engine, folder, flags, options, hosts)
        stack.callback(launch.end)
        yield launch


def fault_trial(engine: str, victim: str, number: int, words: str, delay_s: float = 0.5) -> dict[str, Any]:
    """Launch two ranks, break something once they train, and watch the end.

    Args:
        victim: ``rank`` (rank 1), ``leader`` (rank 0), ``server``, ``daemon`` (of mpirun), ``mpirun``, ``launcher``, or
            ``host`` (that of rank 1, whose cable is pulled).
        number: the signal. words: what the output must match. delay_s: of training before.

    Returns:
        ``{"seconds", "named", "orphans", "error"}``: from the fault to the end of the command and of all that it
        had started, on both hosts; whether its error holds ``words``; processes that were left; the error.
    """
    with _launched(engine, victim, "--epochs 500 --train-samples 2048 --val-samples 64") as launch:
        launch.strike(victim, number, delay_s)
        started = time.monotonic()
        launch.wait(_LIMIT_S)
        seconds, said = time.monotonic() - started, launch.said()
        named = re.search(words, said) is not None  # of several machines, any may have the last word
        return {"seconds": seconds, "named": named, "orphans": launch.left(), "error": said[-500:]}


_SHORT = "--epochs 10 --train-samples 2048 --val-samples 256 --json"


def restart_trial(engine: str, victim: str, number: int, words: str, delay_s: float = 0.5) -> dict[str, Any]:
    """The same with ``--restart 3`` and a run that ends.

    Returns:
        ``{"accuracies", "notes", "error"}`` of its result, by epoch.
    """
    with _launched(engine, victim, _SHORT, "--restart 3") as launch:
        launch.strike(victim, number, delay_s)
        if launch.hosts is not None:
            threading.Timer(_MENDED_AFTER_S, launch.hosts.mend).start()
        return _outcome(launch)


def undisturbed(engine: str) -> dict[str, Any]:
    """What :func:`restart_trial` gives where nothing breaks."""
    with _launched(engine, "", _SHORT) as launch:
        return _outcome(launch)


def _outcome(launch: _Launch) -> dict[str, Any]:
    out, _ = launch.command.communicate(timeout=5 * _LIMIT_S)
    found = json.loads(out)
    return {"accuracies": found["val_accuracy"], "notes": found["notes"], "error": found["error"]}


def _only(kind: str, folder: Path) -> Path:
    """A folder whose ``mpirun`` is that of one kind."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    (place / "mpirun").write_text(f'#!/bin/sh\nexec {shutil.which(f"mpirun.{kind}")} "$@"\n')
    (place / "mpirun").chmod(0o755)
    return place


def _victim(family: Iterable[psutil.Process], kind: str) -> psutil.Process:
    """Rank 1, or the parameter server."""
    if kind == "server":
        servers = [p for p in family if p.environ().get("DMLC_ROLE") == "server"]
        return servers[0]
    if kind in ("daemon", "mpirun"):
        names = ("orted", "hydra_pmi_proxy") if kind == "daemon" else ("mpirun.openmpi", "mpirun.mpich")
        return [p for p in family if "".join(p.cmdline()[:1]).rpartition("/")[2] in names][-1]
    own = ("gluontune.training.elastic", "gluontune.training.started")
    led = [p for p in family if any(part in own for part in p.cmdline())]
    if led:
        if kind == "leader" and all("RANK" not in p.environ() for p in led):  # mpirun's has a child that trains
            return psutil.Process(next(p for p in family if "gluontune.training.child" in p.cmdline()).ppid())
        number = "0" if kind == "leader" else "1"
        ranked = [p for p in led if p.environ().get("RANK") == number]
        return (ranked or [p for p in led if "RANK" not in p.environ()])[0]  # torchrun's agents have none
    ranks = [p for p in family if any("gluontune.training.child" in part for part in p.cmdline())]
    return sorted(ranks, key=lambda p: (p.create_time(), p.pid))[1]


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _stop(*_: object) -> None:
    """Leave nothing behind when the trials themselves are ended."""
    for launch in list(_LIVE):
        launch.end()
    os._exit(1)


def _main(
    trials: int = typer.Option(10, "--trials", min=1, help="Of each fault."),
    only: Optional[str] = typer.Option(None, "--only", help="Faults whose name matches this."),
    at_once: int = typer.Option(1, "--at-once", min=1, help="Trials that run side by side."),
    restarts: bool = typer.Option(False, "--restarts", help="Restart after each, and compare the accuracies."),
) -> None:
    """Break launched runs and time their end."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    rows = []
    for name, fault in FAULTS.items():
        absent = fault[0].startswith("horovod") and installed() is None
        if absent or (only and not re.search(only, name)) or (restarts and fault[1] == "launcher"):
            continue
        work = restart_trial if restarts else fault_trial
        with ThreadPoolExecutor(at_once) as pool:
            going = [pool.submit(work, *fault, delay_s=0.1 + 0.2 * k) for k in range(trials)]
            seen = []
            for each in going:
                seen.append(each.result())
                print(json.dumps({"fault": name, **seen[-1]}), file=sys.stderr, flush=True)
        rows.append({"fault": name, "of": trials, **(_resumed(fault[0], seen) if restarts else _ended(seen))})
        print(json.dumps(rows[-1]), file=sys.stderr)
    print(json.dumps({"rows": rows}, indent=2))
    raise typer.Exit(0 if all(row["good"] == row["of"] for row in rows) else 1)


def _ended(seen: list[dict[str, Any]]) -> dict[str, Any]:
    good = [s["seconds"] <= 30 and s["named"] and not s["orphans"] for s in seen]
    errors = [s["error"] for s, fine in zip(seen, good) if not fine]
    return {"good": sum(good), "longest_s": max(s["seconds"] for s in seen), "errors": errors}


def _resumed(engine: str, seen: list[dict[str, Any]]) -> dict[str, Any]:
    want = undisturbed(engine)["accuracies"]
    good = [s["accuracies"] == want and any("restarted" in note for note in s["notes"]) for s in seen]
    return {"good": sum(good), "accuracies": want, "others": [s for s, fine in zip(seen, good) if not fine]}


if __name__ == "__main__":
    typer.run(_main)
