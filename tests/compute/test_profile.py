"""oneDNN's log is read by program; slow paths are named with the rewrite that cures them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gluontune.compute import apply_rewrites, profile, set_mode
from gluontune.compute.profile_report import Execution, cure_of, parse_log, report, slow_reason, summarize
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import mxnet

mx = mxnet()
nn = mx.gluon.nn

# As the oneDNN 2.4.4 of mxnet 1.9.1 wrote it for two steps of a bfloat16 ResNet-20, shortened.
BN_SLOW = (
    "dnnl_verbose,exec,cpu,batch_normalization,bnorm_ref:any,backward,data_bf16::blocked:aBcd16b:f0 "
    "diff_bf16::blocked:acdB16b:f0,,flags:S,mb64ic64ih8iw8,12.0"
)
BN_FAST = (
    "dnnl_verbose,exec,cpu,batch_normalization,bnorm_jit:avx512_core_bf16,backward,data_bf16::blocked:aBcd16b:f0 "
    "diff_bf16::blocked:aBcd16b:f0,,flags:S,mb64ic16ih32iw32,0.4"
)
BN_PLAIN = (
    "dnnl_verbose,exec,cpu,batch_normalization,ncsp_bnorm:any,forward_training,data_bf16::blocked:abcd:f0 "
    "diff_undef::undef::f0,,flags:S,mb64ic16ih32iw32,14.0"
)
POOL_SLOW = (
    "dnnl_verbose,exec,cpu,pooling_v2,ref:any,backward_data,src_f32::blocked:acdB16b:f0 "
    "dst_f32::blocked:aBcd16b:f0 ws_undef::undef::f0,,alg:pooling_avg_include_padding,"
    "mb64ic64_ih8oh1kh8sh1dh0ph0_iw8ow1kw8sw1dw0pw0,7.0"
)
CONV_GEMM = (
    "dnnl_verbose,exec,cpu,convolution,x64:gemm:jit,forward_training,src_bf16::blocked:abcd:f0 "
    "wei_bf16::blocked:abcd:f0 bia_undef::undef::f0 dst_bf16::blocked:abcd:f0,,alg:convolution_direct,"
    "mb64_ic3oc16_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1,1.6"
)
CONV_FAST = CONV_GEMM.replace("x64:gemm:jit", "jit_bf16:avx512_core_bf16").replace("ic3", "ic16").replace("1.6", "1.8")
DENSE = (
    "dnnl_verbose,exec,cpu,inner_product,x64:gemm:jit,forward_training,src_f32::blocked:ab:f0 "
    "wei_f32::blocked:ab:f0,,,mb64ic64oc10,0.02"
)
LOG = "\n".join(["dnnl_verbose,info,oneDNN v2.4.4", "a user's print"] + [
    BN_SLOW, BN_FAST, BN_PLAIN, POOL_SLOW, CONV_GEMM, CONV_FAST, DENSE] * 2)  # fmt: skip


def test_lines_are_read_and_others_passed_over():
    executions = parse_log(LOG)
    assert len(executions) == 14
    assert executions[0] == Execution(
        "batch_normalization", "bnorm_ref:any", "backward",
        "data_bf16::blocked:aBcd16b:f0 diff_bf16::blocked:acdB16b:f0", "mb64ic64ih8iw8", 12.0,
    )  # fmt: skip


@given(st.text(max_size=200))
def test_any_text_is_survived(text):
    for line in (text, "dnnl_verbose,exec," + text, BN_SLOW + text):
        summarize(parse_log(line), 1)


def test_slow_paths_and_their_cures():
    rows = {(r.primitive, r.implementation): r for r in summarize(parse_log(LOG), 2)}
    cures = {key: row.cure for key, row in rows.items() if row.slow}
    assert cures == {
        ("batch_normalization", "bnorm_ref:any"): "pool-to-mean",
        ("batch_normalization", "ncsp_bnorm:any"): "pad-channels",
        ("pooling_v2", "ref:any"): "pool-to-mean",
        ("convolution", "x64:gemm:jit"): "pad-channels",
    }
    slow = rows["batch_normalization", "bnorm_ref:any"]
    assert (slow.calls, slow.ms) == (1.0, 12.0)
    assert slow.fast_ms == pytest.approx(0.4 * (64 * 8 * 8) / (16 * 32 * 32))  # by elements, as BN_FAST
    gemm = rows["convolution", "x64:gemm:jit"]
    assert gemm.fast_ms == pytest.approx(1.8 * 3 / 16)  # by multiplications, as CONV_FAST
    assert not slow_reason(parse_log(DENSE)[0])  # a dense layer is a matrix product


def test_the_sentence_for_the_user():
    measured = {"step_ms": 50.0, "operators": {}}
    log = f"noise\ngluontune_profile_begin\n{LOG}\ngluontune_profile_end\n{BN_SLOW}"
    found = report(log, measured, 2)
    assert found.onednn_ms == pytest.approx(12 + 0.4 + 14 + 7 + 1.6 + 1.8 + 0.02)
    sentences = [str(cure) for cure in found.cures]
    assert sentences[0].startswith("1 Pooling layer and 1 BatchNorm layer run on a slow path: 38 % of your step")
    assert [c.rewrite for c in found.cures] == ["pool-to-mean", "pad-channels"]
    json.dumps(found.to_dict(), allow_nan=False)


def test_suspicious_operators_are_marked():
    operators = {
        "_backward_BatchNorm": {"calls": 4, "ms": 48.0},
        "BatchNorm": {"calls": 4, "ms": 0.5},
        "_backward_Convolution": {"calls": 3, "ms": 2.0},
        "Convolution": {"calls": 3, "ms": 1.0},
        "_copyto": {"calls": 1, "ms": 0.7},
        **{f"op{i}": {"calls": 1, "ms": 0.01} for i in range(9)},
    }
    rows = report("", {"step_ms": 1.0, "operators": operators}, 1).operators
    assert len(rows) == 10
    remarks = {row.name: row.remark for row in rows}
    assert remarks["_backward_BatchNorm"] == "backward takes 96 times its forward"
    assert remarks["_backward_Convolution"] == "" and remarks["_copyto"] == "moves data without computing"


@pytest.mark.process
def test_a_real_net_is_profiled_and_cured():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
    net.add(nn.Conv2D(32, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Dense(4))
    net.initialize()
    x = mx.nd.random.uniform(shape=(4, 3, 8, 8))
    set_mode(net, "static")
    net(x)
    graph, before = net._cached_op, net[0].weight.data().asnumpy()
    report = profile(net, x, steps=2)
    assert report.step_ms > 0 and report.onednn_ms > 0
    assert {p.primitive for p in report.primitives} >= {"convolution", "batch_normalization"}
    convolutions = [p for p in report.primitives if p.primitive == "convolution"]
    assert sum(p.calls for p in convolutions) == 5  # two forward, two for weights, one for data
    assert {p.layers for p in convolutions} == {("0",), ("3",)}
    assert ("6",) in {p.layers for p in report.slow if p.primitive.startswith("pooling")}
    assert {"Convolution", "_backward_BatchNorm"} <= {o.name for o in report.operators}
    assert "pool-to-mean" in [c.rewrite for c in report.cures]
    assert net._cached_op is graph
    np.testing.assert_array_equal(net[0].weight.data().asnumpy(), before)
    apply_rewrites(net, ["pool-to-mean"], x)
    assert "pool-to-mean" not in [c.rewrite for c in profile(net, x, steps=2).cures]


JOB = """
from gluontune.runtime import mxnet
mx = mxnet()

