"""Reading of results: RunResult files, ladder.json files, other documents, and folders of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gluontune import monitor
from gluontune.core import stats
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import explain_os_error
from gluontune.core.reading import read_json
from gluontune.recipe.result import SCHEMA_VERSION, RunResult
from gluontune.report import document_types as documents
from gluontune.report.formatting import clean, finite, number

_MAPPINGS = ("steadiness", "phases_pct", "utilization", "changes", "recipe")
_OPTIONAL_MAPPINGS = ("val_metric", "samples_per_sec", "ratio_to_previous", "error")
_LISTS = ("epoch_seconds", "elapsed_seconds", "val_accuracy", "train_loss", "notes", "variants")
_NUMBERS = ("speedup_vs_naive", "peak_rss_mib", "peak_gpu_mib", "warmup_seconds", "seconds")
_KINDS: dict[Any, str] = {dict: "a mapping", list: "a list", str: "text"}


@dataclass
class Source:
    """One result to report: a ``ladder``, a ``run``, or the ``study`` of another ``document``.

    Args:
        path: the file. label: its name in the report.
        study, document: the view of a study, a search or a benchmark, and the file's content.
    """

    path: Path
    label: str
    ladder: dict[str, Any] | None = None
    run: RunResult | None = None
    study: dict[str, Any] | None = None
    document: dict[str, Any] | None = None


@dataclass
class Collected:
    """The results of some paths, and the files in folders that were left out, with the reason."""

    sources: list[Source] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)


def load(path: str | Path) -> Source:
    """Read one result: a run, a ladder, a study, a search, a benchmark, or a log of ``gluontune monitor``.

    Args:
        path: the file.

    Raises:
        GluontuneError: the file is missing, truncated, of another schema version, or no result.
    """
    path = Path(path)
    if path.suffix == ".jsonl":
        return Source(path, path.stem, run=monitor.run_result(monitor.read_log(path)))
    document = finite(read_json(path))
    if isinstance(document, dict) and "rungs" in document:
        return Source(path, path.stem, ladder=check_ladder(document, str(path)))
    if isinstance(document, dict) and documents.kind_of(document) is not None:
        view = documents.view(document, str(path))
        return Source(path, path.stem, study=view, document=document)
    if not isinstance(document, dict) or not {"schema_version", "recipe"} <= set(document):
        raise GluontuneError(
            f"{path}: neither a RunResult nor a ladder of gluontune's, nor another of its documents; give a file that "
            "`gluontune train --json`, `ladder`, `tta`, `factors`, `tune`, `esgd` or `bench … --out` wrote"
        )
    run = RunResult.from_dict(document, str(path))
    row_of(run, path.stem, str(path))  # raises for a wrong shape here, where the file is known
    return Source(path, path.stem, run=run)


def collect(paths: Sequence[str | Path]) -> Collected:
    """Read files and folders, in the order given.

    A folder stands for its ladder.json and studies or, if it has none, for every result below it. Named files must be
    readable; a file in a folder that cannot be used is listed as left out.

    Args:
        paths: files and folders.

    Raises:
        UsageError: no result in a named folder. GluontuneError: a named file that cannot be read.
    """
    found = Collected()
    for path in map(Path, paths):
        if not path.is_dir():
            found.sources.append(load(path))
            continue
        before, candidates = len(found.sources), list(_results_below(path))
        for candidate in candidates:
            try:
                found.sources.append(load(candidate))
            except GluontuneError as error:
                found.left_out.append({"path": str(candidate), "reason": str(error)})
        if len(found.sources) == before:
            reasons = "; ".join(entry["reason"] for entry in found.left_out[:2])
            raise UsageError(
                f"{path}: no RunResult and no ladder.json in this folder, nor another document"
                + (f" ({reasons})" if reasons else "")
            )
    _label(found.sources)
    return found


def _results_below(folder: Path) -> Iterator[Path]:
    """The ladder and studies of a folder, whose other files are their runs; else all JSON files below it."""
    named = ("ladder", *(name for name, kind in documents.KINDS.items() if kind.folder))
    if heads := [path for path in (folder / f"{name}.json" for name in named) if path.is_file()]:
        yield from heads
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise explain_os_error(folder, error) from error
    for entry in entries:
        if entry.is_file() and entry.suffix == ".json":
            yield entry
        elif entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            yield from _results_below(entry)


def _label(sources: Sequence[Source]) -> None:
    """Label files of equal names by the shortest tail of their paths that distinguishes them."""
    for depth in (1, 2, 3, 99):
        for source in sources:
            parts = source.path.with_suffix("").resolve().parts
            source.label = "/".join(parts[-depth:])
        if len({source.label for source in sources}) == len(sources):
            return


def check_ladder(document: Mapping[str, Any], source: str = "ladder") -> dict[str, Any]:
    """A ladder with every key that a report reads; missing ones get empty values.

    Args:
        document: a ``ladder.json``. source: its name in errors.

    Raises:
        GluontuneError: another schema version, or a value of the wrong shape (names the key).

    >>> ladder = check_ladder({"schema_version": 1, "rungs": [{"name": "naive", "status": "ran"}]})
    >>> ladder["complete"], ladder["rungs"][0]["val_accuracy"]
    (True, [])
    >>> check_ladder({"schema_version": 7}, "old.json")
    Traceback (most recent call last):
        ...
    gluontune.errors.GluontuneError: old.json: schema_version 7, but this gluontune reads 1; ...
    """
    if (version := document.get("schema_version")) != SCHEMA_VERSION:
        raise GluontuneError(
            f"{source}: schema_version {version!r}, but this gluontune reads {SCHEMA_VERSION}; "
            "read it with the version that wrote it, or climb again"
        )
    ladder = finite(document)
    for key in ("dataset", "machine", "base_recipe", "best", "verdict"):
        ladder[key] = _shaped(ladder.get(key), dict, f"{source}: {key}") or {}
    best = ladder["best"]
    best["recipe"] = _shaped(best.get("recipe"), dict, f"{source}: best.recipe") or {}
    rungs = _shaped(ladder.get("rungs"), list, f"{source}: rungs") or []
    ladder["rungs"] = [check_row(row, f"{source}: rungs[{place}]") for place, row in enumerate(rungs)]
    ladder["complete"] = ladder.get("complete", True) is not False
    for key, check in (("revisited", _answer), ("taken_back", _taken_back)):
        listed = _shaped(ladder.get(key), list, f"{source}: {key}") or []
        ladder[key] = [check(value, f"{source}: {key}[{n}]") for n, value in enumerate(listed)]
    for answer in ladder["revisited"]:
        for row in ladder["rungs"] if answer["adopted"] else ():
            if row["name"] == answer["rung"]:
                row["in_best"] = answer["kind"] == "asked again"
    return ladder


def _taken_back(value: Any, where: str) -> dict[str, Any]:
    """A rung that the proof took back, with the reason."""
    if not isinstance(value, Mapping) or not isinstance(value.get("rung"), str):
        raise GluontuneError(f"{where}: expected a mapping with a rung")
    return {"rung": value["rung"], "reason": str(value.get("reason") or "")}


def _answer(value: Any, where: str) -> dict[str, Any]:
    """A rung that was asked again at the end of a climb."""
    rung = _taken_back(value, where)["rung"]
    texts = {key: _text(value, key) for key in ("reason", "interaction")}
    ratios = {key: _measure(_shaped(value.get(key), dict, f"{where}.{key}") or None) for key in ("first", "ratio")}
    kinds = {key: str(value.get(key) or "n/a") for key in ("kind", "verdict")}
    changes = _shaped(value.get("changes"), dict, f"{where}.changes") or {}
    return {"rung": rung, **kinds, **texts, **ratios, "changes": changes, "adopted": value.get("adopted") is True}


def check_row(row: Any, where: str = "row") -> dict[str, Any]:
    """One rung (or run) with every key that tables and figures read."""
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
        raise GluontuneError(f"{where}: expected a mapping with a name")
    checked = finite(row)
    for key in _MAPPINGS:
        checked[key] = _shaped(row.get(key), dict, f"{where}.{key}") or {}
    for key in _OPTIONAL_MAPPINGS:
        checked[key] = _shaped(row.get(key), dict, f"{where}.{key}")
    for key in _LISTS:
        checked[key] = _shaped(row.get(key), list, f"{where}.{key}") or []
    for key in _NUMBERS:
        checked[key] = number(row.get(key))
    _check_measured(checked, where)
    checked["speedup_ci95"] = _bounds(row.get("speedup_ci95"))
    checked["verdict"] = str(row.get("verdict") or "n/a")
    checked["kept"] = checked["in_best"] = row.get("kept") is True
    for key in ("epoch_seconds", "elapsed_seconds", "val_accuracy", "train_loss"):
        checked[key] = [number(value) for value in checked[key]]
    checked["phases_pct"] = {str(k): max(0.0, number(v) or 0.0) for k, v in checked["phases_pct"].items()}
    checked["variants"] = [_variant(v, f"{where}.variants[{i}]") for i, v in enumerate(checked["variants"])]
    return checked


def row_of(run: RunResult, name: str, where: str = "result") -> dict[str, Any]:
    """A RunResult, failed or not, as a row."""
    values = run.to_dict()
    status = {"ok": "ran", "interrupted": "interrupted"}.get(run.status, "failed")
    row = {**values, "name": name, "status": status, "kept": status == "ran"}
    return check_row(row, where)


def reason_of(row: Mapping[str, Any]) -> str:
    """The reason why a checked row was not kept, with the error if the reason does not contain it.

    >>> reason_of({"reason": "the job broke off", "error": {"type": "ValueError", "message": "no"}})
    'the job broke off (ValueError: no)'
    """
    text, error = clean(row["reason"] or "", 600), row["error"] or {}
    fault = clean(": ".join(str(error[key]) for key in ("type", "message") if error.get(key)), 600)
    if not fault or clean(error.get("message") or fault, 600) in text:
        return text
    return f"{text} ({fault})" if text else fault


def _variant(variant: Any, where: str) -> dict[str, Any]:
    found = _shaped(variant, dict, where) or {}
    changes = _shaped(found.get("changes"), dict, f"{where}.changes") or {}
    label, chosen = str(found.get("label", "?")), found.get("chosen") is True
    checked = {**found, "label": label, "changes": changes, "chosen": chosen}
    _check_measured(checked, where)
    return checked


def _check_measured(checked: dict[str, Any], where: str) -> None:
    """Check the common fields of a rung and a variant: rates, prediction, status, reason."""
    for key in ("samples_per_sec", "ratio_to_previous"):
        checked[key] = _measure(_shaped(checked.get(key), dict, f"{where}.{key}"))
    checked["predicted"] = _guess(checked.get("predicted"), f"{where}.predicted")
    checked["status"] = str(checked.get("status") or "ran")
    checked["reason"] = _text(checked, "reason")


def _text(values: Mapping[str, Any], key: str) -> str | None:
    return None if values.get(key) is None else str(values[key])


def _shaped(value: Any, kind: Any, where: str) -> Any:
    if value is not None and not isinstance(value, kind):
        raise GluontuneError(f"{where}: expected {_KINDS[kind]}, not {type(value).__name__}")
    return value


def _guess(value: Any, where: str) -> dict[str, Any] | None:
    """A prediction: its rate and basis; None if it has no rate."""
    found = _shaped(value, dict, where) or {}
    rate = number(found.get("samples_per_sec"))
    return {"samples_per_sec": rate, "basis": str(found.get("basis") or "")} if rate and rate > 0 else None


def _measure(value: dict[str, Any] | None) -> dict[str, Any] | None:
    median = number((value or {}).get("median"))
    if value is None or median is None or median <= 0:  # a rate or ratio of zero was not measured
        return None
    return {**value, "median": median, "ci95": stats.bounds({**value, "ci95": _bounds(value.get("ci95"))})}


def _bounds(value: Any) -> list[float] | None:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return None
    low, high = number(value[0]), number(value[1])
    return None if low is None or high is None else [low, high]
