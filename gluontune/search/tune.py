"""Tuning: a bounded search for the recipe that trains fastest on this machine.

The knobs are turned one after the other, each on top of the best recipe so far. A knob's options run
against each other by successive halving (Jamieson, Talwalkar, *Non-stochastic Best Arm Identification
and Hyperparameter Optimization*, 2016): few interleaved repeats of all, more of the better half, and so
on. The start and the best recipe so far run in every heat, so that each figure is a ratio within one
heat. At the end every choice is left out once, and removed if that costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gluontune import runtime
from gluontune.core import stats
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.events import OnProgress
from gluontune.core.journal import resumable
from gluontune.recipe import Recipe
from gluontune.recipe.registry import Registry
from gluontune.search.budget import BudgetSpent
from gluontune.search.judge import TIE, verdict_of
from gluontune.search.racing import Candidate, Racing, TuneResults
from gluontune.search.rung import Rung, Site, Variant, adding_to, always, effect_of, processes_of
from gluontune.search.rungs import RUNGS

KNOBS: Registry[Rung] = Registry("knob")
_knob = adding_to(KNOBS)


@_knob("threads", "OpenMP threads of each training process")
def _threads(recipe: Recipe, site: Site) -> list[Variant]:
    ranks = processes_of(recipe)
    found: dict[int, Variant] = {}
    for cores in (None, max(1, site.cores // 2), site.cores):
        env = runtime.launch_settings(ranks, cores=cores, allocator="none").env
        count = int(env["OMP_NUM_THREADS"])
        found.setdefault(count, Variant(f"{count} thread{'s' if count > 1 else ''}", {"env": env}))
    return list(found.values())


@_knob("allocator", "the library that allocates and frees memory")
def _allocator(recipe: Recipe, site: Site) -> list[Variant]:
    found = []
    threads = runtime.launch_settings(allocator="none").env
    for name in ("glibc", "tcmalloc", "jemalloc"):
        label = "glibc, tuned" if name == "glibc" else name
        try:
            env = runtime.launch_settings(allocator=name).env
        except GluontuneError as error:
            found.append(Variant(label, {}, missing=str(error)))
            continue
        found.append(Variant(label, {"env": {k: v for k, v in env.items() if k not in threads}}))
    return found


@_knob("compute", "execution mode, rewrites and data type, which depend on each other")
def _compute(recipe: Recipe, site: Site) -> list[Variant]:
    """Every mode in every type: bfloat16 without its rewrites can be slower than float32."""
    modes = [Variant("imperative", {"hybridize": "imperative", "rewrites": ()})]
    modes += [Variant(v.label, {"rewrites": (), **v.changes}) for v in RUNGS["hybridized"].variants(recipe, site)]
    precision = RUNGS["mixed-precision"]
    if lacking := precision.requires(recipe, site):
        return [*modes, Variant("16 bits", {}, missing=lacking)]
    dtype = precision.variants(recipe, site)[0].changes["dtype"]
    if recipe.dtype == dtype:
        return [Variant(f"float32, {o.label}", {**o.changes, "dtype": "float32"}) for o in modes] + modes
    remark = "results change in the third digit: compare the accuracy"
    return modes + [Variant(f"{dtype}, {o.label}", {**o.changes, "dtype": dtype}, remark=remark) for o in modes]


@_knob(
    "rewrites", "the rewrites, each left out",
    lambda r, _: "the best recipe so far has fewer than two rewrites" if len(r.rewrites) < 2 else None, slot="compute",
)  # fmt: skip
def _rewrites(recipe: Recipe, site: Site) -> list[Variant]:
    kept = {"hybridize": recipe.hybridize, "dtype": recipe.dtype}
    rest = {name: tuple(r for r in recipe.rewrites if r != name) for name in recipe.rewrites}
    return [Variant(f"without {name}", {**kept, "rewrites": others}) for name, others in rest.items()]


@_knob(
    "amx", "Intel's matrix unit, which oneDNN leaves off",
    lambda r, _: None if r.dtype == "bfloat16" else "the best recipe so far does not compute in bfloat16",
    exists=lambda site: site.amx,
)  # fmt: skip
def _amx(recipe: Recipe, site: Site) -> list[Variant]:
    names = tuple(dict.fromkeys((*recipe.rewrites, "narrow-in-float32")))
    narrow = {"env": runtime.AMX_ENV, "rewrites": names}
    return [Variant("AMX", {"env": runtime.AMX_ENV}), Variant("AMX, narrow in float32", narrow)]


@_knob("loader", "the loader that decodes and augments, and its workers")
def _loader(recipe: Recipe, site: Site) -> list[Variant]:
    rungs = [RUNGS[name] for name in ("multi-worker", "records")]
    return [v for rung in rungs if rung.requires(recipe, site) is None for v in rung.variants(recipe, site)]


def batch_size_knob(sizes: Sequence[int]) -> Rung:
    """Turned only on request: another batch size trains another model."""
    remark = "another batch size converges differently: compare the accuracy, not the throughput alone"
    options = [Variant(f"batch {n}", {"batch_size_per_device": n}, remark=remark) for n in sizes]
    return Rung("batch-size", "images in one step", always, lambda recipe, site: options)


def options_of(knob: Rung, recipe: Recipe, site: Site) -> list[Variant]:
    """The knob's options that change ``recipe``, each once, and those that cannot be tried here."""
    seen, found = [effect_of(recipe)], []
    for option in knob.variants(recipe, site):
        effect = None if option.missing else effect_of(option.on(recipe))
        if effect is None or effect not in seen:
            found.append(option)
            seen += [effect] if effect is not None else []
    return found


