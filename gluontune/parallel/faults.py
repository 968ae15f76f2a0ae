"""Trials of a launch in which something breaks.

``python -m gluontune.parallel.faults --trials 10`` launches two ranks on this machine, lets them train, then
kills a rank, kills the parameter server, or stops a rank (SIGSTOP, as a hung machine would look), and measures
how long the others take to end, whether the error names the culprit, and whether a process is left over.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

import psutil
import typer

from gluontune.errors import GluontuneError
from gluontune.parallel.horovod import installed

__all__ = ["FAULTS", "fault_trial"]

# name: (engine, victim, signal, what the error must say)
FAULTS: dict[str, tuple[str, str, int, str]] = {
    "kvstore rank killed": ("kvstore", "rank", signal.SIGKILL, "rank 1"),
    "kvstore rank hung": ("kvstore", "rank", signal.SIGSTOP, "rank 1"),
    "kvstore server killed": ("kvstore", "server", signal.SIGKILL, "server 0"),
    "horovod rank killed": ("horovod", "rank", signal.SIGKILL, "rank 1"),
    "horovod rank hung": ("horovod", "rank", signal.SIGSTOP, "rank 1"),
}

_LIMIT_S = 120.0


def fault_trial(engine: str, victim: str, number: int, words: str, delay_s: float = 0.5) -> dict[str, Any]:
    """Launch two ranks, send signal ``number`` to rank 1 or to the server once they train, and watch the end.

    Returns:
        ``{"seconds", "named", "orphans", "error"}``: from the signal to the end of the command; whether its
        error holds ``words``; processes that were left over; the error.
    """
    with tempfile.TemporaryDirectory(prefix="gluontune-faults-") as folder:
        flags = (
            f"launch -n 2 --engine {engine} -- train --net small_cnn --loader resident --devices cpu --epochs 500 "
            f"--train-samples 2048 --val-samples 64 --batch-size-per-device 32 --checkpoint {folder} "
            "--checkpoint-every 10steps --keep 1"
        ).split()
        log = Path(folder) / "said.txt"
        with open(log, "wb") as said:
            command = subprocess.Popen(
                [sys.executable, "-m", "gluontune", *flags],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        family: list[psutil.Process] = []
        try:
            while not list(Path(folder).glob("*.ckpt")):
                if command.poll() is not None:
                    raise GluontuneError(f"the launch failed by itself: {log.read_text()[-500:]}")
                time.sleep(0.05)
            time.sleep(delay_s)
            family = psutil.Process(command.pid).children(recursive=True)
            started = time.monotonic()
            _victim(family, victim).send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(_LIMIT_S)
            seconds = time.monotonic() - started
            time.sleep(0.5)  # for the kernel to clear away what was killed
            error = " ".join(log.read_text(errors="replace").split())[-400:]
            left = [p for p in family if _alive(p)] + ([command] if command.poll() is None else [])
            return {"seconds": seconds, "named": words in error, "orphans": len(left), "error": error}
        finally:
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            command.kill()
            command.wait()


def _victim(family: Iterable[psutil.Process], kind: str) -> psutil.Process:
    """Rank 1, or the parameter server."""
    if kind == "server":
        servers = [p for p in family if p.environ().get("DMLC_ROLE") == "server"]
        return servers[0]
    ranks = [p for p in family if any("gluontune.train.child" in part for part in p.cmdline())]
    return sorted(ranks, key=lambda p: (p.create_time(), p.pid))[1]


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _main(
    trials: int = typer.Option(10, "--trials", min=1, help="Of each fault."),
    only: Optional[str] = typer.Option(None, "--only", help="Faults with this in their name."),
) -> None:
    """Break launched runs and time their end."""
    rows = []
    for name, fault in FAULTS.items():
        if (only and only not in name) or (fault[0] == "horovod" and installed() is None):
            continue
        seen = [fault_trial(*fault, delay_s=0.1 + 0.2 * k) for k in range(trials)]
        good = [s["seconds"] <= 30 and s["named"] and not s["orphans"] for s in seen]
        longest = max(s["seconds"] for s in seen)
        errors = [s["error"] for s, fine in zip(seen, good) if not fine]
        rows.append({"fault": name, "good": sum(good), "of": trials, "longest_s": longest, "errors": errors})
        print(json.dumps(rows[-1]), file=sys.stderr)
    print(json.dumps({"rows": rows}, indent=2))
    raise typer.Exit(0 if all(row["good"] == row["of"] for row in rows) else 1)


if __name__ == "__main__":
    typer.run(_main)
