"""Experiments of the lessons: recipes in turn, a loader that feeds a simulated device, fields of record files."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import struct
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gluontune import loading, runtime, train
from gluontune.codec.header import suffix
from gluontune.core import stats
from gluontune.core.arrays import gap
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import atomic_write
from gluontune.monitor import Monitor, SimulatedDevice
from gluontune.recipe import Recipe
from gluontune.recipe.result import RunResult
from gluontune.records.layout import HEAD, IMAGE_HEAD, LENGTH_MASK
from gluontune.runtime.launch import launch_settings
from gluontune.search.bench import contender as bench
from gluontune.search.bench.benchmark import hold
from gluontune.search.measure import Contender, interleave

_WINDOWS = 12  # of :func:`feed`, each with its rate
_OFF = {"MXNET_MKLDNN_ENABLED": "0", "MXNET_ONEDNN_ENABLED": "0"}


def in_turn(recipes: Mapping[str, Recipe], *, rounds: int = 5, slice_s: float = 0.4) -> dict[str, dict[str, Any]]:
    """Train all recipes in turn, each in its own processes, so that disturbances affect all alike.

    Args:
        recipes: labels to recipes; the first is the baseline.
        rounds: slices of each. slice_s: seconds of one, about.

    Returns:
        For each label ``samples_per_sec`` and ``ratio`` (to the first), as ``{"median", "ci95"}``.

    Raises:
        GluontuneError: one of them cannot be trained here.
    """
    field = {name: Contender(recipe, name) for name, recipe in recipes.items()}
    with contextlib.ExitStack() as closing:
        for contender in field.values():
            closing.callback(contender.close)
        interleave(field.values(), rounds=rounds, slice_s=slice_s)
    _all_ran(field)
    first = next(iter(field.values()))
    return {
        name: {"samples_per_sec": stats.interval(c.rates), "ratio": stats.ratio_interval(c.rates, first.rates)}
        for name, c in field.items()
    }


def onednn(net: str, *, side: int = 224, rounds: int = 5, seconds: float = 1.0) -> dict[str, Any]:
    """The gain by oneDNN for a net with random weights, one image at a time.

    Args:
        net: a name of the zoo. side: of the random images. rounds, seconds: of :func:`gluontune.bench.hold`.

    Returns:
        ``off`` and ``on`` (images a second), ``speedup``, and ``output_delta``: the largest difference of the class
        scores ÷ the largest score.
    """
    images = Recipe(net=net, dataset=f"synthetic:train=10,test=4,size={side}")
    settings = {"mode": "static", "recipe": images.to_dict(), "source": None, "batch_size": 1, "val_images": 4}
    env = launch_settings(cores=runtime.usable_cores()).env
    work = "gluontune.search.bench._inference:Predictor"
    entrants = [
        bench.Entrant(name, bench.OURS, work, settings, env={**env, **more}, slices="steps")
        for name, more in (("off", _OFF), ("on", {}))
    ]
    scores: list[np.ndarray] = []

    def ask(field: list[bench.Contender]) -> None:
        found = [contender.ask("predict_all") for contender in field]
        scores.extend(np.asarray(one["scores"]) for one in found if one)

    off, on = hold(entrants, rounds=rounds, seconds=seconds, time_limit=600.0, finish=ask)
    _all_ran({f"{net} with oneDNN off": off, f"{net} with oneDNN on": on})
    rates = {"off": stats.interval(off.rates), "on": stats.interval(on.rates)}
    speedup = stats.ratio_interval(on.rates, off.rates)
    return {**rates, "speedup": speedup, "output_delta": gap(scores[1], scores[0])}


def _all_ran(field: Mapping[str, Any]) -> None:
    for name, contender in field.items():
        if contender.failure is not None:
            raise GluontuneError(f"{name}: {contender.failure}")


def feed(recipe: Recipe, dataset: Any, *, ms_per_batch: float, seconds: float = 3.0) -> RunResult:
    """Feed a simulated device from a loader for some seconds, and measure its utilization.

    The device takes ``ms_per_batch`` for each batch and leaves the cores to the loader, as a GPU does. It computes
    nothing, so the result has no accuracy, and a note about the simulation.

    Args:
        recipe: for loader, ``num_workers``, ``prefetch``, ``batch_size_per_device``, ``augment`` and ``seed``.
        dataset: of ``gt.datasets.open``.
        ms_per_batch: milliseconds of the device for a batch.
        seconds: of feeding, after the first batches.

    Returns:
        A RunResult: ``samples_per_sec``, ``phases_pct`` (``data``: the loop waited for the loader; ``device``:
        it waited for the device), ``utilization`` and ``steadiness`` of the device.
    """
    if seconds <= 0:
        raise UsageError(f"feed(seconds={seconds}): give a time above 0")
    batch = recipe.batch_size_per_device
    device = SimulatedDevice(ms_per_batch, queue_depth=2)
    result = RunResult(recipe=recipe.to_dict(), machine=runtime.machine_facts())
    started = time.perf_counter()
    with _flowing(recipe, dataset) as batches:
        result.warmup_seconds = time.perf_counter() - started
        waited = 0.0
        with Monitor(period_s=max(0.02, seconds / 60), devices=[device]) as watch, watch.mark("train"):
            begin = mark = time.perf_counter()
            rates, trained = [], 0
            while (now := time.perf_counter()) - begin < seconds:
                if now - mark >= seconds / _WINDOWS and trained:
                    rates.append(trained * batch / (now - mark))
                    mark, trained = now, 0
                asked = time.perf_counter()
                next(batches)
                waited += time.perf_counter() - asked
                device.submit()
                trained += 1
            elapsed = time.perf_counter() - begin
    result.steps = device.batches
    result.samples_per_sec = stats.interval(rates or [device.batches * batch / elapsed])
    result.phases_pct = {"data": 100 * waited / elapsed, "device": 100 * (1 - waited / elapsed)}
    result.utilization = watch.series(600)
    result.steadiness = watch.steadiness("train")
    result.peak_rss_mib = watch.peak_rss_mib
    simulated = f"{ms_per_batch:.3g} ms for each batch of {batch}, nothing is computed"
    result.notes.append(f"the device is simulated: {simulated}")
    return result


def loading_rate(recipe: Recipe, dataset: Any, *, seconds: float = 1.0) -> float:
    """Images a second of the recipe's loader in a loop that does nothing else."""
    with _flowing(recipe, dataset) as batches:
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            next(batches)
            count += 1
        return count * recipe.batch_size_per_device / (time.perf_counter() - begin)


