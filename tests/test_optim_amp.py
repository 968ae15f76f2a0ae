"""Optimizers, rewrites and nets in a process whose operators AMP has patched for bfloat16, on any CPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gluontune.optim import list_optimizers

# Gradients are given, not computed: a CPU without bfloat16 has AMP's casts but no layers to follow them.
UPDATES = """
import numpy as np
import gluontune as gt
mx = gt.runtime.mxnet()
nn = mx.gluon.nn
def updates(name):
    net = nn.HybridSequential()
    net.add(nn.Dense(64, in_units=1024, use_bias=False), nn.Dense(5, in_units=64))
    net.initialize()
    rng = np.random.RandomState(0)
    for p in net.collect_params().values():
        p.set_data(mx.nd.array(rng.normal(size=p.shape)))
    trainer = gt.optim.setup(name, net, learning_rate=0.01, batch_size=2, clip_global_norm=1e6)
    try:
        for _ in range(3):
            for p in net.collect_params().values():
                p.grad()[:] = mx.nd.array(rng.normal(size=p.shape))
            trainer.step(2, ignore_stale_grad=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return [float(p.data().asnumpy().astype("float64").sum()) for p in net.collect_params().values()]
"""
STOCK = f"""
{UPDATES}
import json
from mxnet.contrib import amp
amp.init(target_dtype="bfloat16")
print(json.dumps({{"updates": {{name: updates(name) for name in gt.optim.list_optimizers()}}}}))
"""
OURS = f"""
{UPDATES}
import json
from gluontune.compute import process
process._init_amp()
class Made(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        made = F.eye(3) + F.zeros((3, 3)) + F.ones((3, 3)) + F.full((3, 3), 2.0) + F.arange(9).reshape((3, 3))
        made = made + 0 * F.random.uniform(shape=(3, 3)) + 0 * F.random.normal(shape=(3, 3))
        return F.broadcast_add(x, F.relu(made))
made, traced = [], {{}}
for static in (False, True):
    net = Made()
    if static:
        net.hybridize(static_alloc=True, static_shape=True)
    made.append(int(net(mx.nd.zeros((3, 3))).sum().asscalar()))
for name in gt.compute.REWRITES.names():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, padding=1, in_channels=3, use_bias=False), nn.BatchNorm(in_channels=16))
    net.add(nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(2, in_units=16))
    net.initialize()
    found = gt.compute.apply_rewrites(net, [name])
    traced[name] = len(net(mx.sym.var("data")).list_arguments()) > 4
found = {{name: updates(name) for name in gt.optim.list_optimizers()}}
print(json.dumps({{"updates": found, "made": made, "traced": traced}}))
"""


@pytest.fixture(scope="module")
def found():
    """What processes print that MXNet's own AMP, and ours, have patched; and this process, unpatched."""
    codes = {"stock": STOCK, "ours": OURS}
    running = {
        how: subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for how, code in codes.items()
    }
    space: dict = {}
    exec(UPDATES, space)
    told = {"plain": {"updates": {name: space["updates"](name) for name in list_optimizers()}}}
    for how, process in running.items():
        out, error = process.communicate()
        assert process.returncode == 0, error[-1000:]
        told[how] = json.loads(out)
    return told


@pytest.mark.parametrize("name", list_optimizers())
@pytest.mark.parametrize("how", ["stock", "ours"])
def test_updates_do_not_know_of_amp(found, how, name):
    assert found[how]["updates"][name] == pytest.approx(found["plain"]["updates"][name], rel=1e-6)


def test_a_net_may_make_its_own_arrays_in_bfloat16(found):
    assert found["ours"]["made"] == [66, 66]


def test_rewritten_nets_are_traced_in_bfloat16(found):
    assert all(found["ours"]["traced"].values()) and "pad-channels" in found["ours"]["traced"]
