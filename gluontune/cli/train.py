"""``gluontune train``: one recipe, in a fresh process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import typer

from gluontune.cli._common import JSON_OPTION, TIME_LIMIT_OPTION, emit, launched, option, say, show_traceback, stderr
from gluontune.cli._progress import progress_line
from gluontune.core import stats
from gluontune.core.errors import UsageError
from gluontune.parallel import environment, mpi
from gluontune.recipe import Recipe


def train(
    recipe: Recipe,
    given: dict[str, Any],
    out: Optional[Path] = option(None, "Save the RunResult to this JSON file."),
    checkpoint: Optional[Path] = option(
        None, "Keep checkpoints of this run in this folder; SIGTERM and Ctrl-C save too."
    ),
    checkpoint_every: str = option("5min", "Steps or time between checkpoints: 500steps, 90s, 5min."),
    keep: int = option(3, "Newest checkpoints to keep, beside the best one.", min=1),
    resume: bool = option(False, "Go on from the newest intact checkpoint, if there is one."),
    restart: int = option(0, "So many times, go on from the newest checkpoint after a process died or hung.", min=0),
    insecure_network: bool = option(
        False, "Let the ranks that srun, mpirun or torchrun started on several hosts meet without a password."
    ),
    list_nets: bool = typer.Option(False, "--list-nets", hidden=True),  # as --list net
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> int:
    """Train one recipe in a fresh process and show the result.

    Started several times by srun, mpirun, mpiexec, torchrun, horovodrun or MXNet's tracker, each process is a rank of
    one run, by --engine; rank 0 has the result.
    """
    from gluontune import train as room
    from gluontune.training.started import exit_code, follow, lead, recipe_of

    if list_nets:
        names = room.net_names()
        emit(names) if as_json else print("\n".join(names))
        return 0
    if checkpoint is None and (resume or restart):
        raise UsageError(f"--{'resume' if resume else 'restart'}: give the folder of the checkpoints: --checkpoint DIR")
    placed = dict(launched.get())
    place = environment.here() if not placed else None
    if place is not None:
        if place.waits:
            say("rank 0 starts the parameter server of its run: this process has nothing to do", to=stderr)
            return 0
        _check_rank(place, given, restart)
        recipe = recipe_of(recipe, place)
        mpi.watch(place)
        if place.rank > 0:
            follow(recipe, place, insecure_network=insecure_network)
        say(f"{place}", to=stderr)
    plan = None if checkpoint is None else room.Checkpoints(checkpoint, checkpoint_every, keep, resume)

    def pass_on(rank: int, line: str) -> None:
        say(f"[{rank}] {line}", to=stderr)

    if placed:
        meeting = room.Elastic.parse(ranks=recipe.num_devices, restarts=restart, **placed)
        result = room.run_elastic(recipe, meeting, plan, time_limit)
    else:
        with progress_line() as show:
            how: dict[str, Any] = {"on_event": show, "time_limit": time_limit}
            how["on_log"] = None if recipe.engine == "local" else pass_on
            if place is not None:
                result = lead(recipe, place, plan, insecure_network=insecure_network, **how)
            else:
                result = room.run(recipe, checkpoints=plan, restarts=restart, **how)
    if out is not None:
        result.save(out)
    if as_json:
        emit(result.to_dict())
    elif result.ok:
        _show(result)
    say(*(f"note: {note}" for note in result.notes), to=stderr)
    if result.error is not None:
        show_traceback(result.error)
        say(f"error: {result.error['message']} (while {result.error['phase']})", to=stderr)
    return exit_code(result)


def _check_rank(place: environment.Place, given: Mapping[str, Any], restart: int) -> None:
    """Refuse what contradicts a rank's launcher."""
    wanted = given.get("num_devices", place.world)
    if wanted != place.world:
        raise UsageError(f"--num-devices {wanted}, and this is {place}: leave it out")
    if restart:
        raise UsageError(
            f"--restart {restart}: a launcher starts its ranks again (sbatch --requeue, torchrun --max-restarts), "
            f"and this is {place}: leave it out"
        )


def metric_line(metric: Mapping[str, Any]) -> str:
    """What validation showed, by epoch.

    >>> metric_line({"name": "accuracy", "mode": "max", "values": [0.5, 0.75]})
    'accuracy     50.0 75.0 % (by epoch)'
    >>> metric_line({"name": "rmse", "mode": "min", "values": [1.25, None]})
    'rmse         1.25 not finite (by epoch; smaller is better)'
    """
    name, values = metric.get("name", "accuracy"), metric.get("values", [])
    if name == "accuracy":
        return f"{name:<12} {' '.join(f'{100 * a:.1f}' for a in values)} % (by epoch)"
    shown = " ".join("not finite" if v is None else f"{v:.4g}" for v in values)
    way = "smaller" if metric["mode"] == "min" else "larger"
    return f"{name:<12} {shown} (by epoch; {way} is better)"


def _show(result: Any) -> None:
    rate = result.samples_per_sec
    around = stats.bounds(rate)
    shown = f"95 %: {around[0]:,.0f}-{around[1]:,.0f}, " if around else ""
    print(f"throughput   {rate['median']:,.0f} samples/s ({shown}n={rate['n']} windows)")
    print(metric_line(result.val_metric))
    print(f"training     {sum(result.epoch_seconds):.1f} s in {result.steps} steps")
    shares = sorted(result.phases_pct.items(), key=lambda item: -item[1])
    if shares:  # a run that had nothing left to train has none
        print(f"step         {', '.join(f'{name} {share:.0f} %' for name, share in shares if share >= 1)}")
    if result.peak_rss_mib:
        print(f"memory       {result.peak_rss_mib:,.0f} MiB peak")
