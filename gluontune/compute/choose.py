"""The fastest way to run one network here: modes and rewrites, measured side by side."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Callable

from gluontune.compute._preserve import check_initialized, preserved, restore
from gluontune.compute._walk import flat, sample_of
from gluontune.compute.mode import topmost_hybrid
from gluontune.compute.race import SETTINGS, Race, Trial
from gluontune.compute.rewrites import REWRITES, apply_rewrites, rewrites_for
from gluontune.errors import GluontuneError, UsageError
from gluontune.runtime import as_nd_array, as_net_array, mxnet
from gluontune.stats import ratio_interval

__all__ = ["HybridizeReport", "Trial", "hybridize"]

FIRST = ("imperative", "hybridized", "static_alloc", "static")
WORTH = 1.02  # what is hardly faster here can be slower in the next process, whose memory lies elsewhere
NEAR = 1.15  # a plain mode this close to the best in the first race runs in the last one, too


@dataclass
class HybridizeReport:
    """What :func:`hybridize` tried and chose; ``net`` is the user's, now in the chosen mode."""

    net: Any
    chosen: Trial
    trials: list[Trial]
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        rows = [{k: v for k, v in asdict(_bare(t)).items() if not k.startswith("_")} for t in self.trials]
        return {"chosen": self.chosen.name, "trials": rows, "notes": self.notes}

    def __str__(self) -> str:
        lines = []
        for t in sorted(self.trials, key=lambda t: t.step_ms["median"] if t.step_ms else float("inf")):
            what = f"{t.step_ms['median']:8.2f} ms" if t.step_ms else f"failed: {t.error}"
            lines.append(f"{'→' if t is self.chosen else ' '} {t.name:50} {what}")
        return "\n".join(lines + self.notes)


def hybridize(
    net: Any,
    *inputs: Any,
    loss: Callable[[Any], Any] | None = None,
    rewrites: Sequence[str] | None = None,
    buckets: Sequence[tuple[Any, ...]] = (),
    rounds: int = 7,
    seconds: float = 60.0,
) -> HybridizeReport:
    """Measure modes and rewrites on this network and batch, interleaved, and keep the fastest.

    A step is forward, loss and backward, with gradients into every parameter; the update is left out,
    because no mode changes it. A way to run that gives other gradients has failed. Weights, averages and
    gradients are as before afterwards. Something other than the best plain mode is chosen only if its
    interval says that it is faster, and its median by how much: 2 % at least.

    Args:
        net: an initialized Gluon block; it is left in the chosen mode, with the chosen rewrites applied.
        inputs: a training batch as it will be, in shape, type and device.
        loss: takes the output, gives the loss; None takes the mean square as a stand-in.
        rewrites: names to try; None tries all that apply here.
        buckets: further input tuples of other shapes; a step then runs each in turn.
        rounds: interleaved repeats of each candidate, at least 3.
        seconds: budget; after it no round is begun (three are always made).

    Raises:
        UsageError: the net is not initialized, or fails on the input in imperative mode.

    >>> from gluontune.runtime import mxnet
    >>> mx = mxnet()
    >>> net = mx.gluon.nn.Dense(4, in_units=8)
    >>> net.initialize()
    >>> report = hybridize(net, mx.nd.ones((2, 8)), rounds=3)
    >>> sorted({t.settings for t in report.trials})[:2], report.chosen in report.trials
    (['hybridized', 'imperative'], True)
    """
    check_initialized(net)
    if not inputs or rounds < 3:
        raise UsageError("hybridize(net, x, …): give a sample batch and at least 3 rounds")
    inputs = sample_of(net, inputs)
    batches = [inputs, *(tuple(as_net_array(b, net)) for b in buckets)]
    device = next(a.context.device_type for a in flat(inputs) if hasattr(a, "context"))
    names = tuple(rewrites_for(net, *inputs, device=device) if rewrites is None else rewrites)
    for name in names:
        REWRITES[name]
    step, deadline = _make_step(net, batches, loss), time.monotonic() + seconds
    with preserved(net), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        race = Race(net, step, inputs)
        hybrid = bool(topmost_hybrid(net))
        trials = [Trial(s, r) for r in dict.fromkeys(((), names)) for s in (FIRST if hybrid else FIRST[:1])]
        race.run(trials, rounds, deadline - seconds / 2)
        if trials[0].error:
            raise UsageError(f"net fails on this input in imperative mode: {trials[0].error}")
        best = _fastest(trials)
        more = _variations(best)
        if more:
            race.run([trials[0], best, *more], rounds, deadline - seconds / 4)
            joined = _joined(best, more)
            if joined:
                race.run([trials[0], best, *joined], rounds, deadline - seconds / 8)
            more += joined
            trials += more
        # The verdict is of a race of its own, long enough for an interval; it may overrun the budget.
        finalists = _finalists(trials, best, more)
        race.run(finalists, max(rounds, 8), deadline, least=min(rounds + 1, 8))
        restore(race.plain)
    report = _judge(net, trials, finalists, len(batches))
    for block in topmost_hybrid(net):
        block.hybridize(**SETTINGS[report.chosen.settings])
    apply_rewrites(net, report.chosen.rewrites, *inputs)
    return report


