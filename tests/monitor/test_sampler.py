"""The Monitor's thread: times, marks, ring buffer, faults that never reach the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from hypothesis import given, strategies as st
from waiting import until

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.monitor import Monitor, SimulatedDevice
from gluontune.monitor.cpu import CpuSampler
from gluontune.monitor.sampler import Clock, ticks
from gluontune.monitor.series import Ring, columns, thin


class ManualClock:
    def __init__(self, value=1000.0):
        self.value = value

    def __call__(self):
        return self.value


@pytest.mark.parametrize("period", [0, 0.0, -1, 0.001, float("nan"), float("inf"), "1", None, True])
def test_a_period_that_cannot_work_is_refused(period):
    with pytest.raises(UsageError, match="period_s="):
        Monitor(period_s=period, gpus="none")


def test_other_wrong_arguments_are_refused():
    with pytest.raises(UsageError, match="max_samples=0"):
        Monitor(gpus="none", max_samples=0)
    with pytest.raises(UsageError, match="pid='here'"):
        Monitor("here", gpus="none")
    with pytest.raises(GluontuneError, match="no running process"):
        Monitor([99999998, 99999999], gpus="none")


def test_ticks_are_multiples_of_the_period_whatever_the_wakeups():
    now = [0.0]
    delays = ticks(lambda: now[0], 0.25)
    for late in (0.01, 0.2, 0.0, 0.24) * 50:
        now[0] += next(delays)
        assert now[0] / 0.25 == pytest.approx(round(now[0] / 0.25), abs=1e-6)  # before the lateness is added
        now[0] += late
    next(delays)


def test_a_slow_sample_leaves_ticks_out_and_does_not_hurry_after_them():
    now = [0.0]
    delays = ticks(lambda: now[0], 1.0)
    next(delays)
    now[0] = 7.3
    assert next(delays) == pytest.approx(0.7)
    now[0] = 8.0
    assert next(delays) == pytest.approx(1.0)


@given(st.lists(st.floats(-1e6, 1e6), max_size=50))
def test_a_clock_that_jumps_never_runs_backwards(jumps):
    source = ManualClock()
    clock, last = Clock(source), 0.0
    for jump in jumps:
        source.value += jump
        now = clock.now()
        assert now >= last
        last = now


def test_a_jump_of_the_clock_gives_ascending_times_and_no_wild_rates():
    source = ManualClock()
    monitor = Monitor(gpus="none", clock=source)
    for jump in (0.0, 0.25, -500.0, 0.25, 86_400.0, 0.25):
        source.value += jump
        monitor.sample()
    series = monitor.series()
    assert series["t_s"] == sorted(series["t_s"])
    assert all(value is None or 0 <= value <= 100 for value in series["cpu_pct"])
    assert monitor.faults == 0
    monitor.steadiness()


def test_series_has_columns_of_one_length_and_is_json():
    device = SimulatedDevice(5)
    with Monitor(period_s=0.02, gpus="none", devices=[device]) as monitor:
        device.submit()
        until(lambda: monitor.taken >= 5)
    series = monitor.series(per_core=True)
    n = len(series["t_s"])
    assert n >= 5
    for name, column in series.items():
        if name == "marks":
            continue
        for row in column.values() if isinstance(column, dict) else [column]:
            assert len(row) == n, name
    json.dumps(series, allow_nan=False)
    assert "cpu_cores_pct" not in monitor.series()
    assert list(series["gpu_util_pct"]) == ["simulated"]
    assert monitor.peak_rss_mib >= max(series["rss_mib"]) - 0.001
    assert monitor.peak_gpu_mib is None


def test_the_ring_keeps_the_newest_and_peaks_keep_all():
    source = ManualClock()
    monitor = Monitor(gpus="none", clock=source, max_samples=3)
    for _ in range(10):
        source.value += 1
        monitor.sample()
    assert monitor.series()["t_s"] == [8, 9, 10]
    assert monitor.taken == 10


def test_the_rings_columns_are_those_of_all_samples():
    rng = np.random.default_rng(0)
    ring, kept = Ring(5), []
    for t in range(13):
        sample = {"t_s": float(t), "cpu_pct": None if t % 3 == 0 else float(rng.random()), "processes": t}
        sample["gpu_util_pct"] = {key: float(rng.random()) for key in "01"[: 1 + (t > 3)]}
        ring.add(sample)
        kept = [*kept, sample][-5:]
        found, wanted = ring.table(), columns(kept)
        for name in ("t_s", "cpu_pct", "processes"):
            assert found[name] == wanted[name]
        for key, values in wanted["gpu_util_pct"].items():
            assert found["gpu_util_pct"][key] == values
    assert found["processes"] == [8, 9, 10, 11, 12] and all(isinstance(n, int) for n in found["processes"])
    assert ring.oldest_s == 8.0


def test_hours_of_samples_and_marks_take_no_further_memory():
    import gc
    import tracemalloc

    source = ManualClock()
    monitor = Monitor(gpus="none", clock=source, max_samples=300)

    def watch(count):
        for _ in range(count):
            source.value += 0.25
            monitor.mark("train")
            monitor.sample()
        gc.collect()

    tracemalloc.start()
    watch(400)
    before = tracemalloc.get_traced_memory()[0]
    watch(1000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 60_000, "some 1 KB a sample and 0.1 KB a mark otherwise"
    assert len(monitor.series()["marks"]) <= 302


def test_marks_make_spans_as_calls_and_as_context_managers():
    source = ManualClock()
    monitor = Monitor(gpus="none", clock=source)
    monitor.mark("train")
    source.value += 2
    monitor.mark("validate")
    source.value += 3
    with monitor.mark("train"):
        source.value += 4
    source.value += 5
    assert monitor.spans("train") == [(0, 2), (5, 9)]
    assert monitor.spans("validate") == [(2, 5)]
    assert [m["name"] for m in monitor.series()["marks"]] == ["train", "validate", "train", None]
    monitor.mark("train")
    source.value += 1
    assert monitor.spans("train")[-1] == (14, 15)  # one that lasts ends now


def test_faults_are_counted_and_never_raised(monkeypatch):
    monitor = Monitor(period_s=0.02, gpus="none")

    def broken(*_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(monitor._cpu, "read", broken)
    with monitor:
        until(lambda: monitor.faults >= 3)
    assert monitor.last_fault == "RuntimeError: no such luck"
    assert monitor.series()["t_s"] == [] and monitor.steadiness()["mean_pct"] is None


def test_a_listener_that_raises_costs_no_sample():
    def listener(sample):
        raise OSError("disk full")

    source = ManualClock()
    monitor = Monitor(gpus="none", clock=source, on_sample=listener)
    for _ in range(3):
        source.value += 1
        assert monitor.sample() is not None
    assert monitor.faults == 3 and "disk full" in monitor.last_fault and monitor.taken == 3


def test_start_and_stop_may_be_repeated_and_leave_no_thread():
    monitor = Monitor(period_s=0.02, gpus="none")
    monitor.stop()
    monitor.start()
    monitor.start()
    names = [t.name for t in threading.enumerate()].count("gluontune-monitor")
    assert names == 1
    monitor.stop()
    monitor.stop()
    assert "gluontune-monitor" not in [t.name for t in threading.enumerate()]
    taken = monitor.taken
    monitor.start()
    until(lambda: monitor.taken > taken + 1)
    monitor.stop()


def test_a_watched_process_that_dies_is_no_fault():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        with Monitor(child.pid, period_s=0.02, gpus="none") as monitor:
            assert monitor.alive
            until(lambda: monitor.taken >= 3)
            child.kill()
            child.wait()
            before = monitor.taken
            until(lambda: monitor.taken >= before + 3)
            assert not monitor.alive
        assert monitor.faults == 0
        assert monitor.series()["rss_mib"][-1] is None
        assert monitor.peak_rss_mib > 1


def test_several_roots_and_the_whole_machine():
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleep) as a, subprocess.Popen(sleep) as b:
        try:
            both = Monitor([a.pid, b.pid], gpus="none").sample()
            assert both["processes"] == 2
        finally:
            a.kill()
            b.kill()
    machine = Monitor("machine", gpus="none")
    assert machine.scope == "machine" and machine.alive
    machine.sample()
    time.sleep(0.05)
    sample = machine.sample()
    assert sample["cpu_pct"] == sample["system_cpu_pct"] is not None
    assert sample["rss_mib"] > Monitor(os.getpid(), gpus="none").sample()["rss_mib"]


def test_thin_keeps_means_and_the_last_time():
    table = {"t_s": [1, 2, 3, 4, 5], "cpu_pct": [0, 10, None, None, 30], "gpu_util_pct": {"0": [1, 3, 5, 7, 9]}}
    assert thin(table, 3) == {
        "t_s": [2, 4, 5], "cpu_pct": [5, None, 30], "gpu_util_pct": {"0": [2, 6, 9]},
    }  # fmt: skip
    assert thin(table, 100) == table
    with pytest.raises(UsageError):
        thin(table, 0)


def test_disks_and_network_are_asked_once_a_second_and_their_rates_stand_until_then():
    class Counting:
        asked = 0

        def __getattr__(self, name):
            return getattr(psutil, name)

        def disk_io_counters(self):
            self.asked += 1
            return SimpleNamespace(read_bytes=self.asked * 2**20, write_bytes=0)

    system = Counting()
    sampler = CpuSampler([os.getpid()], system=system)
    rates = [sampler.read(None if k == 0 else 0.25, time.time())["disk_read_mib_per_s"] for k in range(9)]
    assert system.asked == 3
    assert rates == [None] * 4 + [1.0] * 5
