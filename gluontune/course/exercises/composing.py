"""Exercises of the lesson 10: composing factors, and what they cost."""

from __future__ import annotations

from gluontune.course.exercises._registry import close, exercise, hint_for


@exercise("measured-promised")
def _measured_promised(answer: float) -> str | None:
    """4.5 of 2 · 3."""
    if close(answer, 0.75, 0.01):
        return None
    return hint_for(
        answer,
        (4.5 / 5, "Gains multiply, they are not added: 2 times as fast, and that 3 times."),
        (6, "That is the promise itself; which share of it was measured?"),
        (6 / 4.5, "Turn the fraction over: above 1 would say that they give more than promised."),
        ((4.5 / 3, 4.5 / 2), "Divide by what both of them promise together, not by one of the two."),
        otherwise="The promise is the product of the gains alone; divide 4.5 by it.",
    )


@exercise("left-out")
def _left_out(answer: float) -> str | None:
    """8 / 10."""
    if close(answer, 0.8, 0.01):
        return None
    if close(answer, 1.25):
        return "Turn the fraction over: with the batch it is slower, so the batch brings less than 1."
    if answer in (2, -2):
        return "Gains are ratios: give the ratio, not the difference."
    return hint_for(
        answer,
        (8, "That is the gain of all of them over the base; what is the batch's own part in it?"),
        (10, "That is the gain without the batch; compare the gain with it."),
        otherwise="The gain with the batch, divided by the gain without it.",
    )


@exercise("cost-of-four")
def _cost_of_four(answer: float) -> str | None:
    """4 devices, 3 dollars an hour each, a third of an hour."""
    if close(answer, 4, 0.01):
        return None
    return hint_for(
        answer,
        (1, "So much one device costs for 20 minutes; there are four."),
        (12, "That is the whole hour; they are done after 20 minutes."),
        (3, "That is the single device: three times as fast on four times the devices is not the same price."),
        otherwise="Four devices, 3 dollars an hour each, for a third of an hour.",
    )