def _variations(best: Trial) -> list[Trial]:
    """The winner of the first race without each of its rewrites, and with other bulk sizes."""
    more = []
    if len(best.rewrites) > 1:
        for left_out in best.rewrites:
            more.append(Trial(best.settings, tuple(r for r in best.rewrites if r != left_out)))
    if best.settings == "static":
        more += [Trial(s, best.rewrites) for s in SETTINGS if s.startswith("static, ")]
    return more


def _joined(best: Trial, more: list[Trial]) -> list[Trial]:
    """The winner of the first race without all the rewrites that it was faster without, if these are several."""
    faster = [t for t in more if t.step_ms and _median(t) < _median(best)]
    left = tuple(r for r in best.rewrites if all(r in t.rewrites for t in faster))
    return [Trial(best.settings, left)] if left and len(best.rewrites) - len(left) > 1 else []


def _finalists(trials: list[Trial], best: Trial, more: list[Trial]) -> list[Trial]:
    """Imperative, the plain modes that may be the best, the best of all, and of its variations; each once.

    The first race is short: of plain modes it cannot tell apart, the last one decides.
    """
    plain = [t for t in trials if t.step_ms and not t.rewrites and t.settings in FIRST]
    limit = NEAR * _median(_fastest(plain))
    picked = [trials[0], *(t for t in plain if _median(t) <= limit), best]
    if any(t.step_ms for t in more):
        picked.append(_fastest(more))
    return list({id(t): t for t in picked}.values())


def _judge(net: Any, trials: list[Trial], finalists: list[Trial], batches: int) -> HybridizeReport:
    """Start from the best plain mode; each other finalist must be faster beyond doubt, and by WORTH, to replace it."""
    baseline = trials[0]
    for trial in trials:
        if trial.step_ms and trial.speedup and trial.settings != "imperative":
            gain = trial.step_ms["median"] * (trial.speedup["median"] - 1)
            trial.break_even_steps = int(trial.compile_s * 1e3 / gain) + 1 if gain > 0 else None
    chosen = _best_plain([t for t in finalists if not t.rewrites and "bulks" not in t.settings], batches)
    for trial in finalists:
        if trial in (chosen, baseline) or not trial.step_ms:
            continue
        ratio = ratio_interval(chosen._times, trial._times)
        if ratio["ci95"][0] > 1.0 and ratio["median"] >= WORTH:
            chosen = trial
    report = HybridizeReport(net, chosen, trials)
    _add_notes(report, batches)
    return report


def _best_plain(modes: list[Trial], batches: int) -> Trial:
    """The fastest of MXNet's own modes; of the two static ones that whose shapes are fixed, where there is one shape.

    It does the same work with less to decide at each step; the other must win by what any finalist must.
    """
    best = _fastest(modes)
    fixed = [t for t in modes if t.settings == "static" and t.step_ms]
    return fixed[0] if fixed and best.settings == "static_alloc" and batches == 1 else best


def _add_notes(report: HybridizeReport, batches: int) -> None:
    chosen, baseline = report.chosen, report.trials[0]
    low, high = chosen.speedup["ci95"] if chosen.speedup else (1.0, 1.0)
    report.notes.append(f"{chosen.name}: {low:.2f}–{high:.2f} times as fast as {baseline.name}")
    compiled = [t for t in report.trials if t.settings != "imperative" and not t.rewrites and t.step_ms]
    slower = [t.name for t in compiled if t.speedup and t.speedup["ci95"][1] < 1.0]
    if slower:
        report.notes.append(f"slower than imperative here: {', '.join(slower)}")
    if not chosen.rewrites and any(t.rewrites for t in report.trials):
        report.notes.append("no rewrite was faster beyond doubt: none is applied")
    if batches > 1 and chosen.settings.startswith("static"):
        report.notes.append(
            f"{batches} input shapes: a static graph keeps a plan and memory for each; it grew by "
            f"{chosen.memory_mib:.0f} MiB here and grows with every new shape"
        )


def _make_step(
    net: Any, batches: list[tuple[Any, ...]], loss: Callable[[Any], Any] | None
) -> Callable[[], None]:
    mx = mxnet()

    def stand_in(out: Any) -> list[Any]:
        return [as_nd_array(o).square().mean() for o in flat(out)]

    def step() -> None:
        for batch in batches:
            with mx.autograd.record():
                head = (loss or stand_in)(net(*batch))
            mx.autograd.backward(head if isinstance(head, list) else [head])
        mx.nd.waitall()

    if not any(p.grad_req != "null" for p in net.collect_params().values()):
        raise GluontuneError("net has no parameter with a gradient: there is no training step to measure")
    return step


def _fastest(trials: list[Trial]) -> Trial:
    return min((t for t in trials if t.step_ms), key=_median)


def _median(trial: Trial) -> float:
    assert trial.step_ms is not None
    return float(trial.step_ms["median"])


def _bare(trial: Trial) -> Trial:
    """A copy without graphs, which cannot be made into plain values."""
    return Trial(**{k: v for k, v in vars(trial).items() if not k.startswith("_")})
