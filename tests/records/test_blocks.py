"""Blocks of images: read whole, copied by the codec as by Python, in order, a few ahead; and what a job tells."""

from __future__ import annotations

import os

import cv2
import numpy as np
import pytest
from PIL import Image

from gluontune.codec import native
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.records import PackReport, RecordReader, pack, packer as packer_room
from gluontune.records.blocks import BlockMaker, Skip, make_block
from gluontune.records.packer import shard_paths
from gluontune.records.sources import Item
from gluontune.records.transform import BulkCopier, Transform

needs_codec = pytest.mark.skipif(not native.compilers(), reason="wants a C compiler: Python copies the files")


def written(folder, sizes):
    """Files of these sizes; each byte tells where it stands."""
    paths = []
    for k, size in enumerate(sizes):
        path = folder / f"{k}.jpg"
        path.write_bytes((np.arange(size, dtype=np.uint32) % 251 + k).astype(np.uint8).tobytes())
        paths.append(str(path))
    return paths


@pytest.mark.parametrize("size", [1, 65535, 65536, 65537, 131072, 200001])
def test_a_file_is_read_to_its_end(tmp_path, size):
    (path,) = written(tmp_path, [size])
    block = make_block([Item(4, 1.0, path)], 0, Transform(exact=True))
    assert block.data[8 + 24 : 8 + 24 + size] == (tmp_path / "0.jpg").read_bytes()
    assert (block.keys, block.lengths, block.sizes, block.count) == ([4], [24 + size], [len(block.data)], 1)


def test_a_file_that_no_record_holds_is_left_out(tmp_path):
    path = tmp_path / "big.jpg"
    with open(path, "wb") as stream:
        stream.truncate(1 << 29)
    block = make_block([Item(0, 1.0, str(path))], 7, Transform(exact=True))
    reason = "536,870,912 bytes: a record must be shorter than 536,870,912"
    assert block.skips == [Skip(7, str(path), reason)] and block.keys == [] and block.data == b""


def items_of(paths):
    labels = (1.0, (2.0, 3.5), -0.5, (7.0,), 16777217, 5.0, 0.0, 3.0)
    return [Item(10 + k, labels[k % len(labels)], path) for k, path in enumerate(paths)]


