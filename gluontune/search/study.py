"""A study of trainings: its document, one training with its clocks, and the formats of DAWNBench and MLPerf."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluontune import datasets, runtime
from gluontune.core.errors import UsageError
from gluontune.core.events import OnProgress
from gluontune.core.files import atomic_write
from gluontune.core.journal import Document, another_machine
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.time_to_target import PackageEnergy
from gluontune.training.group import Group, RunFailed
from gluontune.training.loop import drive

_WARMUP_STEPS = 2


@dataclass(frozen=True)
class Part:
    """Part ``number`` of a study that ``of`` tasks share: the repeats ``number``, ``number + of``, ….

    >>> Part.parse("3/12")
    Part(number=3, of=12)
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if found is None or int(found[1]) >= int(found[2]):
            raise UsageError(f"--part {text!r}: give the number of a task and of all, such as 0/12 … 11/12")
        return cls(int(found[1]), int(found[2]))


class Study(Document):
    """The document of a study, ``DIR/NAME.json``, with the request ``given`` and the finished pieces, ``done``.

    A part has its own, ``DIR/parts/NUMBER/NAME.json``; a resume of the whole study takes up the pieces of all parts.
    """

    def __init__(
        self, name: str, schema: int, given: Mapping[str, Any], folder: str | Path | None, resume: bool,
        part: Part | None = None,
    ):  # fmt: skip
        self.part = part
        if part is not None:
            if folder is None:
                raise UsageError(f"--part {part.number}/{part.of} needs the folder of the study: --out DIR")
            folder = Path(folder) / "parts" / str(part.number)
        path = None if folder is None else Path(folder) / f"{name}.json"
        kind: dict[str, Any] = {
            "work": f"{name} run", "schema": schema, "fields": {"kind": name, "given": given, "done": []},
            "machine": runtime.machine_facts, "usual": Recipe().to_dict(),
        }  # fmt: skip
        super().__init__(path, **kind, resume=resume)
        if resume and path is not None:
            parts = path.parent.glob(f"parts/*/{name}.json")
            for each in sorted(parts, key=lambda found: (len(found.parent.name), found)):  # 2 before 10
                self._take(each, Document(each, **kind, resume=True).document)

    def _take(self, path: Path, part: Mapping[str, Any]) -> None:
        def key(row: Mapping[str, Any]) -> list[Any]:
            return [row.get(name) for name in ("kind", "recipe", "set", "seed", "name")]

        known = [key(row) for row in self.document["done"]]
        new = [row for row in part["done"] if key(row) not in known]
        if new and (other := another_machine(part["machine"], self.document["machine"])):
            self.document.setdefault("notes", []).append(f"{path} was measured on another machine ({other})")
        self.document = {**part, **self.document, "done": self.document["done"] + new}

    def takes(self, number: int) -> bool:
        return self.part is None or number % self.part.of == self.part.number

    def enter(self, *pieces: Mapping[str, Any]) -> None:
        self.document["done"] += map(dict, pieces)
        self.save()

    def train(
        self, train: Callable[..., Any], recipe: Recipe, name: str, tell: OnProgress, time_limit: float
    ) -> tuple[RunResult, Any]:
        """One run and its clocks, by a function like :func:`train_once`; saved as ``runs/NAME.json``."""
        result, clocks = train(recipe, on_event=tell, time_limit=time_limit, machine=self.document["machine"])
        if result.status == "interrupted":
            raise KeyboardInterrupt
        if self.path is not None:
            result.save(self.path.parent / "runs" / f"{name}.json")
        return result, clocks


def check_target(target: float) -> None:
    if not 0 < target <= 1:
        raise UsageError(f"--target {target:g}: give a validation accuracy above 0 and up to 1, such as 0.8")


def dataset_facts(recipe: Recipe) -> dict[str, Any]:
    """Facts of the data for the report; of a job's data, which only its processes open, the name alone."""
    if recipe.job is not None:
        return {"name": Path(recipe.job).name, "classes": None, "num_train": None, "num_test": None}
    data = datasets.open(recipe.dataset)
    return {
        "name": data.name, "classes": len(data.classes), "num_train": len(data.train), "num_test": len(data.test),
        "image_shape": list(data.image_shape) if data.image_shape else None,
    }  # fmt: skip


class Clocks:
    """Wall-clock seconds of one run's phases, from the start of its process."""

    def __init__(self) -> None:
        self.started_at, self._begin = time.time(), time.perf_counter()
        self.start_seconds = 0.0  # importing, opening the data, building the net
        self.warmup_seconds = 0.0  # the untimed first steps (compilation, caches), undone afterwards
        self.run_at = 0.0  # begin of the counted training
        # Begin and end of each validation, and joules of the CPU packages since the training began, if they are known.
        self.evaluations: list[tuple[float, float, float | None]] = []

    def now(self) -> float:
        return time.perf_counter() - self._begin


