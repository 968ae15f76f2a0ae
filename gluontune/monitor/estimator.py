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

    Example::

        watch = gt.monitor.Monitor()
        estimator.fit(train_data, epochs=3, event_handlers=[gt.monitor.estimator_handler(watch)])
        print(watch.steadiness("train"))
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
