"""The search's results: ``tune.json`` as it grows. Each round is kept, so that a killed search goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gluontune import stats
from gluontune.errors import UsageError
from gluontune.files import atomic_write, write_json
from gluontune.ladder.knobs import in_short
from gluontune.ladder.results_store import dataset_facts
from gluontune.ladder.resumable import begin, goes_on, take_up
from gluontune.ladder.rung import Site
from gluontune.reading import understood
from gluontune.recipe import Recipe

__all__ = ["TUNE_SCHEMA", "TuneResults"]

TUNE_SCHEMA = 1


class TuneResults:
    """What a search has measured so far.

    Args:
        document: what ``tune.json`` holds.
        folder: where it is saved, or None to keep it in memory.
    """

    def __init__(self, document: dict[str, Any], folder: Path | None):
        self.document, self.folder = document, folder

    @classmethod
    def open(cls, recipe: Recipe, asked: dict[str, Any], folder: Path | None, resume: bool) -> TuneResults:
        """A new file of results, or with ``resume`` the one that an interrupted search left in ``folder``.

        An older ``tune.json`` is kept beside a new one as ``tune.previous.json``.

        Args:
            asked: what decides the course of the search besides the recipe (knobs, batch sizes, slices).
        """
        path = None if folder is None else folder / "tune.json"
        if goes_on(path, resume):
            with understood(path):
                return cls._taken_up(recipe, asked, path)
        document = begin(
            path,
            TUNE_SCHEMA,
            asked=asked,
            dataset=dataset_facts(recipe),
            site=None,
            base_recipe=recipe.to_dict(),
            seconds=0.0,
            tried=[],
            best=None,
            sentence=None,
            notes=[],
            heats=[],
        )
        return cls(document, folder)

    @classmethod
    def _taken_up(cls, recipe: Recipe, asked: dict[str, Any], path: Path | None) -> TuneResults:
        document = take_up(path, TUNE_SCHEMA, "search", "heats")
        assert path is not None
        differs = recipe.differences(Recipe.from_dict(document["base_recipe"], source=str(path)))
        differs.update({k: v for k, v in asked.items() if document["asked"].get(k) != v})
        if differs:
            changed = ", ".join(f"{name}={value!r}" for name, value in differs.items())
            raise UsageError(
                f"{path}: was searched otherwise (now {changed}); give the same options, or start without --resume"
            )
        return cls({**document, "tried": [], "notes": []}, path.parent)

    @property
    def site(self) -> Site | None:
        found = self.document["site"]
        return None if found is None else Site(**{**found, "rewrites": tuple(found["rewrites"])})

    def enter_site(self, site: Site) -> None:
        self.document["site"] = {**dataclasses.asdict(site), "rewrites": list(site.rewrites)}

    def heat(self, stage: str, number: int, rounds: int, changes: Sequence[dict[str, Any]]) -> Any:
        """The heat that an interrupted search measured with exactly these contenders, or None."""
        for heat in self.document["heats"]:
            if (heat["stage"], heat["round"], heat["rounds"]) == (stage, number, rounds) and changes == [
                e["changes"] for e in heat["entries"]
            ]:
                return heat
        return None

    def enter_heat(self, heat: dict[str, Any]) -> None:
        self.document["heats"].append(heat)
        self.document["seconds"] += heat["seconds"]
        self.save()

    def row(self, stage: str, label: str, **values: Any) -> dict[str, Any]:
        """A new row of the table of what was tried."""
        row = {
            "stage": stage,
            "label": label,
            "status": "skipped",
            "reason": None,
            "remark": "",
            "changes": {},
            "samples_per_sec": None,
            "speedup_vs_start": None,
            "speedup_ci95": None,
            "round_eliminated": None,
            "kept": False,
            **values,
        }
        self.document["tried"].append(row)
        return row

    def enter_best(self, recipe: Recipe, labels: Sequence[str], rates: Sequence[float], start: Sequence[float]) -> None:
        """Name the best recipe so far and write it as YAML beside."""
        speedup = stats.ratio_interval(rates, start)
        short = in_short(recipe)
        if short.job is not None:
            short = short.override(job=str(Path(short.job).resolve()))
        name = " + ".join(labels)
        self.document["best"] = {
            "name": name or "start",
            "labels": list(labels),
            "changes": short.differences(Recipe.from_dict(self.document["base_recipe"])),
            "recipe": short.to_dict(),
            "samples_per_sec": stats.interval(rates),
            "speedup_vs_start": speedup["median"],
            "speedup_ci95": stats.bounds(speedup),
        }
        low, high = speedup["ci95"]
        around = f" (95 %: {low:.2f}–{high:.2f})" if stats.bounds(speedup) else ""
        self.document["sentence"] = (
            f"{speedup['median']:.2f} times as fast as the recipe as it was{around}, by {name}."
            if labels
            else "Nothing that was tried is faster than the recipe as it is."
        )
        if self.folder is not None:
            rate = self.document["best"]["samples_per_sec"]["median"]
            head = f"# found by gluontune tune: {name or 'the start'}, {rate:.0f} samples/s\n"
            with atomic_write(self.folder / "recipe.yaml", "w") as stream:
                stream.write(head + short.to_yaml())

    def save(self) -> None:
        if self.folder is not None:
            write_json(self.folder / "tune.json", self.document)
