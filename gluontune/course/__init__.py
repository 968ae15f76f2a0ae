"""Parts that the notebooks share: predictions, figures, exercises with hints, experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.course.assessment.assessing import assess as assess
    from gluontune.course.assessment.task import task as task
    from gluontune.course.exercises import (
        EXERCISES as EXERCISES,
        check as check,
        compare as compare,
        predict as predict,
    )
    from gluontune.course.experiments import (
        as_files as as_files,
        feed as feed,
        flip_bit as flip_bit,
        in_turn as in_turn,
        kept_folder as kept_folder,
        kept_run as kept_run,
        kept_study as kept_study,
        loading_rate as loading_rate,
        onednn as onednn,
        pixels_of as pixels_of,
        record_fields as record_fields,
    )
    from gluontune.course.figures import (
        accuracy_bands as accuracy_bands,
        composition as composition,
        picture as picture,
        race_table as race_table,
        show as show,
        table as table,
    )
    from gluontune.course.memory import (
        deck_graph_memory as deck_graph_memory,
        folded as folded,
        net_memory as net_memory,
    )
    from gluontune.course.plots import bars as bars, lines as lines, paths as paths
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
