"""What a JPEG file becomes does not depend on the files before it. More: `python tests/codec/test_order.py 20000`.

libjpeg keeps tables from file to file, and a decoder its memory: damaged files, and files without tables of their own,
are decoded by decoders that have seen the others, in two orders, and by new ones.
"""

from __future__ import annotations

import ctypes
import secrets
import sys
from collections import Counter

import cv2
import numpy as np
import pytest

from gluontune.codec import native
from gluontune.codec.header import ImageError, inspect
from gluontune.codec.native import recode_jpeg
from gluontune.core.errors import GluontuneError
from gluontune.loading import AUGMENTS
from gluontune.loading.augment import Draws
from gluontune.loading.decode import Decoder
from tools.sanitized import corpus, damaged

needs_codec = pytest.mark.skipif(not native.compilers(), reason="wants a C compiler")
QUANT, HUFFMAN = 0xDB, 0xC4


def without(data: bytes, marker: int, one: int | None = None) -> bytes:
    """A file without its tables, or without one of the segments that define them."""
    out, at, seen = bytearray(data[:2]), 2, 0
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        behind = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        is_one = data[at + 1] == marker
        out += b"" if is_one and one in (None, seen) else data[at:behind]
        seen += is_one
        at = behind
    return bytes(out + data[at:])


def drawn(rng: np.random.Generator, files: list[bytes]) -> bytes:
    data = damaged(rng, files)
    if rng.random() < 0.4:
        data = without(data, int(rng.choice([QUANT, HUFFMAN])), *([] if rng.random() < 0.5 else [int(rng.integers(4))]))
    if rng.random() < 0.1:
        data = data[: int(rng.integers(len(data) // 2, len(data) + 1))] + b"\xff\xd9"
    return data


class Reader:
    """Decoders that see one file after the other: our own, libjpeg-turbo's, and the loader's."""

    def __init__(self):
        self.codec = native.load()
        self.handles = [self.codec.gt_new(), self.codec.gt_new()]
        self.codec.gt_use(self.handles[1], 0)
        self.loader = Decoder((24, 20, 3), AUGMENTS["none"])

    def __del__(self):
        for handle in self.handles:
            self.codec.gt_free(handle)

    def seen(self, data: bytes, eighths: int, channels: int) -> list[tuple]:
        """What each of them makes of a file: what can be compared."""
        found, header, result = [], np.zeros(8, np.int32), (ctypes.c_size_t * 2)()
        address = np.array([np.frombuffer(data, np.uint8).ctypes.data], np.uintp)
        length, scale = np.array([len(data)], np.uintp), np.array([eighths], np.int32)
        self.codec.gt_headers(1, address.ctypes.data, length.ctypes.data, header.ctypes.data)
        box = np.array([0, 0, *np.clip(header[:2], 1, 2000)], np.int32)
        for handle in self.handles:  # whatever its header is said to be
            out, codes = np.zeros((24, 20, channels), np.uint8), np.zeros(1, np.int32)
            self.codec.gt_decode_many(
                handle, 1, address.ctypes.data, length.ctypes.data, box.ctypes.data, scale.ctypes.data, None, None, 0,
                24, 20, channels, out.ctypes.data, codes.ctypes.data,
            )  # fmt: skip
            code = int(codes[0])
            found.append((code, out.tobytes() if code == native.OK else self.codec.gt_message(handle)))
            code = self.codec.gt_recode(handle, data, len(data), 16, 0, channels == 1, 90, ctypes.byref(result))
            made = ctypes.string_at(*result) if code == native.OK else self.codec.gt_message(handle)
            found.append((code, made))
        out = np.zeros((24, 20, 3), np.uint8)
        try:
            self.loader.into(out, data, Draws(), 0)
            found.append((0, out.tobytes()))
        except GluontuneError as error:
            found.append((1, str(error)))
        return found


def trial(count: int, seed: int) -> Counter:
    rng = np.random.default_rng(seed)
    whole, counts = corpus(), Counter()
    native.load().gt_limit(1 << 20)
    try:
        files = [(drawn(rng, whole), int(rng.choice([8, 4, 2, 1])), int(rng.choice([1, 3]))) for _ in range(count)]
        alone = [Reader().seen(*one) for one in files]
        for order in (range(count), rng.permutation(count)):
            reader = Reader()
            for k in order:
                counts["order"] += reader.seen(*files[k]) != alone[k]
        for ours, ours_made, theirs, theirs_made, loaded in alone:
            counts["otherwise than libjpeg"] += ours != theirs or ours_made != theirs_made
            counts["made"] += theirs[0] == native.OK
            counts["loaded"] += loaded[0] == 0
    finally:
        native.load().gt_limit(178_956_970)
    return counts


@needs_codec
def test_the_order_of_damaged_files_does_not_matter():
    counts = trial(400, 11)
    assert counts["order"] == counts["otherwise than libjpeg"] == 0
    assert 40 < counts["made"] < 380 and counts["loaded"] > 20


def photograph(quality: int, **options: int) -> bytes:
    noise = np.random.default_rng(quality).integers(0, 256, (6, 8, 3), np.uint8)
    settings = [cv2.IMWRITE_JPEG_QUALITY, quality]
    for name, value in options.items():
        settings += [getattr(cv2, f"IMWRITE_JPEG_{name}"), value]
    return cv2.imencode(".jpg", cv2.resize(noise, (64, 48), interpolation=cv2.INTER_CUBIC), settings)[1].tobytes()


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_codec), False])
@pytest.mark.parametrize("marker, word", [(QUANT, "quantization"), (HUFFMAN, "Huffman")])
@pytest.mark.parametrize(
    "options", [{}, {"OPTIMIZE": 1}, {"PROGRESSIVE": 1}], ids=["plain", "optimized", "progressive"]
)
def test_a_file_without_its_tables_is_refused(marker, word, options, compiled, monkeypatch):
    """After another file it was decoded with that one's tables; alone, with standard ones, right or not."""
    if not compiled:
        monkeypatch.setattr(native, "load", lambda: None)
    whole = photograph(90, **options)
    bare = without(whole, marker)
    decoder, out = Decoder((48, 64, 3), AUGMENTS["none"]), np.zeros((48, 64, 3), np.uint8)
    for before in (None, photograph(20), photograph(97, PROGRESSIVE=1)):
        if before is not None:
            decoder.into(out, before, Draws(), 0)
            recode_jpeg(before, 24)
        with pytest.raises(GluontuneError, match=f"a broken JPEG image: .* {word} tables"):
            decoder.into(out, bare, Draws(), 0)
        with pytest.raises(ImageError, match=word):
            inspect(bare)
    decoder.into(out, whole, Draws(), 0)


if __name__ == "__main__":
    number = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbelow(1 << 32)
    print(f"{sys.argv[1]} files, seed {number}: {dict(trial(int(sys.argv[1]), number))}")
