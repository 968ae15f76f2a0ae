"""What-if predictions: their limits, their arithmetic, and one against a real pipeline."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, strategies as st

from gluontune.core.errors import UsageError
from gluontune.monitor import (
    SimulatedDevice,
    attainable_flops,
    compare,
    expected_throughput,
    fit_step_time,
    measured_peaks,
)

rate = st.floats(0.1, 1e6)


def expect(device=1000.0, worker=100.0, workers=4, cores=8.0, **more):
    return expected_throughput(
        device_samples_per_sec=device, worker_samples_per_sec=worker, num_workers=workers, cores=cores, **more
    )


def test_without_workers_loading_and_training_take_turns():
    found = expect(device=300, worker=150, workers=0)
    assert found["samples_per_sec"] == pytest.approx(100) and found["bound_by"] == "loader"


def test_a_loader_that_costs_nothing_leaves_the_device_alone():
    assert expect(device=300, worker=1e9, workers=0)["samples_per_sec"] == pytest.approx(300)


def test_workers_beyond_the_cores_bring_nothing():
    assert expect(workers=32)["samples_per_sec"] == expect(workers=8)["samples_per_sec"] == 800


def test_a_net_on_the_same_cores_pays_for_the_loading():
    # 2 cores: training alone 100/s (20 ms of core time a sample), loading 10 ms: 2 / 30 ms
    found = expect(device=100, worker=100, workers=2, cores=2, shares_cores=True)
    assert found["samples_per_sec"] == pytest.approx(66.7, abs=0.1) and found["bound_by"] == "cores"


def test_ceilings_hold_with_and_without_workers():
    assert expect(limits={"disk": 250.0})["bound_by"] == "disk"
    assert expect(limits={"disk": 250.0})["samples_per_sec"] == 250
    alone = expect(workers=0, worker=1e6, limits={"disk": 500.0})
    assert alone["samples_per_sec"] == pytest.approx(1 / (1 / 500 + 1 / 1000))


@given(rate, rate, st.integers(0, 64), st.floats(1, 64), st.booleans())
def test_no_prediction_exceeds_any_ceiling_and_more_never_hurts(device, worker, workers, cores, shared):
    found = expect(device, worker, workers, cores, shares_cores=shared)
    assert found["samples_per_sec"] <= min(found["ceilings"].values()) * (1 + 1e-9)
    faster = expect(2 * device, worker, workers, cores, shares_cores=shared)
    assert faster["samples_per_sec"] >= found["samples_per_sec"] * (1 - 1e-9)
    if workers:
        more = expect(device, worker, workers + 1, cores, shares_cores=shared)
        assert more["samples_per_sec"] >= found["samples_per_sec"] * (1 - 1e-9)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("bad", [{"device": 0}, {"worker": -1}, {"cores": math.inf}, {"workers": -1}])
def test_impossible_inputs_are_refused(bad):
    with pytest.raises(UsageError, match="what-if"):
        expect(**bad)
    with pytest.raises(UsageError, match="disk=0"):
        expect(limits={"disk": 0})


@given(st.floats(0, 50), st.floats(0.01, 5))
def test_the_fit_finds_the_line_again(fixed, per_sample):
    sizes = [16, 32, 64, 256]
    line = fit_step_time(sizes, [fixed + per_sample * b for b in sizes])
    assert line(512) == pytest.approx(fixed + per_sample * 512, rel=1e-6)


def test_the_fit_never_goes_below_zero():
    assert fit_step_time([10, 20], [1.0, 3.0])(1) > 0  # a line through both would be negative at 1
    assert fit_step_time([10, 20], [3.0, 1.0])(1000) > 0
    for sizes, times in (([8], [1.0]), ([8, 8], [1.0, 2.0]), ([8, 16], [1.0, 0.0]), ([8, 16], [1.0])):
        with pytest.raises(UsageError, match="fit_step_time"):
            fit_step_time(sizes, times)


def test_compare_is_in_percent_of_the_measured():
    assert compare({"samples_per_sec": 80.0}, 100.0)["error_pct"] == pytest.approx(-20)
    with pytest.raises(UsageError):
        compare({"samples_per_sec": 80.0}, 0.0)


def test_the_roofline_has_its_ridge_where_both_roofs_meet():
    low = attainable_flops(1e9, 1e9, 1e12, 1e11)
    high = attainable_flops(1e12, 1e9, 1e12, 1e11)
    assert (low["bound_by"], low["flops_per_sec"]) == ("memory", pytest.approx(1e11))
    assert (high["bound_by"], high["flops_per_sec"]) == ("compute", pytest.approx(1e12))
    with pytest.raises(UsageError, match="moved_bytes"):
        attainable_flops(1, 0, 1, 1)


def test_measured_peaks_are_of_this_world():
    peaks = measured_peaks(size=256, repeats=2)
    assert 1e8 < peaks["flops_per_sec"] < 1e14 and 1e8 < peaks["bytes_per_sec"] < 1e13


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_simulated_pipeline_runs_as_predicted(workers):
    """Events by hand: workers that take 20 ms a batch, a device that takes 10, in made-up time."""
    now, free = [0.0], [0.0] * max(1, workers)
    device = SimulatedDevice(10, queue_depth=1, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    batches = 200
    for k in range(batches):
        place = k % len(free)
        start = max(free[place], now[0] - 0.2) if workers else now[0]
        free[place] = start + 0.020
        now[0] = max(now[0], free[place])
        device.submit(k)
        if not workers:
            device.sync()
    device.sync()
    guess = expect(device=100, worker=50, workers=workers, cores=8)
    assert abs(compare(guess, batches / now[0])["error_pct"]) < 15
