"""The proof: naive script and best recipe, trained in turn to one accuracy, and the files of the best recipe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gluontune.core import stats
from gluontune.core.events import RungRow, rung_row
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.search.batches import SHORTER
from gluontune.search.judge import PARITY_POINTS, loss_of, verdict_of
from gluontune.search.measure import Contender, start_anew
from gluontune.search.results_store import write_best
from gluontune.search.revisit import revisit
from gluontune.search.rung import Site
from gluontune.search.rung_contest import Rounds
from gluontune.search.rungs import RUNGS
from gluontune.search.time_to_target import first_crossing
from gluontune.search.trainings import Trainings
from gluontune.training.group import RunFailed

_MOST_PAIRS = 5
_LOST = "the best recipe with it ended at {:.1f} % in the proof: accuracy was lost"


def finish(
    naive: Contender, best: Contender | None, site: Site, trainings: Trainings, rounds: Rounds
) -> Contender | None:
    """Train naive and best in turn, with what is left of the budget; then write ``best.yaml`` and ``best.py``.

    A rung that shortened the training is taken back if, in the proof, no length at which it is a gain reaches the
    accuracy. Changes measured on top of it are then revisited, and the new best recipe gets its own proof.

    Returns the contender of the recipe in the files.
    """
    results, tell = trainings.results, partial(rounds.progress, "proof", "proof", 0.0)
    while best is not None and best is not naive and naive.failure is None:
        trainings.budget.release_proof()
        for contender in (naive, best):
            contender.launch()
            contender.warm_up(rounds.slice_s)
            if not contender.rates:  # a resumed climb has measured nothing yet
                contender.slice()
        if best.failure is not None or naive.failure is not None:
            break
        proof = results.document["proof"] = prove(naive, best, trainings, tell, rounds)
        row, shown = _refuted(results.document["rungs"], proof, naive.recipe.epochs)
        if proof and row is not None and shown is not None:
            results.take_back_rung(row, shown, proof)
            best.close()
            before = Recipe.from_dict(results.document["best"]["recipe"])  # what still helps on top of it is asked anew
            best = naive if before == naive.recipe else Contender(before, "best", trainings.time_limit)
            trainings.budget.reserve(2 * trainings.seconds_of(naive))
            best = revisit(best, naive, site, trainings, rounds)
            continue
        if proof and row is not None and proof["missed"]:
            ratio = ratio_at(row, proof["epochs"])
            results.lengthen(row, ratio, proof["missed"], proof["epochs"], proof["pairs"][0]["best"])
        elif proof and proof["lost"]:
            lost = _LOST.format(100 * proof["pairs"][-1]["best"]["accuracy"])
            part = RUNGS["mixed-precision"].left_out(best.recipe, naive.recipe)
            together = results.finished("together")
            if together is not None and together["kept"] and set(part) & set(together["changes"]):
                results.take_back_part("mixed-precision", part, lost, proof)  # what most often costs accuracy
                best.close()
                best = Contender(best.recipe.override(**part), "best", trainings.time_limit)
                trainings.budget.reserve(2 * trainings.seconds_of(naive))
                continue
            results.take_back(lost)
        break
    if results.folder is not None:
        results.document["files"] = write_best(results.document, results.folder, site.step)
    return best


def _refuted(
    rows: Sequence[RungRow], proof: Mapping[str, Any] | None, longest: float
) -> tuple[RungRow | None, dict[str, Any] | None]:
    """The rung whose time to the accuracy the proof checks, and its new verdict if it is no gain."""
    row = length_rung(rows)
    if proof is None:
        return row, None
    if row is not None and proof["pairs"][0]["best"]["seconds"] is None:  # none of the tried lengths arrived
        return row, refuted_verdict(row, proof, longest)
    last = [each for each in rows if each["kept"]][-1]
    if proof["lost"] and by_time(last):
        text = "taken back: " + _LOST.format(100 * proof["pairs"][-1]["best"]["accuracy"])
        return last, {"verdict": "hurt", "measurable": True, "reason": text}
    return row, None


def prove(
    naive: Contender, best: Contender, trainings: Trainings, tell: Callable[[str], None], rounds: Rounds
) -> dict[str, Any] | None:
    """Train both in turn, as often as the budget allows; the document's ``proof``, or None if no pair could be trained.

    Each pair has processes of its own. The target is the lower of the climb's two accuracies, less two points. A
    shortened best recipe that misses it is lengthened step by step (its first training was lucky), up to the length
    at which the rung that shortened it would be no gain; if none reaches the target, one pair is enough. ``lost``
    needs a collapse or several pairs: trainings differ by their seeds, too. ``epochs`` is the best recipe's length,
    ``missed`` the shorter ones that missed it.
    """
    rows = trainings.results.document["rungs"]
    seen = [row["accuracy_runs"][-1] for row in rows if row["kept"] and row["accuracy_runs"]]
    if not seen:
        return None
    target = min(seen[0], seen[-1]) - PARITY_POINTS
    pairs: list[dict[str, RunResult]] = []
    missed: list[dict[str, float]] = []
    given = best
    while len(pairs) < _MOST_PAIRS:
        starting = 2 * rounds.starts_s if pairs else 0.0
        if not trainings.budget.affords(starting + trainings.seconds_of(naive) + trainings.seconds_of(best)):
            break
        if pairs:
            start_anew((naive, best), rounds.slice_s)
        order = {"naive": naive, "best": best}
        found: dict[str, RunResult] = {}
        for name in list(order)[:: -1 if len(pairs) % 2 else 1]:
            tell(f"training {name} to {100 * target:.1f} %, pair {len(pairs) + 1}")
            if (result := _trained(trainings, order[name])) is None:
                break
            found[name] = result
        if len(found) < 2:
            break
        if not pairs:
            best, found["best"] = _arriving(naive, best, found["best"], target, trainings, tell, missed)
        pairs.append(found)
        if length_rung(rows) is not None and first_crossing(pairs[0]["best"].val_accuracy, target) is None:
            break
    if best is not given:
        best.hand_to(given)
    if not pairs:
        return None
    return {**_conclude(target, pairs, trainings.num_val), "epochs": best.recipe.epochs, "missed": missed}


def _trained(trainings: Trainings, contender: Contender) -> RunResult | None:
    """A training for the proof; None if it failed, or had no time or no accuracy."""
    with contextlib.suppress(RunFailed):
        result = trainings.train(rung_row("proof", "to the same accuracy"), contender, part=1.0)
        return result if result and result.val_accuracy else None
    return None


def _arriving(
    naive: Contender, best: Contender, result: RunResult, target: float, trainings: Trainings,
    tell: Callable[[str], None], missed: list[dict[str, float]],
) -> tuple[Contender, RunResult]:  # fmt: skip
    longest, row = naive.recipe.epochs, length_rung(trainings.results.document["rungs"])
    while first_crossing(result.val_accuracy, target) is None and best.recipe.epochs < longest:
        epochs = next_length(best.recipe.epochs, longest)
        if not still_helps(row, epochs):
            break
        longer = best.of_length(epochs, best.label)
        tell(f"training best for {epochs:g} epochs: {best.recipe.epochs:g} did not reach {100 * target:.1f} %")
        found = _trained(trainings, longer)
        if found is None:
            longer.hand_to(best)
            break
        missed.append({"epochs": best.recipe.epochs, "accuracy": result.val_accuracy[-1]})
        best, result = longer, found
    return best, result


def _conclude(target: float, pairs: Sequence[Mapping[str, RunResult]], num_val: int | None) -> dict[str, Any]:
    times: dict[str, list[float]] = {"naive": [], "best": []}
    shown: list[dict[str, Any]] = []
    for pair in pairs:
        shown.append({})
        for name, result in pair.items():
            place = first_crossing(result.val_accuracy, target)
            seconds = None if place is None else result.elapsed_seconds[place]
            shown[-1][name] = {"seconds": seconds, "accuracy": result.val_accuracy[-1]}
            if seconds is not None:
                times[name].append(seconds)
    reached = all(len(seconds) == len(pairs) for seconds in times.values())
    ratio: dict[str, Any] | None = None
    if reached:
        seen = stats.ratio_interval(times["naive"], times["best"])
        ratio = {**seen, "ci95": stats.bounds(seen)}
    last = {name: [pair[name].val_accuracy[-1] for pair in pairs] for name in times}
    loss = loss_of(last["naive"], last["best"], num_val)
    return {
        "target": target, "pairs": shown,
        "seconds": {name: stats.interval(s)["median"] if s else None for name, s in times.items()}, "ratio": ratio,
        "same_accuracy": not loss.certain(PARITY_POINTS),
        "lost": loss.certain(PARITY_POINTS) and (loss.collapsed or len(pairs) > 1), "reached": reached,
    }  # fmt: skip


def length_rung(rows: Sequence[RungRow]) -> RungRow | None:
    """The kept rung that chose the length of the training by the time to an accuracy, or None."""
    chose = (row for row in reversed(rows) if row["kept"] and "epochs" in row["changes"] and by_time(row))
    return next(chose, None)


def by_time(row: RungRow) -> bool:
    return bool((row["seconds_to_accuracy"] or {}).get("ratio"))


def ratio_at(row: RungRow, epochs: float) -> stats.Interval:
    """The rung's gain in time to the accuracy for a training of ``epochs``.

    >>> row = {"recipe": {"epochs": 0.5},
    ...        "seconds_to_accuracy": {"ratio": {"median": 2.0, "ci95": [1.8, 2.2], "n": 9}}}
    >>> ratio_at(row, 1.0)
    {'median': 1.0, 'ci95': [0.9, 1.1], 'n': 9}
    """
    assert row["recipe"] is not None and row["seconds_to_accuracy"] is not None, "what was kept was trained"
    return stats.scaled(row["seconds_to_accuracy"]["ratio"], row["recipe"]["epochs"] / epochs)


def next_length(epochs: float, longest: float) -> float:
    """The length, in epochs, to try after one that missed the target.

    >>> next_length(0.35, 1.0), next_length(0.8, 1.0)
    (0.5, 1.0)
    """
    return min(longest, round(epochs / SHORTER, 3))


def still_helps(row: RungRow | None, epochs: float) -> bool:
    return row is None or verdict_of(ratio_at(row, epochs)) == "helped"


def refuted_verdict(row: RungRow, proof: Mapping[str, Any], longest: float) -> dict[str, Any]:
    """Verdict, measurability and reason of a rung after a proof in which none of its lengths reached the target."""
    last = {"epochs": proof["epochs"], "accuracy": proof["pairs"][0]["best"]["accuracy"]}
    tried = [*proof["missed"], last]
    first = f"{tried[0]['epochs']:g} to " if len(tried) > 1 else ""
    highest = max(each["accuracy"] for each in tried)
    length, goal = f"{first}{last['epochs']:g}", f"{100 * proof['target']:.1f} %"
    text = f"{length} epochs did not reach {goal} in the proof ({100 * highest:.1f} %)"
    following = next_length(last["epochs"], longest)
    if last["epochs"] >= longest:
        return {"verdict": "hurt", "measurable": True, "reason": f"taken back: {text}"}
    if still_helps(row, following):
        why = f"taken back: {text}, and there was no time for a longer training"
        return {"verdict": "n/a", "measurable": False, "reason": why}
    ratio = ratio_at(row, following)
    length = f"{following:g} epoch{'s' * (following != 1)}"
    why = f"{length} would be no certain gain: {ratio['median']:.2f}× less time {stats.around(ratio)}"
    return {"verdict": verdict_of(ratio), "measurable": True, "reason": f"taken back: {text}, and {why}"}
