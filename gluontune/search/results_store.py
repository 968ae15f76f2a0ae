"""The ladder's results: ``ladder.json``, saved after each rung, which a resume goes on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune import runtime
from gluontune.core.events import RungRow
from gluontune.core.journal import Document
from gluontune.core.stats import Interval
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.rung import label_of

LADDER_SCHEMA = 1


class ResultsStore(Document):
    """The results of a climb so far: ``ladder.json``, saved after each rung.

    ``start`` is the naive recipe, or run of a script; a resume takes over the rows of the rungs ``names``.
    """

    def __init__(
        self, folder: Path | None, mode: str, dataset: Mapping[str, Any], start: Any, resume: bool = False,
        names: Sequence[str] = (), **more: Any,
    ):  # fmt: skip
        self.folder, path = folder, None if folder is None else folder / "ladder.json"
        fields: dict[str, Any] = {
            "mode": mode, "dataset": dataset, "base_recipe": start.to_dict(), "rungs": [],
            **dict.fromkeys(("best", "verdict", "sentence", "budget")),
            "revisited": [], "proof": None, "taken_back": [], "files": None, **more,
        }  # fmt: skip
        super().__init__(
            path, "climb", LADDER_SCHEMA, fields, runtime.machine_facts, usual=Recipe().to_dict(), resume=resume,
            asked=lambda document: {"recipe": document["base_recipe"], "mode": document["mode"]},
        )  # fmt: skip
        self.document["rungs"] = [r for r in self.document["rungs"] if r.get("finished") and r["name"] in names]

    def finished(self, name: str) -> RungRow | None:
        """The row of a rung that an earlier climb finished, or None."""
        return next((r for r in self.document["rungs"] if r["name"] == name and r["finished"]), None)

    def enter_run(self, row: RungRow, result: RunResult) -> None:
        """Copy the report's figures of a training run into its row, and save the run in ``runs/``."""
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
        names = ("name", "recipe", "samples_per_sec", "speedup_vs_naive", "speedup_ci95")
        for row in [r for r in self.document["rungs"] if r["kept"]][-1:]:
            self.document["best"] = {name: row[name] for name in names}

    def over_naive(self) -> Interval:
        """The best recipe's speed against naive."""
        row = next(r for r in reversed(self.document["rungs"]) if r["kept"])
        value = row["speedup_vs_naive"] or 1.0
        return {"median": value, "ci95": row["speedup_ci95"] or [value, value], "n": 0}

    def leave_out(self, rung: str, back: Mapping[str, Any]) -> None:
        """The best recipe goes on without a rung of what was proven together: set its fields back in each kept row."""
        rows = self.document["rungs"]
        together = next(row for row in rows if row["name"] == "together")
        for row in (row for row in rows[rows.index(together) :] if row["kept"]):
            row["recipe"] = {**row["recipe"], **back}
        changes = {name: value for name, value in together["changes"].items() if name not in back}
        for chosen in (each for each in together["variants"] if each["chosen"]):
            chosen["changes"] = changes
        together["changes"] = changes
        together["notes"].append(f"measured with {rung}, too, which the best recipe does without")

    def take_back(self, why: str) -> None:
        """After a proof that lost accuracy: withdraw the last kept rung, and those before it that were never trained.

        Explained rungs go or stay with what was proven together; none of them is called the cause.
        """
        taken: list[RungRow] = []
        kept = [r for r in self.document["rungs"] if r["kept"]]
        while len(kept) > 1 and not (kept[-1]["accuracy_runs"] and any(not r.get("left_out") for r in taken)):
            taken.append(kept.pop())
        for row in taken:
            if not row.get("left_out"):
                row.update({"kept": False, "verdict": "hurt", "reason": why})
            elif any(r["name"] == "together" for r in taken):
                row.update({"kept": False, "verdict": "n/a", "measurable": False})
                row["reason"] = f"taken back with the others: {why}"
            else:
                row["notes"].append(why)
        for answer in self.document["revisited"]:  # it came after all of them
            if answer["adopted"]:
                answer.update(adopted=False, reason=why)
        self.name_best()

    def take_back_part(self, name: str, back: Mapping[str, Any], why: str, proof: dict[str, Any]) -> None:
        """After a proof that lost accuracy: the best recipe goes on without a rung of what was proven together."""
        for row in (r for r in self.document["rungs"] if r["name"] == name and r.get("left_out")):  # it was explained
            row.update({"kept": False, "verdict": "hurt", "measurable": True, "reason": f"taken back: {why}"})
        self.leave_out(name, back)
        self._took_back(name, f"taken back: {why}", proof)

    def take_back_rung(self, row: RungRow, shown: Mapping[str, Any], proof: dict[str, Any]) -> None:
        """After a proof in which a rung that shortened the training is no gain: withdraw it, and save at once.

        Later rungs were measured on top of it: they are withdrawn, too, and get ``on_top_of``, so that they are asked
        again. ``shown`` is the row's new verdict.
        """
        rows = self.document["rungs"]
        for later in (r for r in rows[rows.index(row) + 1 :] if r["kept"]):
            later.update(kept=False, verdict="n/a", measurable=False, on_top_of=row["name"])
            later["reason"] = f"measured on top of {row['name']}, which the proof took back"
            later.update(val_accuracy=[], accuracy_runs=[], epoch_seconds=[], elapsed_seconds=[])
        row["kept"], row["verdict"] = False, shown["verdict"]
        row["measurable"], row["reason"] = shown["measurable"], shown["reason"]
        row["seconds_to_accuracy"] = {**(row["seconds_to_accuracy"] or {}), "ratio": None, "seconds": None}
        self.document["revisited"] = []
        self._took_back(row["name"], row["reason"], proof)

    def _took_back(self, name: str, reason: str | None, proof: dict[str, Any]) -> None:
        taken = {"rung": name, "reason": reason, "proof": proof}
        self.document["taken_back"] = [*(self.document.get("taken_back") or ()), taken]
        self.document["proof"] = None
        self.name_best()
        self.save()

    def lengthen(
        self, row: RungRow, ratio: Interval, missed: Sequence[dict[str, float]], epochs: float, found: dict[str, float]
    ) -> None:
        """After a proof that needed a longer training than ``row`` had chosen: enter the length that arrived.

        Rungs kept later get it, too. ``ratio`` is the gain in time at this length, ``found`` its seconds and accuracy.
        """
        rows = self.document["rungs"]
        kept = [r for r in rows[rows.index(row) :] if r["kept"]]
        for place in (*kept, self.document["best"]):
            place["recipe"] = {**place["recipe"], "epochs": epochs}
        row["changes"] = {**row["changes"], "epochs": epochs}
        for chosen in (each for each in row["variants"] if each["chosen"]):
            chosen["changes"], chosen["label"] = row["changes"], label_of(chosen["label"], epochs)
            chosen["epochs"], chosen["accuracy"] = epochs, found["accuracy"]
            chosen["seconds_to_accuracy"] = found["seconds"]
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
