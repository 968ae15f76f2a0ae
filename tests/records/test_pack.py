"""The packer: sources, what happens to odd images, order and shards, damage, resuming after a kill."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from record_kills import kill_trials

from gluontune.codec.header import ImageError, inspect
from gluontune.codec.image import decode_image, pixels_to_raw
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.records import (
    DamagedRecordError,
    RecordReader,
    blocks as blocks_room,
    pack,
    packer as packer_room,
    raw_to_pixels,
    verify,
)
from gluontune.records.blocks import BlockMaker, start_worker
from gluontune.records.sources import read_source
from gluontune.records.transform import Transform


def photo(height=60, width=90, seed=0):
    """Smooth (H, W, 3) uint8 RGB, which JPEG keeps well; the corners differ."""
    rng = np.random.default_rng(seed)
    return cv2.resize(rng.integers(0, 255, (3, 4, 3), dtype=np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)


def encoded(pixels, kind="JPEG", mode=None, **options):
    stream = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(stream, kind, **options)
    return stream.getvalue()


def exif(orientation):
    made = Image.Exif()
    made[0x0112] = orientation
    return made.tobytes()


def shown(payload):
    """What any plain decoder shows: no EXIF, RGB."""
    return np.asarray(Image.open(io.BytesIO(bytes(payload))).convert("RGB")).astype(int)


@pytest.fixture
def folder(tmp_path):
    for n, name in enumerate(("cat", "dog", "eel")):
        (tmp_path / "src" / name / "deep").mkdir(parents=True)
        for i in range(5):
            where = tmp_path / "src" / name / ("deep" if i % 2 else "")
            (where / f"{i}.jpg").write_bytes(encoded(photo(seed=10 * n + i), quality=95))
    (tmp_path / "src" / "notes.txt").write_text("no class")
    return tmp_path / "src"


def test_class_folder_is_copied_byte_for_byte(folder, tmp_path):
    report = pack(folder, tmp_path / "a.rec", shuffle=False)
    assert (report.packed, report.skipped, report.converted, report.classes) == (15, [], 0, ["cat", "dog", "eel"])
    assert (tmp_path / "a.classes").read_text() == "cat\ndog\neel\n"
    files = [sorted(str(p) for p in (folder / name).rglob("*.jpg")) for name in report.classes]
    with RecordReader(tmp_path / "a.rec", check=True) as reader:
        assert reader.labels().tolist() == [0] * 5 + [1] * 5 + [2] * 5
        assert list(reader.keys) == list(range(15))
        for i, path in enumerate(p for group in files for p in group):
            with open(path, "rb") as stream:
                assert stream.read() == reader.payload(i)
    assert verify(tmp_path / "a.rec").ok


def test_order_is_fixed_by_the_seed_and_shards_hold_the_same_order(folder, tmp_path):
    def order(*paths):
        return [(int(k), bytes(r)) for p in paths for k, r in zip(RecordReader(p).keys, RecordReader(p))]

    pack(folder, tmp_path / "one.rec", seed=1, workers=1)
    pack(folder, tmp_path / "same.rec", seed=1, workers=5)
    assert (tmp_path / "one.rec").read_bytes() == (tmp_path / "same.rec").read_bytes()
    whole = order(tmp_path / "one.rec")
    assert sorted(k for k, _ in whole) == list(range(15)) and [k for k, _ in whole] != list(range(15))
    for shards in (2, 4, 15):
        report = pack(folder, tmp_path / f"s{shards}.rec", seed=1, shards=shards)
        assert len(report.outputs) == shards and order(*report.outputs) == whole
    pack(folder, tmp_path / "other.rec", seed=2)
    assert [k for k, _ in order(tmp_path / "other.rec")] != [k for k, _ in whole]
    with pytest.raises(UsageError, match="only 15 images"):
        pack(folder, tmp_path / "s.rec", shards=16)


def test_list_and_table_with_several_labels(folder, tmp_path):
    (tmp_path / "a.lst").write_text("7\t1\t0.5\tcat/0.jpg\n3\t2\t1.5\tdog/0.jpg\n")
    pack(tmp_path / "a.lst", tmp_path / "l.rec", root=folder)
    with RecordReader(tmp_path / "l.rec") as reader:
        assert list(reader.keys) == [7, 3] and reader.labels().tolist() == [[1, 0.5], [2, 1.5]]
    (folder / "t.csv").write_text("age;path;sex\n30;cat/0.jpg;1\n40;dog/0.jpg;0\n")
    pack(folder / "t.csv", tmp_path / "t.rec", shuffle=False)
    assert RecordReader(tmp_path / "t.rec").labels().tolist() == [[30, 1], [40, 0]]
    pack(folder / "t.csv", tmp_path / "t.rec", shuffle=False, label_columns=["sex"])
    assert RecordReader(tmp_path / "t.rec").labels().tolist() == [1, 0]
    (folder / "w.csv").write_text('image,kind\n"cat/0.jpg",tiger\n"dog/0.jpg","lion, big"\n')
    report = pack(folder / "w.csv", tmp_path / "w.rec", shuffle=False)
    assert report.classes == ["lion, big", "tiger"]
    assert RecordReader(tmp_path / "w.rec").labels().tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.lst", "1\t0\ta.jpg\n1\t0\tb.jpg\n", "line 2: the key 1 is used twice"),
        ("a.lst", "1 0 a.jpg\n", "line 1 is not"),
        ("a.lst", "1\tcat\ta.jpg\n", "line 1: the label 'cat' is not a number"),
        ("a.lst", "1\t25130987\ta.jpg\n", "line 1: label 25130987: float32 would make it 25130988"),
        ("a.lst", "1\tnan\ta.jpg\n", "finite"),
        ("a.lst", "", "no images"),
        ("a.csv", "path,x,y\na.jpg,1\n", "line 2 has 2 fields, the header 3"),
        ("a.csv", "path,x,y\na.jpg,1,big\n", "line 2: the label 'big' is not a number"),
        ("a.csv", "path\na.jpg\n", "no label column"),
        ("a.csv", "path,kind\na.jpg,\nb.jpg,cat\n", "line 2: the label is empty"),
        ("a.txt", "x", "give a folder"),
    ],
)
def test_bad_lists_are_refused_with_their_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(GluontuneError, match=message):
        pack(tmp_path / name, tmp_path / "out.rec")
    assert not (tmp_path / "out.rec").exists()


def test_bad_folders_and_options(folder, tmp_path):
    with pytest.raises(GluontuneError, match="no such file or folder"):
        pack(tmp_path / "nowhere", tmp_path / "a.rec")
    with pytest.raises(GluontuneError, match="lie in no class folder"):
        pack(folder / "cat" / "deep", tmp_path / "a.rec")
    (folder / "t.csv").write_text("path,label\ncat/0.jpg,1\n")
    with pytest.raises(UsageError, match="no column 'labels': did you mean 'label'"):
        pack(folder / "t.csv", tmp_path / "a.rec", label_columns=["labels"])
    for options in ({"format": "gif"}, {"resize": 0}, {"quality": 101}, {"exact": True, "resize": 5}, {"shards": 0}):
        with pytest.raises(UsageError):
            pack(folder, tmp_path / "a.rec", **options)
    with pytest.raises(UsageError, match=r"ends in \.rec"):
        pack(folder, tmp_path / "a.lst")


def test_linked_folders_are_followed_once(folder):
    (folder / "cat" / "again").symlink_to(folder / "cat")
    (folder / "fox").symlink_to(folder / "dog")
    source = read_source(folder, shuffle=False)
    assert source.classes == ["cat", "dog", "eel", "fox"] and len(source.items) == 20


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    pixels = photo()
    data = encoded(pixels, exif=exif(orientation), quality=98, subsampling=0)
    packed, changed = Transform()(data)
    assert changed == (orientation != 1) and inspect(packed).orientation == 1
    upright = Image.open(io.BytesIO(data))
    turned = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}.get(orientation)
    want = np.asarray(upright if turned is None else upright.transpose(turned)).astype(int)
    assert shown(packed).shape == want.shape and np.abs(shown(packed) - want).mean() < 2
    small, _ = Transform(resize=20)(data)
    assert shown(small).shape[:2] == ((20, 30) if orientation < 5 else (30, 20))
    png = encoded(pixels, "PNG", exif=exif(orientation))
    assert np.array_equal(shown(Transform()(png)[0]), np.asarray(_turned(pixels, turned)).astype(int))


def _turned(pixels, method):
    return Image.fromarray(pixels) if method is None else Image.fromarray(pixels).transpose(method)


def test_cmyk_palette_grey_16_bit_and_transparent_images():
    pixels = photo()
    cmyk, changed = Transform()(encoded(pixels, mode="CMYK", quality=98))
    assert changed and inspect(cmyk).channels == 3 and np.abs(shown(cmyk) - pixels).mean() < 3
    palette = encoded(pixels, "PNG", mode="P")
    packed, changed = Transform()(palette)
    assert changed and inspect(packed).plain and np.array_equal(shown(packed), shown(palette))
    for grey in (encoded(pixels[..., 0]), encoded(pixels[..., 0], "PNG")):
        assert Transform()(grey) == (grey, False)
        assert inspect(Transform(color="rgb")(grey)[0]).channels == 3
    assert inspect(Transform(color="grey")(encoded(pixels))[0]).channels == 1
    deep = pixels.astype(np.uint16) * 257
    packed, changed = Transform()(cv2.imencode(".png", deep[..., ::-1])[1].tobytes())
    assert changed and np.array_equal(shown(packed), pixels)
    bits = encoded(pixels[..., 0] > 127, "PNG")
    assert inspect(Transform()(bits)[0]).bits == 8 and set(np.unique(shown(Transform()(bits)[0]))) == {0, 255}
    rgba = np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])
    rgba[:10, :10, 3] = 0
    packed, _ = Transform()(encoded(rgba, "PNG"))
    assert (shown(packed)[:10, :10] == 255).all() and np.array_equal(shown(packed)[20:], pixels[20:])


def test_what_a_change_of_size_alone_leaves_alone():
    square, wide = encoded(photo(40, 40)), encoded(photo(40, 60))
    assert Transform(crop=True)(square) == (square, False)
    cut, changed = Transform(crop=True)(wide)
    assert changed and shown(cut).shape == (40, 40, 3)
    for kind in ("PNG", "BMP"):  # which have no path of their own, as JPEG has
        smaller, _ = Transform(resize=20)(encoded(photo()[..., 0], kind))
        assert inspect(smaller).channels == 1 and shown(smaller).shape == (20, 30, 3)


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "PPM", "WEBP"])
def test_other_formats_become_jpeg_or_png(kind):
    pixels = photo()
    options = {"lossless": True} if kind == "WEBP" else {}
    packed, changed = Transform()(encoded(pixels, kind, **options))
    assert changed and inspect(packed).kind == ("jpg" if kind == "WEBP" else "png")
    assert np.abs(shown(packed) - pixels).mean() < (2 if kind == "WEBP" else 0.001)


def test_resize_crop_format_and_quality():
    pixels = photo(200, 310)
    data = encoded(pixels, quality=95)
    packed, _ = Transform(resize=50)(data)
    want = cv2.resize(pixels, (78, 50), interpolation=cv2.INTER_AREA)
    assert shown(packed).shape == (50, 78, 3) and np.abs(shown(packed) - want).mean() < 3
    assert shown(Transform(resize=50, crop=True)(data)[0]).shape == (50, 50, 3)
    assert shown(Transform(resize=250)(data)[0]).shape[0] == 250
    assert len(Transform(quality=20)(data)[0]) < len(data) / 2
    assert Transform(format="jpg")(data) == (data, False) and Transform(resize=200)(data) == (data, False)
    png, _ = Transform(format="png")(data)
    assert inspect(png).kind == "png" and np.abs(shown(png) - shown(data)).mean() < 1
    raw, _ = Transform(format="raw", resize=50, crop=True)(data)
    assert (
        raw_to_pixels(raw).shape == (50, 50, 3) and np.abs(raw_to_pixels(raw).astype(int) - want[:, 14:64]).mean() < 3
    )
    assert raw_to_pixels(Transform(format="raw", color="grey")(data)[0]).shape == (200, 310, 1)
    assert np.array_equal(np.load(io.BytesIO(raw)), raw_to_pixels(raw))
    assert np.array_equal(decode_image(raw, inspect(raw))[..., ::-1], raw_to_pixels(raw))


@pytest.mark.parametrize(
    "payload", [b"", b"\x93NUMPY\1\0", pixels_to_raw(np.ones((2, 2, 3), np.uint8))[:-1], encoded(photo())]
)
def test_damaged_raw_pixels_are_refused(payload):
    with pytest.raises(ImageError):
        raw_to_pixels(payload)


def damaged_images():
    jpg, png = encoded(photo()), encoded(photo(), "PNG")
    flipped = bytearray(png)
    flipped[len(png) // 2] ^= 1
    return {
        "empty": (b"", "empty file"),
        "page": (b"<html>not found</html>", "not an image"),
        "cut_jpg": (jpg[:-100], "truncated JPEG"),
        "head_jpg": (jpg[:15], "truncated JPEG"),
        "odd_jpg": (jpg[:20] + bytes(50) + jpg[70:], "damaged JPEG"),
        "cut_png": (png[:-30], "truncated PNG"),
        "flip_png": (bytes(flipped), "checksum of chunk"),
        "bmp": (encoded(photo(), "BMP")[:60], "decoded"),
    }


def test_damaged_files_are_listed_and_left_out_or_fatal(folder, tmp_path):
    damaged = damaged_images()
    for name, (data, _) in damaged.items():
        (folder / "cat" / f"{name}.jpg").write_bytes(data)
    (folder / "cat" / "gone.jpg").symlink_to("nowhere.jpg")
    report = pack(folder, tmp_path / "a.rec")
    reasons = {skip.path.rpartition("/")[2][:-4]: skip.reason for skip in report.skipped}
    assert report.packed == 15 and set(reasons) == {*damaged, "gone"}
    for name, (_, reason) in damaged.items():
        assert reason in reasons[name]
    assert "no such file" in reasons["gone"]
    assert verify(tmp_path / "a.rec").ok
    with pytest.raises(GluontuneError, match=r"cat/.*--strict"):
        pack(folder, tmp_path / "strict.rec", strict=True)
    assert not (tmp_path / "strict.rec").exists()


def test_strict_goes_on_once_the_image_is_mended(folder, tmp_path):
    pack(folder, tmp_path / "want.rec")
    bad = folder / "dog" / "0.jpg"
    good = bad.read_bytes()
    bad.write_bytes(good[:-50])
    with pytest.raises(GluontuneError, match="go on with --resume"):
        pack(folder, tmp_path / "a.rec", strict=True)
    bad.write_bytes(good)
    report = pack(folder, tmp_path / "a.rec", strict=True, resume=True)
    assert report.packed == 15 and report.resumed < 15
    assert (tmp_path / "a.rec").read_bytes() == (tmp_path / "want.rec").read_bytes()
    assert not list(tmp_path.glob("*.part"))


def test_nothing_but_damage_leaves_no_file(tmp_path):
    (tmp_path / "src" / "cat").mkdir(parents=True)
    (tmp_path / "src" / "cat" / "a.jpg").write_bytes(b"no")
    with pytest.raises(GluontuneError, match="none of its 1 images"):
        pack(tmp_path / "src", tmp_path / "out" / "a.rec")
    assert list((tmp_path / "out").iterdir()) == []


def interrupted(folder, out, monkeypatch, after):
    """Stop a job as Ctrl-C does, after some images."""

    def progress(done, total):
        if done >= after:
            raise KeyboardInterrupt

    monkeypatch.setattr(packer_room, "BLOCK_BYTES", 1)
    with pytest.raises(KeyboardInterrupt):
        pack(folder, out, progress=progress, workers=2)


def test_resume_repeats_nothing_and_refuses_another_job(folder, tmp_path, monkeypatch):
    (folder / "cat" / "bad.jpg").write_bytes(b"bad")
    pack(folder, tmp_path / "want.rec")
    out = tmp_path / "a.rec"
    interrupted(folder, out, monkeypatch, 9)
    assert not out.exists() and (tmp_path / "a.rec.part").exists()
    with pytest.raises(GluontuneError, match="leave out --resume"):
        pack(folder, out, resume=True, seed=5)
    reads = []
    original = blocks_room.make_block
    monkeypatch.setattr(blocks_room, "make_block", lambda items, *more: reads.extend(items) or original(items, *more))
    report = pack(folder, out, resume=True)
    assert len(reads) == 16 - 9 and report.packed == 15 and len(report.skipped) == 1
    for suffix in (".rec", ".idx", ".classes"):
        assert out.with_suffix(suffix).read_bytes() == (tmp_path / "want").with_suffix(suffix).read_bytes()
    reads.clear()
    again = pack(folder, out, resume=True)
    assert reads == [] and (again.packed, len(again.skipped), again.images_per_sec) == (15, 1, 0)


@pytest.mark.parametrize("harm", ["tail", "flip", "row", "plan", "crc"])
def test_resume_cuts_off_what_a_crash_damaged(folder, tmp_path, monkeypatch, harm):
    pack(folder, tmp_path / "want.rec")
    out = tmp_path / "a.rec"
    interrupted(folder, out, monkeypatch, 9)
    part, crc, plan = (tmp_path / f"a.{s}.part" for s in ("rec", "crc", "plan"))
    data = bytearray(part.read_bytes())
    if harm == "tail":
        part.write_bytes(data[:-5])
    elif harm == "flip":
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
    elif harm == "row":
        crc.write_bytes(crc.read_bytes()[:-9])
    elif harm == "plan":
        plan.write_bytes(plan.read_bytes()[:10])
    else:
        crc.write_bytes(b"")
    assert pack(folder, out, resume=True).packed == 15
    assert out.read_bytes() == (tmp_path / "want.rec").read_bytes()
    assert verify(out).ok


def test_kill_9_and_resume_loses_and_repeats_nothing():
    result = kill_trials(4, images=400)
    assert result["kills"] == 4 and result["wrong_or_lost"] == 0


def test_kills_between_the_lines_that_write_and_rename():
    # It forks: not from this process.
    command = [sys.executable, str(Path(__file__).parents[1] / "trials" / "record_fuzz.py"), "--steps", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["steps"]
    assert result["jobs"] == 30 and result["kills"] >= 30 and result["wrong_or_lost"] == 0


def test_worker_processes_make_the_same_file(folder, tmp_path, monkeypatch):
    (folder / "cat" / "bad.jpg").write_bytes(b"bad")
    threads = pack(folder, tmp_path / "threads.rec")
    monkeypatch.setattr(packer_room, "WORTH_PROCESSES", 1)
    monkeypatch.setattr(packer_room.native, "load", lambda: None)  # with the compiled codec, threads do
    monkeypatch.setattr(packer_room, "BLOCK_BYTES", 6000)
    started = []

    def start():
        started.append(start_worker())
        return started[-1]

    monkeypatch.setattr(blocks_room, "start_worker", start)
    processes = pack(folder, tmp_path / "processes.rec", workers=2)
    assert started and all(child.poll() is not None for child in started)  # used, and none is left
    assert (tmp_path / "threads.rec").read_bytes() == (tmp_path / "processes.rec").read_bytes()
    assert processes.skipped == threads.skipped and len(threads.skipped) == 1


def test_a_dead_worker_process_is_an_error_not_a_hang(folder, monkeypatch):
    def doomed():
        child = start_worker()
        child.kill()
        return child

    items = read_source(folder).items
    before = threading.active_count()
    monkeypatch.setattr(blocks_room, "start_worker", doomed)
    with BlockMaker(Transform(), 2, True) as maker, pytest.raises(GluontuneError, match="worker died"):
        list(maker.blocks([(items, 0), (items, 0)]))
    assert threading.active_count() == before


def test_two_jobs_on_one_file_are_refused(folder, tmp_path):
    second = []

    def progress(done, total):
        if not second:
            with pytest.raises(GluontuneError, match="another process") as caught:
                pack(folder, tmp_path / "a.rec")
            second.append(caught)

    assert pack(folder, tmp_path / "a.rec", progress=progress).packed == 15 and second


def test_side_files_of_an_older_file_do_not_survive(folder, tmp_path):
    pack(folder, tmp_path / "a.rec", seed=1)
    (tmp_path / "a.lst").write_text("5\t1\tcat/0.jpg\n")
    pack(tmp_path / "a.lst", tmp_path / "a.rec", root=folder)
    assert sorted(p.name for p in tmp_path.glob("a.*")) == ["a.crc", "a.idx", "a.lst", "a.rec"]
    with RecordReader(tmp_path / "a.rec", check=True) as reader:
        assert list(reader.keys) == [5] and reader[0]
    with pytest.raises((IndexError, DamagedRecordError)):
        reader[0]
