"""The result of an assessment, as values and as results for a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gluontune.course.assessment.grading import Part
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult


@dataclass
class Assessment:
    """The result of an assessment.

    Args:
        script: its path. parts: one rank, then two. reference: the reference's runs, by number of ranks.
        isolated: whether the kernel kept the script from reading other files (Landlock).
        secluded: whether the kernel kept it from the network and from sockets of other programs (namespaces).
        complete: whether both parts were requested.
    """

    script: str
    parts: list[Part]
    reference: dict[str, dict[str, Any]]
    isolated: bool
    complete: bool
    skipped: str | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    secluded: bool = True

    @property
    def passed(self) -> bool:
        """Whether every requested part has passed."""
        return bool(self.parts) and self.skipped is None and all(part.passed for part in self.parts)

    @property
    def points(self) -> float:
        return round(sum(part.points for part in self.parts), 1)

    @property
    def max_points(self) -> int:
        return 100 if self.complete else 50

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "schema_version": 1, "script": self.script, "passed": self.passed, "points": self.points,
            "max_points": self.max_points, "parts": [part.to_dict() for part in self.parts], "skipped": self.skipped,
            "reference": self.reference, "isolated": self.isolated, "secluded": self.secluded,
            "machine": dict(self.machine),
        }  # fmt: skip

    def results(self) -> dict[str, RunResult]:
        """Each part as a RunResult, for figures and ``gluontune report``."""
        found = {}
        for part in self.parts:
            recipe = Recipe(job=self.script, num_devices=part.ranks, engine="kvstore" if part.ranks > 1 else "local")
            result = RunResult(recipe.to_dict(), machine=self.machine, utilization=dict(part.series))
            result.peak_rss_mib = part.peak_rss_mib
            result.val_accuracy = [] if part.accuracy is None else [part.accuracy]
            result.elapsed_seconds = [] if part.accuracy is None or part.seconds is None else [part.seconds]
            result.epoch_seconds = list(result.elapsed_seconds)
            result.notes = [f"{c.name}: {c.feedback}" for c in part.criteria]
            found[f"{Path(self.script).stem}, {part.ranks} rank{'s' if part.ranks > 1 else ''}"] = result
        return found
