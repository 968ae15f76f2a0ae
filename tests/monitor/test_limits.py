"""Heat, starved cores and waits: each limit of their verdicts from both sides, and the figures that go with it."""

from __future__ import annotations

import dataclasses

import pytest
from monitor_reports import CPU, GPU, NET, kind, report, verdict, without


def test_a_single_phase_however_short_is_measured():
    assert kind({"phases_pct": {"forward": 0.5}}) == "compute-bound"
    assert kind({"phases_pct": {"forward": 0.0, "data": 0.0}}) == "unknown"


@pytest.mark.parametrize(
    ("sampled", "usual", "busy"),
    [(100.0, 100.0, 60.0), (150.0, 100.0, 90.0), (200.0, 100.0, 100.0), (None, 100.0, 60.0), (100.0, None, 60.0)],
)
def test_shares_are_of_a_usual_step(sampled, usual, busy):
    phases = {"forward": 20.0, "backward": 20.0, "update": 10.0, "allreduce": 6.0, "communication": 4.0, "rest": 40.0}
    found = verdict(report(phases, sampled, usual), {"cpu_pct": [80.0, None, 90.0]}, GPU)
    assert (found.kind, found.evidence) == ("compute-bound", {"device_busy_pct": busy, "cpu_pct": 85.0})
    assert "takes 60 % of the step" in found.sentence  # as tables and figures of phases have it


@pytest.mark.parametrize(("masks", "hot"), [([0x20] + [0] * 9, True), ([0x20] + [0] * 10, False)])
def test_heat_in_a_tenth_of_the_samples(masks, hot):
    util = {"gpu_throttle_mask": {"0": masks[:4], "1": [*masks[4:], None]}}
    found = verdict(report(NET), util, GPU)
    assert (found.kind == "thermally-throttled") == hot
    if hot:
        assert found.evidence == {"thermal_samples_pct": 10.0, "hottest_c": None}
        assert "in 10 % of the samples: mend" in found.sentence
        warm = verdict(report(NET), {**util, "gpu_temp_c": {"0": [70, None], "1": [91, 80]}}, GPU)
        assert "in 10 % of the samples at up to 91 °C" in warm.sentence and warm.evidence["hottest_c"] == 91
    assert kind(report(NET), {"gpu_throttle_mask": {"0": [None]}}, GPU) == "compute-bound"


@pytest.mark.parametrize(("quota", "starved"), [([10.0], True), ([9.9], False), ([0.0, 20.0], True)])
def test_a_quota_that_stops_a_tenth_of_the_periods(quota, starved):
    found = verdict(report(NET), {"cpu_quota_throttled_pct": quota}, GPU)
    assert (found.kind == "cpu-starved") == starved
    if starved:
        assert found.next_rung == "environment" and "in 10 % of its periods" in found.sentence
        assert found.evidence["cpu_quota_throttled_pct"] == 10.0 and found.evidence["cpu_pct"] is None


@pytest.mark.parametrize(
    ("tree", "whole", "waited", "starved"),
    [
        (70.0, 90.0, None, True),
        (69.0, 89.9, None, False),  # a core is free
        (70.1, 90.0, None, False),  # others take little
        (70.0, 90.0, 35.0, True),
        (70.0, 90.0, 34.9, False),  # nobody waits for them
        (None, 90.0, None, False),
        (70.0, None, None, False),
        (0.0, 95.0, 40.0, True),
    ],
)
def test_other_programs_starve_where_all_is_busy_and_threads_wait(tree, whole, waited, starved):
    rows = {"cpu_pct": tree, "system_cpu_pct": whole, "cpu_wait_pct": waited}
    util = {name: [value] for name, value in rows.items() if value is not None}
    found = verdict(report(NET), util, GPU)
    assert (found.kind == "cpu-starved") == starved
    if starved:
        assert found.next_rung is None
        assert found.evidence == {**rows, "cpu_quota_throttled_pct": None}
        assert f"take {whole - tree:.0f} % of the cores, and all are busy ({whole:.0f} %)" in found.sentence
        assert f"gets {tree:.0f} %" in found.sentence and ("waits for a core" in found.sentence) == bool(waited)


