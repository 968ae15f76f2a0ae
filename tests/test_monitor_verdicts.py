"""Each verdict from the signals that mean it, and not from those of its neighbours."""

from __future__ import annotations

import json
import linecache

import pytest

from gluontune.ladder.rungs import RUNGS
from gluontune.monitor import StepPhases, trace_syncs, verdict
from gluontune.monitor.verdicts import KINDS

BUSY = {"data": 1.0, "copy": 1.0, "forward": 35.0, "backward": 55.0, "update": 5.0, "metrics": 1.0, "rest": 2.0}


def report(pct, sampled=100.0, unsampled=100.0, queue=None, host=None):
    return {
        "phases_pct": pct,
        "phases_ms": {name: share * sampled / 100 for name, share in pct.items()},
        "queue_ms": queue or {},
        "host_ms": host or {},
        "step_time_ms": {"sampled": sampled, "unsampled": unsampled},
    }


def shifted(**shares):
    """BUSY with some phases set, the rest scaled to 100."""
    left = 100 - sum(shares.values())
    others = {name: share for name, share in BUSY.items() if name not in shares}
    whole = sum(others.values())
    return {**{name: share * left / whole for name, share in others.items()}, **shares}


GPU = {"device": "gpu", "num_workers": 4, "hybridize": "static", "dtype": "float16", "loader": "threaded"}
CASES = {
    "input-bound": (report(shifted(data=45.0)), {}, GPU, "records"),
    "copy-bound": (report(shifted(copy=40.0)), {}, GPU, "mixed-precision"),
    "compute-bound": (report(BUSY), {}, GPU, "multi-device"),
    "launch-bound": (report(BUSY, queue={"forward": 30.0, "backward": 45.0}), {}, GPU, "large-batch"),
    "communication-bound": (report(shifted(update=50.0)), {}, {**GPU, "num_devices": 4}, "large-batch"),
    "sync-bound": (
        report(shifted(data=10.0), queue={"forward": 10, "backward": 10}, host={"metrics": 70.0}),
        {},
        {**GPU, "steps": 50, "syncs": [{"where": "train.py:37", "call": "asscalar", "calls": 50, "blocked_ms": 9}]},
        None,
    ),
    "cpu-starved": (report(shifted(data=45.0)), {"cpu_pct": [99.0] * 9}, {**GPU, "loader": "gluon"}, "records"),
    "thermally-throttled": (
        report(BUSY),
        {"gpu_throttle_mask": {"0": [0, 0x20, 0x40, None]}, "gpu_temp_c": {"0": [70, 91, 92, None]}},
        GPU,
        None,
    ),
}  # fmt: skip


def test_every_kind_is_there():
    assert set(CASES) | {"unknown"} == set(KINDS)


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_from_its_signals(kind):
    phases, util, facts, rung = CASES[kind]
    found = verdict(phases, util, facts)
    assert found.kind == kind
    assert found.next_rung == rung and (rung is None or rung in RUNGS.names())
    assert found.evidence and found.sentence.endswith(".")
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_share_of_queueing_is_said():
    phases, util, facts, _ = CASES["launch-bound"]
    assert "takes 83 % of the net's time" in verdict(phases, util, facts).sentence


def test_the_sync_is_named_by_its_line():
    phases, util, facts, _ = CASES["sync-bound"]
    assert "train.py:37" in verdict(phases, util, facts).sentence


def test_nothing_measured_is_unknown():
    for empty in ({}, {"phases_pct": {}}, {"phases_pct": {"data": 0.0}}):
        assert verdict(empty).kind == "unknown"


def test_percentages_alone_will_do():
    assert verdict({"phases_pct": shifted(data=60.0)}, {}, {"device": "cpu"}).kind == "input-bound"
    assert verdict({"phases_pct": BUSY}, {}, {"device": "cpu"}).kind == "compute-bound"


