"""``gluontune esgd``: train a population by evolutionary stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from gluontune.cli._common import JSON_OPTION, RECORD, TIME_LIMIT_OPTION, finish, option, say, stdout
from gluontune.cli._progress import progress_line
from gluontune.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """Arguments of :class:`gluontune.ladder.EsgdPlan`."""

    population: int = option(8, "Individuals of a generation (mu).")
    generations: int = option(6, "Rounds of training and evolution (K).")
    sgd_steps: int = option(1, "SGD steps of an individual in a generation (K_s).")
    updates: Optional[int] = option(None, "Updates of the weights in one SGD step (default: one epoch).")
    evolution_steps: int = option(1, "K_v; 0 leaves evolution out.")
    offspring: Optional[int] = option(None, "lambda (default: twice the population).")
    elite: float = option(0.6, "Share that is kept for its fitness (m).")
    parents: int = option(2, "Parents of one offspring.")
    sigma: float = option(0.01, "Mutation, as a share of each array's size.")
    final_rate: float = option(0.05, "Last generation's rates ÷ the first's.")
    back_off: bool = option(True, "Undo a step that made it worse.")
    start: str = option("same", "Parameters at the beginning: same or own.")


def esgd(
    recipe: Recipe,
    given: dict[str, Any],
    plan: Plan = RECORD,
    workers: Optional[int] = option(None, "Training processes at a time (default: usable cores).", min=1),
    out: Path = option(Path("esgd-out"), "Folder for esgd.json and the population."),
    resume: bool = option(False, "Go on with an interrupted search in --out."),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Train a population by ESGD: each individual draws its optimizer, the fittest and their offspring live on.

    Fitness is the loss over one half of the validation images; the shown figures are of the other half. The recipe's
    flags describe the recipe; its optimizer, rate, schedule and epochs are not used.
    """
    from gluontune import ladder
    from gluontune.report.document_types import esgd_table
    from gluontune.report.study import text_tables

    with progress_line() as show:
        how: dict[str, Any] = {"workers": workers, "resume": resume, "time_limit": time_limit, "on_event": show}
        found = ladder.esgd(recipe, ladder.EsgdPlan(**vars(plan)), out=out, **how)

    def tell() -> None:
        stdout.print(*text_tables([esgd_table(found)]))
        used = found["cost"]
        say(
            f"{used['trained_images']:,} images trained on, {used['scored_images']:,} scored. "
            f"{out / 'esgd.json'} holds it all; the best parameters are in {found.get('best', {}).get('file')}"
        )

    return finish(found, as_json, tell)
