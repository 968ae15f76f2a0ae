"""Decoding: the compiled decoder against OpenCV, odd images, and damage of every kind."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys

import cv2
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from gluontune.codec import building, native
from gluontune.codec.header import ImageError, check_size, jpeg_header, jpeg_is_whole
from gluontune.core.errors import GluontuneError
from gluontune.loading import AUGMENTS
from gluontune.loading.augment import Draws
from gluontune.loading.base import generator
from gluontune.loading.colour import jitter
from gluontune.loading.decode import Decoder


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A smooth colourful image with some noise, RGB."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)
    smooth = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC).astype(int)
    return np.clip(smooth + rng.integers(-6, 7, smooth.shape), 0, 255).astype(np.uint8)


def jpeg(image: np.ndarray, **options) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=options.pop("quality", 90), **options)
    return stream.getvalue()


def opencv_only(*arguments, **options) -> Decoder:
    decoder = Decoder(*arguments, **options)
    decoder._handle = None
    return decoder


def decoded(decoder: Decoder, payload: bytes, draws: Draws = Draws(), i: int = 0) -> np.ndarray:
    out = np.full(decoder.shape, 7, np.uint8)
    decoder.into(out, payload, draws, i)
    return out


needs_codec = pytest.mark.skipif(not native.compilers(), reason="wants a C compiler: OpenCV does this work")


def test_the_compiled_decoder_is_there_where_a_compiler_and_pillow_are():
    """Without this, all comparisons below would compare OpenCV with itself."""
    import shutil

    if shutil.which("cc") or shutil.which("gcc"):
        assert native.decoder_name().endswith("libjpeg-turbo, by regions")


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("name", ["none", "center-crop", "random-resized-crop-flip-jitter", "pad-crop-flip"])
def test_both_decoders_make_the_same_pixels(channels, subsampling, progressive, name):
    shape, augment = (64, 48, channels), AUGMENTS[name]
    for seed, size in enumerate([(64, 48), (97, 133), (300, 211), (40, 31), (531, 700)]):
        payload = jpeg(picture(*size, seed), subsampling=subsampling, progressive=progressive)
        draws = augment.draw(generator(seed), 3)
        for i in range(3):
            mine = decoded(Decoder(shape, augment), payload, draws, i).astype(int)
            theirs = decoded(opencv_only(shape, augment), payload, draws, i).astype(int)
            assert np.abs(mine - theirs).max() <= 3, (size, i)
            assert np.abs(mine - theirs).mean() <= 0.5


def test_an_image_of_the_wanted_size_is_decoded_as_pillow_decodes_it():
    payload = jpeg(picture(64, 48))
    wanted = np.asarray(Image.open(io.BytesIO(payload)))
    assert np.array_equal(decoded(Decoder((64, 48, 3), AUGMENTS["none"]), payload), wanted)


def test_scaled_decoding_looks_like_an_averaging_resize():
    image = picture(512, 512)
    payload, augment = jpeg(image, quality=98), AUGMENTS["none"]
    wanted = cv2.resize(image, (64, 64), interpolation=cv2.INTER_AREA).astype(int)
    for decoder in (Decoder((64, 64, 3), augment), Decoder((64, 64, 3), augment, scaled=False)):
        assert np.abs(decoded(decoder, payload) - wanted).mean() < 1.0


def test_flip_mirrors_and_the_crop_is_the_same():
    payload, augment = jpeg(picture(120, 160)), AUGMENTS["random-resized-crop-flip"]
    draws = augment.draw(generator(0), 1)
    for make in (Decoder, opencv_only):
        left = decoded(make((32, 32, 3), augment), payload, Draws(np.array([False]), None, draws.uniforms))
        right = decoded(make((32, 32, 3), augment), payload, Draws(np.array([True]), None, draws.uniforms))
        assert np.array_equal(left, right[:, ::-1])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    image = picture(40, 60)
    exif = Image.Exif()
    exif[0x0112] = orientation
    payload = jpeg(image, quality=100, subsampling=0, exif=exif.tobytes())
    assert jpeg_header(memoryview(payload)).orientation == orientation
    turned = np.rot90(image, {1: 0, 2: 0, 3: 2, 4: 2, 5: 3, 6: 3, 7: 1, 8: 1}[orientation])
    turned = turned[:, ::-1] if orientation in (2, 4, 5, 7) else turned
    out = decoded(Decoder((*turned.shape[:2], 3), AUGMENTS["none"]), payload).astype(int)
    assert np.abs(out - turned).mean() < 3


def test_other_kinds_of_images():
    rgb = picture(20, 30)
    kinds = {"cmyk.jpg": Image.fromarray(rgb).convert("CMYK"), "grey.jpg": Image.fromarray(rgb).convert("L")}
    kinds["palette.png"] = Image.fromarray(rgb).convert("P", palette=Image.Palette.ADAPTIVE)
    kinds["alpha.png"] = Image.fromarray(np.dstack([rgb, np.full(rgb.shape[:2], 200, np.uint8)]))
    kinds["16-bit.png"] = Image.fromarray(rgb[:, :, 0].astype(np.uint16) * 257)
    for name, image in kinds.items():
        stream = io.BytesIO()
        image.save(stream, {"jpg": "JPEG", "png": "PNG"}[name[-3:]])
        wanted = rgb.astype(int)
        if name == "grey.jpg":
            wanted = np.asarray(image).astype(int)[:, :, None]
        elif name == "16-bit.png":
            wanted = wanted[:, :, :1]
        out = decoded(Decoder((20, 30, 3), AUGMENTS["none"]), stream.getvalue()).astype(int)
        assert np.abs(out - wanted).mean() < 12, name
        grey = decoded(Decoder((20, 30, 1), AUGMENTS["none"]), stream.getvalue())
        assert grey.shape == (20, 30, 1), name


def test_readonly_views_and_arrays_are_read_as_they_are():
    payload = jpeg(picture(16, 16))
    decoder = Decoder((16, 16, 3), AUGMENTS["none"])
    first = decoded(decoder, payload)
    assert np.array_equal(decoded(decoder, memoryview(payload)), first)
    assert np.array_equal(decoded(decoder, np.frombuffer(payload, np.uint8)), first)
    assert np.array_equal(decoded(decoder, memoryview(b"xx" + payload)[2:]), first)


@pytest.mark.parametrize("make", [Decoder, opencv_only])
def test_truncated_and_broken_images_are_refused(make):
    decoder = make((32, 32, 3), AUGMENTS["random-resized-crop-flip"])
    draws = decoder.augment.draw(generator(0), 1)
    whole = jpeg(picture(200, 200))
    png = cv2.imencode(".png", picture(50, 50))[1].tobytes()
    for cut in (len(whole) - 1, len(whole) // 2, 300, 12):
        with pytest.raises(GluontuneError, match=r"truncated|header|decode"):
            decoded(decoder, whole[:cut], draws)
    with pytest.raises(GluontuneError, match="truncated PNG"):
        decoded(decoder, png[: len(png) // 2], draws)
    for nothing, word in (
        (b"", "empty"),
        (b"GIF89a\1\0\1\0sense", "decode"),
        (b"GIF89a nonsense", "too large: it claims 28,192 x 28,271 pixels"),
        (b"\xff\xd8\xff\xd9", "header|decode"),
    ):
        with pytest.raises(GluontuneError, match=word):
            decoded(decoder, nothing, draws)


def test_bytes_behind_the_end_of_a_jpeg_are_no_truncation():
    payload = jpeg(picture(40, 40))
    for make in (Decoder, opencv_only):
        decoder = make((32, 32, 3), AUGMENTS["none"])
        assert np.array_equal(decoded(decoder, payload + bytes(100)), decoded(decoder, payload))


BASE = jpeg(picture(90, 110), exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x01\0\0\0\0\0\0\0")
damage = st.lists(st.tuples(st.integers(0, len(BASE) - 1), st.integers(0, 255)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=80)
@given(damage, st.integers(0, len(BASE)), st.booleans())
def test_damage_gives_an_image_or_an_error_and_nothing_else(flips, cut, whole):
    data = bytearray(BASE)
    for place, value in flips:
        data[place] = value
    payload = bytes(data if whole else data[:cut])
    augment = AUGMENTS["random-resized-crop-flip"]
    draws = augment.draw(generator(cut), 1)
    for make in (Decoder, opencv_only):
        try:
            assert decoded(make((32, 32, 3), augment), payload, draws).shape == (32, 32, 3)
        except GluontuneError as error:
            assert len(str(error)) < 400


@settings(deadline=None, max_examples=80)
@given(damage, st.integers(0, len(BASE)), st.booleans())
def test_both_headers_say_the_same(flips, cut, whole):
    import ctypes

    library = native.load()
    if library is None:
        return
    data = bytearray(BASE)
    for place, value in flips:
        data[place % 700] = value
    payload = bytes(data if whole else data[:cut])
    if payload[:2] != b"\xff\xd8" or len(payload) < 5:
        return
    found = (ctypes.c_int * 7)()
    array = np.frombuffer(payload, np.uint8)
    code = library.gt_header(array.ctypes.data, len(payload), found)
    try:
        header = jpeg_header(memoryview(payload))
    except ImageError:
        assert code == native.BROKEN
        return
    try:
        check_size(memoryview(payload), "jpg", header)
    except ImageError:
        assert code == native.UNSUPPORTED
        return
    assert code == native.OK
    assert list(found)[:6] == list(header)[:6]
    assert bool(found[6]) == jpeg_is_whole(memoryview(payload), header.scan)


def test_an_exif_block_that_points_outside_is_ignored():
    forged = b"Exif\0\0II*\0" + struct.pack("<I", 1 << 30) + b"\x01\0"
    payload = jpeg(picture(16, 16), exif=forged)
    assert jpeg_header(memoryview(payload)).orientation == 1
    decoded(Decoder((16, 16, 3), AUGMENTS["none"]), payload)


def test_jitter_of_ones_changes_nothing_and_saturation_zero_is_grey():
    image = picture(20, 20)
    same, grey, dark = image.copy(), image.copy(), image.copy()
    jitter(same, 1.0, 1.0, 1.0)
    jitter(grey, 1.0, 1.0, 0.0)
    jitter(dark, 0.5, 1.0, 1.0)
    assert np.abs(same.astype(int) - image).max() <= 1
    assert (grey.max(axis=2).astype(int) - grey.min(axis=2)).max() <= 1
    luma = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(int)
    assert np.abs(grey[:, :, 0] - luma).max() <= 1
    assert np.abs(dark.astype(int) - image / 2).max() <= 1


def test_without_the_compiled_decoder_opencv_does_the_work(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg(picture(64, 64)))
    code = (
        "import numpy as np; from gluontune.loading import ThreadedLoader, from_files, decoder_name\n"
        f"loader = ThreadedLoader(from_files([{str(path)!r}], [0]), batch_size=1, image_shape=(64, 64, 3))\n"
        "print(decoder_name(), int(next(loader.epoch(0))[0].mean()))"
    )
    answers = set()
    for setting in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "GLUONTUNE_NATIVE": setting},
            capture_output=True,
            text=True,
            check=True,
        )
        name, mean = done.stdout.rsplit(" ", 1)
        answers.add(mean)
        assert setting == "1" or name == "OpenCV"
    assert len(answers) == 1


def test_no_compiler_means_no_library(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "ZIG", tmp_path / "zig")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert native.build_library(tmp_path / "cache") is None
    monkeypatch.setenv("CC", "/bin/false")
    assert native.build_library(tmp_path / "cache") is None
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    "setting, reason",
    [({"GLUONTUNE_NATIVE": "0"}, "switched off"), ({"PATH": "", "CC": ""}, "no C compiler"), ({}, "")],
)
def test_the_doctor_learns_why_there_is_no_compiled_codec(tmp_path, setting, reason):
    if not reason and not native.compilers():
        return
    code = "from gluontune.codec import building, native; from pathlib import Path; "
    code += "building.ZIG = Path('/dev/null'); " if "PATH" in setting else ""
    code += "print(native.why_not(), end='')"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path), **setting}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == reason


def test_a_library_that_others_could_have_written_is_not_loaded(tmp_path):
    place = tmp_path / "cache"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    assert native.build_library(place) is None


@needs_codec
@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", ["none", "flip", "pad-crop-flip", "random-resized-crop-flip-jitter"])
def test_many_images_in_one_call_are_those_of_single_calls(channels, name):
    """Small and large, upright and turned, JPEG and PNG, from the middle of a batch on."""
    shape, augment = (32, 24, channels), AUGMENTS[name]
    payloads = [jpeg(picture(*size, k)) for k, size in enumerate([(32, 24), (300, 211), (33, 24), (3, 2), (32, 24)])]
    payloads.append(cv2.imencode(".png", picture(40, 40))[1].tobytes())
    payloads.append(jpeg(picture(32, 24), exif=turned()))
    decoder, draws = Decoder(shape, augment), augment.draw(generator(3), 3 + len(payloads))
    together = np.full((len(payloads), *shape), 7, np.uint8)
    left = np.flatnonzero(decoder.many(together, payloads, draws, 3)).tolist()
    assert set(left) <= {1, 5, 6} and {5, 6} <= set(left)  # 1: an averaging resize may be needed
    for k, payload in enumerate(payloads):
        if k not in left:
            assert np.array_equal(together[k], decoded(decoder, payload, draws, 3 + k)), k


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


@needs_codec
def test_many_leaves_what_is_broken_to_the_single_call_that_says_why():
    whole = jpeg(picture(64, 48))
    payloads = [whole, whole[: len(whole) // 2], b"", whole[:30], b"no image at all", whole]
    decoder, out = Decoder((32, 24, 3), AUGMENTS["none"]), np.full((6, 32, 24, 3), 7, np.uint8)
    assert np.flatnonzero(decoder.many(out, payloads, Draws(), 0)).tolist() == [1, 2, 3, 4]
    assert (out[1:5] == 7).all() and np.array_equal(out[0], out[5])
    for k in (1, 2, 3, 4):
        with pytest.raises(GluontuneError):
            decoder.into(out[k], payloads[k], Draws(), k)


def alike(height: int, width: int, count: int, **options) -> list[bytes]:
    return [jpeg(picture(height, width, k), **options) for k in range(count)]


def one_by_one(decoder: Decoder, payloads: list[bytes], draws: Draws) -> np.ndarray:
    """Each in a call of its own."""
    out = np.full((len(payloads), *decoder.shape), 7, np.uint8)
    for k, payload in enumerate(payloads):
        decoder.many(out[k : k + 1], [payload], draws, k)
    return out


@needs_codec
@settings(deadline=None, max_examples=60)
@given(
    size=st.tuples(st.integers(6, 70), st.integers(6, 70)),
    subsampling=st.sampled_from([0, 1, 2]),
    grey=st.booleans(),
    channels=st.sampled_from([1, 3]),
    name=st.sampled_from(["none", "flip", "pad-crop-flip", "pad-2-crop-alternating-flip"]),
    seed=st.integers(0, 99),
)
def test_a_batch_of_small_images_has_the_pixels_of_each_alone(size, subsampling, grey, channels, name, seed):
    options = {} if grey else {"subsampling": subsampling}
    pictures = [picture(*size, seed + k) for k in range(6)]
    payloads = [jpeg(one[:, :, 1] if grey else one, **options) for one in pictures]
    decoder, augment = Decoder((*size, channels), AUGMENTS[name]), AUGMENTS[name]
    draws, out = augment.draw(generator(seed), 6), np.full((6, *size, channels), 7, np.uint8)
    assert not decoder.many(out, payloads, draws, 0).any()
    assert np.array_equal(out, one_by_one(decoder, payloads, draws))


@needs_codec
@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=3),
    st.sampled_from([b"", b"\xff\xd3", b"\xff\xd0", b"\xff\x00", b"\xff\xd9", b"\0\0"]),
    st.booleans(),
)
def test_a_damaged_image_changes_none_of_its_neighbours(which, flips, put_in, cut):
    """Bytes of the entropy-coded data changed, markers put in, or the data ended early: the others stay as they are."""
    payloads = alike(32, 32, 5)
    decoder, out = Decoder((32, 32, 3), AUGMENTS["none"]), np.full((5, 32, 32, 3), 7, np.uint8)
    wanted = one_by_one(decoder, payloads, Draws())
    data, start = bytearray(payloads[which]), jpeg_header(payloads[which]).scan + 14
    for share, value in flips:
        data[start + int(share * (len(data) - start - 3))] = value
    middle = (start + len(data)) // 2
    data[middle : len(data) - 2 if cut else middle] = put_in
    payloads[which] = bytes(data)
    decoder.many(out, payloads, Draws(), 0)
    for k in range(5):
        assert k == which or np.array_equal(out[k], wanted[k]), k
