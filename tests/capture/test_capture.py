"""What scripts compute in a step: recorded, explained and proven in float64."""

from __future__ import annotations

import json
import types

import numpy as np
import pytest
from small_scripts import SCRIPTS, script
from warm_python import warm

import gluontune as gt
from gluontune.capture import api, capturing
from gluontune.capture.api import summary
from gluontune.capture.proof import Gaps
from gluontune.capture.recorder import PATIENCE
from gluontune.capture.script import Program
from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError, UsageError

pytestmark = [pytest.mark.mxnet, pytest.mark.process]


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    found = {}

    def capture(name):
        if name not in found:
            folder = tmp_path_factory.mktemp("capture")
            (folder / "train.py").write_text(script(name))
            options = json.dumps({"out": str(folder / "found.json"), "steps": 4})
            done = warm("cv2", "torch").run(folder, "-m", "gluontune.capture.capturing", options, "train.py")
            assert done.returncode == 0, done.stderr
            found[name] = json.loads((folder / "found.json").read_text())
        return found[name]

    return capture


#: A net of 16 MB, with 40 MB of activations that no backward pass goes through; it notes what memory MXNet takes,
#: and copies.
LARGE = """
import json, psutil, tracemalloc
from mxnet import autograd, gluon, nd
net = gluon.nn.Dense(2000, in_units=2000)
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.001, "momentum": 0.9})
factor = nd.ones((1,))
factor.attach_grad()
taken, copies = [], []
tracemalloc.start()
for x in gluon.data.DataLoader(nd.random.normal(shape=(80, 2000)), 4):
    with autograd.record():
        aside = nd.ones((250, 1000)) * factor
        for _ in range(40):
            aside = aside * 0.99
        loss = net(x).square().mean()
    loss.backward()
    trainer.step(1)
    copies.append(tracemalloc.get_traced_memory()[0] / 1e6)
    taken.append(psutil.Process().memory_info().rss / 1e6 - copies[-1])
    json.dump([taken, copies], open("taken.json", "w"))
"""


@pytest.mark.slow
def test_a_captured_script_has_the_arrays_of_a_step_at_a_time(tmp_path):
    """Copies of ten steps would be 640 MB; the activations of the first updates, which are one step, 200 MB."""
    (tmp_path / "train.py").write_text(LARGE)
    found = gt.capture.capture([str(tmp_path / "train.py")], steps=14, cwd=str(tmp_path))
    assert found["refused"] is None and found["steps"] == 14
    taken, copies = json.loads((tmp_path / "taken.json").read_text())
    assert taken[PATIENCE - 1] - taken[0] < 100  # one step so far: nothing was proven
    assert copies[-1] - copies[PATIENCE + 3] < 200


