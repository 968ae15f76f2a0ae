"""Where one verdict ends and the next begins: each limit from both sides, and the figures that go with it."""

from __future__ import annotations

import pytest

from gluontune.monitor import verdict

NET = {"forward": 40.0, "backward": 50.0, "update": 10.0}
GPU = {"device": "gpu", "num_workers": 4, "hybridize": "static", "dtype": "float16", "loader": "threaded"}
CPU = {**GPU, "device": "cpu"}


def report(phases, sampled=100.0, usual=100.0, queue=None, host=None):
    return {
        "phases_pct": phases,
        "phases_ms": {name: share * (sampled or 100.0) / 100 for name, share in phases.items()},
        "queue_ms": queue or {},
        "host_ms": host or {},
        "step_time_ms": {"sampled": sampled, "unsampled": usual},
    }


def without(share, **phases):
    """A step of which the net takes what the given phases leave."""
    return {"forward": 100 - share, **phases}


def kind(*given):
    return verdict(*given).kind


def test_a_single_phase_however_short_is_measured():
    assert kind({"phases_pct": {"forward": 0.5}}) == "compute-bound"
    assert kind({"phases_pct": {"forward": 0.0, "data": 0.0}}) == "unknown"


@pytest.mark.parametrize(
    ("sampled", "usual", "busy"),
    [
        (100.0, 100.0, 60.0),
        (150.0, 100.0, 90.0),
        (200.0, 100.0, 100.0),
        (None, 100.0, 60.0),
        (100.0, None, 60.0),
    ],
)
def test_shares_are_of_a_usual_step(sampled, usual, busy):
    phases = {
        "forward": 20.0,
        "backward": 20.0,
        "update": 10.0,
        "allreduce": 6.0,
        "communication": 4.0,
        "rest": 40.0,
    }
    found = verdict(report(phases, sampled, usual), {"cpu_pct": [80.0, None, 90.0]}, GPU)
    assert (found.kind, found.evidence) == ("compute-bound", {"device_busy_pct": busy, "cpu_pct": 85.0})
    assert f"takes {busy:.0f} % of the step" in found.sentence


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
        assert f"gets {tree:.0f} %" in found.sentence and ("waits for a core" in found.sentence) == bool(
            waited
        )


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
        assert (
            "waits for a result 2 times a step (a.py:1, asnumpy)" in found.sentence
            and found.next_rung is None
        )
        assert (
            kind(report(NET, queue={"forward": queued}), {}, waits(calls, blocked_ms, steps=0))
            == "compute-bound"
        )


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
        (
            {"metrics": 5.0, "rest": 8.0},
            {"forward": 2.0},
            60.0,
            True,
        ),  # with what is queued meanwhile, enough
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


@pytest.mark.parametrize(
    ("phases", "facts", "found"),
    [
        ({"forward": 85.0, "data": 15.0}, GPU, "input-bound"),
        ({"forward": 85.1, "data": 14.9}, GPU, "compute-bound"),
        ({"forward": 85.0, "copy": 15.0}, GPU, "copy-bound"),
        ({"forward": 80.0, "data": 10.0, "copy": 10.0}, GPU, "compute-bound"),  # no single cause of that size
        ({"forward": 60.0, "data": 20.0, "copy": 20.0}, GPU, "input-bound"),
        ({"forward": 60.0, "data": 18.0, "copy": 22.0}, GPU, "copy-bound"),
        ({"forward": 85.0, "allreduce": 15.0}, GPU, "compute-bound"),  # less than half of the net
        ({"forward": 30.0, "backward": 36.0, "allreduce": 33.0, "rest": 1.0}, GPU, "communication-bound"),
        ({"forward": 30.0, "backward": 37.0, "allreduce": 33.0}, GPU, "compute-bound"),
        (
            {"forward": 30.0, "backward": 35.0, "allreduce": 15.0, "communication": 20.0},
            GPU,
            "communication-bound",
        ),
        ({"forward": 60.0, "update": 40.0}, {**GPU, "ranks": 2}, "communication-bound"),
        ({"forward": 60.0, "update": 40.0}, {**GPU, "num_devices": 2}, "communication-bound"),
        ({"forward": 60.0, "update": 40.0}, {**GPU, "num_devices": 1, "ranks": 1}, "compute-bound"),
        ({"forward": 55.0, "allreduce": 5.0, "update": 40.0}, {**GPU, "ranks": 2}, "compute-bound"),
        ({"forward": 25.0, "rest": 60.0, "allreduce": 15.0}, GPU, "communication-bound"),
        ({"forward": 25.0, "rest": 60.1, "allreduce": 14.9}, GPU, "compute-bound"),
    ],
)
def test_what_the_device_waits_for(phases, facts, found):
    assert kind(report(phases), {}, facts) == found


