"""The ladder's results: ``ladder.json`` as it grows, saved after each rung, taken up again by a resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune import datasets
from gluontune.documents import RungRow
from gluontune.errors import UsageError
from gluontune.files import write_json
from gluontune.ladder.resumable import begin, goes_on, take_up
from gluontune.reading import understood
from gluontune.recipe import Recipe
from gluontune.result import RunResult
from gluontune.stats import Interval

__all__ = ["LADDER_SCHEMA", "ResultsStore", "dataset_facts"]

LADDER_SCHEMA = 1


class ResultsStore:
    """What a climb has found so far.

    Args:
        document: what ``ladder.json`` holds.
        folder: where it is saved, or None to keep it in memory.
    """

    def __init__(self, document: dict[str, Any], folder: Path | None):
        self.document, self.folder = document, folder

    @classmethod
    def open(cls, recipe: Recipe, mode: str, folder: Path | None, resume: bool, names: Sequence[str]) -> ResultsStore:
        """A new file of results, or with ``resume`` the one that an interrupted climb left in ``folder``.

        An older ``ladder.json`` is kept beside a new one as ``ladder.previous.json``.
        """
        path = None if folder is None else folder / "ladder.json"
        if goes_on(path, resume):
            with understood(path):
                return cls._taken_up(recipe, mode, path, names)
        document = begin(
            path,
            LADDER_SCHEMA,
            mode=mode,
            dataset=dataset_facts(recipe),
            base_recipe=recipe.to_dict(),
            rungs=[],
            best=None,
            verdict=None,
            sentence=None,
            budget=None,
            revisited=[],
            proof=None,
            taken_back=[],
            files=None,
        )
        return cls(document, folder)

    @classmethod
    def _taken_up(cls, recipe: Recipe, mode: str, path: Path | None, names: Sequence[str]) -> ResultsStore:
        document = take_up(path, LADDER_SCHEMA, "climb", "base_recipe")
        assert path is not None
        before = Recipe.from_dict(document["base_recipe"], source=str(path))
        differs = recipe.differences(before)
        if document.get("mode") != mode:
            differs["mode"] = mode
        if differs:
            changed = ", ".join(f"{name}={value!r}" for name, value in differs.items())
            raise UsageError(
                f"{path}: was climbed with another recipe (now {changed}); give the same options, or start "
                "without --resume"
            )
        document["rungs"] = [r for r in document["rungs"] if r.get("finished") and r["name"] in names]
        return cls(document, path.parent)

    def finished(self, name: str) -> RungRow | None:
        """The row of a rung that was finished earlier, or None."""
        return next((r for r in self.document["rungs"] if r["name"] == name and r["finished"]), None)

    def enter_run(self, row: RungRow, result: RunResult) -> None:
        """Copy what the report shows of a training run into its row, and save the run beside."""
        for name in (
            "epoch_seconds", "elapsed_seconds", "val_accuracy", "val_metric", "train_loss", "steadiness", "phases_pct",
            "utilization", "phases", "peak_rss_mib", "peak_gpu_mib", "warmup_seconds",
        ):  # fmt: skip
            row[name] = getattr(result, name)
        row["notes"] = [*row["notes"], *(note for note in result.notes if note not in row["notes"])]
        device = "gpu" if result.utilization.get("gpu_util_pct") and result.recipe["devices"] != "cpu" else "cpu"
        row["utilization"] = {**result.utilization, "device": device}
        if result.ok:
            row["reason"] = None
        if self.folder is not None:
            result.save(self.folder / "runs" / f"{row['name']}.json")

    def enter(self, row: RungRow) -> None:
        """Add a row, name the best recipe so far, and save."""
        self.document["rungs"].append(row)
        self.name_best()
        self.save()

    def name_best(self) -> None:
        """Make the recipe of the last kept rung the best one."""
        kept = [r for r in self.document["rungs"] if r["kept"]]
        if kept:
            best = kept[-1]
            self.document["best"] = {
                name: best[name] for name in ("name", "recipe", "samples_per_sec", "speedup_vs_naive", "speedup_ci95")
            }

    def take_back(self, why: str) -> None:
        """The proof has lost accuracy: what was kept after the last training that kept it is not kept any more."""
        kept = [r for r in self.document["rungs"] if r["kept"]]
        while kept and not kept[-1]["accuracy_runs"]:
            kept.pop().update(kept=False, verdict="hurt", reason=why)
        for answer in self.document["revisited"]:  # it came after all of them
            if answer["adopted"]:
                answer.update(adopted=False, reason=why)
        self.name_best()

    def take_back_rung(self, row: RungRow, shown: Mapping[str, Any], proof: dict[str, Any]) -> None:
        """The proof has shown that a rung which shortened the training is no gain; saved at once.

        The best recipe is the one before it. What was kept later was measured on top of it: it is not kept as it
        stands, and its row says ``on_top_of``, so that it is asked again.

        Args:
            shown: the row's new verdict and reason. proof: the one that showed it, kept in ``taken_back``.
        """
        rows = self.document["rungs"]
        for later in rows[rows.index(row) + 1 :]:
            if later["kept"]:
                later.update(kept=False, verdict="n/a", measurable=False, on_top_of=row["name"])
                later["reason"] = f"measured on top of {row['name']}, which the proof took back"
                later.update(val_accuracy=[], accuracy_runs=[], epoch_seconds=[], elapsed_seconds=[])
        row["kept"], row["verdict"] = False, shown["verdict"]
        row["measurable"], row["reason"] = shown["measurable"], shown["reason"]
        row["seconds_to_accuracy"] = {**(row["seconds_to_accuracy"] or {}), "ratio": None, "seconds": None}
        taken = {"rung": row["name"], "reason": row["reason"], "proof": proof}
        self.document["taken_back"] = [*(self.document.get("taken_back") or ()), taken]
        self.document.update(proof=None, revisited=[])
        self.name_best()
        self.save()

    def lengthen(
        self, row: RungRow, ratio: Interval, missed: Sequence[dict[str, float]], epochs: float, found: dict[str, float]
    ) -> None:
        """The proof has shown that the best recipe needs a longer training than the climb had found.

        Args:
            row: of the rung that chose the length; what was kept later has it, too.
            ratio: its gain in time at the length that arrived. missed: the lengths that did not arrive.
            epochs: the one that did. found: seconds and accuracy there.
        """
        rows = self.document["rungs"]
        kept = [r for r in rows[rows.index(row) :] if r["kept"]]
        for place in (*kept, self.document["best"]):
            place["recipe"] = {**place["recipe"], "epochs": epochs}
        row["changes"] = {**row["changes"], "epochs": epochs}
        row["seconds_to_accuracy"] = {**(row["seconds_to_accuracy"] or {}), "ratio": ratio}
        tried = ", ".join(f"{each['epochs']:g} epochs ended at {100 * each['accuracy']:.1f} %" for each in missed)
        accuracy = found["accuracy"]
        now = f"{epochs:g} epochs at {100 * accuracy:.1f} %"
        less = f"{ratio['median']:.2f}× less time than the recipe before it"
        row["notes"].append(f"in the proof {tried}, and {now}: best.yaml trains so long, in {less}")
        if row is kept[-1]:
            row["seconds_to_accuracy"]["seconds"] = found["seconds"]
        kept[-1]["val_accuracy"], kept[-1]["accuracy_runs"] = [accuracy], [accuracy]
        kept[-1]["elapsed_seconds"] = kept[-1]["epoch_seconds"] = [found["seconds"]]

    def kept_accuracies(self) -> list[float]:
        """Final validation accuracies of all trainings of the rungs kept so far."""
        return [value for r in self.document["rungs"] if r["kept"] for value in r.get("accuracy_runs", ())]

    def save(self) -> None:
        if self.folder is not None:
            write_json(self.folder / "ladder.json", self.document)


def dataset_facts(recipe: Recipe) -> dict[str, Any]:
    """What the report says about the data; a job's own data are known to its processes only."""
    if recipe.job is not None:
        return {"name": Path(recipe.job).name, "classes": None, "num_train": None, "num_test": None}
    data = datasets.open(recipe.dataset)
    return {
        "name": data.name,
        "classes": len(data.classes),
        "num_train": len(data.train),
        "num_test": len(data.test),
        "image_shape": list(data.image_shape) if data.image_shape else None,
    }
