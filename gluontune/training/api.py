"""Training of one recipe in fresh processes, with restarts after faults."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any, Callable

from gluontune import runtime
from gluontune.core import events
from gluontune.core.errors import UsageError
from gluontune.core.events import OnProgress
from gluontune.core.reading import understood
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.training.group import Group
from gluontune.training.hooks import Callback, Callbacks, Checkpoints, Keeper, Moment
from gluontune.training.loop import drive
from gluontune.training.rank_messages import FAULTS, RunFailed


def run(
    recipe: Recipe,
    *,
    on_event: OnProgress | None = None,
    time_limit: float = 600.0,
    checkpoints: Checkpoints | None = None,
    restarts: int = 0,
    on_log: Callable[[int, str], None] | None = None,
    callbacks: Iterable[Callback | Callable[[Moment], Any]] = (),
    site: Callable[..., Any] | None = None,
) -> RunResult:
    """Train one recipe in fresh processes and return the result. Never raises for a failed run.

    Args:
        recipe: what to train.
        on_event: called with each :class:`gluontune.core.events.Progress`.
        time_limit: seconds of silence after which the run counts as hung.
        checkpoints: folder and interval of checkpoints, and whether to resume. SIGTERM and Ctrl-C then end the run with
            a checkpoint.
        restarts: number of restarts from the newest checkpoint after a process died or hung.
        on_log: called with rank and line for each line that a training process prints.
        callbacks: see :mod:`gluontune.training.hooks`: objects with methods ``run_start``, ``steps_end``,
            ``epoch_end``, ``run_end``, or functions; each gets a :class:`gt.train.Moment` in this process, and
            ``now.stop()`` ends the run. Their exceptions propagate.
        site: makes the processes; see :class:`gluontune.training.group.Group`.

    Raises:
        GluontuneError: the checkpoints' folder cannot be used, or has those of another model or data set.

    >>> import gluontune as gt
    >>> fast = gt.Recipe(net="mlp", loader="resident", train_samples=512, val_samples=128)
    >>> result = gt.train.run(fast)
    >>> result.status, len(result.val_accuracy)
    ('ok', 1)
    >>> def early(now):
    ...     if now.event == "steps_end" and now.loss > 0:
    ...         now.stop("one look is enough")
    >>> result = gt.train.run(fast, callbacks=[early])
    >>> result.steps, result.notes
    (1, ['stopped by early: one look is enough at step 1'])
    """
    calls = Callbacks(callbacks)
    if restarts and checkpoints is None:
        raise UsageError(f"restarts={restarts} needs checkpoints to go on from: give --checkpoint DIR")
    result = RunResult(recipe=recipe.to_dict(), machine=runtime.machine_facts())
    keeper = Keeper(recipe, checkpoints) if checkpoints is not None else None
    with keeper.holding() if keeper is not None else contextlib.nullcontext():
        for left in range(restarts, -1, -1):
            try:
                options = {"time_limit": time_limit, "on_log": on_log, "site": site}
                _attempt(recipe, result, keeper, on_event, options, calls)
            except RunFailed as failure:
                if left and failure.kind in FAULTS:
                    result.notes.append(f"restarted after a fault: {failure}")
                    continue
                result.status, result.error = "failed", failure.to_dict()
                if keeper is not None and failure.kind in FAULTS:
                    result.notes.append(keeper.way_on())
            except KeyboardInterrupt:
                result.status = "interrupted"
            return result
    return result


def _attempt(
    recipe: Recipe, result: RunResult, keeper: Keeper | None, on_event: OnProgress | None, options: dict[str, Any],
    calls: Callbacks,
) -> None:  # fmt: skip
    started = time.perf_counter()
    path, header, notes = keeper.find() if keeper is not None else (None, {}, [])
    result.notes += notes
    if on_event is not None:
        on_event(events.progress("starting", 0.0, notes[-1] if notes else "starting"))
    if keeper is not None:
        options = {**options, "checkpoints": keeper.setup()}
    with Group(recipe, **options) as group:
        progress = header.get("progress")
        if path is not None:
            with understood(path):
                progress = _restore(group, str(path.resolve()), header, result)
        result.hosts = group.site.facts()
        result.warmup_seconds = time.perf_counter() - started
        drive(group, result, on_event, keeper, progress, calls)


def _restore(group: Group, path: str, header: dict[str, Any], result: RunResult) -> dict[str, Any]:
    """Restore the ranks from a checkpoint, and return its progress.

    With another number of ranks the epoch begins anew with the restored weights, because the data are divided
    differently.
    """
    progress = header["progress"]
    before, now = header["recipe"]["num_devices"], group.recipe.num_devices
    if group.recipe.engine != "ddp" or before == now:
        group.restore(path)
        return progress
    epoch = len(progress["result"]["train_loss"])
    group.restore(path, epoch)
    result.notes.append(f"{before} rank{'s' * (before > 1)} before, {now} now: epoch {epoch + 1} begins anew")
    return {**progress, "losses": [], "result": {**progress["result"], "steps": epoch * group.batches_per_epoch}}
