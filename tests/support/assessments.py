"""An honest script for the assessment, with places for tricks, and how it is graded and run."""

from __future__ import annotations

import contextlib
import json

import psutil

from gluontune.course import assessment
from gluontune.course.assessment import assessing
from gluontune.course.assessment.fresh import FreshTask, Scale
from gluontune.course.assessment.leftovers import lives

SCALE = Scale(train=1600, val=1000, test=400, edge=16, classes=5, styles=10, own_styles=10, own_share=0.4)
TINY = Scale(train=320, val=100, test=80, edge=16, classes=5, styles=10, own_styles=10, own_share=0.4)  # nobody learns


# a goal for the small task above; nothing is timed here, so the budget is hours
GOAL = {"seconds": 3600.0, "accuracy": 0.75, "steadiness": 0.01}


EASY = {"1": GOAL, "2": GOAL}


# A script that does well, with places for the tricks of the tests.
SCRIPT = """
import os, sys, time, json
import numpy as np
import gluontune as gt
task = gt.course.task()
mx = gt.runtime.mxnet()
def load(split):
    return task.normalize(np.stack([split.decode(i) for i in range(len(split))])), split.labels.astype("float32")
images, labels = load(task.train)
epochs, samples, kvstore = 12, None, "dist_sync" if task.ranks > 1 else None
{data}
mx.random.seed(task.ranks)
{before}
nn = mx.gluon.nn
net = nn.HybridSequential()
net.add(nn.Flatten(), nn.Dense(96, activation="relu"), nn.Dense(task.classes))
net.initialize(mx.init.Xavier())
net(mx.nd.array(images[:2]))
trainer = gt.optim.setup("nag", net, learning_rate=0.05, momentum=0.9, wd=0.0, global_batch_size=32 * task.ranks,
                         kvstore=kvstore and mx.kv.create(kvstore))
loss_of, random = mx.gluon.loss.SoftmaxCrossEntropyLoss(), np.random.default_rng(0)
for epoch in range(epochs):
    order = random.permutation(len(images))
    for start in range(0, len(order) - 31, 32):
        chosen = order[start : start + 32]
        with mx.autograd.record():
            loss = loss_of(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
        loss.backward()
        trainer.step()
{after}
task.save(net, epochs * len(images) if samples is None else samples)
"""


def script(folder, data="", before="", after=""):
    path = folder / "script.py"
    path.write_text(SCRIPT.format(data=data, before=before, after=after))
    return path


def plain(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return path


def assess(path, ranks=1, seconds=None, **changes):
    reference = EASY if seconds is None else {str(ranks): {**GOAL, "seconds": seconds}}
    options = {"scale": SCALE, "reference": reference, "settings": "as-installed", "memory_mib": 3000, **changes}
    found = assessment.assess(path, ranks=ranks, out=path.parent / "out", **options)
    assert json.loads((path.parent / "out" / "assessment.json").read_text())["passed"] == found.passed
    return found


def failing(found):
    """Feedback of what is not reached, by criterion."""
    assert not found.passed and found.points < found.max_points
    return {c.name: c.feedback for c in found.parts[-1].criteria if not c.passed}


def run_alone(folder, text, seconds=20.0, memory_mib=1024, ranks=1):
    """The supervisor's report on a script, without grading."""
    data = folder / "data"
    facts = FreshTask(Scale(train=20, val=10, edge=16), secret=7).write(data, ranks)
    (folder / "alone.py").write_text(text)
    how = {"engine": "kvstore", "settings": "as-installed", "memory": memory_mib, "seconds": seconds}
    return assessing._run(folder / "alone.py", data, facts, how, folder / "place")[0]


def left_of(folder):
    """Processes of a script in this folder of which any thread still runs."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if str(folder) in process.cwd() and lives(process.pid):
                found.append(process)
    return found


GOES_ON = """
import ctypes, os, threading, time
def train():
    while True:
        time.sleep(0.01)
"""
