"""The frame of the doctor: checks, findings, and the registry of all checks."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, NamedTuple

from gluontune.core.errors import UsageError
from gluontune.core.files import cache_dir
from gluontune.recipe.registry import Registry
from gluontune.runtime.system import System

SEVERITIES = ("ok", "info", "warning", "error")


class Verdict(NamedTuple):
    """The result of a check's function."""

    severity: str
    message: str
    evidence: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Finding:
    """A check's verdict under the check's name.

    ``severity`` is ``ok``, ``info`` (good to know), ``warning`` (slower or riskier) or ``error`` (cannot work);
    ``evidence`` the observed values, versions and file names; ``fix`` the command or act that mends it, or "".
    """

    id: str
    severity: str
    message: str
    evidence: str
    fix: str

    def to_dict(self) -> dict[str, str]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Options:
    """Settings of the checks: the training data's folder or file, and the batch that worker processes hand over.

    Defaults: gluontune's cache folder; the usable cores as loader processes; prefetch as in Gluon, twice the workers.
    """

    data: Path | None = None
    batch_size: int = 64
    image_size: int = 224
    num_workers: int | None = None
    prefetch: int | None = None

    @property
    def data_path(self) -> Path:
        """The data's place, existing or not."""
        return Path(self.data) if self.data is not None else cache_dir()


@dataclass(frozen=True)
class Check:
    """One entry of the registry: ``--only`` takes its ``id``. Its function never imports mxnet."""

    id: str
    title: str
    function: Callable[[System, Options], Verdict]


CHECKS: Registry[Check] = Registry("check")


def check(id: str, title: str) -> Callable[[Callable[[System, Options], Verdict]], Callable]:
    """Register a function as the check ``id``: the one place where a check is added."""

    def add(function: Callable[[System, Options], Verdict]) -> Callable[[System, Options], Verdict]:
        CHECKS.add(id, Check(id, title, function))
        return function

    return add


def run_check(entry: Check, system: System, options: Options) -> Finding:
    """Run one check. A check that raises is a finding, too: the other checks still run."""
    try:
        verdict = entry.function(system, options)
        if verdict.severity not in SEVERITIES:
            raise UsageError(f"check {entry.id!r} returned the severity {verdict.severity!r}")
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"the check itself failed, so nothing is known about: {entry.title}"
        evidence = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        verdict = Verdict("warning", message, evidence, "report this as a fault of gluontune's")
    return Finding(entry.id, *verdict)


def iter_checks(
    system: System | None = None, options: Options | None = None, only: Iterable[str] = ()
) -> Iterator[tuple[Check, Finding]]:
    """Run the checks one after the other, so that progress can be shown; ``only`` has identifiers of checks."""
    chosen = [CHECKS[name] for name in only] or list(CHECKS)
    system, options = system or System(), options or Options()
    return ((entry, run_check(entry, system, options)) for entry in chosen)


def run_checks(system: System | None = None, options: Options | None = None, only: Iterable[str] = ()) -> list[Finding]:
    """The findings of all checks, or of those named in ``only``, on this machine or a fake ``system``."""
    return [finding for _, finding in iter_checks(system, options, only)]
