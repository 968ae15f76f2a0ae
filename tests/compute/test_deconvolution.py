"""Deconvolutions whose backward pass ends the process on a CPU: each case in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from warm_python import warm

HEAD = """
import json, sys
import numpy as np
import gluontune as gt
from gluontune.compute.process import endangered, explored, told_of_deconvolutions
mx = gt.runtime.mxnet()
gluon, nn, autograd = mx.gluon, mx.gluon.nn, mx.autograd

class Twice(gluon.HybridBlock):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
    def hybrid_forward(self, F, x):
        return self.layer(F.sin(self.layer(x)))

class Normed(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(16, 16, 3, 3))
    def hybrid_forward(self, F, x, weight):
        scale = F.sqrt(F.sum(F.square(weight), keepdims=True))
        return F.Deconvolution(x, F.broadcast_div(weight, scale), kernel=(3, 3), num_filter=16)

def tied():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, in_channels=16, use_bias=False))
    net.add(nn.Conv2DTranspose(16, 3, in_channels=16, use_bias=False, params=net[0].params))
    return net

KINDS = {
    "twice": (lambda: Twice(nn.Conv2DTranspose(16, 3, padding=1, in_channels=16)), (2, 16, 5, 5)),
    "twice, 1 axis": (lambda: Twice(nn.Conv1DTranspose(4, 3, padding=1, in_channels=4)), (2, 4, 9)),
    "twice, groups": (lambda: Twice(nn.Conv2DTranspose(8, 3, padding=1, in_channels=8, groups=2)), (2, 8, 5, 5)),
    "twice, 3 axes": (lambda: Twice(nn.Conv3DTranspose(4, 3, padding=1, in_channels=4)), (2, 4, 5, 5, 5)),
    "computed": (Normed, (2, 16, 5, 5)),
    "tied": (tied, (2, 16, 5, 5)),
    "once": (lambda: nn.Conv2DTranspose(16, 3, in_channels=16), (2, 16, 5, 5)),
}

def gradients(net, x):
    with autograd.record():
        loss = net(x).square().sum()
    loss.backward()
    return [p.grad().asnumpy() for p in net.collect_params().values()]
"""
RIGHT = """
make, shape = KINDS[sys.argv[1]]
x = mx.nd.random.uniform(-1, 1, shape=shape)
net, wide = make(), make()
for each in (net, wide):
    each.initialize(mx.init.Uniform(0.5))
wide.cast("float64")
pairs = list(zip(net.collect_params().values(), wide.collect_params().values()))
for mine, its in pairs:
    its.set_data(mine.data().astype("float64"))
explored(lambda: net(x))
if sys.argv[2] != "imperative":
    net.hybridize(static_alloc=sys.argv[2] == "static")
gaps = []
if "3 axes" not in sys.argv[1]:
    mine = gradients(net, x)
    gaps = [float(abs(a - b).max() / abs(b).max()) for a, b in zip(mine, gradients(wide, x.astype("float64")))]
print(json.dumps([told_of_deconvolutions(), gaps]))
"""


def ran(tmp_path: Path, code: str, *words: str):
    script = tmp_path / "script.py"
    script.write_text(HEAD + code)
    return warm("mxnet").run(tmp_path, str(script), *words)


def printed(tmp_path: Path, code: str, *words: str):
    done = ran(tmp_path, code, *words)
    assert done.returncode == 0, done.stderr[-800:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", ["imperative", "hybridized", "static"])
@pytest.mark.parametrize("kind", ["twice", "twice, 1 axis", "twice, groups", "computed", "tied"])
def test_they_are_computed_in_float64_and_have_the_right_gradients(tmp_path, kind, mode):
    told, gaps = printed(tmp_path, RIGHT, kind, mode)
    assert "deconvolutions are computed in float64" in told[0] and "docs/mxnet-faults.md" in told[0]
    assert gaps and max(gaps) < 1e-5


def test_others_stay_as_they_are(tmp_path):
    told, gaps = printed(tmp_path, RIGHT, "once", "hybridized")
    assert told == [] and max(gaps) < 1e-5


def test_three_axes_are_refused(tmp_path):
    done = ran(tmp_path, RIGHT, "twice, 3 axes", "imperative")
    assert "GluontuneError: MXNet has no backward pass of three dimensions for a deconvolution" in done.stderr


def test_a_cast_of_amps_ends_nothing(tmp_path):
    code = """