ROUNDS = (3, 5, 9)  # slices of each contender in the first, second and later heats of a knob
FINAL = 3  # options at most in a knob's last heat
NOT_REACHED = "the search ended before it was tried"


@resumable
def tune(
    recipe: Recipe,
    *,
    budget_minutes: float = 10.0,
    out: str | Path | None = None,
    knobs: Iterable[str] | None = None,
    batch_sizes: Sequence[int] = (),
    resume: bool = False,
    slice_s: float = 0.4,
    on_event: OnProgress | None = None,
    time_limit: float = 600.0,
) -> dict[str, Any]:
    """Search the recipe that trains the job fastest here, and return the document of ``tune.json``.

    Throughput alone is compared. Check the accuracy of a choice whose remark says that results change:
    ``gluontune train --recipe OUT/recipe.yaml``.

    Args:
        recipe: the start; its epochs do not matter.
        budget_minutes: no heat begins that would end later; options that were not tried have rows with that reason.
        out: folder for ``tune.json`` (after each heat) and ``recipe.yaml`` (the best so far).
        knobs: names of :data:`KNOBS`; all by default.
        batch_sizes: per device; tried only if given, because another batch size trains another model.
        resume: go on with the search in ``out``; its heats are not measured again.
        slice_s: seconds of one repeat of a contender, about. on_event: called as by :func:`gluontune.train.run`.
        time_limit: seconds after which a silent training process counts as hung.

    Raises:
        UsageError: an unknown knob, a budget or batch size that is too small.
        GluontuneError: the start does not train, or the folder cannot be written. A failed option is a row.

    >>> import gluontune as gt
    >>> start = gt.Recipe(net="mlp", loader="resident", train_samples=256, val_samples=64)
    >>> found = gt.ladder.tune(start, knobs=["threads"], budget_minutes=0.01)  # ten minutes by default
    >>> found["complete"], found["tried"][0]["stage"]
    (True, 'start')
    """
    if not budget_minutes > 0 or not slice_s > 0:
        raise UsageError(f"budget_minutes={budget_minutes}, slice_s={slice_s}: give times above 0")
    recipe = recipe.override(seconds=None, target_accuracy=None)
    for size in batch_sizes:
        recipe.override(batch_size_per_device=size)
    chosen = [KNOBS[n] for n in KNOBS.names() if knobs is None or n in [KNOBS[k].name for k in knobs]]
    asked = {"knobs": [k.name for k in chosen], "batch_sizes": list(batch_sizes), "slice_s": slice_s}
    results = TuneResults(recipe, asked, Path(out) if out is not None else None, resume)
    if batch_sizes:
        chosen.append(batch_size_knob(batch_sizes))
    heats = Racing(recipe, results, budget_minutes * 60, slice_s, on_event or (lambda event: None), time_limit)
    try:
        with results.under_way():
            _Search(heats).run(chosen)
        if not results.document["complete"]:
            results.document["notes"].append("interrupted: the same call with resume goes on")
    finally:
        heats.close()
        results.save()
    return results.document


