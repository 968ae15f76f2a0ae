"""The monitor as an event handler of Gluon's ``Estimator``."""

from __future__ import annotations

import importlib
from typing import Any

from gluontune.monitor.sampler import Monitor

__all__ = ["estimator_handler"]


def estimator_handler(monitor: Monitor) -> Any:
    """An event handler that monitors ``Estimator.fit``: give it in ``event_handlers``.

    It starts the monitor with the training and stops it at its end, and marks each epoch ``"train"`` from
    its beginning to its end; validation and checkpoints at the end of an epoch are not marked.

    Args:
        monitor: a monitor that has not been started.

    Returns:
        An object of mxnet's ``TrainBegin``, ``TrainEnd``, ``EpochBegin`` and ``EpochEnd``.

    >>> from gluontune.runtime import mxnet
    >>> mx = mxnet()
    >>> from mxnet.gluon.contrib.estimator import Estimator
    >>> net = mx.gluon.nn.Dense(2)
    >>> net.initialize()
    >>> loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    >>> estimator = Estimator(net, loss, train_metrics=mx.metric.Accuracy(), trainer=trainer, context=mx.cpu())
    >>> data = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(mx.nd.ones((16, 4)), mx.nd.zeros((16,))), 8)
    >>> watch = Monitor(period_s=0.02, gpus="none")
    >>> estimator.fit(data, epochs=1, event_handlers=[estimator_handler(watch)])  # doctest: +ELLIPSIS
    Training begin: ...
    >>> [mark["name"] for mark in watch.series()["marks"]][:2]
    ['train', None]
    """
    from gluontune.runtime import mxnet

    mxnet()
    events = importlib.import_module("mxnet.gluon.contrib.estimator.event_handler")
    bases = (events.TrainBegin, events.TrainEnd, events.EpochBegin, events.EpochEnd)

    def train_begin(self: Any, estimator: Any, *args: Any, **kwargs: Any) -> None:
        monitor.start()

    def epoch_begin(self: Any, estimator: Any, *args: Any, **kwargs: Any) -> None:
        monitor.mark("train")

    def epoch_end(self: Any, estimator: Any, *args: Any, **kwargs: Any) -> None:
        monitor.mark(None)

    def train_end(self: Any, estimator: Any, *args: Any, **kwargs: Any) -> None:
        monitor.mark(None)
        monitor.stop()

    methods = {f.__name__: f for f in (train_begin, epoch_begin, epoch_end, train_end)}
    # Handlers run by their priority: ours ends the marked time before validation (-1000) begins.
    return type("MonitorHandler", bases, {**methods, "priority": -2000})()