def test_loading_that_overlaps_is_no_bottleneck():
    """Loading takes as long as half of the net, but in a step that is as long as the net alone."""
    pct = shifted(data=33.0)
    assert verdict(report(pct, sampled=150.0, unsampled=100.0), {}, GPU).kind == "compute-bound"
    assert verdict(report(pct, sampled=100.0, unsampled=100.0), {}, GPU).kind == "input-bound"


def test_loading_that_overlaps_and_is_longer_than_the_net_is_the_bottleneck():
    pct = shifted(data=60.0)  # 90 ms of loading, about 60 of the device, steps of 90 ms
    assert verdict(report(pct, sampled=150.0, unsampled=90.0), {}, GPU).kind == "input-bound"


def test_updates_of_one_device_are_not_communication():
    assert verdict(report(shifted(update=50.0)), {}, GPU).kind == "compute-bound"


def test_heat_in_few_samples_and_a_power_cap_are_no_verdict():
    for masks in ([0] * 19 + [0x20], [0x4] * 20):
        assert verdict(report(BUSY), {"gpu_throttle_mask": {"0": masks}}, GPU).kind == "compute-bound"


def test_other_programs_and_quotas_starve_the_cpu():
    crowded = {"cpu_pct": [50.0, 52.0], "system_cpu_pct": [99.0, 100.0]}
    assert verdict(report(BUSY), crowded, {"device": "cpu"}).kind == "cpu-starved"
    waits = {**crowded, "cpu_wait_pct": [None, 55.0, None, 45.0]}
    found = verdict(report(BUSY), waits, {"device": "cpu"})
    assert found.kind == "cpu-starved" and "waits for a core 50 %" in found.sentence
    # others that fill what this training leaves free take nothing from it
    free = {**crowded, "cpu_wait_pct": [None, 8.0, None, 12.0]}
    copying = verdict(report(shifted(copy=70.0)), free, {"device": "cpu"})
    assert copying.kind == "copy-bound"
    limited = {"cpu_pct": [99.0], "cpu_quota_throttled_pct": [40.0, 30.0]}
    found = verdict(report(BUSY), limited, {"device": "cpu"})
    assert (found.kind, found.next_rung) == ("cpu-starved", "environment")
    alone = {"cpu_pct": [98.0], "system_cpu_pct": [99.0]}
    for seldom in ({}, {"cpu_quota_throttled_pct": [0.0, 3.0]}):
        found = verdict(report(BUSY), {**alone, **seldom}, {"device": "cpu", "hybridize": "static"})
        assert found.kind == "compute-bound"


def test_a_cpu_that_is_half_used_is_sent_to_the_environment():
    found = verdict(report(BUSY), {"cpu_pct": [52.0]}, {"device": "cpu", "usable_cores": 2})
    assert (found.kind, found.next_rung) == ("compute-bound", "environment")


@pytest.mark.parametrize(
    ("facts", "rung"),
    [
        ({"hybridize": "imperative"}, "hybridized"),
        ({"hybridize": "static", "dtype": "float32"}, "mixed-precision"),
        ({"hybridize": "static", "dtype": "bfloat16"}, "multi-device"),
        ({"hybridize": "static", "dtype": "float16", "num_devices": 2}, "large-batch"),
    ],
)
def test_compute_bound_goes_on_to_what_is_not_done_yet(facts, rung):
    assert verdict(report(BUSY), {}, facts).next_rung == rung


class Array:
    """Stands in for NDArray: reading it blocks."""

    def asnumpy(self):
        return 1.0

    def asscalar(self):
        return self.asnumpy()


def test_trace_syncs_finds_the_line_counts_once_and_puts_all_back():
    plain = vars(Array)["asscalar"]
    with trace_syncs(Array) as trace:
        for _ in range(3):
            Array().asscalar()
    rows = trace.report()
    assert [(row["call"], row["calls"]) for row in rows] == [("asscalar", 3)]
    file, line = rows[0]["where"].rsplit(":", 1)
    assert file == __file__ and "Array().asscalar()" in linecache.getline(file, int(line))
    assert vars(Array)["asscalar"] is plain
    with pytest.raises(ZeroDivisionError), trace_syncs(Array):
        _ = 1 / 0
    assert vars(Array)["asscalar"] is plain


