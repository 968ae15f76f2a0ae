"""After the last rung: dropped changes are measured again on top of the best recipe, and early ones are left out once.

One pass from rung to rung is forward selection: each change is measured on top of the earlier ones, never of the later.
A loader without a gain while the net is slow may gain much once it is fast, and noise may have dropped a rung. So the
best recipe has one more contest, with all questions at once (backward elimination and one more forward step).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gluontune.core.errors import UsageError
from gluontune.core.events import RungRow, rung_row
from gluontune.core.stats import Interval
from gluontune.recipe import Recipe
from gluontune.search.judge import compare, judge, judge_accuracy, verdict_of
from gluontune.search.measure import Contender
from gluontune.search.results_store import AGAIN, WITHOUT
from gluontune.search.rung import Site, Variant
from gluontune.search.rung_contest import Rounds
from gluontune.search.rungs import RUNGS
from gluontune.search.trainings import PART, Trainings
from gluontune.training.group import RunFailed

_LEAST_RATIO = 0.6  # to the recipe before it: a change whose interval lies below is not measured again
_PART = 0.8  # of the free time, for one contest
_LEAST_S = 8.0  # of measuring that a contest needs to begin
_STEPS = 3  # adopted changes at most, each after its own contest


@dataclass(eq=False)
class Question:
    """One change to the best recipe that is measured once more, and its answer.

    ``first`` is the rung's ratio in the climb. ``on_top_of`` is the rung under it that the proof took back: it is
    measured even if the budget is spent. ``row`` is that of its last contest, in the form of a rung's.
    """

    rung: str
    kind: str
    variant: Variant
    first: Interval | None
    on_top_of: str | None = None
    adopted: bool = False

    def __post_init__(self) -> None:
        self.row = rung_row(self.rung, RUNGS[self.rung].sentence)
        self.row["reason"] = "no time was left to ask again"

    @property
    def label(self) -> str:
        return f"{self.rung}, {self.kind}"

    def to_dict(self) -> dict[str, Any]:
        row, ratio = self.row, self.row["ratio_to_previous"]
        return {
            "rung": self.rung, "kind": self.kind, "changes": dict(row["changes"] or self.variant.changes),
            "first": self.first, "ratio": ratio, "verdict": row["verdict"], "adopted": self.adopted,
            "reason": row["reason"], "interaction": interaction(self.rung, self.kind, self.first, ratio),
        }  # fmt: skip


def questions(rows: Sequence[RungRow], best: Recipe, site: Site) -> list[Question]:
    """The changes that are worth a second measurement, from the rows of a climb.

    A dropped rung is asked again, with its chosen variant, if a later rung was kept, or if its time was too short for a
    verdict. A kept rung is left out if a later rung was kept that does not replace it.
    """
    found = []
    before: Mapping[str, Any] = {}
    kept = [place for place, row in enumerate(rows) if row["kept"]]
    for place, row in enumerate(rows):
        later = any(k > place for k in kept)
        if row["kept"]:
            changes = {field: before.get(field) for field in row["changes"]}
            now = best.to_dict()
            stands = all(now[field] == value for field, value in row["changes"].items())
            asked = later and not row.get("left_out") and _by_speed(row["name"])
            if asked and changes and stands and _fits(best, changes):
                variant = Variant(f"without {row['name']}", changes)
                found.append(Question(row["name"], WITHOUT, variant, row["ratio_to_previous"]))
            assert row["recipe"] is not None, "what was kept has a recipe"
            before = row["recipe"]
        elif (later or not row["measurable"]) and _by_speed(row["name"]) and _may_win(row):
            rung = RUNGS[row["name"]]
            variants = [] if rung.requires(best, site) else rung.variants(best, site)
            chosen = next((v["label"] for v in row["variants"] if v["chosen"]), None)
            again = next((v for v in variants if v.label == chosen), None)
            if again is not None and _fits(best, again.changes):
                found.append(Question(row["name"], AGAIN, again, row["ratio_to_previous"], row.get("on_top_of")))
    return found


def _by_speed(rung: str) -> bool:
    """Whether the rung is judged by throughput: neither the start, nor one judged by the time to an accuracy."""
    return rung not in ("naive", "together") and not RUNGS[rung].by_time


def _fits(recipe: Recipe, changes: Mapping[str, Any]) -> bool:
    """Whether the changes fit the rest of the recipe: PyTorch cannot use Gluon's loader."""
    try:
        recipe.override(**changes)
    except UsageError:
        return False
    return True


def _may_win(row: RungRow) -> bool:
    """Whether a dropped rung may win now: not if it lost accuracy, or was far slower."""
    if row["status"] != "ran":
        return False
    ratio = row["ratio_to_previous"]
    lost = any(entry.get("lost") for entry in row["variants"] if entry["chosen"])
    accuracy = row["verdict"] == "hurt" and ratio is not None and verdict_of(ratio) == "helped"
    return ratio is not None and ratio["ci95"][1] >= _LEAST_RATIO and not lost and not accuracy


