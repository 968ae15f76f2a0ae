"""AMX is asked for only where it is there, and a wish that the kernel refuses is taken back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gluontune.runtime.cpu import AMX_ENV, AmxSupport, amx_support, ask_kernel, prepare_amx

REFUSED = AmxSupport("refused", "no")
GRANTED = AmxSupport("granted", "yes")


@pytest.mark.parametrize(
    "flags, answer, level",
    [
        (set(), True, "absent"),
        ({"avx512f", "avx512_bf16"}, True, "absent"),
        ({"amx_tile", "amx_int8"}, True, "absent"),
        ({"amx_bf16", "amx_tile"}, True, "granted"),
        ({"amx_bf16", "amx_tile"}, False, "refused"),
    ],
)
def test_level(flags, answer, level):
    asked = []
    found = amx_support(flags, ask=lambda: asked.append(1) or answer)
    assert found.level == level
    assert bool(asked) == (level != "absent"), "the kernel is asked only about what the processor has"


@pytest.mark.parametrize("name", ["DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"])
@pytest.mark.parametrize("value", ["AVX512_CORE_AMX", "avx512_core_amx", "ALL"])
def test_a_refused_wish_is_taken_back(name, value, caplog):
    environ = {name: value, "PATH": "/bin"}
    prepare_amx(environ, lambda: REFUSED)
    assert environ == {name: "AVX512_CORE_BF16", "PATH": "/bin"}
    assert "without" in caplog.text


@pytest.mark.parametrize("support", [GRANTED, AmxSupport("absent", "none")])
def test_a_wish_stays_where_nothing_can_go_wrong(support):
    environ = dict(AMX_ENV)
    prepare_amx(environ, lambda: support)
    assert environ == AMX_ENV


@pytest.mark.parametrize("environ", [{}, {"DNNL_MAX_CPU_ISA": "AVX2"}])
def test_nothing_is_asked_without_a_wish(environ):
    before = dict(environ)
    prepare_amx(environ, lambda: pytest.fail("asked"))
    assert environ == before


def test_the_kernel_gives_the_same_answer_twice():
    assert ask_kernel() == ask_kernel()


STEP = """
from gluontune.runtime import mxnet
mx = mxnet()
import numpy as np
from mxnet.contrib import amp
amp.init(target_dtype="bfloat16")
mx.random.seed(1)
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Conv2D(64, 3, padding=1, use_bias=False, in_channels=32), mx.gluon.nn.BatchNorm())
net.initialize(mx.init.Xavier())
net.hybridize()
x = mx.nd.random.uniform(shape=(4, 32, 16, 16))
with mx.autograd.record():
    y = net(x).astype("float32").square().mean()
y.backward()
grad = net[0].weight.grad().asnumpy()
print("RESULT", y.asscalar(), abs(grad).sum())
"""


def test_a_step_with_the_wish_for_amx_computes_what_one_without_does():
    """On a machine with AMX it computes with it; on any other the wish must do no harm, nor mend or hide a fault."""
    results: list[list[float]] = []
    faults = []
    for extra in ({"DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"}, {**AMX_ENV, "DNNL_VERBOSE": "1"}):
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **extra}
        done = subprocess.run([sys.executable, "-c", STEP], env=environ, capture_output=True, text=True)
        if done.returncode:  # a CPU without avx512 has no bfloat16 convolution, with the wish or without
            faults.append(done.stderr.strip().splitlines()[-1])
            continue
        results.append([float(v) for v in done.stdout.split("RESULT")[1].split()[:2]])
        used = "avx512_core_amx_bf16" in done.stdout
    if faults:
        assert "avx512" not in Path("/proc/cpuinfo").read_text() and len(faults) == 2 and faults[0] == faults[1], faults
        return
    assert results[1] == pytest.approx(results[0], rel=2e-2)
    assert used == (amx_support().level == "granted")
