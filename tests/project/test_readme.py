"""The README's Python runs as it stands there, on a folder of photographs."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from gluontune.runtime import mxnet

README = Path(__file__).parents[2] / "README.md"


def snippets():
    return re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.M | re.S)


def photos(folder):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(70):
            cv2.imwrite(str(folder / name / f"{number}.jpg"), rng.integers(0, 255, (40, 40, 3), dtype=np.uint8))


def test_the_import_snippet_runs_and_divides_by_the_loader_s_batch(tmp_path, monkeypatch):
    (code,) = (text for text in snippets() if "gt.optim.setup(" in text)
    photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    mx = mxnet()
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(4, 3), mx.gluon.nn.GlobalAvgPool2D(), mx.gluon.nn.Dense(2))
    net.initialize()
    sample = mx.nd.zeros((2, 3, 224, 224))
    net(sample)
    space = {"net": net, "sample": sample}
    exec(code, space)
    assert space["trainer"].global_batch_size == space["loader"].batch_size == 64
    assert space["trainer"].num_update == len(space["loader"]) and space["loss"].shape == (64,)
    space["loader"].close()


@pytest.mark.parametrize("code", [text for text in snippets() if text.startswith("# job.py")])
def test_the_job_file_gives_a_net_and_data(code):
    space: dict = {}
    exec(code, space)
    net = space["net"]()
    net.initialize()
    output = net(mxnet().nd.zeros((2, 1, 28, 28)))
    assert output.shape == (2, 10)
    assert "data" not in space or space["data"]() == "sample"
    if "loss" in space:
        assert space["loss"]()(output, mxnet().nd.zeros((2,))).shape == (2,)