def revisit(best: Contender, naive: Contender, site: Site, trainings: Trainings, rounds: Rounds) -> Contender:
    """Measure the questions, adopt the changes that help, record interactions; return the contender to go on with."""
    results, document = trainings.results, trainings.results.document
    results.name_best()  # a resumed climb may still name a change adopted before it was killed
    asked = questions(document["rungs"], best.recipe, site)
    answers = {question.label: question for question in asked}
    for _ in range(_STEPS):
        now = _affordable(asked, trainings.budget.free_s, rounds.starts_s)
        if not now:
            break
        changed = {q.label: best.recipe.override(**q.variant.changes) for q in now}
        field = {label: Contender(recipe, label, trainings.time_limit) for label, recipe in changed.items()}
        helped = _measured(now, field, best, naive, trainings, rounds)
        adopted = _adopted(helped, field, best, trainings)
        for name, contender in field.items():
            if adopted is None or name != adopted.label:
                contender.close()
        if adopted is None:
            break
        document["revisited"] = [answer.to_dict() for answer in answers.values()]
        measured: Mapping[str, Any] = adopted.row
        kept = {k: measured[k] for k in ("samples_per_sec", "speedup_vs_naive", "speedup_ci95")}
        name = f"{document['best']['name']}, {adopted.label}"
        document["best"] = {**kept, "name": name, "recipe": measured["recipe"]}
        if best is not naive:
            best.close()
        best = field[adopted.label]
        still = [q.label for q in asked if (q not in now or q in helped) and q is not adopted]
        # On top of the adopted change a rung may change other fields, or none.
        asked = [q for q in questions(document["rungs"], best.recipe, site) if q.label in still]
        for question in asked:
            question.row = answers[question.label].row
            answers[question.label] = question
    document["revisited"] = [answer.to_dict() for answer in answers.values()]
    results.save()
    return best


def _affordable(asked: Sequence[Question], free_s: float, starts_s: float) -> list[Question]:
    def promise(question: Question) -> float:
        ratio = float(question.first["median"]) if question.first else 1.0
        return ratio if question.kind == AGAIN else 1 / ratio

    most = int((_PART * free_s - _LEAST_S) / starts_s + 1e-9) if free_s > 0 else 0
    standing = [question for question in asked if question.on_top_of]
    rest = sorted((q for q in asked if not q.on_top_of), key=promise, reverse=True)
    return [*standing, *rest[: max(0, most - len(standing))]]


def _measured(
    asked: Sequence[Question], field: Mapping[str, Contender], best: Contender, naive: Contender, trainings: Trainings,
    rounds: Rounds,
) -> list[Question]:  # fmt: skip
    """The changes that helped in one contest of all, the fastest first."""
    contest = rung_row("asked again", "what was dropped or kept early, on top of the best")
    seconds = max(_LEAST_S, _PART * trainings.budget.free_s - len(field) * rounds.starts_s)
    standing = any(question.on_top_of for question in asked)
    background_pct = rounds.run(contest, best, naive, list(field.values()), seconds, even_late=standing)
    for question in asked:
        contender, kind = field[question.label], "again" if question.kind == AGAIN else "left-out"
        row = question.row = rung_row(f"{question.rung}-{kind}", RUNGS[question.rung].sentence)
        row.update({"contest_decided": contest["contest_decided"], "reason": None})
        if compare(row, [contender], [question.variant], naive, best, rounds.scatter) is None:
            row.update({"status": "failed", "reason": str(contender.failure)})
        else:
            judge(row, background_pct, has_best=True)
    helped = [question for question in asked if question.row["kept"]]
    return sorted(helped, key=lambda each: -(each.row["ratio_to_previous"] or {"median": 0.0})["median"])


def _adopted(
    helped: Sequence[Question], field: Mapping[str, Contender], best: Contender, trainings: Trainings
) -> Question | None:
    for question in helped:
        row, contender = question.row, field[question.label]
        if question.on_top_of and not trainings.budget.affords(trainings.seconds_of(contender), PART):
            row["reason"] = f"not trained again: its accuracy was kept on top of {question.on_top_of}"
        else:
            try:
                judge_accuracy(row, trainings.check(row, contender, best, alone=True))
            except RunFailed as failure:
                row.update({"kept": False, "status": "failed", "reason": str(failure)})
        if row["kept"]:
            question.adopted = True
            return question
    return None


def interaction(rung: str, kind: str, first: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str | None:
    """A sentence if a change's gain on top of all differs from its gain in the climb; else None.

    >>> interaction("records", "asked again", {"median": 1.0, "ci95": [0.96, 1.04]},
    ...             {"median": 1.5, "ci95": [1.4, 1.6]})
    'records: 1.00× when it was climbed, 1.50× with what was kept later'
    >>> interaction("records", "left out", {"median": 1.5, "ci95": [1.4, 1.6]},
    ...             {"median": 0.66, "ci95": [0.6, 0.7]}) is None
    True
    """
    if first is None or now is None or not now["ci95"][0] > 0:
        return None
    low, high = now["ci95"]
    median = now["median"]
    if kind == WITHOUT:  # the gain is the inverse of the loss without it
        low, median, high = 1 / high, 1 / median, 1 / low
    if low <= first["ci95"][1] and first["ci95"][0] <= high:
        return None
    return f"{rung}: {first['median']:.2f}× when it was climbed, {median:.2f}× with what was kept later"
