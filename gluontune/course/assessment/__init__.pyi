from gluontune.course.assessment.assessing import (
    Assessment as Assessment,
    assess as assess,
    new_script as new_script,
    solution as solution,
)
from gluontune.course.assessment.fresh import Scale as Scale
from gluontune.course.assessment.task import Task as Task
