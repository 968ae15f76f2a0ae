"""The input stage, execution modes, and what start_process refuses."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import gluontune as gt
from gluontune.compute import InputStage, bfloat16_support, set_mode, start_process, with_input_stage
from gluontune.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn
MEAN, STD = [0.49, 0.48, 0.45], [0.25, 0.24, 0.26]


def pixels(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("mode", list(gt.compute.MODES))
@pytest.mark.parametrize("channels", [1, 3])
def test_the_stage_normalizes_and_transposes(mode, channels):
    data = pixels((3, 5, 4, channels))
    stage = set_mode(InputStage(MEAN[:channels], STD[:channels]), mode)
    got = stage(mx.nd.array(data, dtype="uint8"))
    mean, std = np.array(MEAN[:channels]), np.array(STD[:channels])
    expected = ((data / 255 - mean) / std).transpose(0, 3, 1, 2)
    assert got.dtype == np.float32 and got.shape == (3, channels, 5, 4)
    np.testing.assert_allclose(got.asnumpy(), expected, atol=2e-6)


@pytest.mark.parametrize("mode", list(gt.compute.MODES))
def test_a_staged_net_trains_and_keeps_its_parameters_names_and_files(mode, tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.GlobalAvgPool2D(), nn.Dense(2))
    net.initialize()
    staged = set_mode(with_input_stage(net, InputStage(MEAN, STD)), mode)
    data = mx.nd.array(pixels((2, 6, 6, 3)), dtype="uint8")
    with mx.autograd.record():
        loss = staged(data).sum()
    loss.backward()
    assert list(staged.collect_params()) == list(net.collect_params())
    assert float(net[0].weight.grad().abs().sum().asscalar()) > 0
    file = str(tmp_path / "net.params")
    staged.save_parameters(file)
    net.load_parameters(file)
    net.save_parameters(file)
    staged.load_parameters(file)


def test_a_plain_block_can_be_staged_too():
    net = nn.Sequential()
    net.add(nn.Dense(2))
    net.initialize()
    staged = set_mode(with_input_stage(net, InputStage(MEAN, STD)), "hybridized")
    assert staged(mx.nd.array(pixels((2, 3, 3, 3)), dtype="uint8")).shape == (2, 2)
    assert net[0]._active


def test_the_stage_follows_a_cast_but_knows_no_bfloat16():
    staged = with_input_stage(nn.Dense(1, in_units=4), InputStage([0.5], [0.5]))
    staged.cast("float16")
    assert staged.stage(mx.nd.zeros((1, 2, 2, 1), dtype="uint8")).dtype == np.float16
    with pytest.raises(UsageError, match="float32 or float16"):
        InputStage([0.5], [0.5], dtype="bfloat16")


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ([0.5], [0.1, 0.2], "1 means and 2 deviations"),
        ([], [], "0 means"),
        ([0.5], [0.0], "positive deviations"),
        ([float("nan")], [1.0], "finite"),
        ([125.0], [60.0], "divide them by 255"),
        (0.5, 0.5, "one number a channel"),
    ],
)
def test_means_and_deviations_that_cannot_be(mean, std, message):
    with pytest.raises(UsageError, match=message):
        InputStage(mean, std)


def test_modes():
    inner, plain = nn.HybridSequential(), nn.Sequential()
    inner.add(nn.Dense(2))
    plain.add(inner)
    plain.initialize()
    for mode, (active, static) in {
        "static": (True, True),
        "hybridized": (True, False),
        "imperative": (False, False),
    }.items():
        assert set_mode(plain, mode) is plain
        assert (inner._active, dict(inner._flags)["static_alloc"]) == (active, static)
        assert plain(mx.nd.ones((1, 2))).shape == (1, 2)
    with pytest.raises(UnknownNameError, match="did you mean 'hybridized'"):
        set_mode(plain, "hybridised")


def test_what_a_process_cannot_be_started_for():
    for dtype, device, message in (
        ("float16", "cpu", "cannot run on a CPU"),
        ("bfloat16", "gpu", "cannot run on a GPU"),
        ("float8", "cpu", "choose float32"),
        ("float32", "tpu", "choose cpu or gpu"),
    ):
        with pytest.raises(UsageError, match=message):
            start_process(dtype, device)


def test_bfloat16_support_is_read_from_the_flags(monkeypatch):
    avx512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
    assert bfloat16_support(avx512 | {"amx_bf16"}).level == "native"
    assert bfloat16_support(avx512).level == "emulated"
    for vendor, flags, level in (
        ("GenuineIntel", {"avx512_bf16"}, "slow"),
        ("GenuineIntel", {"avx512_bf16", "amx_bf16"}, "native"),
        ("AuthenticAMD", {"avx512_bf16"}, "native"),
    ):
        monkeypatch.setattr("gluontune.compute.process.processor", lambda has=flags, by=vendor: (avx512 | has, by))
        assert bfloat16_support().level == level
    assert bfloat16_support(avx512 | {"avx512_bf16"}, "GenuineIntel").level == "slow"
    monkeypatch.setattr("gluontune.compute.process.processor", lambda: ({"avx2"}, "GenuineIntel"))
    with pytest.raises(GluontuneError, match=r"no bfloat16.*use float32"):
        start_process("bfloat16", "cpu")


BFLOAT16 = """
import sys, numpy as np, gluontune as gt
gt.compute.start_process("bfloat16", "cpu")
gt.compute.start_process("bfloat16", "cpu")  # a second call is harmless
from gluontune.runtime import mxnet
mx = mxnet()
mx.random.seed(0)
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Conv2D(8, 3), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Activation("relu"))
net.add(mx.gluon.nn.GlobalAvgPool2D(), mx.gluon.nn.Dense(2))
net.initialize()
staged = gt.compute.with_input_stage(net, gt.compute.InputStage([0.5] * 3, [0.25] * 3))
x = mx.nd.array(np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3)), dtype="uint8")
y = mx.nd.array([0, 1] * 4)
gt.compute.apply_rewrites(staged, gt.compute.REWRITES.names(), x)
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
precision = gt.compute.to_mixed_precision(net, trainer, "bfloat16")
loss_fn = mx.gluon.loss.SoftmaxCrossEntropyLoss()
for mode in gt.compute.MODES:
    gt.compute.set_mode(staged, mode)
    for _ in range(15):
        with mx.autograd.record():
            loss = loss_fn(precision.outputs(staged(precision.inputs(x))), y).mean()
            scaled = precision.scaler.scale(loss)
        scaled.backward()
        precision.scaler.step(trainer, 1)
    print(mode, float(loss.asscalar()), net[0].weight.data().dtype.__name__, file=sys.stderr)
check = gt.compute.check_hybridizable(staged, x)
print("check", check.ok, file=sys.stderr)
try:
    gt.compute.start_process("float32", "cpu")
except gt.errors.GluontuneError as error:
    print("refused:", error, file=sys.stderr)
"""


@pytest.mark.process
def test_bfloat16_trains_in_a_process_of_its_own():
    support = bfloat16_support()
    if support.level == "none":
        with pytest.raises(GluontuneError, match="cannot run here"):
            start_process("bfloat16", "cpu")
        return
    env = {**os.environ, "DNNL_VERBOSE": "1"}
    done = subprocess.run([sys.executable, "-c", BFLOAT16], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    losses = {line.split()[0]: float(line.split()[1]) for line in lines if line.split()[0] in gt.compute.MODES}
    assert list(losses) == list(gt.compute.MODES) and losses["static"] < losses["imperative"] < 0.8
    assert "check True" in lines and any("refused: this process was started for bfloat16" in line for line in lines)
    assert ",convolution," in done.stdout and "src_bf16" in done.stdout  # it did compute in bfloat16
