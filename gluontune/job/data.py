"""The batches of a training process: the recipe's loader over the job's data."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune import compute, loading
from gluontune.core.arrays import mapped
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.job.batches import as_batch, parts_of
from gluontune.job.job import Job
from gluontune.job.user_file import blaming
from gluontune.loading.cached import redrawn, sample_bytes
from gluontune.loading.loaders import seeded_subset
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet

_READ_TWICE = 16  # samples, to detect random transforms
_MARKED = 16  # images compared between ranks
_COMPARED = 256  # samples, if a batch of them fails


@dataclass
class Feed:
    """Training and validation batches.

    Args:
        train, val: loaders of ``gt.loading``.
        stage: the block that turns uint8 NHWC batches into normalized float NCHW inside the graph;
            None if the loader does that.
        batch_size: images of this rank in one step.
        num_train: training images in all.
        image_shape: (H, W, C), or None for a job's own Gluon datasets.
    """

    train: Any
    val: Any
    stage: Any
    batch_size: int
    num_train: int
    image_shape: tuple[int, int, int] | None

    def inputs(self, ctx: Any) -> tuple[Any, ...]:
        """Two samples of the net's inputs, for building it: images of zeros, or the first sample twice."""
        mx = mxnet()
        if self.image_shape is None:
            return parts_of(self.train.pair()[:-1], [ctx])[0]
        height, width, channels = self.image_shape
        return parts_of((mx.nd.zeros((2, channels, height, width), ctx=ctx),), [ctx])[0]

    def mark(self) -> str:
        """An identification of the data set: its length, a checksum of all labels in order, and one of some images."""
        loader = getattr(self.train, "loader", self.train)  # of an adapter
        labels, split = getattr(loader, "labels", None), getattr(loader, "split", None)
        mark = f"{self.num_train} images"
        if labels is not None:
            mark += f", labels {zlib.crc32(labels.tobytes()):08x}"
        if split is not None and len(split):
            crc = 0
            for place in np.linspace(0, len(split) - 1, _MARKED).astype(int):
                try:
                    crc = zlib.crc32(split.read(int(place)), crc)
                except GluontuneError:  # the loader reports a damaged image
                    crc = zlib.crc32(b"damaged", crc)
            mark += f", {_MARKED} of the images {crc:08x}"
        return mark

    def close(self) -> None:
        for loader in (self.train, self.val):
            loader.close()


def make_feed(recipe: Recipe, job: Job, rank: int, world: int) -> Feed:
    local = recipe.num_devices if recipe.engine == "local" else 1
    batch_size = recipe.batch_size_per_device * local
    if job.dataset is None:
        return _gluon_feed(recipe, job, rank, world, batch_size)
    data = job.dataset
    trainer, validator, num_train, shape = named_loaders(recipe, data, rank, world, batch_size)
    raw = trainer.yields == "uint8-nhwc"
    dtype = "float16" if recipe.dtype == "float16" else "float32"
    stage = compute.InputStage(data.mean, data.std, dtype=dtype) if raw else None
    return Feed(trainer, validator, stage, batch_size, num_train, shape)


def named_loaders(
    recipe: Recipe, data: Any, rank: int, world: int, batch_size: int, **more: Any
) -> tuple[Any, Any, int, tuple[int, int, int]]:
    """Loaders of training and validation over a data set of ``gt.datasets``. Only ``gluon`` needs mxnet.

    Args:
        data: opened. rank, world: of the share of the training images. batch_size: of this rank.
        more: of :func:`gt.loading.build`, for both.

    Returns:
        both loaders, training images in all, (H, W, C).
    """
    shape = data.image_shape or (224, 224, 3)
    train = seeded_subset(data.train, recipe.train_samples, recipe.seed)
    val = seeded_subset(data.test, recipe.val_samples, recipe.seed)
    common: dict[str, Any] = {
        "batch_size": batch_size, "image_shape": shape, "mean": data.mean, "std": data.std,
        "num_workers": recipe.num_workers, "prefetch": recipe.prefetch, **more,
    }  # fmt: skip
    share: dict[str, Any] = {"rank": rank, "world_size": world, "partition": recipe.partition, "seed": recipe.seed}
    augment, last = recipe.augment or data.augment, recipe.last_batch
    trainer = loading.build(recipe.loader, train, augment=augment, shuffle=True, last_batch=last, **share, **common)
    validator = loading.build(recipe.loader, val, augment="none", last_batch="keep", **common)
    return trainer, validator, len(train), shape


