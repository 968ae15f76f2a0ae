"""What a search over weights asks of a training process: other weights, another optimizer, a score, a step back.

A process serves many individuals of a population one after another (:func:`gluontune.ladder.esgd`): building a net
and opening the data take longer than some generations. All that an individual draws (order, augmentation, dropout)
is seeded from the recipe's seed and the individual's own number, so it does not matter which process trains it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gluontune import compute
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import atomic_write, read_npz
from gluontune.engines.mxnet.snapshot import parameters, seed_step, weights_of
from gluontune.engines.mxnet.trainer import make_trainers
from gluontune.job.arrays import parts_of, to_numpy
from gluontune.job.checkpoint import check_same_net
from gluontune.job.metrics import hits_of
from gluontune.optim import states
from gluontune.runtime import set_data

if TYPE_CHECKING:
    from gluontune.engines.mxnet.session import Session

__all__ = ["answer", "read_weights", "write_weights"]

_EPOCHS = 100_000  # of one individual: the next one's epochs begin after them


def answer(session: Session, what: str, given: dict[str, Any]) -> dict[str, Any]:
    """Carry out one command: ``adopt``, ``mark``, ``back_off``, ``score`` or ``write``."""
    if session.world > 1:
        raise UsageError("a population is trained by processes of one rank each: use engine='local'")
    if session.recipe.methods:
        raise UsageError("recipe field methods: a population trains without; use methods={}")
    if session.kind.name != "usual" or session.score.name != "accuracy":
        raise UsageError(
            f"recipe field job={session.recipe.job!r}: a population is compared by the accuracy of net(x); this "
            f"job has {'a step() of its own' if session.kind.name != 'usual' else f'the metric {session.score.name}'}"
        )
    found: dict[str, Any] | None = _COMMANDS[what](session, **given)
    return found or {}


def _adopt(
    session: Session,
    *,
    weights: str | None,
    changes: dict[str, Any],
    number: int,
    total_updates: int,
    start: int | None = None,
) -> None:
    """Become an individual.

    Args:
        weights: file of its parameters; None: the recipe's seeded start.
        changes: fields of the recipe: its optimizer and hyper-parameters.
        number: its number in the whole search; says which epochs and random numbers are its own.
        total_updates: length of its schedule.
        start: seed of its own start, in place of the recipe's, where ``weights`` is None.
    """
    session.phase = "taking over an individual"
    session.fresh = False
    session.close_batches()
    seed_step(session.recipe.seed, number)
    if weights is not None:
        _put(session, read_weights(weights), weights)
    elif start is not None:
        mx = session.mx
        mx.random.seed(start)
        session.net.initialize(compute.FirstValues(), ctx=session.ctxs, force_reinit=True)
    else:
        session.put_initial()
    session.trainers = make_trainers(session, session.recipe.override(**changes), total_updates)
    session.epoch, session.steps_taken = number * _EPOCHS, number * _EPOCHS
    session.marked = None


def _mark(session: Session) -> None:
    """Remember parameters and optimizer as they are now."""
    session.marked = (weights_of(session), states.capture(session.trainer))


def _back_off(session: Session) -> None:
    """Go back to what was marked; the batches go on, so that the next step is another one."""
    weights, (header, arrays) = session.marked
    _put(session, weights, "the step before")
    states.restore(session.trainer, header, arrays, "the step before")


def _score(session: Session) -> dict[str, Any]:
    """Loss and accuracy over the validation images: those at even places are for choosing, the others for telling.

    Returns:
        ``{"fitness", "fitness_accuracy", "loss", "accuracy", "samples"}``; the first two are of the even places,
        the next two of the odd ones. A loss that is not finite is None.
    """
    session.phase = "scoring"
    place = 0
    sums = np.zeros((2, 3))  # loss, hits, images by parity
    session.kind.begin(False)
    for batch in session.feed.val.epoch(0):
        for where, part in enumerate(parts_of(batch, session.ctxs)):
            outcome = session.kind.evaluate(where, part)
            losses, hits = to_numpy(outcome.loss), hits_of(session.kind.loss, outcome)
            for parity in (0, 1):
                own = slice((place + parity) % 2, None, 2)
                sums[parity] += losses[own].sum(), hits[own].sum(), len(losses[own])
            place += len(losses)
    if place < 2:
        raise GluontuneError("a score needs at least two validation images")
    loss, hits = sums[:, 0] / sums[:, 2], sums[:, 1] / sums[:, 2]
    return {
        "fitness": _finite(loss[0]),
        "fitness_accuracy": float(hits[0]),
        "loss": _finite(loss[1]),
        "accuracy": float(hits[1]),
        "samples": place,
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _write(session: Session, *, path: str) -> dict[str, Any]:
    """Write the parameters; tell which of them are not trained."""
    write_weights(path, weights_of(session))
    fixed = [name for name, parameter in parameters(session.net) if parameter.grad_req == "null"]
    return {"fixed": fixed}


_COMMANDS: dict[str, Any] = {
    "adopt": _adopt, "mark": _mark, "back_off": _back_off, "score": _score, "write": _write,
}  # fmt: skip


def _put(session: Session, weights: dict[str, np.ndarray], source: str) -> None:
    mine = dict(parameters(session.net))
    check_same_net(mine, weights, source)
    for name, parameter in mine.items():
        set_data(parameter, session.array(weights[name], parameter.dtype))


def write_weights(path: str | Path, weights: dict[str, np.ndarray]) -> None:
    """Parameters by their place in the net, as a zip of numpy arrays (no pickle)."""
    with atomic_write(path) as stream:
        np.savez(stream, **weights)


def read_weights(path: str | Path) -> dict[str, np.ndarray]:
    """What :func:`write_weights` wrote.

    Raises:
        GluontuneError: no such file, or not a whole one.
    """
    try:
        return read_npz(path)
    except FileNotFoundError:
        raise GluontuneError(f"{path}: no such file of an individual's parameters") from None
    except (OSError, ValueError):
        raise GluontuneError(f"{path}: not a whole file of an individual's parameters") from None