def make_step():
    net = mx.gluon.nn.Dense(4, in_units=8)
    net.initialize()
    x = mx.nd.ones((2, 8))
    def step():
        with mx.autograd.record():
            loss = net(x).sum()
        loss.backward()
        {fault}
    return step
"""


@pytest.mark.process
def test_a_step_of_a_file_is_profiled_in_a_child(tmp_path):
    job = tmp_path / "job.py"
    job.write_text(JOB.format(fault="pass"), encoding="utf-8")
    report = profile(f"{job}:make_step", steps=2)
    assert [p.calls for p in report.primitives if p.primitive == "inner_product" and "forward" in p.direction]
    job.write_text(JOB.format(fault="raise ValueError('half-way')"), encoding="utf-8")
    with pytest.raises(GluontuneError, match="the profiled step failed: ValueError: half-way"):
        profile(f"{job}:make_step", steps=1)


def test_targets_that_cannot_be_profiled(tmp_path):
    net = nn.Dense(2, in_units=3)
    for target, inputs, message in (
        ("job", (), "write 'job.py:function'"),
        (str(tmp_path / "none.py:f"), (), "no file"),
        (nn.Sequential(), (mx.nd.ones((1, 3)),), "give a HybridBlock"),
        (net, (mx.nd.ones((1, 3)),), "never initialized"),
    ):
        with pytest.raises(UsageError, match=message):
            profile(target, *inputs)
    net.initialize()
    with pytest.raises(UsageError, match="sample batch"):
        profile(net)
    with pytest.raises(UsageError, match="choose hybridized or static"):
        profile(net, mx.nd.ones((1, 3)), mode="fast")


def test_a_norm_between_two_layouts_is_cured_by_keeping_narrow_convolutions_in_float32():
    line = (  # from a ResNet-20 in bfloat16 with AMX; the second is the same layer where both layouts meet
        "dnnl_verbose,exec,cpu,batch_normalization,{},backward,data_bf16::blocked:acdb:f0 "
        "diff_bf16::blocked:{}:f0,,flags:S,mb128ic16ih32iw32,{}"
    )
    lines = line.format("bnorm_ref:any", "aBcd16b", 396.5), line.format("bnorm_jit:avx512_core_bf16", "acdb", 2.2)
    slow, fast = parse_log("\n".join(lines))
    assert cure_of(slow, [slow, fast]) == "narrow-in-float32" and cure_of(fast, [slow, fast]) == ""
    assert summarize([slow, fast], steps=1)[0].fast_ms == pytest.approx(2.2)
