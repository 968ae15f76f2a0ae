"""The ladder of an unchanged script: each rung is another way to run it, measured on its own training."""

from __future__ import annotations

import functools
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gluontune import runtime
from gluontune.capture.script import Program
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.events import OnLadderEvent, RungRow, rung_row
from gluontune.core.files import atomic_write, set_aside
from gluontune.core.journal import Document
from gluontune.search.budget import QUICK, Budget, Pace
from gluontune.search.judge import choose, compare, judge, next_best
from gluontune.search.measure import Contender
from gluontune.search.results_store import LADDER_SCHEMA
from gluontune.search.rung_contest import Rounds
from gluontune.search.script_losses import gap_of, told_of
from gluontune.search.script_rungs import SCRIPT_RUNGS
from gluontune.training.group import Group, RunFailed
from gluontune.training.script_run import ScriptRun, ScriptSite, log_name

_LEAST_S = 6.0  # free seconds that a rung needs to begin
_TIMED_STEPS = 20  # for the phases, at most
_UNCHANGED = "NothingToChange"
_NOT_A_JOB = ("NoTraining", "TooShort", "ScriptFailed")


class ScriptContender(Contender):
    """A way to run a script, in a process of its own, which is paused between its turns.

    Args:
        run: how the script is run. label, time_limit: as of Contender. logs: the folder of its output, or None.
    """

    def __init__(self, run: ScriptRun, label: str, time_limit: float, logs: Path | None):
        super().__init__(cast(Any, run), label, time_limit)
        self.run, self._logs = run, logs
        self.losses: list[float | None] = []
        self.notes: list[str] = []

    def launch(self) -> None:
        if self.group is None and self.failure is None:
            self._warm = False
            site = functools.partial(ScriptSite, log=self._logs / log_name(self.label) if self._logs else None)
            with self.guarded():
                self.group = Group(cast(Any, self.run), time_limit=self.time_limit, wait=False, site=site)

    def warm_up(self, slice_s: float, too_slow: float = 0.0) -> float:
        """The process has taken some steps before it is ready: one slice more, unless a step is as long."""
        group = self.group
        if group is None or self._warm:
            return 0.0
        with self.guarded():
            group.wait()
            self.losses, self._step_s = self.seen["losses"], max(self.seen["step_s"], 1e-6)
            rate: float = self.seen["samples_per_step"] / self._step_s
            self._steps = max(1, round(slice_s / self._step_s))
            if self._steps > 1 or rate < too_slow:
                seen = group.steps(self._steps)
                self._step_s, rate = seen["seconds"] / seen["count"], seen["samples"] / seen["seconds"]
                self._steps = max(1, round(slice_s / self._step_s))
            group.pause()
            self._warm = True
            return rate
        return 0.0

    @property
    def seen(self) -> Mapping[str, Any]:
        """What its process saw of the script."""
        return self.group.ready[0] if self.group is not None and self.group.ready else {}


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
    wanted = set(SCRIPT_RUNGS if rungs is None else rungs)
    for name in sorted(wanted - set(SCRIPT_RUNGS)):
        raise UsageError(f"--rungs {name!r}: a script has no such rung; choose of {', '.join(SCRIPT_RUNGS)}")
    names = [name for name in SCRIPT_RUNGS if name in {"naive", *wanted}]
    run = ScriptRun(tuple(words))
    folder = Path(out) if out is not None else None
    fields: dict[str, Any] = {
        "mode": pace.name, "dataset": {"name": Path(run.job).name}, "base_recipe": run.to_dict(), "rungs": [],
        **dict.fromkeys(("best", "verdict", "sentence", "budget", "proof", "files")), "revisited": [], "taken_back": [],
        "script": {"words": list(words), "folder": os.getcwd()},
    }  # fmt: skip
    results = Document(folder and folder / "ladder.json", "climb", LADDER_SCHEMA, fields, runtime.machine_facts)
    budget = Budget(pace.budget_s if budget_s is None else budget_s)
    budget.release_proof()
    climber = _Climber(run, results, pace, budget, names, on_event or (lambda event: None), time_limit, dtype)
    with results.under_way():
        try:
            climber.climb()
        finally:
            climber.close()
            results.document["budget"] = {"seconds": budget.total_s, "spent_seconds": budget.spent_s}
            results.document["files"] = _write_best(results.document, folder)
            results.save()
    climber.tell({"event": "ladder-end", "ladder": results.document})
    return results.document


