"""The compiled codec: smaller JPEG files against a plain decoder's, gathered records against Python's, checksums."""

from __future__ import annotations

import io
import subprocess
import sys
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from gluontune.codec import native
from gluontune.codec.header import ImageError, inspect
from gluontune.codec.native import recode_jpeg
from gluontune.records.blocks import BlockMaker, make_block
from gluontune.records.layout import MAGIC
from gluontune.records.sources import Item
from gluontune.records.transform import BulkCopier, Transform

# Where there is a compiler the codec must build: only its absence is a reason.
needs_codec = pytest.mark.skipif(not native.compilers(), reason="wants a C compiler: OpenCV does this work")


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colours with edges and some noise, (H, W, 3) RGB."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (6, 7, 3), dtype=np.uint8)
    smooth = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC).astype(int)
    smooth[height // 3 : height // 2, width // 4 : width // 2] //= 2
    return np.clip(smooth + rng.integers(-3, 4, smooth.shape), 0, 255).astype(np.uint8)


def jpeg(image: np.ndarray, **options) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=options.pop("quality", 95), **options)
    return stream.getvalue()


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    error = ((a.astype(float) - b.astype(float)) ** 2).mean()
    return 10 * np.log10(255**2 / max(error, 1e-9))


@needs_codec
@pytest.mark.parametrize("options", [{"subsampling": s} for s in (0, 1, 2)] + [{"progressive": True}])
@pytest.mark.parametrize("size, side", [((97, 133), 64), ((211, 300), 100), ((700, 531), 48), ((65, 65), 33)])
def test_a_recoded_image_is_what_a_decoder_and_an_antialiased_resize_show(options, size, side):
    data = jpeg(picture(*size), **options)
    full = Image.open(io.BytesIO(data))
    scale = side / min(size)
    wanted = np.asarray(full.resize((round(size[1] * scale), round(size[0] * scale)), Image.BILINEAR))
    small = decoded(recode_jpeg(data, side))
    assert small.shape == wanted.shape
    assert psnr(small, wanted) > 29  # chroma of half the size
    shifted = np.roll(wanted, 1, axis=1)
    assert psnr(small, wanted) > psnr(small, shifted) + 4  # no pixel, and no half one, to the side
    grey = decoded(recode_jpeg(data, side, grey=True))
    assert grey.ndim == 2 and psnr(grey, cv2.cvtColor(wanted, cv2.COLOR_RGB2GRAY)) > 34
    square = decoded(recode_jpeg(data, side, crop=True))
    top, left = (wanted.shape[0] - side) // 2, (wanted.shape[1] - side) // 2
    assert square.shape == (side, side, 3)
    assert psnr(square, wanted[top : top + side, left : left + side]) > 28


@needs_codec
def test_the_size_is_kept_where_none_is_wanted_and_quality_counts():
    data = jpeg(picture(75, 101), subsampling=2)
    same, small = recode_jpeg(data, None, quality=95), recode_jpeg(data, None, quality=30)
    assert psnr(decoded(same), decoded(data)) > 42
    assert len(small) < len(same) / 2 and decoded(small).shape == (75, 101, 3)


@needs_codec
def test_both_ways_of_packing_agree(monkeypatch):
    for seed, size in enumerate([(120, 90), (333, 500), (64, 200)]):
        data = jpeg(picture(*size, seed))
        for change in (Transform(resize=60), Transform(resize=33, crop=True), Transform(quality=80)):
            with monkeypatch.context() as patch:
                patch.setattr("gluontune.records.transform.recode_jpeg", lambda *_, **__: None)
                by_opencv = decoded(change(data)[0])
            native_one = decoded(change(data)[0])
            assert native_one.shape == by_opencv.shape and psnr(native_one, by_opencv) > 30


@needs_codec
def test_what_it_cannot_recode_is_left_to_opencv():
    cmyk = io.BytesIO()
    Image.fromarray(picture(40, 40)).convert("CMYK").save(cmyk, "JPEG")
    assert recode_jpeg(cmyk.getvalue(), 20) is None
    assert recode_jpeg(jpeg(picture(40, 40)), 41) is None
    grey = jpeg(picture(50, 60)[:, :, 0])
    assert decoded(recode_jpeg(grey, 25, grey=True)).shape == (25, 30)
    assert decoded(Transform(resize=25, color="rgb", format="jpg")(grey)[0]).shape == (25, 30, 3)


