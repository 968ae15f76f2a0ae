"""Exercises of the lessons 06, 08 and 09: batch size, optimizers, schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gluontune.course.exercises._registry import close, exercise, hint_for
from gluontune.optim import schedules


@exercise("multifactor-rate")
def _multifactor_rate(answer: float) -> str | None:
    """Rate of update 900 of the deck's multi-factor schedule."""
    if answer == 0.25:
        return None
    if answer == 0.125:
        return "A step takes effect once num_update exceeds it: which rate has update 900 itself?"
    if answer == 0.5:
        return "That is the rate between the updates 250 and 750; one more step has passed."
    if answer == 1:
        return "Two steps have passed by then, and each one halves the rate."
    return "Count the steps that lie below update 900; each one halves the rate of 1."


@exercise("step-update")
def _step_update(answer: float) -> str | None:
    """Half of the updates of 60 epochs over 50,000 images in batches of 128."""
    truth = 60 * (50_000 // 128) / 2
    if answer == truth:
        return None
    if answer == 30:
        return "That is the epoch; schedules count updates, one for each batch."
    if answer == 2 * truth:
        return "That is the whole run; the rate shall fall after half of it."
    if close(answer, 60 * 50_000 / 128 / 2, 0.004):
        return "Incomplete batches are left out, so an epoch has a whole number of updates: round down first."
    return "Updates of an epoch: images divided by the batch, rounded down. Then half of 60 epochs."


@exercise("write-schedule", takes="function")
def _write_schedule(answer: Callable[[int], Any]) -> str | None:
    """A warm-up of 100 updates to 0.4, then a half cosine to 0 at update 1,000."""
    truth = schedules.warmup(schedules.cosine(base_lr=0.4, max_update=1000), warmup_steps=100)
    try:
        found = {n: float(answer(n)) for n in (0, 50, 100, 325, 550, 775, 1000)}
    except Exception as error:
        return f"Called with an update from 0 to 1,000 it fails: {error}"
    if all(math.isclose(rate, truth(n), abs_tol=2e-3) for n, rate in found.items()):
        return None
    if not close(found[100], 0.4):
        return f"At update 100 the rate shall be 0.4; yours is {found[100]:.4g}."
    if not close(found[50], 0.2):
        return f"Half-way up, at update 50, the rate shall be 0.2; yours is {found[50]:.4g}."
    if abs(found[1000]) > 1e-3:
        return f"At update 1,000 the rate shall be 0; yours is {found[1000]:.4g}."
    if close(found[550], 0.2) and close(found[325], 0.3):
        return "It falls in a straight line; a half cosine is slow at both ends."
    return (
        "The half cosine goes from update 100 to 1,000, so half-way, at 550, the rate is 0.2; "
        f"yours is {found[550]:.4g}."
    )


@exercise("updates-per-epoch")
def _updates_per_epoch(answer: float) -> str | None:
    """Updates of an epoch over 10,000 images in batches of 50."""
    if answer == 200:
        return None
    if answer == 10_000:
        return "That is stochastic descent, an update for each image; here 50 images share one."
    if answer == 1:
        return "That is full descent, one update for all images."
    if answer == 500_000:
        return "Divide the images by the batch; you have multiplied."
    return "Each update looks at one batch, and an epoch at every image once."


@exercise("momentum-step")
def _momentum_step(answer: float) -> str | None:
    """Limit of the steps: 0.1 · (1 + 0.9 + 0.81 + …)."""
    if close(answer, 1.0):
        return None
    return hint_for(
        answer,
        (0.1, "That is the first step; momentum adds 0.9 times the step before it to each one."),
        (0.19, "That is the second step; add further ones until they no longer grow."),
        (10, "So many times the plain step it becomes; multiply by the rate."),
        otherwise="In the end a step v keeps its length: v = 0.9 · v + 0.1 · 1. Solve for v.",
    )


@exercise("write-sgd", takes="function")
def _write_sgd(answer: Callable[..., Any]) -> str | None:
    """One update of plain gradient descent in two dimensions."""
    try:
        x, y = answer(1.0, 2.0, 4.0, -2.0, 0.5)
        x, y = float(x), float(y)
    except Exception as error:
        return f"Called with (1.0, 2.0, 4.0, -2.0, 0.5) it does not give two numbers: {error}"
    if close(x, -1.0) and close(y, 3.0):
        return None
    if close(x, 3.0) and close(y, 1.0):
        return "That goes uphill: the gradient points to where the loss grows, so subtract it."
    if close(x, -3.0) and close(y, 4.0):
        return "The gradient is to be multiplied by the rate first."
    if close(x, -2.0) and close(y, 1.0):
        return "That is the step alone; add it to where you are."
    return f"From (1, 2), with gradient (4, -2) and rate 0.5, it shall go to (-1, 3); yours goes to ({x:g}, {y:g})."


@exercise("linear-rule")
def _linear_rule(answer: float) -> str | None:
    """Rate for 1,024 where 0.1 suits 256."""
    if close(answer, 0.4):
        return None
    return hint_for(
        answer,
        (0.2, "That is the square-root rule; the linear one multiplies the rate as the batch."),
        (0.025, "The rate grows with the batch: each of the fewer steps must go further."),
        (0.1, "That leaves the rate as it is, for a quarter of the steps."),
        otherwise="The batch is four times as large; so is the rate.",
    )


@exercise("noise-share")
def _noise_share(answer: float) -> str | None:
    """Share to which a mean over 16 times as many images lowers the noise."""
    if close(answer, 0.25):
        return None
    return hint_for(
        answer,
        (1 / 16, "So the variance falls; the noise itself is its root."),
        (4, "Noise falls: turn the fraction over."),
        (25, "Those are percent; give the share, between 0 and 1."),
        otherwise="The mean over n images scatters like one over the root of n, and n is 16 times as large.",
    )


@exercise("large-batch-updates")
def _large_batch_updates(answer: float) -> str | None:
    """Updates of 30 epochs over 50,000 images in batches of 1,000."""
    if answer == 1500:
        return None
    if answer == 50:
        return "That is one epoch; there are 30."
    if answer == 1_500_000:
        return "Those are the images that are looked at; a batch of them makes one update."
    if answer == 30_000:
        return "Divide the images by the batch; the batch size itself does not count updates."
    return "Updates of an epoch: 50,000 / 1,000. Then 30 epochs."
