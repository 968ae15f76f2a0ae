"""Ranks of a script of one's own: it is started once for each, and they sum gradients in shared memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from gluontune import runtime
from gluontune.errors import UsageError
from gluontune.parallel.parent_death import die_with_parent
from gluontune.parallel.shared import PATH_VARIABLE, create
from gluontune.parallel.summing import SharedExchange

__all__ = ["Ranks", "start_ranks"]

_VARIABLE = "GLUONTUNE_RANK"
_TICK_S = 0.1


@dataclass(frozen=True)
class Ranks:
    """This process among those of a script.

    Args:
        rank: 0 … ``world`` - 1. world: processes.
        exchange: its ``sum_gradients`` is what ``gt.optim.setup(…, workers=world, exchange=…)`` takes.
    """

    rank: int
    world: int
    exchange: SharedExchange


def start_ranks(count: int) -> Ranks:
    """Run this script as ``count`` processes on this machine.

    Write it at the top of the script: in the process that you started it starts the script ``count`` times with the
    same arguments, waits for all, and ends with their status; in each of those it returns. If one fails, or you
    press Ctrl-C, all end. Each has CPUs of its own; give it a share of the threads (``OMP_NUM_THREADS``) as well.

    Args:
        count: processes, 1 or more; 1 starts none.

    Returns:
        The rank, the number of ranks, and what sums their gradients (float32, one context each).

    Raises:
        UsageError: fewer than 1; not called from a script, so that there is nothing to start.
        GluontuneError: the system has no shared memory (it is Linux's).

    >>> ranks = start_ranks(1)
    >>> ranks.rank, ranks.world
    (0, 1)
    """
    if count < 1:
        raise UsageError(f"start_ranks({count!r}): give a whole number of at least 1")
    told = os.environ.get(_VARIABLE)
    if told is not None:
        rank, world, parent = map(int, told.split("/"))
        die_with_parent(parent)
        runtime.bind_to_cpus(runtime.cpus_for_rank(rank, world))
        return Ranks(rank, world, SharedExchange(os.environ[PATH_VARIABLE], rank, world))
    if count > 1:
        script = getattr(sys.modules["__main__"], "__file__", None)
        if script is None or not sys.argv or not os.path.isfile(sys.argv[0]):
            raise UsageError(f"start_ranks({count}) starts a script more than once, and this is none: python SCRIPT.py")
    handle, path = create()
    if count > 1:
        raise SystemExit(_run(count, path))
    exchange = SharedExchange(path, 0, 1)
    os.close(handle)  # it is mapped
    return Ranks(0, 1, exchange)


def _run(count: int, path: str) -> int:
    """Start all, wait for all; the status of the first that failed, or 0."""
    running: list[Any] = []
    try:
        for rank in range(count):
            env = {**os.environ, PATH_VARIABLE: path, _VARIABLE: f"{rank}/{count}/{os.getpid()}"}
            running.append(subprocess.Popen([sys.executable, *sys.argv], env=env))
        while running:
            for process in list(running):
                code = process.poll()
                if code is None:
                    continue
                running.remove(process)
                if code:
                    return code if code > 0 else 128 - code
            time.sleep(_TICK_S)
        return 0
    except KeyboardInterrupt:
        return 130
    finally:
        for process in running:
            with contextlib.suppress(OSError):
                process.kill()
        for process in running:
            process.wait()
