"""``gluontune bench gpu``: what a machine's GPUs give gluontune, in ten minutes.

A part that fails, or that this machine has nothing for, is a row with its reason. Contenders run one after the other,
since a paused process keeps its GPU memory. ``pretend`` runs every part on the CPU with tiny nets, and says so first.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from gluontune.core.errors import GluontuneError
from gluontune.core.journal import Journal
from gluontune.engines import ENGINES
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.runtime import machine_facts
from gluontune.runtime.doctor import run_checks
from gluontune.runtime.facts import can_run_mxnet_on_gpu
from gluontune.runtime.launch import launch_settings
from gluontune.search.bench._gluon_training import airbench_runs, beside_smi
from gluontune.search.bench.benchmark import Terms, document
from gluontune.search.bench.contender import OURS, Entrant
from gluontune.search.bench.tta_peers import command_of, printed
from gluontune.training.api import run as train

UNIT = "samples_per_sec"
PRETENDED = "PRETENDED: no GPU took part; the CPU stood in for it, and no figure here says anything about one"
_CHECKS = ("gpu-driver", "driver-version", "nvml", "gpu-code", "gpu-unused", "visible-devices")
_NETS = {"cifar_resnet20_v1": (32, 512), "mobilenet1.0": (224, 128), "resnet50_v1": (224, 128)}  # → side, batch
_TINY = {"mlp": (16, 16), "softmax": (16, 16), "sigmoid_100": (16, 16)}
_MODES = ("imperative", "hybridized", "static")
_STEPS = (  # backend, dtype, mode; all for the first net, the last four for the others
    ("mxnet", "float32", "imperative"), ("mxnet", "float32", "static"), ("mxnet", "bfloat16", "static"),
    *(("torch", "float32", mode) for mode in _MODES), ("torch", "float16", "static"),
    ("mxnet", "float16", "static"), ("torch", "float16", "hybridized"),
    ("torch", "bfloat16", "hybridized"), ("torch", "bfloat16", "static"),
)  # fmt: skip
_WORDS = {"hybridized": "channels-last", "static": "channels-last, compiled, CUDA graphs"}
_AIRBENCH_TARGET = 0.94  # with test-time flips
Row = dict[str, Any]


def run(*, pretend: bool = False, minutes: float = 10.0, airbench: str | None = None, **terms: Any) -> dict[str, Any]:
    """Measure all parts, and return the document; ``terms`` are ``out``, ``resume`` and ``say``.

    No part begins after ``minutes``, unless it is pretended.
    """
    pace = {"seconds": 0.05, "rounds": 1} if pretend else {"seconds": 0.5, "rounds": 3}
    how, machine = Terms(**{**pace, **terms}), machine_facts()
    if not pretend and not machine["gpus"]:
        why = f"NVML shows no GPU here ({machine['gpu_status']})"
        raise GluontuneError(f"bench gpu: {why}; --pretend runs all of it on the CPU")
    if airbench is not None:
        command_of(airbench)
    given = {"pretended": pretend, "minutes": minutes, "airbench": airbench is not None}
    with how.journal("bench gpu", given) as journal:
        bench = _Bench(pretend, how, journal, airbench, math.inf if pretend else time.monotonic() + 60 * minutes)
        rows = [row for part, work in bench.parts() for row in bench.rows(part, work)]
    bad = [each["name"] for each in rows if each["status"] == "failed"]
    found = f"{len(rows)} rows, {len(bad)} failed" + (f": {', '.join(bad[:4])}" if bad else "")
    names = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "no GPU"
    return {
        "rows": rows, "limit": {}, "ours": {}, "machine": machine, "versions": bench.versions, "conditions": given,
        "headline": PRETENDED if pretend else f"{names}: {found}", "warn": f"{PRETENDED}. {found}" if pretend else "",
    }  # fmt: skip


def row(name: str, status: str = "ok", reason: str = "", **figures: Any) -> Row:
    """A row; a figure that is None is shown as N/A, never as 0.

    >>> row("GPU 0", utilization_pct=None)
    {'name': 'GPU 0', 'peer': 'gluontune', 'status': 'ok', 'reason': '', 'note': '', 'utilization_pct': 'N/A'}
    """
    shown = {key: "N/A" if value is None else value for key, value in figures.items()}
    return {"name": name, "peer": OURS, "status": status, "reason": reason, "note": "", **shown}


class _Bench:
    def __init__(self, pretend: bool, how: Terms, journal: Journal, airbench: str | None, until: float):
        self.pretend, self.how, self.journal, self.airbench, self.until = pretend, how, journal, airbench, until
        self.device = "cpu" if pretend else "gpu"
        self.env = {"OMP_NUM_THREADS": "1"} if pretend else dict(launch_settings().env)
        self.versions: dict[str, str] = {}

    def rows(self, part: str, work: Callable[[], list[Row]]) -> list[Row]:
        """The rows of a part; a failure is one, and is tried again by a resume."""
        self.how.tell(part)
        found: list[Row] | None = self.journal.pieces.get(part)
        if found is None and time.monotonic() > self.until:
            found = [row(part, "skipped", "the minutes were over (--minutes); --resume goes on")]
        elif found is None:
            try:
                found = work()
            except Exception as error:
                found = [row(part, "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")]
            if all(each["status"] != "failed" for each in found):
                self.journal.keep(part, found)
        for each in found:
            self.versions.update(each.get("versions", {}))
        return [{"part": part.partition(": ")[0], **each} for each in found]

    def parts(self) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
        yield "What is there", self.there
        nets = _TINY if self.pretend else _NETS
        for number, net in enumerate(nets):
            if number == 1:  # what one net shows comes before the same of two others
                yield "Loader and device", self.overlap
                yield "Monitor", self.monitor
                for name in ("cifar10-80", "dawnbench-94"):
                    yield f"Time to accuracy: {name}", partial(self.accuracy, name)
                yield "Time to accuracy: airbench94", self.peer
                yield "Two ranks", self.ranks
            for backend, dtype, mode in _STEPS[-4:] if number else _STEPS:
                words = mode if backend == "mxnet" else _WORDS.get(mode, mode)
                title = f"{ENGINES[backend].title}, {dtype}, {words}"
                how = {"backend": backend, "dtype": dtype, "hybridize": mode}
                yield f"Steps of {net}: {title}", partial(self.step, net, title, **how)

    def recipe(self, **changes: Any) -> Recipe:
        return Recipe(**{
            "devices": self.device, "backend": "torch", "loader": "resident", "runtime": "tuned", "epochs": 1000.0,
            "augment": "none", "env": {"OMP_NUM_THREADS": "1"} if self.pretend else {}, **changes,
        })  # fmt: skip

    def contest(self, name: str, recipe: Recipe, part: str = "step") -> Row:
        settings = {"recipe": recipe.to_dict(), "part": part, "pretend": self.pretend}
        target = "gluontune.search.bench._gluon_training:EngineWork"
        entrant = Entrant(name, OURS, target, settings, env=self.env, slices="steps")

        def finish(field: list[Any]) -> None:
            field[0].info["remarks"] = field[0].ask("remarks")

        (one,) = self.how.contest([entrant], say=self.how.say, time_limit=180.0, finish=finish, **self.how.pace)
        found = document([one], conditions={}, unit=UNIT)
        (made,) = found["rows"]
        remarks = "; ".join([*one.info.get("notes", []), *(one.info.get("remarks") or [])])
        return {**made, "versions": found["versions"], "reason": made["reason"] or remarks}

    def there(self) -> list[Row]:
        """The doctor's findings, the GPUs, and which engine can use them."""
        found = [
            row(f.id, "ok" if f.severity in ("ok", "info") else "missing", f.message, seen=f.evidence)
            for f in run_checks(only=_CHECKS)
        ]
        for gpu in machine_facts()["gpus"]:
            figures = {"memory_mib": gpu["memory_mib"], "compute_capability": gpu["compute_capability"]}
            found.append(row(f"GPU {gpu['index']}", seen=gpu["name"], **figures))
        can, why = can_run_mxnet_on_gpu()
        found.append(row("MXNet", "ok" if can else "missing", why))
        sight = Entrant("PyTorch", OURS, "gluontune.search.bench._gluon_training:Sight", slices="once")
        (one,) = self.how.contest([sight], rounds=0, seconds=0.0)
        facts, sees = one.info, bool(one.info.get("capabilities"))
        seen = f"built for CUDA {facts.get('built_for') or 'N/A'}, code: {', '.join(facts.get('code') or ['N/A'])}"
        why = str(one.failure or ("" if sees else "it sees no GPU"))
        return [*found, row("PyTorch", "ok" if sees else "missing", why, seen=seen)]

    def step(self, net: str, title: str, **how: Any) -> list[Row]:
        side, batch = (_TINY if self.pretend else _NETS)[net]
        seen = () if self.pretend else self.journal.pieces.get("What is there", ())
        if why := [r["reason"] for r in seen if r["name"] == ENGINES[how["backend"]].title and r["status"] != "ok"]:
            return [row(title, "missing", why[0])]
        data = f"synthetic:train={2 * batch},test={batch},size={side}x{side},classes=10"
        try:
            recipe = self.recipe(net=net, dataset=data, batch_size_per_device=batch, **how)
        except GluontuneError as error:
            return [row(title, "missing", str(error))]
        return [{**self.contest(title, recipe), "batch": batch}]

    def overlap(self) -> list[Row]:
        """The loader, the step, and both: how much of the shorter one the longer one hides."""
        side, batch, net = (16, 16, "mlp") if self.pretend else (224, 128, "mobilenet1.0")
        data = f"synthetic:train={8 * batch},test={batch},size={side}x{side},classes=10"
        dtype = "float32" if self.pretend else "bfloat16"
        recipe = self.recipe(
            net=net, dataset=data, batch_size_per_device=batch, dtype=dtype, loader="threaded", num_workers=2,
            augment="random-resized-crop-flip" if side > 32 else "none", hybridize="hybridized",
        )  # fmt: skip
        found = [self.contest(name, recipe, part) for name, part in (
            ("loader to device", "loader"), ("step alone", "step"), ("both, as in training", "both"))]  # fmt: skip
        rates = [each[UNIT]["median"] for each in found if each[UNIT]]
        if len(rates) == 3:
            found.append(row("share of the slower one that is reached", share_pct=100 * rates[2] / min(rates[:2])))
        return found

    def monitor(self) -> list[Row]:
        """Idle share and steadiness before and after, and NVML's figures beside nvidia-smi's."""
        slow = {"loader": "threaded", "num_workers": 1, "hybridize": "imperative", "runtime": "as-installed"}
        ways: dict[str, dict[str, Any]] = {
            "before: one loader thread, eager": slow, "after: resident": {"hybridize": "hybridized"}
        }  # fmt: skip
        small, rows = {**self._small(), "seconds": 1.0 if self.pretend else 12.0}, []
        for name, changes in ways.items():
            with beside_smi() as theirs:
                result = _trained(self.recipe(**{**small, **changes}))
            series: Mapping[str, Any] = result.utilization.get("gpu_util_pct") or {}
            ours = [value for value in next(iter(series.values()), ()) if value is not None]
            rate, steady = result.samples_per_sec, result.steadiness
            figures: dict[str, Any] = {
                "images_a_second": round(rate["median"]) if rate else None, "busy_pct": steady.get("mean_pct"),
                "idle_pct": steady.get("below_10_pct"), "nvml_pct": statistics.mean(ours) if ours else None,
                "nvidia_smi_pct": theirs[0], "nvml_mib": result.peak_gpu_mib, "nvidia_smi_mib": theirs[1],
            }  # fmt: skip
            rows.append(row(name, reason="; ".join(result.notes), **figures))
        return rows

    def _small(self) -> dict[str, Any]:
        if self.pretend:
            return {"dataset": "sample", "net": "mlp", "train_samples": 640, "val_samples": 100, "epochs": 1.0}
        return {"dataset": "cifar10", "net": "cifar_resnet20_v1", "batch_size_per_device": 512}

    def accuracy(self, name: str) -> list[Row]:
        """Seconds of training to the target of a recipe of gluontune's, and of its naive twin."""
        recipe = Recipe.from_yaml(name).override(devices=self.device)
        naive = recipe.override(
            hybridize="imperative", dtype="float32", optimizer="nag", methods={}, loader="threaded", learning_rate=None,
            base_batch_size=None, lr_scaling=None, momentum=0.9, wd=None, schedule="onecycle", runtime="as-installed",
            augment=None, epochs=8.0,
        )  # fmt: skip
        pairs = {name: recipe}
        if name == "cifar10-80":
            pairs[f"{name}, eager float32 with NAG"] = naive
        tiny = {**self._small(), "methods": {}, "dtype": "float32", "target_accuracy": 0.05, "env": self.env}
        tiny["batch_size_per_device"] = 64
        found: list[Row] = []
        for title, each in pairs.items():
            result = _trained(each.override(**tiny) if self.pretend else each)
            reached, target = (result.val_accuracy or [0.0])[-1], 0.05 if self.pretend else each.target_accuracy or 0.0
            seconds = result.elapsed_seconds[-1] if reached >= target else None
            why = [] if seconds else [f"the target {target:g} was not reached"]
            flipped = (result.val_metric.get("flipped") or [None])[-1]
            figures: dict[str, Any] = {"seconds": seconds, "accuracy": reached, "flipped": flipped}
            if found:
                ours = found[0]["seconds"]
                figures["times_ours"] = seconds / ours if seconds and ours != "N/A" else None
            status = "ok" if seconds or found else "failed"
            found.append(row(title, status, "; ".join([*why, *result.notes]), **figures))
        return found

    def peer(self) -> list[Row]:
        """The second run that airbench94 prints, of the user's copy: the first one warms up."""
        if self.airbench is None:
            return [row("airbench94", "missing", "give its path: --airbench PATH (github.com/KellerJordan)")]
        runs = airbench_runs(printed(command_of(self.airbench), 0, 300.0))
        if (seen := next(itertools.islice(runs, 1, None), None)) is None:
            return [row("airbench94", "failed", "it printed no second run with its time")]
        good = seen["flipped"] >= _AIRBENCH_TARGET
        ours = self.journal.pieces.get("Time to accuracy: dawnbench-94", [{}])[0].get("seconds")
        figures: dict[str, Any] = {**seen, "times_ours": seen["seconds"] / ours if isinstance(ours, float) else None}
        return [row("airbench94", reason="" if good else "below 94 % this time", **figures)]

    def ranks(self) -> list[Row]:
        """One rank beside two, by NCCL (on the CPU: by Gloo)."""
        gpus = len(machine_facts()["gpus"])
        if not self.pretend and gpus < 2:
            return [row("two ranks by NCCL", "missing", f"{gpus} GPU here, and NCCL wants two")]
        one = self.recipe(**self._small(), seconds=1.0 if self.pretend else 8.0, hybridize="hybridized")
        rates = [_trained(each).samples_per_sec for each in (one, one.override(engine="ddp", num_devices=2))]
        first, second = (rate and rate["median"] for rate in rates)
        share = 50 * second / first if first and second else None
        return [row("one rank", images_a_second=first), row("two ranks", images_a_second=second, efficiency_pct=share)]


def _trained(recipe: Recipe) -> RunResult:
    result = train(recipe, time_limit=180.0)
    if result.error is not None:
        raise GluontuneError(result.error["message"])
    return result
