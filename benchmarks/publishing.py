"""Published documents from the documents of runs: ``python -m benchmarks publish ID RUN``; nothing is transcribed."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.published import check_published, rounded
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.events import deciding
from gluontune.core.files import write_json
from gluontune.core.reading import read_json
from gluontune.report import document_types, formatting as fmt
from gluontune.report.read import check_ladder
from gluontune.report.sentence import ladder_sentence
from gluontune.report.table import verdict_text
from gluontune.runtime.packages import mxnet_wheels

__all__ = ["commit", "machine_of", "publish"]

HERE = Path(__file__).resolve().parent
_SHOWN = {"amx_bf16": "AMX", "avx512_bf16": "avx512_bf16", "avx512_vnni": "avx512_vnni", "avx2": "avx2"}
_MODELS = {"Intel(R) Xeon(R)": "an Intel Xeon", "AMD EPYC": "an AMD EPYC"}
Figure = dict[str, Any]  # title, command, n, columns, rows, notes, chart of a published document


def machine_of(facts: Mapping[str, Any]) -> str:
    """A run's machine in a line.

    >>> machine_of({"cpu": {"model": "Intel(R) Xeon(R) Processor", "flags": ["avx2", "avx512_bf16", "amx_bf16"],
    ...     "usable_cores": 2}, "memory_mib": 24105, "gpus": []})
    '2 cores of an Intel Xeon (AMX, avx512_bf16), 24 GiB, no GPU'
    """
    cpu = facts["cpu"]
    model = next((name for known, name in _MODELS.items() if known in cpu["model"]), cpu["model"])
    flags = [word for flag, word in _SHOWN.items() if flag in cpu["flags"]][:2]
    gpus = ", ".join(gpu["name"] for gpu in facts["gpus"]) or "no GPU"
    memory = round(facts["memory_mib"] / 1024)
    return f"{cpu['usable_cores']} cores of {model} ({', '.join(flags)}), {memory} GiB, {gpus}"


def publish(ident: str, run: Path, folder: Path = HERE, command: str = "") -> Path:
    """Write the published document ``ident`` of a run's document, and return its path.

    Args:
        ident: the name in the docs' tables. run: the JSON of a ladder, of ``bench scripts``, or of what ``gluontune
            report`` shows, whose first table is taken. folder: for tests.
        command: that wrote the run's document, where its kind has several.

    Raises:
        UsageError: a document of another kind, or one that was interrupted. GluontuneError: it cannot be read.
    """
    document = read_json(run)
    kind = document.get("kind") or ("ladder" if "rungs" in document else "")
    if kind not in KINDS and document_types.kind_of(document) is None:
        raise UsageError(f"{run}: of kind {kind!r}; there are {', '.join([*KINDS, *document_types.KINDS])}")
    if not document.get("complete", True):
        raise UsageError(f"{run}: was interrupted; go on with --resume, or begin anew")
    made = KINDS[kind](document) if kind in KINDS else _study(document, str(run))
    packages = document["machine"]["packages"]
    versions = {"mxnet": next(iter((mxnet_wheels(packages) or mxnet_wheels()).values()))}
    versions |= {name: packages.get(name) or importlib.metadata.version(name) for name in ("numpy", "torch")}
    found = {
        "schema_version": 1,
        "kind": "published",
        "id": ident,
        "date": document.get("created", datetime.fromtimestamp(run.stat().st_mtime).isoformat())[:10],
        "machine": machine_of(document["machine"]),
        "versions": {"python": document["machine"]["python"], **versions, **document.get("versions", {})},
        "provenance": "by python -m benchmarks publish from the run's own document",
        "commit": commit(),
        **made,
    }
    found["command"] = command or found["command"]
    check_published(found, str(run))
    path = folder / f"{ident}.json"
    write_json(path, found)
    return path


def commit() -> str:
    """The commit that is checked out, ten digits."""
    words = ["git", "rev-parse", "--short=10", "HEAD"]
    there = shutil.which("git") is not None
    said = subprocess.run(words, cwd=HERE, capture_output=True, text=True) if there else None
    if said is None or said.returncode:
        raise GluontuneError("git rev-parse HEAD fails: publish figures from a clone of gluontune")
    return said.stdout.strip()


def _ladder(document: Mapping[str, Any]) -> Figure:
    ladder = check_ladder(document)
    rows = []
    for row in ladder["rungs"]:
        chosen = next((v["label"] for v in row["variants"] if v.get("chosen")), "")
        trained = row["elapsed_seconds"]
        whole = None if row.get("left_out") else row["speedup_vs_naive"]  # a part's is that of the guess
        without = None if row["name"] == "together" else deciding(row)  # of the guess it is the next column
        rows.append([
            row["name"], chosen or ("as written" if row["name"] == "naive" else ""),
            rounded(row["samples_per_sec"], 0), rounded(without, 2),
            rounded(whole and {"median": whole, "ci95": row["speedup_ci95"]}, 2),
            round(trained[-1], 1) if trained else "", fmt.reached(row) or "",
            re.sub(r"^\W+ ", "", verdict_text(row).plain),
        ])  # fmt: skip
    sample = document["dataset"]["name"] == "sample"
    where = "the embedded sample" if sample else document["dataset"]["name"]
    data, minutes = ladder["dataset"], ladder["budget"]["spent_seconds"] / 60
    slices = max((row["samples_per_sec"]["n"] for row in ladder["rungs"] if row["samples_per_sec"]), default=0)
    return {
        "title": f"The ladder on {where}: {document['base_recipe']['net']}, {data['num_train']:,} images",
        "command": "make ladder" if sample else f"gluontune ladder --dataset {data['name']}",
        "n": f"up to {slices} interleaved slices a contender; {minutes:.0f} minutes in all",
        "columns": ["rung", "tried", "img/s (95 %)", "÷ without it", "÷ naive (95 %)", "training, s",
                    "accuracy", "verdict"],
        "rows": rows,
        "notes": [ladder_sentence(ladder)],
        "chart": {"label": "rung", "value": "img/s (95 %)", "unit": "images a second", "ratio": "÷ naive (95 %)",
                  "kept": "verdict"},
    }  # fmt: skip


def _scripts(document: Mapping[str, Any]) -> Figure:
    """A row for each script that runs as it is, and a column for each stage that was run."""
    from benchmarks.scripts.preparing import read

    repositories, entries = read()
    known = {entry["name"]: (entry["path"], repositories[entry["from"]]) for entry in entries}
    rows = []
    for row in document["rows"]:
        stages = row["stages"]
        if stages.get("as is", {"status": "ok"})["status"] != "ok":
            continue
        turn, moved = stages.get("in turn", {}), stages.get("torch", {})
        ratios = turn.get("ratios", {})
        rows.append([
            _linked(row["name"], known), _said(stages.get("captured", {}), "cell"),
            rounded(ratios.get("run"), 2), _losses(turn), rounded(ratios.get("torch"), 2),
            f"{moved['steps_on_torch']:,} of {moved['steps']:,}" if moved.get("steps_on_torch") else _said(moved),
            _said(stages.get("migrated", {}), "cell"),
        ])  # fmt: skip
    names = [
        "script",
        "captured, float64",
        "run ÷ as is",
        "losses of run",
        "PyTorch ÷ as is",
        "steps on PyTorch",
        "migrated",
    ]
    shown = [place for place in range(len(names)) if any(row[place] for row in rows)]
    figures = document["figures"]
    counts = [f"{name}: {each['ok']} of {len(rows)}" for name, each in figures.items() if name != "as is"]
    medians = [
        f"{way} ÷ as is: median {found['median']:.2f}, least {found['least']:.2f}, of {found['n']}"
        for way, found in figures.get("in turn", {}).items()
        if isinstance(found, Mapping)
    ]
    return {
        "title": f"{len(rows)} Gluon scripts that others wrote, unchanged",
        "command": "make scripts FROM=CHECKOUTS",
        "n": "one run a stage; speeds: 9 slices in turn, of the same steps, 0.7 s of the script as it is",
        "columns": [names[place] for place in shown],
        "rows": [[row[place] for place in shown] for row in rows],
        "notes": ["; ".join([*counts, *medians])],
    }


def _study(document: Mapping[str, Any], source: str) -> Figure:
    """The tables of a document's page under each other, as that page has them."""
    view = document_types.view(document, source)
    tables = [(part["title"], table) for part in view["sections"] for table in part["tables"]]
    if not tables:
        raise UsageError(f"{source}: has no table: nothing was measured")
    columns = list(dict.fromkeys(name for _, table in tables for name in table["head"]))
    rows = []
    for title, table in tables:
        for each in table["rows"]:
            texts = (cell if isinstance(cell, str) else cell["text"] for cell in each["cells"])
            found = dict(zip(table["head"], texts))
            rows.append([*([title] if len(tables) > 1 else []), *(found.get(name, "") for name in columns)])
    repeats = sorted(_repeats(document))
    return {
        "title": view["headline"],
        "command": document_types.KINDS[document_types.kind_of(document) or ""].command,
        "n": " to ".join(dict.fromkeys(map(str, (repeats[0], repeats[-1])))) + " repeats" if repeats else "1",
        "columns": [*(["part"] if len(tables) > 1 else []), *(name or "name" for name in columns)],
        "rows": rows,
        "notes": view["remarks"],
    }


