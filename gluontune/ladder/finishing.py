"""The end of a climb: the proof, and the files for the user's hand."""

from __future__ import annotations

from collections.abc import Callable

from gluontune.ladder.best_files import hand_over
from gluontune.ladder.measure import Contender
from gluontune.ladder.proof import prove
from gluontune.ladder.trainings import Trainings

__all__ = ["finish"]


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
            if proof and proof["lost"]:
                reached = 100 * proof["pairs"][-1]["best"]["accuracy"]
                results.take_back(
                    f"the best recipe with it ended at {reached:.1f} % in the proof: accuracy was lost"
                )
    improved = results.document["best"] is not None and results.document["best"]["name"] != "naive"
    if improved and results.folder is not None:
        results.document["files"] = hand_over(results.document, results.folder, step)
