"""The peers for real: ``make peers`` installs them and then runs this."""

from __future__ import annotations

import subprocess

import cv2
import numpy as np

from gluontune.bench import loading, peer_python
from gluontune.records import RecordWriter


def test_the_peers_that_make_peers_installs_all_run(tmp_path):
    path, rng = tmp_path / "photos.rec", np.random.default_rng(0)
    with RecordWriter(path) as writer:
        for i in range(48):
            image = cv2.resize(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8), (128, 96))
            writer.write(cv2.imencode(".jpg", image)[1].tobytes(), float(i % 5))
    found = loading.run(
        [path], size=64, batch_size=16, workers=1, rounds=1, seconds=0.05, only=["DALI", "FFCV", "PyTorch"]
    )
    built = any(peer_python().parent.parent.glob(".ffcv-*"))
    for row in found["rows"]:
        wanted = "ok" if row["peer"] != "FFCV JPEG" or built else "missing"
        assert row["status"] == wanted, (row["name"], row["reason"])
        assert row["info"].get("batch_shape") in ([16, 64, 64, 3], None)


def test_pytorch_trains_the_twin_of_a_residual_net(tmp_path):
    from gluontune.bench import torch_tta
    from gluontune.recipe import Recipe

    recipe = Recipe(train_samples=640, val_samples=256, loader="resident", epochs=3, batch_size_per_device=32)
    how = {"name": "PyTorch eager", "threads": 1, "channels_last": True, "compiled": False, "env": {}}
    result, clocks = torch_tta.train_once(recipe, how, peer_python())
    assert result.ok, result.error
    assert result.steps == 60 and len(result.val_accuracy) == len(clocks.evaluations) == 3
    assert result.train_loss[-1] < result.train_loss[0] and result.val_accuracy[-1] > 0.3  # chance is 0.1


_THEIRS = """
import sys
import numpy as np, torch
from gluontune.bench._torch_muon import TorchMuon
data = dict(np.load(sys.argv[1]))
ps = [torch.nn.Parameter(torch.tensor(data[f"w{i}"])) for i in range(5)]
update = TorchMuon(torch, ps, lr=0.1, wd=0.1, momentum=0.9)
for step in range(3):
    for group in update.param_groups:
        group["lr"] = 0.1 / (step + 1)
    for i, p in enumerate(ps):
        p.grad = torch.tensor(data[f"g{i}"][step])
    update.step()
np.savez(sys.argv[1], **{f"w{i}": p.detach().numpy() for i, p in enumerate(ps)})
"""


def test_the_twins_muon_is_ours(tmp_path):
    from gluontune.optim.orthogonal import GTMuon, nd

    rng = np.random.default_rng(0)
    shapes = [(8, 3, 3, 3), (8, 3, 3, 3), (4, 12), (12, 4), (8,)]
    data = {f"w{i}": rng.normal(size=shape).astype("float32") for i, shape in enumerate(shapes)}
    data |= {f"g{i}": rng.normal(size=(3, *shape)).astype("float32") for i, shape in enumerate(shapes)}
    path = tmp_path / "muon.npz"
    np.savez(path, **data)
    subprocess.run([peer_python(), "-c", _THEIRS, path], check=True)
    optimizer = GTMuon(learning_rate=0.1, wd=0.1, momentum=0.9, exempt_indices=frozenset({4}))
    optimizer.set_wd_mult({4: 0.0})
    weights = [nd.array(data[f"w{i}"]) for i in range(5)]
    states = [optimizer.create_state(i, w) for i, w in enumerate(weights)]
    for step in range(3):
        optimizer.set_learning_rate(0.1 / (step + 1))
        optimizer.update(list(range(5)), weights, [nd.array(data[f"g{i}"][step]) for i in range(5)], states)
    for theirs, w in zip(np.load(path).values(), weights):
        np.testing.assert_allclose(theirs, w.asnumpy(), rtol=1e-4, atol=1e-5)
