"""Ladders and runs as the runner writes them, for the tests of the reports."""

from __future__ import annotations

import copy
import math
import random

from gluontune.recipe import Recipe
from gluontune.result import RunResult

HOSTILE = (
    "</script><script>alert('x')</script><img src=x onerror=alert(1)> $\\frac{$ {{7*7}} [red]b[/red] "
    "\x1b[31m \x00 \u202e ' \" & 名"
)

# name, sentence, img/s, verdict, kept, phases, accuracies, changes
_RUNGS = [
    ("naive", "the script as a tutorial writes it, in the environment as it comes", 402.0, "n/a", True,
     (48.0, 3.0, 17.0, 25.0, 4.0, 1.0, 2.0), (0.41, 0.55, 0.61), {}),
    ("environment", "threads and allocator set for the cores that are really usable", 566.0, "helped", True,
     (46.0, 3.0, 18.0, 26.0, 4.0, 1.0, 2.0), (0.42, 0.54, 0.62), {"runtime": "tuned"}),
    ("multi-worker", "images are decoded and augmented in worker processes", 571.0, "no gain", False,
     (35.0, 4.0, 22.0, 31.0, 5.0, 1.0, 2.0), (0.40, 0.55, 0.61), {"num_workers": 2}),
    ("records", "images packed in RecordIO, decoded by gluontune's loaders", 873.0, "helped", True,
     (3.0, 4.0, 35.0, 47.0, 7.0, 2.0, 2.0), (0.43, 0.55, 0.61), {"loader": "resident"}),
    ("hybridized", "the net as a symbolic graph, slow operators rewritten where it measures faster", 1090.0,
     "helped", True, (4.0, 4.0, 33.0, 47.0, 8.0, 2.0, 2.0), (0.42, 0.56, 0.62),
     {"hybridize": "static", "rewrites": ["pool-to-mean"]}),
    ("mixed-precision", "16-bit multiplications with 32-bit masters", 1571.0, "helped", True,
     (6.0, 5.0, 30.0, 43.0, 10.0, 3.0, 3.0), (0.42, 0.55, 0.62), {"dtype": "bfloat16"}),
    ("large-batch", "a larger batch, its learning rate scaled and warmed up", 1702.0, "hurt", False,
     (6.0, 5.0, 31.0, 46.0, 7.0, 2.0, 3.0), (0.30, 0.47, 0.57), {"batch_size_per_device": 256}),
    ("multi-device", "all GPUs, or two processes on the CPU that exchange gradients", 1290.0, "no gain", False,
     (5.0, 5.0, 32.0, 44.0, 9.0, 2.0, 3.0), (0.41, 0.56, 0.62), {"engine": "kvstore", "num_devices": 2}),
]  # fmt: skip
_REASONS = {
    "multi-worker": "1.01 times the speed before (95 %: 0.96 to 1.05): not distinguishable from no gain",
    "large-batch": "accuracy fell by 5.0 points at equal epochs (limit: 2.0)",
    "multi-device": "0.82 times the speed before: two processes share two cores",
}
MACHINE = {
    "os": "Linux 6.1",
    "architecture": "x86_64",
    "python": "3.11.7",
    "cpu": {"model": "AMD EPYC 9575F 64-Core Processor", "usable_cores": 2, "flags": ["avx2", "avx512_bf16"]},
    "memory_mib": 24064,
    "container": None,
    "gpus": [],
    "gpu_status": "no-driver",
    "packages": {"gluontune": "0.1.0", "mxnet": "1.9.1", "numpy": "1.23.5"},
}


def measure(median: float, spread: float = 0.03, n: int = 9) -> dict:
    return {"median": median, "ci95": [median * (1 - spread), median * (1 + spread)], "n": n}


def series(seed: int, level: float, seconds: float, gpus: int = 0) -> dict:
    rng = random.Random(seed)
    times = [round(0.2 * i, 2) for i in range(int(seconds * 5))]

    def wave(phase: float) -> list:
        return [round(min(100, max(0, level + 15 * math.sin(t / 3 + phase) + rng.gauss(0, 6))), 1) for t in times]

    gpu = {str(i): wave(i) for i in range(gpus)}
    cpu = [min(100.0, v / 2 + 20) if gpus else v for v in wave(0)]
    return {"t_s": times, "cpu_pct": cpu, "gpu_util_pct": gpu, "device": "gpu" if gpus else "cpu"}


