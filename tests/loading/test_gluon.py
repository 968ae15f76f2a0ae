"""Gluon's side: the baseline loader, the safe DataLoader, and numpy batches on devices."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time

import cv2
import numpy as np
import pytest

from gluontune.compute import InputStage
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.datasets import Split
from gluontune.loading import (
    AUGMENTS,
    DeviceLoader,
    ThreadedLoader,
    build,
    dataloader,
    from_files,
    keep_in_memory,
    safe_dataloader,
    to_device,
)
from gluontune.runtime import mxnet

mx = mxnet()


@pytest.fixture(scope="module")
def split(tmp_path_factory) -> Split:
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    paths = []
    for i in range(24):
        image = cv2.resize(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8), (32, 32))
        paths.append(folder / f"{i}.png")
        cv2.imwrite(str(paths[-1]), image)
    return from_files(paths, [i % 5 for i in range(24)])


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Split:
    folder, rng = tmp_path_factory.mktemp("large"), np.random.default_rng(0)
    paths = []
    for i in range(6):
        image = cv2.resize(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8), (70 + i, 90 - i))
        paths.append(folder / f"{i}.jpg")
        cv2.imwrite(str(paths[-1]), image)
    return from_files(paths, range(6))


def test_kept_samples_are_those_that_gluon_reads_each_time():
    transforms = mx.gluon.data.vision.transforms
    images = mx.nd.array(np.random.default_rng(1).integers(0, 256, (10, 5, 4, 3)), dtype="uint8")
    plain = mx.gluon.data.ArrayDataset(images, np.arange(10, dtype="int32"))
    data = plain.transform_first(transforms.ToTensor())
    kept = keep_in_memory(data)
    for mine, theirs in zip(mx.gluon.data.DataLoader(kept, 4), mx.gluon.data.DataLoader(data, 4)):
        for a, b in zip(mine, theirs):
            assert a.dtype == b.dtype and np.array_equal(a.asnumpy(), b.asnumpy())


def test_what_cannot_be_kept_is_refused(monkeypatch):
    transforms = mx.gluon.data.vision.transforms
    images = mx.nd.array(np.random.default_rng(1).integers(0, 256, (80, 5, 4, 3)), dtype="uint8")
    flipped = mx.gluon.data.ArrayDataset(images, np.arange(80)).transform_first(
        transforms.Compose([transforms.RandomFlipLeftRight(), transforms.ToTensor()])
    )
    with pytest.raises(UsageError, match="random transforms"):
        keep_in_memory(flipped)
    monkeypatch.setattr("gluontune.loading.cached.usable_memory", lambda: 1000)
    with pytest.raises(UsageError, match=r"80 samples .* do not fit"):
        keep_in_memory(mx.gluon.data.ArrayDataset(images, np.arange(80)))
    monkeypatch.setattr("gluontune.loading.cached.usable_memory", lambda: 1 << 20)
    read = []
    growing = mx.gluon.data.SimpleDataset(list(range(80))).transform(lambda n: read.append(n) or np.zeros(n * 1000))
    with pytest.raises(UsageError, match=r"80 samples .* do not fit"):
        keep_in_memory(growing)
    assert read[-1] < 20, "the first sample is the smallest"


def options(**changes):
    return {"batch_size": 8, "image_shape": (32, 32, 3), "shuffle": True, "seed": 5, **changes}


def collect(loader, epoch: int = 0):
    return [(images.asnumpy(), labels.asnumpy()) for images, labels in loader.epoch(epoch)]


def equal(first, second) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a, c) and np.array_equal(b, d) for (a, b), (c, d) in zip(first, second)
    )


@pytest.mark.parametrize("channels", [3, 1])
def test_the_baseline_gives_the_pixels_of_the_other_loaders(split, channels):
    asked = options(image_shape=(32, 32, channels))
    with build("gluon", split, **asked) as gluon, ThreadedLoader(split, **asked) as ours:
        assert gluon.yields == "float32-nchw" and len(gluon) == len(ours)
        for (theirs, their_labels), (images, labels) in zip(gluon.epoch(0), ours.epoch(0)):
            assert theirs.dtype == np.float32 and theirs.shape == (8, channels, 32, 32)
            pixels = theirs.asnumpy().transpose(0, 2, 3, 1) * 255
            assert np.abs(pixels - images).max() < (0.01 if channels == 3 else 2)
            assert np.array_equal(their_labels.asnumpy(), labels)


@pytest.mark.parametrize("augment", ["none", "center-crop"])
def test_mixed_sizes_are_fitted_alike(large, augment):
    asked = options(batch_size=6, augment=augment)
    (theirs, _), (images, _) = (next(iter(build(n, large, **asked).epoch(0))) for n in ("gluon", "threaded"))
    assert np.abs(theirs.asnumpy().transpose(0, 2, 3, 1) * 255 - images).mean() < 8


def test_normalization_is_that_of_the_input_stage(split):
    """What the baseline does on the host, a net with the input stage does on the device."""
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    asked = options(mean=mean, std=std)
    with build("gluon", split, **asked) as gluon, ThreadedLoader(split, **asked) as ours:
        theirs, _ = next(gluon.epoch(0))
        images, labels = next(ours.epoch(0))
    stage = InputStage(mean, std)
    assert np.allclose(stage(to_device(images, labels, mx.cpu())[0]).asnumpy(), theirs.asnumpy(), atol=1e-5)


@pytest.mark.parametrize("augment", AUGMENTS.names())
def test_every_augmentation_runs_and_epochs_differ_only_if_it_is_random(split, augment):
    with build("gluon", split, **options(augment=augment, shuffle=False)) as loader:
        first, again, other = collect(loader, 0), collect(loader, 0), collect(loader, 1)
    assert equal(first, again)
    assert equal(first, other) != AUGMENTS[augment].random
    assert first[0][0].shape == (8, 3, 32, 32)


def test_workers_change_nothing_and_do_not_repeat_each_other(split):
    """Facts: forked workers of a seeded parent draw the same numbers; here two batches never do."""
    same = from_files([split.files()[0]] * 24, [0] * 24)
    asked = options(augment="pad-crop-flip", batch_size=6)
    with build("gluon", same, **asked) as inline, build("gluon", same, num_workers=2, **asked) as forked:
        batches = collect(inline, 0)
        assert equal(batches, collect(forked, 0))
        assert equal(collect(inline, 1), collect(forked, 1))
    for i in range(4):
        for k in range(i):
            assert not np.array_equal(batches[i][0], batches[k][0])


def test_state_goes_on_in_mid_epoch(split):
    with build("gluon", split, num_workers=1, **options(augment="pad-crop-flip")) as loader:
        whole = collect(loader, 0)
        batches = loader.epoch(0)
        next(batches)
        state = loader.state()
        loader.restore(state)
        assert equal(collect(loader, 0), whole[1:])


def test_an_unreadable_file_is_named(split, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    mixed = from_files([*split.files()[:3], bad], [0] * 4)
    for workers in (0, 2):
        loader = build("gluon", mixed, num_workers=workers, **options(batch_size=4))
        with loader, pytest.raises(GluontuneError, match=r"bad\.jpg"):
            collect(loader)


class Slow:
    """A data set whose samples take their time."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return index


