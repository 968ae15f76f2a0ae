"""Every kind of job: regression, one-hot labels, several inputs, a step of its own, recurrent state, several nets, np.

Sessions are built in this process, which costs less than a fresh one for each; what needs one has one.
"""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.engines import ENGINES
from gluontune.engines.mxnet.session import Session
from gluontune.job.job import load_module
from gluontune.job.user_file import blaming
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet
from gluontune.train import run

DATA = """
import numpy as np
import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

def points(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype("float32")
    return x, (x[:, :1] - 2 * x[:, 1:2]).astype("float32")

def classes(n, seed=0):
    x, y = points(n, seed)
    return x, (y[:, 0] > 0).astype("int64")

def dense(*units):
    net = nn.HybridSequential()
    for u in units[:-1]:
        net.add(nn.Dense(u, activation="relu"))
    net.add(nn.Dense(units[-1]))
    return net
"""

REGRESSION = """
def net(): return dense(16, 1)
def data(): return gluon.data.ArrayDataset(*points(512)), gluon.data.ArrayDataset(*points(96, 1))
def loss(): return gluon.loss.L2Loss()
"""

RAGGED = """
def texts(n):
    rng = np.random.default_rng(n)
    return [(rng.integers(1, 20, 1 + i % 7).astype("float32"), np.float32(i % 2)) for i in range(n)]
def net():
    net = nn.HybridSequential()
    net.add(nn.Embedding(20, 8), nn.HybridLambda(lambda F, x: x.max(axis=1)), nn.Dense(2))
    return net
def data(): return texts(64), texts(40)
"""

PADDED = """
def batchify(samples):
    longest = max(len(words) for words, _ in samples)
    words = np.stack([np.pad(words, (0, longest - len(words))) for words, _ in samples])
    return nd.array(words), nd.array([label for _, label in samples])
"""

ONE_HOT = """
def net(): return dense(16, 2)
def data():
    def part(n, seed):
        x, y = classes(n, seed)
        return gluon.data.ArrayDataset(x, np.eye(2, dtype="float32")[y])
    return part(512, 0), part(96, 1)
def loss(): return gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)
"""

TWO_INPUTS = """
class Two(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out, self.aux = nn.Dense(8), nn.Dense(8), nn.Dense(2), nn.Dense(2)
    def hybrid_forward(self, F, a, b):
        h = F.relu(self.a(a) + self.b(b))
        return self.out(h), self.aux(h)
class Both(gluon.loss.SoftmaxCrossEntropyLoss):
    def forward(self, outputs, label):
        return super().forward(outputs[0], label) + 0.3 * super().forward(outputs[1], label)
def net(): return Two()
def data():
    def part(n, seed):
        x, y = classes(n, seed)
        return gluon.data.ArrayDataset(x[:, :3], x[:, 3:], y)
    return part(512, 0), part(96, 1)
def loss(): return Both()
"""

OWN_STEP = """
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
def net(): return dense(16, 2)
def data(): return gluon.data.ArrayDataset(*classes(512)), gluon.data.ArrayDataset(*classes(96, 1))
def step(net, x, y):
    out = net(x * 0.5)
    return LOSS(out, y), out
"""

RECURRENT = """
VOCABULARY, WIDTH = 12, 5
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
class Words(gluon.Block):
    def __init__(self):
        super().__init__()
        self.encode, self.rnn = nn.Embedding(VOCABULARY, 8), gluon.rnn.LSTM(16, input_size=8)
        self.decode = nn.Dense(VOCABULARY, flatten=False)
    def forward(self, x, hidden):
        out, hidden = self.rnn(self.encode(x), hidden)
        return self.decode(out), hidden
def net(): return Words()
def data():
    def part(n):
        text = (np.arange(n * WIDTH + 1) * 5 % VOCABULARY).astype("float32")
        return gluon.data.ArrayDataset(text[:-1].reshape(n, WIDTH), text[1:].reshape(n, WIDTH))
    return part(320), part(64)
def begin(net, batch_size): return net.rnn.begin_state(batch_size)
def step(net, x, y, state):
    out, state = net(x.T, state)
    return LOSS(out, y.T.expand_dims(2)).mean() + nd.zeros(x.shape[0]), state
"""

