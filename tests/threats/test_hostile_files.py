"""Files made to do harm: images that claim gigabytes, FIFOs and devices, broken archives: a sentence each."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

from gluontune.codec.header import ImageError, inspect
from gluontune.codec.image import decode
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.datasets.archive import Limits, members
from gluontune.loading.augment import AUGMENTS, Draws
from gluontune.loading.decode import Decoder
from gluontune.records import RecordReader, RecordWriter, pack, repair, verify


def jpeg(side, progressive=True, cut=521, scans=0):
    """A JPEG file of a small image that claims ``side`` × ``side`` pixels and ends after ``cut`` bytes."""
    stream = io.BytesIO()
    Image.new("RGB", (64, 64), (120, 30, 200)).save(stream, "JPEG", progressive=progressive, quality=90)
    data = bytearray(stream.getvalue())
    frame = data.find(b"\xff\xc2" if progressive else b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", side, side)
    return bytes(data[:cut]) + b"\xff\xda\0\2" * scans + b"\xff\xd9"


def png(side):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(3000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def tiff(side, *more):
    tags = [(256, 4, 1, side), (257, 4, 1, side), *more]
    rows = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + rows + bytes(4)


#: 10,000 x 10,000 pixels of one colour, whole, without loss, in 40 bytes
WEBP = bytes.fromhex("5249464620000000574542505650384c140000002f0fe7c309075081540820000a9afec78888fe07")


def bmp(side, packed, bits=8):
    sizes = struct.pack("<IiiHHIIiiII", 40, side, side, 1, bits, packed, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 1078) + sizes + bytes(1024) + b"\0\1"


BOMBS = {
    "progressive JPEG": jpeg(20_000),
    "progressive JPEG below the cap": jpeg(9_000),
    "JPEG": jpeg(20_000, progressive=False, cut=700),
    "JPEG of coefficients": jpeg(11_000) + bytes(300_000) + b"\xff\xd9",
    "JPEG of scans": jpeg(64, cut=900, scans=2000),
    "PNG": png(100_000),
    "PNG below the cap": png(13_000),
    "GIF": b"GIF89a" + struct.pack("<HH", 65535, 65535) + bytes(20),
    "BMP": b"BM" + bytes(12) + struct.pack("<IiiHHI", 40, 50_000, -50_000, 1, 24, 0) + bytes(20),
    "WebP": b"RIFF\0\1\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\x3f\0" * 2 + bytes(20),
    "PNM": b"P6\n# comment\n60000 60000\n255\n" + bytes(30),
    "PNM behind a comment": b"P6\n#" + b"x" * 5000 + b"\n60000 60000\n255\n" + bytes(30),
    "TIFF": tiff(100_000),
    # these decoders made whole images of them, which took up to 1 GB and half a minute
    "WebP below the cap": WEBP,
    "packed BMP below the cap": bmp(13_000, 1),
    "BMP below the cap": bmp(13_000, 0),
    "PNM below the cap": b"P4 13000 13000\n" + bytes(30),
    "packed TIFF below the cap": tiff(13_000, (258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 8),
                                      (277, 3, 1, 1), (278, 4, 1, 13_000), (279, 4, 1, 20)),
    "TIFF of two sizes": tiff(13_000, (256, 4, 1, 64), (257, 4, 1, 64)),
}  # fmt: skip
UNKNOWN = {
    "JPEG 2000": b"\xff\x4f\xff\x51\0\x2f" + bytes(60),
    "OpenEXR": b"v/1\x01" + bytes(60),
    "Radiance": b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 20000 +X 20000\n" + bytes(40),
    "BigTIFF": b"II+\0\x08\0\0\0" + bytes(60),
    "PNM without a size": b"P6\n#" + b"x" * 70_000 + b"\n60000 60000\n255\n",
    "TIFF without a size": tiff(13_000)[:20] + bytes(40),
    "WebP that ends too early": WEBP[:21],
}
CHILD = """
import sys, time
from gluontune.records import RecordReader, pack, verify
from gluontune.loading.augment import AUGMENTS, Draws
from gluontune.loading.decode import Decoder
from gluontune.core.errors import GluontuneError
import cv2, numpy as np
kind, path, good = sys.argv[1:]
def peak():
    # Not ru_maxrss: that of the process that started this one is handed on, and hides all that takes less.
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
def work(record):
    started = time.monotonic()
    try:
        if kind == "pack": pack(record, record + ".packed.rec", resize=32)
        elif kind == "verify":
            found = verify(record)
            if found.damaged: print(found.damaged[0].reason)
        else:
            with RecordReader(record) as reader:
                decoder = Decoder((32, 32, 3), AUGMENTS["random-resized-crop-flip"])
                out = np.empty((32, 32, 3), np.uint8)
                draws = decoder.augment.draw(np.random.default_rng(0), 1)
                decoder.into(out, reader.payload(0), draws, 0)
    except GluontuneError as error:
        print(str(error).splitlines()[0])
    return time.monotonic() - started
