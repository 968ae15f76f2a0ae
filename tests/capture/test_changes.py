"""Changes in running scripts: outputs, order and random streams stay the script's."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest
from warm_python import warm

pytestmark = [pytest.mark.mxnet, pytest.mark.process]

DRIVER = Path(__file__).parents[1] / "support" / "impatient_run.py"
ROOT = Path(__file__).parents[2]
HEAD = """
import sys, numpy as np, mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
np.random.seed(3); mx.random.seed(3)
def state(): return np.random.rand(), mx.nd.random.uniform().asscalar()
"""
LOADERS = """
X = np.random.randint(0, 255, (240, 6, 5, 3)).astype("uint8"); Y = np.arange(240).astype("int32")
T = gluon.data.vision.transforms
A = gluon.data.ArrayDataset(mx.nd.array(X, dtype="uint8"), Y)
def show(data, epochs=3, **options):
    loader = gluon.data.DataLoader(data, 50, **options)
    for epoch in range(epochs):
        for batch in loader:
            parts = batch if isinstance(batch, list) else [batch]
            print([(type(p).__name__, p.dtype, p.context, p.shape, p.asnumpy().tobytes().hex()[:60],
                    float(p.astype("float64").sum().asscalar())) for p in parts])
    print(state())
"""
TRAINING = """
class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(nn.Conv2D(8, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(),
                      nn.Flatten(), nn.Dropout(0.3), nn.Dense(4))
    def hybrid_forward(self, F, x):
        return self.body(x)
def train(net, steps=160, batch=8, between=lambda i: None, optimizer="sgd"):
    net.initialize(mx.init.Xavier())
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.01})
    x = mx.nd.random.uniform(shape=(batch, 3, 12, 12)); y = mx.nd.array(np.arange(batch) % 4)
    for i in range(steps):
        with autograd.record():
            loss = loss_of(net(x), y)
        loss.backward(); trainer.step(batch); between(i)
        print("loss", float(loss.mean().asscalar()))
    print("predicts", *net(x).asnumpy().ravel()[:8])
    print("draws", *state())
    return net
