"""Long works on pretended machines, whose documents are damaged before they are resumed."""

from __future__ import annotations

import copy
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pretended_machine
import pytest
import tta_fakes

from gluontune import ladder
from gluontune.recipe import Recipe
from gluontune.search import tta
from gluontune.search.bench import scripts
from gluontune.search.study import Part

_RUNGS = ["naive", "environment", "records", "hybridized", "mixed-precision", "large-batch"]


def _tta(folder: Path, resume: bool) -> None:
    against = Recipe(num_workers=1)
    tta.time_to_accuracy(Recipe(), target=0.8, repeats=3, out=folder, resume=resume, against=against)


def _parts(folder: Path, resume: bool) -> None:
    for part in (None,) if resume else (Part(0, 2), Part(1, 2)):
        tta.time_to_accuracy(Recipe(), target=0.8, repeats=4, out=folder, resume=resume, part=part)


def _climb(folder: Path, resume: bool) -> None:
    ladder.climb(Recipe(), rungs=_RUNGS, out=folder, resume=resume)


def _scripts(folder: Path, resume: bool) -> None:
    (folder / "a.py").touch()
    (folder / "list.yaml").write_text("- {path: a.py}\n- {path: a.py, name: b}\n")
    scripts.run(folder / "list.yaml", out=folder, resume=resume)


def _stages(patch: pytest.MonkeyPatch) -> None:
    for name in scripts.STAGES:
        patch.setitem(scripts.STAGES, name, lambda *_: {"status": "ok", "last": "", "seconds": 1.0, "exit": 0})


_WORKS: dict[str, tuple[Callable[[Path, bool], None], str, Callable[[pytest.MonkeyPatch], Any]]] = {
    "tta": (_tta, "tta.json", tta_fakes.pretend),
    "parts": (_parts, "parts/1/tta.json", tta_fakes.pretend),
    "climb": (_climb, "ladder.json", pretended_machine.pretend),
    "scripts": (_scripts, "scripts.json", _stages),
}


@cache
def _done(name: str) -> tuple[Path, Any]:
    """The folder of a finished work, and its document."""
    work, file, _ = _WORKS[name]
    folder = Path(tempfile.mkdtemp())
    work(folder, False)
    return folder, json.loads((folder / file).read_text("utf-8"))


def resume(rng: random.Random, folder: Path, damage: Callable[[Any, random.Random], None]) -> None:
    """Resume one of the works with a damaged document."""
    name = rng.choice(list(_WORKS))
    work, file, pretend = _WORKS[name]
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch)
        done, document = _done(name)
        document = copy.deepcopy(document)
        place = folder / "work"
        shutil.copytree(done, place)
        if name == "scripts":  # it knows the path of its list
            document["given"]["list"] = str(place / "list.yaml")
        try:
            damage(document, rng)
            text = json.dumps(document)
        except (TypeError, ValueError, RecursionError):  # it holds itself
            return
        (place / file).write_text(text)
        work(place, True)
