"""What the notebooks share: predictions, figures, exercises with hints, and their pairing with scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.course.assessment.assessing import assess as assess
    from gluontune.course.assessment.task import task as task
    from gluontune.course.exercises import EXERCISES as EXERCISES
    from gluontune.course.exercises import check as check
    from gluontune.course.exercises import compare as compare
    from gluontune.course.exercises import predict as predict
    from gluontune.course.experiments import as_files as as_files
    from gluontune.course.experiments import feed as feed
    from gluontune.course.experiments import flip_bit as flip_bit
    from gluontune.course.experiments import in_turn as in_turn
    from gluontune.course.experiments import kept_folder as kept_folder
    from gluontune.course.experiments import kept_run as kept_run
    from gluontune.course.experiments import kept_study as kept_study
    from gluontune.course.experiments import loading_rate as loading_rate
    from gluontune.course.experiments import onednn as onednn
    from gluontune.course.experiments import record_fields as record_fields
    from gluontune.course.figures import accuracy_bands as accuracy_bands
    from gluontune.course.figures import composition as composition
    from gluontune.course.figures import race_table as race_table
    from gluontune.course.figures import show as show
    from gluontune.course.figures import table as table
    from gluontune.course.memory import deck_graph_memory as deck_graph_memory
    from gluontune.course.memory import folded as folded
    from gluontune.course.memory import net_memory as net_memory
    from gluontune.course.pictures import picture as picture
    from gluontune.course.plots import bars as bars
    from gluontune.course.plots import lines as lines
    from gluontune.course.plots import paths as paths
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