@contextlib.contextmanager
def _flowing(recipe: Recipe, dataset: Any) -> Iterator[Iterator[Any]]:
    """The batches of a recipe's loader without end, after the first three: workers run and buffers are made."""
    if dataset.image_shape is None:
        raise GluontuneError(f"{dataset.name}: its images differ in size; give a data set of one image size")
    with loading.build(
        recipe.loader, dataset.train, batch_size=recipe.batch_size_per_device, image_shape=dataset.image_shape,
        augment=recipe.augment or dataset.augment, shuffle=True, seed=recipe.seed, num_workers=recipe.num_workers,
        prefetch=recipe.prefetch, mean=dataset.mean, std=dataset.std,
    ) as loader, contextlib.closing(_endless(loader)) as batches:  # fmt: skip
        for _ in range(3):
            next(batches)
        yield batches


def _endless(loader: Any) -> Generator[Any, None, None]:
    for number in itertools.count():
        for batch in loader.epoch(number):
            if hasattr(batch[0], "wait_to_read"):
                batch[0].wait_to_read()
            yield batch


def kept_run(recipe: Recipe, path: str | os.PathLike[str], **options: Any) -> RunResult:
    """The result in ``path`` if it is a complete run of this recipe; else train, and save it there.

    Args:
        options: of :func:`gluontune.train.run`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.json"
    >>> fast = Recipe(net="mlp", loader="resident", train_samples=512, val_samples=128)
    >>> first, again = kept_run(fast, path), kept_run(fast, path)
    >>> first.ok, first.elapsed_seconds == again.elapsed_seconds
    (True, True)
    """
    try:
        found = RunResult.load(Path(path))
        if found.ok and Recipe.from_dict(found.recipe) == recipe:
            return found
    except GluontuneError:
        pass  # no usable result
    result = train.run(recipe, **options)
    result.save(Path(path))
    return result


