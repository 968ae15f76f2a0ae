"""What the device waits for, queueing and the net itself: each limit from both sides, and any other word."""

from __future__ import annotations

import pytest
from monitor_reports import CPU, GPU, NET, kind, report, verdict, without


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
        ({"forward": 30.0, "backward": 35.0, "allreduce": 15.0, "communication": 20.0}, GPU, "communication-bound"),
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
    assert copy.evidence == {"copy_pct": 30.0, "device_busy_pct": 70.0} and "takes 30 % of the step" in copy.sentence
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
    found = verdict(report(NET, queue={"forward": 90.0, "backward": 90.0}), {}, {**GPU, "batch_size_per_device": 32})
    assert found.evidence == {"queueing_pct": 100.0, "batch_size_per_device": 32}
    assert "take 100 % of the net's time at batch 32: they" in found.sentence.replace("takes", "take")
    assert "a larger batch helps" in found.sentence
    found = verdict(report(NET, queue={"forward": 60.0}), {}, {"device": "gpu"})
    assert "time: they" in found.sentence and "hybridize" in found.sentence and found.next_rung == "hybridized"
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


@pytest.mark.parametrize(
    ("facts", "rung"),
    [
        ({"hybridize": "hybridized", "dtype": "float32"}, "mixed-precision"),
        ({"hybridize": "imperative", "dtype": "float32"}, "hybridized"),
        ({"hybridize": "static", "dtype": "bfloat16"}, "multi-device"),
        ({"hybridize": "static", "dtype": "float64"}, "multi-device"),
        ({"hybridize": "static", "dtype": "float32"}, "mixed-precision"),
    ],
)
def test_any_other_word_is_another_one(facts, rung):
    assert verdict(report(NET), {}, {"device": "gpu", **facts}).next_rung == rung


@pytest.mark.parametrize("other", ["another", "threaded"])
def test_any_other_loader_is_another_one(other):
    for phase, usual, rung in (("data", "multi-worker", "records"), ("copy", "records", "mixed-precision")):
        for loader, wanted in (("gluon", usual), (other, rung)):
            facts = {"device": "gpu", "loader": loader}
            assert verdict(report({"forward": 60.0, phase: 40.0}), {}, facts).next_rung == wanted
    starved = {"cpu_pct": [95.0]}
    for loader, wanted in (("gluon", "records"), (other, None)):
        found = verdict(report({"forward": 60.0, "data": 40.0}), starved, {"device": "gpu", "loader": loader})
        assert (found.kind, found.next_rung) == ("cpu-starved", wanted)


@pytest.mark.parametrize("device", ["asic", "gpu"])
def test_any_other_device_is_no_cpu(device):
    for one, kinds in (
        (device, ("compute-bound", "cpu-starved", "multi-device")),
        ("cpu", ("launch-bound", "input-bound", "environment")),
    ):
        facts = {**GPU, "device": one}
        assert kind(report(NET, queue={"forward": 40.0}), {}, facts) == kinds[0]
        assert kind(report(without(20.0, data=20.0)), {"cpu_pct": [95.0]}, facts) == kinds[1]
        assert verdict(report(NET), {"cpu_pct": [20.0]}, facts).next_rung == kinds[2]
