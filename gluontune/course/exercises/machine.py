"""Exercises of the lessons 00 and 01: the machine, and the naive script."""

from __future__ import annotations

import math

from gluontune import runtime
from gluontune.course.exercises._registry import close, exercise, hint_for
from gluontune.recipe.result import RunResult


@exercise("usable-cores")
def _usable_cores(answer: float) -> str | None:
    """How many cores may training use here?"""
    truth = runtime.usable_cores()
    if answer == truth:
        return None
    logical = runtime.machine_facts()["cpu"]["logical_cores"]
    if answer == logical:
        return "So many the machine has; affinity or a cgroup quota lets this process use fewer."
    if answer != int(answer):
        return "Cores are counted whole here."
    if answer > logical:
        return f"That is more than the machine has: {logical}."
    if answer < 1:
        return "This notebook runs on one at least."
    return 'Look at machine["cpu"]: one of its entries counts what this process may really use.'


@exercise("omp-threads")
def _omp_threads(answer: float) -> str | None:
    """Threads of each of two training processes on this machine."""
    truth = int(runtime.launch_settings(processes=2).env["OMP_NUM_THREADS"])
    if answer == truth:
        return None
    if answer == int(runtime.launch_settings().env["OMP_NUM_THREADS"]):
        return "That is right for one process; two of them share the same cores."
    if answer != int(answer):
        return "There is no part of a thread; what is left over stays free."
    if answer > runtime.usable_cores():
        return "That is more threads than this process may use cores: they would wait for each other."
    if answer < 1:
        return "A process computes with one thread at least."
    return "Ask gt.runtime.launch_settings(processes=2) for its .env."


@exercise("epoch-seconds")
def _epoch_seconds(answer: float, result: RunResult, num_train: int) -> str | None:
    """Seconds that an epoch over ``num_train`` images takes at the measured rate."""
    rate = result.samples_per_sec["median"] if result.samples_per_sec else math.nan
    truth = num_train / rate
    if close(answer, truth):
        return None
    return hint_for(
        answer,
        (truth / 60, "Those are minutes; the question asks for seconds."),
        (1 / truth, "Turn the fraction over: images divided by images a second gives seconds."),
        (
            num_train / result.recipe["batch_size_per_device"],
            "That is the number of steps in the epoch; how long does it take to train that many images?",
        ),
        otherwise="Divide the number of training images by result.samples_per_sec['median'].",
    )


@exercise("step-time-ms")
def _step_time_ms(answer: float, result: RunResult) -> str | None:
    """Milliseconds of one training step at the measured rate."""
    rate = result.samples_per_sec["median"] if result.samples_per_sec else math.nan
    truth = 1000 * result.recipe["batch_size_per_device"] / rate
    if close(answer, truth):
        return None
    return hint_for(
        answer,
        (truth / 1000, "Those are seconds; the question asks for milliseconds."),
        (1000 / rate, "That is the time of one image; a step takes a whole batch."),
        otherwise="A step trains one batch: batch size divided by images a second, in milliseconds.",
    )
