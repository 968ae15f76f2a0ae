"""The end of a climb: naive script and best recipe, trained in turn to one accuracy, and the files of the best one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gluontune import stats
from gluontune.documents import RungRow, rung_row
from gluontune.ladder.accuracy import loss_of
from gluontune.ladder.best_files import hand_over
from gluontune.ladder.factorplan import quotient
from gluontune.ladder.judge import PARITY_POINTS
from gluontune.ladder.measure import Contender
from gluontune.ladder.revisiting import revisit
from gluontune.ladder.rounds import Rounds
from gluontune.ladder.rung import Site
from gluontune.ladder.shortening import arrived, by_time, next_length, ratio_at, shortener, what_was_shown, worth_a_try
from gluontune.ladder.time_to_target import first_crossing
from gluontune.ladder.trainings import Trainings
from gluontune.recipe import Recipe
from gluontune.result import RunResult
from gluontune.train import RunFailed

__all__ = ["finish", "prove"]

_MOST_PAIRS = 5
_LOST = "the best recipe with it ended at {:.1f} % in the proof: accuracy was lost"


def finish(
    naive: Contender,
    best: Contender | None,
    site: Site,
    trainings: Trainings,
    rounds: Rounds,
    tell: Callable[[str], None],
) -> Contender | None:
    """Train naive and best in turn, with what is left of the budget; then write ``best.yaml`` and ``best.py``.

    A rung that shortened the training, and does not arrive in the proof at any length at which it is a gain, is taken
    back. What was measured on top of it is then asked again, and what is best by then has a proof of its own.

    Args:
        rounds: who measures again. tell: told what is trained.

    Returns:
        the recipe that the files hold, in its processes.
    """
    results = trainings.results
    while best is not None and best is not naive and naive.failure is None:
        trainings.budget.release_proof()
        for contender in (naive, best):
            contender.launch()
            contender.warm_up(rounds.slice_s)
            if not contender.rates:  # a resumed climb has measured nothing yet
                contender.slice()
        if best.failure is not None or naive.failure is not None:
            break
        proof = results.document["proof"] = prove(naive, best, trainings, tell)
        row, shown = _refuted(results.document["rungs"], proof, naive.recipe.epochs)
        if proof and row is not None and shown is not None:
            results.take_back_rung(row, shown, proof)
            best.close()
            best = _asked_again(naive, site, trainings, rounds)
            continue
        if proof and row is not None and proof["missed"]:
            ratio = ratio_at(row, proof["epochs"])
            results.lengthen(row, ratio, proof["missed"], proof["epochs"], proof["pairs"][0]["best"])
        elif proof and proof["lost"]:
            reached = 100 * proof["pairs"][-1]["best"]["accuracy"]
            results.take_back(_LOST.format(reached))
        break
    if results.folder is not None:
        results.document["files"] = hand_over(results.document, results.folder, site.step)
    return best


def _refuted(
    rows: Sequence[RungRow], proof: Mapping[str, Any] | None, longest: float
) -> tuple[RungRow | None, dict[str, Any] | None]:
    """The rung whose time to the accuracy the proof is about; and what its row says by now, where it is no gain."""
    row = shortener(rows)
    if proof is None:
        return row, None
    if row is not None and not arrived(proof):
        return row, what_was_shown(row, proof, longest)
    last = [each for each in rows if each["kept"]][-1]
    if proof["lost"] and by_time(last):
        told = "taken back: " + _LOST.format(100 * proof["pairs"][-1]["best"]["accuracy"])
        return last, {"verdict": "hurt", "measurable": True, "reason": told}
    return row, None


def _asked_again(naive: Contender, site: Site, trainings: Trainings, rounds: Rounds) -> Contender:
    """What is best after a rung was taken back: the recipe before it, with what still helps on top of it."""
    before = Recipe.from_dict(trainings.results.document["best"]["recipe"])
    best = naive if before == naive.recipe else Contender(before, "best", trainings.time_limit)
    trainings.budget.reserve(2 * trainings.seconds_of(naive))
    return revisit(best, naive, site, trainings, rounds)


def prove(naive: Contender, best: Contender, trainings: Trainings, tell: Any) -> dict[str, Any] | None:
    """Train both in turn, as often as the budget allows, and say how many seconds each took.

    The target is the lower of the two accuracies that the climb has seen, less two points: both recipes must reach it.
    A best recipe that was shortened, and does not arrive, gets its length back step by step: one training had been
    lucky. It gets no length at which the rung that shortened it would be no gain; where none arrives, one pair says
    so, and no other is trained. With two pairs or more the interval is that of the ratio within the pairs; one pair
    has the interval of the two speeds, measured window by window.

    Returns:
        ``{"target", "pairs": [{"naive": {"seconds", "accuracy"}, "best": …}], "seconds": {"naive", "best"}, "ratio":
        {"median", "ci95", "n"} | None, "same_accuracy": bool, "lost": bool, "reached": bool, "epochs", "missed":
        [{"epochs", "accuracy"}]}``; None where no pair could be trained. ``lost`` is said of a collapse, or of several
        pairs: trainings differ by their seeds, too. ``epochs`` is the best recipe's length, ``missed`` what did not
        arrive before it.
    """
    rungs = {row["name"]: row["accuracy_runs"] for row in trainings.results.document["rungs"] if row["kept"]}
    seen = [runs[-1] for runs in rungs.values() if runs]
    if not seen:
        return None
    target = min(seen[0], seen[-1]) - PARITY_POINTS
    row = rung_row("proof", "naive and best, to the same accuracy")
    pairs: list[dict[str, RunResult]] = []
    missed: list[dict[str, float]] = []
    given = best
    while len(pairs) < _MOST_PAIRS and trainings.budget.affords(
        trainings.seconds_of(naive) + trainings.seconds_of(best)
    ):
        order = [("naive", naive), ("best", best)]
        found: dict[str, RunResult] = {}
        for name, contender in order if len(pairs) % 2 == 0 else order[::-1]:
            tell(f"training {name} to {100 * target:.1f} %, pair {len(pairs) + 1}")
            try:
                result = trainings.train(row, contender, part=1.0)
            except RunFailed:
                result = None
            if result is None or not result.val_accuracy:
                break
            found[name] = result
        if len(found) < 2:
            break
        if not pairs:
            best, found["best"] = _arriving(naive, best, found["best"], target, trainings, tell, missed)
        pairs.append(found)
        shortened = shortener(trainings.results.document["rungs"]) is not None
        if shortened and first_crossing(pairs[0]["best"].val_accuracy, target) is None:
            break
    if best is not given:
        best.hand_to(given)
    if not pairs:
        return None
    return {**_conclude(target, pairs, trainings.num_val), "epochs": best.recipe.epochs, "missed": missed}


def _arriving(
    naive: Contender,
    best: Contender,
    result: RunResult,
    target: float,
    trainings: Trainings,
    tell: Any,
    missed: list[dict[str, float]],
) -> tuple[Contender, RunResult]:
    """The best recipe in the shortest length, of those tried, that reaches the target, and its training."""
    longest, row = naive.recipe.epochs, shortener(trainings.results.document["rungs"])
    while first_crossing(result.val_accuracy, target) is None and best.recipe.epochs < longest:
        epochs = next_length(best.recipe.epochs, longest)
        if not worth_a_try(row, epochs):
            break
        longer = best.of_length(epochs, best.label)
        tell(f"training best for {epochs:g} epochs: {best.recipe.epochs:g} did not reach {100 * target:.1f} %")
        try:
            found = trainings.train(rung_row("proof", "a longer training"), longer, part=1.0)
        except RunFailed:
            found = None
        if found is None or not found.val_accuracy:
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
    if reached and len(pairs) >= 2:
        seen = stats.ratio_interval(times["naive"], times["best"])
        ratio = {**seen, "ci95": stats.bounds(seen)}
    elif reached:
        ratio = {**quotient(_of_speed(pairs[0]["naive"], times), _of_speed(pairs[0]["best"], times, "best")), "n": 1}
    last = {name: [pair[name].val_accuracy[-1] for pair in pairs] for name in times}
    loss = loss_of(last["naive"], last["best"], num_val)
    return {
        "target": target,
        "pairs": shown,
        "seconds": {name: stats.interval(s)["median"] if s else None for name, s in times.items()},
        "ratio": ratio,
        "same_accuracy": not loss.certain(PARITY_POINTS),
        "lost": loss.certain(PARITY_POINTS) and (loss.collapsed or len(pairs) > 1),
        "reached": reached,
    }


def _of_speed(result: RunResult, times: Mapping[str, Sequence[float]], name: str = "naive") -> dict[str, Any]:
    """The time of one run with the relative interval of its speed."""
    seconds, speed = times[name][0], result.samples_per_sec
    if not speed:
        return {"median": seconds, "ci95": None}
    low, high = speed["ci95"]
    return {"median": seconds, "ci95": [seconds * speed["median"] / high, seconds * speed["median"] / low]}
