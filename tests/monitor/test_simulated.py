"""The simulated device, and what the monitor sees of it when it is starved and when it is fed."""

from __future__ import annotations

import time

import pytest

from gluontune.core.errors import UsageError
from gluontune.monitor import Monitor, SimulatedDevice, StepPhases, verdict


class World:
    def __init__(self):
        self.now = 50.0

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def made(ms, **more):
    world = World()
    return world, SimulatedDevice(ms, clock=world.clock, sleep=world.sleep, **more)


def test_submitting_returns_at_once_and_sync_waits_for_all():
    world, device = made(10)
    for k in range(5):
        device.submit(k)
    assert world.now == 50.0
    device.sync()
    assert world.now == pytest.approx(50.05)
    device.sync()
    assert world.now == pytest.approx(50.05)


def test_a_full_queue_makes_submit_wait():
    world, device = made(10, queue_depth=2)
    for _ in range(3):
        device.submit()
    assert world.now == pytest.approx(50.01)
    assert device.batches == 3


def test_utilization_is_exact():
    world, device = made(10)
    device.submit()
    world.now += 0.040
    assert device.utilization_pct() == pytest.approx(25)
    device.submit()
    device.submit()
    world.now += 0.010
    assert device.utilization_pct() == pytest.approx(100)
    world.now += 0.040
    assert device.utilization_pct() == pytest.approx(25)
    assert device.utilization_pct() is None  # no time has passed
    assert device.busy_s == pytest.approx(0.03)


def test_it_is_called_simulated_wherever_it_shows():
    device = SimulatedDevice(1, name="V100")
    monitor = Monitor(gpus="none", devices=[device])
    monitor.sample()
    assert list(monitor.series()["gpu_util_pct"]) == ["simulated V100"]
    assert "simulated" in monitor.device_names["simulated V100"].lower()
    assert "Simulated" in repr(device)


@pytest.mark.parametrize("ms", [0, -1, float("nan"), float("inf"), "10", None])
def test_a_time_that_cannot_be_is_refused(ms):
    with pytest.raises(UsageError, match="ms_per_batch"):
        SimulatedDevice(ms)
    with pytest.raises(UsageError, match="queue_depth"):
        SimulatedDevice(1, queue_depth=0)


def trained(workers, batches=200):
    """A training in made-up time: 25 ms to load a batch, 10 ms to compute it."""
    world = World()
    device = SimulatedDevice(10, queue_depth=1, clock=world.clock, sleep=world.sleep)
    phases = StepPhases(sync=device.sync, every=20, clock=world.clock)
    monitor = Monitor(gpus="none", devices=[device], clock=world.clock)
    ready = [world.now] * workers
    monitor.sample()
    with monitor.mark("train"):
        for k in range(batches):
            with phases.step() as step:
                with step("data"):
                    if workers:  # each worker makes its next batch as soon as it has made the last one
                        ready[k % workers] += 0.025
                        world.now = max(world.now, ready[k % workers])
                    else:
                        world.now += 0.025
                with step("forward"):
                    device.submit(k)
            if k % 5 == 0:
                monitor.sample()
        phases.wait()
    facts = {"device": "simulated", "num_workers": workers, "hybridize": "static"}
    return monitor.steadiness("train"), verdict(phases.report(), {}, facts)


def test_starvation_is_seen_and_its_cure_as_well():
    starved, before = trained(0)
    fed, after = trained(6)
    assert before.kind == "input-bound" and before.next_rung == "multi-worker"
    assert after.kind == "compute-bound"
    assert starved["device"] == fed["device"] == "gpu"
    assert starved["mean_pct"] == pytest.approx(40, abs=3)  # loading overlaps: 10 ms of work in every 25
    assert fed["mean_pct"] > 90 and fed["below_90_pct"] < starved["below_90_pct"]


def test_it_works_in_real_time_and_leaves_the_cpu_free():
    device = SimulatedDevice(5)
    start, used = time.perf_counter(), time.thread_time()
    for k in range(20):
        device.submit(k)
    device.sync()
    assert time.perf_counter() - start >= 0.0999
    assert time.thread_time() - used < 0.05  # it sleeps
