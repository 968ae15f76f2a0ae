"""The peers for real: ``make peers`` installs them and then runs this."""

from __future__ import annotations

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