def train_once(
    recipe: Recipe, *, on_event: OnProgress | None = None, time_limit: float = 600.0,
    machine: dict[str, Any] | None = None,
) -> tuple[RunResult, Clocks]:  # fmt: skip
    """Train a recipe in fresh processes, after a warm-up that is undone. Never raises for a failed run.

    The warm-up is two steps (compilation, caches); the run then begins from its seeded start. Ranks behind a
    parameter server cannot be reset: they get no warm-up, and their first steps count.
    """
    with begun(recipe, machine) as (result, clocks), Group(recipe, time_limit=time_limit) as group:
        clocks.start_seconds = clocks.now()
        if group.world == 1:
            group.steps(_WARMUP_STEPS)
            group.reset()
        clocks.run_at = clocks.now()
        clocks.warmup_seconds = clocks.run_at - clocks.start_seconds
        result.warmup_seconds = clocks.run_at
        energy, validate = PackageEnergy(), group.validate

        def timed() -> dict[str, float]:
            begin = clocks.now()
            seen = validate()
            clocks.evaluations.append((begin, clocks.now(), energy.joules()))
            return seen

        group.validate = timed  # type: ignore[method-assign]
        drive(group, result, on_event)
    return result, clocks


@contextlib.contextmanager
def begun(recipe: Recipe, machine: dict[str, Any] | None) -> Iterator[tuple[RunResult, Clocks]]:
    """The result and the clocks of a run; a failure or interrupt becomes a part of the result."""
    result = RunResult(recipe=recipe.to_dict(), machine=machine or runtime.machine_facts())
    try:
        yield result, Clocks()
    except RunFailed as failure:
        result.status, result.error = "failed", failure.to_dict()
    except KeyboardInterrupt:
        result.status = "interrupted"


def dawnbench_tsv(row: Mapping[str, Any]) -> str:
    r"""Progress of one repeat by epoch in DAWNBench's form; the hours are counted training time.

    Source: stanford-futuredata/dawn-bench-entries, README.

    >>> dawnbench_tsv({"train_elapsed": [36.0, 72.0], "val_accuracy": [0.5, 0.75]})
    'epoch\thours\ttop1Accuracy\n1\t0.01\t50.0\n2\t0.02\t75.0\n'
    """
    lines = ["epoch\thours\ttop1Accuracy"]
    for number, (seconds, accuracy) in enumerate(zip(row["train_elapsed"], row["val_accuracy"]), 1):
        lines.append(f"{number}\t{seconds / 3600:.8g}\t{round(100 * accuracy, 4)}")
    return "\n".join(lines) + "\n"


def dawnbench_entry(document: Mapping[str, Any], name: str, author: str, author_email: str) -> dict[str, Any]:
    """The JSON entry beside the TSV, of the recipe ``name`` in ``tta.json``; ``misc`` has the repeats' statistics."""
    machine, recipe = document["machine"], document["given"]["recipes"][name]
    ours = f"MXNet {machine.get('packages', {}).get('mxnet', '')} (gluontune {document['gluontune']})"
    times = {what: document["summary"][name][what] for what in ("train_seconds", "wall_seconds")}
    misc = {"dataset": recipe["dataset"], "target_accuracy": document["given"]["target"], "rule": document["rule"]}
    entry: dict[str, Any] = {
        "version": "v1.0", "author": author, "authorEmail": author_email,
        "framework": document["given"].get("trainers", {}).get(name) or ours,
        "model": recipe["net"] if not recipe["job"] else Path(recipe["job"]).stem, "hardware": hardware(machine),
        "timestamp": document["created"][:10], "misc": {**misc, **times, "recipe": recipe},
    }  # fmt: skip
    if document["price"]:
        entry["costPerHour"] = document["price"]["usd_per_hour"]
        entry["misc"]["price"] = document["price"]
    return entry


def hardware(machine: Mapping[str, Any]) -> str:
    """
    >>> hardware({"cpu": {"model": "EPYC", "usable_cores": 2}, "memory_mib": 16384, "gpus": []})
    '2 cores of EPYC / 16 GiB'
    """
    cpu = machine.get("cpu") or {}
    parts = [f"{cpu.get('usable_cores')} cores of {cpu.get('model')}"]
    gpus = [gpu["name"] for gpu in machine.get("gpus") or []]
    parts = [f"{gpus.count(gpu)} × {gpu}" for gpu in dict.fromkeys(gpus)] + parts
    if machine.get("memory_mib"):
        parts.append(f"{machine['memory_mib'] / 1024:.0f} GiB")
    return " / ".join(parts)


