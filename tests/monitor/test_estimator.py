"""The monitor as an event handler of a real Gluon Estimator."""

from __future__ import annotations

import importlib

import pytest

from gluontune.monitor import Monitor, estimator_handler
from gluontune.runtime import mxnet


@pytest.mark.mxnet
@pytest.mark.process
def test_an_estimator_starts_marks_and_stops_the_monitor():
    mx = mxnet()
    estimators = importlib.import_module("mxnet.gluon.contrib.estimator")
    data = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(mx.nd.ones((32, 4)), mx.nd.zeros((32,))), 8)
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    monitor = Monitor(period_s=0.02, gpus="none")
    estimator = estimators.Estimator(
        net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), train_metrics=mx.metric.Accuracy(), context=mx.cpu()
    )
    estimator.fit(data, val_data=data, epochs=2, event_handlers=[estimator_handler(monitor)])
    names = [mark["name"] for mark in monitor.series()["marks"]]
    assert names == ["train", None, "train", None, None]
    assert len(monitor.spans("train")) == 2
    assert monitor.taken >= 1 and monitor.faults == 0
    taken = monitor.taken
    assert monitor.sample() is not None and monitor.taken <= taken + 1  # the thread has ended
