"""Jobs that only MXNet's arrays can express, on PyTorch's engine: the same losses, weights and metrics."""

import json
import subprocess
import sys

import pytest

import gluontune as gt

pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")

START = """
import numpy as np
from mxnet import autograd, gluon, metric as metrics, nd
draw = np.random.RandomState(7)
def halves(*arrays):
    return tuple(gluon.data.ArrayDataset(*[a[part] for a in arrays]) for part in (slice(96), slice(96, None)))
"""
JOBS = {
    "two nets": START
    + """
def data():
    return halves((draw.randn(128, 4) * 2 + 1).astype("float32"))
judge = gluon.loss.SigmoidBCELoss()
def net():
    made = {}
    for name, count in (("g", 2), ("d", 1)):
        made[name] = gluon.nn.HybridSequential()
        made[name].add(gluon.nn.Dense(16, activation="tanh"), gluon.nn.Dense(count))
    return made
def step(nets, batch, trainers=None):
    g, d = nets["g"], nets["d"]
    real, noise = batch[:, :2], batch[:, 2:]
    yes, no = nd.ones((len(batch), 1)), nd.zeros((len(batch), 1))
    if trainers is None:
        return judge(d(g(noise)), yes)
    with autograd.record():
        loss = judge(d(real), yes) + judge(d(g(noise).detach()), no)
    loss.backward()
    trainers["d"].step(len(batch))
    with autograd.record():
        loss = judge(d(g(noise)), yes)
    loss.backward()
    trainers["g"].step(len(batch))
    return loss
""",
    "states": START
    + """
def data():
    text = np.cumsum(draw.randint(0, 3, (128, 9)), 1) % 20
    return halves(text[:, :-1].astype("float32"), text[:, 1:].astype("float32"))
class Language(gluon.Block):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.words = gluon.nn.Embedding(20, 8, sparse_grad=True)
            self.lstm, self.out = gluon.rnn.LSTM(12, layout="NTC"), gluon.nn.Dense(20, flatten=False)
    def forward(self, x, state):
        seen, state = self.lstm(self.words(x), state)
        return self.out(seen), state
def net():
    return Language()
def begin(net, count):
    return net.lstm.begin_state(count)
entropy = gluon.loss.SoftmaxCrossEntropyLoss()
def step(net, x, y, state):
    scores, state = net(x, state)
    return entropy(scores, y), state
""",
    "metric": START
    + """
def data():
    x = draw.rand(128, 6).astype("float32")
    return halves(x, x[:, :3].sum(1, keepdims=True))
def net():
    made = gluon.nn.HybridSequential()
    made.add(gluon.nn.Dense(16, activation="tanh"), gluon.nn.BatchNorm(), gluon.nn.Dense(1))
    return made
def loss():
    return gluon.loss.L2Loss()
def metric():
    return metrics.MAE()
""",
}
BOTH = """
import json, sys
from gluontune.engines import ENGINES
from gluontune.recipe import Recipe
from gluontune.recipe.registry import resolve
for path in sys.argv[1:]:
    found = {}
    for backend in ("mxnet", "torch"):
        recipe = Recipe(job=path, backend=backend, loader="gluon", batch_size_per_device=16, learning_rate=0.05,
                        optimizer="nag", augment="none", seed=3)
        session = resolve(ENGINES[backend].session)(recipe)
        session.build()
        losses = [session.steps(1)["loss"] for _ in range(12)]
        found[backend] = [losses, session.validate()["metric"], session.news]
        if backend == "torch":
            found["taken"] = session._followed.moved, type(session).__name__
        session.close()
    print(json.dumps(found))
"""


