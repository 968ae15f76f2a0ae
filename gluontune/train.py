"""Training: one loop, in fresh processes of its own, driven from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.job.batches import Outcome as Outcome, make_score as make_score
    from gluontune.job.job import Job as Job, build_net as build_net, load_job as load_job, net_names as net_names
    from gluontune.job.trained import load as load
    from gluontune.training.api import run as run
    from gluontune.training.elastic import Elastic as Elastic, run_elastic as run_elastic
    from gluontune.training.group import Group as Group, RunFailed as RunFailed
    from gluontune.training.hooks import Callback as Callback, Checkpoints as Checkpoints, Moment as Moment
    from gluontune.training.loop import drive as drive
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
