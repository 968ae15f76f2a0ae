"""Commands of MXNet's engine alone: the speed of the net and of the exchange, and individuals of a population.

A process trains many individuals in turn (:func:`gluontune.ladder.esgd`), as building a net and opening the data take
longer than some generations. Their random numbers are seeded by the recipe's seed and their number: any process can.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gluontune import compute
from gluontune.core.arrays import mapped
from gluontune.core.errors import GluontuneError
from gluontune.engines.mxnet.context import Context, Optimization, seed_step
from gluontune.engines.mxnet.steps import Step
from gluontune.engines.mxnet.work import Work
from gluontune.engines.progress import Progress, repeat
from gluontune.job.batches import finite, hits_of, read_weights, to_numpy, write_weights
from gluontune.job.checkpoint import check_same_net
from gluontune.optim.trainer import capture_states, restore_states
from gluontune.parallel.kvstore import median_ms, push_and_pull
from gluontune.recipe import Recipe
from gluontune.runtime import set_data

_LEAST_STEPS = 3
_OWN_KEYS = 10_000_000
_EPOCHS = 100_000  # of one individual: the next one's epochs follow


def training_alone(
    mx: Any, progress: Progress, steps: Callable[[int], Any], batch_sizes: Iterable[int], seconds: float
) -> dict[str, dict[str, float]]:
    """Training steps on a ready batch, for each batch size. The parameters change: reset afterwards.

    Args:
        steps: takes a number of training steps. batch_sizes: images of this process in a step.
        seconds: training time of each size, after two steps that compile.

    Returns:
        ``{str(batch size): {"step_time_ms", "samples_per_sec", "cpu_ms_per_sample"}}``.
    """
    ready = progress.next_batch()
    found = {}
    for size in batch_sizes:
        progress.repeated = tuple(mapped(functools.partial(_resized, mx, size), list(ready)))
        try:
            steps(2)
            count, took, cpu = repeat(lambda: bool(steps(_LEAST_STEPS)) * _LEAST_STEPS, seconds)
        finally:
            progress.repeated = None
        found[str(size)] = {
            "step_time_ms": 1e3 * took / count,
            "samples_per_sec": size * count / took,
            "cpu_ms_per_sample": 1e3 * cpu / count / size,
        }
    return found


def gradients(net: Any) -> dict[str, int]:
    """The gradients that a step of this net exchanges: ``{"bytes", "tensors"}``."""
    held = [p.list_grad()[0] for p in net.collect_params().values() if p.grad_req != "null"]
    sizes = [int(np.prod(g.shape, dtype=np.int64)) * np.dtype(g.dtype).itemsize for g in held]
    return {"bytes": sum(sizes), "tensors": len(sizes)}


def exchange_alone(
    context: Context, optimization: Optimization, sizes: list[list[int]], repeats: int
) -> list[dict[str, float]]:
    """The ranks' exchange without training; called on all ranks.

    Args:
        sizes: ``[number of tensors, float32 values in each]`` of each exchange.
        repeats: of each, after two for warm-up.

    Returns:
        ``{"bytes", "tensors", "ms"}`` of each, the median time.
    """
    nd, found = context.mx.nd, []
    for place, (tensors, values) in enumerate(sizes):
        arrays = [nd.zeros((values,), ctx=context.ctxs[0]) for _ in range(tensors)]
        if context.exchange is not None:
            exchange: Callable[[], Any] = functools.partial(context.exchange.sum_gradients, arrays)
        else:
            store = optimization.trainer._kvstore or context.mx.kv.create("device")
            keys = [_OWN_KEYS + 10_000 * place + number for number in range(tensors)]  # beside the parameters'
            store.init(keys, arrays)
            exchange = functools.partial(push_and_pull, store, keys, arrays)
        found.append({"bytes": 4.0 * values * tensors, "tensors": tensors, "ms": median_ms(exchange, repeats, 2)})
    return found


def _resized(mx: Any, size: int, array: Any) -> Any:
    """The batch cut or repeated to ``size`` rows."""
    copies = [array] * -(-size // array.shape[0])
    if isinstance(array, np.ndarray):
        return np.concatenate(copies)[:size]
    if len(copies) > 1:
        array = mx.np.concatenate(copies) if mx.util.is_np_array() else mx.nd.concat(*copies, dim=0)
    return array[:size].copy()


class Population:
    """A search over weights in a training process: other weights, another optimizer, a score, a step back."""

    def __init__(
        self, recipe: Recipe, work: Work, step: Step, optimization: Optimization, progress: Progress,
        begin: Callable[[Recipe, int], None],
    ):  # fmt: skip
        self.recipe, self.work, self.step, self.optimization = recipe, work, step, optimization
        self.progress, self.begin = progress, begin
        self._marked: Any = None

    def commands(self) -> dict[str, Callable[..., Any]]:
        return {
            "adopt": self.adopt, "mark": self.mark, "back_off": self.back_off, "score": self.score, "write": self.write
        }  # fmt: skip

    def adopt(
        self, *, weights: str | None, changes: dict[str, Any], number: int, total_updates: int, start: int | None = None
    ) -> None:
        """Switch to an individual.

        Args:
            weights: file of its parameters; None: the recipe's seeded start.
            changes: fields of the recipe: its optimizer and hyper-parameters.
            number: its number in the whole search, which selects its epochs and random numbers.
            total_updates: length of its schedule.
            start: seed of its start, in place of the recipe's, if ``weights`` is None.
        """
        context = self.work.context
        self.progress.move(number * _EPOCHS, number * _EPOCHS)
        seed_step(self.recipe.seed, number)
        if weights is not None:
            self._put(read_weights(weights), weights)
        elif start is not None:
            context.mx.random.seed(start)
            self.work.net.initialize(compute.FirstValues(), ctx=context.ctxs, force_reinit=True)
        else:
            self.work.put_initial()
        self.begin(self.recipe.override(**changes), total_updates)
        self._marked = None

    def mark(self) -> None:
        """Save parameters and optimizer in memory."""
        self._marked = (self.work.host_weights(), capture_states(self.optimization.trainer))

    def back_off(self) -> None:
        """Restore the marked state; the batches go on, so that the next step is another one."""
        weights, (header, arrays) = self._marked
        self._put(weights, "the step before")
        restore_states(self.optimization.trainer, header, arrays, "the step before")

    def score(self) -> dict[str, Any]:
        """Loss and accuracy over the validation images: those at even places are for selection, the others for reports.

        Returns:
            ``{"fitness", "fitness_accuracy", "loss", "accuracy", "samples"}``; the first two are of the even places,
            the next two of the odd ones. A loss that is not finite is None.
        """
        place = 0
        sums = np.zeros((2, 3))  # loss, hits, images by parity
        self.step.begin(False)
        for batch in self.work.feed.val.epoch(0):
            for where, part in enumerate(self.work.context.parts(batch)):
                outcome = self.step.evaluate(where, part, self.optimization)
                losses, hits = to_numpy(outcome.loss), hits_of(self.step.loss, outcome)
                for parity in (0, 1):
                    half = slice((place + parity) % 2, None, 2)
                    sums[parity] += losses[half].sum(), hits[half].sum(), len(losses[half])
                place += len(losses)
        if place < 2:
            raise GluontuneError("a score needs at least two validation images")
        loss, hits = sums[:, 0] / sums[:, 2], sums[:, 1] / sums[:, 2]
        return {
            "fitness": finite(loss[0]), "fitness_accuracy": float(hits[0]), "loss": finite(loss[1]),
            "accuracy": float(hits[1]), "samples": place,
        }  # fmt: skip

    def write(self, *, path: str) -> dict[str, Any]:
        """Write the parameters. Returns the names of those that are not trained."""
        write_weights(path, self.work.host_weights())
        return {"fixed": [place for place, p in self.work.parameters.items() if p.grad_req == "null"]}

    def _put(self, weights: dict[str, np.ndarray], source: str) -> None:
        mine = self.work.parameters
        check_same_net(mine, weights, source)
        for place, parameter in mine.items():
            set_data(parameter, self.work.context.array(weights[place], parameter.dtype))