def _repeats(value: Any) -> set[int]:
    """All ``n`` beside a median in a document.

    >>> sorted(_repeats({"rows": [{"a": {"median": 1.0, "n": 9}}, {"b": {"median": 2.0, "n": 5}}]}))
    [5, 9]
    """
    if isinstance(value, Mapping):
        own = {value["n"]} if "median" in value and isinstance(value.get("n"), int) else set()
        return own.union(*map(_repeats, value.values()))
    return set().union(*map(_repeats, value)) if isinstance(value, (list, tuple)) else set()


def _linked(name: str, known: Mapping[str, tuple[str, Mapping[str, str]]]) -> str:
    """A script's name with its place, where it is one of the list's."""
    if name not in known:
        return name
    path, source = known[name]
    return f"[{name}](https://github.com/{source['repository']}/blob/{source['commit']}/{path})"


def _losses(turn: Mapping[str, Any]) -> str:
    """How many first losses of ``run`` are those of the script as it is, or how far they are apart.

    >>> _losses({"losses": {"run": {"gap": 0.0, "steps": 50}}}), _losses({"losses": {"run": {"gap": 3e-6, "steps": 9}}})
    ('50 equal', '9 to 3e-06')
    >>> _losses({"losses": {"run": {"gap": 0.3, "steps": 9}, "again": {"gap": 0.2, "steps": 9}}})
    '9 to 3e-01 (python once more: 2e-01)'
    """
    losses = turn.get("losses", {})
    found, again = losses.get("run"), losses.get("again")
    if not found or found["gap"] is None:
        return ""
    more = f" (python once more: {again['gap']:.0e})" if again and again["gap"] is not None else ""
    return f"{found['steps']} equal" if not found["gap"] else f"{found['steps']} to {found['gap']:.0e}{more}"


def _said(stage: Mapping[str, Any], key: str = "") -> str:
    """What a stage came to; a refusal with its reason.

    >>> _said({"status": "refused", "last": "/home/me/train.py: line 3 | no source"})
    'refused: train.py: line 3 / no source'
    """
    if not stage:
        return ""
    if stage["status"] == "ok":
        return str(stage.get(key, "ok"))
    said = f"{stage['status']}: {stage.get('last', '')}".replace("|", "/").replace("error: ", "")
    return re.sub(r"/\S+/(?=[^/\s]+\.py)", "", said)[:160]


def _harness(module: str, document: Mapping[str, Any]) -> Figure:
    """Of a harness that only proves a figure: its own ``figure`` knows the document."""
    return importlib.import_module(f"benchmarks.{module}").figure(document)  # type: ignore[no-any-return]


KINDS: dict[str, Callable[[Mapping[str, Any]], Figure]] = {
    "ladder": _ladder,
    "scripts": _scripts,
    "onednn-deck": functools.partial(_harness, "deck"),
    "devices": functools.partial(_harness, "devices"),
    "networks": functools.partial(_harness, "networks"),
}