class _Search:
    def __init__(self, heats: Racing):
        self.heats, self.results = heats, heats.results
        self.choices: dict[str, Variant] = {}  # by the knob's slot
        self.kept: dict[str, dict[str, Any]] = {}  # rows

    def run(self, knobs: Sequence[Rung]) -> None:
        self.heats.heat("start", 1, [], ROUNDS[-1])
        self._name_best()
        knobs = [knob for knob in knobs if knob.exists(self.results.site)]
        try:
            for knob in knobs:
                self._turn(knob)
            self._take_back()
        except BudgetSpent:
            minutes = self.heats.budget_s / 60
            self.results.document["notes"].append(f"the budget of {minutes:g} minutes ended the search")
            begun = {row["stage"] for row in self.results.document["tried"]}
            for knob in knobs:
                if knob.name not in begun:
                    self.results.row(knob.name, "—", reason=NOT_REACHED)

    def _turn(self, knob: Rung) -> None:
        best, site = self.heats.best.recipe, self.results.site
        reason = knob.requires(best, site)
        options = [] if reason else options_of(knob, best, site)
        if not options:
            self.results.row(knob.name, "—", reason=reason or "nothing to change")
        field_: list[Candidate] = []
        for option in options:
            row = self.results.row(knob.name, option.label, remark=option.remark, reason=option.missing or NOT_REACHED)
            if not option.missing:
                field_.append(self.heats.candidate(option.on(best), option.label, row, option))
        if not field_:
            return
        finalists, whole = self._halve(knob.name, field_)
        winner = self._winner(finalists)
        for candidate in finalists:
            if candidate is not winner:
                candidate.close()
        if winner is not None and winner.option is not None:
            self.choices[knob.slot or knob.name] = winner.option
            self._adopt(winner, knob.slot or knob.name)
        if not whole:
            raise BudgetSpent

    def _halve(self, stage: str, field_: list[Candidate]) -> tuple[list[Candidate], bool]:
        """Successive halving: the last candidates, and whether it went to the end."""
        left, number = field_, 0
        while True:
            number += 1
            last = len(left) <= FINAL
            rounds = ROUNDS[-1] if last else ROUNDS[min(number, len(ROUNDS)) - 1]
            try:
                self.heats.measure(stage, number, left, rounds)
            except BudgetSpent:
                return [c for c in left if c.rates and c.lost is None], False
            ranked = sorted((c for c in left if c.lost is None), key=lambda c: c.merit, reverse=True)
            keep = ranked if last else ranked[: max(1, (len(left) + 1) // 2)]
            for candidate in left:
                if candidate not in keep:
                    candidate.drop(number)
            left = [c for c in field_ if c in keep]  # from the smallest change to the largest
            if last or not left:
                return left, True

    def _winner(self, finalists: Sequence[Candidate]) -> Candidate | None:
        """The smallest change that ties with the fastest, if it certainly beats the best so far; else None."""
        fastest = max((c.merit for c in finalists), default=0.0)
        for candidate in finalists:
            ratio = stats.ratio_interval(candidate.rates, candidate.beside)
            if ratio["median"] * (1 + TIE) >= fastest:
                return candidate if verdict_of(ratio) == "helped" and ratio["median"] > 1 + TIE else None
        return None

    def _adopt(self, winner: Candidate, slot: str) -> None:
        self.kept[slot] = winner.row
        if self.heats.best is not self.heats.start:
            self.heats.best.close()
        self.heats.best = winner
        self._name_best()

    def _name_best(self) -> None:
        kept = [id(row) for row in self.kept.values()]
        for row in self.results.document["tried"]:
            row["kept"] = id(row) in kept
        self.results.enter_best(self.heats.best, [choice.label for choice in self.choices.values()])

    def _take_back(self) -> None:
        """Leave out each choice; remove those that cost nothing to leave out, the smallest loss first."""
        while len(self.choices) > 1:
            field_: dict[str, Candidate] = {}
            for slot, option in self.choices.items():
                recipe, label = self.heats.start.recipe, f"without {option.label}"
                for other, choice in self.choices.items():
                    recipe = recipe if other == slot else choice.on(recipe)
                row = self.results.row("take back", label, reason=NOT_REACHED)
                field_[slot] = self.heats.candidate(recipe, label, row)
            self.heats.measure("take back", 1, list(field_.values()), ROUNDS[-1])
            ran = [(c.merit, slot, c) for slot, c in field_.items() if c.lost is None]
            merit, slot, kept = max(ran, key=lambda entry: entry[0], default=(0.0, "", self.heats.best))
            for candidate in field_.values():
                if candidate is not kept:
                    candidate.drop(1)
            if merit * (1 + TIE) < 1.0:
                kept.close()
                return
            del self.choices[slot], self.kept[slot]
            self._adopt(kept, f"without {slot}")