_PREDICTED = {
    "multi-worker": {"samples_per_sec": 790.0, "basis": "net alone 880/s, loader alone 4,100/s by one worker"},
    "records": {"samples_per_sec": 930.0, "basis": "net alone 940/s, loader alone 210,000/s"},
}


def _rung(place: int, gpus: int = 0) -> dict:
    name, sentence, rate, verdict, kept, shares, accuracies, changes = _RUNGS[place]
    before = 402.0
    for _, _, earlier, _, was_kept, *_ in _RUNGS[:place]:
        before = earlier if was_kept else before
    epoch = 10000 / rate
    fields: dict = {}
    for row in _RUNGS[: place + 1]:
        if row[4] or row[0] == name:
            fields.update(row[7])
    return {
        "name": name,
        "sentence": sentence,
        "status": "ran",
        "reason": _REASONS.get(name),
        "verdict": verdict,
        "kept": kept,
        "samples_per_sec": measure(rate),
        "predicted": _PREDICTED.get(name),
        "speedup_vs_naive": round(rate / 402.0, 3),
        "speedup_ci95": [rate / 402.0 * 0.95, rate / 402.0 * 1.05],
        "ratio_to_previous": None if name == "naive" else measure(rate / before, 0.04),
        "epoch_seconds": [epoch] * 3,
        "elapsed_seconds": [epoch, 2 * epoch, 3 * epoch],
        "val_accuracy": list(accuracies),
        "train_loss": [1.7, 1.3, 1.1],
        "steadiness": {"mean_pct": 55.0 + 5 * place, "cv": 0.3 - 0.03 * place, "score": 0.7,
                       "below_50_pct": 20.0 - 2 * place, "longest_idle_gap_s": 0.4},
        "phases_pct": dict(zip(("data", "copy", "forward", "backward", "update", "metrics", "rest"), shares)),
        "utilization": series(place, 55 + 5 * place, 3 * epoch, gpus),
        "peak_rss_mib": 812.0 + 40 * place,
        "warmup_seconds": 4.2,
        "seconds": 38.0,
        "variants": _variants(name),
        "changes": changes,
        "recipe": Recipe(dataset="cifar10", epochs=3, **fields).to_dict(),
        "error": None,
        "notes": ["the CPU is shared: its clock varied by 4 %"] if name == "naive" else [],
    }  # fmt: skip


def _variants(name: str) -> list:
    def one(label: str, changes: dict, rate: float, gain: float, chosen: bool = False) -> dict:
        return {
            "label": label,
            "changes": changes,
            "samples_per_sec": measure(rate),
            "predicted": {"samples_per_sec": 0.9 * rate, "basis": "net and loader alone"},
            "ratio_to_previous": measure(gain, 0.04),
            "status": "ran",
            "reason": None,
            "chosen": chosen,
        }

    broken = {**one("8 workers", {"num_workers": 8}, 1.0, 1.0), "status": "failed", "samples_per_sec": None,
              "ratio_to_previous": None, "reason": "OSError: /dev/shm is full"}  # fmt: skip
    return {
        "multi-worker": [
            one("1 worker", {"num_workers": 1}, 490, 0.87),
            one("2 workers", {"num_workers": 2}, 571, 1.01, True),
            broken,
        ],
        "hybridized": [
            one("hybridize()", {"hybridize": "hybridized"}, 590, 0.68),
            one("static", {"hybridize": "static"}, 611, 0.7),
            one("static, global-pooling", {"hybridize": "static", "rewrites": ["pool-to-mean"]}, 1090, 1.25, True),
        ],
    }.get(name, [one("as written", {}, 500, 1.0, True)])


