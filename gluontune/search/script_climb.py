"""The ladder of an unchanged script: each rung is another way to run it, measured on its own training."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, cast

from gluontune import runtime
from gluontune.capture.script import Program
from gluontune.compute.process import bfloat16_support
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.events import OnLadderEvent, RungRow
from gluontune.core.files import atomic_write, set_aside
from gluontune.recipe.registry import Registry
from gluontune.runtime import pytorch
from gluontune.search.budget import QUICK, Budget, Pace
from gluontune.search.climber import Climber
from gluontune.search.measure import ScriptContender
from gluontune.search.results_store import ResultsStore
from gluontune.search.rung import Rung, Variant
from gluontune.training.group import RunFailed
from gluontune.training.starting import ScriptRun

_THREADS = "OMP_NUM_THREADS"


def _ways(run: ScriptRun, seen: Mapping[str, Any]) -> dict[str, Union[list[Variant], str]]:
    """By rung: the variants on top of a run, or the reason why there are none."""
    cores, given = runtime.usable_cores(), _THREADS in os.environ  # what the user has set stays
    counts = () if given or cores < 2 else (1, cores)
    threads = [(f", {n} thread{'s' * (n > 1)}", {"env": {_THREADS: str(n)}}) for n in counts] or [("", {})]
    unseen = "" if seen["loaders"] else "the script reads its data itself: no DataLoader of Gluon's was seen"
    has = f"it has {seen['workers']}" if seen["workers"] else "it has none"
    half = bfloat16_support()
    on_torch = {
        "backend": "torch", "changes": tuple(name for name in run.changes if name == "samples"),  # blocks are MXNet's
        "state": "", "dtype": "float32", "runtime": "tuned", "env": {} if given else {_THREADS: str(cores)},
    }  # fmt: skip
    return {
        "naive": [Variant("as written", {})],
        "environment": [Variant(f"allocator{words}", {"runtime": "tuned", **env}) for words, env in threads],
        "multi-worker": unseen or f"a script's workers are its own ({has}): others would draw other random numbers",
        "records": unseen or [Variant("samples kept in memory", {"changes": ("samples", *run.changes)})],
        "hybridized": [
            Variant(state, {"changes": (*run.changes, "blocks"), "state": state})
            for state in ("compiled", "compiled and rewritten")
        ],  # by the names of gluontune.capture.helpers.blocks, which needs no import here
        "mixed-precision": half.message if half.level == "none" else [Variant("bfloat16", {"dtype": "bfloat16"})],
        "large-batch": "a script's batch and rate are its own",
        "multi-device": "a script chooses its devices itself",
        "modern-engine": (
            [Variant("PyTorch", on_torch)] if pytorch.installed() else f"PyTorch is not installed: {pytorch.INSTALL}"
        ),
    }


def _rung(name: str, sentence: str) -> Rung:
    def requires(run: ScriptRun, seen: Mapping[str, Any]) -> str | None:
        found = _ways(run, seen)[name]
        return found if isinstance(found, str) else None

    return Rung(name, sentence, requires, lambda run, seen: cast(Any, _ways(run, seen)[name]))


SCRIPT_RUNGS: Registry[Rung] = Registry("rung of a script")
for _name, _sentence in {
    "naive": "the script as python runs it",
    "environment": "threads and allocator set before the script starts",
    "multi-worker": "samples made in worker processes",
    "records": "samples that are the same in each epoch are computed once",
    "hybridized": "blocks called as compiled graphs, slow layers rewritten in them",
    "mixed-precision": "16-bit multiplications with 32-bit masters",
    "large-batch": "a larger batch",
    "multi-device": "several processes",
    "modern-engine": "the same steps, computed by PyTorch",
}.items():
    SCRIPT_RUNGS.add(_name, _rung(_name, _sentence))

_TIMED_STEPS = 20  # for the phases, at most
_UNCHANGED = "NothingToChange"
#: Kinds of failures that say that a script is nothing to measure.
NOT_A_JOB = ("NoTraining", "TooShort", "ScriptFailed")
_ROUNDING = 1e-5  # between the first losses of two ways that compute the same, relative; it grows with the steps
_GROWTH, _MOST = 2.0, 1e-2  # by which it may grow with each step, and never above


def climb_script(
    words: Sequence[str],
    *,
    out: str | Path | None = None,
    pace: Pace = QUICK,
    budget_s: float | None = None,
    rungs: Iterable[str] | None = None,
    dtype: str = "float32",
    on_event: OnLadderEvent | None = None,
    time_limit: float = 600.0,
) -> dict[str, Any]:
    """Climb the ladder with an unchanged Gluon script, and return the document of ``ladder.json``.

    The script runs in the caller's folder, once for each way that is measured, and writes its files each time. Its
    batch, rate, schedule and length stay. A way whose first losses are not the naive ones within float32's rounding is
    not kept; bfloat16 is kept only where ``dtype`` asks for it.

    Args:
        words: the script and its own words, or ``-m``, a module and its words.
        out: folder for ``ladder.json``, ``best.sh`` and the script's output in ``logs/``.
        pace, budget_s, rungs, on_event, time_limit: as of :func:`gluontune.ladder.climb`.
        dtype: ``float32``, or ``bfloat16``.

    Raises:
        UsageError: there is no such script, or rung. GluontuneError: the script fails as it is, never trains, or takes
            too few steps. A failed rung is a row.

    >>> import tempfile
    >>> import gluontune as gt
    >>> path = Path(tempfile.mkdtemp(), "train.py")
    >>> _ = path.write_text('''
    ... import mxnet as mx
    ... w = mx.nd.ones(2)
    ... w.attach_grad()
    ... for step in range(1000):
    ...     with mx.autograd.record():
    ...         loss = (w - 1) ** 2
    ...     loss.backward()
    ...     w[:] = w - 0.1 * w.grad
    ... ''')
    >>> found = gt.ladder.climb_script([str(path)], rungs=["naive"], budget_s=6)
    >>> [(rung["name"], rung["status"], rung["kept"]) for rung in found["rungs"]], found["complete"]
    ([('naive', 'ran', True)], True)
    """
    Program.of(words).check()
    known = SCRIPT_RUNGS.names()
    wanted = set(known if rungs is None else rungs)
    for name in sorted(wanted - set(known)):
        raise UsageError(f"--rungs {name!r}: a script has no such rung; choose of {', '.join(known)}")
    names = [name for name in known if name in {"naive", *wanted}]
    run = ScriptRun(tuple(words))
    script = {"words": list(words), "folder": os.getcwd()}
    results = _Results(out, pace.name, {"name": Path(run.job).name}, run, script=script)
    budget = Budget(pace.budget_s if budget_s is None else budget_s)
    budget.release_proof()
    tell = on_event or (lambda event: None)
    return _Climber(run, results, pace, budget, names, tell, time_limit, dtype=dtype).run()


class _Results(ResultsStore):
    def name_best(self) -> None:
        super().name_best()
        if best := self.document["best"]:
            best["command"] = ScriptRun(**best["recipe"]).command()


class _Climber(Climber[ScriptContender]):
    rungs = SCRIPT_RUNGS

    def __init__(self, run: ScriptRun, results: ResultsStore, *how: Any, dtype: str):
        self.dtype, self.logs = dtype, results.folder / "logs" if results.folder is not None else None
        super().__init__(run, results, *how)
        self.reproducible = True

    def contender(self, recipe: Any, label: str) -> ScriptContender:
        return ScriptContender(recipe, label, self.time_limit, self.logs)

    @property
    def site(self) -> Mapping[str, Any]:
        return self.naive.seen or {"loaders": 1, "workers": 0}

    def close(self) -> None:
        super().close()
        self.results.document["files"] = _write_best(self.results.document, self.results.folder)

    def failed(self, row: RungRow, failure: RunFailed) -> None:
        super().failed(row, failure)
        if row["name"] == "naive":
            raise GluontuneError(failure.message) if failure.kind in NOT_A_JOB else failure
        if failure.kind == _UNCHANGED:
            row.update({"status": "skipped", "reason": failure.message, "error": None})

    def compared(self, row: RungRow, variants: list[Variant]) -> ScriptContender:
        """Without the variants that have nothing to change in this script."""
        for each in (self.naive, self.best):  # the measure of all the others
            if each is not None and each.failure is not None:
                raise each.failure
        pairs = [(c, v) for c, v in zip(self.field, variants) if c.failure is None or c.failure.kind != _UNCHANGED]
        if pairs:
            self.field, variants = [c for c, _ in pairs], [v for _, v in pairs]
        row["reason"] = None
        return super().compared(row, variants)

    def checked(self, rung: Rung, row: RungRow, chosen: ScriptContender) -> ScriptContender:
        chosen = super().checked(rung, row, chosen)
        self._facts(row, chosen)
        return chosen

    def passes(self, row: RungRow, chosen: ScriptContender) -> bool:
        """Whether its first losses are the naive ones."""
        if chosen is self.naive:
            return True
        gap, allowed, count = gap_of(self.naive.losses, chosen.losses)
        row["losses"] = {"steps": count, "largest_gap": gap, "allowed": allowed}  # type: ignore[typeddict-unknown-key]
        if gap is None:
            row["notes"].append("losses could not be compared: none could be read")
            return True
        told = told_of(gap, count)
        if row["name"] == "environment" and gap > allowed:  # threads change the rounding alone
            self.reproducible = False
            told += ": the script draws other numbers in each run, and losses prove nothing here"
        asked = chosen.run.dtype in ("float32", self.dtype)
        equal = gap <= allowed or not self.reproducible or chosen.run.dtype == self.dtype != "float32"
        if (asked and equal) or not row["kept"]:
            row["notes"].append(told if asked and equal else f"{told}: {self._why_apart(chosen)}")
            return True
        row.update({"kept": False, "reason": f"{told}: {self._why_apart(chosen)}"})
        return False

    def _why_apart(self, chosen: ScriptContender) -> str:
        if chosen.run.dtype != "float32":
            return f"kept only with --dtype {chosen.run.dtype}"
        if chosen.seen.get("draws"):
            return "PyTorch draws other random numbers; if they will do, take " + chosen.run.command()
        return "more than rounding explains"

    def _facts(self, row: RungRow, chosen: ScriptContender) -> None:
        """Phases, memory and notes of the process; a script that is measured no more has none."""
        group = chosen.group
        if group is None:
            return
        steps = min(_TIMED_STEPS, chosen._steps)
        found = chosen.ask(lambda g: g.individual("phases", steps=steps)) or {}
        if chosen.run.backend == "mxnet":  # elsewhere a pass is gathered in one place and computed in another
            row["phases_pct"] = found.get("phases_pct", {})
        row["peak_rss_mib"] = chosen.ask(lambda g: g.peak_rss_mib())
        if (why_not := found.get("why_not")) and chosen.run.backend == "torch":
            row.update({"kept": False, "verdict": "n/a", "measurable": False, "reason": f"MXNet took over: {why_not}"})
        row["notes"] += [note for note in (*group.notes, *found.get("notes", ())) if note not in row["notes"]]
        if row["name"] == "naive" and chosen.seen.get("samples_per_step") == 1:
            row["notes"].append("no batch size was seen: a step counts as one sample")


def _write_best(document: Mapping[str, Any], folder: Path | None) -> dict[str, str | None] | None:
    """Write ``best.sh``, which runs the script in the best way; None if naive is the best."""
    if folder is None:
        return None
    if not document["best"] or document["best"]["name"] == "naive":
        set_aside(folder / "best.sh")
        return None
    where = shlex.quote(document["script"]["folder"])
    with atomic_write(folder / "best.sh") as file:
        text = f"# The fastest way to run it that gluontune ladder found.\ncd {where} || exit\n"
        file.write(f"{text}{document['best']['command']}\n".encode("utf-8", "surrogateescape"))
    return {"command": "best.sh"}


def gap_of(naive: Sequence[float | None], other: Sequence[float | None]) -> tuple[float | None, float, int]:
    """The largest relative gap of two series of first losses, what rounding explains, and of how many losses.

    Rounding is carried from step to step: what it explains doubles with each. The largest gap is the one that exceeds
    it most.

    >>> gap_of([2.0, 1.0], [2.0, 1.0 + 1e-6])[0] <= 1e-5
    True
    >>> gap, allowed, count = gap_of([2.0, 1.0, 0.5], [2.0, 1.1, 0.5])
    >>> round(gap, 3), allowed, count
    (0.1, 2e-05, 3)
    """
    pairs = [(k, a, b) for k, (a, b) in enumerate(zip(naive, other)) if a is not None and b is not None]
    gaps = [(abs(a - b) / max(abs(a), 1e-6), min(_MOST, _ROUNDING * _GROWTH**k)) for k, a, b in pairs]
    if not gaps:
        return None, _ROUNDING, 0
    gap, allowed = max(gaps, key=lambda each: each[0] / each[1])
    return gap, allowed, len(gaps)


def told_of(gap: float, count: int) -> str:
    """A gap of the first ``count`` losses in words.

    >>> told_of(0.0, 12), told_of(0.0312, 12)
    ("its first 12 losses equal naive's", "its first 12 losses differ from naive's by 3.1 %")
    """
    if not gap:
        return f"its first {count} losses equal naive's"
    much = f"{100 * gap:.1f} %" if gap >= 5e-4 else f"{gap:.0e} (relative)"
    return f"its first {count} losses differ from naive's by {much}"
