"""The trainings of a climb: their cost, their results, whether accuracy was lost."""

from __future__ import annotations

import contextlib

from gluontune.core import stats
from gluontune.core.events import OnProgress, Progress, RungRow
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.budget import Budget, BudgetSpent, fit_epochs
from gluontune.search.judge import PARITY_POINTS, Loss, loss_of, not_measurable
from gluontune.search.measure import Contender
from gluontune.search.results_store import ResultsStore
from gluontune.training.group import Group, RunFailed

_NO_ARITHMETIC = {"runtime", "num_workers", "prefetch"}  # the same images in the same order, the same sums
_ROUNDING = {*_NO_ARITHMETIC, "loader", "hybridize", "rewrites", "backend"}  # each is checked to compute the same
PART = 0.7  # of the free time that one training of a rung may take
_SPARE_PART = 0.05  # the same for one that can hardly change the verdict
_STARTS_S = 8.0  # guessed, for a further process


def alike(recipe: Recipe, other: Recipe, but: set[str] = _NO_ARITHMETIC) -> bool:
    """Whether two recipes compute the same numbers, at different speeds; with ``but=_ROUNDING`` but for rounding.

    >>> alike(Recipe(), Recipe(runtime="tuned")), alike(Recipe(), Recipe(hybridize="static"))
    (True, False)
    """
    return set(recipe.differences(other)) <= but


