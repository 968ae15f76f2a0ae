"""The assessment that ends the course: make a naive, serial training script fast, then make it work on two ranks.

Lesson 14 has the rules and what is graded; ``docs/threats.md`` what is done against cheating, and what is not detected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core import lazy

if TYPE_CHECKING:
    from gluontune.course.assessment.assessing import (
        Assessment as Assessment,
        assess as assess,
        new_script as new_script,
        solution as solution,
    )
    from gluontune.course.assessment.fresh import Scale as Scale
    from gluontune.course.assessment.task import Task as Task
else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
