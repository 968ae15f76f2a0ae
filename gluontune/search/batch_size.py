"""Large batches: candidates are trained, and judged by the seconds to the accuracy of the kept recipes.

Throughput does not decide: a larger batch is a little faster and learns less from each image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluontune.core import stats
from gluontune.core.events import RungRow, VariantRow
from gluontune.core.stats import Interval
from gluontune.search.budget import SHORTEST_UPDATES
from gluontune.search.judge import PARITY_POINTS, choose, verdict_of
from gluontune.search.measure import Contender
from gluontune.search.rung import label_of
from gluontune.search.rung_contest import Rounds
from gluontune.search.sequential import LOOKS, ratio_at_look
from gluontune.search.trainings import Trainings
from gluontune.training.group import RunFailed

SHORTER = 0.7  # of the length, for the next attempt after one that reached the accuracy
_WORTH = 1.05  # least gain in time, by the slices, for which a candidate is trained
_SETTLE = 0.3  # of the free time, for more slices of the winner
_SHORTENED = 2  # times at the most
_PART = 0.6  # of the free time, for one training


class Batches:
    """The trainings of the large-batch rung; ``best``, the recipe to beat, was measured in ``field``'s contest."""

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

    def promise(self, contender: Contender) -> Interval:
        """Time of the best recipe's training ÷ time of this one's, from the slices of both."""
        ratio = ratio_at_look(contender.rates, self.best.rates, len(self.field), self.rounds.scatter)
        return stats.scaled(ratio, self.best.recipe.epochs / contender.recipe.epochs)

    def search(self) -> Contender | None:
        """Train candidates until one reaches the accuracy; return it, or None. The row gets the results."""
        if self.target is None:
            return None
        ran = [c for c in self.field if c.failure is None and c.rates and c.cut is None]
        order = sorted(ran, key=lambda c: -self.promise(c)["median"])
        for contender in order:
            if self.promise(contender)["median"] < _WORTH:
                self._note(contender, "not trained: it is too slow to arrive earlier")
                continue
            if self.winner is None:
                self._try(contender)
            else:
                self._note(contender, f"not trained: {self.winner.label} had arrived")
        if self.winner is not None:
            self._shorten(self.winner)
            self._settle(self.winner)
        self._conclude()
        return self.winner

    def _tell(self, text: str) -> None:
        self.rounds.progress(self.row["name"], "training", 0.0, text)

    def _try(self, contender: Contender) -> bool:
        self._tell(f"training {contender.label} for {contender.recipe.epochs:g} epochs")
        try:
            result = self.trainings.train(self.row, contender, part=_PART)
        except RunFailed as failure:
            self._note(contender, f"failed: {failure}")
            return False
        if result is None or not result.val_accuracy:
            self._note(contender, "not trained: no time was left for it")
            return False
        accuracy, seconds = result.val_accuracy[-1], result.elapsed_seconds[-1]
        arrived = self.target is not None and accuracy >= self.target
        curve = [[s, a] for s, a in zip(result.elapsed_seconds, result.val_accuracy)]
        seen = {"label": contender.label, "epochs": contender.recipe.epochs, "accuracy": accuracy, "curve": curve}
        self.found.append({**seen, "seconds": seconds, "arrived": arrived, "ratio": self.promise(contender)})
        self._note(contender, None)
        if arrived:
            self.winner = contender
            self.trainings.results.enter_run(self.row, result)
            self.row["accuracy_runs"] = [accuracy]
        return arrived

    def _shorten(self, winner: Contender) -> None:
        """Train the winner with shorter schedules, as long as it reaches the accuracy and there is time."""
        base, samples = winner, self.trainings.results.document.get("samples_per_epoch") or 0
        for _ in range(_SHORTENED):
            epochs = round(base.recipe.epochs * SHORTER, 3)
            if epochs * samples < SHORTEST_UPDATES * base.recipe.update_batch_size:
                return
            shorter = base.of_length(epochs, label_of(winner.label, epochs))
            affords = self.trainings.budget.affords(self.trainings.seconds_of(shorter), _PART)
            self.added += [shorter] if affords else []
            if not affords or not self._try(shorter):
                shorter.hand_to(base)
                return
            base = shorter

    def _settle(self, winner: Contender) -> None:
        """Measure more slices of the winner and the best, in turn, until the winner's gain is certain."""
        self._tell(f"measuring {winner.label} beside the recipe before it")
        budget, best = self.trainings.budget, self.best
        until = budget.spent_s + _SETTLE * max(0.0, budget.free_s)
        while len(winner.rates) < LOOKS[-1] and budget.spent_s < until:
            if len(winner.rates) in LOOKS and self.promise(winner)["ci95"][0] > 1:
                return
            pair = (best, winner) if len(winner.rates) % 2 else (winner, best)
            for contender in pair:
                contender.slice()
            if best.failure is not None or winner.failure is not None:
                return

    def _note(self, contender: Contender, text: str | None) -> None:
        for entry, candidate in zip(self.row["variants"], self.field):
            if candidate is contender:
                entry["reason"] = text or entry["reason"]
                if text is None:
                    last = self.found[-1]
                    entry["accuracy"], entry["epochs"] = last["accuracy"], last["epochs"]
                    entry["seconds_to_accuracy"] = last["seconds"] if last["arrived"] else None
                    entry["lost"] = not last["arrived"]

    def _conclude(self) -> None:
        row, goal = self.row, f"{100 * (self.target or 0.0):.1f} %"
        reference = self.trainings.seconds_of(self.best) - self.trainings.validation.get("seconds", 0.0)
        found = row["seconds_to_accuracy"] = {
            "target": self.target or 0.0, "reference_seconds": reference, "seconds": None, "ratio": None,
            "candidates": self.found,
        }  # fmt: skip
        if self.winner is None:
            row["kept"] = False
            if tried := "; ".join(f"{f['label']}: {100 * f['accuracy']:.1f} %" for f in self.found):
                row["verdict"] = "no gain"
                row["reason"] = f"nothing that was tried reaches {goal} earlier than the recipe before it ({tried})"
            elif any("no time" in (e["reason"] or "") for e in row["variants"]):
                row.update({"verdict": "n/a", "measurable": False})
                row["reason"] = "not measurable here now: no time was left to train any of them"
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
