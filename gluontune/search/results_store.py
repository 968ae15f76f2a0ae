"""The files of a climb: ``ladder.json``, saved after each rung; ``best.yaml`` and ``best.py`` of its best recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gluontune import runtime
from gluontune.core.errors import clean, literal
from gluontune.core.events import RungRow, deciding
from gluontune.core.files import atomic_write, set_aside
from gluontune.core.journal import Document
from gluontune.core.stats import Interval
from gluontune.job.job import SMALL_NETS
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.rung import label_of

LADDER_SCHEMA = 1
AGAIN, WITHOUT = "asked again", "left out"  # kinds of revisited changes


class ResultsStore(Document):
    """``ladder.json``. ``start`` is the naive recipe, or run of a script; a resume takes over the rows of ``names``."""

    def __init__(
        self, folder: str | Path | None, mode: str, dataset: Mapping[str, Any], start: Any, resume: bool = False,
        names: Sequence[str] = (), **more: Any,
    ):  # fmt: skip
        self.folder = None if folder is None else Path(folder)
        path = self.folder and self.folder / "ladder.json"
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
        self.document["rungs"].append(row)
        self.name_best()
        self.save()

    def name_best(self) -> None:
        names = ("name", "recipe", "samples_per_sec", "speedup_vs_naive", "speedup_ci95")
        for row in [r for r in self.document["rungs"] if r["kept"]][-1:]:
            self.document["best"] = {name: row[name] for name in names}

    def over_naive(self) -> Interval:
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
        return [value for r in self.document["rungs"] if r["kept"] for value in r.get("accuracy_runs", ())]


_WIDTH = 1 << 20  # of a line of YAML
#: Fields of the climb, not of the job: they do not belong into somebody's recipe.
_CLIMB_FIELDS = ("train_samples", "val_samples", "seconds", "target_accuracy")


def write_best(document: Mapping[str, Any], folder: Path, step: str = "usual") -> dict[str, str | None] | None:
    """Write ``best.yaml``, and ``best.py`` if a script can train the recipe.

    Files of an earlier climb that this one does not replace become ``best.previous.yaml`` and ``best.previous.py``.

    Returns:
        ``{"yaml", "script", "reason"}``: names, and the reason for no script; None if naive is the best.
    """
    found, texts = None, {"best.yaml": "", "best.py": ""}
    if document["best"] is not None and document["best"]["name"] != "naive":
        reason = _no_script(Recipe.from_dict(document["best"]["recipe"]), step)
        texts = {"best.yaml": best_yaml(document), "best.py": "" if reason else best_script(document)}
        found = {"yaml": "best.yaml", "script": None if reason else "best.py", "reason": reason}
    for name, text in texts.items():
        if not text:
            set_aside(folder / name)
            continue
        with atomic_write(folder / name) as file:
            file.write(text.encode("utf-8"))
    return found


def _no_script(best: Recipe, step: str) -> str | None:
    if best.backend == "torch":
        return (
            "PyTorch trains it in gluontune's loop: gluontune train --recipe best.yaml; a PyTorch project of your own "
            "comes from gluontune migrate"
        )
    ranks = best.engine == "shared-memory" and best.exchange_every == 1
    if not ranks and (best.engine != "local" or best.num_devices > 1):
        return "its processes need more than a plain script: gluontune train --recipe best.yaml starts them"
    if best.methods:
        names = ", ".join(best.methods)
        return f"its methods ({names}) are gluontune's: gluontune train --recipe best.yaml trains with them"
    if best.dtype == "float16":
        return "float16 needs more than a plain script: gluontune train --recipe best.yaml"
    if best.job is not None:
        why = "the job's own step() trains in gluontune's loop: gluontune train --recipe best.yaml trains it"
        return None if step == "usual" else why
    return None


def changed_fields(document: Mapping[str, Any]) -> dict[str, str]:
    """Each field that the climb changed, with its rung's gain: one line, for comments."""
    gains: dict[str, str] = {}
    for row in document["rungs"]:
        if not row["kept"] or row["name"] == "naive":
            continue
        by_time, ratio = (row.get("seconds_to_accuracy") or {}).get("ratio"), deciding(row)
        what = "less time to the accuracy" if by_time else "the speed"
        text = f"{row['name']}: {ratio['median']:.2f}x {what} here" if ratio else row["name"]
        gains.update(dict.fromkeys(row["changes"], clean(text)))
    for answer in document.get("revisited") or ():
        if answer["adopted"] and answer["kind"] == AGAIN:
            text = f"{answer['rung']}: {answer['ratio']['median']:.2f}x the speed here, on top of the rest"
            gains.update(dict.fromkeys(answer["changes"], clean(text)))
        elif answer["adopted"]:
            for field in answer["changes"]:
                gains.pop(field, None)
    return gains