GAN = """
LOSS = gluon.loss.SigmoidBinaryCrossEntropyLoss()
def net(): return {"generator": dense(16, 6), "judge": judge()}
def judge():
    net = nn.HybridSequential()
    net.add(nn.Dense(16), nn.BatchNorm(), nn.LeakyReLU(0.2), nn.Dense(1))
    return net
def data():
    def real(n):
        return gluon.data.SimpleDataset(list(1 + 0.1 * np.random.default_rng(n).normal(size=(n, 6)).astype("float32")))
    return real(256), real(64)
def step(nets, real, trainers):
    n = real.shape[0]
    noise = nd.random.normal(shape=(n, 4))
    with autograd.record():
        fake = nets["generator"](noise)
        bad = LOSS(nets["judge"](real), nd.ones(n)) + LOSS(nets["judge"](fake.detach()), nd.zeros(n))
    bad.backward()
    trainers["judge"].step(n)
    with autograd.record():
        good = LOSS(nets["judge"](nets["generator"](noise)), nd.ones(n))
    good.backward()
    trainers["generator"].step(n)
    return bad + good
"""


@pytest.fixture
def write(tmp_path):
    def made(text, head=DATA):
        path = tmp_path / "job.py"
        path.write_text(head + text)
        return str(path)

    return made


BASE = Recipe(batch_size_per_device=32, optimizer="adam", learning_rate=0.01, lr_scaling="none", wd=0.0, epochs=2)


@contextlib.contextmanager
def session(job, **changes):
    made = Session(BASE.override(job=job, **changes))
    try:
        made.build()
        yield made
    finally:
        made.close()


def trained(made, epochs=2):
    """Losses of the first and the last epoch, and the last validation."""
    losses = [made.steps(made.batches_per_epoch)["loss"] for _ in range(epochs)]
    return losses[0], losses[-1], made.validate()


def test_regression_shows_its_loss_and_no_accuracy(write, reused):
    result = run(BASE.override(job=write(REGRESSION)), site=reused.site)
    assert result.ok, result.error
    assert result.val_accuracy == [] and result.val_metric["name"] == "loss"
    assert result.val_metric["mode"] == "min" and result.val_metric["samples"] == 96
    assert result.val_metric["values"] == pytest.approx(result.val_loss)
    assert result.val_loss[1] < result.val_loss[0]
    target = (result.val_loss[0] + result.val_loss[1]) / 2
    early = run(BASE.override(job=write(REGRESSION), epochs=6, target_accuracy=target), site=reused.site)
    assert early.ok and len(early.val_loss) == 2  # reached by falling below


def test_a_metric_of_the_jobs_own_has_a_name_and_a_direction(write):
    with session(write(REGRESSION + "def metric(): return mx.metric.MSE()\n")) as made:
        _, _, seen = trained(made)
        assert seen["metric"]["name"] == "mse" and seen["metric"]["mode"] == "min" and seen["accuracy"] is None
        assert 0.5 * seen["metric"]["value"] == pytest.approx(seen["loss"], rel=1e-4)
    own = (
        REGRESSION + "def metric(): return mx.metric.CustomMetric(lambda y, o: float(abs(y - o).max()), name='worst')\n"
    )
    with pytest.raises(GluontuneError, match=r"job.py:\d+: .*worst.*metric_mode"), session(write(own)):
        pass
    with session(write(own + "metric_mode = 'min'\n")) as made:
        assert made.validate()["metric"]["mode"] == "min"


