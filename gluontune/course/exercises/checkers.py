"""Exercises about a measured result, this machine, a function of the learner, or gradients of several ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gluontune import runtime
from gluontune.course.exercises._registry import alike, calling, close, exercise, hint_for, values_of
from gluontune.optim import schedules
from gluontune.recipe.result import RunResult


@exercise("usable-cores", "machine['cpu']['usable_cores']", "number")
def _usable_cores(answer: float) -> str | None:
    """How many cores may training use here?"""
    if answer == runtime.usable_cores():
        return None
    logical = runtime.machine_facts()["cpu"]["logical_cores"]
    return hint_for(
        answer,
        (logical, "So many the machine has; affinity or a cgroup quota lets this process use fewer."),
        (lambda n: n != int(n), "Cores are counted whole here."),
        (lambda n: n > logical, f"That is more than the machine has: {logical}."),
        (lambda n: n < 1, "This notebook runs on one at least."),
        otherwise='Look at machine["cpu"]: one of its entries counts what this process may really use.', within=0,
    )  # fmt: skip


@exercise("omp-threads", "int(gt.runtime.launch_settings(processes=2).env['OMP_NUM_THREADS'])", "number")
def _omp_threads(answer: float) -> str | None:
    """Threads of each of two training processes on this machine."""
    truth, alone = (int(runtime.launch_settings(processes=n).env["OMP_NUM_THREADS"]) for n in (2, 1))
    if answer == truth:
        return None
    return hint_for(
        answer,
        (alone, "That is right for one process; two of them share the same cores."),
        (lambda n: n != int(n), "There is no part of a thread; what is left over stays free."),
        (lambda n: n > runtime.usable_cores(),
         "That is more threads than this process may use cores: they would wait for each other."),
        (lambda n: n < 1, "A process computes with one thread at least."),
        otherwise="Ask gt.runtime.launch_settings(processes=2) for its .env.", within=0,
    )  # fmt: skip


def _rate(result: RunResult) -> float:
    return result.samples_per_sec["median"] if result.samples_per_sec else math.nan


@exercise("epoch-seconds", "num_train / result.samples_per_sec['median']", "number")
def _epoch_seconds(answer: float, result: RunResult, num_train: int) -> str | None:
    """Seconds that an epoch over ``num_train`` images takes at the measured rate."""
    truth = num_train / _rate(result)
    steps = num_train / result.recipe["batch_size_per_device"]
    return None if close(answer, truth) else hint_for(
        answer,
        (truth / 60, "Those are minutes; the question asks for seconds."),
        (1 / truth, "Turn the fraction over: images divided by images a second gives seconds."),
        (steps, "That is the number of steps in the epoch; how long does it take to train that many images?"),
        otherwise="Divide the number of training images by result.samples_per_sec['median'].",
    )  # fmt: skip


@exercise("step-time-ms", "1000 * batch_size_per_device / result.samples_per_sec['median']", "number")
def _step_time_ms(answer: float, result: RunResult) -> str | None:
    """Milliseconds of one training step at the measured rate."""
    truth = 1000 * result.recipe["batch_size_per_device"] / _rate(result)
    return None if close(answer, truth) else hint_for(
        answer,
        (truth / 1000, "Those are seconds; the question asks for milliseconds."),
        (1000 / _rate(result), "That is the time of one image; a step takes a whole batch."),
        otherwise="A step trains one batch: batch size divided by images a second, in milliseconds.",
    )  # fmt: skip


@exercise("record-bytes", "(8 + 24 + payload + 3) // 4 * 4", "number")
def _record_bytes(answer: float, payload: int) -> str | None:
    """Bytes that a record with an image of ``payload`` bytes takes in the file."""
    body = 24 + payload
    return None if answer == 8 + body + -body % 4 else hint_for(
        answer,
        (payload, "That is the image alone; magic, length, flag, label and two ids stand before it."),
        (8 + body, "Nearly: the next record starts at a multiple of four, so zeros follow the image."),
        ((body, body + -body % 4), "You have counted flag, label and ids; magic and length come before them."),
        otherwise="Add up the table of fields: the image starts at byte 32, and the record ends at a multiple of four.",
        within=0,
    )  # fmt: skip


@exercise("write-partition", "lambda n, rank, world: list(range(n // world * world))[rank::world]")
def _write_partition(answer: Callable[..., Any]) -> str | None:
    """Equally many different images for each of 4 ranks, of 103."""
    n, world = 103, 4
    with calling("", ("", "Called with (103, 0, 4) it does not give a list of whole numbers.")):
        parts = [[int(i) for i in answer(n, rank, world)] for rank in range(world)]
    whole = [i for part in parts for i in part]
    if whole and not 0 <= min(whole) <= max(whole) < n:
        return f"The images are 0 to 102; it gives {min(whole)} to {max(whole)}."
    if len({tuple(part) for part in parts}) == 1:
        return "All ranks get the same images: then four of them do the work of one."
    if len({len(part) for part in parts}) > 1:
        sizes = ", ".join(str(len(part)) for part in parts)
        return f"For 103 images the ranks get {sizes}: whoever has more would wait for ever in the last exchange."
    if len(set(whole)) < len(whole):
        return "Some images are given to more than one rank."
    if len(whole) < n - world + 1:
        return f"{n - len(whole)} of 103 images are left out; at most 3 need to be."
    return None


@exercise("write-sgd", "lambda x, y, gx, gy, lr: (x - lr * gx, y - lr * gy)")
def _write_sgd(answer: Callable[..., Any]) -> str | None:
    """One update of plain gradient descent in two dimensions."""
    with calling("", ("", "Called with (1.0, 2.0, 4.0, -2.0, 0.5) it does not give two numbers.")):
        x, y = map(float, answer(1.0, 2.0, 4.0, -2.0, 0.5))
    return alike(
        np.array([x, y]),
        ((-1.0, 3.0), None),
        ((3.0, 1.0), "That goes uphill: the gradient points to where the loss grows, so subtract it."),
        ((-3.0, 4.0), "The gradient is to be multiplied by the rate first."),
        ((-2.0, 1.0), "That is the step alone; add it to where you are."),
        otherwise=f"From (1, 2), with gradient (4, -2) and rate 0.5, it shall go to (-1, 3); yours goes to "
        f"({x:g}, {y:g}).",
    )


@exercise("write-schedule", "s.warmup(s.cosine(base_lr=0.4, max_update=1000), warmup_steps=100)")
def _write_schedule(answer: Callable[[int], Any]) -> str | None:
    """A warm-up of 100 updates to 0.4, then a half cosine to 0 at update 1,000."""
    truth = schedules.warmup(schedules.cosine(base_lr=0.4, max_update=1000), warmup_steps=100)
    with calling("an update from 0 to 1,000"):
        found = {n: float(answer(n)) for n in (0, 50, 100, 325, 550, 775, 1000)}
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
    half_way = f"so half-way, at 550, the rate is 0.2; yours is {found[550]:.4g}."
    return f"The half cosine goes from update 100 to 1,000, {half_way}"


@exercise("write-agreement", "lambda a, b: 100 * (a.argmax(1) == b.argmax(1)).mean()")
def _write_agreement(answer: Callable[..., Any]) -> str | None:
    """Percent of rows whose largest entry is in the same place."""
    rng = np.random.default_rng(4)
    a = rng.normal(size=(40, 7))
    b = a + 0.8 * rng.normal(size=a.shape)
    truth = 100 * float((a.argmax(1) == b.argmax(1)).mean())
    with calling("", ("", "Called with two arrays (40, 7) it does not give a number.")):
        found, same = float(answer(a, b)), float(answer(a, 2 * a))
    if close(found, truth) and close(same, 100):
        return None
    if close(found, truth / 100):
        return "That is a share of 1; the question asks for percent."
    if close(found, 100 * float((a.argmax(0) == b.argmax(0)).mean())):
        return "argmax over axis 0 finds an image for each class; the class of each image is over axis 1."
    if close(same, 0) or close(same, 100 * float(np.isclose(a, 2 * a).mean())):
        return "It compares the scores; two nets may score differently and still choose the same class."
    return f"For 40 images of which {round(truth * 0.4)} agree it shall give {truth:g}; yours gives {found:g}."


@exercise("write-hard-sigmoid", "lambda x: np.clip(0.2 * x + 0.5, 0, 1)")
def _write_hard_sigmoid(answer: Callable[..., Any]) -> str | None:
    """min(max(0.2 x + 0.5, 0), 1)."""
    x = np.linspace(-6, 6, 49)
    with calling("a numpy array"):
        found = np.asarray(answer(x), float)
    if found.shape != x.shape:
        return f"For an array of shape {x.shape} it gives one of shape {found.shape}."
    cut = "0.2 times x, plus 0.5; what is below 0 becomes 0, what is above 1 becomes 1."
    return alike(
        found,
        (np.clip(0.2 * x + 0.5, 0, 1), None),
        (np.clip(x / 6 + 0.5, 0, 1), "That is PyTorch's: MXNet multiplies by 0.2, which is not 1/6."),
        (0.2 * x + 0.5, "Below 0 and above 1 it is cut off."),
        otherwise="No value may be below 0 or above 1." if found.min() < 0 or found.max() > 1 else cut, atol=1e-6,
    )  # fmt: skip


@exercise("assessment-budget", "2 * second.reference['2']['seconds']", "number")
def _assessment_budget(answer: float, reference: Mapping[str, Mapping[str, float]]) -> str | None:
    """Twice the reference's time on two ranks."""
    if "2" not in reference:
        return "The two ranks were not run: one rank alone has to hand in a net first."
    truth = 2 * reference["2"]["seconds"]
    return None if close(answer, truth) else hint_for(
        answer,
        (truth / 2, "That is the reference's own time; the budget is twice as long."),
        (2 * reference["1"]["seconds"], "That is the budget on one rank; reference['2'] is the run on two."),
        otherwise="second.reference['2']['seconds'] is what the reference took on two ranks.",
    )  # fmt: skip


