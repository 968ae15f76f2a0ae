"""Time to accuracy in the formats of others: DAWNBench's JSON and TSV, and MLPerf's ``:::MLLOG`` lines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gluontune.core.files import atomic_write
from gluontune.recipe import Recipe


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
        reached = sorted((r for r in rows if r["first"]), key=lambda r: r["first"]["train_seconds"])
        if reached:
            texts[base / f"{stem}.json"] = json.dumps(entry, indent=2, allow_nan=False) + "\n"
            texts[base / f"{stem}.tsv"] = dawnbench_tsv(reached[(len(reached) - 1) // 2])
    for path, text in texts.items():
        with atomic_write(path, "w") as stream:
            stream.write(text)
    return list(texts)