def test_their_losses_and_metrics_are_those_of_mxnet(tmp_path):
    paths = []
    for name, text in JOBS.items():
        paths.append(tmp_path / f"{name}.py")
        paths[-1].write_text(text)
    done = subprocess.run([sys.executable, "-c", BOTH, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) == len(JOBS)
    for name, row in zip(JOBS, rows):
        (theirs, metric, _), (ours, same, remarks) = row["mxnet"], row["torch"]
        assert ours == pytest.approx(theirs, rel=1e-4), name
        assert ours[-1] != ours[0] and same["name"] == metric["name"]
        assert same["value"] == pytest.approx(metric["value"], rel=1e-3), name
        moved, kind = row["taken"]
        assert kind == "FollowedSession" and moved >= 12, name
        assert "PyTorch computes MXNet's steps" in remarks[0]


@pytest.fixture
def states(tmp_path):
    path = tmp_path / "states.py"
    path.write_text(JOBS["states"])
    return {
        "job": str(path), "backend": "torch", "loader": "gluon", "batch_size_per_device": 16, "optimizer": "adam",
        "learning_rate": 0.01, "augment": "none", "runtime": "tuned",
    }  # fmt: skip


@pytest.mark.slow
def test_a_resumed_run_ends_as_an_undisturbed_one(states, tmp_path):
    whole = gt.train.run(gt.Recipe(**states, epochs=2))
    assert whole.ok, whole.error
    assert any("PyTorch computes MXNet's steps" in note for note in whole.notes)
    plan = [gt.train.Checkpoints(tmp_path, resume=resume) for resume in (False, True)]
    half = gt.train.run(
        gt.Recipe(**states, epochs=2), checkpoints=plan[0], callbacks=[lambda now: now.epoch and now.stop()]
    )
    rest = gt.train.run(gt.Recipe(**states, epochs=2), checkpoints=plan[1])
    assert half.steps < rest.steps == whole.steps
    assert rest.val_loss[-1] == pytest.approx(whole.val_loss[-1], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dtype": "bfloat16"}, "in one process, in float32"),
        ({"engine": "ddp", "num_devices": 2}, "in one process, in float32"),
    ],
    ids=["bfloat16", "ranks"],
)
def test_what_only_an_exported_net_can_do_is_refused_with_the_reason(states, changes, told):
    result = gt.train.run(gt.Recipe(**{**states, **changes}))
    assert not result.ok and told in result.error["message"] and "Gluon's DataLoader" in result.error["message"]


CUSTOM = """
from mxnet import operator
class Mine(operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)
    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)
@operator.register("mine")
class Prop(operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Mine()
class Odd(gluon.loss.L2Loss):
    def forward(self, out, y):
        return super().forward(nd.Custom(out, op_type="mine"), y)
"""


def test_a_step_that_pytorch_does_not_know_is_refused_before_training(states, tmp_path):
    path = tmp_path / "odd.py"
    path.write_text(JOBS["metric"].replace("gluon.loss.L2Loss()", "Odd()").replace("def data", CUSTOM + "def data"))
    result = gt.train.run(gt.Recipe(**{**states, "job": str(path)}))
    assert not result.ok and "Custom" in result.error["message"] and "use backend='mxnet'" in result.error["message"]


def test_a_gpu_that_is_not_there_is_named(states, tmp_path):
    path = tmp_path / "metric.py"
    path.write_text(JOBS["metric"])
    result = gt.train.run(gt.Recipe(**{**states, "job": str(path), "devices": "gpu:5"}))
    assert not result.ok and "recipe field devices='gpu:5': device 'cuda:5'" in result.error["message"], result.error


SPECTRAL = """
class Normed(gluon.Block):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(1, 6))
        self.u = self.params.get("u", shape=(1, 1))
    def forward(self, x):
        w, u = self.weight.data(), self.u.data()
        v = nd.L2Normalization(nd.dot(u, w))
        u = nd.L2Normalization(nd.dot(v, w.T))
        with autograd.pause():
            self.u.set_data(u)
        return nd.FullyConnected(x, w / nd.sum(nd.dot(u, w) * v), no_bias=True, num_hidden=1)
"""


def test_a_parameter_that_is_changed_before_its_backward_pass_is_named(states, tmp_path):
    """MXNet computes with the new numbers: the spectral norm of MXNet's example sn_gan."""
    path = tmp_path / "spectral.py"
    made = JOBS["metric"].replace("made = gluon.nn.HybridSequential()", "made = gluon.nn.Sequential()")
    made = made.replace("gluon.nn.BatchNorm(), gluon.nn.Dense(1)", "gluon.nn.Dense(6), Normed()")
    path.write_text(made.replace("def data", SPECTRAL + "def data"))
    result = gt.train.run(gt.Recipe(**{**states, "job": str(path)}))
    assert not result.ok, result
    assert "normed0_u is changed between the pass that reads it and its backward pass" in result.error["message"]