@exercise("recipe-field", "'job'", "text")
def _recipe_field(answer: str, recipe: Any) -> str | None:
    """The field of a Recipe that names the learner's file."""
    if answer == "job":
        return None
    if answer in ("net", "dataset"):
        return f"{answer!r} names one from gluontune's lists; your own file brings both."
    if answer not in recipe.to_dict():
        return "That is no field of a Recipe: print(recipe.to_yaml()) shows them."
    return "Look in recipe.yaml for the line with the path of your file."


@exercise("speedup-hours", "24 / speedup", "number")
def _speedup_hours(answer: float, speedup: float) -> str | None:
    """Hours that are left of a training of 24 hours."""
    truth = 24 / speedup
    return None if close(answer, truth) else hint_for(
        answer,
        (24 * speedup, "Faster means fewer hours: divide."),
        (24 - truth, "Those are the hours that you save; how many does it still take?"),
        otherwise="At so many times the speed, 24 hours become 24 divided by it.",
    )  # fmt: skip


_ALLREDUCE = """
def all_reduce(grads):
    total = sum(g.as_in_context(grads[0].context) for g in grads)
    return [total.as_in_context(g.context) for g in grads]
all_reduce
"""


@exercise("write-allreduce", _ALLREDUCE)
def _write_allreduce(answer: Callable[..., Any]) -> str | None:
    """The sum of gradients that lie on several contexts, on each of them."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    parts = rng.normal(size=(int(rng.integers(3, 6)), 4, 3)).astype(np.float32)
    grads = [mx.nd.array(part, ctx=mx.cpu(i)) for i, part in enumerate(parts)]
    with calling(f"{len(parts)} gradients on cpu(0) to cpu({len(parts) - 1})"):
        found = list(answer(grads))
        values, places = [values_of(x) for x in found], [x.context for x in found]
    if len(found) != len(parts):
        return f"It shall give {len(parts)} arrays, one for each context; yours gives {len(found)}."
    mean = parts.mean(0), "That is the mean; gluon.Trainer expects the sum."
    first = parts[0], "That is the first device's gradient; the others are missing."
    if hint := alike(values[0], mean, first, otherwise="", atol=1e-5):
        return hint
    if any(value.shape != (4, 3) or not np.allclose(value, parts.sum(0), atol=1e-4) for value in values):
        return "Each of the arrays shall be the sum of all gradients."
    if places != [mx.cpu(i) for i in range(len(parts))]:
        return "The values are right, but each sum shall lie on the context of its gradient: as_in_context."
    return None


_RING = """
def turn(parts, t):
    n = len(parts)
    for rank in range(n):
        parts[(rank + 1) % n][(rank - t) % n] += parts[rank][(rank - t) % n]
