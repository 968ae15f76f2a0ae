"""The training loop: windows of steps, epochs, validations, checkpoints, stop conditions."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from gluontune import monitor
from gluontune.core import events, stats
from gluontune.core.events import OnProgress
from gluontune.core.reading import understood
from gluontune.recipe.result import RunResult
from gluontune.training.group import Group, RunFailed
from gluontune.training.hooks import Callbacks, Keeper, Moment

_WINDOW_S = 0.8  # of a window, about; steps are waited for and measured by windows
_MIN_WINDOWS = 8
_MAX_POINTS = 2000  # of a utilization series in a result
_BY_EPOCH = ("train_loss", "val_accuracy", "val_loss", "epoch_seconds", "elapsed_seconds")
_BLOWN_UP = 20.0  # times the first window's loss, from which on training has diverged


def drive(
    group: Group, result: RunResult, on_event: OnProgress | None = None, keeper: Keeper | None = None,
    progress: dict[str, Any] | None = None, calls: Callbacks | None = None,
) -> None:  # fmt: skip
    """Train the group's recipe from its seeded start to its end, filling ``result`` as it goes.

    Measurements before an interruption or a failure stay in ``result``.

    Args:
        keeper: of checkpoints. progress: of the restored checkpoint.
        group: the ranks. result: is filled. on_event: of :func:`run`. calls: the callbacks.

    Raises:
        RunFailed: a rank failed, or the loss diverged.

    >>> from gluontune.recipe import Recipe
    >>> recipe = Recipe(net="mlp", loader="resident", train_samples=256, val_samples=64)
    >>> result = RunResult(recipe=recipe.to_dict())
    >>> with Group(recipe) as group:
    ...     drive(group, result)
    >>> result.steps, len(result.train_loss)
    (4, 1)
    """
    if progress is None:
        group.reset()
    result.env = dict(group.applied_env)
    with monitor.Monitor(pid=group.pids) as watch:
        course = _Course(group, result, watch, on_event, keeper, calls or Callbacks())
        with understood("the checkpoint that it goes on from"):
            course.load(progress)
        clean = False
        try:
            with keeper.listening() if keeper is not None else contextlib.nullcontext():
                course.call("run_start")
                course.train()
                course.call("run_end")
            clean = True
        finally:
            watch.stop()
            course.finish(clean)


class _Course:
    def __init__(
        self, group: Group, result: RunResult, watch: Any, on_event: OnProgress | None, keeper: Keeper | None,
        calls: Callbacks,
    ):  # fmt: skip
        self.group, self.result, self.watch, self.calls = group, result, watch, calls
        self.on_event: OnProgress = on_event or (lambda event: None)
        self.keeper, self.recipe = keeper, group.recipe
        self.loss: float | None = None  # of the last window
        self.total = max(1, round(self.recipe.epochs * group.batches_per_epoch))

    def load(self, saved: dict[str, Any] | None) -> None:
        """Set the state of a checkpoint, or of the begin."""
        saved = saved or {}
        done = saved.get("result", {})
        self.trained_s: float = saved.get("trained_s", 0.0)
        self.rates: list[float] = list(saved.get("rates", ()))
        self.first_loss: float | None = saved.get("first_loss")
        self.epoch_start: float = saved.get("epoch_start", 0.0)
        kept: list[Any] = list(saved.get("losses") or (0.0, 0))  # an old checkpoint has each window's mean and steps
        windows = isinstance(kept[0], list)
        self.losses: list[float] = [sum(v * n for v, n in kept), sum(n for _, n in kept)] if windows else kept
        self.result.steps = done.get("steps", 0)
        for name in _BY_EPOCH:
            setattr(self.result, name, list(done.get(name, ())))
        metric = self.group.ready[0]["metric"]
        before = done.get("val_metric") or {}
        old = self.result.val_accuracy if metric["name"] == "accuracy" else ()  # of an old checkpoint
        self.result.val_metric = {**metric, "values": list(before.get("values", old)), "samples": before.get("samples")}
        if "flipped" in before:
            self.result.val_metric["flipped"] = list(before["flipped"])
        target = self.recipe.target_accuracy
        if target is not None and target > 1 and metric["name"] == "accuracy":
            raise RunFailed("UsageError", f"target_accuracy={target:g}: an accuracy is between 0 and 1", "starting")

    def state(self) -> dict[str, Any]:
        done = {name: getattr(self.result, name) for name in ("steps", *_BY_EPOCH, "val_metric")}
        mine = ("trained_s", "rates", "first_loss", "epoch_start", "losses")
        return {**{name: getattr(self, name) for name in mine}, "result": done}

    def train(self) -> None:
        per_epoch, window = self.group.batches_per_epoch, 1
        values = self.result.val_metric["values"]
        if values and self._reached(values[-1]):
            return
        while (done := self.result.steps) < self.total and not self._out_of_time():
            epoch_end = min(self.total, (done // per_epoch + 1) * per_epoch)
            while self.result.steps < epoch_end and not self._out_of_time():
                if self._stopped():
                    return
                until_due = self.keeper.steps_until_due(self.result.steps) if self.keeper is not None else None
                count = min(window, epoch_end - self.result.steps, until_due or self.total)
                seen = self._window(count)
                for loss in seen["losses"]:  # one by one (`sum` compensates): no digit depends on where windows end
                    self.losses[0] += loss
                self.losses[1] += count
                fitting = round(_WINDOW_S / max(seen["seconds"] / count, 1e-6))
                window = max(1, min(fitting, self.total // _MIN_WINDOWS))
                self._report()
                self.call("steps_end")
                if self.keeper and self.result.steps < epoch_end and self.keeper.due(self.result.steps):
                    self._save()
            self.result.train_loss.append(self.losses[0] / self.losses[1])
            self.result.epoch_seconds.append(self.trained_s - self.epoch_start)
            self.result.elapsed_seconds.append(self.trained_s)
            self.epoch_start, self.losses = self.trained_s, [0.0, 0]
            value = self._validate()
            self.call("epoch_end")
            over = self._reached(value) or self._out_of_time() or self.result.steps >= self.total
            self._save(value, last=over)
            if over:
                return

    def call(self, event: str) -> None:
        result, before = self.result, self.calls.stopped_by
        if not self.calls.each:
            return
        last = {"train_loss": result.train_loss, "val_loss": result.val_loss, "val_value": result.val_metric["values"]}
        now = Moment(
            event, self.recipe, result.steps, self.total, self.group.batches_per_epoch, len(result.train_loss),
            self.trained_s, self.rates[-1] if self.rates else None, self.loss,
            **{name: each[-1] if each else None for name, each in last.items()},  # type: ignore[arg-type]
            val_metric=result.val_metric["name"], stopped_by=before,
        )  # fmt: skip
        self.calls.tell(now)
        if self.calls.stopped_by is not None and before is None:
            result.notes.append(f"stopped by {self.calls.stopped_by} at step {result.steps}")

    def _save(self, value: float | None = None, last: bool = False) -> None:
        if self.keeper is not None:
            if value is not None and self.result.val_metric["mode"] == "min":
                value = -value
            wrong = self.keeper.save(self.group, self.result.steps, self.state(), value, last)
            self.result.notes += [text for text in wrong if text not in self.result.notes]

    def _stopped(self) -> bool:
        """Save a checkpoint if a signal requested a stop. Returns whether it did."""
        if self.keeper is None or self.keeper.stopped_by is None:
            return False
        self._save(last=True)
        self.result.status = "interrupted"
        by, step = self.keeper.stopped_by.name, self.result.steps
        self.result.notes.append(f"stopped by {by} at step {step}; {self.keeper.way_on()}")
        return True

    def _window(self, count: int) -> dict[str, Any]:
        with self.watch.mark("train"):
            seen = self.group.steps(count)
        self.trained_s += seen["seconds"]
        self.result.steps += count
        self.rates.append(seen["samples"] / seen["seconds"])
        self._check_loss(seen["loss"])
        return seen

    def _check_loss(self, loss: float) -> None:
        first = self.first_loss = loss if self.first_loss is None else self.first_loss
        self.loss = loss
        text, rate = "", self.recipe.scaled_learning_rate
        way_out = f"lower learning_rate (it peaks at {rate:g} here) or add warmup_epochs"
        if not math.isfinite(loss):
            text = f"the loss is {loss} at step {self.result.steps}"
        elif loss > _BLOWN_UP * max(first, 0.1):
            text = f"the loss rose from {first:.3g} to {loss:.3g}"
        if text:
            raise RunFailed("Diverged", f"training diverged: {text}; {way_out}", "training")

    def _validate(self) -> float | None:
        self._tell("validating")
        seen = self.group.validate()
        value = seen["metric"]["value"]
        self.result.val_metric["values"].append(value)
        self.result.val_metric["samples"] = seen["samples"]
        if seen.get("flipped") is not None:
            self.result.val_metric.setdefault("flipped", []).append(seen["flipped"])
        if seen["accuracy"] is not None:
            self.result.val_accuracy.append(seen["accuracy"])
        self.result.val_loss.append(seen["loss"])
        return value if value is None else float(value)

    def _reached(self, value: float | None) -> bool:
        target = self.recipe.target_accuracy
        if target is None or value is None:
            return False
        return value <= target if self.result.val_metric["mode"] == "min" else value >= target

    def _out_of_time(self) -> bool:
        """Whether the time is up, or a callback has stopped the run."""
        limit = math.inf if self.recipe.seconds is None else self.recipe.seconds
        return self.calls.stopped_by is not None or self.trained_s >= limit

    def _report(self) -> None:
        done = self.result.steps
        accuracy = self.result.val_accuracy[-1] if self.result.val_accuracy else None
        left = self.trained_s / done * (self.total - done)
        self._tell("training", samples_per_sec=self.rates[-1], val_accuracy=accuracy, seconds_left=left)

    def _tell(self, stage: str, **shown: float | None) -> None:
        done = self.result.steps
        epoch = f"epoch {done / self.group.batches_per_epoch:.2f}/{self.recipe.epochs:g}"
        self.on_event(events.progress(stage, done / self.total, epoch, **shown))

    def finish(self, clean: bool) -> None:
        """Complete the result; the ranks are asked only after a clean end."""
        self.result.notes += self.group.notes
        settled = self.rates[1:] or self.rates  # the first window holds the first batches of a cold loader
        if settled:
            self.result.samples_per_sec = stats.interval(settled)
        self.result.utilization = self.watch.series(_MAX_POINTS)
        self.result.peak_gpu_mib, self.result.peak_rss_mib = self.watch.peak_gpu_mib, self.watch.peak_rss_mib
        self.result.steadiness = self.watch.steadiness("train")
        if clean:
            if self.result.hosts:  # the monitor sees no other machine
                self.result.peak_rss_mib = self.group.peak_rss_mib()
            self.result.notes += self.group.remarks()
            self.result.phases = self.group.phases()
            self.result.phases_pct = self.result.phases["phases_pct"]