def mllog_lines(document: Mapping[str, Any], row: Mapping[str, Any], org: str) -> list[str]:
    """One repeat as MLPerf training log lines, which ``mlperf_logging.compliance_checker --ruleset 4.0.0`` accepts.

    The division is ``open`` and the benchmark ``resnet`` (image classification), whatever the data set: the lines are
    for tools that read the format, not for a submission. Source: mlcommons/logging, ``mllog``, ``training_4.0.0``.
    """
    recipe, clock = document["given"]["recipes"][row["recipe"]], row["mlperf"]
    facts, begin = document["dataset"], clock["started_at"]
    lines: list[str] = []

    def log(key: str, at: float, value: Any = None, kind: str = "POINT_IN_TIME", **metadata: Any) -> None:
        metadata = {"file": "gluontune/search/study.py", "lineno": 0, **metadata}
        event = {
            "namespace": "", "time_ms": round(1000 * (begin + at)), "event_type": kind, "key": key, "value": value,
            "metadata": metadata,
        }  # fmt: skip
        lines.append(f":::MLLOG {json.dumps(event)}")

    log("cache_clear", 0.0, False, note="a fresh process; the page cache is left alone")
    log("init_start", 0.0, kind="INTERVAL_START")
    submission = {"benchmark": "resnet", "division": "open", "org": org, "status": "research"}
    for key, value in {**submission, "platform": hardware(document["machine"])}.items():
        log(f"submission_{key}", 0.0, value, dataset=recipe["dataset"], net=recipe["net"])
    gathered = recipe.get("accumulate", 1)
    whole = Recipe.from_dict({**recipe, "seed": row["seed"]}).resolved()
    batch = recipe["batch_size_per_device"] * recipe["num_devices"] * gathered
    settings = {
        "seed": row["seed"], "global_batch_size": batch, "opt_name": recipe["optimizer"],
        "opt_base_learning_rate": whole.learning_rate, "gradient_accumulation_steps": gathered,
        "train_samples": recipe["train_samples"] or facts.get("num_train") or 0,
        "eval_samples": recipe["val_samples"] or facts.get("num_test") or 0,
    }  # fmt: skip
    for key, value in settings.items():
        log(key, 0.0, value)
    log("init_stop", clock["run_at"], kind="INTERVAL_END")
    log("run_start", clock["run_at"], kind="INTERVAL_START")
    at = clock["run_at"]
    for number, (start, end) in enumerate(clock["evaluations"], 1):
        log("epoch_start", at, kind="INTERVAL_START", epoch_num=number)
        log("epoch_stop", start, kind="INTERVAL_END", epoch_num=number)
        log("eval_start", start, kind="INTERVAL_START", epoch_num=number)
        log("eval_accuracy", end, row["val_accuracy"][number - 1], epoch_num=number)
        log("eval_stop", end, kind="INTERVAL_END", epoch_num=number)
        at = end
        if row["first"] and number == row["first"]["epoch"]:
            break
    log("run_stop", at, kind="INTERVAL_END", status="success" if row["first"] else "aborted")
    return lines


def write_submissions(
    document: Mapping[str, Any], folder: str | Path, *, author: str = "unnamed", author_email: str = ""
) -> list[Path]:
    """Write ``dawnbench/`` and ``mlperf/`` beside ``tta.json``; return the files.

    The DAWNBench JSON stands beside the TSV of the repeat with the median time; every repeat has its own TSV, too.
    """
    texts: dict[Path, str] = {}
    for name in document["given"]["recipes"]:
        rows = [r for r in document["done"] if r["recipe"] == name and r["val_accuracy"]]
        entry = dawnbench_entry(document, name, author, author_email)
        stem = "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", part).strip("-") for part in
                        (author, entry["model"], name, entry["hardware"], "gluontune"))  # fmt: skip
        base = Path(folder) / "dawnbench"
        for row in rows:
            texts[base / f"{stem}_seed{row['seed']}.tsv"] = dawnbench_tsv(row)
            log = Path(folder) / "mlperf" / f"{name}_seed{row['seed']}.log"
            texts[log] = "\n".join(mllog_lines(document, row, author)) + "\n"
        if reached := sorted((r for r in rows if r["first"]), key=lambda r: r["first"]["train_seconds"]):
            texts[base / f"{stem}.json"] = json.dumps(entry, indent=2, allow_nan=False) + "\n"
            texts[base / f"{stem}.tsv"] = dawnbench_tsv(reached[(len(reached) - 1) // 2])
    for path, text in texts.items():
        with atomic_write(path, "w") as stream:
            stream.write(text)
    return list(texts)
