"""Exercises of the lesson 11: latency, throughput and agreement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gluontune.course.exercises._registry import close, exercise, hint_for


@exercise("batch-wait")
def _batch_wait(answer: float) -> str | None:
    """Milliseconds of a batch of 128 at 163.52 images/s."""
    truth = 1000 * 128 / 163.52
    if close(answer, truth, 0.01):
        return None
    return hint_for(
        answer,
        (truth / 1000, "Those are seconds; the question asks for milliseconds."),
        (1000 / 163.52, "That is the share of one image; but no image is answered before its batch is."),
        (13.04, "That is one image by itself; here 128 are on their way together."),
        (128 * 13.04, "So long 128 images take one by one; in a batch they are faster."),
        otherwise="128 images at 163.52 images a second: how many seconds, and how many milliseconds is that?",
    )


@exercise("tail-latency")
def _tail_latency(answer: float) -> str | None:
    """p99 of 985 times 4 ms and 15 times 50 ms."""
    if answer == 50:
        return None
    if answer == 4:
        return "That is p50, and p98 as well: 985 of 1,000 keep it, and p99 asks for 990."
    if close(answer, (985 * 4 + 15 * 50) / 1000):
        return "That is the mean, which no request ever took; a percentile is one of the times."
    if answer in (990, 985, 99):
        return "That is a place in the sorted times; which time stands there?"
    if 4 < answer < 50:
        return "No request took that long: there are only answers of 4 and of 50 ms."
    return "Sort the times. The 990th of 1,000 is the one that 99 % keep."


@exercise("write-agreement", takes="function")
def _write_agreement(answer: Callable[..., Any]) -> str | None:
    """Percent of rows whose largest entry is in the same place."""
    rng = np.random.default_rng(4)
    a = rng.normal(size=(40, 7))
    b = a + 0.8 * rng.normal(size=a.shape)
    truth = 100 * float((a.argmax(1) == b.argmax(1)).mean())
    try:
        found, same = float(answer(a, b)), float(answer(a, 2 * a))
    except Exception as error:
        return f"Called with two arrays (40, 7) it does not give a number: {error}"
    if close(found, truth) and close(same, 100):
        return None
    if close(found, truth / 100):
        return "That is a share of 1; the question asks for percent."
    if close(found, 100 * float((a.argmax(0) == b.argmax(0)).mean())):
        return "argmax over axis 0 finds an image for each class; the class of each image is over axis 1."
    if close(same, 0) or close(same, 100 * float(np.isclose(a, 2 * a).mean())):
        return "It compares the scores; two nets may score differently and still choose the same class."
    return f"For 40 images of which {round(truth * 0.4)} agree it shall give {truth:g}; yours gives {found:g}."