def full_ladder(gpus: int = 0) -> dict:
    rungs = [_rung(place, gpus) for place in range(len(_RUNGS))]
    best = rungs[5]
    keys = ("name", "recipe", "samples_per_sec", "speedup_vs_naive")
    machine = dict(MACHINE)
    if gpus:
        card = {"name": "Tesla V100-SXM2-16GB", "memory_mib": 16160, "compute_capability": "7.0"}
        machine["gpus"] = [{"index": i, **card} for i in range(gpus)]
    return {
        "schema_version": 1,
        "gluontune": "0.1.0",
        "created": "2026-11-21T06:00:00+00:00",
        "mode": "quick",
        "complete": True,
        "dataset": {"name": "cifar10", "classes": 10, "num_train": 50000, "num_test": 10000,
                    "image_shape": [32, 32, 3]},
        "machine": machine,
        "base_recipe": Recipe(dataset="cifar10", epochs=3).to_dict(),
        "rungs": rungs,
        "best": {key: best[key] for key in keys},
        "verdict": None,
        "sentence": "",
    }  # fmt: skip


def unmeasured(row: dict, status: str, reason: str, error: dict | None = None) -> dict:
    """The row of a rung that was skipped or that failed."""
    empty = {"samples_per_sec": None, "speedup_vs_naive": None, "speedup_ci95": None, "ratio_to_previous": None,
             "epoch_seconds": [], "elapsed_seconds": [], "val_accuracy": [], "train_loss": [], "steadiness": {},
             "phases_pct": {}, "utilization": {}, "peak_rss_mib": None, "warmup_seconds": None, "variants": [],
             }  # fmt: skip
    return {**row, **empty, "status": status, "reason": reason, "error": error, "verdict": "n/a", "kept": False}


def damaged_ladder() -> dict:
    """One rung that failed and one that was skipped."""
    ladder = full_ladder()
    error = {"type": "MXNetError", "message": "[06:01:02] src/storage/storage.cc:110: out of memory"}
    ladder["rungs"][2] = unmeasured(ladder["rungs"][2], "failed", "the training process broke off", error)
    ladder["rungs"][7] = unmeasured(ladder["rungs"][7], "skipped", "one usable core and no GPU")
    return ladder


def interrupted_ladder() -> dict:
    ladder = full_ladder()
    ladder["rungs"] = ladder["rungs"][:3]
    best = ladder["rungs"][1]
    ladder.update(complete=False, best={k: best[k] for k in ladder["best"]})
    return ladder


def failed_ladder() -> dict:
    """The naive rung breaks, and nothing else can be tried."""
    ladder = full_ladder()
    error = {"type": "TypeError", "message": "data() takes 0 positional arguments"}
    ladder["rungs"] = [unmeasured(ladder["rungs"][0], "failed", "job.py raised in data()", error)]
    ladder.update(best=None)
    return ladder


def hostile_ladder() -> dict:
    ladder = copy.deepcopy(full_ladder())
    ladder["dataset"]["name"] = HOSTILE
    ladder["machine"]["cpu"] = {"model": HOSTILE}
    ladder["machine"][HOSTILE] = {HOSTILE: HOSTILE}
    row = ladder["rungs"][3]
    row.update(name=HOSTILE, sentence=HOSTILE, reason=HOSTILE, notes=[HOSTILE], verdict="hurt")
    row["error"] = {"type": "E", "message": HOSTILE}
    row["phases_pct"] = {HOSTILE: 60.0, "data": 40.0}
    row["utilization"]["gpu_util_pct"] = {HOSTILE: [50.0] * len(row["utilization"]["t_s"])}
    ladder["rungs"][4]["variants"][0].update(label=HOSTILE, reason=HOSTILE, changes={HOSTILE: HOSTILE})
    ladder["rungs"][5]["recipe"] = {**ladder["rungs"][5]["recipe"], "net": HOSTILE}
    ladder["best"]["recipe"] = ladder["rungs"][5]["recipe"]
    ladder["verdict"] = {"kind": "data", "sentence": HOSTILE}
    return ladder


def run_result(place: int = 0, **changes: object) -> RunResult:
    row = _rung(place)
    fields = ("samples_per_sec", "phases_pct", "utilization", "steadiness", "train_loss", "val_accuracy",
              "epoch_seconds", "elapsed_seconds", "peak_rss_mib", "warmup_seconds")  # fmt: skip
    values = {"recipe": row["recipe"], "machine": MACHINE, **{key: row[key] for key in fields}, **changes}
    return RunResult(**values)