def test_where_no_number_of_steps_is_asked_for_two_are_enough_when_time_is_up(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(script("normalized"))
    monkeypatch.setitem(api._QUICKLY, "seconds", 0.0)
    found = gt.capture.capture([str(tmp_path / "train.py")])
    assert found["refused"] is None and found["steps"] == 2


def test_what_follows_from_a_tape_that_is_used_up_leaves_no_step_open(tmp_path):
    text = script("normalized").replace("loss = cross", "shown = nd.softmax(out * 2); loss = cross")
    assert "shown" in text
    (tmp_path / "train.py").write_text(text)
    found = gt.capture.capture([str(tmp_path / "train.py")], steps=3)
    assert found["refused"] is None and found["steps"] == 3
    assert len(found["trainers"][0]["learning_rates"]) == 3


def sources(found):
    return [leaf["source"] for leaf in found["kinds"][-1]["leaves"]]


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_pytorch_computes_a_scripts_steps_in_float64(name, captured):
    found = captured(name)
    assert found["refused"] is None
    assert found["steps"] == 4
    assert max(found["gaps_float64"].values()) < 1e-10 and found["steps_float64"] == 4
    assert max(found["gaps_of_the_script"].values()) < 1e-3
    assert found["kinds"][-1]["steps"] >= 2


def test_float64_ends_with_its_seconds_but_for_new_structures_and_rounding(tmp_path, monkeypatch):
    monkeypatch.setattr(capturing, "_EXACT_S", 0.0)
    monkeypatch.setattr(capturing, "program_of", lambda step, _: step)
    exact, rounding = Gaps(1e-12, 1e-12, 1e-12), Gaps(1.0, 1e-6, 1e-6)
    monkeypatch.setattr(capturing, "gaps_of_the_script", lambda step: step.gaps)
    monkeypatch.setattr(capturing, "gaps_in_float64", lambda mx, step: exact)
    monkeypatch.setattr(capturing, "let_go", lambda *_: None)
    seen = capturing.Capturing({"steps": 9}, Program("train.py", ()))
    seen.mx = types.SimpleNamespace(MXNetError=RuntimeError)
    counts = []
    for key, gaps in (("a", exact), ("a", exact), ("b", exact), ("a", rounding), ("b", exact)):
        step = types.SimpleNamespace(key=key, gaps=gaps, unknown=[], updates=[], values={})
        seen._take(step, None)
        counts.append(len(seen.gaps))
    assert counts == [1, 1, 2, 3, 3] and len(seen.script) == 5
    step = types.SimpleNamespace(key="a", gaps=rounding, unknown=[], updates=[], values={})
    seen.finished(step)
    with pytest.raises(capturing._Enough):  # each step would take as long
        seen.finished(step)


def test_leaves_have_sources(captured):
    assert {"parameter", "batch", "state"} <= set(sources(captured("normalized")))  # momentum
    assert sources(captured("recurrent")).count("state") == 2  # the LSTM's
    assert sources(captured("recurrent")).count("script") == 2  # rows of text
    assert "variable" in sources(captured("by hand"))


def test_trainers_are_told_with_their_rates(captured):
    first, second = captured("adversaries")["trainers"]
    assert first["optimizer"] == second["optimizer"] == "adam"
    assert first["parameters"] != second["parameters"]
    assert first["learning_rates"] == [0.01] * 4
    assert first["line"].startswith("train.py:")
    assert "adam on 2 parameters, rate 0.01, gradients ÷ 16" in summary(captured("adversaries"))[0]


def test_a_step_that_cannot_be_proven_is_refused_with_its_line(tmp_path, capfd):
    text = script("by hand").replace("nd.log_softmax(out)", "Own()(out)").replace("w, b = nd", """
class Own(autograd.Function):
    def forward(self, x):
        return nd.log_softmax(x)
    def backward(self, dy):
        return dy
w, b = nd""", 1)  # fmt: skip
    (tmp_path / "train.py").write_text(text)
    assert main(["capture", "--steps", "3", "--json", str(tmp_path / "train.py")]) == 1
    found = json.loads(capfd.readouterr().out)
    line = 1 + next(at for at, line in enumerate(text.splitlines()) if "Own()(out)" in line)
    assert found["refused"] == f"train.py:{line}: autograd.Function Own cannot be put into a graph"


def test_scripts_that_do_not_train_are_errors(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        gt.capture.capture([str(tmp_path / "no.py")])
    (tmp_path / "dies.py").write_text("raise ValueError('mine')")
    with pytest.raises(GluontuneError, match=r"dies\.py: ended before a training step: .*mine"):
        gt.capture.capture([str(tmp_path / "dies.py")])
    (tmp_path / "long.py").write_text("import time; time.sleep(60)")
    with pytest.raises(GluontuneError, match=r"no 20 training steps in 2 s"):
        gt.capture.capture([str(tmp_path / "long.py")], time_limit=2)


def test_a_script_that_imports_mxnet_through_gluontune_is_seen(tmp_path):
    text = script("by hand").replace(
        "import mxnet as mx, numpy as np", "import gluontune as gt, numpy as np\nmx = gt.runtime.mxnet()"
    )
    (tmp_path / "train.py").write_text(text)
    assert gt.capture.capture([str(tmp_path / "train.py")], steps=3)["steps"] == 3


def test_a_copy_into_another_type_converts(tmp_path):
    rows = "nd.broadcast_mul(nd.log_softmax(out), nd.array([[1, 0, 2, 0]], dtype='int32').astype('float32'))"
    (tmp_path / "train.py").write_text(script("by hand").replace("nd.pick(nd.log_softmax(out), y)", rows))
    found = gt.capture.capture([str(tmp_path / "train.py")], steps=3)
    assert found["refused"] is None
    assert found["kinds"][0]["operators"]["Cast"] == 1


def test_a_batch_that_a_script_counts_as_an_array_is_a_number_in_the_document():
    told = {"line": "train.py:3", "optimizer": "adam", "parameters": ["w"]}
    updates = [{**told, "learning_rate": np.float32(0.5), "batch_size": np.array(count)} for count in (640.0, 600.0)]
    found = json.loads(json.dumps(capturing._trainers(updates)))
    assert found == [{**told, "learning_rates": [0.5, 0.5], "batch_size": 640.0}]


@pytest.mark.parametrize("change", ["w.data()[:] = w.data() - 0.01 * w.grad()", "w.data()[:] -= 0.01 * w.grad()"])
def test_parameters_that_a_script_writes_by_hand_end_a_step(change, tmp_path):
    """There is neither a trainer nor a batch; first weights that are set are no step."""
    (tmp_path / "train.py").write_text(f"""
from mxnet import autograd, gluon, nd
x, y = nd.random.normal(shape=(4, 6)), nd.random.normal(shape=(4, 1))
net = gluon.nn.Dense(1, in_units=6)
net.initialize()
net.weight.set_data(nd.ones((1, 6)))
for epoch in range(5):
    with autograd.record():
        loss = (net(x) - y) ** 2
    loss.backward()
    for w in net.collect_params().values():
        {change}
""")
    found = gt.capture.capture([str(tmp_path / "train.py")], steps=4)
    assert found["refused"] is None and found["steps"] == 4
    assert max(found["gaps_float64"].values()) < 1e-12
