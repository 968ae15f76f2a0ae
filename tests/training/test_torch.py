"""The same recipe on PyTorch's engine: the same start and figures, no mxnet in the process, clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from launch_faults import FAULTS, fault_trial

import gluontune as gt
from gluontune import ladder
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.engines.mxnet.session import Session
from gluontune.job.checkpoint import Writer
from gluontune.runtime import pytorch
from gluontune.search.rungs import RUNGS

pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")

SMALL = {
    "net": "small_cnn",
    "dataset": "sample",
    "loader": "resident",
    "augment": "none",
    "train_samples": 640,
    "val_samples": 200,
    "optimizer": "nag",
    "learning_rate": 0.05,
    "wd": 1e-3,
    "runtime": "tuned",
}


def torch_session(**changes):
    from gluontune.engines.torch.session import session_of

    session = session_of(gt.Recipe(**{**SMALL, "backend": "torch", **changes}))
    session.build()
    return session


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "muon", "learning_rate": 0.01, "accumulate": 2},
        {"clip_global_norm": 0.5},
        {"methods": {"batch-growth": {"start": 0.2, "factor": 3}}, "schedule": "poly"},
    ],
    ids=["nag", "muon, accumulated", "clipped", "growing"],
)
def test_twenty_steps_leave_the_same_weights_as_mxnet(changes):
    # Sigmoids: at the kink of a ReLU the last digit of an output decides, and one pixel more or less passes.
    changes = {"net": "sigmoid_100", "epochs": 2, **changes}
    ours, theirs = torch_session(**changes), Session(gt.Recipe(**{**SMALL, **changes}))
    theirs.build()
    try:
        losses = [s.steps(20)["loss"] for s in (ours, theirs)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        place = {p: name for name, p in ours.job.names.items()}
        arrays = gt.bridge.from_torch(ours.net)
        for name, want in theirs.work.host_weights().items():
            scale = float(np.abs(want).max())
            assert np.abs(arrays[place[name]] - want).max() <= 1e-4 * scale, name
            moved = np.abs(ours._initial[place[name]].numpy() - want).max()
            assert moved > 1e-2 * scale
        seen = [s.validate() for s in (ours, theirs)]
        assert abs(seen[0]["accuracy"] - seen[1]["accuracy"]) <= 0.01
        assert seen[0]["metric"]["mode"] == seen[1]["metric"]["mode"] == "max"
        assert seen[0]["loss"] == pytest.approx(seen[1]["loss"], rel=1e-4)
    finally:
        ours.close()
        theirs.close()


def test_a_net_with_running_statistics_learns_as_on_mxnet():
    ours, theirs = torch_session(epochs=2), Session(gt.Recipe(**{**SMALL, "epochs": 2}))
    theirs.build()
    try:
        for _ in range(2):
            epoch = [session.steps(session.batches_per_epoch)["loss"] for session in (ours, theirs)]
            assert epoch[0] == pytest.approx(epoch[1], rel=0.03)
        seen = [session.validate()["accuracy"] for session in (ours, theirs)]
        assert abs(seen[0] - seen[1]) <= 0.06  # of 200 images
    finally:
        ours.close()
        theirs.close()


def test_a_reset_begins_again_at_the_seeded_start():
    session = torch_session()
    try:
        first = session.steps(3)["loss"]
        session.reset()
        assert session.steps(3)["loss"] == pytest.approx(first, rel=1e-6)
        session.reset(epochs=2)
        assert session.recipe.epochs == 2 and session.optimizer.num_update == 0
    finally:
        session.close()


def test_a_users_number_of_threads_holds(monkeypatch):
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before, session = torch.get_num_threads(), torch_session(net="mlp")
    session.close()
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


def test_the_process_that_trains_never_imports_mxnet():
    code = (
        "import sys, json, gluontune as gt\n"
        "from gluontune.engines.torch.session import session_of\n"
        f"s = session_of(gt.Recipe(backend='torch', **json.loads({json.dumps(json.dumps(SMALL))})))\n"
        "s.build(); seen = s.steps(2); s.validate(); s.close()\n"
        "print(json.dumps([seen['samples'], 'mxnet' in sys.modules, s.site()['device']]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    samples, imported, device = json.loads(done.stdout.splitlines()[-1])
    assert (samples, imported) == (128, False) and device in ("cpu", "gpu")


def test_a_run_gives_a_result_like_any_other():
    result = gt.train.run(gt.Recipe(**{**SMALL, "backend": "torch", "epochs": 2, "dtype": "bfloat16"}))
    assert result.ok, result.error
    assert len(result.val_accuracy) == 2 and result.val_accuracy[-1] > 0.2
    assert result.recipe["backend"] == "torch" and result.samples_per_sec["n"] >= 1


def test_a_resumed_training_ends_with_the_same_weights(tmp_path):
    # In the middle of an epoch and of an update.
    changes = {"optimizer": "nadam", "accumulate": 3, "learning_rate": 0.002, "epochs": 2}
    changes["methods"] = {"ema": {"decay": 0.9}, "mixup": True}
    first, second = torch_session(**changes), torch_session(**changes)
    first.writer = Writer(str(tmp_path), keep=1)
    try:
        first.steps(16)
        whole = {name: value.clone() for name, value in first.net.state_dict().items()}
        loss_of_the_average = first.validate()["loss"]
        first.reset()
        first.steps(11)
        told = first.checkpoint({"recipe": first.recipe.to_dict()}, wait=True)
        second.restore(told["written"])
        second.steps(5)
        for name, value in second.net.state_dict().items():
            assert (value - whole[name]).abs().max() <= 1e-6 * max(1.0, float(value.abs().max())), name
        assert second.optimizer.num_update == 5 and second.progress.steps == 16
        assert second.validate()["loss"] == pytest.approx(loss_of_the_average, rel=1e-5)
    finally:
        first.close()
        second.close()


@pytest.mark.slow
def test_a_run_keeps_checkpoints_goes_on_and_gives_its_net_back_to_gluon(tmp_path):
    kept = gt.train.Checkpoints(tmp_path, every="4steps")
    recipe = gt.Recipe(**{**SMALL, "backend": "torch"})
    first = gt.train.run(recipe, checkpoints=kept)
    assert first.ok and first.steps == 10
    later = gt.train.Checkpoints(tmp_path, resume=True)
    second = gt.train.run(recipe.override(epochs=2), checkpoints=later)
    assert second.ok, second.error
    assert second.steps == 20 and second.val_accuracy[0] == first.val_accuracy[0]
    with pytest.raises(GluontuneError, match=r"backend='torch'.*backend='mxnet'"):
        gt.train.run(recipe.override(epochs=3, backend="mxnet"), checkpoints=later)
    net, mx = gt.train.load(tmp_path, pixels=True), gt.runtime.mxnet()
    test = gt.datasets.open("sample").test
    loader = gt.loading.build("threaded", test, batch_size=200, image_shape=(28, 28, 1))
    images, labels = next(loader.epoch(0))
    loader.close()
    right = (net(mx.nd.array(images, dtype="uint8")).asnumpy().argmax(1) == labels).mean()
    assert right > 0.25  # a net that was not trained has 0.1


@pytest.mark.slow
def test_two_processes_learn_as_two_of_mxnet(tmp_path):
    two = {**SMALL, "epochs": 2, "num_devices": 2, "batch_size_per_device": 32}
    theirs = gt.train.run(gt.Recipe(**two, engine="shared-memory"))
    kept = gt.train.Checkpoints(tmp_path)
    ours = gt.train.run(gt.Recipe(**two, engine="ddp", backend="torch"), checkpoints=kept)
    assert ours.ok, ours.error
    assert ours.train_loss == pytest.approx(theirs.train_loss, rel=0.03) and ours.steps == 20
    longer = gt.Recipe(**{**two, "epochs": 3}, engine="ddp", backend="torch")
    more = gt.train.run(longer, checkpoints=gt.train.Checkpoints(tmp_path, resume=True))
    assert more.ok, more.error
    assert more.steps == 30 and more.train_loss[-1] < ours.train_loss[-1]


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_is_named():
    seen = fault_trial(*FAULTS["ddp rank killed"])
    assert seen["named"] and seen["orphans"] == 0 and seen["seconds"] < 30, seen


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"loader": "gluon"}, "loader='threaded' or 'resident'"),
        ({"engine": "shared-memory", "num_devices": 2}, "several .engine='ddp'"),
        ({"hybridize": "static", "rewrites": ["pool-to-mean"]}, r"rewrites=\[\]"),
        ({"engine": "ddp", "num_devices": 2, "exchange_every": 2}, "exchange_every=1"),
        ({"stochastic_depth": 0.2}, "stochastic_depth=0"),
    ],
)
def test_what_does_not_go_with_it_is_refused_with_the_fields(changes, told):
    with pytest.raises(UsageError, match=told) as error:
        gt.Recipe(**{**SMALL, "backend": "torch", **changes})
    assert "recipe fields" in str(error.value)


def job(tmp_path, text):
    path = tmp_path / "job.py"
    path.write_text("from mxnet import gluon, mx, nd\n".replace(", mx, nd", "") + text)
    return str(path)


NET = """
def net():
    found = gluon.nn.HybridSequential()
    found.add(gluon.nn.Flatten(), gluon.nn.Dense(10))
    return found
