"""Whole scripts as projects: written, run without mxnet and gluontune, and found wrong where they are changed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_scripts import script
from warm_python import warm

from gluontune.capture.api import check, migrate_script
from gluontune.cli.main import main
from gluontune.core.errors import GluontuneError
from gluontune.job.user_file import trains

pytestmark = [pytest.mark.mxnet, pytest.mark.process]


@pytest.fixture(scope="module")
def migrated(tmp_path_factory):
    found = {}

    def migrate(name):
        if name not in found:
            folder = tmp_path_factory.mktemp("script")
            (folder / "train.py").write_text(script(name))
            found[name] = migrate_script([str(folder / "train.py")], folder / "torch", time_limit=300)
        return found[name]

    return migrate


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("by hand", "compiled")]  # steps: see test_capture.py


@pytest.mark.parametrize("name", ["normalized", "adversaries", "recurrent", "gathered", "numpy", *SLOW])
def test_a_script_becomes_a_project_that_agrees(name, migrated):
    made = migrated(name)
    assert made.told.endswith("\nagrees")
    assert made.steps >= 3
    greatest = float(re.search(r"float64, losses and new parameters: greatest difference (\S+)", made.told)[1])
    assert greatest < 1e-10
    ruff = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=made.path, capture_output=True, text=True)
    assert ruff.returncode == 0, ruff.stdout


def test_the_project_reads_as_the_script_does(migrated):
    text = Path(migrated("normalized").path, "train.py").read_text()
    assert "self.net = build_net()" in text
    assert "clip_global_norm(model.parameters(), 20.0)" in text
    assert 'trainers["trainer"].step(len(data))' in text
    assert '"momentum": 0.9' in text
    adversaries = Path(migrated("adversaries").path, "train.py").read_text()
    assert adversaries.count(".backward(") == 2
    assert "self.judge = build_judge()" in adversaries
    gathered = Path(migrated("gathered").path, "train.py").read_text()
    assert gathered.count("model.zero_grad()") == 1  # after the update, as in the script: gradients are added
    names = json.loads(Path(migrated("normalized").path, "names.json").read_text())
    assert "net.1.running_var" in names


def test_the_project_trains_alone_on_the_scripts_samples(migrated):
    place = migrated("normalized").path
    told = warm("torch").run(place, "train.py", "--epochs", "2")
    assert told.returncode == 0, told.stderr
    losses = [float(number) for number in re.findall(r"losses \[(.+)\]", told.stdout)]
    assert len(losses) == 2 and losses[1] < losses[0]
    with np.load(Path(place, "data.npz")) as stored:
        assert len(stored["data"]) == len(stored["label"]) == 96
    assert migrated("normalized").by_hand == ()
    assert "batches come from the script (train.py:" in migrated("recurrent").by_hand[0]
    assert "# BY HAND: batches come from the script" in Path(migrated("recurrent").path, "data.py").read_text()


@pytest.mark.parametrize(
    ("name", "file", "before", "after"),
    [
        ("normalized", "train.py", "return 0.05", "return 0.051"),
        ("normalized", "train.py", "20.0)", "2.0)"),
        ("adversaries", "train.py", "loss2.sum()", "loss.sum()"),
        ("recurrent", "train.py", "return [loss], [state3.detach(), state4.detach()]",
         "return [loss], [state4.detach(), state3.detach()]"),
        ("numpy", "model.py", "torch.tanh(", "torch.relu("),
        ("numpy", "train.py", "corrected=True", "corrected=False"),
    ],
)  # fmt: skip
def test_a_project_that_computes_something_else_is_found_out(name, file, before, after, migrated):
    path = Path(migrated(name).path, file)
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    try:
        told = warm("torch").run(path.parent, "check.py")
        assert told.stdout.strip().endswith("does NOT agree") or "Error" in told.stderr
    finally:
        path.write_text(text)


def test_numbers_of_the_script_are_given_to_the_step_and_its_words_to_the_script(tmp_path, capfd):
    text = script("normalized").replace("loss = cross(out, y) +", "hist.append(1); loss = cross(out, y) / len(hist) +")
    text = text.replace("for epoch in range(2):", "hist = []\nfor epoch in range(2):")
    text = text.replace('"learning_rate": 0.05', '"learning_rate": float(__import__("sys").argv[1])')
    (tmp_path / "train.py").write_text(text)
    out = tmp_path / "torch"
    assert main(["migrate", "--json", str(tmp_path / "train.py"), str(out), "--", "0.07"]) == 0
    assert "agrees" in json.loads(capfd.readouterr().out)["told"]
    written = (out / "train.py").read_text()
    assert "data, label, number = batch" in written
    assert "return 0.07" in written


def test_the_reference_clips_by_its_own_norm_where_the_script_does_it_by_hand(tmp_path):
    """The script's factor is that of gradients in float32: relative to Adam's first steps, 1e-5 and more.
    And what MXNet's LeakyReLU rounds to float32 would be as much."""
    own = """norm = float(sum((g ** 2).sum().asscalar() for g in grads)) ** 0.5
        for g in grads:
            g[:] *= 0.01 / norm"""
    text = re.sub(r"gluon\.utils\.clip_global_norm\(.*\)", own, script("normalized"))
    text = re.sub(r'"sgd", \{[^}]*\}', '"adam", {"learning_rate": 0.01}', text)
    text = text.replace('nn.Activation("relu")', "nn.LeakyReLU(0.2)")
    assert own in text and '"adam"' in text and "Leaky" in text
    (tmp_path / "train.py").write_text(text)
    made = migrate_script([str(tmp_path / "train.py")], tmp_path / "torch")
    assert "clip_global_norm(model.parameters(), 0.01)" in (tmp_path / "torch" / "train.py").read_text()
    assert float(re.search(r"float64, .* greatest difference (\S+) \(bar 1e-08\)", made.told)[1]) < 1e-10


