"""Monitor logs: JSON lines that survive a crash, Prometheus text, TensorBoard; and back into a RunResult."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.core.files import Closing, PathLike
from gluontune.core.reading import explained, parse_json, read_bytes
from gluontune.monitor.series import columns, steadiness_of
from gluontune.recipe.result import RunResult

LOG_VERSION = 1


class JsonLines(Closing):
    """Appends each sample as one line, flushed at once, so that a crash loses one line at most.

    Usable as ``Monitor(on_sample=...)``.

    Args:
        path: the file; earlier content is replaced.
        facts: further fields of the first line (command, machine, …).

    Raises:
        GluontuneError: the file cannot be written.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> with JsonLines(path, {"command": "train"}) as log:
    ...     log({"t_s": 0.5, "cpu_pct": 80.0})
    >>> read_log(path).samples
    [{'t_s': 0.5, 'cpu_pct': 80.0}]
    """

    def __init__(self, path: PathLike, facts: Mapping[str, Any] | None = None):
        self.path = Path(path)
        with explained(path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = open(self.path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed by close)
        self._write({"gluontune_monitor_log": LOG_VERSION, **(facts or {})})

    def __call__(self, sample: Mapping[str, Any]) -> None:
        self._write(sample)

    def mark(self, t_s: float, name: str | None) -> None:
        """Write the beginning of a phase."""
        self._write({"mark": name, "t_s": t_s})

    def _write(self, record: Mapping[str, Any]) -> None:
        with explained(self.path):
            self._stream.write(json.dumps(record, allow_nan=False) + "\n")

    def close(self) -> None:
        self._stream.close()


@dataclass
class Log:
    """The content of a log: ``facts`` of the first line, ``samples`` in the order of their times, ``marks`` (``{"t_s",
    "name"}`` of each phase's beginning), and numbers of ``damaged`` lines (a crash cuts the last one).
    """

    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)

    def series(self) -> dict[str, Any]:
        """The samples in the form of :meth:`Monitor.series`."""
        return {**columns(self.samples), "marks": self.marks}

    def spans(self, name: str) -> list[tuple[float, float]]:
        """``(start_s, end_s)`` of each stretch marked ``name``."""
        last = self.samples[-1]["t_s"] if self.samples else 0.0
        ends = [*(mark["t_s"] for mark in self.marks[1:]), last]
        return [(m["t_s"], end) for m, end in zip(self.marks, ends) if m["name"] == name and end > m["t_s"]]


def read_log(path: PathLike) -> Log:
    """The log in the file ``path`` of :class:`JsonLines`; damaged lines are skipped and numbered.

    Raises:
        GluontuneError: the file cannot be read, is no log of gluontune's, or of a newer version.
    """
    with explained(path):
        lines = read_bytes(path).split(b"\n")
    log = Log()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record = _parse(line)
        if number == 1:
            log.facts = _header(record, path)
        elif record is None:
            log.damaged.append(number)
        elif "mark" in record:
            log.marks.append({"t_s": record["t_s"], "name": record["mark"]})
        else:
            log.samples.append(record)
    if not log.facts:
        raise GluontuneError(f"{os.fspath(path)}: the file is empty; `gluontune monitor --out` writes such logs")
    log.samples.sort(key=lambda sample: sample["t_s"])
    return log


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(line.decode("utf-8"))
    except ValueError:
        return None
    if not isinstance(record, dict) or "gluontune_monitor_log" in record:
        return record if isinstance(record, dict) else None
    when = record.get("t_s")
    whole = isinstance(when, (int, float)) and not isinstance(when, bool) and math.isfinite(when)
    return record if whole else None


def _header(record: dict[str, Any] | None, path: PathLike) -> dict[str, Any]:
    version = (record or {}).get("gluontune_monitor_log")
    if version is None:
        raise GluontuneError(
            f"{os.fspath(path)}: not a gluontune monitor log (its first line does not say so); "
            "`gluontune monitor --out` writes such logs"
        )
    if version != LOG_VERSION:
        raise GluontuneError(f"{os.fspath(path)}: log version {version}, but this gluontune reads {LOG_VERSION}")
    return dict(record or {})


def run_result(log: Log, recipe: Mapping[str, Any] | None = None) -> RunResult:
    """A log as a :class:`RunResult`: utilization, steadiness (of the rows marked "train", or of all), peaks.

    Args:
        log: of :func:`read_log`. recipe: of the run, as plain values.

    >>> log = Log(samples=[{"t_s": 1.0, "cpu_pct": 50.0, "rss_mib": 10.0}, {"t_s": 2.0, "cpu_pct": 50.0}])
    >>> run_result(log).steadiness["mean_pct"]
    50.0
    """
    series = log.series()
    spans = log.spans("train") or None
    notes = [f"lines of the log that could not be read: {log.damaged}"] if log.damaged else []
    rss = [value for value in series["rss_mib"] if value is not None]
    gpu = [sum(v for v in sample.get("gpu_mem_mib", {}).values() if v is not None) for sample in log.samples]
    return RunResult(
        recipe=dict(recipe or {}), machine=dict(log.facts.get("machine") or {}), utilization=series,
        steadiness=steadiness_of(series, spans), peak_rss_mib=max(rss, default=None),
        peak_gpu_mib=max(gpu, default=0.0) or None, notes=notes,
    )  # fmt: skip


def prometheus_text(sample: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> str:
    """A sample in Prometheus's text format; N/A fields are left out.

    Args:
        sample: of a :class:`Monitor`. labels: of each line.

    Source: Prometheus, *Exposition formats*, text-based format 0.0.4.

    >>> print(prometheus_text({"cpu_pct": 75.0, "gpu_util_pct": {"0": 31.0}}, {"job": "train"}), end="")
    # TYPE gluontune_cpu_pct gauge
    gluontune_cpu_pct{job="train"} 75.0
    # TYPE gluontune_gpu_util_pct gauge
    gluontune_gpu_util_pct{job="train",device="0"} 31.0
    """
    lines: dict[str, list[str]] = {}
    for name, key, figure in _figures(sample):
        given = {**(labels or {}), **({} if key is None else {"device": str(key)})}
        line = f"gluontune_{name}{_labels(given)} {figure}\n"
        lines.setdefault(name, [f"# TYPE gluontune_{name} gauge\n"]).append(line)
    return "".join(line for rows in lines.values() for line in rows)


def _figures(sample: Mapping[str, Any]) -> Iterator[tuple[str, Any, float]]:
    """A sample's numbers: field, device (None for a field without devices), figure."""
    for name, value in sample.items():
        for key, figure in (value if isinstance(value, Mapping) else {None: value}).items():
            if isinstance(figure, (int, float)) and not isinstance(figure, bool):
                yield name, key, float(figure)


def _labels(labels: Mapping[str, str]) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    inner = ",".join(f'{name}="{quoted(str(value))}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


class TensorBoard(Closing):
    """Writes each sample's figures to TensorBoard; usable as ``Monitor(on_sample=...)``.

    The step of a point is its time in milliseconds, and its wall time the run's start plus that.

    Args:
        folder: of TensorBoard's event files.
        started_at: wall-clock time of the monitor's zero, ``Monitor.started_at``.

    Raises:
        GluontuneError: the package tensorboardX is not installed.
    """

    def __init__(self, folder: PathLike, started_at: float = 0.0):
        try:
            module = importlib.import_module("tensorboardX")
        except ImportError as error:
            raise GluontuneError("TensorBoard logs need the package tensorboardX: pip install tensorboardX") from error
        self._writer = module.SummaryWriter(os.fspath(folder))
        self._started_at = started_at

    def __call__(self, sample: Mapping[str, Any]) -> None:
        when = float(sample["t_s"])
        for name, key, figure in _figures(sample):
            if name != "t_s":
                tag = f"gluontune/{name}" + ("" if key is None else f"/{key}")
                self._writer.add_scalar(tag, figure, round(when * 1e3), self._started_at + when)

    def close(self) -> None:
        """Write the pending points and close."""
        self._writer.close()
