"""Searches for a faster recipe, and the scaling model: ``ladder``, ``tune``, ``esgd`` and ``scale``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Optional

from gluontune.cli._common import deliver, finish, say, say_table, show_traceback, stderr, stdout, stdout_reserved
from gluontune.cli._options import JSON_OPTION, RECORD, TIME_LIMIT_OPTION, argument, names_of, numbers_of, option
from gluontune.cli._progress import progress_line, status_line
from gluontune.core.errors import UsageError
from gluontune.recipe import Recipe

SHORT_S = 900.0  # a climb of less time validates on fewer images


def ladder(
    recipe: Recipe,
    given: dict[str, Any],
    words: Optional[list[str]] = argument(
        None, "A Gluon script, unchanged, and its own words; left out: a recipe.", metavar="[SCRIPT [-- ARGS…]]"
    ),
    out: Path = option(Path("ladder-out"), "Folder for ladder.json and ladder.html."),
    quick: bool = option(False, "Short slices and one epoch, in five minutes, not an hour."),
    budget: Optional[str] = option(None, "How long the climb may take: 5m (default of --quick), 90s, 1h (default)."),
    rungs: Optional[str] = option(None, "Climb only these, comma-separated."),
    resume: bool = option(False, "Go on with an interrupted climb in --out, if there is one."),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Climb the ladder: measure each rung on this machine, keep what helps, say what does not.

    It ends within its budget: trainings are shortened to fit, and skipped parts are named. The
    recipe's flags describe the naive script that the climb starts from. A script of your own is
    climbed with instead, unchanged: its batch, rate and length stay, and best.sh runs it faster.
    """
    from gluontune import ladder as room, report
    from gluontune.report.page import finish_ladder

    pace = room.QUICK if quick else room.FULL
    if words and resume:
        raise UsageError("--resume: a climb with a script begins anew; leave it out")
    if words and (foreign := [name for name in given if name != "dtype"]):
        flag = f"--{foreign[0].replace('_', '-')}"
        raise UsageError(f"{flag}: a script has no recipe; its own words go behind --, as in train.py -- {flag} …")
    if words and given.get("dtype", "float32") not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype {given['dtype']!r}: a script computes in float32 or bfloat16")
    if "epochs" not in given:
        recipe = recipe.override(epochs=pace.epochs)
    budget_s = room.parse_budget(budget) if budget is not None else pace.budget_s
    if "val_samples" not in given and recipe.job is None and budget_s <= SHORT_S:
        recipe = recipe.override(val_samples=room.FEW_VALIDATE)
    how: dict[str, Any] = {"out": out, "pace": pace, "budget_s": budget_s, "time_limit": time_limit}
    with stdout_reserved(), report.LiveLadder(stderr if as_json else stdout) as live:
        how.update(rungs=names_of(rungs, "--rungs"), on_event=live.on_event)
        if words:
            found = room.climb_script(words, dtype=recipe.dtype, **how)
        else:
            found = room.climb(recipe, resume=resume, **how)
    for row in found["rungs"]:
        show_traceback(row["error"])
    finish_ladder(found, out)

    def tell() -> None:
        stdout.print(report.ladder_table(found))
        stdout.print(found["sentence"])
        say(f"{out / 'ladder.html'} shows it all; {out / 'ladder.json'} holds the figures.")
        if words and found["best"] is not None:
            if found["best"]["name"] != "naive":
                say(f"Run it so: {found['best']['command']}")
        elif files := found.get("files"):
            script = f"{out / 'best.py'} is a script with it" if files["script"] else f"no best.py: {files['reason']}"
            say(f"{out / 'best.yaml'} is the recipe that was found; {script}.")

    return finish(found, as_json, tell, found["best"] is not None)


def tune(
    recipe: Recipe,
    given: dict[str, Any],
    budget: float = option(10.0, "Time that the search may take.", metavar="MINUTES"),
    out: Path = option(Path("tune-out"), "Folder for tune.json and recipe.yaml."),
    batch_sizes: Optional[str] = option(
        None, "Try these too. Another batch size converges differently: compare the accuracy as well.", metavar="N,N"
    ),
    knobs: Optional[str] = option(None, "Turn only these, comma-separated; a wrong name shows them all."),
    slice_s: float = option(0.4, "Length of one repeat.", "--slice", metavar="SECONDS"),
    resume: bool = option(False, "Go on with an interrupted search in --out."),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Search threads, allocator, mode, rewrites, data type and loader for the fastest recipe here.

    The recipe's flags describe the recipe that the search starts from.
    """
    from gluontune import ladder as room
    from gluontune.report.document_types import tune_table
    from gluontune.report.study import text_tables

    sizes = numbers_of(batch_sizes, "--batch-sizes", "128,256") or []
    how: dict[str, Any] = {"knobs": names_of(knobs, "--knobs"), "slice_s": slice_s, "resume": resume, "out": out}
    with progress_line() as show:
        how.update(budget_minutes=budget, on_event=show, time_limit=time_limit)
        found = room.tune(recipe, batch_sizes=sizes, **how)

    def tell() -> None:
        stdout.print(*text_tables([tune_table(found)]))
        say(*filter(None, [found["sentence"], *found["notes"]]))
        say(f"gluontune train --recipe {quote(str(out / 'recipe.yaml'))}")

    return finish(found, as_json, tell)


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


def scale(
    recipe: Recipe,
    given: dict[str, Any],
    counts: str = option("8,64,512", "Numbers of devices; comma-separated.", "--to"),
    bandwidth: str = option("1.25,12.5,50", "GB/s of each device's connection; comma-separated."),
    latency_us: float = option(20.0, "Of one message.", min=0.0),
    overhead_ms: float = option(0.5, "Of one exchange, besides.", min=0.0),
    servers: Optional[int] = option(None, "Of the parameter server (default: one for each device).", min=1),
    hidden: float = option(0.0, "Share of the exchange behind the backward pass.", min=0.0, max=1.0),
    shared_loader: Optional[float] = option(None, "Samples/s of one source that feeds all devices.", min=0.001),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Expected efficiency on 8, 64 and 512 devices, from a step, loader and gradients measured here. A model."""
    options = {key: value for key, value in locals().items() if key not in ("given", "counts", "bandwidth", "as_json")}
    from gluontune import ladder

    options["devices"] = numbers_of(counts, "--to", "8,64")
    options["bandwidths"] = numbers_of(bandwidth, "--bandwidth", "1.25,12.5", float)
    with status_line() as tell:
        found = ladder.scale(say=tell, **options)
    deliver(found, as_json, lambda: _scaled(found))


def _scaled(found: dict[str, Any]) -> None:
    parts = found["parts"]
    say(
        f"Measured here: {parts['step_ms']:.1f} ms a step of {parts['batch']}, "
        f"{parts['gradient_bytes'] / 1e6:.2f} MB of gradients in {parts['tensors']} tensors. A second device brings "
        f"nothing below {found['minimum_bandwidth_gb_per_sec']:.3g} GB/s."
    )
    rows = [
        (row["algorithm"], f"{row['gb_per_sec']:g}", str(row["devices"]), f"{row['samples_per_sec']:,.0f}",
         f"{100 * row['efficiency']:.0f}", f"{row['exchange_ms']:.2f}", row["bound_by"]) for row in found["rows"]
    ]  # fmt: skip
    say_table(("exchange", "GB/s", "devices", "samples/s", "efficiency %", "exchange ms", "bound by"), rows)
    say(found["note"])


COMMANDS = (ladder, tune, esgd, scale)