"""


def both(folder, *texts, dies=False):
    """Lines that the script prints, under python and with our changes, and the document; ``dies``: python may fail."""
    (folder / "train.py").write_text("\n".join([HEAD, *map(textwrap.dedent, texts)]))
    plain = warm("mxnet").run(folder, "train.py")
    assert plain.returncode == 0 or dies, plain.stderr
    ours = warm("cv2", "scipy.sparse", "gluontune.capture.changes").run(folder, str(DRIVER), "o.json", "train.py")
    assert ours.returncode == 0, ours.stderr
    return plain.stdout.splitlines(), ours.stdout.splitlines(), json.loads((folder / "o.json").read_text())


def numbers(lines, name):
    return np.array([[float(word) for word in line.split()[1:]] for line in lines if line.startswith(name)])


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_from_kept_samples_are_the_loaders_to_the_bit(tmp_path, workers):
    text = f"""
        w = {workers}
        show(A.transform_first(T.Compose([T.ToTensor(), T.Normalize(0.1, 0.3)])), shuffle=True, num_workers=w)
        show(A.transform(lambda x, y: (x.transpose((2, 0, 1)).astype("float32") / 255, np.float32(y))), num_workers=w,
             shuffle=True, last_batch="rollover")
        flat = A.transform(lambda x, y: (x.reshape((-1,)).astype(np.float32) / 255, y))
        show(flat, num_workers=w, last_batch="discard")
        show(gluon.data.ArrayDataset(X.astype("float32")), num_workers=w, shuffle=True)
        show(gluon.data.SimpleDataset(list(range(120))), num_workers=w, shuffle=True)
        show(gluon.data.ArrayDataset(X, Y).take(110), num_workers=w, sampler=gluon.data.RandomSampler(110))
    """
    plain, ours, found = both(tmp_path, LOADERS, text)
    assert ours == plain and len(plain) > 60
    assert found["kept_batches"] > 30 and found["notes"] == []


def test_loaders_that_are_made_anew_in_each_epoch_have_the_rows_of_their_dataset(tmp_path):
    text = """
        data = A.transform_first(T.ToTensor())
        class Short(gluon.data.Dataset):
            def __init__(self): self.rows = np.random.rand(100, 3)
            def __len__(self): return 100
            def __getitem__(self, at): return self.rows[at]
        for epoch in range(4):
            show(data, epochs=1, shuffle=True)
            show(data, epochs=1)
            show(Short(), epochs=1)  # each time another one
    """
    plain, ours, found = both(tmp_path, LOADERS, text)
    assert ours == plain
    assert found["kept_batches"] == 2 * 4 * 5 - 3  # but for those of the first loader that are compared


def test_samples_that_may_change_are_left_alone(tmp_path):
    text = """
        level = {"by": 1}
        class Own(gluon.data.Dataset):
            def __len__(self): return 120
            def __getitem__(self, i): return mx.nd.ones(2) * level["by"] * np.random.rand(), i
        for _ in gluon.data.DataLoader(A.transform_first(T.RandomFlipLeftRight()), 50, shuffle=True): pass
        show(A.transform_first(lambda x: x.astype("float32") * level["by"]), shuffle=True)
        show(Own(), shuffle=True)
        show(A, batchify_fn=lambda parts: [mx.nd.array([k + np.random.rand() for k, _ in enumerate(parts)])])
    """
    plain, ours, found = both(tmp_path, LOADERS, text)
    assert ours == plain and found["kept_batches"] == 0
    told = "\n".join(found["notes"])
    for reason in (
        "RandomFlipLeftRight may draw",
        "level, a dict that may change",
        "a Own of the",
        "function of the script",
    ):
        assert reason in told


def test_arrays_that_the_script_changes_between_epochs_are_seen(tmp_path):
    text = """
        B = mx.nd.array(X.astype("float32")); data = gluon.data.ArrayDataset(B, Y)
        loader = gluon.data.DataLoader(data, 60)
        for epoch in range(3):
            print([float(x.sum().asscalar()) for x, _ in loader])
            B[:] = B * 0.5
    """
    plain, ours, found = both(tmp_path, LOADERS, text)
    assert ours == plain and "samples have changed" in "\n".join(found["notes"])


@pytest.mark.parametrize("before", ["", "net.initialize(); net.summary(mx.nd.ones((2, 3, 12, 12)))", "net.hybridize()"])
def test_a_compiled_training_is_the_scripts(tmp_path, before):
    text = f"net = Net(); {before}\ntrain(net); net.hybridize(False); print(net._active, net.summary and 1)"
    plain, ours, found = both(tmp_path, TRAINING, text)
    assert found["blocks_left"] == {}
    assert {(m["helper"], m["state"]) for m in found["matches"]} >= {("compiled blocks", "compiled and rewritten")}
    assert np.allclose(numbers(ours, "loss"), numbers(plain, "loss"), rtol=1e-4)
    assert np.allclose(numbers(ours, "predicts"), numbers(plain, "predicts"), rtol=1e-3, atol=1e-4)
    assert np.array_equal(numbers(ours, "draws"), numbers(plain, "draws"))  # the random stream is where it would be
    assert ours[-1] == plain[-1] == "False 1"
    assert found["outputs_apart"] < 1e-5


def test_a_plain_sequential_is_compiled_as_one(tmp_path):
    text = """
        net = nn.Sequential(); inner = nn.Sequential()
        inner.add(nn.Dense(16, activation="relu"), nn.Dropout(0.2)); net.add(nn.Flatten(), inner, nn.Dense(4))
        train(net, optimizer="adam"); print(type(net) is nn.Sequential, type(inner) is nn.Sequential, len(net))
    """
    plain, ours, found = both(tmp_path, TRAINING, text)
    assert found["matches"] and np.allclose(numbers(ours, "loss"), numbers(plain, "loss"), rtol=1e-4)
    assert np.array_equal(numbers(ours, "draws"), numbers(plain, "draws")) and ours[-1] == plain[-1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return self.body(x) if x.sum().asscalar() > 0 else self.body(-x)", "when compiled"),
        ("self.last = x; return self.body(x)", "changes last"),
        ("print('called'); return self.body(x)", "prints"),
        ("return self.body(x * float(np.random.rand()))", "draws random numbers in Python"),
        ("return self.body(x * LEVEL['by'])", "reads LEVEL"),
    ],
)
def test_blocks_that_tracing_would_freeze_stay_as_they_are(tmp_path, body, reason):
    text = f"""
        LEVEL = {{"by": 1.0}}
        class Own(Net):
            def hybrid_forward(self, F, x):
                {body}
        def between(i): LEVEL["by"] += 0.1
        train(Own(), between=between)
    """
    plain, ours, found = both(tmp_path, TRAINING, text)
    assert reason in "\n".join(found["notes"])
    assert [line for line in ours if not line.startswith(("loss", "pred"))] == [
        line for line in plain if not line.startswith(("loss", "pred"))
    ]
    assert np.allclose(numbers(ours, "loss"), numbers(plain, "loss"), rtol=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        "net.scale = 1.0 + i / 10",
        "net.body[5]._rate = 0.0 if i == 100 else 0.3",
        "net.body.add(nn.Dense(4))",
        "net.hybridize()",
    ],
)
def test_what_the_script_changes_later_takes_effect(tmp_path, change):
    text = f"""
        class Own(Net):
            scale = 1.0
            def hybrid_forward(self, F, x):
                return self.body(x) * self.scale
        net = Own(); net.scale = 1.0
        def between(i):
            if i in (100, 130):
                {change}
                net.initialize()
        train(net, between=between)
    """
    plain, ours, _ = both(tmp_path, TRAINING, text)
    assert np.allclose(numbers(ours, "loss"), numbers(plain, "loss"), rtol=1e-4)


def test_a_script_of_its_own_update_rule_and_one_that_fails_in_a_block(tmp_path):
    text = """
        w = mx.nd.random.normal(shape=(3, 2)); w.attach_grad(); loss_of = gluon.loss.L2Loss()
        for i in range(30):
            x = mx.nd.random.normal(shape=(4, 3))
            with autograd.record():
                loss = loss_of(mx.nd.dot(x, w), mx.nd.ones((4, 2)))
            loss.backward(); w[:] = w - 0.1 * w.grad
            print("loss", float(loss.mean().asscalar()))
        try:
            Net()(mx.nd.ones((2, 3, 4, 4)))
        except RuntimeError as error:
            print(str(error)[:40])
    """
    plain, ours, found = both(tmp_path, TRAINING, text)
    assert found["steps"] == 30 and np.allclose(numbers(ours, "loss"), numbers(plain, "loss"), rtol=1e-5)
    assert ours[-1] == plain[-1]


def test_threads_that_share_a_record_file_read_their_own_records(tmp_path):
    text = """
        import os
        writer = mx.recordio.MXIndexedRecordIO("a.idx", "a.rec", "w")
        for k in range(3000):
            writer.write_idx(k, (b"%06d" % k) * (1 + k % 50))
        writer.close()
        data = gluon.data.RecordFileDataset("a.rec").transform(lambda r: np.frombuffer(r[:6], dtype="uint8"))
        loader = gluon.data.DataLoader(data, 50, num_workers=8, thread_pool=True)
        found = [bytes(row) for _ in range(4) for batch in loader for row in batch.asnumpy()]
        print(sum(row != b"%06d" % (k % 3000) for k, row in enumerate(found)), len(found))
    """
    _, ours, found = both(tmp_path, text, dies=True)  # MXNet reads some hundred wrong ones, or fails; not each time
    assert ours == ["0 12000"] and "take turns" in "\n".join(found["notes"])


def test_blocks_called_from_several_threads_stay_as_they_are(tmp_path):
    text = """
        import threading
        net = Net()
        def between(i):
            if i == 120:
                thread = threading.Thread(target=net, args=(mx.nd.ones((2, 3, 12, 12)),)); thread.start(); thread.join()
        train(net, between=between)
    """
    plain, ours, found = both(tmp_path, TRAINING, text)
    assert np.allclose(numbers(ours, "loss"), numbers(plain, "loss"), rtol=1e-4)
    assert "several threads" in "\n".join(found["notes"])
