"""The threaded and the resident loader: same pixels, any number of threads, state, errors, memory."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import queue
import threading
import time

import cv2
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import gluontune as gt
from gluontune.core.errors import GluontuneError, UnknownNameError, UsageError
from gluontune.loading import (
    AUGMENTS,
    LOADERS,
    ResidentLoader,
    ThreadedLoader,
    build,
    from_files,
    resident as resident_module,
)

UINT8 = [info.name for info in LOADERS if info.yields == "uint8-nhwc"]


class MemorySplit:
    """Encoded images in memory; sample ``i`` is of class ``i % 7``."""

    rec_path = None

    def __init__(self, n: int = 40, size: tuple[int, int] = (32, 32), channels: int = 3, kind: str = ".png"):
        rng = np.random.default_rng(0)
        self.payloads = []
        for _ in range(n):
            small = rng.integers(0, 256, (6, 6, channels), dtype=np.uint8)
            image = cv2.resize(small, size[::-1], interpolation=cv2.INTER_CUBIC)
            self.payloads.append(cv2.imencode(kind, image)[1].tobytes())
        self.labels = np.arange(n, dtype=np.int64) % 7

    def __len__(self) -> int:
        return len(self.payloads)

    def read(self, index: int) -> bytes:
        return self.payloads[index]


@pytest.fixture(scope="module")
def split() -> MemorySplit:
    return MemorySplit()


def collect(loader, epoch: int = 0):
    return [(images.copy(), labels.copy()) for images, labels in loader.epoch(epoch)]


def equal(first, second) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a, c) and np.array_equal(b, d) for (a, b), (c, d) in zip(first, second)
    )


def options(**changes):
    return {"batch_size": 8, "image_shape": (32, 32, 3), "shuffle": True, "seed": 5, **changes}


@pytest.mark.parametrize("augment", AUGMENTS.names())
@pytest.mark.parametrize("channels", [3, 1])
def test_every_loader_makes_the_same_pixels(augment, channels):
    split = MemorySplit(24, channels=channels)
    made = [collect(build(name, split, **options(image_shape=(32, 32, channels), augment=augment))) for name in UINT8]
    for other in made[1:]:
        for (images, labels), (theirs, their_labels) in zip(made[0], other):
            assert np.array_equal(labels, their_labels)
            # A crop that is resized may be rounded differently; all else is equal to the bit.
            apart = np.abs(images.astype(int) - theirs)
            if "resized" in augment and AUGMENTS[augment].operations:  # a step of one level may be stretched to many
                assert apart.mean() < 0.5
            else:
                allowed = 5 if "resized" in augment and AUGMENTS[augment].finishes else 3
                assert apart.max() <= (allowed if "resized" in augment or augment == "center-crop" else 0)


@pytest.mark.parametrize("name", UINT8)
def test_what_a_batch_is(split, name):
    with build(name, split, **options(last_batch="keep", batch_size=12)) as loader:
        batches = list(loader.epoch(0))
        assert loader.yields == "uint8-nhwc"
        assert [len(images) for images, _ in batches] == [12, 12, 12, 4]
        for images, labels in batches:
            assert images.dtype == np.uint8 and images.shape[1:] == (32, 32, 3)
            assert labels.dtype == np.int64 and len(labels) == len(images)


@pytest.mark.parametrize("name", UINT8)
def test_pixels_and_labels_belong_together(split, name):
    truth = [cv2.imdecode(np.frombuffer(p, np.uint8), 1)[:, :, ::-1] for p in split.payloads]
    loader = build(name, split, **options(num_workers=2))
    for (images, labels), indices in zip(loader.epoch(3), loader.order.batches(3)):
        assert np.array_equal(labels, split.labels[indices])
        assert all(np.array_equal(images[k], truth[i]) for k, i in enumerate(indices))


@settings(deadline=None, max_examples=12)
@given(
    workers=st.integers(1, 6),
    prefetch=st.integers(0, 4),
    batch_size=st.integers(1, 20),
    augment=st.sampled_from(AUGMENTS.names()),
    last_batch=st.sampled_from(["keep", "discard", "rollover"]),
)
def test_threads_and_prefetch_change_nothing(workers, prefetch, batch_size, augment, last_batch):
    split = MemorySplit(22, size=(40, 36))
    asked = options(batch_size=batch_size, augment=augment, last_batch=last_batch)
    with ThreadedLoader(split, num_workers=workers, prefetch=prefetch, **asked) as loader:
        inline = ThreadedLoader(split, **asked)
        for epoch in (0, 1, 4):
            assert equal(collect(loader, epoch), collect(inline, epoch))


@pytest.mark.parametrize("name", UINT8)
def test_epochs_differ_and_can_be_repeated(split, name):
    loader = build(name, split, **options(augment="pad-crop-flip"))
    first = collect(loader, 0)
    assert not equal(first, collect(loader, 1))
    assert equal(first, collect(loader, 0))
    other = build(name, split, **options(augment="pad-crop-flip", seed=6))
    assert not equal(first, collect(other, 0))


def test_batches_that_are_kept_are_not_overwritten(split):
    """Batch memory is used again; a caller who keeps batches, or a view of one, must not notice."""
    loader = ThreadedLoader(split, num_workers=2, **options())
    kept = list(loader.epoch(0))
    views = [images[3:5] for images, _ in loader.epoch(1)]
    gc.collect()
    for _ in loader.epoch(2):
        pass
    assert equal(kept, collect(loader, 0))
    assert all(np.array_equal(v, images[3:5]) for v, (images, _) in zip(views, collect(loader, 1)))


def test_batch_memory_is_used_again(split):
    loader = ThreadedLoader(split, num_workers=2, prefetch=1, **options())
    addresses = {images.ctypes.data for epoch in range(6) for images, _ in loader.epoch(epoch)}
    assert len(addresses) <= 5


@pytest.mark.parametrize("name", UINT8)
@pytest.mark.parametrize("last_batch", ["keep", "rollover"])
def test_state_saved_in_mid_epoch_goes_on_with_the_next_batch(split, name, last_batch):
    asked = options(augment="pad-crop-flip", last_batch=last_batch, batch_size=9, num_workers=2)
    loader = build(name, split, **asked)
    whole = collect(loader, 1)
    batches = loader.epoch(1)
    for _ in range(2):
        next(batches)
    state = loader.state()
    assert (state["epoch"], state["batch"]) == (1, 2)
    fresh = build(name, split, **asked)
    fresh.restore(state)
    assert equal(collect(fresh, 1), whole[2:])
    assert equal(collect(fresh, 1), whole)
    assert fresh.state()["epoch"] == 2 and fresh.state()["batch"] == 0
    for each in (batches, loader, fresh):
        each.close()


def test_a_state_of_another_loader_is_refused(split):
    state = ThreadedLoader(split, **options()).state()
    with pytest.raises(UsageError, match="seed=5"):
        ThreadedLoader(split, **options(seed=6)).restore(state)


@pytest.mark.parametrize("name", UINT8)
def test_shards_share_the_epoch(split, name):
    asked = options(augment="none", batch_size=5)
    ranks = [build(name, split, rank=r, world_size=3, **asked) for r in range(3)]
    assert {len(loader) for loader in ranks} == {2}
    seen = [i for loader in ranks for batch in loader.order.batches(0) for i in batch.tolist()]
    assert len(seen) == len(set(seen)) == 30
    assert (
        not np.array_equal(ranks[0].draws(0, 0, np.arange(5)), ranks[1].draws(0, 0, np.arange(5)))
        or not ranks[0].augment.random
    )


def test_ranks_draw_different_crops(split):
    asked = options(augment="pad-crop-flip")
    first, second = (ThreadedLoader(split, rank=r, world_size=2, **asked).draws(0, 0, np.arange(8)) for r in range(2))
    assert not np.array_equal(first.offsets, second.offsets)


@pytest.mark.parametrize("size", [(32, 32), (31, 57), (80, 33), (200, 300)])
def test_mixed_sizes_are_fitted(size):
    split = MemorySplit(6, size=size, kind=".jpg")
    threaded, resident = (collect(build(n, split, **options(batch_size=6))) for n in ("threaded", "resident"))
    assert equal(threaded, resident)
    image = cv2.imdecode(np.frombuffer(split.payloads[0], np.uint8), 1)[:, :, ::-1]
    short = min(size)
    top, left = (size[0] - short) // 2, (size[1] - short) // 2
    wanted = cv2.resize(image[top : top + short, left : left + short], (32, 32), interpolation=cv2.INTER_AREA)
    place = threaded[0][1].tolist().index(0)
    assert np.abs(threaded[0][0][place].astype(int) - wanted).mean() < 6


def test_an_image_of_one_pixel_and_a_batch_of_one():
    split = MemorySplit(1, size=(1, 1))
    for name in UINT8:
        batches = collect(build(name, split, **options(batch_size=1, augment="pad-crop-flip", image_shape=(1, 1, 3))))
        assert batches[0][0].shape == (1, 1, 1, 3)


class Broken(MemorySplit):
    """Sample 13 is cut in half, or ends the thread that reads it."""

    def __init__(self, how: str):
        super().__init__(kind=".jpg")
        self.how = how

    def read(self, index: int) -> bytes:
        if index != 13:
            return self.payloads[index]
        if self.how == "truncated":
            return self.payloads[13][: len(self.payloads[13]) // 2]
        if self.how == "os-error":
            raise OSError(5, "Input/output error")
        raise SystemExit("the thread ends here")


@pytest.mark.parametrize("how", ["truncated", "os-error", "thread-ends"])
@pytest.mark.parametrize("workers", [0, 3])
def test_a_bad_sample_ends_the_epoch_with_its_name(how, workers):
    loader = ThreadedLoader(Broken(how), num_workers=workers, **options())
    begin = time.monotonic()
    with pytest.raises(GluontuneError, match="sample 13: "):
        collect(loader)
    assert time.monotonic() - begin < 30
    wait_for_threads()
    with pytest.raises(GluontuneError, match="sample 13"):  # and it does so again, not hang
        collect(loader)


def test_ctrl_c_stays_ctrl_c(split):
    class Interrupted(MemorySplit):
        def read(self, index: int) -> bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(ThreadedLoader(Interrupted(), **options()))


@pytest.mark.parametrize("how", ["truncated", "os-error"])
def test_the_resident_loader_names_the_bad_sample(how):
    with pytest.raises(GluontuneError, match="sample 13: "):
        ResidentLoader(Broken(how), **options())


def test_a_thread_that_dies_outside_the_loader_s_code_is_noticed(split, monkeypatch):
    monkeypatch.setattr(ThreadedLoader, "decoder", lambda self: (_ for _ in ()).throw(MemoryError("none left")))
    begin = time.monotonic()
    with pytest.raises(GluontuneError, match=r"thread died \(MemoryError: none left\)"):
        collect(ThreadedLoader(split, num_workers=2, **options()))
    assert time.monotonic() - begin < 30


def test_four_threads_on_one_loader_are_told_or_served(split):
    """Each gets whole batches, all or up to a sentence; a loader of one's own serves each of them."""
    loader = ThreadedLoader(split, batch_size=4, image_shape=(32, 32, 3), num_workers=2)
    want = collect(loader)
    got: list = [None] * 4
    together = threading.Barrier(4)

    def use(k):
        seen = []
        together.wait()
        try:
            for images, labels in loader.epoch(0):
                seen.append((images.copy(), labels.copy()))
                time.sleep(0.01)
            got[k] = (seen, None)
        except UsageError as error:
            got[k] = (seen, str(error))

    threads = [threading.Thread(target=use, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(equal(seen, want[: len(seen)]) for seen, _ in got)
    said = [text for _, text in got if text]
    assert len(said) < 4 and all("give each thread a loader of its own" in text for text in said)
    assert all(len(seen) == len(want) for seen, text in got if not text)
    loader.close()


def test_an_epoch_that_another_one_ended_says_so(split):
    with ThreadedLoader(split, batch_size=4, image_shape=(32, 32, 3), num_workers=2, prefetch=0) as loader:
        first = loader.epoch(0)
        next(first)
        assert len(list(loader.epoch(1))) == 10
        with pytest.raises(UsageError, match=r"epoch 0 was ended: this loader began another one"):
            list(first)


def test_files_are_named_in_errors(tmp_path, split):
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    for i, path in enumerate(paths):
        path.write_bytes(split.payloads[i][: 40 if i == 2 else None])
    with pytest.raises(GluontuneError, match=r"2\.png: a truncated PNG") as caught:
        collect(ThreadedLoader(from_files(paths, [0] * 4), **options(batch_size=4)))
    assert str(caught.value).count("2.png") == 1
    paths[1].unlink()
    with pytest.raises(GluontuneError, match=r"1\.png: no such file"):
        collect(ThreadedLoader(from_files(paths[:2], [0] * 2), **options(batch_size=2, shuffle=False)))


def loader_threads() -> int:
    return sum(t.name.startswith("gluontune-loader") for t in threading.enumerate())


def wait_for_threads() -> None:
    end = time.monotonic() + 30
    while loader_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert loader_threads() == 0


def test_threads_end_with_the_epoch_and_when_it_is_abandoned(split):
    loader = ThreadedLoader(split, num_workers=3, **options())
    for _ in loader.epoch(0):
        pass
    wait_for_threads()
    abandoned = loader.epoch(1)
    next(abandoned)
    assert loader_threads() == 3
    del abandoned
    wait_for_threads()
    next(loader.epoch(2))
    loader.close()
    loader.close()
    wait_for_threads()


def test_prefetch_bounds_what_is_made_ahead():
    class Counting(MemorySplit):
        reads = 0

        def read(self, index: int) -> bytes:
            Counting.reads += 1
            return super().read(index)

    loader = ThreadedLoader(Counting(40), num_workers=2, prefetch=1, **options(batch_size=4))
    batches = loader.epoch(0)
    next(batches)
    time.sleep(0.3)
    assert Counting.reads <= 4 * 3  # the batch in use, and at most prefetch + 1 on their way
    batches.close()


def _in_a_child(loader, expected, answers, stack) -> None:
    with open(stack, "w") as file:
        faulthandler.dump_traceback_later(15, file=file)
        answers.put(equal(collect(loader, 0), expected))
        faulthandler.cancel_dump_traceback_later()


def test_a_loader_works_in_a_forked_process(split, tmp_path):
    loader = ThreadedLoader(split, num_workers=2, **options())
    expected = collect(loader, 0)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_a_child, args=(loader, expected, answers, tmp_path / "stack"))
    child.start()
    try:
        assert answers.get(timeout=20)
    except queue.Empty:
        child.kill()
        pytest.fail(f"the child stood for 20 s, here: {(tmp_path / 'stack').read_text()}")
    child.join(timeout=10)
    assert child.exitcode == 0


def test_the_resident_loader_refuses_what_does_not_fit(split, monkeypatch):
    assert ResidentLoader.fits(split, (32, 32, 3))
    monkeypatch.setattr(resident_module, "usable_memory", lambda: 40 * 32 * 32 * 3 * 2 - 2)
    assert not ResidentLoader.fits(split, (32, 32, 3))
    with pytest.raises(GluontuneError, match=r"half of .* usable memory: use loader 'threaded'"):
        ResidentLoader(split, **options())


def test_a_closed_resident_loader_says_so(split):
    loader = ResidentLoader(split, **options())
    loader.close()
    with pytest.raises(GluontuneError, match="closed"):
        loader.epoch(0)


def test_memory_limits_of_a_container_count(tmp_path):
    from gluontune.loading.cached import usable_memory

    limit, usage = tmp_path / "memory.max", tmp_path / "memory.current"
    limit.write_text("5000\n")
    usage.write_text("2000\n")
    assert usable_memory(((str(limit), str(usage)),)) == 3000
    limit.write_text("max\n")
    assert usable_memory(((str(limit), str(usage)),)) > 1 << 20


@pytest.mark.parametrize("name", UINT8)
def test_wrong_arguments_are_named(split, name):
    for changes, words in (
        ({"image_shape": (32, 32)}, "image_shape"),
        ({"image_shape": (32, 32, 4)}, "image_shape"),
        ({"batch_size": 41}, "batch_size=41"),
        ({"augment": "pad-crop-flop"}, "pad-crop-flip"),
        ({"last_batch": "drop"}, "last_batch"),
    ):
        with pytest.raises(UsageError, match=words):
            build(name, split, **options(**changes))
    with pytest.raises(UsageError, match="epoch=-1"):
        build(name, split, **options()).epoch(-1)


def test_unknown_loaders_get_the_nearest_name(split):
    with pytest.raises(UnknownNameError, match="did you mean 'threaded'"):
        build("thread", split, **options())
    with pytest.raises(UsageError, match="num_workers=-1"):
        ThreadedLoader(split, num_workers=-1, **options())


def test_a_for_loop_is_an_epoch(split):
    loader = ThreadedLoader(split, **options())
    first = [labels.tolist() for _, labels in loader]
    second = [labels.tolist() for _, labels in loader]
    assert len(first) == len(loader) == 5 and first != second
    assert first == [labels.tolist() for _, labels in loader.epoch(0)]


def test_the_room_is_lazy_and_needs_no_mxnet():
    import subprocess
    import sys

    code = (
        "import sys, gluontune as gt; gt.loading.LOADERS; gt.loading.ThreadedLoader; gt.loading.ResidentLoader\n"
        "gt.loading.size; assert not {'mxnet', 'matplotlib', 'scipy'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
    assert set(gt.loading.__all__) <= set(dir(gt.loading))
    assert all(hasattr(gt.loading, name) for name in gt.loading.__all__)


def test_a_loader_is_built_from_a_path_or_a_name(tmp_path):
    """A path is no sequence of letters: it was one, of 15 samples for "/data/train.rec"."""
    path = tmp_path / "a.rec"
    with gt.records.RecordWriter(path) as writer:
        for k in range(6):
            writer.write(cv2.imencode(".png", np.full((8, 8, 3), 40 * k, np.uint8))[1].tobytes(), k)
    for source in (path, str(path)):
        with build("threaded", source, batch_size=6, image_shape=(8, 8, 3)) as loader:
            images, labels = next(loader.epoch(0))
        assert labels.tolist() == list(range(6)) and images[:, 0, 0, 0].tolist() == [40 * k for k in range(6)]
    with build("threaded", "sample", batch_size=10, image_shape=(28, 28, 1)) as loader:
        by_name = next(loader.epoch(0))
    train = gt.datasets.open("sample").train
    with build("threaded", train, batch_size=10, image_shape=(28, 28, 1)) as loader:
        by_split = next(loader.epoch(0))
    assert all(np.array_equal(a, b) for a, b in zip(by_name, by_split))
    with pytest.raises(GluontuneError, match=r"nowhere\.rec"):
        build("threaded", tmp_path / "nowhere.rec", batch_size=6, image_shape=(8, 8, 3))
