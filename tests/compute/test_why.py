"""why_no_gain gives a reason for each known cause, and none where nothing speaks against a gain."""

from __future__ import annotations

import pytest

from gluontune.compute import why_no_gain
from gluontune.core.errors import UsageError
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn


@pytest.fixture(autouse=True)
def native(monkeypatch):
    monkeypatch.setattr("gluontune.compute.process.processor", lambda: ({"avx512_bf16"}, "AuthenticAMD"))


def dense(units, inputs, batch=64):
    net = nn.Dense(units, in_units=inputs, use_bias=False)
    net.initialize()
    return net, mx.nd.ones((batch, inputs))


def test_nothing_speaks_against_a_wide_layer():
    assert why_no_gain(*dense(256, 512), dtype="bfloat16") == []


@pytest.mark.parametrize(
    ("units", "inputs", "options", "reason"),
    [
        (250, 512, {}, "no multiple of eight"),
        (256, 16, {}, "only 16 multiplications for each value"),
        (256, 512, {"phases_pct": {"data": 40, "compute": 60}}, "waiting for input takes 40 %"),
    ],
)
def test_one_cause_gives_one_reason(units, inputs, options, reason):
    (only,) = why_no_gain(*dense(units, inputs), dtype="bfloat16", **options)
    assert reason in only


def test_layers_with_an_activation_count():
    net = nn.HybridSequential()
    net.add(nn.Dense(512, activation="relu", in_units=512), nn.Dense(10, in_units=512))
    net.initialize()
    # The odd layer has 2 % of the arithmetic.
    assert why_no_gain(net, mx.nd.ones((64, 512)), dtype="bfloat16") == []


def test_hardware_and_impossible_types(monkeypatch):
    net, x = dense(256, 512)
    assert "no float16" in why_no_gain(net, x, dtype="float16")[0]
    assert "no bfloat16 on a GPU" in why_no_gain(net, x, dtype="bfloat16", device="gpu")[0]
    monkeypatch.setattr("gluontune.compute.process.processor", lambda: ({"avx2"}, "GenuineIntel"))
    assert "no bfloat16" in why_no_gain(net, x, dtype="bfloat16")[0]


def test_layout_and_slow_paths():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(64, 3, in_channels=64), nn.GlobalAvgPool2D())
    net.initialize()
    x = mx.nd.ones((1, 64, 6, 6))
    assert any("NHWC" in reason for reason in why_no_gain(net, x, dtype="float16", device="gpu"))
    assert any("pool-to-mean" in reason for reason in why_no_gain(net, x, dtype="bfloat16"))


def test_wrong_use():
    net, x = dense(8, 8)
    with pytest.raises(UsageError, match="choose bfloat16 or float16"):
        why_no_gain(net, x, dtype="float32")
    with pytest.raises(UsageError, match="choose cpu or gpu"):
        why_no_gain(net, x, dtype="bfloat16", device="tpu")
    with pytest.raises(UsageError, match="sample batch"):
        why_no_gain(net, dtype="bfloat16")
