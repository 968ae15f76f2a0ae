"""The monitor around any command or the ``fit`` of Gluon's ``Estimator``, and its live view."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.processes import handling
from gluontune.monitor.cpu import OtherLoad
from gluontune.monitor.sampler import Monitor


@dataclass
class CommandRun:
    """A finished command: ``exit_code`` is None if ``signal`` (such as ``SIGKILL``) ended it; ``monitor`` is stopped.

    ``others_pct`` is the load of other programs on the usable cores meanwhile, percent.
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
        run = {name: value for name, value in vars(self).items() if name != "monitor"}
        return {**run, **summary(self.monitor, max_points)}


def summary(monitor: Monitor, max_points: int = 2000) -> dict[str, Any]:
    """A monitor's results, ready for JSON: steadiness, peaks and the (thinned) series."""
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
    """Run ``command`` and monitor it and its descendants until it ends. Ctrl-C and SIGTERM are passed on to it.

    Args:
        command: the program and its arguments.
        period_s, gpus, on_sample, pynvml: see :class:`Monitor`.
        stdout: the target of its standard output; None: ours.
        env: its environment; None: ours.

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
    # refuses a wrong period or GPU before the command starts
    Monitor(os.getpid(), period_s, gpus, pynvml=pynvml)
    start, others = time.monotonic(), OtherLoad()
    with _signals_passed_on() as passed_to:
        process = _start(words, stdout, env)
        passed_to.append(process)
        monitor = Monitor(process.pid, period_s, gpus, on_sample=on_sample, pynvml=pynvml).start()
        try:
            if hasattr(os, "waitid"):  # waits for its end without reaping it
                with contextlib.suppress(ChildProcessError):
                    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            # The last sample precedes the reaping of the command, while its whole CPU time is readable.
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


@contextlib.contextmanager
def _signals_passed_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A context in which SIGINT and SIGTERM go to the listed processes instead of ending this one.

    A terminal sends Ctrl-C to the whole foreground group, the command included: it is not sent twice.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: Any) -> None:
        for process in processes:
            if not (number == signal.SIGINT and os.isatty(0)):
                with contextlib.suppress(OSError):
                    process.send_signal(number)

    with handling(pass_on):
        yield processes


def estimator_handler(monitor: Monitor) -> Any:
    """An event handler that monitors ``Estimator.fit``: give it in ``event_handlers``.

    It runs the monitor for the length of the training and marks each epoch ``"train"``, without its validation and
    checkpoints.

    Args:
        monitor: one that is not started.

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


_BAR = 16


def rows(monitor: Monitor) -> list[tuple[str, str, str, str, str]]:
    """Device, utilization now, mean, steadiness, and memory, as text; N/A without a figure."""
    latest = monitor.latest() or {}
    by_device = monitor.steadiness()["by_device"]
    cpu = "CPU (machine)" if monitor.scope == "machine" else "CPU (this tree)"
    found = [_row(cpu, latest.get("cpu_pct"), by_device["cpu"], latest.get("rss_mib"))]
    for key, name in monitor.device_names.items():
        now = (latest.get("gpu_util_pct") or {}).get(key)
        memory = (latest.get("gpu_mem_mib") or {}).get(key)
        label = name if name == key else f"GPU {key} {name}"
        found.append(_row(label, now, by_device.get(key) or {}, memory))
    return found


def _row(name: str, now: float | None, figures: dict[str, Any], mib: float | None) -> tuple[str, str, str, str, str]:
    bar = "N/A" if now is None else f"{'█' * round(now / 100 * _BAR):<{_BAR}} {now:3.0f} %"
    mean, score = figures.get("mean_pct"), figures.get("score")
    return (
        name,
        bar,
        "N/A" if mean is None else f"{mean:.0f} %",
        "N/A" if score is None else f"{score:.2f}",
        "N/A" if mib is None else f"{mib:,.0f} MiB",
    )


def closing_lines(monitor: Monitor) -> list[str]:
    """The final report: a line for each device, or the reason why GPUs have none."""
    lines = []
    for name, figures in monitor.steadiness()["by_device"].items():
        label = {"cpu": f"CPU ({monitor.cores:g} cores)"}.get(name, name if "simulated" in name else f"GPU {name}")
        lines.append(_closing_line(label, figures))
    if monitor.peak_rss_mib is not None:
        gpu = "" if monitor.peak_gpu_mib is None else f", GPU memory {monitor.peak_gpu_mib:,.0f} MiB"
        lines.append(f"peak memory {monitor.peak_rss_mib:,.0f} MiB{gpu}")
    if monitor.gpu_note:
        lines.append(monitor.gpu_note)
    if monitor.faults:
        lines.append(f"{monitor.faults} samples failed; the last one: {monitor.last_fault}")
    return lines


def _closing_line(label: str, figures: dict[str, Any]) -> str:
    if figures["mean_pct"] is None:
        return f"{label}: N/A (too short, or not readable)"
    score = "N/A" if figures["score"] is None else f"{figures['score']:.2f}"
    period = figures["idle_period_s"]
    rhythm = "" if period is None else f", one every {period:.1f} s"
    gaps = f"{figures['idle_gaps']} idle gaps (longest {figures['longest_idle_gap_s']:.1f} s{rhythm})"
    return (
        f"{label}: mean {figures['mean_pct']:.0f} %, steadiness {score}, below 10 % for "
        f"{figures['below_10_pct']:.0f} % of the time, {gaps}"
    )


def table(monitor: Monitor) -> Any:
    """The rows as a ``rich`` table, for terminals and notebooks."""
    from rich.table import Table

    view = Table(title=f"{(monitor.latest() or {}).get('t_s', 0.0):.1f} s", title_justify="left")
    for heading in ("device", "now", "mean", "steadiness", "memory"):
        view.add_column(heading, justify="left" if heading in ("device", "now") else "right", no_wrap=True)
    for row in rows(monitor):
        view.add_row(*row)
    return view


def watch(monitor: Monitor, seconds: float | None = None, console: Any = None) -> None:
    """Show the table live until ``seconds`` have passed, the watched processes end, or Ctrl-C.

    Args:
        monitor: a started monitor.
        seconds: None means until Ctrl-C.
        console: a ``rich`` console; default the terminal's.

    Raises:
        GluontuneError: the monitor has not been started.

    >>> import io
    >>> from rich.console import Console
    >>> log = Console(file=io.StringIO())
    >>> with Monitor(period_s=0.02, gpus="none") as seen:
    ...     watch(seen, seconds=0.1, console=log)
    >>> seen.latest() is not None
    True
    """
    from rich.console import Console
    from rich.live import Live

    if monitor.latest() is None:
        raise GluontuneError("monitor: start() it before watching it")
    console = Console() if console is None else console
    end = time.monotonic() + (math.inf if seconds is None else seconds)
    with contextlib.ExitStack() as shown:
        if getattr(console, "is_jupyter", False):
            from IPython.display import display

            update: Any = display(table(monitor), display_id=True).update
        elif console.is_terminal:
            live = shown.enter_context(Live(table(monitor), console=console, auto_refresh=False))
            update = functools.partial(live.update, refresh=True)
        else:  # a batch job's log shows only the end
            update = bool
        with contextlib.suppress(KeyboardInterrupt):
            while _pause(monitor, end):
                update(table(monitor))
        update(table(monitor))


def _pause(monitor: Monitor, end: float) -> bool:
    """Sleep until the next picture. Returns False after the last one."""
    left = min(max(0.2, monitor.period_s), end - time.monotonic())
    if left <= 0 or not monitor.alive:
        return False
    time.sleep(left)
    return True