"""


def test_a_job_with_net_and_loss_of_its_own_trains(tmp_path):
    own = NET + "def loss():\n    return gluon.loss.SoftmaxCrossEntropyLoss()\ndef data():\n    return 'sample'\n"
    session = torch_session(job=job(tmp_path, own))
    try:
        first, later = session.steps(5)["loss"], session.steps(20)["loss"]
        assert later < first and session.job.data == "sample"
    finally:
        session.close()


HINGE = """
class Hinge(gluon.loss.Loss):
    def __init__(self):
        super().__init__(1.0, 0)
    def hybrid_forward(self, F, x, y):
        return F.mean(F.square(F.relu(1 - (F.one_hot(y, 10) * 2 - 1) * x)), axis=0, exclude=True)
"""
APART = """
class Apart(gluon.loss.Loss):
    def __init__(self):
        super().__init__(1.0, 0)
    def hybrid_forward(self, F, x, y):
        return F.square(F.cast(y, "float32") - F.sum(x, axis=1) * 2)
"""
BLIND = """
class Blind(gluon.loss.Loss):
    def __init__(self):
        super().__init__(1.0, 0)
    def hybrid_forward(self, F, x, y):
        return F.mean(F.square(x), axis=1)
"""


@pytest.mark.parametrize("text", [HINGE, APART, BLIND], ids=["hinge", "apart", "blind"])
def test_a_loss_that_reads_its_label_first_or_not_at_all_is_mxnets(tmp_path, text):
    name = text.split("class ")[1].split("(")[0]
    path = job(tmp_path, NET + text + f"def loss():\n    return {name}()\ndef data():\n    return 'sample'\n")
    ours, theirs = torch_session(job=path), Session(gt.Recipe(**{**SMALL, "job": path}))
    try:
        theirs.build()
        losses = [[session.steps(1)["loss"] for _ in range(4)] for session in (ours, theirs)]
    finally:
        ours.close()
        theirs.close()
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][3] != losses[0][0]


def test_the_ninth_rung_is_kept_where_it_is_faster(machine, monkeypatch):
    monkeypatch.setattr(pytorch, "installed", lambda: True)
    rate = machine.rate
    machine.rate = lambda r: 2.0 * rate(r) if r.backend == "torch" else rate(r)
    found = ladder.climb(gt.Recipe(), rungs=[name for name in RUNGS.names() if name not in ("together", "methods")])
    row = {r["name"]: r for r in found["rungs"]}["modern-engine"]
    assert row["kept"] and row["verdict"] == "helped" and found["best"]["recipe"]["backend"] == "torch"
    labels = ["PyTorch", "PyTorch, 2 processes", "PyTorch, bfloat16", "PyTorch, bfloat16, 2 processes"]
    assert [v["label"] for v in row["variants"]] == labels
    assert "left out" not in [a["kind"] for a in found["revisited"] if a["rung"] == "records"]


def test_ddp_is_pytorchs_own():
    with pytest.raises(UsageError, match="backend='torch', or engine='shared-memory'"):
        gt.Recipe(engine="ddp", num_devices=2, loader="resident")


def test_the_ninth_rung_says_how_to_bring_pytorch(machine):
    row = ladder.climb(gt.Recipe(), rungs=["modern-engine"])["rungs"][-1]
    assert row["status"] == "skipped" and "pip install torch" in row["reason"]
