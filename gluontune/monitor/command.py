"""The monitor around any command, and around the ``fit`` of Gluon's ``Estimator``."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.monitor.cpu import OtherLoad
from gluontune.monitor.sampler import Monitor


@dataclass
class CommandRun:
    """A command that was monitored.

    Args:
        command: its words.
        exit_code: what it returned; None where a signal ended it.
        signal: the signal's name, such as ``SIGKILL``, or None.
        seconds: how long it took.
        monitor: the monitor, stopped.
        others_pct: what other programs took of the usable cores meanwhile, percent.
    """

    command: list[str]
    exit_code: int | None
    signal: str | None
    seconds: float
    monitor: Monitor
    others_pct: float

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def outcome(self) -> str:
        """``ended well``, ``returned 3`` or ``was ended by SIGKILL``."""
        if self.signal:
            return f"was ended by {self.signal}"
        return "ended well" if self.exit_code == 0 else f"returned {self.exit_code}"

    def to_dict(self, max_points: int = 2000) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        own = {name: value for name, value in vars(self).items() if name != "monitor"}
        return {**own, **summary(self.monitor, max_points)}


def summary(monitor: Monitor, max_points: int = 2000) -> dict[str, Any]:
    """What a monitor saw, ready for JSON: steadiness, peaks and the (thinned) series."""
    return {
        "period_s": monitor.period_s, "usable_cores": monitor.cores, "devices": monitor.device_names,
        "gpu_note": monitor.gpu_note, "steadiness": monitor.steadiness(), "peak_rss_mib": monitor.peak_rss_mib,
        "peak_gpu_mib": monitor.peak_gpu_mib, "samples": monitor.taken, "series": monitor.series(max_points),
    }  # fmt: skip


def run_command(
    command: Sequence[str],
    period_s: float = 0.25,
    gpus: Any = "auto",
    *,
    on_sample: Callable[[dict[str, Any]], None] | None = None,
    stdout: Any = None,
    env: dict[str, str] | None = None,
    pynvml: Any = None,
) -> CommandRun:
    """Run ``command`` and monitor it and all that it starts, until it ends.

    Ctrl-C and SIGTERM are passed on to it, so that it can end in its own way.

    Args:
        command: the program and its arguments.
        period_s, gpus, on_sample, pynvml: see :class:`Monitor`.
        stdout: where its standard output goes; None leaves it alone.
        env: its environment; None is ours.

    Raises:
        UsageError: no such program, or an empty command.
        GluontuneError: the program cannot be started (permission, format).

    >>> import sys
    >>> run = run_command([sys.executable, "-c", "raise SystemExit(3)"], period_s=0.05, gpus="none")
    >>> run.exit_code, run.outcome
    (3, 'returned 3')
    """
    words = [str(word) for word in command]
    if not words:
        raise UsageError("monitor: give a command after --, such as: gluontune monitor -- python train.py")
    # made before the command starts, so that a wrong period or GPU is found first
    Monitor(os.getpid(), period_s, gpus, pynvml=pynvml)
    start, others = time.monotonic(), OtherLoad()
    with _signals_passed_on() as passed_to:
        process = _start(words, stdout, env)
        passed_to.append(process)
        monitor = Monitor(process.pid, period_s, gpus, on_sample=on_sample, pynvml=pynvml).start()
        try:
            _wait_unreaped(process.pid)
        finally:
            # The last look comes before the command is reaped: then its whole CPU time can still be read.
            monitor.stop()
            taken = others.read()
            code = process.wait()
    seconds = time.monotonic() - start
    name = signal.Signals(-code).name if code < 0 and -code in list(signal.Signals) else None
    return CommandRun(words, None if code < 0 else code, name, seconds, monitor, taken)


def _start(words: list[str], stdout: Any, env: dict[str, str] | None) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(words, stdout=stdout, env=env)
    except FileNotFoundError as error:
        raise UsageError(f"{words[0]}: no such command; check the spelling and PATH") from error
    except PermissionError as error:
        raise GluontuneError(f"{words[0]}: may not be run; chmod +x it, or put its interpreter first") from error
    except OSError as error:
        reason = error.strerror or error
        raise GluontuneError(f"{words[0]}: cannot be run: {reason}; put its interpreter first") from error


def _wait_unreaped(pid: int) -> None:
    """Wait for the end of a child and leave it to be reaped (where the system can)."""
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@contextlib.contextmanager
def _signals_passed_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    """While it lasts, SIGINT and SIGTERM go to the command instead of ending us.

    A terminal sends Ctrl-C to the command by itself, as to the whole foreground group: it is not sent twice.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: Any) -> None:
        for process in processes:
            if not (number == signal.SIGINT and os.isatty(0)):
                with contextlib.suppress(OSError):
                    process.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield processes  # only the main thread may set handlers
        return
    kept = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield processes
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def estimator_handler(monitor: Monitor) -> Any:
    """An event handler that monitors ``Estimator.fit``: give it in ``event_handlers``.

    It starts the monitor with the training and stops it at its end, and marks each epoch ``"train"`` from
    its beginning to its end; validation and checkpoints at the end of an epoch are not marked.

    Args:
        monitor: a monitor that has not been started.

    Returns:
        An object of mxnet's ``TrainBegin``, ``TrainEnd``, ``EpochBegin`` and ``EpochEnd``.

    >>> from gluontune.runtime import mxnet
    >>> mx = mxnet()
    >>> from mxnet.gluon.contrib.estimator import Estimator
    >>> net = mx.gluon.nn.Dense(2)
    >>> net.initialize()
    >>> loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    >>> estimator = Estimator(net, loss, train_metrics=mx.metric.Accuracy(), trainer=trainer, context=mx.cpu())
    >>> data = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(mx.nd.ones((16, 4)), mx.nd.zeros((16,))), 8)
    >>> watch = Monitor(period_s=0.02, gpus="none")
    >>> estimator.fit(data, epochs=1, event_handlers=[estimator_handler(watch)])  # doctest: +ELLIPSIS
    Training begin: ...
    >>> [mark["name"] for mark in watch.series()["marks"]][:2]
    ['train', None]
    """
    from gluontune.runtime import mxnet

    mxnet()
    events = importlib.import_module("mxnet.gluon.contrib.estimator.event_handler")
    bases = (events.TrainBegin, events.TrainEnd, events.EpochBegin, events.EpochEnd)

    def train_begin(self: Any, estimator: Any, *args: Any, **kwargs: Any) -> None:
        monitor.start()

    def epoch_begin(self: Any, estimator: Any, *args: Any, **kwargs: Any) -> None:
        monitor.mark("train")

    def epoch_end(self: Any, estimator: Any, *args: Any, **kwargs: Any) -> None:
        monitor.mark(None)

    def train_end(self: Any, estimator: Any, *args: Any, **kwargs: Any) -> None:
        monitor.mark(None)
        monitor.stop()

    methods = {f.__name__: f for f in (train_begin, epoch_begin, epoch_end, train_end)}
    # Handlers run by their priority: ours ends the marked time before validation (-1000) begins.
    return type("MonitorHandler", bases, {**methods, "priority": -2000})()