def best_yaml(document: Mapping[str, Any]) -> str:
    """The best recipe as YAML with the gain of each change; fields of the climb itself are left out."""
    best, base = Recipe.from_dict(document["best"]["recipe"]), Recipe.from_dict(document["base_recipe"])
    naive = next(
        (Recipe.from_dict(r["recipe"]) for r in document["rungs"] if r["name"] == "naive" and r["recipe"]), base
    )
    gains, usual = changed_fields(document), Recipe()
    lines = [
        "# The fastest recipe of gluontune ladder on this machine. Train with it: gluontune train --recipe best.yaml",
        f"# The climb trained {naive.epochs:g} epoch(s) of {clean(document['dataset']['name'])}; its length is left"
        " out: give yours by --epochs.",
    ]
    for name, value in best.to_dict().items():
        if name in _CLIMB_FIELDS or (name == "dataset" and value == "sample" and best.job is None):
            continue
        if name == "epochs":
            if value != naive.epochs:
                share = value / naive.epochs
                lines.append(f"# Its epochs were {share:.2f} of the naive script's: {gains.get(name, 'large-batch')}")
                lines.append(f"epochs: {round(share * base.epochs, 3):g}")
            continue
        if name in gains or value != usual.to_dict()[name]:
            scalar = yaml.safe_dump(value, default_flow_style=True, width=_WIDTH).replace("\n...", "").strip()
            if "\n" in scalar:  # escaped, a text of several lines is one line
                scalar = yaml.safe_dump(value, default_flow_style=True, width=_WIDTH, default_style='"').strip()
            lines.append(f"{name}: {scalar}  # {gains[name]}" if name in gains else f"{name}: {scalar}")
    return "\n".join(lines) + "\n"


def best_script(document: Mapping[str, Any]) -> str:
    """A Gluon training script of the best recipe: with its own loop around gluontune's parts, or around a job's."""
    import jinja2

    best, gains = Recipe.from_dict(document["best"]["recipe"]).resolved(), changed_fields(document)

    def why(*names: str) -> str:
        texts = dict.fromkeys(gains[name] for name in names if name in gains)
        return f"  # {'; '.join(texts)}" if texts else ""

    env = runtime.applied(runtime.child_env(best.runtime, best.env, processes=best.num_devices))
    several, accumulated = best.num_devices > 1, best.accumulate > 1
    whole = "GLOBAL_BATCH" if several else "BATCH"
    if best.job is not None:
        whole = "len(label) * RANKS.world" if several else "len(label)"
    values = {
        "environment": "".join(f"    {literal(k)}: {literal(v)},\n" for k, v in sorted(env.items())),
        "job": None if best.job is None else str(Path(best.job).resolve()),
        "changes": "".join(f"#   {clean(field)}: {gain}\n" for field, gain in gains.items()) or "#   none\n",
        "own_net": best.net in SMALL_NETS.names(),
        "whole": whole,
        "updates": f"steps // {best.accumulate}" if accumulated else "steps",
        "per_update": f" / {best.accumulate}" if accumulated else "",
        "parameters": "".join(f", {k}={v!r}" for k, v in best.optimizer_params.items()),
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters.update(repr=repr, dict=dict)
    return environment.get_template("best.py.j2").render(best=best, why=why, **values)
