"""A live view of a monitor: a table in the terminal, or in a notebook's cell."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.monitor.sampler import Monitor

_BAR = 16


def rows(monitor: Monitor) -> list[tuple[str, str, str, str, str]]:
    """Device, utilization now, mean, steadiness, and memory, as text; N/A without a figure.

    >>> with Monitor(period_s=0.02, gpus="none") as monitor:
    ...     pass
    >>> rows(monitor)[0][0]
    'CPU (this tree)'
    """
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
    end = None if seconds is None else time.monotonic() + seconds
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


def _pause(monitor: Monitor, end: float | None) -> bool:
    """Sleep until the next picture. Returns False after the last one."""
    left = max(0.2, monitor.period_s)
    if end is not None:
        left = min(left, end - time.monotonic())
    if left <= 0 or not monitor.alive:
        return False
    time.sleep(left)
    return True