turn
"""


@exercise("write-ring", _RING)
def _write_ring(answer: Callable[..., Any]) -> str | None:
    """One turn of the first half of a ring all-reduce, on pieces in numpy."""
    rng = np.random.default_rng()
    n = int(rng.integers(3, 7))
    start = rng.normal(size=(n, n, 2))
    parts = [[piece.copy() for piece in row] for row in start]
    for t in range(n - 1):
        before = np.array(parts)
        with calling(f"the pieces of {n} ranks and t={t}"):
            answer(parts, t)
            now = np.array(parts, dtype=np.float64)
        if now.shape != start.shape:
            return "The pieces keep their number and shape; only their values change."
        changed = (np.abs(now - before) > 1e-9).any(axis=2)
        if not changed.any():
            return f"Turn {t} changed nothing: add in place, with +=."
        if (changed.sum(axis=1) > 1).any():
            return f"In turn {t} a rank got {changed.sum(axis=1).max()} pieces; it shall get one, from its left."
        truth = before.copy()
        for rank in range(n):
            truth[(rank + 1) % n, (rank - t) % n] += before[rank, (rank - t) % n]
        if not np.allclose(now, truth):
            back = before.copy()
            for rank in range(n):
                back[rank - 1, (rank - t) % n] += before[rank, (rank - t) % n]
            if np.allclose(now, back):
                return "The pieces go the other way round: rank r sends to rank r + 1."
            return f"In turn {t} rank r sends its piece (r − t) mod n to rank r + 1, which adds it."
    return None
