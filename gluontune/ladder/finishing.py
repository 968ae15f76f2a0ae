"""The end of a climb: naive script and best recipe, trained in turn to one accuracy, and the files of the best one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gluontune import stats
from gluontune.documents import rung_row
from gluontune.ladder.accuracy import loss_of
from gluontune.ladder.batching import SHORTER
from gluontune.ladder.best_files import hand_over
from gluontune.ladder.factorplan import quotient
from gluontune.ladder.judge import PARITY_POINTS
from gluontune.ladder.measure import Contender
from gluontune.ladder.time_to_target import first_crossing
from gluontune.ladder.trainings import Trainings
from gluontune.result import RunResult
from gluontune.train import RunFailed

__all__ = ["finish", "prove"]

_MOST_PAIRS = 5


def finish(
    naive: Contender,
    best: Contender | None,
    trainings: Trainings,
    slice_s: float,
    tell: Callable[[str], None],
    step: str = "usual",
) -> None:
    """Train naive and best in turn, with what is left of the budget; then write ``best.yaml`` and ``best.py``.

    Args:
        slice_s: for warming up what a resumed climb has not started yet. tell: told what is trained.
        step: the kind of the job's training step.
    """
    results = trainings.results
    if best is not None and best is not naive and naive.failure is None:
        trainings.budget.release_proof()
        for contender in (naive, best):
            contender.launch()
            contender.warm_up(slice_s)
        if best.failure is None and naive.failure is None:
            proof = results.document["proof"] = prove(naive, best, trainings, tell)
            if proof and proof["missed"] and proof["reached"]:
                results.lengthen(proof["missed"], proof["epochs"], proof["pairs"][0]["best"])
            elif proof and proof["lost"]:
                reached = 100 * proof["pairs"][-1]["best"]["accuracy"]
                results.take_back(
                    f"the best recipe with it ended at {reached:.1f} % in the proof: accuracy was lost"
                )
    improved = results.document["best"] is not None and results.document["best"]["name"] != "naive"
    if improved and results.folder is not None:
        results.document["files"] = hand_over(results.document, results.folder, step)


def prove(naive: Contender, best: Contender, trainings: Trainings, tell: Any) -> dict[str, Any] | None:
    """Train both in turn, as often as the budget allows, and say how many seconds each took.

    The target is the lower of the two accuracies that the climb has seen, less two points: both recipes must reach it.
    A best recipe that was shortened, and does not arrive, gets its length back step by step: one training had been
    lucky. With two pairs or more the interval is that of the ratio within the pairs; one pair has the interval of the
    two speeds, measured window by window.

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
    longest = naive.recipe.epochs
    while first_crossing(result.val_accuracy, target) is None and best.recipe.epochs < longest:
        epochs = min(longest, round(best.recipe.epochs / SHORTER, 3))
        longer = best.of_length(epochs, best.label)
        tell(
            f"training best for {epochs:g} epochs: {best.recipe.epochs:g} did not reach {100 * target:.1f} %"
        )
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
        ratio = {
            **quotient(_of_speed(pairs[0]["naive"], times), _of_speed(pairs[0]["best"], times, "best")),
            "n": 1,
        }
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