FIXED = """
y = mx.sym.Convolution(mx.sym.var("data"), mx.sym.var("conv_weight", shape=(6, 1, 3, 3)),
                       kernel=(3, 3), num_filter=6, no_bias=True)
net = gluon.SymbolBlock(mx.sym.BatchNorm(y, name="bn", fix_gamma=True), mx.sym.var("data"))
"""


def test_gammas_that_are_written_in_each_pass_are_left_to_it(tmp_path):
    """Features that are cut out of a symbol, as detectors have them: the trainer changes their gammas in vain."""
    text = script("normalized").replace("net = nn", FIXED + "features = net\nnet = nn")
    text = text.replace("nn.Conv2D(4, 3), nn.BatchNorm(), ", "features, ").replace("mx.init.Xavier())", ")")
    (tmp_path / "train.py").write_text(text)
    made = migrate_script([str(tmp_path / "train.py")], tmp_path / "torch")
    assert "features, " in text and made.told.endswith("\nagrees") and "(bar 1e-08)" in made.told
    assert "gamma" not in (tmp_path / "torch" / "train.py").read_text()


CHAOS = """
import mxnet as mx
from mxnet import autograd, gluon, nd
mx.random.seed(5)
net = gluon.nn.Dense(1, in_units=3)
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": RATE})
for step in range(9):
    x = nd.random.normal(shape=(8, 3))
    with autograd.record():
        p = nd.sigmoid(net(x))
        for _ in range(COUNT):
            p = 4 * p * (1 - p)
    p.backward()
    trainer.step(8)
"""


@pytest.mark.parametrize("count, rate, steps", [(20, "1e-9", 2), (2, "0.1", 4)])
def test_steps_that_rounding_decides_are_not_compared(count, rate, steps, tmp_path):
    """A detector magnifies the last digit by 100,000 a step: float32 is noise at its second, float64 at its fourth."""
    (tmp_path / "train.py").write_text(CHAOS.replace("COUNT", str(count)).replace("RATE", rate))
    made = migrate_script([str(tmp_path / "train.py")], tmp_path / "torch")
    assert made.steps == steps and f"{steps} steps in torch.float64" in made.told
    assert any("rounding decides" in one for one in made.by_hand) == (steps == 2)


