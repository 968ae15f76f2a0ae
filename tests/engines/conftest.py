"""Pretended GPUs for MXNet, and sessions on them."""

from __future__ import annotations

import pytest
from fake_gpu import FakeMxnetGpus
from mxnet_on_gpus import PLAIN, TWO

import gluontune as gt
from gluontune.runtime import mxnet


@pytest.fixture
def gpus(monkeypatch):
    return FakeMxnetGpus(monkeypatch, mxnet(), 3)


@pytest.fixture
def started(gpus):
    """Starts sessions, and closes them; ``gpus.seen`` begins after the start. ``given``: rank, world and so on."""
    from gluontune.engines.mxnet.session import Session

    opened = []

    def start(text=None, folder=None, given=(), **changes):
        recipe = {**PLAIN, **TWO, **changes}
        if text is not None:
            (folder / "job.py").write_text(text)
            recipe = {name: value for name, value in recipe.items() if name not in ("net", "dataset")}
            recipe["job"] = str(folder / "job.py")
        session = Session(gt.Recipe(**recipe), *given)
        opened.append(session)
        session.build()
        gpus.seen.clear()
        return session

    yield start
    for session in opened:
        session.close()
