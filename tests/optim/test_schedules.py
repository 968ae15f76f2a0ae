"""Schedules: MXNet's own rates, composition, bad input, adapters."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from gluontune import optim
from gluontune.core.errors import UnknownNameError, UsageError
from gluontune.optim import schedules as s

WARM = {"warmup_steps": 20, "warmup_begin_lr": 0.1}


def mx_schedulers():
    from gluontune.runtime import mxnet

    lr = mxnet().lr_scheduler
    bases = {"base_lr": 0.9}
    return {
        "factor": (
            lambda **w: lr.FactorScheduler(step=25, factor=0.7, **bases, **w),
            s.factor(base_lr=0.9, step=25, factor=0.7),
        ),
        "factor-stops": (
            lambda **w: lr.FactorScheduler(step=5, factor=0.1, stop_factor_lr=1e-3, **bases, **w),
            s.factor(base_lr=0.9, step=5, factor=0.1, stop_factor_lr=1e-3),
        ),
        "multifactor": (
            lambda **w: lr.MultiFactorScheduler(step=[25, 60, 61], factor=0.5, **bases, **w),
            s.multifactor(base_lr=0.9, steps=[25, 60, 61], factor=0.5),
        ),
        "poly": (
            lambda **w: lr.PolyScheduler(max_update=100, pwr=2, final_lr=0.01, **bases, **w),
            s.poly(base_lr=0.9, max_update=100, pwr=2, final_lr=0.01),
        ),
        "cosine": (
            lambda **w: lr.CosineScheduler(max_update=100, final_lr=0.01, **bases, **w),
            s.cosine(base_lr=0.9, max_update=100, final_lr=0.01),
        ),
    }


CONSTANT = {**WARM, "warmup_mode": "constant"}
SAME = [(name, warm) for name in ("factor", "multifactor", "poly", "cosine") for warm in ({}, WARM, CONSTANT)]


@pytest.mark.parametrize("name, warm", [*SAME, ("factor-stops", {})])
def test_the_rates_are_mxnets(name, warm):
    make, ours = mx_schedulers()[name]
    if warm:
        mode = warm.get("warmup_mode", "linear")
        ours = s.warmup(ours, **WARM, mode=mode)
    theirs = make(**warm)  # asked in order, as it keeps state
    for n in range(130):
        assert ours(n) == pytest.approx(theirs(n), rel=1e-12, abs=1e-15), n
    read_back = optim.from_mxnet(make(**warm))
    assert [read_back(n) for n in range(130)] == [ours(n) for n in range(130)]


def test_the_plots_of_deck_000_come_out_exactly(tmp_path):
    factor = s.factor(base_lr=1, step=250, factor=0.5)
    multi = s.multifactor(base_lr=1, steps=[250, 750, 900], factor=0.5)
    figure = optim.plot_schedule({"Factor": factor, "MultiFactor": multi}, updates=1500, path=tmp_path / "s.png")
    first, second = (list(line.get_ydata()) for line in figure.axes[0].lines)
    assert first == [1.0] * 251 + [0.5] * 250 + [0.25] * 250 + [0.125] * 250 + [0.0625] * 250 + [0.03125] * 249
    assert second == [1.0] * 251 + [0.5] * 500 + [0.25] * 150 + [0.125] * 599
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="no figure format 'xyz'"):
        optim.plot_schedule(factor, path=tmp_path / "s.xyz")


def test_a_warmed_up_multifactor_ends_where_its_base_lr_says():
    """MXNet: Optimizer(learning_rate=0.1) leaves warmup_final_lr at 0.9, so it fell from 0.9 to 0.1."""
    rate = optim.to_mxnet(s.warmup(s.multifactor(base_lr=0.9, steps=[100]), warmup_steps=10), base_lr=0.9)
    rate.base_lr = 0.1  # what mx.optimizer.Optimizer does
    assert rate(10) == pytest.approx(0.1) and rate(5) == pytest.approx(0.05) and rate(101) == pytest.approx(0.01)


@pytest.mark.parametrize("mode, share", [("linear", 0.25), ("power2", 0.0625), ("sqrt", 0.5), ("constant", 0.0)])
def test_warm_up_modes(mode, share):
    warm = s.warmup(s.constant(base_lr=1.0), warmup_steps=40, warmup_begin_lr=0.2, mode=mode)
    assert warm(10) == pytest.approx(0.2 + 0.8 * share)
    assert warm(0) == 0.2 and warm(40) == 1.0


ALL = st.sampled_from(s.SCHEDULES.names())


@given(name=ALL, base=st.floats(1e-4, 10), total=st.integers(5, 2000), warm=st.floats(0, 0.9), data=st.data())
def test_any_built_schedule_keeps_its_promises(name, base, total, warm, data):
    warm = int(warm * total)
    rate = s.build(name, base_lr=base, total_updates=total, warmup_updates=warm)
    n = data.draw(st.integers(0, 2 * total))
    assert 0 <= rate(n) <= base * (1 + 1e-9)
    assert rate(n) == rate(n)  # pure: the same answer in any order
    assert pickle.loads(pickle.dumps(rate))(n) == rate(n)
    assert s.Schedule.from_dict(json.loads(json.dumps(rate.to_dict())))(n) == rate(n)
    if s.SCHEDULES[name].has_end:
        assert rate(total) == pytest.approx(0, abs=1e-9 * base)
    elif warm:
        params = rate.params["schedule"].params
        first_drop = min(params.get("steps", [params.get("step", math.inf)]))
        assert rate(warm) <= base * (1 + 1e-9)
        if first_drop > warm:
            assert rate(warm) == pytest.approx(base)


def test_join_scale_and_epochs_compose():
    per_epoch = s.in_epochs(s.multifactor(base_lr=1.0, steps=[2], factor=0.1), updates_per_epoch=50)
    both = s.join([s.scale(per_epoch, by=2), s.cosine(base_lr=0.5, max_update=10)], boundaries=[200])
    assert (both(100), both(101), both(200)) == (2.0, pytest.approx(0.2), pytest.approx(0.2))
    assert both(205) == pytest.approx(0.25)
    in_build = s.build("multifactor", base_lr=1.0, steps=[2], total_updates=200, unit="epochs", updates_per_epoch=50)
    assert in_build(100) == 1.0 and in_build(101) == pytest.approx(0.1)


def test_onecycle_peaks_once_in_both_shapes():
    for shape in ("linear", "cos"):
        rate = s.onecycle(base_lr=0.4, max_update=100, pct_start=0.25, shape=shape)
        values = [rate(n) for n in range(101)]
        assert max(values) == rate(25) == pytest.approx(0.4) and rate(0) == pytest.approx(0.016) and rate(100) == 0
        assert values[:26] == sorted(values[:26]) and values[25:] == sorted(values[25:], reverse=True)


BAD = {
    "negative rate": (lambda: s.constant(base_lr=-1), "base_lr=-1"),
    "negative peak": (lambda: s.onecycle(base_lr=-1, max_update=5), "base_lr=-1"),
    "NaN rate": (lambda: s.cosine(base_lr=math.nan, max_update=5), "base_lr=nan"),
    "text": (lambda: s.constant(base_lr="0.1"), "base_lr='0.1'"),
    "unsorted": (lambda: s.multifactor(base_lr=1, steps=[5, 3]), r"steps=\[5, 3\]"),
    "no steps": (lambda: s.multifactor(base_lr=1, steps=[]), r"steps=\[\]"),
    "NaN step": (lambda: s.multifactor(base_lr=1, steps=[math.nan]), "steps=nan"),
    "rising": (lambda: s.factor(base_lr=1, step=5, factor=1.1), "factor=1.1"),
    "no step": (lambda: s.factor(base_lr=1, step=0), "step=0"),
    "mode": (lambda: s.warmup(s.constant(base_lr=1), warmup_steps=3, mode="cubic"), "mode='cubic'"),
    "warm for longer": (lambda: s.warmup(s.cosine(base_lr=1, max_update=5), warmup_steps=5), "ends at update 5"),
    "beyond the run": (lambda: s.build("multifactor", base_lr=1, steps=[90], total_updates=80), "update 90"),
    "longer than the run": (lambda: s.build("poly", base_lr=1, max_update=90, total_updates=80), "max_update=90"),
    "warm-up of all": (lambda: s.build("constant", base_lr=1, total_updates=8, warmup_updates=8), "only 8"),
    "no length": (lambda: s.build("cosine", base_lr=1), "needs max_update"),
    "parameter": (lambda: s.build("cosine", base_lr=1, total_updates=8, power=2), "no parameter 'power'"),
    "unit": (lambda: s.build("factor", base_lr=1, step=2, unit="epochs"), "updates_per_epoch"),
    "before 0": (lambda: s.constant(base_lr=1)(-1), "num_update=-1"),
    "boundaries": (lambda: s.join([s.constant(base_lr=1)], boundaries=[3]), "one boundary fewer"),
    "pct_start": (lambda: s.onecycle(base_lr=1, max_update=5, pct_start=1.0), "pct_start=1.0"),
    "own function": (lambda: s.scale(math.sqrt, by=2).to_dict(), "function of your own"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_its_name(case):
    make, message = BAD[case]
    with pytest.raises(UsageError, match=message):
        make()


def test_unknown_schedule_offers_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'cosine'"):
        s.build("cosin", base_lr=1)


def test_a_used_or_foreign_scheduler_is_refused():
    from gluontune.runtime import mxnet

    lr = mxnet().lr_scheduler
    used = lr.FactorScheduler(step=5, factor=0.5, base_lr=1)
    used(20)
    with pytest.raises(UsageError, match="has been used"):
        optim.from_mxnet(used)
    with pytest.raises(UsageError, match="scheduler LRScheduler"):
        optim.from_mxnet(lr.LRScheduler())

    class LRSequential(lr.LRScheduler):  # of gluon-cv: a fresh one counts its parts
        count = 3

    with pytest.raises(UsageError, match="scheduler LRSequential: only FactorScheduler"):
        optim.from_mxnet(LRSequential())


def test_cards_and_schedules_need_no_mxnet():
    code = (
        "import sys; sys.modules['mxnet'] = None; import gluontune as gt;"
        "assert gt.optim.schedules.build('cosine', base_lr=1, total_updates=10)(5) == 0.5;"
        "assert all(c.when and c.when_not and c.source for c in gt.optim.OPTIMIZERS);"
        "assert 'matplotlib' not in sys.modules and 'scipy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
