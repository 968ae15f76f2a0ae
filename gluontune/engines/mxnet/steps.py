"""The kinds of training step: net and loss, the job's own ``step``, and a ``step`` that does its own updates.

A session drives any of them through :class:`StepKind` and knows no differences; a new kind is a class beside
these and a line here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.engines.methods import refuse_step
from gluontune.engines.mxnet.own_step import OwnStep, UpdatingStep
from gluontune.engines.mxnet.step import StepKind
from gluontune.engines.mxnet.usual_step import UsualStep

if TYPE_CHECKING:
    from gluontune.engines.mxnet.session import Session

__all__ = ["make_kind"]


def make_kind(session: Session) -> StepKind:
    """The kind of a session's job.

    Raises:
        UsageError: the recipe asks for what this kind cannot do; says why.
    """
    job, recipe = session.job, session.recipe
    if job.step is None:
        if isinstance(session.nets, dict):
            raise GluontuneError(
                f"{job.place('net')}net() returned several nets ({', '.join(session.nets)}), so the job must say what "
                "one step is: def step(nets, *batch): …"
            )
        return UsualStep(session)
    why = "the job's step() computes its own loss"
    refuse_step(recipe, job.place("step"), why, "loss", "validation")
    if {"mixup", "cutmix"} & set(recipe.methods):
        refuse_step(recipe, job.place("step"), why, "batch")
    if recipe.dtype == "float16":
        raise UsageError(
            f"recipe field dtype='float16': {job.place('step')}the job's step() chooses what its nets take; use float32"
        )
    if job.updates is None:
        return OwnStep(session)
    refuse_step(recipe, job.place("step"), "the job's step() does its own updates", "gradient")
    for field, wrong, way in (
        ("accumulate", recipe.accumulate > 1, "1"),
        ("engine", recipe.engine != "local", "'local'"),
        ("num_devices", len(session.ctxs) > 1, "1"),
    ):
        if wrong:
            raise UsageError(
                f"recipe field {field}={getattr(recipe, field)!r}: {job.place('step')}the job's step() does its own "
                f"updates, on one device; use {field}={way}"
            )
    return UpdatingStep(session)