class _Climber:
    """One climb with a script."""

    def __init__(
        self, run: ScriptRun, results: Document, pace: Pace, budget: Budget, names: list[str], tell: OnLadderEvent,
        time_limit: float, dtype: str,
    ):  # fmt: skip
        self.document, self.results, self.budget, self.names, self.tell = results.document, results, budget, names, tell
        self.time_limit, self.dtype = time_limit, dtype
        self.logs = results.path.parent / "logs" if results.path is not None else None
        self.naive = self.best = self._contender(run, "naive")
        self.field: list[ScriptContender] = []
        self.rounds = Rounds(budget, pace.slice_s, tell)
        self.seen: Mapping[str, Any] = {"loaders": 1, "workers": 0}  # of the script, as far as it is known
        self.reproducible = True

    def _contender(self, run: ScriptRun, label: str) -> ScriptContender:
        return ScriptContender(run, label, self.time_limit, self.logs)

    def close(self) -> None:
        for contender in (self.naive, self.best, *self.field):
            contender.close()

    def climb(self) -> None:
        self.tell({"event": "ladder-start", "rungs": self.names, "mode": self.document["mode"],
                   "dataset": self.document["dataset"]})  # fmt: skip
        for place, name in enumerate(self.names):
            sentence, ways = SCRIPT_RUNGS[name]
            began, left = time.monotonic(), max(0.0, self.budget.left_s)
            self.tell({"event": "rung-start", "name": name, "sentence": sentence, "seconds_left": left})
            row = rung_row(name, sentence)
            try:
                self._rung(row, ways, self._possible(self.names[place:]))
                row["finished"] = True
            except RunFailed as failure:
                if name == "naive" and failure.kind in _NOT_A_JOB:
                    raise GluontuneError(failure.message) from failure
                skipped = failure.kind == _UNCHANGED
                row.update({"status": "skipped" if skipped else "failed", "verdict": "n/a", "kept": False})
                row.update({"reason": failure.message if skipped else str(failure), "finished": True})
                row["error"] = None if skipped else failure.to_dict()
                if name == "naive":
                    raise
            finally:
                row["seconds"] = time.monotonic() - began
                for contender in self.field:
                    if contender is not self.best:
                        contender.close()
                self.field = []
                self.document["rungs"].append(row)
                self._name_best()
                self.results.save()
            self.tell({"event": "rung-end", "row": row})

    def _possible(self, names: list[str]) -> list[str]:
        """The rungs that still need time."""
        return [name for name in names if not isinstance(SCRIPT_RUNGS[name][1](self.best.run, self.seen), str)]

    def _rung(self, row: RungRow, ways: Callable[..., Any], still: list[str]) -> None:
        naive = row["name"] == "naive"
        variants = ways(self.best.run, self.seen)
        if not isinstance(variants, str) and not naive and self.budget.free_s < _LEAST_S:
            variants = "not measured: the budget was used up by the rungs before it"
        if isinstance(variants, str):
            row.update({"status": "skipped", "reason": variants})
            return
        field = [self._contender(self.best.run.override(**v.changes), v.label) for v in variants]
        self.field = [self.naive] if naive else field
        starting = len(self.field) * self.rounds.starts_s
        seconds = self.budget.slices_s(row["name"], still, starting)
        load = self.rounds.run(row, None if naive else self.best, self.naive, list(self.field), seconds)
        for each in (self.naive, self.best):  # the measure of all the others
            if each.failure is not None:
                raise each.failure
        self.seen = self.naive.seen
        best = None if naive else self.best
        pairs = [(c, v) for c, v in zip(self.field, variants) if c.failure is None or c.failure.kind != _UNCHANGED]
        if not pairs:
            raise next(c.failure for c in self.field if c.failure is not None)
        self.field, variants = [c for c, _ in pairs], [v for _, v in pairs]
        chosen = compare(row, self.field, variants, self.naive, best, self.rounds.scatter)
        if chosen is None:
            raise next(c.failure for c in self.field if c.failure is not None)
        row["reason"] = None
        judge(row, load, has_best=not naive)
        chosen = cast(ScriptContender, chosen) if naive else self._of_equal_losses(row, cast(ScriptContender, chosen))
        self._facts(row, chosen)
        if row["kept"] and not naive:
            if self.best is not self.naive:
                self.best.close()
            self.best = chosen

    def _of_equal_losses(self, row: RungRow, chosen: ScriptContender) -> ScriptContender:
        """The fastest variant whose first losses are the naive ones."""
        while True:
            gap, allowed, count = gap_of(self.naive.losses, chosen.losses)
            row["losses"] = {"steps": count, "largest_gap": gap, "allowed": allowed}  # type: ignore[typeddict-unknown-key]
            if gap is None:
                row["notes"].append("losses could not be compared: none could be read")
                return chosen
            told = told_of(gap, count)
            if row["name"] == "environment" and gap > allowed:  # threads change the rounding alone
                self.reproducible = False
                told += ": the script draws other numbers in each run, and losses prove nothing here"
            asked = chosen.run.dtype in ("float32", self.dtype)
            equal = gap <= allowed or not self.reproducible or chosen.run.dtype == self.dtype != "float32"
            if asked and equal:
                row["notes"].append(told)
                return chosen
            why = self._why_apart(chosen)
            if not row["kept"]:
                row["notes"].append(f"{told}: {why}")
                return chosen
            row.update({"kept": False, "reason": f"{told}: {why}"})
            another = next_best(row, self.field)
            if another is None:
                return chosen
            chosen = cast(ScriptContender, another)
            choose(row, chosen, self.field, self.naive)
            judge(row, 0.0, has_best=True)

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
        why_not = found.get("why_not")
        if why_not and chosen.run.backend == "torch":
            row.update({"kept": False, "verdict": "n/a", "measurable": False, "reason": f"MXNet took over: {why_not}"})
        row["notes"] += [note for note in (*group.notes, *found.get("notes", ())) if note not in row["notes"]]
        if row["name"] == "naive" and chosen.seen.get("samples_per_step") == 1:
            row["notes"].append("no batch size was seen: a step counts as one sample")

    def _name_best(self) -> None:
        kept = [row for row in self.document["rungs"] if row["kept"]]
        if kept:
            names = ("name", "recipe", "samples_per_sec", "speedup_vs_naive", "speedup_ci95")
            self.document["best"] = {name: kept[-1][name] for name in names} | {"command": self.best.run.command()}


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