from gluontune.compute import process
process._init_amp()
for name in ("once", "twice"):
    make, shape = KINDS[name]
    net, x = make(), mx.nd.random.uniform(-1, 1, shape=shape)
    net.initialize()
    explored(lambda: net(x))
    imperative = gradients(net, x)
    net.hybridize()
    assert all(np.allclose(a, b, 1e-4, 1e-4) for a, b in zip(imperative, gradients(net, x)))
    print(json.dumps(len(told_of_deconvolutions())))
assert net(mx.nd.amp_cast(x, dtype=np.dtype([("bfloat16", np.uint16)]))).dtype == np.float32
"""
    done = ran(tmp_path, code)
    assert (done.returncode, done.stdout.split()) == (0, ["0", "1"]), done.stderr[-800:]


JOB = """
import numpy as np
from mxnet import autograd, gluon, nd
nn = gluon.nn
def net():
    made = nn.HybridSequential()
    made.add(nn.Conv2D(16, 4, 2, 1, in_channels=3), nn.Conv2DTranspose(3, 4, 2, 1, in_channels=16))
    made.hybridize()
    return {"A": made}
def data():
    x = np.random.RandomState(0).uniform(-1, 1, (32, 3, 8, 8)).astype("float32")
    return gluon.data.ArrayDataset(x, x), gluon.data.ArrayDataset(x, x)
"""
STEPS = {
    "a loss": """
def step(nets, x, y):
    return gluon.loss.L2Loss()(nets["A"](nets["A"](x)), y)
""",
    "updates": """
def step(nets, x, y, trainers):
    with autograd.record():
        loss = gluon.loss.L2Loss()(nets["A"](nets["A"](x)), y)
    loss.backward()
    trainers["A"].step(len(x))
    return loss
""",
    "two passes": """
def step(nets, x, y, trainers):
    for _ in range(2):
        with autograd.record():
            loss = gluon.loss.L2Loss()(nets["A"](x), y)
        loss.backward()
        trainers["A"].step(len(x))
    return loss
""",
}
TRAINED = """
from gluontune.engines.mxnet.session import Session
from gluontune.recipe import Recipe
recipe = Recipe(job="job.py", hybridize=sys.argv[1], batch_size_per_device=8, loader="gluon", augment="none", wd=0.0)
session = Session(recipe)
session.build()
losses = [session.steps(1)["loss"] for _ in range(3)]
session.close()
print(json.dumps([session.news, losses]))
"""


@pytest.mark.parametrize("step", STEPS)
def test_a_job_trains_the_same_net_in_each_mode_and_is_told(tmp_path, step):
    (tmp_path / "job.py").write_text(JOB + STEPS[step])
    (told, losses), (_, compiled) = (printed(tmp_path, TRAINED, mode) for mode in ("imperative", "static"))
    assert losses == pytest.approx(compiled, rel=1e-6) and losses[0] > 0
    assert len([line for line in told if "float64" in line]) == (step != "two passes")


def test_who_measures_or_asks_is_told(tmp_path):
    code = """
make, shape = KINDS["twice"]
net, x = make(), mx.nd.ones(shape)
net.initialize()
found = gt.compute.check_hybridizable(net, x)
assert not found.ok and "a deconvolution's weight is computed, or used more than once" in str(found)
gt.compute.hybridize(net, x)
"""
    assert "would end the process: a deconvolution" in ran(tmp_path, code).stderr
