"""Files encoded without libjpeg: byte for byte those that libjpeg-turbo writes of the same planes."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jpegs import jpeg, picture, pytestmark  # noqa: F401
from PIL import Image

from gluontune.codec import native
from gluontune.codec.header import jpeg_header


class Encoders:
    """One that may encode by itself and keeps its tables and memory, and new ones that have libjpeg-turbo do it."""

    def __init__(self):
        self.codec = native.load()
        self.handle = self.codec.gt_new()
        self.result = (ctypes.c_size_t * 2)()

    def __del__(self):
        self.codec.gt_free(self.handle)

    def recode(self, data: bytes, side=0, crop=False, grey=False, quality=95) -> list[tuple[int, bytes]]:
        """(code, file) of each."""
        before, found, other = self.codec.gt_encodes(self.handle), [], self.codec.gt_new()
        self.codec.gt_use(other, 0)
        for handle in (self.handle, other):
            code = self.codec.gt_recode(handle, data, len(data), side, crop, grey, quality, self.result)
            found.append((code, ctypes.string_at(*self.result) if code == native.OK else b""))
        assert self.codec.gt_encodes(other) == 0
        assert self.codec.gt_encodes(self.handle) == before + (found[0][0] == native.OK)
        self.codec.gt_free(other)
        return found

    def file(self, data: bytes, *arguments, **settings) -> bytes:
        """The file that both make."""
        (code, mine), (other, theirs) = self.recode(data, *arguments, **settings)
        assert code == other == native.OK
        assert mine == theirs
        return mine


@pytest.fixture(scope="module")
def both():
    return Encoders()


def noise(height: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


sides = st.one_of(st.integers(1, 40), st.integers(1, 200), st.sampled_from([8, 15, 16, 17, 32, 128]))


@settings(deadline=None, max_examples=150)
@given(
    size=st.tuples(sides, sides),
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["noise", "flat", "steps", "smooth", "grainy"]),
    made_as=st.fixed_dictionaries(
        {"quality": st.sampled_from([30, 90, 100]), "subsampling": st.sampled_from([0, 1, 2])}
    ),
    mode=st.sampled_from(["RGB", "RGB", "L"]),
    quality=st.integers(1, 100),
    crop=st.booleans(),
    grey=st.booleans(),
    data=st.data(),
)
def test_the_file_is_libjpegs(both, size, seed, kind, made_as, mode, quality, crop, grey, data):
    image = {
        "noise": lambda: noise(*size, seed),
        "flat": lambda: np.full((*size, 3), seed % 256, np.uint8),
        "steps": lambda: noise(*size, seed) // 128 * 255,
        "smooth": lambda: picture(*size, seed, 0),
        "grainy": lambda: picture(*size, seed, 12),
    }[kind]()
    side = data.draw(st.one_of(st.just(0), st.integers(1, min(size))))
    file = both.file(jpeg(Image.fromarray(image).convert(mode), **made_as), side, crop, grey, quality)
    header = jpeg_header(file)
    assert header.components == (1 if grey or mode == "L" else 3)
    assert min(header.height, header.width) == (side or min(size))


def waves(amplitude: float, square: bool) -> np.ndarray:
    """64 blocks, each with one of the DCT's waves, or with its sign alone."""
    x = np.arange(8)
    cosines = np.array([np.cos((2 * x + 1) * u * np.pi / 16) for u in range(8)])
    blocks = cosines[:, None, :, None] * cosines[None, :, None, :]
    blocks = np.sign(blocks) if square else blocks
    image = np.rint(128 + amplitude * blocks.transpose(0, 2, 1, 3).reshape(64, 64))
    return np.clip(image, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("amplitude", [-128, -100, -20, -3, 2, 25, 90, 127])
def test_each_coefficient_alone_and_at_its_largest(both, amplitude, square):
    """Long runs of zeros, a last value that is not zero, the largest sizes: in luma and chroma."""
    grey = Image.fromarray(waves(amplitude, square))
    wide = Image.fromarray(np.kron(waves(amplitude, square), np.ones((2, 2), np.uint8)))
    flat = Image.new("L", wide.size, 128)
    for quality in (1, 10, 50, 75, 90, 97, 100):
        both.file(jpeg(grey, quality=100), quality=quality)
        for parts in ((flat, wide, flat), (wide, flat, wide)):
            both.file(jpeg(Image.merge("YCbCr", parts), quality=100), quality=quality)


def test_steps_between_blocks_are_the_largest(both):
    """From black to white and back: a first coefficient's difference of eleven bits."""
    board = np.kron(np.indices((9, 9)).sum(0) % 2 * 255, np.ones((8, 8))).astype(np.uint8)
    for quality in (20, 95, 100):
        both.file(jpeg(Image.fromarray(board), quality=100), quality=quality)
        colours = np.stack([np.kron(board, np.ones((2, 2))), np.zeros((144, 144)), np.zeros((144, 144))], -1)
        both.file(jpeg(colours.astype(np.uint8), quality=100), quality=quality)


@pytest.mark.parametrize("grey", [False, True])
def test_a_file_that_is_larger_than_any_before(grey):
    """Its memory grows on the way; bytes of 0xFF are everywhere in it, at the ends of what is copied at a time, too."""
    both = Encoders()
    for size in (16, 100, 200, 333, 520):
        data = jpeg(noise(size, size + 3, size) // 128 * 255, quality=100, subsampling=2)
        file = both.file(data, grey=grey, quality=100)
    assert len(file) > 250_000 and file.count(b"\xff\x00") > len(file) / 150


def test_a_file_that_cannot_be_decoded_makes_none(both):
    good = jpeg(picture(64, 64, 1, 5))
    for data in (good[: len(good) // 2], good[:100], b"", jpeg(Image.new("CMYK", (32, 32)))):
        (code, _), (other, _) = both.recode(data, 16)
        assert code == other != native.OK


def test_a_filter_is_kept_for_the_files_that_it_is_for(both):
    """Files of one size and of others, with the crop and without, one after the other."""
    files = [jpeg(picture(*size, 3, 9)) for size in ((90, 120), (120, 90), (90, 121), (91, 120))]
    for data in files + files[::-1]:
        for side in (40, 40, 39, 90):
            assert both.file(data, side) != both.file(data, side, crop=True)


def test_threads_encode_with_tables_of_their_own():
    """Each quality in turn, on decoders of several threads at once."""
    from concurrent.futures import ThreadPoolExecutor

    files = [jpeg(picture(60, 80, seed, 8)) for seed in range(4)]

    def work(k: int) -> list[bytes]:
        both = Encoders()
        settings = [{"quality": 1 + (n * 7 + k) % 100, "grey": n % 3 == 0} for n in range(40)]
        return [both.file(files[n % 4], 40, **chosen) for n, chosen in enumerate(settings)]

    with ThreadPoolExecutor(4) as pool:
        assert all(len(made) == 40 for made in pool.map(work, range(4)))