def test_what_the_device_waits_for_is_told_in_figures():
    data = verdict(report({"forward": 50.0, "data": 40.0, "copy": 10.0}, 120.0, 100.0), {}, GPU)
    assert data.evidence == {"data_pct": pytest.approx(48.0), "device_busy_pct": pytest.approx(60.0)}
    copy = verdict(report({"forward": 70.0, "copy": 30.0}), {}, GPU)
    assert (
        copy.evidence == {"copy_pct": 30.0, "device_busy_pct": 70.0}
        and "takes 30 % of the step" in copy.sentence
    )
    for facts, rung in (
        ({**GPU, "loader": "gluon"}, "records"),
        ({"device": "gpu"}, "records"),
        (GPU, "mixed-precision"),
    ):
        assert verdict(report({"forward": 70.0, "copy": 30.0}), {}, facts).next_rung == rung
    talk = verdict(report({"forward": 50.0, "update": 50.0}), {}, {**GPU, "num_devices": 2, "ranks": 4})
    assert talk.evidence == {"communication_pct": 50.0, "ranks": 4} and "among 4 devices" in talk.sentence
    more = verdict(report({"forward": 50.0, "update": 50.0}), {}, {**GPU, "num_devices": 8, "ranks": 4})
    assert more.evidence["ranks"] == 8
    overlapping = report({"forward": 60.0, "backward": 10.0, "data": 30.0}, 130.0, 100.0)  # 91 % busy
    assert kind(overlapping, {}, GPU) == "compute-bound"


@pytest.mark.parametrize(
    ("facts", "rung"),
    [
        ({"num_workers": 0, "loader": "gluon"}, "multi-worker"),
        ({"num_workers": 0}, "multi-worker"),
        ({}, "multi-worker"),
        ({"num_workers": 2}, "records"),
        ({"num_workers": 0, "loader": "threaded"}, "records"),
    ],
)
def test_more_workers_are_tried_before_another_loader(facts, rung):
    assert verdict(report({"forward": 50.0, "data": 50.0}), {}, facts).next_rung == rung


@pytest.mark.parametrize(
    ("queue", "facts", "bound"),
    [
        ({"forward": 30.0, "backward": 24.0}, GPU, True),  # 54 of 90 ms
        ({"forward": 30.0, "backward": 23.9}, GPU, False),
        ({"forward": 20.0, "backward": 20.0, "update": 20.0}, GPU, True),  # 60 of 100
        ({"forward": 20.0, "backward": 20.0, "update": 19.9}, GPU, False),
        ({"forward": 31.5}, CPU, True),
        ({"forward": 31.4}, CPU, False),
        ({"forward": 31.5}, {"hybridize": "static"}, True),  # what is not said is a CPU
    ],
)
def test_the_share_of_queueing_that_matters(queue, facts, bound):
    assert (kind(report(NET, queue=queue), {}, facts) == "launch-bound") == bound


def test_queueing_is_told_in_figures():
    found = verdict(
        report(NET, queue={"forward": 90.0, "backward": 90.0}), {}, {**GPU, "batch_size_per_device": 32}
    )
    assert found.evidence == {"queueing_pct": 100.0, "batch_size_per_device": 32}
    assert "take 100 % of the net's time at batch 32: they" in found.sentence.replace("takes", "take")
    assert "a larger batch helps" in found.sentence
    found = verdict(report(NET, queue={"forward": 60.0}), {}, {"device": "gpu"})
    assert (
        "time: they" in found.sentence and "hybridize" in found.sentence and found.next_rung == "hybridized"
    )
    assert found.evidence["queueing_pct"] == pytest.approx(100 * 60 / 90)


@pytest.mark.parametrize(
    ("tree", "facts", "rung"),
    [
        (69.9, CPU, "environment"),
        (69.9, {"hybridize": "static"}, "environment"),
        (70.0, CPU, "multi-device"),
        (None, CPU, "multi-device"),
        (20.0, GPU, "multi-device"),
        (20.0, {**CPU, "usable_cores": 1}, "multi-device"),
        (20.0, {**CPU, "usable_cores": 2}, "environment"),
        (80.0, {}, "hybridized"),
        (80.0, {"hybridize": "static"}, "mixed-precision"),
        (80.0, {**CPU, "ranks": 2}, "large-batch"),
    ],
)
def test_a_busy_net_is_sent_on(tree, facts, rung):
    found = verdict(report(NET), {"cpu_pct": [tree]}, facts)
    assert (found.kind, found.next_rung) == ("compute-bound", rung)
    assert found.evidence == {"device_busy_pct": 100.0, "cpu_pct": tree}
    assert ("more threads" in found.sentence) == (rung == "environment")
