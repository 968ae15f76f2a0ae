"""Training: one loop, in fresh processes of its own, driven from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune import lazy

if TYPE_CHECKING:
    from gluontune.train.callbacks import Callback as Callback
    from gluontune.train.callbacks import Moment as Moment
    from gluontune.train.driving import drive as drive
    from gluontune.train.elastic import Elastic as Elastic
    from gluontune.train.elastic import run_elastic as run_elastic
    from gluontune.train.group import Group as Group
    from gluontune.train.group import RunFailed as RunFailed
    from gluontune.train.job import Job as Job
    from gluontune.train.job import load_job as load_job
    from gluontune.train.metrics import make_score as make_score
    from gluontune.train.models import build_net as build_net
    from gluontune.train.models import net_names as net_names
    from gluontune.train.outcome import Outcome as Outcome
    from gluontune.train.resume import Checkpoints as Checkpoints
    from gluontune.train.running import run as run
    from gluontune.train.trained import load as load
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
