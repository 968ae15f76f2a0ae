"""The progress of a training on either engine: its position in the data, and the methods of its recipe."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from gluontune.core.arrays import flat
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.job.checkpoint import part_of
from gluontune.job.data import Feed
from gluontune.job.job import Job
from gluontune.loading.base import METHOD, generator
from gluontune.methods import losses
from gluontune.methods.batches import UpdatePlan, change_batch
from gluontune.methods.cards import METHODS, numbers_of
from gluontune.methods.losses import Arrays, Put, is_blended
from gluontune.methods.nets import set_values
from gluontune.recipe import Recipe


class Progress:
    """The position of a training.

    Attributes:
        epoch: of the next batch. steps: since the seeded start, with those before a checkpoint.
        repeated: a batch for every step in place of the loader's, or None.
    """

    def __init__(self, feed: Feed, begin_epoch: Callable[[], None]):
        self.feed, self.begin_epoch = feed, begin_epoch
        self.epoch = self.steps = 0
        self.repeated: tuple[Any, ...] | None = None
        self._batches: Iterator[Any] | None = None

    def move(self, epoch: int, steps: int) -> None:
        self.close()
        self.epoch, self.steps = epoch, steps

    def next_batch(self) -> tuple[Any, ...]:
        """The next batch, across the end of an epoch."""
        if self.repeated is not None:
            return self.repeated
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self.feed.train.epoch(self.epoch))
            if (batch := next(self._batches, None)) is not None:
                return batch
            self._batches = None
            self.epoch += 1
            self.begin_epoch()
        raise GluontuneError("the training data gave no batch in a whole epoch")

    def loading_alone(self, seconds: float) -> dict[str, float]:
        """The loader without the net: ``{"samples_per_sec", "cpu_ms_per_sample"}``; its epoch goes on."""

        def load() -> int:
            batch = flat(self.next_batch())
            for array in batch:
                if hasattr(array, "wait_to_read"):
                    array.wait_to_read()
            return int(batch[0].shape[0])

        repeat(load, seconds / 4)
        samples, took, cpu = repeat(load, seconds)
        return {"samples_per_sec": samples / took, "cpu_ms_per_sample": 1e3 * cpu / samples}

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        self._batches = None


def repeat(work: Callable[[], int], seconds: float) -> tuple[int, float, float]:
    """Repeat ``work``: ``(units, seconds, CPU seconds of this process)``."""
    start, cpu, units = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        units += work()
    return units, time.perf_counter() - start, time.process_time() - cpu


class MethodSteps:
    """The methods of one training process.

    Args:
        recipe: its ``methods``. rank: of the process.
        weights: returns the net's arrays by place, with the statistics or without; PyTorch's detached.
        set_weight: takes place and values, and sets the trained weight.

    Attributes:
        second: the second set of weights, or None. updates: the steps of each update.
        views: of a validation image, with test-time flips.
    """

    def __init__(self, recipe: Recipe, rank: int, weights: Callable[[bool], Arrays], set_weight: Put):
        self._seed, self._rank, self._weights, self._set_weight = recipe.seed, rank, weights, set_weight
        self._batch = numbers_of(recipe.methods, "batch")
        self._loss = numbers_of(recipe.methods, "loss")
        gradient = numbers_of(recipe.methods, "gradient")
        self._freezing, self._growing = gradient.get("layer-freezing"), gradient.get("batch-growth", {})
        self._flips = numbers_of(recipe.methods, "validation").get("flip-validation")
        self.second = losses.make_second(numbers_of(recipe.methods, "weights"))
        self._accumulate, self._per_epoch = recipe.accumulate, 1
        self.plan(1)

    def attach(self, loader: Any, mean: Any, layers: list[list[Any]], set_trained: Callable[[Any, bool], None]) -> None:
        """Change the training batches of a loader of ``gt.loading``.

        Args:
            mean: the data set's colour, of pixels 0 … 1, (C,). layers: the trained parameters of each layer.
            set_trained: takes one of them, and whether it is trained from now on.
        """
        self._layers, self._set_trained, self._frozen = layers, set_trained, 0
        self._mean = np.rint(np.asarray(mean if mean is not None else 0.5) * 255).astype(np.uint8)
        if self._batch:
            loader.transform = self._change

    def _change(self, images: Any, labels: Any, epoch: int, number: int) -> tuple[Any, Any]:
        progress = (epoch * self._per_epoch + number) / self._total
        return change_batch(self._batch, images, labels, (self._seed, epoch, self._rank, number), self._mean, progress)

    def thaw(self) -> None:
        for layer in self._layers[: self._frozen]:
            for parameter in layer:
                self._set_trained(parameter, True)
        self._frozen = 0

    def before_step(self, step: int) -> None:
        """Before a training step, after ``step`` others: freeze the layers whose training is over."""
        if self._freezing is None:
            return
        count = losses.frozen_layers(step / self._total, len(self._layers), **self._freezing)
        for layer in self._layers[self._frozen : count]:
            for parameter in layer:
                self._set_trained(parameter, False)
        self._frozen = max(count, self._frozen)

    def plan(self, total: int) -> None:
        """Plan the updates of the next training, of ``total`` steps."""
        self._total, self.updates = total, UpdatePlan(total, self._accumulate, **self._growing)

    def begin(self, per_epoch: int) -> None:
        """Start the training of :meth:`plan` at its seeded start."""
        self._per_epoch = per_epoch
        if self.second is not None:
            self.second.begin(self._weights(self.second.of_all))

    def training_loss(self, loss: Callable[..., Any], log_softmax: Callable[..., Any], axis: int) -> Any:
        """The loss of a training batch: smoothed, and of blended labels, by the methods."""
        changed = loss
        if "label-smoothing" in self._loss:
            changed = losses.smoothed(changed, log_softmax, self._loss["label-smoothing"]["epsilon"], axis)
        if not {"mixup", "cutmix"} & set(self._batch):
            return changed
        blend = losses.mixed(changed)
        return lambda output, label: (blend if is_blended(label) else changed)(output, label)

    def class_numbers(self, label: Any) -> Any:
        """Class numbers, also of blended labels."""
        return label[:, 0] if self._batch and is_blended(label) else label

    def selecting(self, step: int) -> bool:
        """Whether the images of this step are chosen by their losses."""
        asked = self._loss.get("selective-backprop")
        return asked is not None and asked["start"] <= step / self._total < asked["end"] and asked["keep"] < 1

    def select(self, values: np.ndarray, step: int, place: int = 0) -> np.ndarray:
        """The images to train on, by the ``values`` of their losses (N,): int64 (n,)."""
        rng = generator(self._seed, step, METHOD, self._rank, place)
        return losses.selected(values, self._loss["selective-backprop"]["keep"], rng)

    def after_step(self, steps: int) -> None:
        """After a training step, the ``steps``-th, whether it ends an update or not."""
        if self.second is not None and self.updates.complete(steps):
            self.second.after_update(self._weights(True), self._set_weight)

    @contextlib.contextmanager
    def second_weights(self) -> Iterator[None]:
        """A context in which the net has the second set of weights, if any."""
        if self.second is None:
            yield
            return
        self.second.swap(self._weights(True), self._set_weight)
        try:
            yield
        finally:
            self.second.swap(self._weights(True), self._set_weight)

    def state_dict(self, to_host: Callable[[Any], np.ndarray]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The second set of weights, for a checkpoint. ``to_host`` copies one of the engine's arrays."""
        if self.second is None:
            return {"averaged": None}, {}
        held = {f"average/{place}": to_host(array) for place, array in self.second.held.items()}
        return {"averaged": self.second.count}, held

    def load_state_dict(
        self, header: dict[str, Any], arrays: Mapping[str, np.ndarray], to_device: Callable[[np.ndarray, str], Any]
    ) -> None:
        if self.second is not None:
            self.second.count = header.get("averaged") or 0
            self.second.held = {place: to_device(v, place) for place, v in part_of(arrays, "average").items()}

    def flipped(
        self, step: int, images: Any, axes: tuple[int, int], take: Callable[[Any, np.ndarray, int], Any],
        scores: Callable[[Any], Any],
    ) -> Any:  # fmt: skip
        """The mean scores over the views of a validation batch; None without flips, or before they start.

        Args:
            step: steps since the seeded start. axes: those of height and width. take: of array, indices, axis.
            scores: of a batch of images.
        """
        if self._flips is None or (self._flips["last"] and step < self._total):
            return None
        height, width = (images.shape[axis] for axis in axes)
        total = None
        for weight, rows, columns in losses.flipped_views(height, width, self._flips["shift"]):
            view = scores(take(take(images, rows, axes[0]), columns, axes[1])) * weight
            total = view if total is None else total + view
        return total


def initialize(recipe: Recipe, feed: Feed, job: Job, net: Any) -> None:
    """Set the first values of a Gluon net with known shapes by the recipe's methods."""

    def images(count: int) -> np.ndarray:
        data = job.dataset
        if data is None or feed.stage is None:
            raise UsageError(
                "whitening-init reads images of a data set by name: use loader='resident' or 'threaded', and a job "
                "whose data() returns a name"
            )
        read: list[np.ndarray] = []
        batches = feed.train.epoch(0)
        for batch, _ in batches:
            read.append(np.array(batch))
            if sum(map(len, read)) >= count:
                break
        batches.close()
        pixels = np.concatenate(read)[:count].astype(np.float32) / 255
        scaled = (pixels - np.asarray(data.mean, np.float32)) / np.asarray(data.std, np.float32)
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))

    set_values(numbers_of(recipe.methods, "net"), net, images)


def refuse_methods(recipe: Recipe, where: str, why: str, *kinds: str) -> None:
    """Refuse methods of these kinds for a job with its own training step."""
    for name in recipe.methods:
        if METHODS[name].kind in kinds:
            raise UsageError(f"recipe field methods={{{name!r}: …}}: {where}{why}; leave it out")
