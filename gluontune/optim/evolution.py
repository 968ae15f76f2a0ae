"""The rules of evolutionary SGD on numpy arrays; fitness is a loss, NaN infinite. The loop is ``gt.ladder.esgd``.

Cui, Zhang, Tüske & Picheny, *Evolutionary Stochastic Gradient Descent for Optimization of Deep Neural Networks*,
NeurIPS 2018, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune.core.errors import UsageError
from gluontune.optim.cards import OPTIMIZERS

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Entry:
    """One optimizer of the pool, with the ranges of its hyper-parameters.

    Args:
        optimizer: a name of :data:`gluontune.optim.OPTIMIZERS`.
        learning_rate: smallest and largest rate; drawn evenly on a logarithmic scale.
        momentum: smallest and largest momentum, drawn evenly; None if the optimizer has none.
    """

    optimizer: str
    learning_rate: tuple[float, float]
    momentum: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        card = OPTIMIZERS[self.optimizer]
        low, high = self.learning_rate
        if not 0 < low <= high < math.inf:
            raise UsageError(
                f"pool {self.optimizer!r}: learning_rate={self.learning_rate!r}: give 0 < lowest <= highest"
            )
        if self.momentum is not None and not 0 <= self.momentum[0] <= self.momentum[1] < 1:
            raise UsageError(f"pool {self.optimizer!r}: momentum={self.momentum!r}: give 0 <= lowest <= highest < 1")
        if self.momentum is not None and not card.momentum:
            raise UsageError(f"pool {self.optimizer!r}: this optimizer takes no momentum; leave it out")


#: The pool of the paper: SGD without and with momentum, Nesterov's, and Adam.
POOL = (Entry("sgd", (0.01, 0.2), (0.0, 0.9)), Entry("nag", (0.01, 0.2), (0.5, 0.95)), Entry("adam", (3e-4, 3e-3)))


def annealed(generation: int, generations: int, final: float) -> float:
    """The factor on the rates of a generation: 1 in the first, ``final`` in the last, a power law between.

    >>> [round(annealed(k, 3, 0.01), 3) for k in (1, 2, 3)]
    [1.0, 0.1, 0.01]
    """
    if not 1 <= generation <= generations:
        raise UsageError(f"generation={generation}: give a number from 1 to {generations}")
    if not 0 < final <= 1:
        raise UsageError(f"final_rate={final!r}: give a share above 0 and at most 1")
    return 1.0 if generations == 1 else float(final ** ((generation - 1) / (generations - 1)))


def draw(pool: Sequence[Entry], rng: np.random.Generator, factor: float = 1.0) -> dict[str, Any]:
    """An optimizer with its hyper-parameters: ``{"optimizer", "learning_rate", "momentum"}``, fields of a Recipe.

    ``factor`` is on the rate; see :func:`annealed`.
    """
    if not pool:
        raise UsageError("pool=(): give at least one optimizer with its ranges")
    entry = pool[int(rng.integers(len(pool)))]
    low, high = (math.log(value) for value in entry.learning_rate)
    rate = math.exp(rng.uniform(low, high)) * factor
    momentum = rng.uniform(*entry.momentum) if entry.momentum is not None else 0.0
    return {"optimizer": entry.optimizer, "learning_rate": float(rate), "momentum": float(momentum)}


def parents(fitness: Sequence[float], count: int, rng: np.random.Generator) -> list[int]:
    """``count`` different individuals, drawn with weights that fall evenly from the best rank to the worst.

    A roulette wheel over ranks (Baker, 1985), which does not depend on the unit of the losses. Individuals without a
    finite fitness have no descendants.
    """
    able = [place for place in ranked(fitness) if math.isfinite(fitness[place])]
    if not 0 < count <= len(able):
        raise UsageError(f"parents={count}: {len(able)} individuals have a finite fitness")
    weights = np.arange(len(able), 0, -1, dtype=float)
    drawn = rng.choice(len(able), size=count, replace=False, p=weights / weights.sum())
    return [able[int(place)] for place in drawn]


def recombine(chosen: Sequence[Mapping[str, np.ndarray]]) -> Weights:
    """The mean of the parents' parameters (intermediate recombination), running statistics included."""
    if not chosen:
        raise UsageError("recombine: give at least one parent")
    return {
        name: np.mean([np.asarray(one[name], dtype=np.float64) for one in chosen], axis=0).astype(value.dtype)
        for name, value in chosen[0].items()
    }


def mutate(
    weights: Mapping[str, np.ndarray], sigma: float, rng: np.random.Generator, fixed: Sequence[str] = ()
) -> Weights:
    """Add Gaussian noise: ``sigma`` times the root mean square of each array, so that one number fits all layers.

    The paper adds the same absolute noise to every weight. An array of zeros, and those ``fixed`` (running means and
    variances), stay unchanged. :func:`gluontune.ladder.esgd` lets ``sigma`` fall as 1 ÷ generation.
    """
    if not (math.isfinite(sigma) and sigma >= 0):
        raise UsageError(f"sigma={sigma!r}: give a finite number of at least 0")
    changed: Weights = {}
    for name in sorted(weights):  # the same noise in any order
        value = np.asarray(weights[name])
        if name not in fixed and sigma > 0:
            scale = sigma * math.sqrt(float(np.mean(np.square(value, dtype=np.float64))))
            value = (value + scale * rng.standard_normal(value.shape)).astype(value.dtype)
        changed[name] = value
    return changed


def select(fitness: Sequence[float], size: int, elite: int, rng: np.random.Generator) -> list[int]:
    """The next population of parents and offspring: the ``elite`` best, and ``size - elite`` of the others at random.

    Those without a finite fitness are taken only if the others are too few. Returns their places, the best first.

    >>> select([0.4, 0.1, float("nan"), 0.3, 0.2], 3, 2, np.random.default_rng(0))[:2]
    [1, 4]
    """
    if not 0 <= elite <= size <= len(fitness):
        raise UsageError(f"elite={elite}, population={size}, candidates={len(fitness)}: they must not fall")
    order, wanted = ranked(fitness), size - elite
    rest = order[elite:]  # those without a finite fitness come last
    able = sum(math.isfinite(fitness[place]) for place in rest)
    drawn = [rest[int(k)] for k in rng.permutation(able)[:wanted]]
    drawn += rest[able : able + wanted - len(drawn)]
    return order[:elite] + sorted(drawn, key=order.index)


def ranked_value(fitness: float | None) -> float:
    """A fitness as a sort key: infinity if unknown or not finite.

    >>> ranked_value(0.5), ranked_value(None)
    (0.5, inf)
    """
    return math.inf if fitness is None or not math.isfinite(fitness) else float(fitness)


def ranked(fitness: Sequence[float]) -> list[int]:
    """Places from the best to the worst, NaN last; equal ones keep their order."""
    return sorted(range(len(fitness)), key=lambda k: ranked_value(fitness[k]))
