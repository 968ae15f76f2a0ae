"""``gluontune bench inference``: the rungs of inference, each with its latency, throughput and accuracy.

A fast rung with other answers than the hybridized float32 net's does not count. For one image, fewer threads can be
faster: at the end of each operator the threads wait for each other, and if a process has more OpenMP threads than
cores, libgomp lets them sleep almost at once. So MXNet's rungs also predict one image at a time with one thread, in
another process, and the better of the two is the latency.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gluontune import datasets, runtime
from gluontune.compute import bfloat16_support
from gluontune.core import stats
from gluontune.core.arrays import gap
from gluontune.core.errors import GluontuneError, UsageError, nearest
from gluontune.job.trained import recipe_of_source
from gluontune.recipe import Recipe
from gluontune.runtime.launch import launch_settings
from gluontune.search.bench._inference import AGREE_PCT, MODES, OWN_THREADS
from gluontune.search.bench.benchmark import Terms, document
from gluontune.search.bench.contender import OURS, Contender, Entrant

REFERENCE = "hybridized"  # the float32 net with which the others are compared
_WORK = "gluontune.search.bench._inference:Predictor"
_ELSEWHERE = {
    "TensorRT": "not run here: it needs an NVIDIA GPU and an mxnet built with TensorRT",
    "GPU float16": "not run here: no GPU that this mxnet can use",
}
_MUCH = 1.25  # times as fast with one thread, for a line of advice
_BF16 = "not run here: no bfloat16 arithmetic faster than float32 on this CPU (--rungs bfloat16 runs it all the same)"


def run(
    recipe: Recipe, source: str | Path | None = None, *, modes: Sequence[str] | None = None, batch_size: int = 128,
    val_images: int = 2000, latencies: int = 200, **terms: Any,
) -> dict[str, Any]:  # fmt: skip
    """Measure the rungs ``modes`` and the reference, and return the document; ``terms`` are of :class:`Terms`.

    ``source`` names net and data set, else ``recipe`` does; without it weights are random (accuracy at chance level,
    agreement still counts).

    Returns the document of :func:`document`; each row has ``latency_ms`` (``p50``, ``p90``, ``p99`` of the better
    number of ``threads``), ``accuracy``, ``agree_pct`` and ``ratio_to_hybridized``; ``best`` is a rung that agrees on
    99 %.
    """
    if (unknown := next((mode for mode in modes or () if mode not in MODES), None)) is not None:
        close = nearest(unknown, list(MODES), n=2)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise UsageError(f"unknown rung of inference {unknown!r}: {hint}Known: {', '.join(MODES)}")
    if min(batch_size, val_images, latencies) < 1:
        raise UsageError("bench inference: batch size, validation images and latencies are at least 1")
    if source is not None and not Path(source).exists():
        raise GluontuneError(f"{source}: no such file; give a checkpoint, its folder, a .params or a .npz file")
    recipe = recipe_of_source(source, recipe)
    if recipe.job is None:
        datasets.open(recipe.dataset)
    given: dict[str, Any] = {"source": None if source is None else str(source)}
    settings = {"recipe": recipe.to_dict(), **given, "batch_size": batch_size, "val_images": val_images}
    cores = runtime.usable_cores()
    env = launch_settings(cores=cores).env
    elsewhere = dict(_ELSEWHERE)
    if modes is None and bfloat16_support().level != "native":
        modes, elsewhere["bfloat16"] = [mode for mode in MODES if mode != "bfloat16"], _BF16
    wanted = [mode for mode in MODES if modes is None or mode in (*modes, REFERENCE)]
    entrants = [Entrant(mode, OURS, _WORK, {"mode": mode, **settings}, env=env, slices="steps") for mode in wanted]
    extra: dict[str, dict[str, Any]] = {}

    def finish(field: list[Contender]) -> None:
        for contender in field:
            name = contender.entrant.name
            tell(f"latency and accuracy of {name}")
            times = {cores: contender.ask("latency", count=latencies)}
            extra[name] = {"times": times, "answers": contender.ask("predict_all")}
            if cores > 1 and name not in OWN_THREADS and contender.failure is None:
                times.update(_one_thread(contender.entrant, latencies, tell))

    how = Terms(**terms)
    tell = how.tell
    conditions = {
        "net": recipe.net, "dataset": recipe.dataset, "weights": "random" if source is None else "trained",
        "batch_size": batch_size, "val_images": val_images, "latencies": latencies, **how.pace,
        "threads": cores,
    }  # fmt: skip
    given.update(conditions, modes=wanted)
    with how.journal("bench inference", given) as journal:
        field = how.contest(entrants, say=tell, finish=finish, journal=journal, **how.pace)
    found = document(field, conditions=conditions)
    reference = next(c for c in field if c.entrant.name == REFERENCE)
    for row, contender in zip(found["rows"], field):
        row.update(_beside(contender, reference, extra))
    found["best"] = _best(found["rows"])
    found["rows"] += [{"name": name, "status": "not run here", "reason": why} for name, why in elsewhere.items()]
    return found


def _beside(contender: Contender, reference: Contender, extra: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    names = ("latency_ms", "accuracy", "agree_pct", "output_error", "ratio_to_hybridized")
    found: dict[str, Any] = dict.fromkeys(names)
    if contender.failure is not None:
        return found
    mine = extra[contender.entrant.name]
    found["latency_ms"] = _latency(mine["times"])
    found["accuracy"] = mine["answers"]["accuracy"]
    if reference.failure is None:
        mine_scores, theirs = (np.asarray(extra[c.entrant.name]["answers"]["scores"]) for c in (contender, reference))
        found["agree_pct"] = 100 * float((mine_scores.argmax(1) == theirs.argmax(1)).mean())
        found["output_error"] = gap(mine_scores, theirs)
        found["ratio_to_hybridized"] = stats.ratio_interval(contender.rates, reference.rates)
    return found


def _one_thread(entrant: Entrant, count: int, tell: Callable[[str], None]) -> dict[int, list[float]]:
    """Milliseconds of ``count`` predictions of one image with one thread; empty if that fails."""
    tell(f"latency of {entrant.name} with one thread")
    with contextlib.closing(Contender(replace(entrant, env=launch_settings(cores=1).env))) as alone:
        alone.launch()
        times = alone.ask("latency", count=count)
    if alone.failure is not None:
        tell(f"{entrant.name} with one thread: {alone.failure}")
        return {}
    return {1: times}


def _latency(times: Mapping[int, Sequence[float]]) -> dict[str, Any]:
    """The row's ``latency_ms`` from milliseconds by number of threads.

    >>> found = _latency({2: [8.0, 9.0, 8.5], 1: [2.0, 2.5, 2.1]})
    >>> found["p50"], found["threads"], found["p50_by_threads"]
    (2.1, 1, {'2': 8.5, '1': 2.1})
    """
    middles = {threads: float(np.median(seen)) for threads, seen in times.items()}
    threads = min(middles, key=lambda count: middles[count])
    p50, p90, p99 = (float(value) for value in np.percentile(times[threads], [50, 90, 99]))
    found: dict[str, Any] = {"p50": p50, "p90": p90, "p99": p99, "n": len(times[threads]), "threads": threads}
    return {**found, "p50_by_threads": {str(count): middle for count, middle in middles.items()}}


def _advice(rows: Sequence[Mapping[str, Any]]) -> str | None:
    gains = []
    for row in rows:
        by_threads = (row.get("latency_ms") or {}).get("p50_by_threads", {})
        most = max(by_threads, key=int, default="1")
        if row["status"] == "ok" and most != "1" and "1" in by_threads:
            gains.append((by_threads[most] / by_threads["1"], row["name"], by_threads[most], by_threads["1"]))
    gain, name, all_threads, one = max(gains, default=(0.0, "", 0.0, 0.0))
    if gain < _MUCH:
        return None
    advice = "one image at a time: start MXNet with OMP_NUM_THREADS=1"
    return f"{advice} ({name}: {one:.2f} ms, with all threads {all_threads:.2f})"


def _best(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    fit = [row for row in rows if row["ratio_to_hybridized"] and row["agree_pct"] >= AGREE_PCT]
    if not fit:
        return None
    best = max(fit, key=lambda row: row["ratio_to_hybridized"]["median"])
    return {name: best[name] for name in ("name", "ratio_to_hybridized", "agree_pct", "accuracy")}


def show(found: Mapping[str, Any], console: Any) -> None:
    from rich.table import Table

    facts = found["conditions"]
    title = f"{facts['net']} on {facts['dataset']}, {facts['weights']} weights, batch {facts['batch_size']}"
    table = Table(title=title, box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("rung", "images/s", "× hybridized\n(95 %)", "ms at 1: p50\n(p90, p99)", "threads",
                 "accuracy", "agrees"):  # fmt: skip
        table.add_column(name, no_wrap=True)
    for row in found["rows"]:
        if row["status"] != "ok":
            continue
        ratio, late = row["ratio_to_hybridized"], row["latency_ms"]
        table.add_row(
            row["name"], f"{row['images_per_sec']['median']:,.0f}",
            f"{ratio['median']:.2f}\n({ratio['ci95'][0]:.2f}-{ratio['ci95'][1]:.2f})" if ratio else "",
            f"{late['p50']:.2f}\n({late['p90']:.2f}, {late['p99']:.2f})", f"{late['threads']}",
            f"{100 * row['accuracy']:.1f} %", "" if row["agree_pct"] is None else f"{row['agree_pct']:.2f} %",
        )  # fmt: skip
    console.print(table)
    for row in found["rows"]:
        if row["status"] != "ok":
            text = f"{row['name']}: {row['status']}: {row['reason'].removeprefix('not run here: ')}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    if (advice := _advice(found["rows"])) is not None:
        console.print(advice, highlight=False)
    if (best := found["best"]) is not None:
        line = f"best: {best['name']}, {best['ratio_to_hybridized']['median']:.2f} × hybridized float32"
        console.print(f"{line}, same class for {best['agree_pct']:.2f} % of the images", highlight=False)
