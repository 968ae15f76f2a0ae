"""Watching and ending the worker processes of a ``multiprocessing.Pool``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any

__all__ = ["dead_worker", "end_pool"]


def dead_worker(workers: Sequence[BaseProcess]) -> BaseProcess | None:
    """The first of ``workers`` that has ended, or None."""
    return next((w for w in workers if w.exitcode is not None), None)


def end_pool(pool: Any, workers: Sequence[BaseProcess]) -> None:
    """End a pool without waiting for a lock that a dead worker may have held.

    ``Pool.terminate`` takes the lock of the task queue; a worker that was killed while it waited for a
    task holds that lock for ever. So the processes are ended first, and the pool's own finalizer,
    which would hang at the exit of the interpreter, is cancelled.
    """
    pool._terminate.cancel()
    for thread in (pool._worker_handler, pool._task_handler, pool._result_handler):
        thread._state = "TERMINATE"
    pool._state = "TERMINATE"
    pool._change_notifier.put(None)
    pool._taskqueue.put(None)
    pool._worker_handler.join(timeout=2.0)  # it must not start new workers behind our back
    for process in {*workers, *pool._pool}:
        with contextlib.suppress(ValueError, OSError):
            process.terminate()
    for process in {*workers, *pool._pool}:
        process.join(timeout=2.0)
        if process.exitcode is None:
            process.kill()
            process.join(timeout=2.0)
    with contextlib.suppress(OSError):
        pool._outqueue._writer.send(None)  # past the lock: nobody is left who could hold it
