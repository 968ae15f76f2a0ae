"""The rung of large batches: what reaches the accuracy first, and how short a schedule still does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gluontune.core import stats
from gluontune.core.events import RungRow, VariantRow
from gluontune.recipe.result import RunResult
from gluontune.search.budget import FEWEST_UPDATES
from gluontune.search.judge import PARITY_POINTS, choose, not_measurable, verdict_of
from gluontune.search.measure import Contender
from gluontune.search.rung import label_of
from gluontune.search.rung_contest import Rounds
from gluontune.search.sequential import LOOKS, ratio_at_look
from gluontune.search.trainings import Trainings
from gluontune.training.group import RunFailed

SHORTER = 0.7  # of the length, for the next attempt after one that reached the accuracy
_WORTH = 1.05  # least gain in time, by the slices, for which a candidate is trained
_SETTLE = 0.3  # of the free time, for more slices of the winner
_SHORTENED = 3  # times at the most
_MARGIN = PARITY_POINTS / 2  # for a shortened schedule: the proof, and ranks with other sums, end a little otherwise
_PART = 0.6  # of the free time, for one training


def _percent(accuracies: Sequence[float]) -> str:
    return " and ".join(f"{100 * accuracy:.1f} %" for accuracy in accuracies)


class Batches:
    """The trainings of the large-batch rung; ``best``, the recipe to beat, was measured in ``field``'s contest.

    Candidates are judged by the seconds to the accuracy of the kept recipes, not by throughput: a larger batch is a
    little faster and learns less from each image.
    """

    def __init__(
        self, row: RungRow, best: Contender, naive: Contender, field: Sequence[Contender], trainings: Trainings,
        rounds: Rounds,
    ):  # fmt: skip
        self.row, self.best, self.naive, self.trainings, self.rounds = row, best, naive, trainings, rounds
        self.field = list(field)
        kept = trainings.results.kept_accuracies()
        self.target = sum(kept) / len(kept) - PARITY_POINTS if kept else None
        self.found: list[dict[str, Any]] = []
        self.winner: Contender | None = None
        self.added: list[Contender] = []  # started here, for a shorter length
        self._results: dict[str, RunResult] = {}

    def promise(self, contender: Contender) -> stats.Interval:
        """Time of the best recipe's training ÷ time of this one's, from the slices of both."""
        ratio = ratio_at_look(contender.rates, self.best.rates, len(self.field), self.rounds.scatter)
        return stats.scaled(ratio, self.best.recipe.epochs / contender.recipe.epochs)

    def search(self) -> Contender | None:
        """Train candidates until one reaches the accuracy; return it, or None. The row gets the results."""
        if self.target is None:
            return None
        ran = [c for c in self.field if c.failure is None and c.rates and c.cut is None]
        for contender in sorted(ran, key=self._gain, reverse=True):
            if self._gain(contender) < _WORTH:
                self._entry(contender)["reason"] = "not trained: it is too slow to arrive earlier"
            elif self.winner is not None and not self._could_be_earlier(contender, self.winner):
                self._entry(contender)["reason"] = f"not trained: {self.winner.label} had arrived"
            elif self._try(contender, self.target):
                self._shorten(contender, self.target)
        if self.winner is not None:
            self.trainings.results.enter_run(self.row, self._results[self.winner.label])
            self.row["accuracy_runs"] = self.found_of(self.winner)["accuracies"]
            self._settle(self.winner)
        self._conclude(self.target)
        return self.winner

    def _try(self, contender: Contender, bar: float) -> bool:
        """Train it. Returns whether it reached the accuracy ``bar``."""
        text = f"training {contender.label} for {contender.recipe.epochs:g} epochs"
        self.rounds.progress(self.row["name"], "training", 0.0, text)
        try:
            result = self.trainings.train(self.row, contender, part=_PART)
        except RunFailed as failure:
            self._entry(contender)["reason"] = f"failed: {failure}"
            return False
        if result is None or not result.val_accuracy:
            self._entry(contender)["reason"] = "not trained: no time was left for it"
            return False
        accuracies, seconds = [result.val_accuracy[-1]], result.elapsed_seconds[-1]
        near = abs(accuracies[0] - bar) < PARITY_POINTS
        if near and (again := self.trainings.repeat(self.row, contender)) is not None:
            accuracies.append(again)
            both = f"{_percent(accuracies)}, where {_percent([bar])} are asked"
            self.row["notes"].append(f"{contender.label}: trained twice, for it ended near the bar: {both}")
        arrived = sum(accuracies) / len(accuracies) >= bar
        accuracy, epochs = accuracies[0], contender.recipe.epochs
        self.found.append({
            "label": contender.label, "epochs": epochs, "accuracy": accuracy,
            "curve": [list(point) for point in zip(result.elapsed_seconds, result.val_accuracy)],
            "accuracies": accuracies, "seconds": seconds, "arrived": arrived, "ratio": self.promise(contender),
        })  # fmt: skip
        reached_s = seconds if arrived else None
        self._entry(contender).update(accuracy=accuracy, epochs=epochs, seconds_to_accuracy=reached_s, lost=not arrived)
        self._results[contender.label] = result
        if arrived and (self.winner is None or self._gain(contender) > self._gain(self.winner)):
            self.winner = contender
        return arrived

    def _gain(self, contender: Contender) -> float:
        return self.promise(contender)["median"]

    def _shortest(self, contender: Contender) -> float:
        """Epochs below which a schedule of this recipe is not tried."""
        samples = self.trainings.results.document.get("samples_per_epoch") or 0
        return FEWEST_UPDATES * contender.recipe.update_batch_size / samples if samples else contender.recipe.epochs

    def _could_be_earlier(self, contender: Contender, winner: Contender) -> bool:
        """Whether a still shorter schedule of one whose length is a guess could be clearly earlier than the winner."""
        epochs = contender.recipe.epochs
        if epochs >= self.best.recipe.epochs:
            return False
        shortest = max(self._shortest(contender), epochs * SHORTER**2)
        return self._gain(contender) * epochs / shortest > _WORTH * self._gain(winner)

    def _shorten(self, contender: Contender, target: float) -> None:
        """Train it with shorter schedules while there is time; after the first that misses, one in between."""
        base, missed = contender, 0.0
        for _ in range(_SHORTENED):
            epochs = max(SHORTER * base.recipe.epochs, self._shortest(base), math.sqrt(missed * base.recipe.epochs))
            epochs = math.ceil(1000 * epochs - 1e-6) / 1000
            if epochs * _WORTH > base.recipe.epochs:
                return
            shorter = base.of_length(epochs, label_of(contender.label, epochs))
            if not self.trainings.budget.affords(self.trainings.seconds_of(shorter), _PART):
                shorter.hand_to(base)
                return
            self.added.append(shorter)
            if self._try(shorter, target + _MARGIN):
                base = shorter
                continue
            shorter.hand_to(base)
            if missed:
                return
            missed = epochs

    def _settle(self, winner: Contender) -> None:
        """Measure more slices of the winner and the best, in turn, until the winner's gain is certain."""
        text = f"measuring {winner.label} beside the recipe before it"
        self.rounds.progress(self.row["name"], "training", 0.0, text)
        budget, best = self.trainings.budget, self.best
        until = budget.spent_s + _SETTLE * max(0.0, budget.free_s)
        while len(winner.rates) < LOOKS[-1] and budget.spent_s < until:
            if len(winner.rates) in LOOKS and self.promise(winner)["ci95"][0] > 1:
                return
            for contender in stats.in_turn((winner, best), len(winner.rates)):
                contender.slice()
            if best.failure is not None or winner.failure is not None:
                return

    def _entry(self, contender: Contender) -> Any:
        """The row's entry of a contender; an empty one of a shorter length, which :meth:`enter` adds."""
        return next((e for e, c in zip(self.row["variants"], self.field) if c is contender), {})

    def _conclude(self, target: float) -> None:
        row, goal = self.row, f"{100 * target:.1f} %"
        reference = self.trainings.seconds_of(self.best) - self.trainings.validation.get("seconds", 0.0)
        found = row["seconds_to_accuracy"] = {
            "target": target, "reference_seconds": reference, "seconds": None, "ratio": None, "candidates": self.found,
        }  # fmt: skip
        if self.winner is None:
            row["kept"] = False
            if tried := "; ".join(f"{f['label']}: {_percent(f['accuracies'])}" for f in self.found):
                row["verdict"] = "no gain"
                row["reason"] = f"nothing that was tried reaches {goal} earlier than the recipe before it ({tried})"
            elif any("no time" in (e["reason"] or "") for e in row["variants"]):
                not_measurable(row, "no time was left to train any of them")
            return
        ratio, arrived = self.promise(self.winner), self.found_of(self.winner)
        found.update(seconds=arrived["seconds"], ratio=ratio)
        row["verdict"] = verdict_of(ratio)
        row["kept"] = row["verdict"] == "helped"
        goal = f"{goal} accuracy (2 points below the kept rungs)"
        text = f"{ratio['median']:.2f}× less time {stats.around(ratio)} to {goal}"
        row["reason"] = None if row["kept"] else f"{text} than the recipe before it: not certain"
        if row["kept"]:
            row["notes"].append(f"{text}: {self.winner.label}, {100 * arrived['accuracy']:.1f} %")

    def found_of(self, contender: Contender) -> dict[str, Any]:
        return next(f for f in reversed(self.found) if f["label"] == contender.label)

    def enter(self) -> None:
        """Make the winner the row's choice; a shorter length becomes a variant of its own."""
        winner = self.winner
        if winner is None:
            return
        if winner in self.added:
            found = self.found_of(winner)
            changes = winner.recipe.differences(self.best.recipe)
            sibling = next(e for e, c in zip(self.row["variants"], self.field) if c.rates is winner.rates)
            entry: VariantRow = {
                "label": winner.label, "changes": changes, "status": "ran", "reason": None, "chosen": False,
                "samples_per_sec": sibling["samples_per_sec"], "ratio_to_previous": sibling["ratio_to_previous"],
                "lost": False, "predicted": None, "accuracy": found["accuracy"], "epochs": found["epochs"],
                "seconds_to_accuracy": found["seconds"],
            }  # fmt: skip
            self.field.append(winner)
            self.row["variants"].append(entry)
            self.row["predicted"] = None  # that of another length
        choose(self.row, winner, self.field, self.naive)