def test_one_hot_labels_train_and_validate(write):
    with session(write(ONE_HOT)) as made:
        first, last, seen = trained(made, 4)
        assert last < first and seen["accuracy"] > 0.8
        output = made.work.net(mxnet().nd.array(made.work.job.val._data[0])).asnumpy().argmax(1)
        assert seen["accuracy"] == pytest.approx(np.mean(output == made.work.job.val._data[1].argmax(1)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ONE_HOT.replace("sparse_label=False", ""), ["one-hot", "sparse_label=False", "(32, 2)"]),
        (OWN_STEP.replace("x * 0.5", "x.reshape((4, -1))"), ["step()", "(32, 6) float32, (32,) int64"]),
        (REGRESSION.replace("points(512)", "(a.astype('float64') for a in points(512))"), ["float64", "astype"]),
        (REGRESSION.replace("L2Loss()", "L2Loss(batch_axis=1)"), ["loss", "(1,)", "one value per sample, (32,)"]),
        (TWO_INPUTS.replace("x[:, :3], x[:, 3:], y", "x, y"),
         ["net failed", "(2, 6)", "'b'", "data() gives (input, …, label)"]),
        (RECURRENT.replace("def begin", "def start"), ["step() takes a state", "def begin"]),
        (RECURRENT.replace(", state):\n    out", "):\n    state = None\n    out"), ["must take it", "state"]),
        (RECURRENT.replace(", state\n", "\n"), ["step() must return (loss, state)"]),
        (GAN.replace("def step", "def stride"), ["ndarray of shape (6,)", "define step(net, *batch)"]),
        (OWN_STEP.replace("dense(16, 2)", "{'a': dense(2), 'b': dense(2)}").replace("def step", "def stride"),
         ["a, b", "def step(nets, *batch)"]),
        (GAN.replace('return {"generator": dense(16, 6)', 'return {"generator": 3'), ["'generator'", "int", "Block"]),
        (OWN_STEP + "def metric(): return 3\n", ["metric()", "int", "EvalMetric"]),
        (OWN_STEP.replace("LOSS(out, y), out", "LOSS(out, y)") + "def metric(): return mx.metric.F1()\n",
         ["step()", "(loss, output)"]),
        (REGRESSION.replace("*points(96, 1)", "points(96, 1)[0][:, :5], points(96, 1)[1]"),
         ["validation batch", "(32, 5)"]),
        (REGRESSION + "def metric(): return mx.metric.F1()\n", ["metric", "output (32, 1) float32"]),
        (REGRESSION.replace("*points(512)", "points(512)[0].astype('uint8'), points(512)[1]"), ["uint8", "astype"]),
        (RAGGED, ["different shapes", "sample 0 of data() has ((1,), ())", "batchify(samples)"]),
        (RAGGED.replace("def data(): return texts(64), texts(40)", "def data(): return [iter(())] * 2"),
         ["own batches: batchify(samples)"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_before_anything_is_timed(write, text, words):
    with pytest.raises(GluontuneError) as caught, session(write(text)):
        pass
    told = str(caught.value)
    assert "job.py:" in told and "\n" not in told
    assert all(word in told for word in words), told


@pytest.mark.parametrize("more", [{}, {"loader": "resident"}, {"num_workers": 1}])
def test_samples_of_many_lengths_become_the_batches_of_the_jobs_own_function(write, more):
    with session(write(RAGGED + PADDED), **more) as made:
        first, last, seen = trained(made, 4)
        assert last < first and seen["samples"] == 40


GATED = """
class Net(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.gate, self.body, self.out = nn.Dense(2), nn.Dense(16, activation="relu"), nn.Dense(2)
    def hybrid_forward(self, F, x):
        gate = self.gate(x)
        return self.out(self.body(x)) * gate
def net(): return Net()
""" + OWN_STEP.replace("def net(): return dense(16, 2)\n", "")


@pytest.mark.parametrize("mode", ["hybridized", "static"])
def test_a_step_of_the_jobs_own_starts_from_the_same_values_in_each_mode(write, mode):
    """Compiled, Gluon draws the first values by the graph, from its end; else in the order of calls."""
    with session(write(GATED)) as plain, session(write(GATED), hybridize=mode) as compiled:
        assert plain.steps(5)["loss"] == pytest.approx(compiled.steps(5)["loss"], rel=1e-6)
        assert compiled.work.nets._active


TWO_MAPS = """
class Two(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2D(4, 3), nn.Conv2D(4, 3)
        self.pool, self.out = nn.GlobalAvgPool2D(), nn.Dense(2)
    def hybrid_forward(self, F, a, b): return self.out(self.pool(self.a(a) * self.b(b)))
def net(): return Two()
def data():
    def part(n, seed):
        x = np.random.default_rng(seed).normal(size=(n, 2, 1, 6, 6)).astype("float32")
        return gluon.data.ArrayDataset(x[:, 0], x[:, 1], (x.mean(axis=(1, 2, 3, 4)) > 0).astype("int64"))
    return part(128, 0), part(64, 1)
"""


def test_a_net_of_several_inputs_is_rewritten_and_trains_to_the_same_losses(write):
    job, losses = write(TWO_MAPS), []
    for names in ((), ("pool-to-mean",)):
        with session(job, hybridize="static", rewrites=names) as made:
            assert made.work.rewrites == ["pool-to-mean", "pad-channels"]
            assert (type(made.work.net.pool) is mxnet().gluon.nn.GlobalAvgPool2D) == (not names)
            losses.append(trained(made)[1])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_several_inputs_and_several_outputs(write):
    with session(write(TWO_INPUTS), hybridize="static") as made:
        first, last, seen = trained(made, 3)
        assert last < first and math.isfinite(seen["loss"]) and seen["accuracy"] is None
    score = "lambda y, o: float((o.argmax(1) == y).mean()), name='accuracy of both', allow_extra_outputs=True"
    with session(write(TWO_INPUTS + f"def metric(): return mx.metric.CustomMetric({score})\n")) as made:
        assert made.validate()["metric"]["mode"] == "max"


def test_a_step_of_the_jobs_own(write):
    with session(write(OWN_STEP), hybridize="hybridized") as made:
        first, last, seen = trained(made, 4)
        assert last < first and seen["metric"]["name"] == "accuracy" and seen["accuracy"] > 0.8
    with pytest.raises(UsageError, match=r"rewrites=.*step\(\)"), session(write(OWN_STEP), rewrites=["pool-to-mean"]):
        pass


def test_recurrent_state_is_carried_and_begun_anew(write):
    with session(write(RECURRENT)) as made:
        assert made.batches_per_epoch == 10
        batch = made.progress.next_batch()  # row j goes on where it ended
        after = made.progress.next_batch()
        assert (batch[1].asnumpy()[:, -1] == after[0].asnumpy()[:, 0]).all()
        made.steps(1)
        held = list(made.training_step.state_dict()[1].values())
        assert len(held) == 2 and np.abs(held[0]).max() > 0
        made.training_step.begin(True)
        made.steps(1)
        assert made.training_step.state_dict()[0] == {"state_parts": [32]}
        first, last, seen = trained(made, 3)
        assert last < first and seen["metric"]["name"] == "loss"


def test_several_nets_update_themselves_and_validation_changes_nothing(write):
    with session(write(GAN)) as made:
        names = ["generator", "judge"]
        assert list(made.optimization.trainers) == names and made.training_step.updates
        values = lambda: {n: p.data().asnumpy() for n, p in made.work.net.collect_params().items()}  # noqa: E731
        start = values()
        assert all((start[n] == made.work.initial[n]).all() for n in start)  # the trial has left no trace
        moving = [n for n in start if n.endswith("running_var")]
        assert moving and (start[moving[0]] == 1).all()
        made.steps(3)
        now = values()
        assert all((now[n] != start[n]).any() for n in now if n.endswith("weight"))
        made.validate()
        again = values()
        assert all((again[n] == now[n]).all() for n in now)
        assert [t.num_update for t in made.optimization.trainers.values()] == [3, 3]
    for field, value in (("accumulate", 2), ("engine", "kvstore")):
        with (
            pytest.raises(GluontuneError, match=rf"{field}="),
            session(write(GAN), **{field: value, "devices": "auto"}),
        ):
            pass


def test_a_checkpoint_holds_state_and_all_trainers(write):
    for text in (RECURRENT, GAN):
        with session(write(text)) as made:
            made.steps(3)
            header, arrays = made.state_dict()
            before = [p.data().asnumpy() for p in made.work.net.collect_params().values()]
            held = list(made.training_step.state_dict()[1].values())
            made.seed()
            want = made.steps(2)["loss"]
            made.reset()
            made.load_state_dict(header, arrays, "x.ckpt")
            assert all((a == p.data().asnumpy()).all() for a, p in zip(before, made.work.net.collect_params().values()))
            assert all((a == b).all() for a, b in zip(held, made.training_step.state_dict()[1].values()))
            made.progress.close()
            made.seed()
            assert made.steps(2)["loss"] == pytest.approx(want, rel=1e-5)


def test_a_recurrent_layer_of_mx_np_that_mxnet_cannot_compile_is_told_with_the_way_out(write):
    net = """
class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.layer, self.out = gluon.rnn.LSTM(4), nn.Dense(1)
    def hybrid_forward(self, F, x): return self.out(F.np.squeeze(self.layer(F.np.expand_dims(x, 0)), 0))
"""
    head = DATA.replace("import numpy as np\n", "import numpy as np\nfrom mxnet import npx\nnpx.set_np()\n", 1)
    path = write(net + REGRESSION.replace("return dense(16, 1)", "return Net()"), head)
    try:
        with session(path) as made:
            assert math.isfinite(made.steps(1)["loss"])
        told = r"begin_state\(batch\), or use hybridize='imperative'"
        with pytest.raises(GluontuneError, match=told), session(path, hybridize="hybridized") as made:
            made.steps(1)
    finally:
        mxnet().npx.reset_np()


def test_a_net_of_mx_np_is_first_class(write):
    head = DATA.replace(
        "from mxnet.gluon import nn\n", "from mxnet.gluon import nn\nfrom mxnet import npx\nnpx.set_np()\n"
    )
    try:
        for text in (REGRESSION, ONE_HOT, OWN_STEP):
            with session(write(text, head), hybridize="static") as made:
                first, last, _ = trained(made, 3)
                assert last < first
        image = "def net():\n    n = nn.HybridSequential()\n    n.add(nn.Conv2D(8, 3), nn.GlobalAvgPool2D())\n"
        image += "    n.add(nn.Dense(10))\n    return n\n"
        for loader in ("gluon", "resident"):
            options = {"dataset": "sample", "train_samples": 64, "val_samples": 32, "loader": loader}
            with session(write(image, head), **options) as made:
                assert made.validate()["metric"]["name"] == "accuracy" and math.isfinite(made.steps(2)["loss"])
    finally:
        mxnet().npx.reset_np()


def test_a_script_sees_its_own_arguments(write, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gluontune", "doctor", "--job", "job.py"])
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--rate', default=3)\n{}\ndef net(): pass\n"
    module = load_module(write(text.format("opt = p.parse_args()")))
    assert module.opt.rate == 3 and sys.argv[1] == "doctor"
    with pytest.raises(GluontuneError, match=r"job.py:\d+: the file ends itself \(exit code 2\).*__main__"):
        load_module(write(text.format("p.add_argument('must'); p.parse_args()")))
    training = (
        OWN_STEP + "n = net(); n.initialize(); n(nd.ones((1, 6)))\nt = gluon.Trainer(n.collect_params(), 'sgd')\n"
    )
    with pytest.raises(GluontuneError, match=r"job.py:\d+: the file trains while it is imported"):
        load_module(write(training + "t.step(1)\n"))
    assert load_module(write(training + "if __name__ == '__main__':\n    t.step(1)\n")).t is not None


def test_a_script_that_holds_its_net_ready(write):
    with session(write("net = dense(16, 1)\nloss = gluon.loss.L2Loss()\n" + REGRESSION.split("\n")[2] + "\n")) as made:
        assert made.validate()["metric"]["name"] == "loss"


def test_rungs_that_make_no_sense_for_a_job_say_why(write):
    from gluontune.search.rung import Site
    from gluontune.search.rungs import RUNGS

    with session(write(GAN)) as made:
        ready = made.site()
        site = Site.of({**ready, "num_train": 10**6}, {}, made.recipe)
        assert site.step == "updates" and site.metric == "loss"
        assert set(made.capabilities()) == set(ENGINES["mxnet"].commands)
    why = {name: RUNGS[name].requires(made.recipe, site) for name in RUNGS.names()}
    assert "its own updates" in why["large-batch"] and "its own updates" in why["multi-device"]
    assert why["records"] is None
    (kept,) = RUNGS["records"].variants(made.recipe, site)
    assert kept.changes == {"loader": "resident", "num_workers": 0}
    for changes, words in ({"steady": False}, "random transforms"), ({"fits_memory": False}, "fit in memory"):
        assert words in RUNGS["records"].requires(made.recipe, replace(site, **changes))
    assert why["hybridized"] is None and why["multi-worker"] is None
    with session(write(REGRESSION)) as made:
        site = Site.of({**made.site(), "num_train": 10**6}, {}, made.recipe)
    assert "measures loss" in RUNGS["large-batch"].requires(made.recipe, site)


RESIZED = """
def net(): return dense(16, 2)
def data():
    def part(n, seed):
        x, y = classes(n, seed)
        return gluon.data.ArrayDataset(x, y).transform_first(lambda row: {transform})
    return part(128, 0), part(32, 1)
"""


def test_samples_of_gluon_data_are_kept_and_train_to_the_same_weights(write):
    ended = {}
    for loader in ("gluon", "resident"):
        with session(write(RESIZED.format(transform="nd.array(row) * 0.5")), loader=loader) as made:
            assert made.site()["steady"] and made.site()["image_bytes"] == 6 * 4 + 8
            made.reset()
            made.steps(4)
            made.context.mx.nd.waitall()
            ended[loader] = [p.data().asnumpy() for p in made.work.net.collect_params().values()]
    assert all(np.array_equal(a, b) for a, b in zip(ended["gluon"], ended["resident"]))


def test_samples_that_are_drawn_anew_are_never_kept(write):
    job = write(RESIZED.format(transform="nd.array(row) * np.random.rand()"))
    with session(job) as made:
        assert not made.site()["steady"]
    with (
        pytest.raises(UsageError, match=r"loader='resident': .*job\.py:\d+: sample 0 .*random transforms"),
        session(job, loader="resident"),
    ):
        pass


SYMBOLIC = """
def net():
    norm = mx.sym.BatchNorm(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2, name="dense"), name="norm")
    return gluon.SymbolBlock(norm, mx.sym.var("x"))
def data(): return gluon.data.ArrayDataset(*classes(64)), gluon.data.ArrayDataset(*classes(32, 1))
"""


def test_a_net_made_of_a_symbol_gets_its_first_values(write):
    with session(write(SYMBOLIC)) as made:  # gluon-cv's SSD is one: Xavier's rule alone refuses its BatchNorms
        values = {p.name: p.data().asnumpy() for p in made.work.net.collect_params().values()}
    assert values["norm_gamma"].tolist() == values["norm_moving_var"].tolist() == [1, 1]
    assert values["norm_beta"].tolist() == values["dense_bias"].tolist() == [0, 0]
    assert len(np.unique(values["dense_weight"])) == 12


def test_a_time_to_accuracy_needs_an_accuracy():
    from gluontune.recipe.result import RunResult
    from gluontune.search.time_to_target import accuracies

    metric = {"name": "rmse", "mode": "min", "values": [1.0]}
    with pytest.raises(GluontuneError, match="measures rmse"):
        accuracies(RunResult(recipe={"job": "job.py"}, val_metric=metric))


def test_debug_shows_where_in_its_process_a_run_failed(write, capfd):
    from gluontune.cli.main import main

    fails = "COUNT = []\n" + OWN_STEP.replace("    out =", "    COUNT.append(1); out = 3 if len(COUNT) > 6 else", 1)
    flags = ["train", "--job", write(fails), "--epochs", "1"]
    assert main([*flags, "--debug"]) == 1
    err = capfd.readouterr().err
    assert "Traceback (most recent call last)" in err and "in step" in err
    assert "(while training)" in err.splitlines()[-1] and "job.py:" in err.splitlines()[-1]
    assert main(flags) == 1
    assert "Traceback" not in capfd.readouterr().err


def test_the_doctor_says_what_does_not_fit_before_anything_trains(write, capfd):
    from gluontune.cli.main import main

    assert main(["doctor", "--job", write(ONE_HOT.replace("sparse_label=False", ""))]) == 1
    err = capfd.readouterr().err
    assert "job.py:" in err and "sparse_label=False" in err and "Traceback" not in err


def test_scores_of_bfloat16_are_those_of_the_same_numbers():
    """What AMP's nets give on a CPU with bfloat16: numpy has no such type, and MXNet's metrics ask numpy."""
    from types import SimpleNamespace

    from gluontune.compute._blocks import bfloat16
    from gluontune.job.batches import Outcome, make_score
    from gluontune.job.job import Job
    from gluontune.runtime import mxnet

    mx = mxnet()
    scores = mx.nd.array([[9, 0, 1], [8, 1, 3], [1, 2, 5], [4, 3, 2]])
    loss, label = mx.gluon.loss.SoftmaxCrossEntropyLoss(), mx.nd.array([0, 1, 2, 0])
    own = SimpleNamespace(metric=lambda: mx.metric.Accuracy())
    for job in (Job(net=None, loss=None, classes=3), Job(net=None, loss=None, module=own)):
        for output in (scores, mx.nd.amp_cast(scores, dtype=bfloat16)):
            one = Outcome(loss=loss(scores, label), output=output, label=label)
            score = make_score(job, loss, one)
            score.update(one)
            assert (score.name, score.value()) == ("accuracy", 0.75)


def test_a_known_error_has_its_own_way_out_in_place_of_a_guess():
    def told(text):
        with pytest.raises(GluontuneError) as caught, blaming(None, "the net", None, "a batch of (2, 3)", " (a guess)"):
            raise ValueError(text)
        return str(caught.value)

    assert told("odd") == "the net failed for a batch of (2, 3) (a guess): ValueError: odd"
    known = told("could not construct a sub-memory")
    assert "MXNET_MKLDNN_ENABLED=0" in known and "guess" not in known
