"""Engines side by side at small batches, and the effect of rare exchanges: deck 001's two experiments.

Each contender is a recipe in processes of its own, one thread to a rank (:class:`gluontune.search.measure.Contender`,
which pauses all ranks between its turns); throughput is measured in interleaved rounds, accuracy by whole trainings.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune.core import stats
from gluontune.core.errors import UsageError
from gluontune.parallel import horovod
from gluontune.recipe import Recipe
from gluontune.search.measure import STARTS, Contender, interleave
from gluontune.search.study import Study
from gluontune.training.api import run as train

__all__ = ["BATCHES", "ENGINES", "INTERVALS", "PARTS", "SCHEMA", "run", "show"]

SCHEMA = 1
PARTS = ("engines", "interval")
ENGINES = ("async", "horovod", "kvstore", "shared-memory")
BATCHES = (1, 2, 4, 8, 16, 32, 64)
INTERVALS = (1, 2, 4, 8, 16, 32)
BAR = {"batch": 4, "ratio": 1.5, "points": 2.0}
NEVER = 10**9  # steps between exchanges, for ranks that train alone

_OURS = "async"


def run(
    part: str,
    *,
    dataset: str = "sample",
    net: str = "small_cnn",
    batches: Sequence[int] = BATCHES,
    engines: Sequence[str] | None = None,
    intervals: Sequence[int] = INTERVALS,
    ranks: int = 2,
    seeds: Sequence[int] = (0,),
    epochs: float = 3,
    changes: Mapping[str, Any] | None = None,
    rounds: int = 9,
    seconds: float = 1.0,
    out: Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure one part and return its document; with ``out``, a folder, it is saved after each piece.

    Args:
        part: ``engines``: throughput and accuracy of each engine at each batch size. ``interval``: accuracy, speed
            and utilization against the steps between exchanges, at the first of ``batches``.
        batches: images of one rank in a step.
        engines: of :data:`ENGINES`; None: those that are installed (``interval``: the first two of them).
        changes: further fields of the recipe.
        rounds, seconds: of the throughput's interleaved slices.

    Raises:
        UsageError: an unknown part or engine. GluontuneError: the folder cannot be used.
    """
    if part not in PARTS:
        raise UsageError(f"--part {part!r}: choose one of {', '.join(PARTS)}")
    usable = [name for name in ENGINES if name != "horovod" or horovod.installed()]
    for name in engines or ():
        if name not in ENGINES:
            raise UsageError(f"--engine {name!r}: choose from {', '.join(ENGINES)}")
    chosen = list(engines or (usable if part == "engines" else usable[:2]))
    base = Recipe(
        dataset=dataset, net=net, loader="resident", hybridize="static", runtime="tuned", devices="cpu",
        learning_rate=0.1, base_batch_size=64, num_devices=ranks, engine="kvstore", epochs=epochs,
        schedule="constant",
    ).override(**(changes or {}))  # fmt: skip
    given = {
        "part": part, "recipe": base.to_dict(), "batches": list(batches), "engines": chosen, "rounds": rounds,
        "seconds": seconds, "seeds": list(seeds), "intervals": list(intervals),
    }  # fmt: skip
    results = Study("exchange", SCHEMA, given, out, resume)
    if part == "engines":
        _engines(results, base, say)
    else:
        _interval(results, base, say)
    results.document["complete"] = True
    results.save()
    return results.document


def _engines(results: Study, base: Recipe, say: Callable[[str], None]) -> None:
    given, document = results.document["given"], results.document
    for batch in given["batches"]:
        recipes = {e: base.override(engine=e, batch_size_per_device=batch) for e in given["engines"]}
        key = f"batch {batch}"
        if not any(d["piece"] == key for d in document["done"]):
            say(f"{key}: throughput of {', '.join(recipes)}")
            rates = _throughput(recipes, given["rounds"], given["seconds"], _prefixed(say, key))
            results.enter({"piece": key, "kind": "rates", "batch": batch, "rates": rates})
        for seed in given["seeds"]:
            for engine, recipe in recipes.items():
                _training(results, f"{key}, {engine}, seed {seed}", recipe.override(seed=seed), say)
    document["rows"] = _engine_rows(document)
    document.update(_engine_verdict(document))


