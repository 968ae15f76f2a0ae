"""The fastest way to run one network here: modes and rewrites, measured side by side."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Callable

from gluontune.compute._eliminate import Budget, Elimination
from gluontune.compute._passes import check_initialized, preserved
from gluontune.compute._traversal import sample_of
from gluontune.compute.mode import compile_roots, topmost_hybrid
from gluontune.compute.process import refuse_endangered
from gluontune.compute.race import SETTINGS, Race, Trial, fastest, fingerprint, keep, present_mode, ratio, recall
from gluontune.compute.rewrites import REWRITES
from gluontune.compute.rewriting import apply_rewrites, rewrites_for
from gluontune.core.arrays import flat
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.stats import bounds
from gluontune.runtime import as_nd_array, as_net_array, mxnet

WORTH = 1.02  # a smaller gain can vanish in the next process, with other memory addresses
ENOUGH = 1.5  # a race cut short runs again for a budget this many times as large


@dataclass
class HybridizeReport:
    """The trials and the choice of :func:`hybridize`.

    Args:
        net: the user's, now in the chosen mode. chosen: the fastest trial.
        trials: in the order of their first run, with ``dropped``.
        notes: sentences on the choice and on trials beyond the budget.
        seconds: cost of the whole call. cached: whether an earlier race on this machine decided.
    """

    net: Any
    chosen: Trial
    trials: list[Trial]
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cached: bool = False

    @property
    def dropped(self) -> dict[str, str]:
        """Names of the trials that left the race before its last heat, and when."""
        return {t.name: t.dropped for t in self.trials if t.dropped}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        rows = [t.to_dict() for t in self.trials]
        plain = {"seconds": self.seconds, "cached": self.cached, "dropped": self.dropped}
        return {"chosen": self.chosen.name, "trials": rows, "notes": self.notes, **plain}

    def __str__(self) -> str:
        lines = []
        for t in sorted(self.trials, key=lambda t: t.median_ms):
            what = f"{t.step_ms['median']:8.2f} ms" if t.step_ms else f"failed: {t.error}" if t.error else "not run"
            gone = f"  (dropped {t.dropped})" if t.dropped else ""
            lines.append(f"{'→' if t is self.chosen else ' '} {t.name:50} {what}{gone}")
        how = "remembered from an earlier race" if self.cached else "raced"
        return "\n".join([*lines, *self.notes, f"{how}; {self.seconds:.1f} s"])


def hybridize(
    net: Any,
    *inputs: Any,
    loss: Callable[[Any], Any] | None = None,
    rewrites: Sequence[str] | None = None,
    buckets: Sequence[tuple[Any, ...]] = (),
    steps: int | None = None,
    budget_s: float | None = None,
    rounds: int = 8,
    refresh: bool = False,
) -> HybridizeReport:
    """Measure modes and rewrites on this network and batch, interleaved, and keep the fastest.

    A step is forward, loss and backward, with gradients into every parameter; the update is left out, because no mode
    changes it. A way to run with other gradients has failed. Weights, averages and gradients are restored afterwards.
    The best plain mode is replaced only by one whose interval and median (by 2 % at least) are faster.

    The race must cost less than it saves: it looks at each way to run for two steps, drops those far behind, and
    times the rest in heats, until its budget is spent. The outcome is cached in the cache folder
    (:func:`gluontune.core.files.cache_dir`) for this graph, these shapes, this machine, these versions and threads.

    Args:
        net: an initialized Gluon block; it is left in the chosen mode, with the chosen rewrites applied.
        inputs: a training batch of the final shape, type and device.
        loss: of the output; None takes the mean square as a stand-in.
        rewrites: names to try; None tries all that apply here.
        buckets: further input tuples of other shapes; a step then runs each in turn.
        steps: training steps to come, if known. If even one look would cost more than 5 % of them, nothing runs, and
            the net stays in its mode.
        budget_s: seconds for the race; None is 15 s, or 5 % of the steps to come if that is less.
        rounds: interleaved repeats in the last heat, at least 3; 8 are made if time is left.
        refresh: race anew in spite of a cached outcome.

    Raises:
        UsageError: the net is not initialized, or fails on the input in imperative mode.

    >>> from gluontune.runtime import mxnet
    >>> mx = mxnet()
    >>> net = mx.gluon.nn.Dense(4, in_units=8)
    >>> net.initialize()
    >>> report = hybridize(net, mx.nd.ones((2, 8)), steps=20, refresh=True)
    >>> report.chosen.name, report.notes[0][:46]
    ('imperative', '20 steps to come are too few to pay for a race')
    >>> report = hybridize(net, mx.nd.ones((2, 8)), budget_s=5.0, refresh=True)
    >>> report.chosen in report.trials, report.cached, hybridize(net, mx.nd.ones((2, 8)), budget_s=5.0).cached
    (True, False, True)
    """
    began = Race.clock()
    check_initialized(net)
    _check_numbers(inputs, steps, budget_s, rounds)
    inputs = sample_of(net, inputs)
    batches = [inputs, *(tuple(as_net_array(b, net)) for b in buckets)]
    device = next(a.context.device_type for a in flat(inputs) if hasattr(a, "context"))
    names = tuple(rewrites_for(net, *inputs, device=device) if rewrites is None else rewrites)
    for name in names:
        REWRITES[name]
    step, budget = _make_step(net, batches, loss), Budget(budget_s, steps)
    key = fingerprint(net, batches, loss, names)
    report = None if refresh else _remembered(net, key, budget)
    if report is None and budget.hopeless:
        report = _as_it_is(net, f"{steps} steps to come are too few to pay for a race")
    if report is None:
        report = _raced(net, inputs, batches, step, names, budget, rounds, began, key)
    if report.chosen.step_ms:
        compile_roots(net, SETTINGS[report.chosen.settings])
        apply_rewrites(net, report.chosen.rewrites, *inputs, verify=False)  # verified before the race
    report.seconds = Race.clock() - began
    return report


def _check_numbers(inputs: tuple[Any, ...], steps: int | None, budget_s: float | None, rounds: int) -> None:
    if not inputs or rounds < 3:
        raise UsageError("hybridize(net, x, …): give a sample batch and at least 3 rounds")
    if steps is not None and (not isinstance(steps, Integral) or steps < 0):
        raise UsageError(f"hybridize: steps={steps!r}: a number of training steps, 0 or more, or None")
    if budget_s is not None and not budget_s > 0:
        raise UsageError(f"hybridize: budget_s={budget_s!r}: seconds, more than 0, or None")


def _remembered(net: Any, key: str, budget: Budget) -> HybridizeReport | None:
    """The outcome of an earlier race; None if it is missing, or this budget allows a better race."""
    found = recall(key)
    if found is None:
        return None
    if len(found["trials"]) == 1 and present_mode(net) != found["chosen"].settings:
        return None  # that race had too few seconds and kept its mode, which is not this net's
    step_s = found["chosen"].step_ms["median"] / 1e3
    if not found["complete"] and budget.seconds(step_s) > ENOUGH * found["budget_s"]:
        return None
    return HybridizeReport(net, found["chosen"], found["trials"], found["notes"], cached=True)


def _as_it_is(net: Any, why: str, trials: Sequence[Trial] = ()) -> HybridizeReport:
    present = present_mode(net)
    chosen = next((t for t in trials if t.settings == present), None) or Trial(present, ())
    trials = list(dict.fromkeys([*trials, chosen]))
    return HybridizeReport(net, chosen, trials, [f"{why}: the net stays as it is, {present}"])


def _raced(
    net: Any, inputs: tuple[Any, ...], batches: list[tuple[Any, ...]], step: Callable[[], None],
    names: tuple[str, ...], budget: Budget, rounds: int, began: float, key: str,
) -> HybridizeReport:  # fmt: skip
    refused: list[str] = []

    def hold(given: Sequence[str]) -> tuple[str, ...]:
        applied = apply_rewrites(net, given, *inputs)
        applied.undo()
        gone = {change.rewrite for change in applied.refused}
        refused.extend(note for note in applied.notes if note.split(":")[0] in gone)
        return tuple(name for name in given if name not in gone)

    with preserved(net), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        elimination = Elimination(Race(net, step, inputs), budget, rounds, hold, began)
        elimination.run(names, bool(topmost_hybrid(net)))
    if elimination.reference.error:
        raise UsageError(f"net fails on this input in imperative mode: {elimination.reference.error}")
    if len(elimination.trials) == 1 and elimination.untried:
        took = elimination.reference.step_ms
        assert took is not None, "a reference without an error was timed"
        why = f"a step takes {took['median']:.3g} ms: the budget ({budget}) is too small to pay for a race"
        report = _as_it_is(net, why, elimination.trials)
        if report.chosen.step_ms:  # else the next run would pay again
            keep(key, report.trials, report.chosen, report.notes, False, elimination.seconds())
        return report
    report = _judge(net, elimination.trials, elimination.finalists, len(batches))
    report.notes += refused
    if elimination.untried:
        report.notes.append(f"not tried, for the budget ({budget}) was spent: {', '.join(elimination.untried)}")
    spent = budget.seconds(report.chosen._times[0])
    keep(key, report.trials, report.chosen, report.notes, elimination.complete, spent)
    return report


def _judge(net: Any, trials: list[Trial], finalists: list[Trial], batches: int) -> HybridizeReport:
    """Choose the best plain mode, or a finalist that is faster by its interval and by WORTH."""
    baseline = trials[0]
    for trial in trials:
        if trial.step_ms and trial.speedup and trial.settings != "imperative":
            saved = trial.step_ms["median"] * (trial.speedup["median"] - 1)
            trial.break_even_steps = int(trial.compile_s * 1e3 / saved) + 1 if saved > 0 else None
    plain = [t for t in trials if not t.rewrites and "bulks" not in t.settings]
    # None in the last heat: all were far behind.
    chosen = _best_plain([t for t in plain if t in finalists] or plain, batches)
    for trial in finalists:
        if trial in (chosen, baseline) or not trial.step_ms:
            continue
        gain = ratio(chosen._times, trial._times)
        if gain["ci95"][0] > 1.0 and gain["median"] >= WORTH:
            chosen = trial
    report = HybridizeReport(net, chosen, trials)
    _add_notes(report, batches)
    return report


def _best_plain(modes: list[Trial], batches: int) -> Trial:
    """The fastest of MXNet's modes.

    If all batches have one shape, ``static`` (``static_shape=True``) replaces ``static_alloc``: it does the same work
    with less overhead a step.
    """
    best = fastest(modes)
    fixed = (t for t in modes if t.settings == "static" and t.step_ms)
    return next(fixed, best) if best.settings == "static_alloc" and batches == 1 else best


def _add_notes(report: HybridizeReport, batches: int) -> None:
    chosen, baseline = report.chosen, report.trials[0]
    speedup = chosen.speedup or {"median": 1.0, "ci95": [1.0, 1.0]}
    around = bounds(speedup)
    times = f"{around[0]:.2f}–{around[1]:.2f}" if around else f"{speedup['median']:.2f}"
    report.notes.append(f"{chosen.name}: {times} times as fast as {baseline.name}")
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


def _make_step(net: Any, batches: list[tuple[Any, ...]], loss: Callable[[Any], Any] | None) -> Callable[[], None]:
    mx, asked = mxnet(), list[bool]()

    def stand_in(out: Any) -> list[Any]:
        return [as_nd_array(o).square().mean() for o in flat(out)]

    def step() -> None:
        for batch in batches:
            with mx.autograd.record():
                head = (loss or stand_in)(net(*batch))
            if not asked:
                refuse_endangered(head)
                asked.append(True)
            mx.autograd.backward(head if isinstance(head, list) else [head])
        mx.nd.waitall()

    if not any(p.grad_req != "null" for p in net.collect_params().values()):
        raise GluontuneError("net has no parameter with a gradient: there is no training step to measure")
    return step
