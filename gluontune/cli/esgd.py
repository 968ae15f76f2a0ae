"""``gluontune esgd``: train a population by evolutionary stochastic gradient descent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import JSON_OPTION, TIME_LIMIT_OPTION, emit, stderr, stdout, stdout_reserved
from gluontune.cli._progress import progress_line
from gluontune.cli._recipe import takes_recipe
from gluontune.recipe import Recipe

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("esgd", help=esgd.__doc__)(takes_recipe(esgd))


def esgd(
    recipe: Recipe,
    given: dict[str, Any],
    population: int = typer.Option(8, "--population", help="Individuals of a generation (mu)."),
    generations: int = typer.Option(6, "--generations", help="Rounds of training and evolution (K)."),
    sgd_steps: int = typer.Option(1, "--sgd-steps", help="SGD steps of an individual in a generation (K_s)."),
    updates: Optional[int] = typer.Option(
        None, "--updates", help="Updates of the weights in one SGD step (default: one epoch)."
    ),
    evolution_steps: int = typer.Option(1, "--evolution-steps", help="K_v; 0 leaves evolution out."),
    offspring: Optional[int] = typer.Option(None, "--offspring", help="lambda (default: twice the population)."),
    elite: float = typer.Option(0.6, "--elite", help="Share that is kept for its fitness (m)."),
    parents: int = typer.Option(2, "--parents", help="Parents of one offspring."),
    sigma: float = typer.Option(0.01, "--sigma", help="Mutation, as a share of each array's size."),
    final_rate: float = typer.Option(0.05, "--final-rate", help="Last generation's rates ÷ the first's."),
    back_off: bool = typer.Option(True, "--back-off/--no-back-off", help="Undo a step that made it worse."),
    start: str = typer.Option("same", "--start", help="Parameters at the beginning: same or own."),
    workers: Optional[int] = typer.Option(
        None, "--workers", min=1, help="Training processes at a time (default: usable cores)."
    ),
    out: Path = typer.Option(Path("esgd-out"), "--out", help="Folder for esgd.json and the population."),
    resume: bool = typer.Option(False, "--resume", help="Go on with an interrupted search in --out."),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Train a population by ESGD: each individual draws its optimizer, the fittest and their offspring live on.

    Fitness is the loss over one half of the validation images; what is shown is of the other half. The flags below
    describe the recipe; its optimizer, rate, schedule and epochs are not used.
    """
    from gluontune import ladder

    plan = ladder.EsgdPlan(
        population=population,
        generations=generations,
        sgd_steps=sgd_steps,
        updates=updates,
        evolution_steps=evolution_steps,
        offspring=offspring,
        elite=elite,
        parents=parents,
        sigma=sigma,
        final_rate=final_rate,
        back_off=back_off,
        start=start,
    )
    with stdout_reserved(), progress_line() as line:
        found = ladder.esgd(recipe, plan, workers=workers, out=out, resume=resume, on_event=line, time_limit=time_limit)
    if as_json:
        emit(found)
    else:
        _show(found, out)
    if not found["complete"]:
        stderr.print("interrupted: the same command with --resume goes on", markup=False)
        return 130
    return 0


def _show(found: dict[str, Any], out: Path) -> None:
    from rich.table import Table

    table = Table(
        "generation", "best: optimizer of its last steps", "fitness", "loss", "accuracy", "offspring in the elite",
        box=None, pad_edge=False, header_style="bold",
    )  # fmt: skip
    for one in found["generations"]:
        best, score = one["best"], one["best"]["score"]
        table.add_row(
            str(one["generation"]),
            _setup_text(best),
            *("diverged" if score[key] is None else f"{score[key]:.4f}" for key in ("fitness", "loss")),
            f"{100 * score['accuracy']:.1f} %",
            f"{100 * one['offspring_share_of_elite']:.0f} %",
        )
    stdout.print(table)
    used = found["cost"]
    stdout.print(
        f"{used['trained_images']:,} images trained on, {used['scored_images']:,} scored. "
        f"{out / 'esgd.json'} holds it all; the best parameters are in {found.get('best', {}).get('file')}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _setup_text(one: dict[str, Any]) -> str:
    """
    >>> _setup_text({"offspring": False, "setup": {"optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.5}})
    'sgd, rate 0.01, momentum 0.5'
    """
    setup = one["setup"]
    if one["offspring"] or not setup:
        return "(offspring)"
    text = f"{setup['optimizer']}, rate {setup['learning_rate']:.3g}"
    return text + (f", momentum {setup['momentum']:.2g}" if setup["momentum"] else "")
