"""The RunResult: the result of one run of one Recipe, as versioned JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.core.files import write_json
from gluontune.core.reading import read_json
from gluontune.core.stats import Interval

SCHEMA_VERSION = 1


@dataclass
class RunResult:
    """The result of a run.

    Args:
        recipe: the recipe as plain values.
        status: ``ok``, ``failed`` or ``interrupted`` (with the measurements until then).
        error: ``{"type", "message", "phase"}`` of a failed run, with ``traceback`` if known; else None.
        machine: facts of the machine and versions, from ``gt.runtime.machine_facts``.
        samples_per_sec: ``{"median", "ci95": [lo, hi], "n"}`` of training throughput, loading included,
            validation and warm-up left out; None if nothing was measured.
        phases_pct: share of each phase of the training step in percent; sums to 100.
        phases: the whole report of ``gt.monitor.StepPhases`` (milliseconds, steps sampled, sum check).
        utilization: ``{"t_s": [...], "cpu_pct": [...], "gpu_util_pct": {index: [...]}}``.
        steadiness: metrics of ``gt.monitor.steadiness`` for the training part of the series.
        train_loss, val_accuracy, val_loss: one value an epoch (accuracy 0 … 1; [] if the job has another metric).
        val_metric: ``{"name", "mode": "max|min", "values", "samples"}``: the validation metric, which values are
            better, one value an epoch (None if not finite), and the number of samples. {} before the first.
        epoch_seconds: training time of each epoch, validation left out.
        elapsed_seconds: training time at the end of each epoch since the first step, validation left out.
        warmup_seconds: time before training: import, building, first batches and compilation.
        peak_rss_mib: highest resident memory of the process tree, MiB. peak_gpu_mib: of the GPU, or None.
        steps: training steps taken.
        env: environment variables that gluontune set for the run.
        hosts: of a run on several machines: ``{"name", "address", "ranks", "versions", "machine"}`` of each.
        notes: remarks for the reader, one sentence each.
        schema_version: of this layout.

    >>> from gluontune.recipe.recipe import Recipe
    >>> r = RunResult(recipe=Recipe().to_dict(), val_accuracy=[0.5, 0.7])
    >>> RunResult.from_dict(r.to_dict()) == r
    True
    """

    recipe: Mapping[str, Any]
    status: str = "ok"
    error: dict[str, str] | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    samples_per_sec: Interval | None = None
    phases_pct: dict[str, float] = field(default_factory=dict)
    phases: dict[str, Any] = field(default_factory=dict)
    utilization: dict[str, Any] = field(default_factory=dict)
    steadiness: dict[str, Any] = field(default_factory=dict)
    train_loss: list[float] = field(default_factory=list)
    val_accuracy: list[float] = field(default_factory=list)
    val_loss: list[float] = field(default_factory=list)
    val_metric: dict[str, Any] = field(default_factory=dict)
    epoch_seconds: list[float] = field(default_factory=list)
    elapsed_seconds: list[float] = field(default_factory=list)
    warmup_seconds: float | None = None
    peak_rss_mib: float | None = None
    peak_gpu_mib: float | None = None
    steps: int = 0
    env: dict[str, str] = field(default_factory=dict)
    hosts: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "result") -> RunResult:
        """Read plain values back.

        Raises:
            GluontuneError: another schema version, or not a RunResult at all.
        """
        if not isinstance(values, Mapping) or "schema_version" not in values or "recipe" not in values:
            raise GluontuneError(f"{source}: not a gluontune RunResult (no schema_version and recipe in it)")
        version = values["schema_version"]
        if version != SCHEMA_VERSION:
            raise GluontuneError(
                f"{source}: schema_version {version}, but this gluontune reads {SCHEMA_VERSION}; "
                "read it with the version that wrote it, or run it again"
            )
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    def save(self, path: str | Path) -> None:
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> RunResult:
        return cls.from_dict(read_json(path), source=str(path))