def kept_study(
    study: Callable[..., dict[str, Any]], *given: Any, out: str | os.PathLike[str], **options: Any
) -> dict[str, Any]:
    """Go on with the study in ``out`` if it has the same options; else begin anew.

    Args:
        study: a function with ``out`` and ``resume``, such as ``analyse``. given, options: its arguments.
    """
    try:
        return study(*given, out=out, resume=True, **options)
    except GluontuneError:  # nothing to go on with; errors in the options are raised again
        return study(*given, out=out, **options)


def kept_folder(recipe: Recipe, out_dir: str | os.PathLike[str]) -> Path:
    """A folder below ``out_dir`` for the checkpoints of this recipe only.

    >>> kept_folder(Recipe(), "out") == kept_folder(Recipe(), "out") != kept_folder(Recipe(seed=1), "out")
    True
    """
    text = json.dumps(recipe.to_dict(), sort_keys=True)
    return Path(out_dir) / f"checkpoints-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def as_files(split: Any, folder: str | os.PathLike[str], count: int) -> Path:
    """Write the first ``count`` images of a split as class folders; existing files stay.

    Args:
        split: of ``gt.datasets``.
        folder: gets ``<class>/<number>.<suffix>``.
        count: images; at most ``len(split)`` are written.
    """
    root = Path(folder)
    for i in range(min(count, len(split))):
        data = bytes(split.read(i))
        path = root / f"class-{int(split.labels[i]):03d}" / f"{i:06d}{suffix(data)}"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as stream:
                stream.write(data)
    return root


def pixels_of(split: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first ``count`` images of a split as rows of float32 from -0.3 to 0.7, and their labels.

    >>> import gluontune as gt
    >>> rows, labels = pixels_of(gt.datasets.open("sample").test, 5)
    >>> rows.shape, rows.dtype, len(labels)
    ((5, 784), dtype('float32'), 5)
    """
    images = np.stack([split.decode(i) for i in range(min(count, len(split)))])
    return images.reshape(len(images), -1).astype("float32") / 255 - 0.3, split.labels[: len(images)]


def record_fields(path: str | os.PathLike[str], offset: int = 0) -> list[dict[str, Any]]:
    """The fields of the record that starts at ``offset``: byte, field, bytes in hex, meaning.

    Raises:
        UsageError: no record starts there.

    >>> import tempfile, gluontune as gt
    >>> path = Path(tempfile.mkdtemp()) / "one.rec"
    >>> with gt.records.RecordWriter(path) as writer:
    ...     writer.write(b"image", label=3, key=7)
    >>> [row["meaning"] for row in record_fields(path)][2:6]
    ['0: one label, in the next field', '3', '7', '0']
    """
    with open(path, "rb") as stream:
        stream.seek(offset)
        head = stream.read(HEAD.size + IMAGE_HEAD.size + 4)
    if len(head) < HEAD.size + IMAGE_HEAD.size or head[:4] != struct.pack("<I", 0xCED7230A):
        raise UsageError(f"{os.fspath(path)}: no image record starts at byte {offset}")
    length = HEAD.unpack_from(head)[1] & LENGTH_MASK
    flag, label, key, second = IMAGE_HEAD.unpack_from(head, HEAD.size)
    labels = "one label, in the next field" if flag == 0 else f"{flag} labels, before the image"
    payload = length - IMAGE_HEAD.size - 4 * flag
    rows = [
        ("magic", 0, 4, "here a record starts"),
        ("length", 4, 4, f"{length:,} bytes follow"),
        ("flag", 8, 4, f"{flag}: {labels}"),
        ("label", 12, 4, f"{label:g}"),
        ("id", 16, 8, f"{key}"),
        ("id2", 24, 8, f"{second}"),
        ("image", 32, 4, f"{payload:,} bytes, then zeros up to a multiple of four"),
    ]
    return [
        {"byte": offset + at, "field": name, "bytes in hex": head[at : at + size].hex(" ") + " …" * (name == "image"),
         "meaning": meaning} for name, at, size, meaning in rows
    ]  # fmt: skip


def flip_bit(path: str | os.PathLike[str], offset: int) -> None:
    """Flip the lowest bit of one byte of a file, as a bad disk or cable does."""
    with open(path, "r+b") as stream:
        stream.seek(offset)
        if not (byte := stream.read(1)):
            raise UsageError(f"{os.fspath(path)}: the file has no byte {offset}")
        stream.seek(offset)
        stream.write(bytes([byte[0] ^ 1]))
