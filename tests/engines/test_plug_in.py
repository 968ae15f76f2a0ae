"""An engine is a folder with a card and a session: one of numpy alone is trained by the loop of every engine."""

from __future__ import annotations

import json
import os
import queue
import tempfile
import threading

import numpy as np
import pytest

import gluontune as gt
from gluontune import datasets
from gluontune.core.errors import UsageError
from gluontune.core.processes import Heard
from gluontune.engines import ENGINES, EngineCard
from gluontune.engines.base import Engine
from gluontune.engines.progress import MethodSteps
from gluontune.job.batches import Outcome
from gluontune.job.data import Feed, named_loaders
from gluontune.monitor import StepPhases
from gluontune.training.child import serve
from gluontune.training.starting import LocalRanks


class Softmax(Engine):
    """Softmax regression by plain gradient descent."""

    name = "numpy"

    def build(self, opened=None):
        data, size = datasets.open(self.recipe.dataset), self.recipe.batch_size_per_device
        train, val, count, shape = named_loaders(self.recipe, data, self.rank, self.world, size)
        self.use_feed(Feed(train, val, None, size, count, shape), size)
        self.methods = MethodSteps(self.recipe, self.rank, self.weights, self.set_weight)
        self.methods.attach(train, data.mean, [], None)
        self.phases = StepPhases(sync=lambda: None)
        self.reset()

    def site(self):
        return {"device": "cpu", "gpus": 0, "splits": True, "metric": {"name": "accuracy", "mode": "max"}}

    def weights(self, whole):
        return {"weight": self.weight}

    def start_anew(self, total):
        self.weight = np.zeros((int(np.prod(self.feed.image_shape)), 10))

    def train(self, batch, phase):
        outcome, images = self.outcome(batch)
        errors = np.exp(outcome.output) - np.eye(10)[outcome.label]
        self.weight -= self.recipe.scaled_learning_rate / len(images) * images.T @ errors
        self._losses.append(outcome.loss.mean())
        return len(images)

    def evaluate(self, batch):
        return [(self.outcome(batch)[0], None)]

    def outcome(self, batch):
        images = batch[0].reshape(len(batch[0]), -1) / 255
        scores = images @ self.weight
        scores -= np.log(np.exp(scores).sum(1, keepdims=True))
        return Outcome(-scores[np.arange(len(scores)), batch[1]], scores, batch[1]), images


CARD = EngineCard(
    title="numpy",
    session=f"{__name__}:Softmax",
    contradictions=((("backend", "dtype"), lambda r: r.dtype != "float32", "it computes in float64"),),
)


class ThreadRank(Heard):
    """A rank in a thread of this process: numpy needs no other."""

    def __init__(self, setup):
        reading, writing = os.pipe()
        super().__init__(reading, tempfile.TemporaryFile())  # noqa: SIM115 - lives as long as the rank
        self.commands, self.events = queue.Queue(), os.fdopen(writing, "w", buffering=1)
        lines = iter(self.commands.get, "")
        self.thread = threading.Thread(target=serve, args=(setup, self.send, lines), daemon=True)
        self.thread.start()

    def send(self, **event):
        self.events.write(json.dumps(event) + "\n")

    def say(self, command):
        self.commands.put(json.dumps(command))

    def close(self):
        self.say({"do": "quit"})
        self.thread.join()
        self.events.close()
        self._close_reading()


class ThreadSite(LocalRanks):
    applied: dict[str, str] = {}
    pids = [os.getpid()]

    def __init__(self, recipe, world, setup):
        self.ranks = [ThreadRank(setup(rank, rank)) for rank in range(world)]

    def close(self):
        for rank in self.ranks:
            rank.close()
        self.ranks = []


@pytest.fixture
def recipe():
    ENGINES.add("numpy", CARD)
    yield gt.Recipe(backend="numpy", loader="resident", train_samples=512, val_samples=128, learning_rate=0.05)
    ENGINES.remove("numpy")


def test_it_learns_and_its_result_is_like_any_other(recipe):
    result = gt.train.run(recipe.override(epochs=3), site=ThreadSite)
    assert result.ok, result.error
    assert result.steps == 24 and result.recipe["backend"] == "numpy" and result.samples_per_sec["n"] >= 1
    assert result.train_loss[-1] < result.train_loss[0] < np.log(10) and result.val_accuracy[-1] > 0.2


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(recipe, tmp_path):
    whole = gt.train.run(recipe.override(epochs=2), site=ThreadSite)
    gt.train.run(recipe, site=ThreadSite, checkpoints=gt.train.Checkpoints(tmp_path))
    more = gt.train.Checkpoints(tmp_path, resume=True)
    resumed = gt.train.run(recipe.override(epochs=2), site=ThreadSite, checkpoints=more)
    assert resumed.val_loss == whole.val_loss and resumed.steps == 16


def test_what_it_cannot_do_is_refused_by_its_card(recipe):
    with pytest.raises(UsageError, match="backend='numpy' and dtype='bfloat16' contradict each other: it computes in"):
        recipe.override(dtype="bfloat16")
    with pytest.raises(UsageError, match=f"choose one of {', '.join(ENGINES.names())}"):
        recipe.override(backend="jax")
    assert recipe.backend in ENGINES


def test_a_command_that_only_another_engine_has_names_that_one(recipe):
    with (
        gt.train.Group(recipe, site=ThreadSite) as group,
        pytest.raises(gt.train.RunFailed, match="MXNet's engine only"),
    ):
        group.gradients()
