"""From a group of training processes to a RunResult: epochs, limits, divergence, monitoring."""

from __future__ import annotations

import math
import time
from typing import Any, Callable

from gluontune import monitor, runtime, stats
from gluontune.recipe import Recipe
from gluontune.result import RunResult
from gluontune.train.group import Group, RunFailed

__all__ = ["drive", "run"]

Event = dict[str, Any]
_WINDOW_S = 0.8  # training is waited for, and counted, about this often
_MIN_WINDOWS = 8
_MAX_POINTS = 2000  # of a utilization series in a result
_BLOWN_UP = 20.0  # a loss this many times the first window's has diverged


def run(
    recipe: Recipe, *, on_event: Callable[[Event], None] | None = None, time_limit: float = 600.0
) -> RunResult:
    """Train one recipe in fresh processes and return what it showed. Never raises for a failed run.

    Args:
        recipe: what to train.
        on_event: called with ``{"stage", "done", "detail", "samples_per_sec", "val_accuracy"}`` as it goes.
        time_limit: seconds of silence after which the run counts as hung.

    >>> import gluontune as gt
    >>> fast = gt.Recipe(net="mlp", loader="resident", train_samples=512, val_samples=128)
    >>> result = gt.train.run(fast)
    >>> result.status, len(result.val_accuracy)
    ('ok', 1)
    """
    result = RunResult(recipe=recipe.to_dict(), machine=runtime.machine_facts())
    started = time.perf_counter()
    try:
        _tell(on_event, "starting", 0.0, "starting")
        with Group(recipe, time_limit=time_limit) as group:
            result.warmup_seconds = time.perf_counter() - started
            drive(group, result, on_event)
    except RunFailed as failure:
        _record_failure(result, failure)
    except KeyboardInterrupt:
        result.status = "interrupted"
    return result


def drive(group: Group, result: RunResult, on_event: Callable[[Event], None] | None = None) -> None:
    """Train the group's recipe from its seeded start to its end, filling ``result`` as it goes.

    What was measured before an interruption or a failure stays in ``result``.

    Raises:
        RunFailed: a rank failed, or the loss diverged.
    """
    group.reset()
    result.env = dict(group.applied_env)
    with monitor.Monitor(pid=group.pids, period_s=0.2) as watch:
        run_state = _Progress(group, result, watch, on_event)
        clean = False
        try:
            run_state.train()
            clean = True
        finally:
            watch.stop()
            run_state.finish(clean)


class _Progress:
    """The course of one training run: windows of steps, epochs, and when to stop."""

    def __init__(self, group: Group, result: RunResult, watch: Any, on_event: Callable[[Event], None] | None):
        self.group, self.result, self.watch, self.on_event = group, result, watch, on_event
        self.recipe = group.recipe
        self.total = max(1, round(self.recipe.epochs * group.batches_per_epoch))
        self.trained_s = 0.0
        self.rates: list[float] = []
        self.first_loss: float | None = None

    def train(self) -> None:
        done, per_epoch, window = 0, self.group.batches_per_epoch, 1
        while done < self.total:
            epoch_end = min(self.total, (done // per_epoch + 1) * per_epoch)
            epoch_start, losses = self.trained_s, []
            while done < epoch_end and not self._out_of_time():
                count = min(window, epoch_end - done)
                seen = self._window(count)
                done += count
                losses.append((seen["loss"], count))
                window = self._next_window(seen["seconds"] / count)
                self._report(done)
            self.result.train_loss.append(sum(v * n for v, n in losses) / sum(n for _, n in losses))
            self.result.epoch_seconds.append(self.trained_s - epoch_start)
            self.result.elapsed_seconds.append(self.trained_s)
            if self._validate(done) or self._out_of_time():
                return

    def _window(self, count: int) -> dict[str, float]:
        with self.watch.mark("train"):
            seen = self.group.steps(count)
        self.trained_s += seen["seconds"]
        self.result.steps += count
        self.rates.append(seen["samples"] / seen["seconds"])
        self._check_loss(seen["loss"])
        return seen

    def _next_window(self, step_s: float) -> int:
        by_time = max(1, round(_WINDOW_S / max(step_s, 1e-6)))
        return max(1, min(by_time, self.total // _MIN_WINDOWS))

    def _check_loss(self, loss: float) -> None:
        first = self.first_loss = loss if self.first_loss is None else self.first_loss
        rate = self.recipe.scaled_learning_rate
        way_out = f"lower learning_rate (it peaks at {rate:g} here) or add warmup_epochs"
        if not math.isfinite(loss):
            message = f"training diverged: the loss is {loss} at step {self.result.steps}; {way_out}"
            raise RunFailed("Diverged", message, "training")
        if loss > _BLOWN_UP * max(first, 0.1):
            message = f"training diverged: the loss rose from {first:.3g} to {loss:.3g}; {way_out}"
            raise RunFailed("Diverged", message, "training")

    def _validate(self, done: int) -> bool:
        """Validate; True where the target is reached."""
        _tell(self.on_event, "validating", done / self.total, self._epoch_text(done))
        seen = self.group.validate()
        self.result.val_accuracy.append(seen["accuracy"])
        self.result.val_loss.append(seen["loss"])
        target = self.recipe.target_accuracy
        return target is not None and seen["accuracy"] >= target

    def _out_of_time(self) -> bool:
        return self.recipe.seconds is not None and self.trained_s >= self.recipe.seconds

    def _epoch_text(self, done: int) -> str:
        return f"epoch {done / self.group.batches_per_epoch:.2f}/{self.recipe.epochs:g}"

    def _report(self, done: int) -> None:
        accuracy = self.result.val_accuracy[-1] if self.result.val_accuracy else None
        left = self.trained_s / done * (self.total - done)
        text = self._epoch_text(done)
        _tell(self.on_event, "training", done / self.total, text, self.rates[-1], accuracy, left)

    def finish(self, clean: bool) -> None:
        """What can be said at the end, however it came; the ranks are asked only after a clean one."""
        settled = self.rates[1:] or self.rates  # the first window holds the first batches of a cold loader
        if settled:
            self.result.samples_per_sec = stats.interval(settled)
        self.result.utilization = self.watch.series(_MAX_POINTS)
        self.result.peak_gpu_mib = self.watch.peak_gpu_mib
        self.result.peak_rss_mib = self.watch.peak_rss_mib
        self.result.steadiness = self.watch.steadiness("train")
        if clean:
            self.result.phases = self.group.phases()
            self.result.phases_pct = self.result.phases["phases_pct"]


def _tell(
    on_event: Callable[[Event], None] | None,
    stage: str,
    done: float,
    detail: str,
    samples_per_sec: float | None = None,
    val_accuracy: float | None = None,
    seconds_left: float | None = None,
) -> None:
    if on_event is not None:
        on_event(
            {
                "event": "progress",
                "stage": stage,
                "done": done,
                "detail": detail,
                "samples_per_sec": samples_per_sec,
                "val_accuracy": val_accuracy,
                "seconds_left": seconds_left,
            }
        )


def _record_failure(result: RunResult, failure: RunFailed) -> None:
    result.status = "failed"
    result.error = failure.to_dict()