class Trainings:
    def __init__(self, results: ResultsStore, budget: Budget, tell: OnProgress, time_limit: float):
        self.results, self.budget, self.tell, self.time_limit = results, budget, tell, time_limit
        self.validation: dict[str, float] = {}  # {"samples", "seconds"} of the naive script
        self.batches = 0  # in an epoch of the naive script

    def probe(self, naive: Contender) -> None:
        """Validate once with the naive script, to know the time of a training before it begins."""

        def look(group: Group) -> None:
            seen = group.validate()
            self.validation = {"samples": float(seen["samples"]), "seconds": float(seen["seconds"])}
            self.batches = group.batches_per_epoch

        naive.ask(look)

    def fit_length(self, row: RungRow, naive: Contender) -> Contender:
        """The naive script, shortened if the budget requires it; if not even that fits, no accuracy is measured."""
        document = self.results.document
        document["num_val"] = self.num_val
        asked, batch = naive.recipe.epochs, naive.recipe.global_batch_size
        fitted = fit_epochs(
            asked, batches_per_epoch=self.batches, step_s=batch / stats.interval(naive.rates)["median"],
            validation_s=self.validation.get("seconds", 0.0), budget_s=self.budget.total_s,
        )  # fmt: skip
        document["samples_per_epoch"] = (self.batches * batch or None) if fitted is not None else None
        if fitted is None:
            text = "throughput is measured, accuracy is not looked at"
            row["notes"].append(f"the budget does not suffice for one training: {text}")
        elif fitted < asked:
            budget = f"the budget of {self.budget.total_s / 60:.3g} min"
            row["notes"].append(f"each training is {fitted:g} epochs long instead of {asked:g}, to fit into {budget}")
            naive = naive.of_length(fitted, "naive")
        return naive

    @property
    def num_val(self) -> int | None:
        found = self.validation.get("samples") or self.results.document.get("num_val")
        return int(found) if found else None

    def seconds_of(self, contender: Contender) -> float:
        rate = stats.interval(contender.rates)["median"] if contender.rates else 0.0
        samples = self.results.document.get("samples_per_epoch")
        if not rate or not samples:
            return float("inf")
        return float(samples * contender.recipe.epochs / rate + self.validation.get("seconds", 0.0))

    def train(self, row: RungRow, contender: Contender, *, part: float = PART) -> RunResult | None:
        """Train in a ``part`` of the free time; None if the time is too short, with a note if it was given up."""
        needs = self.seconds_of(contender)
        if not self.budget.affords(needs, part):
            return None
        result = RunResult(recipe=contender.recipe.to_dict(), machine=self.results.document["machine"])
        # Twice the expected time, because the machine may become slower, but not beyond the free time.
        check = self.budget.deadline(max(10.0, min(2.0 * needs + 10.0, self.budget.free_s)))
        name = row["name"]

        def on_event(event: Progress) -> None:
            self.tell({**event, "name": name})
            check()

        try:
            contender.train(result, on_event)
        except BudgetSpent:
            row["notes"].append(f"a training was given up: {contender.label} took longer than the budget allows")
            return None
        except (RunFailed, KeyboardInterrupt) as error:
            result.status, result.error = "interrupted", None
            if isinstance(error, RunFailed):
                result.status, result.error = "failed", error.to_dict()
            self.results.enter_run(row, result)
            raise
        return result

    def check(self, row: RungRow, contender: Contender, best: Contender | None, *, alone: bool = False) -> Loss | None:
        """Train a rung's choice if that is worth its time, and return the loss of accuracy.

        A change without a gain, or one that computes the same numbers up to rounding, is trained only if time abounds:
        the proof trains it with all others. ``alone``: only a change with the same numbers needs no training.
        """
        row["accuracy_runs"] = []
        but = _NO_ARITHMETIC if alone else _ROUNDING
        same = best is not None and alike(contender.recipe, best.recipe, but)
        idle = best is not None and (same or not row["kept"])
        result = self.train(row, contender, part=_SPARE_PART if idle else PART if best is not None else 1.0)
        if result is None:
            self._untrained(row, contender, best, same)
            return None
        self.results.enter_run(row, result)
        row["accuracy_runs"] = result.val_accuracy[-1:]
        return self._loss(row, contender)

    def _loss(self, row: RungRow, contender: Contender) -> Loss | None:
        kept, mine = self.results.kept_accuracies(), row["accuracy_runs"]
        if not kept or not mine:
            return None
        loss = loss_of(kept, mine, self.num_val)
        if loss.certain(PARITY_POINTS) and not loss.collapsed and row["kept"]:
            again = self.repeat(row, contender)
            if again is not None:
                row["accuracy_runs"] = [*mine, again]
                loss = loss_of(kept, row["accuracy_runs"], self.num_val)
                both = f"{100 * mine[0]:.1f} % and {100 * again:.1f} %"
                row["notes"].append(f"trained twice, for the first accuracy was low: {both}")
        elif loss.points > PARITY_POINTS and not loss.certain(PARITY_POINTS):
            row["notes"].append(f"{loss.sentence}: no more than noise, as far as can be told")
        return loss

    def repeat(self, row: RungRow, contender: Contender) -> float | None:
        """Final accuracy of the same recipe by another seed; None if there is no time or no accuracy."""
        if not self.budget.affords(self.seconds_of(contender) + _STARTS_S, 0.6):
            return None
        recipe = contender.recipe.override(seed=contender.recipe.seed + 1)
        other = Contender(recipe, f"{contender.label}, another seed", self.time_limit)
        other.rates = contender.rates
        other.launch()
        with contextlib.closing(other), other.guarded():
            if other.group is not None:
                other.group.wait()
                result = self.train(row, other, part=1.0)
                return result.val_accuracy[-1] if result and result.val_accuracy else None
        return None

    def _untrained(self, row: RungRow, contender: Contender, best: Contender | None, same: bool) -> None:
        if row["kept"]:
            row["reason"] = None
        if best is not None and alike(contender.recipe, best.recipe):
            row["notes"].append("not trained again: it computes the same numbers as the recipe before it")
        elif same:
            if row["kept"]:
                text = "it computes the same but for rounding; the proof trains it with all others"
                row["notes"].append(f"not trained alone: {text}")
        elif row["kept"] and row["name"] != "naive" and self.results.kept_accuracies():
            ratio = row["ratio_to_previous"]
            assert ratio is not None, "what was kept was measured"
            fast = f"it is {ratio['median']:.2f}× as fast"
            needs = f"a training of about {self.seconds_of(contender):.0f} s, to see its accuracy"
            not_measurable(row, f"{fast}, but {needs}, does not fit into what is left of the budget")
        row["status"] = "ran"