SCHEDULED = """
class Falling(mx.lr_scheduler.LRScheduler):
    def __call__(self, number):
        return 0.123456012 / (min(number, 9) // 2 + 1)  # the text of a table is as long as that
net[1].bias.lr_mult = 10.0
"""


def test_rates_are_written_to_the_last_digit(tmp_path):
    """Six digits are as near as MXNet's own numbers; ten times as much is another number for it."""
    text = script("normalized").replace("trainer = ", f"{SCHEDULED}trainer = ", 1)
    text = re.sub(r'"sgd", \{[^}]*\}', '"sgd", {"lr_scheduler": Falling(), "learning_rate": 0.5}', text)
    text = text.replace("net[1].bias", "list(net.collect_params().values())[-1]")
    assert "Falling()" in text
    (tmp_path / "train.py").write_text(text)
    made = migrate_script([str(tmp_path / "train.py")], tmp_path / "torch")
    assert float(re.search(r"float64, .* greatest difference (\S+) \(bar 1e-08\)", made.told)[1]) < 1e-11
    written = (tmp_path / "torch" / "train.py").read_text()
    assert repr(0.123456012 / 2) in written and '": 10.0' in written


LENGTHS = """
import mxnet as mx
from mxnet import autograd, gluon, nd
mx.random.seed(3)
words, embedding = nd.arange(240) % 7, gluon.nn.Embedding(7, 6)
lstm, dense, cross = gluon.rnn.GRU(8), gluon.nn.Dense(7, flatten=False), gluon.loss.SoftmaxCrossEntropyLoss(axis=2)
nets = gluon.nn.Sequential()
nets.add(embedding, lstm, dense)
nets.initialize(mx.init.Xavier())
trainer = gluon.Trainer(nets.collect_params(), "sgd", {"learning_rate": 0.5})
text, at = words.reshape((4, -1)).T, 0
state = lstm.begin_state(4)
for length in (5, 7, 6, 5, 8, 9, 5, 7):
    x, y = text[at:at + length], text[at + 1:at + 1 + length]
    state, at = [s.detach() for s in state], at + length
    with autograd.record():
        found, state = lstm(embedding(x), state)
        loss = cross(dense(found), y).sum() / x.size
    loss.backward()
    trainer.step(1)
    print(loss.asscalar())
"""


def test_steps_of_sequences_of_other_lengths_are_one_and_their_state_goes_on(tmp_path):
    (tmp_path / "train.py").write_text(LENGTHS)
    made = migrate_script([str(tmp_path / "train.py")], tmp_path / "torch")
    assert made.told.endswith("\nagrees") and made.steps >= 3
    written = (tmp_path / "torch" / "train.py").read_text()
    assert "array, array2, number = batch" in written and "(state,) = states" in written
    assert re.search(r"return \[loss\], \[state\d\.detach\(\)\]", written)


SLOWLY = [pytest.param(name, marks=pytest.mark.slow) for name in ("nag", "adagrad")]


@pytest.mark.parametrize("optimizer", ["adadelta", *SLOWLY])
def test_an_optimizer_that_decays_and_clips_is_written(optimizer, tmp_path):
    options = {
        "learning_rate": 0.1,
        "wd": 0.01,
        "clip_gradient": 0.02,
        **({"momentum": 0.8} if optimizer == "nag" else {}),
    }
    told = f'Trainer(net.collect_params(), "{optimizer}", {options})'
    text = re.sub(r"Trainer\(.*\)", told, script("normalized").replace("gluon.utils.clip_global_norm", "tuple"))
    text = text.replace("tuple(grads, 20.0)", "pass")
    (tmp_path / "train.py").write_text(text)
    assert told in text and migrate_script([str(tmp_path / "train.py")], tmp_path / "out").told.endswith("\nagrees")


def test_a_schedule_that_the_script_moves_on_is_written_as_it_was_seen(tmp_path):
    own = """
class Own(mx.lr_scheduler.LRScheduler):
    def __call__(self, n):
        return self.base_lr
own = Own(0.1)
"""
    text = script("normalized").replace("trainer = ", own + "trainer = ").replace('"wd": 1e-3', '"lr_scheduler": own')
    text = text.replace("trainer.step", "own.base_lr *= 0.7; trainer.step")
    (tmp_path / "train.py").write_text(text)
    made = migrate_script([str(tmp_path / "train.py")], tmp_path / "out")
    assert made.told.endswith("\nagrees") and any("the script sets the rate" in each for each in made.by_hand)