work(good)
before = peak()
seconds = work(path)
print(peak() - before, seconds)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_an_image_that_claims_too_much_is_refused_by_its_header(name):
    with pytest.raises(ImageError, match=r"it claims|scans"):
        inspect(BOMBS[name])
    assert decode(BOMBS[name]) is None
    decoder = Decoder((32, 32, 3), AUGMENTS["random-resized-crop-flip"])
    with pytest.raises(GluontuneError, match="too large"):
        decoder.into(np.empty((32, 32, 3), np.uint8), BOMBS[name], Draws(), 0)


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_image_that_does_not_say_how_large_it_is_reaches_no_decoder(name, monkeypatch):
    """OpenCV takes JPEG 2000, OpenEXR and more, whose headers nobody here reads."""
    monkeypatch.setattr("cv2.imdecode", lambda *_: pytest.fail("the decoder was asked"))
    with pytest.raises(ImageError, match=r"not an image|does not say"):
        inspect(UNKNOWN[name])
    assert decode(UNKNOWN[name]) is None
    decoder = Decoder((32, 32, 3), AUGMENTS["none"])
    with pytest.raises(GluontuneError, match=r"not an image|does not say"):
        decoder.into(np.empty((32, 32, 3), np.uint8), UNKNOWN[name], Draws(), 0)


@pytest.mark.parametrize("kind", ["pack", "verify", "load"])
@pytest.mark.parametrize("name", ["progressive JPEG", "PNG", "WebP below the cap"])
def test_a_bomb_costs_neither_memory_nor_time(tmp_path, kind, name):
    """In a process of its own, whose peak tells."""
    good = Image.new("RGB", (64, 64))
    paths = []
    for folder, data in (("good", None), ("bad", BOMBS[name])):
        place = tmp_path / folder / "a"
        place.mkdir(parents=True)
        good.save(place / "1.jpg")
        data = (place / "1.jpg").read_bytes() if data is None else data
        (place / "1.jpg").write_bytes(data)
        with RecordWriter(tmp_path / f"{folder}.rec") as writer:
            writer.write(data, 0)
        paths.append(str(tmp_path / (folder if kind == "pack" else f"{folder}.rec")))
    done = subprocess.run([sys.executable, "-c", CHILD, kind, paths[1], paths[0]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *said, figures = done.stdout.splitlines()
    memory, _seconds = map(float, figures.split())
    assert memory < 300 and "it claims" in said[-1]


def test_the_cap_is_configurable(monkeypatch):
    data = jpeg(64, cut=10_000)
    monkeypatch.setenv("GLUONTUNE_MAX_PIXELS", "4095")
    with pytest.raises(ImageError, match=r"it claims 64 x 64 pixels; at most 4,095 are taken \(GLUONTUNE_MAX_PIX"):
        inspect(data)
    monkeypatch.setenv("GLUONTUNE_MAX_PIXELS", "10000")
    assert inspect(data).width == 64
    monkeypatch.setenv("GLUONTUNE_MAX_PIXELS", "many")
    with pytest.raises(UsageError, match="GLUONTUNE_MAX_PIXELS='many'"):
        inspect(data)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(sorted(BOMBS)), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=6),
       st.integers(4, 400))  # fmt: skip
def test_no_header_breaks_the_look_at_it(name, changes, size):
    data = bytearray(BOMBS[name][:size])
    for place, value in changes:
        data[place % len(data)] = value
    try:
        inspect(bytes(data))
    except ImageError as error:
        assert len(str(error)) < 300


@pytest.fixture
def hostile_folder(tmp_path):
    folder = tmp_path / "in" / "a"
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "good.jpg")
    os.mkfifo(folder / "fifo.jpg")
    (folder / "zero.jpg").symlink_to("/dev/zero")
    with open(folder / "huge.jpg", "wb") as stream:
        stream.truncate(1 << 30)
    return tmp_path


@pytest.mark.parametrize("options", [{}, {"resize": 4}, {"exact": True}])
@pytest.mark.parametrize("native", ["1", "0"])
def test_pack_leaves_out_fifos_devices_and_what_no_record_can_hold(hostile_folder, options, native, monkeypatch):
    monkeypatch.setattr("gluontune.codec.native._loaded", [] if native == "1" else [None])
    report = pack(hostile_folder / "in", hostile_folder / "out.rec", **options)
    reasons = {os.path.basename(skip.path): skip.reason for skip in report.skipped}
    assert report.packed == 1 and set(reasons) == {"fifo.jpg", "zero.jpg", "huge.jpg"}
    assert "a fifo, not a regular file" in reasons["fifo.jpg"].lower()
    assert "a device, not a regular file" in reasons["zero.jpg"] and "a record must be" in reasons["huge.jpg"]