BASE = jpeg(picture(70, 90), subsampling=2)


@needs_codec
@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, len(BASE) - 1), st.integers(0, 255)), max_size=8),
    st.integers(0, len(BASE)),
    st.booleans(),
)
def test_damage_gives_an_image_or_an_error_and_nothing_else(flips, cut, whole):
    data = bytearray(BASE)
    for place, value in flips:
        data[place] = value
    try:
        made = recode_jpeg(bytes(data if whole else data[:cut]), 20)
        assert made is None or inspect(made).kind == "jpg"
    except ImageError as error:
        assert len(str(error)) < 400
    assert min(decoded(recode_jpeg(BASE, 20)).shape[:2]) == 20  # the thread's state is sound afterwards


@needs_codec
@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=700), st.integers(0, 5000))
def test_checksums_equal_zlibs(data, more):
    data += bytes(range(256)) * (more // 256) + bytes(more % 256)
    assert native.load().gt_crc32(data, len(data)) == zlib.crc32(data)


def test_gathered_blocks_equal_those_made_in_python(tmp_path):
    gatherer = BulkCopier.find()
    if gatherer is None:
        return
    turned = Image.Exif()
    turned[0x0112] = 6
    plain = [jpeg(picture(20 + i, 30)) for i in range(5)]
    split = plain[1][:-2] + b"\0" * (-(len(plain[1]) - 2 + 24) % 4) + MAGIC + b"\xff\xd9"  # as the record lies
    contents = [
        *plain, split, jpeg(picture(9, 9), exif=turned.tobytes()), plain[0], plain[0][:-40], b"",
        cv2.imencode(".png", picture(8, 8))[1].tobytes(), plain[2], jpeg(picture(12, 12)[:, :, 0]), plain[3] + b"tail",
    ]  # fmt: skip
    items = []
    for i, data in enumerate(contents):
        (tmp_path / f"{i}.jpg").write_bytes(data)
        label = float(i) if i % 3 else (1.0, float(i), 2.5)
        items.append(Item(100 + i, label, str(tmp_path / f"{i}.jpg")))
    items.insert(4, Item(7, 1.0, str(tmp_path / "no such file.jpg")))
    items.insert(2, Item(8, 1.0, str(tmp_path)))
    for transform in (Transform(), Transform(exact=True)):
        quick, slow = make_block(items, 10, transform, gatherer), make_block(items, 10, transform)
        quick.data = bytes(quick.data)
        assert quick == slow
        assert len(quick.skips) >= 3


def test_a_gathered_block_keeps_its_memory_until_it_is_given_back(tmp_path):
    if BulkCopier.find() is None:
        return
    items = []
    for i in range(40):
        (tmp_path / f"{i}.jpg").write_bytes(jpeg(picture(20, 20, i)))
        items.append(Item(i, 0.0, str(tmp_path / f"{i}.jpg")))
    jobs = [(items[k : k + 4], k) for k in range(0, 40, 4)]
    with BlockMaker(Transform(), 2, False) as maker:
        blocks = list(maker.blocks(jobs))
        assert [bytes(b.data) for b in blocks] == [make_block(*job, Transform()).data for job in jobs]
        maker.give_back(blocks[0])
        again = maker._make(*jobs[5])
        assert again.data.obj is blocks[0].data.obj


@pytest.mark.mxnet
@needs_codec
def test_the_decoder_keeps_to_its_own_libjpeg_where_libmxnets_names_are_global(tmp_path):
    """libmxnet carries another libjpeg, whose names Horovod makes global for the whole process."""
    code = """
import ctypes, io, sys
import numpy as np
import gluontune as gt
gt.runtime.mxnet()
lines = open("/proc/self/maps").read().splitlines()
library = next(line.split(maxsplit=5)[5] for line in lines if line.endswith("libmxnet.so"))
ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
from gluontune.loading import AUGMENTS
from gluontune.loading.augment import Draws
from gluontune.loading.decode import Decoder
out = np.zeros((1, 32, 32, 3), np.uint8)
codes = Decoder((32, 32, 3), AUGMENTS["none"]).many(out, [open(sys.argv[1], "rb").read()], Draws(), 0)
print(codes.tolist(), int(out.mean()))
"""
    cv2.imwrite(str(tmp_path / "a.jpg"), np.full((32, 32, 3), 100, np.uint8))
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.jpg")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[-2] == "[0] 100"