def test_nothing_is_dropped_in_the_check_of_a_net_of_np_with_dropout(tmp_path):
    text = script("numpy").replace('activation="tanh"), ', 'activation="tanh"), nn.Dropout(0.5), ')
    (tmp_path / "train.py").write_text(text)
    made = migrate_script([str(tmp_path / "train.py")], tmp_path / "torch")
    assert "float64" in made.told and "float32" not in made.told  # the script's own losses have other masks
    assert "nn.Dropout(0.5)" in (tmp_path / "torch" / "model.py").read_text()


def test_what_cannot_be_written_is_refused_with_its_line_and_leaves_nothing(tmp_path, capfd):
    text = script("normalized").replace("loss = cross(out, y) +", "hist.append(out.mean()); loss = sum(hist) +")
    (tmp_path / "train.py").write_text(text.replace("for epoch in range(2):", "hist = []\nfor epoch in range(2):"))
    assert main(["migrate", str(tmp_path / "train.py"), str(tmp_path / "torch")]) == 1
    assert re.search(r"train\.py:\d+: ", capfd.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_script_that_fails_is_told_by_its_own_words(tmp_path):
    (tmp_path / "train.py").write_text("import mxnet\nraise ValueError('mine')")
    with pytest.raises(GluontuneError, match=r"train\.py: ended before a training step: .*mine"):
        migrate_script([str(tmp_path / "train.py")], tmp_path / "torch")


def test_mxnet_and_gluontune_are_not_there_for_the_check(tmp_path):
    for name in ("mxnet", "gluontune"):
        (tmp_path / "check.py").write_text(f"import {name}\nprint('agrees')")
        assert f"{name} is not for this project" in check(tmp_path)


def test_a_job_file_is_no_script(tmp_path):
    (tmp_path / "job.py").write_text("def net():\n    return None\n")
    (tmp_path / "train.py").write_text("net = 1\nloss.backward()\n")
    assert (trains(tmp_path / "job.py"), trains(tmp_path / "train.py")) == (False, True)
    (tmp_path / "job.py").write_text("from mine import data as mine, loss\n")
    (tmp_path / "train.py").write_text("from mine import fit\nlosses = fit(net, data)\n")
    assert (trains(tmp_path / "job.py"), trains(tmp_path / "train.py")) == (False, True)
    with pytest.raises(GluontuneError, match=r"no\.py"):
        trains(tmp_path / "no.py")


SHAPED = """
import mxnet as mx
from mxnet import autograd, gluon, np, npx
npx.set_np()
mx.random.seed(5)
net = gluon.nn.Dense(1, flatten=False, in_units=3)
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
for rows, length in ((8, 5), (8, 7), (6, 4), (8, 6), (8, 5), (7, 3)):
    x, y = np.random.normal(size=(rows, length, 3)), np.random.normal(size=(rows, length))
    with autograd.record():
        loss = ((net(x).reshape(y.shape) - y) ** 2).mean(axis=1)
    loss.backward()
    trainer.step(rows)
"""


def test_shapes_that_a_script_takes_from_its_batch_are_no_numbers_of_the_text(tmp_path):
    (tmp_path / "train.py").write_text(SHAPED)
    made = migrate_script([str(tmp_path / "train.py")], tmp_path / "torch")
    assert made.told.endswith("\nagrees") and made.steps >= 4
    assert "x.reshape(len(x), -1)" in (tmp_path / "torch" / "train.py").read_text()


def test_a_loss_that_is_made_anew_for_each_step_has_one_name(tmp_path):
    made = "loss = gluon.loss.SoftmaxCrossEntropyLoss()(out, y)"
    (tmp_path / "train.py").write_text(script("normalized").replace("loss = cross(out, y)", made))
    assert migrate_script([str(tmp_path / "train.py")], tmp_path / "torch").told.endswith("\nagrees")
    assert "_loss_" not in (tmp_path / "torch" / "train.py").read_text()
