"""Comparison of the methods of ``gt.methods`` on one job: each alone, by time to accuracy, and the best together.

Source of the question: Coleman et al., *DAWNBench*, 2017, whose Figure 3 switches optimizations on and off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gluontune.core import stats
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.events import OnProgress
from gluontune.core.journal import resumable
from gluontune.methods.cards import METHODS, with_methods
from gluontune.recipe import Recipe
from gluontune.search.factors import FACTORS_SCHEMA, Row, train_to_targets, tta_of
from gluontune.search.study import Part, Study, check_target, dataset_facts

_AGAIN, _TOGETHER = "base, beside the best together", "together"


@resumable
def compare_methods(
    recipe: Recipe,
    *,
    target: float,
    names: Sequence[str] | None = None,
    repeats: int = 3,
    best: int = 3,
    out: str | Path | None = None,
    resume: bool = False,
    part: Part | None = None,
    on_event: OnProgress | None = None,
    time_limit: float = 600.0,
) -> dict[str, Any]:
    """Train the base and the base with each method, in turn, then the best together, and compare times to an accuracy.

    In each repeat all are trained once from the same seed, for all epochs of the recipe, in an order that rotates. A
    method pays if the base's time to the target ÷ its time is certainly above 1. Times are known by the epoch, so the
    final accuracies are compared, too: a method that is more accurate in the same epochs needs fewer of them.

    Args:
        recipe: the base; its ``epochs`` are those of each run, and its schedule's length.
        target: validation accuracy, 0 … 1; never one with test-time flips.
        names: of ``gt.methods.METHODS``; None: all that can change this recipe's time.
        repeats: seeds. best: number of methods, those with the largest gains, to train together against the base; of
            methods that are equally fast, the most accurate.
        out: folder for ``factors.json``; ``resume`` goes on with it, and with its parts.
        part: do these repeats alone, for a later ``resume`` of all, which trains the best together.
        on_event: see :func:`gt.ladder.factors`. time_limit: seconds of silence.

    Raises:
        UsageError: a target outside 0 … 1, repeats below 1, an unknown method, or nothing to compare.
        GluontuneError: the data set cannot be opened. A method that fails is a row.

    >>> import gluontune as gt
    >>> small = gt.Recipe(net="mlp", loader="resident", train_samples=512, val_samples=128, batch_size_per_device=32)
    >>> found = gt.ladder.methods(small, names=["ema", "squeeze-excite"], target=0.05, repeats=1)
    >>> [(row["name"], row["verdict"]) for row in found["methods"]]
    [('ema', 'one run'), ('squeeze-excite', 'failed')]
    """
    check_target(target)
    for option, value, least in (("repeats", repeats, 1), ("best", best, 0)):
        if value < least:
            raise UsageError(f"--{option} {value}: give at least {least}")
    recipe = recipe.override(target_accuracy=None)
    chosen, skipped = _choose(recipe, names)
    given = {"recipe": recipe.to_dict(), "methods": chosen, "targets": [target], "best": best, "pace": "to accuracy"}
    facts = dataset_facts(recipe)
    store = Study("factors", FACTORS_SCHEMA, given, out, resume, part)
    store.document.update(dataset=facts, repeats=repeats, skipped=skipped)

    def train(sets: Mapping[tuple[str, ...], Recipe]) -> None:
        runs = [
            (name, r.override(seed=r.seed + n))
            for n in filter(store.takes, range(repeats))
            for name, r in stats.in_turn(list(sets.items()), n)
        ]
        train_to_targets(store, runs, [target], on_event or (lambda event: None), time_limit)

    with store.under_way():
        train({(): recipe, **{(name,): with_methods(recipe, [name]) for name in chosen}})
        if part is None:
            winners = _winners(recipe, store.document["done"], chosen, best)
            if len(winners) > 1:
                train({(_AGAIN,): recipe, (_TOGETHER,): with_methods(recipe, winners)})
            store.document["winners"] = winners
    if part is None:
        _conclude(store.document, chosen, target)
    store.save()
    return store.document


def _choose(recipe: Recipe, names: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    chosen, skipped = [], {}
    for card in METHODS:
        if names is not None and card.name not in names:
            continue
        try:
            changed = with_methods(recipe, [card.name])
        except GluontuneError as error:
            skipped[card.name] = str(error)
            continue
        if card.kind == "validation":
            skipped[card.name] = "it changes what is reported, not the time to an accuracy"
        elif changed == recipe:
            skipped[card.name] = "the base recipe has it already"
        else:
            chosen.append(card.name)
    for name in names or ():
        METHODS[name]  # an unknown one is refused with the nearest
    if not chosen:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise UsageError(f"--methods: nothing to compare here ({reasons})")
    return chosen, skipped


def _gain(done: Sequence[Row], base: tuple[str, ...], name: tuple[str, ...]) -> dict[str, Any]:
    """Base's time ÷ that of a set, its final accuracy less the base's, by seed, and the verdict."""
    pairs = _pairs(done, base, name)
    gain: dict[str, Any] = {"ratio": None, "points": None, "verdict": "not known"}
    if not pairs:
        return gain
    if any(row["status"] == "failed" for pair in pairs for row in pair):
        return {**gain, "verdict": "failed"}
    gain["points"] = stats.difference(*([row["last_accuracy"] for row in side] for side in list(zip(*pairs))[::-1]))
    for side, verdict in ((1, "did not converge"), (0, "the base did not converge")):
        if any(pair[side]["seconds"][0] is None for pair in pairs):
            return {**gain, "verdict": verdict}
    ratio = stats.ratio_interval(*([row["seconds"][0] for row in side] for side in zip(*pairs)))
    if ratio["n"] < 2:
        return {**gain, "ratio": {**ratio, "ci95": None}, "verdict": "one run"}
    (low, high), (less, more) = ratio["ci95"], gain["points"]["ci95"]
    by_time = {"pays": low > 1, "costs": high < 1}
    by_points = {"more accurate": less > 0, "less accurate": more < 0}
    # If all need equally many epochs, the times compare the cost of a step only.
    verdicts = {**by_points, **by_time} if _equally_long(pairs) else {**by_time, **by_points}
    return {**gain, "ratio": ratio, "verdict": next((word for word, so in verdicts.items() if so), "not certain")}


def _pairs(done: Sequence[Row], base: tuple[str, ...], name: tuple[str, ...]) -> list[tuple[Row, Row]]:
    runs = {(tuple(row["set"]), row["seed"]): row for row in done}
    return [(runs[base, seed], row) for (found, seed), row in runs.items() if found == name and (base, seed) in runs]


def _equally_long(pairs: Sequence[tuple[Row, Row]]) -> bool:
    return all(a["epochs"] == b["epochs"] for a, b in pairs)


def _winners(recipe: Recipe, done: Sequence[Row], chosen: Sequence[str], best: int) -> list[str]:
    """The methods with the largest gains that do not contradict each other, up to ``best``."""
    rising = []
    for name in chosen:
        gain = _gain(done, (), (name,))
        if gain["points"] is None or gain["verdict"] == "did not converge":
            continue
        sooner = gain["ratio"]["median"] if gain["ratio"] and not _equally_long(_pairs(done, (), (name,))) else 1.0
        if sooner > 1 or (sooner == 1 and gain["points"]["mean"] > 0):
            rising.append((sooner, gain["points"]["mean"], name))
    winners: list[str] = []
    for _, _, name in sorted(rising, reverse=True):
        if len(winners) >= best:
            break
        try:
            with_methods(recipe, [*winners, name])
        except UsageError:
            continue
        winners.append(name)
    return winners


def _conclude(document: dict[str, Any], chosen: Sequence[str], target: float) -> None:
    done = document["done"]
    rows = []
    for name in chosen:
        reasons = [row["reason"] for row in done if row["set"] == [name] and row["reason"]]
        rows.append({"name": name, **_gain(done, (), (name,)), "reason": reasons[0] if reasons else None})
    document["methods"] = sorted(rows, key=lambda row: -(row["points"] or {"mean": -1.0})["mean"])
    document["together"] = {"methods": document.get("winners", []), **_gain(done, (_AGAIN,), (_TOGETHER,))}
    order = [(), *((row["name"],) for row in document["methods"]), (_AGAIN,), (_TOGETHER,)]
    document.update(sets=[], interactions={}, leave_one_out={})
    for found in order:
        runs = [row for row in done if tuple(row["set"]) == found]
        part = "base" if not found else "together" if found[0] in (_AGAIN, _TOGETHER) else "method"
        text = " + ".join(document["together"]["methods"] if found == (_TOGETHER,) else found) or "base"
        row = {"set": list(found), "name": text, "parts": [part], "throughput": None}
        document["sets"] += [{**row, "tta": [tta_of(runs, 0, target)]}] if runs else []