def test_a_list_and_a_table_that_are_fifos(tmp_path):
    for name in ("a.lst", "a.csv"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(GluontuneError, match="a FIFO, not a regular file"):
            pack(tmp_path / name, tmp_path / "out.rec")


def test_pack_ends_at_once_on_ctrl_c(tmp_path):
    folder = tmp_path / "in" / "a"
    folder.mkdir(parents=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (900, 900, 3), np.uint8)).save(folder / "0.png")
    for n in range(1, 4000):
        os.link(folder / "0.png", folder / f"{n}.png")
    command = [sys.executable, "-m", "gluontune", "pack", str(tmp_path / "in"), str(tmp_path / "o.rec")]
    process = subprocess.Popen(
        [*command, "--resize", "800"],
        stderr=subprocess.PIPE,
        start_new_session=True,
        # What a shell runs in the background inherits that Ctrl-C is ignored, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "o.rec.part").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130 and b"Traceback" not in said, said
    assert not (tmp_path / "o.rec").exists()


def test_nothing_and_no_file_are_not_called_whole(tmp_path):
    (tmp_path / "empty.rec").write_bytes(b"")
    os.mkfifo(tmp_path / "fifo.rec")
    for path, word in (
        (tmp_path / "empty.rec", "is empty"),
        ("/dev/zero", "a device"),
        (tmp_path / "fifo.rec", "a FIFO"),
        (tmp_path, "a folder"),
    ):
        with pytest.raises(GluontuneError, match=word):
            verify(path)
        with pytest.raises(GluontuneError, match=word):
            repair(path, tmp_path / "out.rec")
    for path in ("/dev/zero", tmp_path / "fifo.rec"):
        with pytest.raises(GluontuneError, match="not a regular file"):
            RecordReader(path)


def archives():
    """One whole archive of each kind."""
    found = {}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/1.txt", b"one" * 50)
        archive.writestr("a/2.txt", b"two" * 50)
    found["zip"] = stream.getvalue()
    for kind in ("", "gz", "bz2", "xz"):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode=f"w:{kind}") as archive:
            for name in ("1.txt", "2.txt"):
                member = tarfile.TarInfo(f"a/{name}")
                member.size = 150
                archive.addfile(member, io.BytesIO(b"one" * 50))
        found[f"tar.{kind}"] = stream.getvalue()
    return found


ARCHIVES = archives()


def read_all(path):
    return {name: read() for name, read in members(path)}


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(ARCHIVES)), st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=5),
       st.integers(0, 400))  # fmt: skip
def test_a_damaged_archive_is_one_of_our_errors(tmp_path, kind, changes, cut):
    data = bytearray(ARCHIVES[kind])
    for place, value in changes:
        data[place % len(data)] = value
    path = tmp_path / "a.bin"
    path.write_bytes(data[: len(data) - cut] if cut < 200 else data)
    try:
        found = read_all(path)
    except GluontuneError as error:
        assert "\n" not in str(error)[:-1] or len(str(error)) < 500
    else:
        assert all(len(body) <= 1 << 20 for body in found.values())


def test_archives_that_raised_raw_errors(tmp_path):
    """What Python's readers raise for them: NotImplementedError, UnicodeDecodeError, struct.error, ValueError."""
    whole = ARCHIVES["zip"]
    central = whole.find(b"PK\x01\x02")
    for place, value in ((central + 6, 99), (central + 10, 99), (central + 28, 255), (central + 30, 250)):
        data = bytearray(whole)
        data[place] = value
        (tmp_path / "a.zip").write_bytes(data)
        with pytest.raises(GluontuneError):
            read_all(tmp_path / "a.zip")
    os.mkfifo(tmp_path / "f.zip")
    with pytest.raises(GluontuneError, match="a FIFO, not a regular file"):
        read_all(tmp_path / "f.zip")
    with pytest.raises(GluontuneError, match="a device"):
        from pathlib import Path

        read_all(Path("/dev/zero"))


def test_a_zip_of_a_million_names_is_refused_before_they_are_read(tmp_path, monkeypatch):
    """46 bytes each in the file, half a kilobyte each in memory."""
    whole, count = ARCHIVES["zip"], 1_000
    start, end = whole.find(b"PK\x01\x02"), whole.find(b"PK\x05\x06")
    names = whole[start:end] * count
    last = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 2 * count, 2 * count, len(names), start, 0)
    (tmp_path / "a.zip").write_bytes(whole[:start] + names + last)
    made, plain = [], zipfile.ZipInfo.__init__
    monkeypatch.setattr(zipfile.ZipInfo, "__init__", lambda self, *a, **k: (made.append(1), plain(self, *a, **k))[1])
    with pytest.raises(GluontuneError, match="more than 50 files"):
        list(members(tmp_path / "a.zip", Limits(files=50)))
    assert len(made) <= 51


def test_the_command_tells_it_in_a_sentence(tmp_path):
    (tmp_path / "empty.rec").write_bytes(b"")
    for path in (tmp_path / "empty.rec", "/dev/zero"):
        done = subprocess.run([sys.executable, "-m", "gluontune", "verify", str(path), "--json"],
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 1 and "fault of gluontune" not in done.stderr, done.stderr
        assert done.stderr.count("\n") <= 2 and str(path) in done.stderr
        assert not done.stdout or json.loads(done.stdout)