def _gluon_feed(recipe: Recipe, job: Job, rank: int, world: int, batch_size: int) -> Feed:
    if recipe.loader not in ("gluon", "resident"):
        raise UsageError(
            f"recipe field loader={recipe.loader!r}: the job's data() returns Gluon datasets, which only the loaders "
            "'gluon' and 'resident' read; for images, return the name of a data set, such as 'folder:/data/birds'"
        )
    train: Any = _Blamed(job.train, job)
    val: Any = _Blamed(job.val, job)
    if recipe.train_samples is not None and recipe.train_samples < len(train):
        train = _Part(train, np.random.default_rng(recipe.seed).permutation(len(train))[: recipe.train_samples])
    if recipe.val_samples is not None and recipe.val_samples < len(val):
        val = _Part(val, np.arange(recipe.val_samples))
    if recipe.loader == "resident":
        train, val = _cached(train, job), _cached(val, job)
    count = len(train)
    common: dict[str, Any] = {
        "num_workers": recipe.num_workers if recipe.loader == "gluon" else 0, "seed": recipe.seed,
        "batchify_fn": job.function("batchify"), "place": job.place("data"),
    }  # fmt: skip
    order: dict[str, Any] = {"shuffle": True, "last_batch": recipe.last_batch, "partition": recipe.partition}
    order.update(rank=rank, world_size=world)
    if job.begin is not None:
        train = _Rows(train, batch_size, rank, world)
        val = _Rows(val, min(batch_size, len(val)), 0, 1)
        order = {"shuffle": False, "last_batch": "discard"}
    trainer = GluonBatches(train, batch_size, **order, **common)
    validator = GluonBatches(val, batch_size, shuffle=False, last_batch="keep", **common)
    return Feed(trainer, validator, None, batch_size, count, None)


def _cached(dataset: Any, job: Job) -> Any:
    try:
        return loading.keep_in_memory(dataset)
    except UsageError as error:
        raise UsageError(f"recipe field loader='resident': {job.place('data')}{error}") from error


class _Part:
    def __init__(self, dataset: Any, indices: np.ndarray):
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> Any:
        return self.dataset[int(self.indices[place])]


class _Rows(_Part):
    """A sequence cut into parallel rows: row *j* of each batch continues that of the batch before.

    Args:
        dataset: consecutive samples. rows: of a batch of this rank.
        rank, world: each rank takes its share of all rows.

    >>> list(_Rows(range(7), 2, 0, 1))
    [0, 3, 1, 4, 2, 5]
    """

    def __init__(self, dataset: Any, rows: int, rank: int, world: int):
        each = len(dataset) // (rows * world)
        starts = each * np.arange(rank * rows, (rank + 1) * rows)
        super().__init__(dataset, (np.arange(each)[:, None] + starts[None, :]).reshape(-1))


class _Blamed:
    """A job's data set whose errors name the line of the job's file."""

    def __init__(self, dataset: Any, job: Job):
        self.dataset, self._file, self._made_by = dataset, job.file, job.function("data")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, place: int) -> Any:
        with blaming(self._file, f"sample {place} of data()", self._made_by):
            return self.dataset[place]


class GluonBatches:
    """A job's Gluon dataset with the interface of ``gt.loading``'s loaders; ``place``: of its definition."""

    yields = "float32-nchw"

    def __init__(self, dataset: Any, batch_size: int, *, place: str = "", batchify_fn: Any = None, **options: Any):
        self._dataset, self._epoch, self._done, self._start = dataset, 0, 0, 0
        self._batchify, self._place = batchify_fn, place
        self._loader: Any = loading.safe_dataloader(dataset, batch_size, batchify_fn=batchify_fn, **options)

    def __len__(self) -> int:
        return len(self._loader)

    def pair(self) -> tuple[Any, ...]:
        """The first sample twice, as a batch."""
        together = self._batchify or mxnet().gluon.data.dataloader.default_batchify_fn
        return as_batch(together([self._dataset[0]] * 2))

    def steady_bytes(self) -> int | None:
        """Bytes of one sample; None if samples change when they are read again."""
        return sample_bytes(self._dataset) if redrawn(self._dataset, _READ_TWICE) is None else None

    def epoch(self, number: int) -> Any:
        start, self._start = self._start, 0
        self._epoch, self._done = number, start
        try:
            for batch in self._loader.epoch(number, start):
                self._done += 1
                yield as_batch(batch)
        except Exception as error:
            if self._batchify is None and (fault := self._unlike()):
                raise GluontuneError(fault) from error
            raise

    def _unlike(self) -> str:
        """A sentence on two samples that cannot form a batch, or ""."""
        places = range(min(len(self._dataset), _COMPARED))
        shapes = [mapped(lambda part: tuple(np.shape(part)), as_batch(self._dataset[place])) for place in places]
        other = next((place for place in places if shapes[place] != shapes[0]), None)
        if other is None:
            return ""
        return (
            f"{self._place}samples of different shapes cannot be one batch: sample 0 of data() has {shapes[0]}, sample "
            f"{other} {shapes[other]}; pad them in data(), or define batchify(samples), which returns the batch"
        )

    def state(self) -> dict[str, Any]:
        """The position of the loader, as plain values."""
        return {"items": len(self._dataset), "epoch": self._epoch, "batch": self._done}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state`` in the next requested epoch."""
        if state.get("items") != len(self._dataset):
            raise UsageError(f"it has {state.get('items')} items, this job's data {len(self._dataset)}")
        self._epoch, self._done, self._start = state["epoch"], state["batch"], state["batch"]

    def close(self) -> None:
        self._loader = None