@pytest.mark.mxnet
@pytest.mark.process
def test_phases_and_syncs_of_a_real_mxnet_loop():
    """The phases of a real net: forward and backward dominate, and asscalar in the loop is found."""
    from gluontune.runtime import mxnet

    mx = mxnet()
    net = mx.gluon.nn.Dense(512, in_units=512)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-4})
    x = mx.nd.ones((512, 512))
    phases = StepPhases(sync=mx.nd.waitall, every=4)
    with trace_syncs(mx.nd.NDArray) as trace:
        for _ in range(30):
            with phases.step() as step:
                with mx.autograd.record():
                    with step("forward"):
                        loss = (net(x) ** 2).mean()
                    with step("backward"):
                        loss.backward()
                with step("update"):
                    trainer.step(512)
                with step("metrics"):
                    loss.asscalar()
        phases.wait()
    found = phases.report()
    assert sum(found["phases_pct"].values()) == pytest.approx(100)
    assert found["phases_pct"]["forward"] + found["phases_pct"]["backward"] > 40
    assert found["steps_sampled"] >= 3
    # on the steps without waits the host is held up where the value is read
    assert found["host_ms"]["metrics"] > found["phases_ms"]["metrics"]
    assert [(row["call"], row["calls"]) for row in trace.report()] == [("asscalar", 30)]
    assert trace.report()[0]["where"].startswith(__file__)


def test_many_waits_inside_the_net_are_sync_bound_and_one_at_the_end_is_not():
    rows = [{"where": "net.py:5", "call": "asscalar", "calls": 1000, "blocked_ms": 2000.0}]
    inside = report(BUSY, queue={"forward": 30.0, "backward": 2.0})
    found = verdict(inside, {}, {**GPU, "steps": 50, "syncs": rows})
    assert found.kind == "sync-bound" and "20 times a step" in found.sentence and "net.py:5" in found.sentence
    short = [{**rows[0], "blocked_ms": 50.0}]  # a hundredth of the step
    assert verdict(report(BUSY), {}, {**GPU, "steps": 50, "syncs": short}).kind == "compute-bound"
    at_the_end = report(BUSY, queue={"forward": 1.0}, host={"forward": 1.0, "backward": 1.0, "metrics": 95.0})
    once = [{"where": "train.py:9", "call": "asscalar", "calls": 50, "blocked_ms": 4500.0}]
    assert verdict(at_the_end, {}, {**GPU, "steps": 50, "syncs": once}).kind == "compute-bound"


def test_a_host_that_queues_all_the_time_is_launch_bound():
    queue = {"forward": 30.0, "backward": 20.0, "update": 15.0}
    found = verdict(report(BUSY, queue=queue), {}, GPU)
    assert (found.kind, found.next_rung) == ("launch-bound", "large-batch")
    imperative = verdict(report(BUSY, queue=queue), {}, {**GPU, "hybridize": "imperative"})
    assert imperative.next_rung == "hybridized"


def test_on_a_cpu_queueing_takes_the_cores_from_the_net():
    queue = {"forward": 20.0, "backward": 10.0, "update": 10.0}
    assert verdict(report(BUSY, queue=queue), {}, GPU).kind == "compute-bound"
    assert verdict(report(BUSY, queue=queue), {}, {**GPU, "device": "cpu"}).kind == "launch-bound"


def test_a_host_that_a_full_queue_holds_up_is_not_launch_bound():
    held_up = report(BUSY, queue={"forward": 2.0, "backward": 2.0}, host={"forward": 90.0, "backward": 5.0})
    assert verdict(held_up, {}, GPU).kind == "compute-bound"
