"""Exercises of the lessons 12 and 99: the assessment, and the learner's own project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluontune.course.exercises._registry import close, exercise, hint_for


@exercise("assessment-budget")
def _assessment_budget(answer: float, reference: Mapping[str, Mapping[str, float]]) -> str | None:
    """Twice the reference's time on two ranks."""
    if "2" not in reference:
        return "The two ranks were not run: one rank alone has to hand in a net first."
    truth = 2 * reference["2"]["seconds"]
    if close(answer, truth):
        return None
    return hint_for(
        answer,
        (truth / 2, "That is the reference's own time; the budget is twice as long."),
        (2 * reference["1"]["seconds"], "That is the budget on one rank; reference['2'] is the run on two."),
        otherwise="second.reference['2']['seconds'] is what the reference took on two ranks.",
    )


@exercise("rank-steps")
def _rank_steps(answer: float) -> str | None:
    """Whole steps of an epoch: half of 12,000 images in batches of 64."""
    if answer == 93:
        return None
    if answer == 187:
        return "Each rank has only half of the images."
    if answer == 94 or close(answer, 93.75, 0.001):
        return "Whole steps: what is left over makes no batch."
    if answer == 186:
        return "The ranks take their steps together: an epoch has as many as one of them takes."
    return "One rank has 12,000 / 2 images, and each step takes 64 of them."


@exercise("lucky-styles")
def _lucky_styles(answer: float) -> str | None:
    """12 guesses, each right once in ten times."""
    if close(answer, 1.2):
        return None
    return hint_for(
        answer,
        (0.1, "That is the chance of one style; there are 12."),
        (10, "Those are percent; the question asks for a number of styles."),
        otherwise="Each of the 12 styles is guessed right once in 10 times.",
    )


@exercise("recipe-field", takes="text")
def _recipe_field(answer: str, recipe: Any) -> str | None:
    """The field of a Recipe that names the learner's file."""
    if answer == "job":
        return None
    if answer in ("net", "dataset"):
        return f"{answer!r} names one from gluontune's lists; your own file brings both."
    if answer not in recipe.to_dict():
        return "That is no field of a Recipe: print(recipe.to_yaml()) shows them."
    return "Look in recipe.yaml for the line with the path of your file."


@exercise("speedup-hours")
def _speedup_hours(answer: float, speedup: float) -> str | None:
    """Hours that are left of a training of 24 hours."""
    truth = 24 / speedup
    if close(answer, truth):
        return None
    return hint_for(
        answer,
        (24 * speedup, "Faster means fewer hours: divide."),
        (24 - truth, "Those are the hours that you save; how many does it still take?"),
        otherwise="At so many times the speed, 24 hours become 24 divided by it.",
    )