def _interval(results: Study, base: Recipe, say: Callable[[str], None]) -> None:
    given, document = results.document["given"], results.document
    batch = given["batches"][0]
    for engine in given["engines"]:
        steps = {n: base.override(engine=engine, batch_size_per_device=batch, exchange_every=n)
                 for n in [*given["intervals"], NEVER]}  # fmt: skip
        key = f"{engine}, every"
        if not any(d["piece"] == key for d in document["done"]):
            say(f"{engine}: throughput at {len(steps)} intervals")
            rates = _throughput(
                {str(n): r for n, r in steps.items()}, given["rounds"], given["seconds"], _prefixed(say, engine)
            )
            results.enter({"piece": key, "kind": "rates", "engine": engine, "rates": rates})
        for seed in given["seeds"]:
            for interval in given["intervals"]:
                name = f"{engine}, every {interval}, seed {seed}"
                _training(results, name, steps[interval].override(seed=seed), say)
    document["rows"] = _interval_rows(document)
    document["sentence"] = _interval_sentence(document["rows"])
    document["holds"] = all(row["samples_per_sec"] is not None for row in document["rows"])


def _prefixed(say: Callable[[str], None], what: str) -> Callable[[str], None]:
    return lambda line: say(f"{what}: {line}")


def _throughput(
    recipes: Mapping[str, Recipe], rounds: int, seconds: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Images a second of each contender's slices, or the reason of its failure."""
    # Long enough that no slice reaches the end of the schedule.
    field = [Contender(r.override(epochs=1000), label) for label, r in recipes.items()]
    try:
        interleave(
            field,
            rounds=rounds,
            slice_s=seconds,
            starts=STARTS,
            on_round=lambda done, of: say(f"round {done} of {of} is done"),
        )
        return {c.label: {"rates": c.rates, "failure": str(c.failure) if c.failure else None} for c in field}
    finally:
        for contender in field:
            contender.close()


def _training(results: Study, name: str, recipe: Recipe, say: Callable[[str], None]) -> None:
    """One whole training, unless the ledger contains it."""
    if any(d["piece"] == name for d in results.document["done"]):
        return
    say(f"{name}: training")
    result = train(recipe)
    if result.status == "interrupted":  # the ledger is saved; --resume goes on
        raise KeyboardInterrupt
    cpu = [v for v in result.utilization.get("cpu_pct", ()) if v is not None]
    results.enter(
        {
            "piece": name,
            "kind": "training",
            "engine": recipe.engine,
            "batch": recipe.batch_size_per_device,
            "every": recipe.exchange_every,
            "seed": recipe.seed,
            "status": result.status,
            "error": result.error,
            "val_accuracy": result.val_accuracy,
            "train_loss": result.train_loss,
            "samples_per_sec": result.samples_per_sec,
            "cpu_pct": statistics.median(cpu) if cpu else None,
            "notes": result.notes,
        }
    )


def _accuracy(document: Mapping[str, Any], **wanted: Any) -> dict[str, Any] | None:
    """Final accuracy over the seeds, or None if a training failed."""
    rows = [d for d in document["done"] if d["kind"] == "training" and all(d[k] == v for k, v in wanted.items())]
    ends = [d["val_accuracy"][-1] for d in rows if d["status"] == "ok" and d["val_accuracy"]]
    return {"median": statistics.median(ends), "by_seed": ends} if rows and len(ends) == len(rows) else None


def _engine_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for piece in (d for d in document["done"] if d["kind"] == "rates"):
        rates = piece["rates"]
        for engine, found in rates.items():
            whole = found["failure"] is None
            ours = rates.get(_OURS, {"failure": "absent"})
            ratio = None
            if engine != _OURS and whole and ours["failure"] is None:
                ratio = stats.ratio_interval(ours["rates"], found["rates"])
            rows.append(
                {
                    "name": f"batch {piece['batch']}, {engine}",
                    "batch": piece["batch"],
                    "engine": engine,
                    "status": "ok" if whole else "failed",
                    "reason": found["failure"],
                    "samples_per_sec": stats.interval(found["rates"]) if whole else None,
                    "async_ratio": ratio,
                    "val_accuracy": _accuracy(document, engine=engine, batch=piece["batch"]),
                }
            )
    return rows


def _engine_verdict(document: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the bar holds: batch 4, asynchronous against Horovod (kvstore where Horovod is not installed)."""
    at = {row["engine"]: row for row in document["rows"] if row["batch"] == BAR["batch"]}
    rival = at.get("horovod") or at.get("kvstore")
    ours = at.get(_OURS)
    if not rival or not ours or not rival["async_ratio"]:
        return {"holds": False, "sentence": f"no figures for batch {BAR['batch']}, async against horovod"}
    ratio, mine, theirs = rival["async_ratio"], ours["val_accuracy"], rival["val_accuracy"]
    points = 100 * (mine["median"] - theirs["median"]) if mine and theirs else None
    sentence = (
        f"batch {BAR['batch']}, {document['given']['recipe']['num_devices']} learners: async ÷ {rival['engine']} "
        f"{stats.said(ratio, '.2f')}, accuracy " + ("not measured" if points is None else f"{points:+.1f} points")
    )
    holds = ratio["median"] >= BAR["ratio"] and points is not None and points >= -BAR["points"]
    return {"holds": holds and rival["engine"] == "horovod", "sentence": sentence, "points": points}


def _interval_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for piece in (d for d in document["done"] if d["kind"] == "rates"):
        alone = piece["rates"][str(NEVER)]
        for interval in document["given"]["intervals"]:
            found = piece["rates"][str(interval)]
            whole = found["failure"] is None
            used = None
            if whole and alone["failure"] is None:
                used = stats.ratio_interval(found["rates"], alone["rates"])
            where = {"engine": piece["engine"], "every": interval}
            cpu = [d["cpu_pct"] for d in document["done"] if d["kind"] == "training" and d["cpu_pct"] is not None
                   and all(d[k] == v for k, v in where.items())]  # fmt: skip
            rows.append(
                {
                    "name": f"{piece['engine']}, every {interval}",
                    **where,
                    "samples_per_sec": stats.interval(found["rates"]) if whole else None,
                    "reason": found["failure"],
                    "utilization": used,
                    "cpu_pct": statistics.median(cpu) if cpu else None,
                    "val_accuracy": _accuracy(document, **where),
                }
            )
    return rows


def _interval_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for engine in dict.fromkeys(row["engine"] for row in rows):
        own = [r for r in rows if r["engine"] == engine and r["utilization"] and r["val_accuracy"]]
        if len(own) > 1:
            (first, last) = own[0], own[-1]
            used = [f"{100 * r['utilization']['median']:.0f}" for r in (first, last)]
            ends = [f"{100 * r['val_accuracy']['median']:.1f}" for r in (first, last)]
            parts.append(
                f"{engine}, exchanging every {last['every']} steps instead of {first['every']}: accuracy {ends[0]} → "
                f"{ends[1]} %, time spent training {used[0]} → {used[1]} %"
            )
    return "; ".join(parts) or "nothing was measured"


def show(document: Mapping[str, Any], console: Any) -> None:
    """Print the table and the sentence."""
    from rich.table import Table

    engines = document["given"]["part"] == "engines"
    last = "async ÷ it" if engines else "of the time without exchange, %"
    table = Table("contender", "images per sec", "95 %", last, "accuracy %", *([] if engines else ["CPU %"]))
    for row in document["rows"]:
        rate, ends = row["samples_per_sec"], row["val_accuracy"]
        if rate is None:
            table.add_row(row["name"], "failed", row["reason"])
            continue
        ratio, scale = (row["async_ratio"], 1) if engines else (row["utilization"], 100)
        cells = [row["name"], f"{rate['median']:,.0f}", f"{rate['ci95'][0]:,.0f}-{rate['ci95'][1]:,.0f}"]
        cells.append(f"{scale * ratio['median']:.{2 if engines else 0}f}" if ratio else "")
        cells.append(f"{100 * ends['median']:.1f}" if ends else "")
        if not engines:
            cells.append("" if row["cpu_pct"] is None else f"{row['cpu_pct']:.0f}")
        table.add_row(*cells)
    console.print(table)
    console.print(document["sentence"], highlight=False, soft_wrap=True)