@pytest.mark.parametrize(
    ("tree", "data", "facts", "starved"),
    [
        (90.0, 15.0, GPU, True),
        (89.9, 15.0, GPU, False),
        (90.0, 14.9, GPU, False),
        (99.0, 45.0, CPU, False),  # where the net itself runs on the cores they should be busy
        (None, 45.0, GPU, False),
    ],
)
def test_cores_that_decode_for_a_device_that_waits(tree, data, facts, starved):
    found = verdict(report(without(data, data=data)), {"cpu_pct": [tree]}, facts)
    assert (found.kind == "cpu-starved") == starved
    if starved:
        assert found.evidence["data_pct"] == data and found.next_rung is None
        gluon = verdict(report(without(data, data=data)), {"cpu_pct": [tree]}, {**GPU, "loader": "gluon"})
        unnamed = verdict(report(without(data, data=data)), {"cpu_pct": [tree]}, {"device": "gpu"})
        assert gluon.next_rung == unnamed.next_rung == "records"


def waits(calls, blocked_ms, steps=10):
    return {
        **GPU,
        "steps": steps,
        "syncs": [{"where": "a.py:1", "call": "asnumpy", "calls": calls, "blocked_ms": blocked_ms}],
    }


@pytest.mark.parametrize(
    ("calls", "blocked_ms", "queued", "bound"),
    [
        (20, 250.0, 25.0, True),
        (19, 250.0, 25.0, False),  # fewer than two a step
        (20, 249.0, 25.0, False),  # that hardly block
        (20, 250.0, 24.9, False),  # and hold nothing up
    ],
)
def test_several_waits_a_step_cut_the_queue(calls, blocked_ms, queued, bound):
    found = verdict(report(NET, queue={"forward": queued - 1, "update": 1.0}), {}, waits(calls, blocked_ms))
    assert (found.kind == "sync-bound") == bound
    if bound:
        assert found.evidence == {"waits_per_step": 2.0, "where": ["a.py:1"], "held_up_pct": 25.0}
        assert "waits for a result 2 times a step (a.py:1, asnumpy)" in found.sentence and found.next_rung is None
        assert kind(report(NET, queue={"forward": queued}), {}, waits(calls, blocked_ms, steps=0)) == "compute-bound"


def test_the_places_of_a_sync_are_the_first_three():
    rows = [{"where": f"a.py:{n}", "call": "asnumpy", "calls": 10, "blocked_ms": 100.0} for n in range(4)]
    found = verdict(report(NET, queue={"forward": 30.0}), {}, {**GPU, "steps": 10, "syncs": rows})
    assert found.evidence["where"] == ["a.py:0", "a.py:1", "a.py:2"]
    assert (found.evidence["waits_per_step"], found.evidence["held_up_pct"]) == (4.0, 40.0)


@pytest.mark.parametrize(
    ("phases", "queue", "held", "bound"),
    [
        ({"metrics": 5.0, "rest": 10.0}, {}, 30.0, True),
        ({"metrics": 5.0, "rest": 10.0}, {}, 29.9, False),
        ({"metrics": 5.0, "rest": 9.9}, {}, 60.0, False),  # little could have overlapped
        ({"metrics": 5.0, "rest": 8.0}, {"forward": 2.0}, 60.0, True),  # with what is queued meanwhile, enough
        ({"metrics": 0.0, "data": 7.0, "copy": 7.9}, {}, 60.0, False),
        ({"metrics": 0.0, "data": 7.0, "copy": 7.9}, {"forward": 0.2}, 60.0, True),
        ({"metrics": 5.0, "data": 7.0, "copy": 8.0}, {}, 60.0, False),  # the loader is slow as well
    ],
)
def test_one_wait_a_step_costs_what_could_have_overlapped(phases, queue, held, bound):
    net = 100 - sum(phases.values())
    found = verdict(
        report({"forward": net, **phases}, queue=queue, host={"metrics": phases["metrics"] + held}), {}, GPU
    )
    assert (found.kind == "sync-bound") == bound
    if bound:
        assert "waits for a result in every step in the metrics" in found.sentence
        assert found.evidence == {"waits_per_step": None, "where": [], "held_up_pct": pytest.approx(held)}


def test_the_hosts_time_is_a_share_of_a_usual_step():
    phases = {"forward": 80.0, "metrics": 10.0, "rest": 10.0}
    held = report(phases, 200.0, 200.0, host={"metrics": 80.0})  # 40 %, of which the value itself takes 10
    assert kind(held, {}, GPU) == "sync-bound"
    assert kind(report(phases, 200.0, 200.0, host={"metrics": 79.0}), {}, GPU) == "compute-bound"
    assert kind(report(phases, 200.0, None, host={"metrics": 190.0}), {}, GPU) == "compute-bound"


def test_a_verdict_is_not_altered():
    found = verdict(report(NET), {}, GPU)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.kind = "unknown"
    assert found.to_dict() == {
        "kind": "compute-bound", "sentence": found.sentence, "evidence": found.evidence, "next_rung": "multi-device",
    }  # fmt: skip
    assert verdict({}).evidence == {} and verdict({}).next_rung is None
