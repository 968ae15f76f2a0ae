"""Step phases on a device and a clock that are made up, so that every figure is known."""

from __future__ import annotations

import json

import pytest

from gluontune.core.errors import UsageError
from gluontune.monitor import StepPhases


class World:
    """A host clock and an asynchronous device: ``queue`` costs the host ``host`` s and the device ``device`` s."""

    def __init__(self):
        self.now = 0.0
        self.free_at = 0.0
        self.syncs = 0

    def clock(self):
        return self.now

    def queue(self, host, device):
        self.now += host
        self.free_at = max(self.now, self.free_at) + device

    def sync(self):
        self.syncs += 1
        self.now = max(self.now, self.free_at)

    def phases(self, **options):
        return StepPhases(sync=self.sync, clock=self.clock, **options)


def train(world, phases, steps, data=0.0, host=0.001, device=0.010, loose=0.0):
    for _ in range(steps):
        with phases.step() as step:
            with step("data"):
                world.now += data
            with step("forward"):
                world.queue(host, device / 3)
            with step("backward"):
                world.queue(host, 2 * device / 3)
            world.now += loose
    phases.wait()


def test_phases_hold_the_devices_time_and_percent_sum_to_100():
    world = World()
    phases = world.phases(every=10)
    train(world, phases, 200, data=0.004, host=0.0001, device=0.012, loose=0.002)
    report = phases.report()
    assert report["phases_ms"]["data"] == pytest.approx(4)
    assert report["phases_ms"]["forward"] == pytest.approx(4.1)
    assert report["phases_ms"]["backward"] == pytest.approx(8.1)
    assert report["phases_ms"]["rest"] == pytest.approx(2)
    assert sum(report["phases_pct"].values()) == pytest.approx(100)
    assert report["queue_ms"]["forward"] == pytest.approx(0.1)
    json.dumps(report, allow_nan=False)


def test_the_unsampled_steps_check_the_sum():
    """Nothing overlaps: the sampled steps are as long as the others, within 3 %."""
    world = World()
    phases = world.phases(every=20)
    for _ in range(400):
        with phases.step() as step:
            with step("data"):
                world.now += 0.005
            with step("forward"):
                world.queue(0.001, 0.006)
                world.sync()
    report = phases.report()
    assert abs(report["sum_check_pct"]) < 3
    assert report["step_time_ms"]["sampled"] == pytest.approx(12)
    assert report["step_time_ms"]["unsampled"] == pytest.approx(12)
    assert report["steps_sampled"] + report["steps_unsampled"] + 2 == 400


def test_work_that_overlaps_shows_as_longer_sampled_steps():
    world = World()
    phases = world.phases(every=20)
    train(world, phases, 400, data=0.009, host=0.0, device=0.010)
    report = phases.report()
    assert report["step_time_ms"]["unsampled"] == pytest.approx(10, rel=0.05)
    assert report["sum_check_pct"] == pytest.approx(90, abs=5)


def test_the_waits_cost_at_most_their_share():
    """The worst case: host and device equally long and fully overlapped, so each sample costs a whole step."""

    def wall(every):
        world = World()
        phases = StepPhases(sync=world.sync, clock=world.clock, every=every)
        train(world, phases, 20_000, data=0.010, host=0.0, device=0.010)
        return world.now, phases.report()["steps_sampled"]

    plain, _ = wall(every=10**9)
    sampled, count = wall(every=10)
    assert count > 20
    assert sampled / plain < 1.015


def test_only_sampled_steps_wait():
    world = World()
    phases = world.phases(every=50, least=1)
    for _ in range(40):
        before = world.syncs
        sampled = phases.report()["steps_sampled"]
        with phases.step() as step:
            with step("data"):
                pass
            with step("forward"):
                world.queue(0.0001, 0.001)
        took = phases.report()["steps_sampled"] - sampled
        assert world.syncs - before == (3 if took else 0)


def test_the_first_steps_are_left_out_and_short_runs_still_have_samples():
    world = World()
    phases = world.phases(every=50, skip=2)
    for k in range(20):
        with phases.step() as step, step("forward"):
            world.queue(0.0, 5.0 if k < 2 else 0.01)
    phases.wait()
    report = phases.report()
    assert report["steps_sampled"] >= 2
    assert report["phases_ms"]["forward"] == pytest.approx(10)


def test_a_short_run_has_what_the_host_spent_whatever_is_drawn():
    for seed in range(40):
        world = World()
        phases = world.phases(every=4, seed=seed)
        train(world, phases, 12, host=0.003)
        assert phases.report()["host_ms"]["forward"] == pytest.approx(3)


def test_a_step_that_ends_in_an_exception_does_not_count():
    world = World()
    phases = world.phases(every=1, skip=0)
    with pytest.raises(StopIteration), phases.step() as step, step("data"):
        world.now += 9
        raise StopIteration
    assert phases.report()["steps_sampled"] == 0
    with phases.step() as step, step("data"):
        world.now += 0.001
    assert phases.report()["phases_ms"] == {"data": pytest.approx(1), "rest": pytest.approx(0, abs=1e-9)}


def test_a_phase_entered_twice_adds_up_and_one_that_is_missing_is_zero():
    world = World()
    phases = world.phases(every=1, skip=0, least=100)
    for k in range(4):
        with phases.step() as step:
            for _ in range(2):
                with step("forward"):
                    world.now += 0.001
            if k % 2:
                with step("metrics"):
                    world.now += 0.004
    report = phases.report()
    assert report["phases_ms"]["forward"] == pytest.approx(2)
    assert report["phases_ms"]["metrics"] == pytest.approx(2)


def test_samples_do_not_follow_a_rhythm():
    """Every tenth batch is slow; a sampler with a fixed distance of ten would see all of them or none."""
    world = World()
    phases = world.phases(every=10, max_overhead=10)
    for k in range(4000):
        with phases.step() as step, step("data"):
            world.now += 0.011 if k % 10 == 5 else 0.001
    assert phases.report()["phases_ms"]["data"] == pytest.approx(2, abs=0.6)


def test_reset_forgets_and_an_empty_report_is_whole():
    world = World()
    phases = world.phases(every=5)
    empty = phases.report()
    assert empty["phases_pct"] == {} and empty["step_time_ms"] == {"sampled": None, "unsampled": None}
    json.dumps(empty, allow_nan=False)
    train(world, phases, 30)
    phases.reset()
    assert phases.report()["steps_sampled"] == phases.report()["steps_unsampled"] == 0
    train(world, phases, 3)
    assert phases.report()["steps_sampled"] >= 1  # the first steps are over: nothing more is skipped


@pytest.mark.parametrize("options", [{"every": 0}, {"skip": -1}])
def test_wrong_distances_are_refused(options):
    with pytest.raises(UsageError, match="StepPhases"):
        StepPhases(sync=lambda: None, **options)