def shared_memory(pids: list[int]) -> set[str]:
    """What these processes have left in /dev/shm, where MXNet names a segment by its maker's process id."""
    made_by = tuple(f"mx_{pid:x}_" for pid in pids)
    return {name for name in os.listdir("/dev/shm") if name.startswith(made_by)}


def test_a_worker_that_is_killed_is_an_error_within_seconds_and_leaves_nothing():
    loader = safe_dataloader(Slow(), 4, num_workers=2)
    workers = list(loader._workers)
    batches = iter(loader)
    next(batches)
    os.kill(workers[0].pid, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(GluontuneError, match=r"worker \(process \d+\) died with exit code -9"):
        for _ in batches:
            pass
    assert time.monotonic() - begin < 30  # not the loader's own timeout of 120 s
    assert all(worker.exitcode is not None for worker in workers)
    assert not shared_memory([os.getpid(), *(worker.pid for worker in workers)])
    with pytest.raises(GluontuneError, match="closed"):
        next(iter(loader))


def test_closing_ends_the_workers_and_can_be_done_twice():
    loader = safe_dataloader(Slow(), 4, num_workers=2)
    workers = list(loader._workers)
    next(iter(loader))
    loader.close()
    loader.close()
    assert all(worker.exitcode is not None for worker in workers)


def test_a_loader_that_is_dropped_ends_though_a_dead_worker_holds_a_lock():
    script = """
import os, signal, gluontune as gt
loader = gt.loading.safe_dataloader(list(range(8)), 4, num_workers=1)
assert [batch.shape for batch in loader] == [(4,), (4,)]
os.kill(loader._workers[0].pid, signal.SIGKILL)  # idle: it waits for a batch, with the queue's lock
del loader
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "ended\n", done.stderr


def test_one_pool_serves_all_epochs():
    with safe_dataloader(mx.gluon.data.SimpleDataset(list(range(8))), 4, num_workers=1) as loader:
        pids = set()
        for epoch in range(3):
            assert [b.asnumpy().tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]], epoch
            pids |= {worker.pid for worker in loader._workers}
        assert len(pids) == 1


class RandomNumbers:
    """Each sample is what the three random number generators say."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array([random.random(), np.random.random(), mx.nd.random.uniform(shape=1).asscalar()])


def test_all_three_generators_are_seeded_for_each_batch():
    def draws(workers: int, seed: int = 0) -> list[np.ndarray]:
        with safe_dataloader(RandomNumbers(), 3, num_workers=workers, seed=seed) as loader:
            return [batch.asnumpy() for batch in loader.epoch(0)]

    inline, forked = draws(0), draws(3)
    assert all(np.array_equal(a, b) for a, b in zip(inline, forked))
    numbers = np.concatenate(inline)
    assert all(len(np.unique(numbers[:, k])) == len(numbers) for k in range(3))
    assert not np.array_equal(inline[0], draws(0, seed=1)[0])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_is_read_again_draws_the_same(workers):
    with safe_dataloader(RandomNumbers(), 3, num_workers=workers, seed=0) as loader:
        read = [next(iter(loader.epoch(0))).asnumpy() for _ in range(3)]
    assert np.array_equal(read[0], read[1]) and np.array_equal(read[1], read[2])


def test_too_little_shared_memory_is_said_before_workers_die_of_it(monkeypatch):
    usage = type("usage", (), {"free": 1000})
    monkeypatch.setattr(dataloader.shutil, "disk_usage", lambda path: usage)
    data = mx.gluon.data.SimpleDataset([np.zeros((64, 64, 3), np.float32)] * 8)
    with pytest.raises(GluontuneError, match=r"/dev/shm has 0 MiB free.*--shm-size"):
        safe_dataloader(data, 4, num_workers=2)
    safe_dataloader(data, 4, num_workers=0)


def test_to_device_shares_out_any_number_of_samples():
    contexts = [mx.cpu(k) for k in range(4)]
    images, labels = np.arange(7 * 3, dtype=np.uint8).reshape(7, 1, 1, 3), np.arange(7)
    parts = to_device(images, labels, contexts)
    assert [len(p) for p, _ in parts] == [1, 2, 2, 2]
    assert np.array_equal(np.concatenate([p.asnumpy() for p, _ in parts]), images)
    assert np.concatenate([v.asnumpy() for _, v in parts]).tolist() == list(range(7))
    assert [p.context for p, _ in parts] == contexts
    with pytest.raises(UsageError, match="at least one context"):
        to_device(images, labels, [])


def test_batches_on_the_device_are_not_overwritten(split):
    """The CPU's NDArrays read the loader's memory: it must not be used again while they live."""
    loader = ThreadedLoader(split, num_workers=2, prefetch=1, **options(batch_size=4))
    wanted = [images.copy() for images, _ in loader.epoch(0)]
    kept = [images for images, _ in DeviceLoader(loader, mx.cpu()).epoch(0)]
    for _ in loader.epoch(1):
        pass
    assert all(np.array_equal(a.asnumpy(), b) for a, b in zip(kept, wanted))


def test_memory_comes_back_from_the_device(split):
    loader = ThreadedLoader(split, num_workers=1, prefetch=1, **options(batch_size=4))
    for epoch in range(5):
        for images, _ in DeviceLoader(loader, mx.cpu()).epoch(epoch):
            (images.astype("float32") * 2).wait_to_read()
    mx.nd.waitall()
    assert len(loader.pool._arrays) <= 10


def test_the_device_loader_is_a_drop_in(split):
    loader = ThreadedLoader(split, **options())
    wanted = [labels.tolist() for _, labels in loader.epoch(0)]
    with DeviceLoader(loader, mx.cpu()) as device:
        assert len(device) == 3
        found = [(images, labels) for images, labels in device.epoch(0)]
        assert [labels.asnumpy().astype(int).tolist() for _, labels in found] == wanted
        assert all(images.dtype == np.uint8 and labels.dtype == np.float32 for images, labels in found)
        shares = next(iter(DeviceLoader(loader, [mx.cpu(0), mx.cpu(1)])))
        assert [len(images) for images, _ in shares] == [4, 4]


def device_threads() -> int:
    return sum(t.name.startswith("gluontune-device") for t in threading.enumerate())


def wait_for_device_threads() -> None:
    end = time.monotonic() + 30
    while device_threads() and time.monotonic() < end:
        time.sleep(0.02)
    assert device_threads() == 0


def test_errors_cross_the_thread_and_an_abandoned_epoch_ends_it(split):
    class Fails:
        labels = split.labels

        def __len__(self) -> int:
            return len(split)

        def read(self, index: int) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(GluontuneError, match="Input/output"):
        list(DeviceLoader(ThreadedLoader(Fails(), **options()), mx.cpu()))
    wait_for_device_threads()
    device = DeviceLoader(ThreadedLoader(split, num_workers=1, **options(batch_size=2)), mx.cpu(), ahead=1)
    batches = device.epoch(0)
    next(batches)
    assert device_threads() == 1
    batches.close()
    wait_for_device_threads()
    device.close()


def test_thread_pools_on_a_shared_handle_are_refused():
    with pytest.raises(UsageError, match="wrong records"):
        safe_dataloader(mx.gluon.data.SimpleDataset([1, 2]), 1, thread_pool=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_of_one_s_own_say_the_order(workers):
    from gluontune.loading import safe_dataloader
    from gluontune.runtime import mxnet

    data = mxnet().gluon.data
    rows = data.SimpleDataset(list(range(7)))

    def batches(*given, **options):
        with safe_dataloader(rows, *given, num_workers=workers, **options) as loader:
            found = [[batch.asnumpy().tolist() for batch in loader] for _ in range(2)]
        assert found[0] == found[1]
        return found[0]

    assert batches(3, False, data.SequentialSampler(5), "discard") == [[0, 1, 2]]
    assert batches(2, sampler=data.FilterSampler(lambda n: n > 3, rows)) == [[4, 5], [6]]
    pairs = data.BatchSampler(data.SequentialSampler(4), 2, "keep")
    assert batches(batch_sampler=pairs, auto_reload=True, pin_device_id=0) == [[0, 1], [2, 3]]
    for wrong in ({}, {"batch_size": 2, "batch_sampler": pairs}, {"batch_size": 2, "shuffle": True, "sampler": [1]}):
        with pytest.raises(UsageError, match=r"batch_size|sampler"):
            safe_dataloader(rows, **wrong)
