"""Time to accuracy: a recipe trained several times, by seed, until it reaches a validation accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune import datasets
from gluontune.core import stats
from gluontune.core.errors import UsageError
from gluontune.core.events import OnProgress, Progress, progress
from gluontune.core.journal import resumable
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.study import Clocks, Part, Study, check_target, dataset_facts, train_once
from gluontune.search.time_to_target import (
    accuracies,
    first_crossing,
    gpu_joules,
    parity,
    summarize,
    sustained_crossing,
    usd,
)

TTA_SCHEMA = 1
RULE = (
    "Counted: training steps, data loading and augmentation included, from the first step of the seeded run to "
    "the end of the epoch whose validation reached the target, each stretch closed after the device has "
    "finished. Not counted: starting the process, importing, opening the data, building the net, two untimed "
    "warm-up steps (compilation, caches), and validation; they are shown apart, and wall_seconds counts them all."
)


@resumable
def time_to_accuracy(
    recipe: Recipe,
    *,
    target: float,
    repeats: int = 5,
    seeds: Sequence[int] | None = None,
    against: Recipe | None = None,
    trainers: Mapping[str, tuple[str, Callable[..., Any]]] | None = None,
    facts: Mapping[str, Any] | None = None,
    stop_at_target: bool = False,
    price: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    part: Part | None = None,
    on_event: OnProgress | None = None,
    time_limit: float = 600.0,
) -> dict[str, Any]:
    """Train a recipe ``repeats`` times, each with its own seed; return the times to the target, as in ``tta.json``.

    Args:
        recipe: what to train, for all of its ``epochs``. target: validation accuracy, 0 … 1.
        repeats: runs of each recipe. seeds: of the runs; by default ``recipe.seed``, ``recipe.seed + 1``, ….
        against: a second recipe, run in turn with the first, repeat by repeat, with the same seeds; the
            ratio of the times is then that within each repeat.
        trainers: other trainers of ``this`` or ``against`` than gluontune: ``{"against": (name, function)}``
            with a function like :func:`gluontune.search.study.train_once`. facts: added to the document.
        stop_at_target: end each run at its first crossing; the sustained one is then not known.
        price: of this machine, from :func:`gluontune.search.time_to_target.read_price`.
        out: folder for ``tta.json``, written after each repeat, and the RunResults.
        resume: keep the finished repeats in ``out``, of all its parts, and do the others; ``repeats`` may have grown.
        part: do these repeats alone, for a later ``resume`` of all.
        on_event: called with progress events. time_limit: seconds of silence that count as hung.

    Raises:
        UsageError: a target outside 0 … 1, no repeats, seeds that are too few or repeat.
        GluontuneError: the data set cannot be opened, the folder cannot be written. A run that fails is a row.

    >>> import gluontune as gt
    >>> fast = gt.Recipe(net="mlp", loader="resident", train_samples=512, val_samples=128, optimizer="adam")
    >>> found = gt.ladder.tta(fast, target=0.15, repeats=1)
    >>> found["complete"], found["summary"]["this"]["train_seconds"]["repeats"]
    (True, 1)
    """
    seeds = _seeds(recipe, repeats, seeds)
    check_target(target)
    contenders = {"this": recipe} if against is None else {"this": recipe, "against": against}
    for name, each in contenders.items():
        contenders[name] = each.override(target_accuracy=target if stop_at_target else None)
        if each.job is None:
            datasets.open(each.dataset)
    _check_same_task(contenders)
    given = {
        "target": target,
        "stop_at_target": stop_at_target,
        "recipes": {name: {**each.to_dict(), "seed": None} for name, each in contenders.items()},
    }
    if trainers:
        given["trainers"] = {name: title for name, (title, _) in trainers.items()}
    store = Study("tta", TTA_SCHEMA, given, out, resume, part)
    document = store.document
    document.update(dataset=dataset_facts(recipe), rule=RULE, price=dict(price) if price else None, seeds=list(seeds))
    document.update(facts or {})
    document["done"] = [row for row in document["done"] if row["seed"] in seeds]
    with store.under_way():
        for number, seed in enumerate(seeds):
            if not store.takes(number):
                continue
            for name in list(contenders)[:: -1 if number % 2 else 1]:
                if any(row["recipe"] == name and row["seed"] == seed for row in document["done"]):
                    continue

                def tell(event: Progress, name: str = name, number: int = number) -> None:
                    if on_event is not None:
                        on_event({**event, "recipe": name, "repeat": number + 1, "repeats": len(seeds)})

                train = trainers[name][1] if trainers and name in trainers else train_once
                each = contenders[name].override(seed=seed)
                result, clocks = store.train(train, each, f"{name}-seed{seed}", tell, time_limit)
                row = describe(result, clocks, target, sustained=not stop_at_target)
                row.update(recipe=name, number=number, seed=seed)
                store.enter(row)
                tell({**progress("done", 1.0, row["status"]), "row": row})
    conclude(document)
    store.save()
    return document


def _seeds(recipe: Recipe, repeats: int, seeds: Sequence[int] | None) -> list[int]:
    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: give at least 1; 5 let an interval be made")
    if seeds is None:
        return list(range(recipe.seed, recipe.seed + repeats))
    if len(set(seeds)) != len(seeds) or not seeds or min(seeds) < 0:
        raise UsageError(f"--seeds {','.join(map(str, seeds))}: give different seeds of at least 0")
    return list(seeds)


def _check_same_task(contenders: Mapping[str, Recipe]) -> None:
    tasks = {(r.dataset, r.val_samples or None) for r in contenders.values() if not r.job}
    if len(tasks) > 1:
        first, second = (f"{name} ({r.dataset})" for name, r in contenders.items())
        text = "validate on different data: their times to an accuracy cannot be compared"
        raise UsageError(f"recipes {first} and {second} {text}")


def describe(result: RunResult, clocks: Clocks, target: float, *, sustained: bool = True) -> dict[str, Any]:
    """The row of one repeat; ``sustained``: whether the run went on to its end, as the sustained crossing requires.

    Of a crossing, ``epoch`` is the validation's number and ``epochs`` the trained ones (the last may be a part of one);
    ``flipped`` is the last accuracy with test-time flips; ``mlperf`` has the times for the log.
    """
    accuracy, length = accuracies(result), result.recipe["epochs"]
    walls = [end for _, end, _ in clocks.evaluations][: len(accuracy)]
    evals = [end - begin for begin, end, _ in clocks.evaluations][: len(accuracy)]
    first = first_crossing(accuracy, target)
    status = "reached" if first is not None else "not reached" if result.ok else "crashed"
    reason = None
    if result.error is not None:
        reason = f"{result.error['message']} (while {result.error['phase']})"
    elif first is None:
        best = 100 * max(accuracy, default=0.0)
        reason = f"best validation accuracy {best:.1f} % in {min(len(accuracy), length):g} epochs"

    def crossing(place: int | None) -> dict[str, Any] | None:
        if place is None:
            return None
        joules = [clocks.evaluations[place][2], gpu_joules(result.utilization, walls[place] - clocks.run_at)]
        known = [value for value in joules if value is not None]
        return {
            "epoch": place + 1, "epochs": min(place + 1, length), "accuracy": accuracy[place],
            "train_seconds": result.elapsed_seconds[place], "eval_seconds": sum(evals[: place + 1]),
            "wall_seconds": walls[place], "joules": sum(known) if known else None,
        }  # fmt: skip

    spent = {"train_seconds": sum(result.epoch_seconds), "eval_seconds": sum(evals), "wall_seconds": clocks.now()}
    evaluations = [[begin, end] for begin, end, _ in clocks.evaluations][: len(accuracy)]
    return {
        "status": status, "reason": reason, "first": crossing(first),
        "sustained": crossing(sustained_crossing(accuracy, target)) if sustained and result.ok else None,
        "spent": spent, "start_seconds": clocks.start_seconds, "warmup_seconds": clocks.warmup_seconds,
        "val_accuracy": accuracy, "flipped": (result.val_metric.get("flipped") or [None])[-1],
        "train_elapsed": list(result.elapsed_seconds[: len(accuracy)]), "wall_elapsed": walls,
        "samples_per_sec": result.samples_per_sec, "steps": result.steps,
        "mlperf": {"started_at": clocks.started_at, "run_at": clocks.run_at, "evaluations": evaluations},
    }  # fmt: skip


def conclude(document: dict[str, Any]) -> None:
    rows = {name: [r for r in document["done"] if r["recipe"] == name] for name in document["given"]["recipes"]}
    document["summary"] = {name: _summary(found, document["price"]) for name, found in rows.items()}
    document["ratio"] = document["parity"] = None
    if "against" in rows:
        document["ratio"] = _ratio(rows["this"], rows["against"])
        epochs = {name: found["epochs"] for name, found in document["summary"].items()}
        last = {name: [r["val_accuracy"][-1] for r in found if r["val_accuracy"]] for name, found in rows.items()}
        document["parity"] = parity(
            epochs["this"], epochs["against"], accuracy=last["this"], reference_accuracy=last["against"]
        )


def _summary(rows: Sequence[Mapping[str, Any]], price: Mapping[str, Any] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"crashed": sum(r["status"] == "crashed" for r in rows)}
    found["not_reached"] = sum(r["status"] == "not reached" for r in rows)
    for name in ("train_seconds", "wall_seconds"):
        reached = [r["first"][name] for r in rows if r["first"]]
        found[name] = summarize(reached, [r["spent"][name] for r in rows if not r["first"]])
    held = [r["sustained"]["train_seconds"] for r in rows if r["sustained"]]
    lost = [r["spent"]["train_seconds"] for r in rows if not r["sustained"]]
    found["sustained_train_seconds"] = summarize(held, lost)
    for name, finals in (
        ("accuracy", [r["val_accuracy"][-1] for r in rows if r["val_accuracy"] and r["status"] != "crashed"]),
        ("flipped", [r["flipped"] for r in rows if r.get("flipped") is not None]),
    ):
        found[name] = {"mean": sum(finals) / len(finals), "each": finals} if finals else None
    found["epochs"] = [r["first"].get("epochs", r["first"]["epoch"]) if r["first"] else None for r in rows]
    joules = [r["first"]["joules"] for r in rows if r["first"] and r["first"]["joules"] is not None]
    found["joules"] = summarize(joules) if joules else None
    found["usd"] = usd(price, found["wall_seconds"]["median"])
    found["usd_with_failures"] = usd(price, found["wall_seconds"]["expected_seconds"])
    return found


def _ratio(mine: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Time of the second recipe ÷ time of the first, within each repeat; above 1 the first is faster."""
    other = {r["seed"]: r for r in theirs}
    pairs = [(r, other[r["seed"]]) for r in mine if r["seed"] in other]
    both = [(a["first"], b["first"]) for a, b in pairs if a["first"] and b["first"]]
    found: dict[str, Any] = {"pairs": len(pairs), "pairs_without_a_time": len(pairs) - len(both)}
    for name in ("train_seconds", "wall_seconds"):
        ratio = stats.ratio_interval([b[name] for _, b in both], [a[name] for a, _ in both]) if both else None
        found[name] = ratio and {**ratio, "ci95": stats.bounds(ratio)}
    return found