@needs_codec
@pytest.mark.parametrize("first", [0, 5])
def test_the_codec_copies_as_python_does(tmp_path, first):
    """Labels of each kind, one that float32 cannot hold, an empty file, one that is gone, and one above its room."""
    paths = written(tmp_path, [10, 500, 3, 64, 20, 0, 4096, 9 << 20, 33, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    paths[9] = str(tmp_path / "gone.jpg")
    items = items_of(paths)
    copier = BulkCopier.find()
    copied, plain = (make_block(items, first, Transform(exact=True), c) for c in (copier, None))
    assert bytes(copied.data) == bytes(plain.data)
    for name in ("keys", "sizes", "lengths", "crcs", "skips", "converted", "count"):
        assert getattr(copied, name) == getattr(plain, name)
    assert [s.position - first for s in plain.skips] == [4, 5, 9, 12] and plain.converted == 0
    assert sum(plain.sizes) == len(plain.data) and plain.count == 20
    assert "float32 would make it" in plain.skips[0].reason and plain.skips[1].reason == "empty file"
    assert plain.skips[2].reason == "no such file or directory"
    few = plain.until(4)
    assert few.keys == [10, 11, 12, 13] and few.count == 4 and few.skips == []
    assert few.data == plain.data[: sum(plain.sizes[:4])]
    assert (few.sizes, few.lengths, few.crcs) == (plain.sizes[:4], plain.lengths[:4], plain.crcs[:4])


@needs_codec
def test_the_codec_reads_a_file_to_its_end(tmp_path):
    """At 64 KiB it asks whether there is more, also where the end of a JPEG file stands there. A FIFO is no file."""
    paths = written(tmp_path, [2, 3, 65534, 65535, 65536, 65537, 65538, 131072, 200001])
    for k, path in enumerate(paths):
        for end in (65536, (tmp_path / f"{k}.jpg").stat().st_size):
            with open(path, "r+b") as stream:
                if end <= os.path.getsize(path):
                    stream.seek(end - 2)
                    stream.write(b"\xff\xd9")
    os.mkfifo(tmp_path / "fifo.jpg")
    held = os.open(tmp_path / "fifo.jpg", os.O_RDWR)
    os.write(held, (tmp_path / "0.jpg").read_bytes())
    items = [Item(k, 1.0, path) for k, path in enumerate([*paths, str(tmp_path / "fifo.jpg")])]
    copied = make_block(items, 0, Transform(exact=True), BulkCopier.find())
    os.close(held)
    assert bytes(copied.data) == bytes(make_block(items[:-1], 0, Transform(exact=True)).data)
    assert [(s.position, s.reason) for s in copied.skips] == [(9, "a fifo, not a regular file")]


class Counting(BulkCopier):
    """How many files it is asked for at a time."""

    def __init__(self, library):
        super().__init__(library)
        self.asked = []

    def gather(self, items, transform, check):
        self.asked.append(len(items))
        return super().gather(items, transform)


@needs_codec
def test_after_one_that_the_codec_leaves_it_is_asked_for_a_few_and_then_for_more(tmp_path):
    plain = [9] * 40
    for odd, asked in (((), [40]), ((3,), [40, 6, 24, 6]), ((0,), [40]), ((5, 6), [40, 10]), ((39,), [40])):
        items = items_of(written(tmp_path, [0 if k in odd else size for k, size in enumerate(plain)]))
        items = [item._replace(label=1.0) for item in items]
        copier = Counting.find()
        block = make_block(items, 0, Transform(exact=True), copier)
        assert copier.asked == asked and [s.position for s in block.skips] == list(odd)
        assert block.data == make_block(items, 0, Transform(exact=True)).data
        assert isinstance(block.data, memoryview) == (odd in ((), (39,)))  # not even joined


@needs_codec
@pytest.mark.parametrize(
    "changes",
    [{}, {"crop": True, "quality": 60}, {"color": "grey"}, {"color": "rgb", "format": "jpg"}],
    ids=["colours as they are", "crop", "grey", "rgb"],
)
def test_the_codec_makes_files_smaller_as_python_has_them_made(tmp_path, changes):
    """Grey ones, progressive, on their side, too small, as large as wanted, PNG, CMYK, cut off, none at all."""
    rng = np.random.default_rng(3)

    def image(height, width, mode="RGB"):
        pixels = np.repeat(np.repeat(rng.integers(0, 256, (5, 5, 3), np.uint8), 40, 0), 40, 1)
        return Image.fromarray(pixels[:height, :width]).convert(mode)

    turned = Image.Exif()
    turned[0x0112] = 6
    image(90, 120).save(tmp_path / "0.jpg", quality=90)
    image(130, 80, "L").save(tmp_path / "1.jpg")
    image(100, 100).save(tmp_path / "2.jpg", progressive=True)
    image(60, 90).save(tmp_path / "3.jpg", exif=turned)
    image(30, 120).save(tmp_path / "4.jpg")
    image(40, 120).save(tmp_path / "5.jpg")
    image(70, 70).save(tmp_path / "6.png")
    image(70, 90, "CMYK").save(tmp_path / "7.jpg")
    (tmp_path / "8.jpg").write_bytes((tmp_path / "0.jpg").read_bytes()[:-300])
    (tmp_path / "9.jpg").write_bytes(b"\xff\xd8 no image")
    image(200, 200).save(tmp_path / "a.jpg", subsampling=0)
    paths = sorted(str(path) for path in tmp_path.iterdir())
    items = [Item(k, float(k), path) for k, path in enumerate([*paths, str(tmp_path / "gone.jpg")])]
    transform = Transform(resize=40, **changes)
    bulk, plain = (make_block(items, 3, transform, copier) for copier in (BulkCopier.find(), None))
    assert bytes(bulk.data) == bytes(plain.data)
    for name in ("keys", "sizes", "lengths", "crcs", "skips", "converted", "count"):
        assert getattr(bulk, name) == getattr(plain, name)
    assert plain.keys == [0, 1, 2, 3, 4, 5, 6, 7, 10] and [s.position for s in plain.skips] == [11, 12, 14]
    assert BulkCopier.find().gather(items[:3], transform).sizes == plain.sizes[: 1 if "format" in changes else 3]


@needs_codec
def test_threads_copy_by_the_codec_what_is_copied(tmp_path):
    items = items_of(written(tmp_path, [9, 10]))
    for transform, processes, copies in (
        (Transform(exact=True), False, True),
        (Transform(), False, True),
        (Transform(resize=4), False, True),
        (Transform(resize=4, format="png"), False, False),
        (Transform(quality=80), False, False),
        (Transform(exact=True), True, False),
    ):
        with BlockMaker(transform, 1, processes) as maker:
            assert (maker.gatherer is not None) == copies
    with BlockMaker(Transform(exact=True), 1, False) as maker:
        first, second = maker.blocks([(items, 0), (items, 0)])
        assert first.data.obj is not second.data.obj
        maker.give_back(first)
        (third,) = maker.blocks([(items, 0)])
        assert third.data.obj is first.data.obj


def test_a_worker_process_that_fails_says_so(tmp_path):
    (path,) = written(tmp_path, [9])
    with BlockMaker(Transform(exact=True), 1, True) as maker:
        with pytest.raises(GluontuneError, match="a packing worker failed: error: "):
            list(maker.blocks([([Item("no number", 1.0, path)], 0)]))
        (block,) = maker.blocks([([Item(4, 1.0, path)], 0)])  # and goes on
    assert block.keys == [4] and block.skips == []


@needs_codec
def test_memory_that_was_given_back_serves_the_next_block(tmp_path):
    items = [Item(k, 1.0, path) for k, path in enumerate(written(tmp_path, [10, 20]))]
    copier = BulkCopier.find()
    first = copier.gather(items, Transform(exact=True))
    assert len(first.sizes) == 2 and len(first.data) == sum(first.sizes)
    held = copier.gather(items, Transform(exact=True))
    assert held.data.obj is not first.data.obj and held.data == first.data
    copier.give_back(first.data)
    for nothing in (b"bytes", memoryview(b"bytes"), bytearray(4)):
        copier.give_back(nothing)
    again = copier.gather(items, Transform(exact=True))
    assert again.data.obj is first.data.obj and again.data == held.data
    assert copier.gather([], Transform(exact=True)).sizes == []


@needs_codec
def test_a_block_has_room_for_eight_mib(tmp_path):
    for size, made in (((8 << 20) - 1024, 1), (8 << 20, 0)):
        (path,) = written(tmp_path, [size])
        assert len(BulkCopier.find().gather([Item(0, 1.0, path)], Transform(exact=True)).sizes) == made


def test_blocks_come_in_order_a_few_ahead(tmp_path):
    paths = written(tmp_path, [9] * 30)
    taken = []

    def jobs():
        for k, path in enumerate(paths):
            taken.append(k)
            yield [Item(k, 1.0, path)], k

    with BlockMaker(Transform(exact=True), 2, False) as maker:
        blocks = maker.blocks(jobs())
        assert next(blocks).keys == [0] and len(taken) == 6  # three a worker
        assert [block.keys[0] for block in blocks] == list(range(1, 30))


def test_a_block_that_nobody_wants_any_more_ends_early(tmp_path):
    items = [Item(k, 1.0, path) for k, path in enumerate(written(tmp_path, [9] * 5))]
    answers = iter([False, False, True])
    block = make_block(items, 0, Transform(exact=True), None, lambda: next(answers))
    assert block.keys == [0, 1]


def told(src, out, **options):
    seen = []
    pack(src, out, shuffle=False, workers=1, progress=lambda done, total: seen.append(done), **options)
    return seen


@pytest.mark.parametrize(
    ("size", "count", "each", "blocks"),
    [
        (10, 600, 600, [0, 256, 512, 600]),  # no more than so many
        (1 << 20, 5, 5, [0, 2, 4, 5]),  # two MiB
        ((1 << 20) + 1, 3, 3, [0, 1, 2, 3]),
        (3 << 20, 2, 2, [0, 1, 2]),  # at least one
    ],
)
def test_the_size_of_a_block(tmp_path, size, count, each, blocks):
    (path,) = written(tmp_path, [size])
    (tmp_path / "a.lst").write_text("".join(f"{k}\t1\t{path}\n" for k in range(count)))
    assert told(tmp_path / "a.lst", tmp_path / "a.rec", exact=True) == blocks
    with RecordReader(tmp_path / "a.rec") as reader:
        assert len(reader) == each and len(reader.payload(each - 1)) == size


def test_images_that_are_decoded_come_in_small_blocks_and_opencv_keeps_its_threads(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((8, 8, 3), np.uint8))
    (tmp_path / "a.lst").write_text("".join(f"{k}\t1\ta.png\n" for k in range(33)))
    before = cv2.getNumThreads()
    cv2.setNumThreads(3)
    try:
        during = []
        seen = told(tmp_path / "a.lst", tmp_path / "a.rec", resize=4)
        pack(
            tmp_path / "a.lst", tmp_path / "b.rec", resize=4, workers=1,
            progress=lambda *_: during.append(cv2.getNumThreads()),
        )  # fmt: skip
        assert seen == [0, 16, 32, 33] and set(during) == {1} and cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(before)


class Asked(Exception):
    """Instead of the work."""


@pytest.mark.parametrize(
    ("count", "size", "codec", "workers", "options", "processes"),
    [
        (4000, 32767, False, 2, {}, True),
        (3999, 32767, False, 2, {}, False),
        (4000, 32768, False, 2, {}, False),
        (4000, 32767, True, 2, {}, False),
        (4000, 32767, False, 1, {}, False),
        (4000, 32767, False, 2, {"resize": 9}, False),
    ],
)
def test_processes_are_for_many_small_files_without_the_codec(
    tmp_path, monkeypatch, count, size, codec, workers, options, processes
):
    def ask(transform, number, worth, check):
        raise Asked(number, worth)

    (path,) = written(tmp_path, [size])
    (tmp_path / "a.lst").write_text("".join(f"{k}\t1\t{path}\n" for k in range(count)))
    monkeypatch.setattr(packer_room.native, "load", lambda: object() if codec else None)
    monkeypatch.setattr(packer_room, "BlockMaker", ask)
    with pytest.raises(Asked) as asked:
        pack(tmp_path / "a.lst", tmp_path / "a.rec", workers=workers, **options)
    assert asked.value.args == (workers, processes)


def test_the_mean_size_is_that_of_the_files_that_are_there(tmp_path):
    paths = written(tmp_path, [1 << 20, 3 << 20])
    lines = [*paths, str(tmp_path / "gone.jpg")] * 1
    (tmp_path / "a.lst").write_text("".join(f"{k}\t1\t{path}\n" for k, path in enumerate(lines)))
    assert told(tmp_path / "a.lst", tmp_path / "a.rec", exact=True) == [0, 1, 2, 3]  # two MiB each
    paths = written(tmp_path, [0, 100])
    (tmp_path / "b.lst").write_text("".join(f"{k}\t1\t{path}\n" for k, path in enumerate(paths)))
    assert told(tmp_path / "b.lst", tmp_path / "b.rec", exact=True) == [0, 2]


def test_a_report_counts_what_this_run_packed():
    report = PackReport(
        packed=10, resumed=4, seconds=2.34567, converted=3, bytes=99, classes=["cat"], outputs=["a.rec"],
        skipped=[Skip(3, "b.jpg", "empty file")], incomplete=[Skip(4, "c.jpg", "grey")],
    )  # fmt: skip
    assert report.images_per_sec == pytest.approx(6 / 2.34567) and PackReport(packed=5).images_per_sec == 0.0
    assert report.to_dict() == {
        "packed": 10, "resumed": 4, "seconds": 2.346, "images_per_sec": 2.6, "converted": 3, "bytes": 99,
        "classes": ["cat"], "outputs": ["a.rec"], "skipped": [{"path": "b.jpg", "reason": "empty file"}],
        "incomplete": [{"path": "c.jpg", "reason": "grey"}],
    }  # fmt: skip


def test_numbers_of_workers_and_shards(tmp_path):
    written(tmp_path, [5, 6])
    (tmp_path / "a.lst").write_text("0\t1\t0.jpg\n1\t1\t1.jpg\n")
    for workers in (0, -1):
        with pytest.raises(UsageError, match=f"workers {workers}: give at least 1"):
            pack(tmp_path / "a.lst", tmp_path / "a.rec", exact=True, workers=workers)
    assert pack(tmp_path / "a.lst", tmp_path / "a.rec", exact=True, workers=1, shards=2).packed == 2
    with pytest.raises(UsageError, match="shards 3: there are only 2 images"):
        pack(tmp_path / "a.lst", tmp_path / "a.rec", exact=True, shards=3)
    assert [p.name for p in shard_paths("x/a.rec", 1)] == ["a.rec"]
    assert [p.name for p in shard_paths("x/a.rec", 3)] == [f"a-{k:05d}-of-00003.rec" for k in range(3)]
    report = pack(tmp_path / "a.lst", tmp_path / "a.rec", exact=True, shards=2)
    assert report.bytes == sum(
        (tmp_path / name).stat().st_size for name in ("a-00000-of-00002.rec", "a-00001-of-00002.rec")
    )
    assert report.seconds > 0 and report.images_per_sec == pytest.approx(2 / report.seconds)


def test_a_shard_of_nothing_but_damage_is_named(tmp_path):
    written(tmp_path, [5, 0])
    (tmp_path / "a.lst").write_text("0\t1\t0.jpg\n1\t1\t1.jpg\n")
    with pytest.raises(
        GluontuneError, match=r"a-00001-of-00002\.rec: none of its 1 images can be packed; .*1\.jpg: empty"
    ):
        pack(tmp_path / "a.lst", tmp_path / "a.rec", exact=True, shards=2)
    assert sorted(p.name for p in tmp_path.glob("a-*")) == [f"a-00000-of-00002{s}" for s in (".crc", ".idx", ".rec")]
