"""Baseline JPEG decoded without libjpeg: its pixels are libjpeg-turbo's, and what is not for it goes there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jpegs import jpeg, picture
from PIL import Image

from gluontune.codec import native
from gluontune.codec.header import jpeg_header
from gluontune.codec.native import _State


class Both:
    """One decoder that may go its own way, and one that goes through libjpeg-turbo."""

    def __init__(self):
        self.codec = native.load()
        self.handles = [self.codec.gt_new(), self.codec.gt_new()]
        self.codec.gt_use(self.handles[1], 0)

    def __del__(self):
        for handle in self.handles:
            self.codec.gt_free(handle)

    def own(self) -> int:
        assert self.codec.gt_baselines(self.handles[1]) == 0
        return self.codec.gt_baselines(self.handles[0])

    def decode(self, data, box, shape, eighths=8, flip=False, offset=None, pad=0):
        """(code, pixels) of each."""
        address = np.array([np.frombuffer(data, np.uint8).ctypes.data], np.uintp)
        length, boxes = np.array([len(data)], np.uintp), np.array([box], np.int32)
        scale, flips = np.array([eighths], np.int32), np.array([flip], np.uint8)
        offsets = None if offset is None else np.array([offset], np.int64)
        found = []
        for handle in self.handles:
            out, codes = np.full(shape, 7, np.uint8), np.zeros(1, np.int32)
            self.codec.gt_decode_many(
                handle, 1, address.ctypes.data, length.ctypes.data, boxes.ctypes.data, scale.ctypes.data,
                flips.ctypes.data, None if offsets is None else offsets.ctypes.data, pad, *shape,
                out.ctypes.data, codes.ctypes.data,
            )  # fmt: skip
            found.append((int(codes[0]), out))
        return found

    def whole(self, data, eighths=8, like=None, **options):
        header = jpeg_header(like or data)
        h, w = header.height, header.width
        shape = (-(-h * eighths // 8), -(-w * eighths // 8), 3)
        return self.decode(data, (0, 0, h, w), shape, eighths=eighths, **options)


@pytest.fixture(scope="module")
def both():
    return Both()


images = st.fixed_dictionaries(
    {
        "size": st.tuples(st.integers(16, 150), st.integers(16, 150)),
        "seed": st.integers(0, 10_000),
        "noise": st.sampled_from([0, 0, 3, 20, 90]),
        "quality": st.integers(1, 100),
        "subsampling": st.sampled_from([0, 1, 2]),
        "grey": st.booleans(),
        "optimize": st.booleans(),
        "restart_marker_blocks": st.sampled_from([0, 0, 1, 2, 7, 40]),
    }
)


def encoded(drawn: dict) -> bytes:
    options = {k: drawn[k] for k in ("quality", "optimize", "restart_marker_blocks")}
    image = Image.fromarray(picture(*drawn["size"], drawn["seed"], drawn["noise"]))
    if drawn["grey"]:
        return jpeg(image.convert("L"), **options)
    return jpeg(image, subsampling=drawn["subsampling"], **options)


@settings(deadline=None, max_examples=150)
@given(drawn=images, data=st.data())
def test_the_pixels_of_any_box_at_any_scale_are_libjpegs(both, drawn, data):
    file, (h, w) = encoded(drawn), drawn["size"]
    top, left = data.draw(st.integers(0, h - 1)), data.draw(st.integers(0, w - 1))
    box = (top, left, data.draw(st.integers(1, h - top)), data.draw(st.integers(1, w - left)))
    box = data.draw(st.sampled_from([box, (0, 0, h, w)]))
    eighths, channels = data.draw(st.sampled_from([8, 8, 4, 2, 1])), data.draw(st.sampled_from([1, 3]))
    out = data.draw(st.sampled_from([box[2:], (data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70)))]))
    before = both.own()
    (code, mine), (other, theirs) = both.decode(file, box, (*out, channels), eighths, flip=data.draw(st.booleans()))
    assert code == other == native.OK
    assert np.array_equal(mine, theirs)
    colour_scaled = channels == 3 and not drawn["grey"] and drawn["subsampling"] and eighths < 8
    assert both.own() == before + 1 or colour_scaled  # some are upsampled in another way, by libjpeg


@settings(deadline=None, max_examples=100)
@given(drawn=images, pad=st.integers(1, 12), flip=st.booleans(), data=st.data())
def test_a_padded_crop_is_numpys(both, drawn, pad, flip, data):
    file, (h, w) = encoded(drawn), drawn["size"]
    offset = (data.draw(st.integers(0, 2 * pad)), data.draw(st.integers(0, 2 * pad)))
    for code, found in both.decode(file, (0, 0, h, w), (h, w, 3), flip=flip, offset=offset, pad=pad):
        assert code == native.OK
        plain = both.whole(file)[0][1]
        padded = np.pad(plain, ((pad, pad), (pad, pad), (0, 0)), "reflect")
        cut = padded[offset[0] : offset[0] + h, offset[1] : offset[1] + w]
        assert np.array_equal(found, cut[:, ::-1] if flip else cut)


@settings(deadline=None, max_examples=100)
@given(drawn=images, side=st.sampled_from([None, 16, 33, 64]), crop=st.booleans(), grey=st.booleans())
def test_a_file_recoded_is_the_same_to_the_byte(both, drawn, side, crop, grey):
    file, found = encoded(drawn), []
    side = side if side is None or side <= min(drawn["size"]) else None
    for own in (1, 0):
        state = _State(both.codec)
        both.codec.gt_use(state.handle, own)
        code = both.codec.gt_recode(state.handle, file, len(file), side or 0, crop, grey, 80, state.result)
        assert code == native.OK
        assert both.codec.gt_baselines(state.handle) == own
        address, size = state.result
        import ctypes

        found.append(ctypes.string_at(address, size))
    assert found[0] == found[1]


def others() -> dict[str, bytes]:
    """Files that are not for the own decoder, each for a reason of its own."""
    image = Image.fromarray(picture(48, 64, 1, 4))
    plain = jpeg(image)
    frame = plain.index(b"\xff\xc0")
    scan = plain.index(b"\xff\xda")
    tall = bytearray(jpeg(image, subsampling=0))
    tall[tall.index(b"\xff\xc0") + 11] = 0x12  # luma twice as high: the data are wrong for it, and both say the same
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"  # its last byte: RGB
    start = plain.index(b"\xff\xe0")
    end_of_jfif = start + 2 + int.from_bytes(plain[start + 2 : start + 4], "big")
    named = bytearray(plain[:start] + plain[end_of_jfif:])
    place, scan_place = named.index(b"\xff\xc0"), named.index(b"\xff\xda")
    for k, name in enumerate(b"RGB"):
        named[place + 10 + 3 * k] = named[scan_place + 5 + 2 * k] = name
    bogus = bytearray(jpeg(image.convert("L")))
    bogus[bogus.index(b"\xff\xc0") + 11] = 0x51
    return {
        "bogus sampling": bytes(bogus),
        "progressive": jpeg(image, progressive=True),
        "smaller than a unit": jpeg(image.resize((12, 40))),
        "RGB by Adobe": plain[:start] + adobe + plain[end_of_jfif:],
        "RGB by its parts' names": bytes(named),
        "taller luma": bytes(tall),
        "no Huffman tables": _without(plain, 0xC4),
        "no quantizers": _without(plain, 0xDB),
        "two frames": plain[:frame] + plain[frame:scan] * 2 + plain[scan:],
        "spectral selection": plain[: scan + 12] + b"\x3e" + plain[scan + 13 :],
        "nothing behind the header": plain[: scan + 14],
    }


def _without(data: bytes, marker: int) -> bytes:
    out, at = bytearray(data[:2]), 2
    while data[at + 1] != 0xDA:
        size = 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] != marker:
            out += data[at : at + size]
        at += size
    return bytes(out) + data[at:]


@pytest.mark.parametrize("name", others())
def test_other_files_are_libjpegs(both, name):
    before = both.own()
    (code, mine), (other, theirs) = both.whole(
        others()[name], like=others()["progressive"] if name.startswith("no ") else None
    )
    assert code == other and np.array_equal(mine, theirs)
    assert both.own() == before


def test_what_decodes_is_said():
    assert native.decoder_name() == "our own and libjpeg-turbo, by regions"


def test_colours_without_a_marker_that_names_them_are_luma_and_chroma(both):
    data = jpeg(picture(40, 56, 9, 3))
    start = data.index(b"\xff\xe0")
    bare = data[:start] + data[start + 2 + int.from_bytes(data[start + 2 : start + 4], "big") :]
    before = both.own()
    (_, mine), (_, theirs) = both.whole(bare)
    assert both.own() == before + 1 and np.array_equal(mine, theirs)
    assert np.array_equal(mine, both.whole(data)[0][1])


@settings(deadline=None, max_examples=100)
@given(
    drawn=images,
    where=st.floats(0, 1),
    put=st.binary(max_size=4),
    cut=st.integers(0, 4),
    eighths=st.sampled_from([1, 2, 4, 8]),
)
def test_damaged_data_end_as_they_do_with_libjpeg(both, drawn, where, put, cut, eighths):
    """Bytes changed, left out or put in, markers among them: the code is libjpeg's, and so are the pixels."""
    file = bytearray(encoded(drawn))
    start = jpeg_header(bytes(file)).scan + 14
    at = start + int(where * (len(file) - start - 3))
    file[at : at + cut] = put
    (code, mine), (other, theirs) = both.whole(bytes(file), eighths)
    assert code == other
    assert code != native.OK or np.array_equal(mine, theirs)


@pytest.mark.parametrize("eighths", [1, 2, 4, 8])
def test_values_that_no_image_has_wrap_as_they_do_in_libjpeg(both, eighths):
    """The coefficients of an image times other quantizers."""
    rng = np.random.default_rng(eighths)
    before, loud = both.own(), 0
    for n in range(30):
        flat, height = (n % 3 == 2, 1 if n % 3 else 70)  # all values of a block, those of its first row, the first one
        image = rng.integers(0, 256, (height, 6 if flat else 90, 3)).astype(np.uint8)
        image = np.repeat(np.broadcast_to(image, (70, *image.shape[1:])), 16 if flat else 1, axis=1)
        data = jpeg(image, quality=int(rng.integers(60, 101)), subsampling=n % 2 * 2)
        tables = [rng.integers(200 if n % 2 else 1, 256, 64).astype(np.uint8) for _ in range(2)]
        body = b"".join(bytes([k]) + table.tobytes() for k, table in enumerate(tables))
        data = data[:2] + b"\xff\xdb" + (len(body) + 2).to_bytes(2, "big") + body + _without(data, 0xDB)[2:]
        (code, mine), (other, theirs) = both.whole(data, eighths)
        assert code == other == native.OK and np.array_equal(mine, theirs)
        loud += int(np.mean((theirs == 0) | (theirs == 255)) > 0.5)
    assert both.own() == before + 30 and loud > 4


def test_a_row_that_half_the_size_leaves_out_does_not_keep_the_first_from_wrapping(both):
    """Blocks of two frequencies down their columns, 0 and 4, of which the second is none of a half's."""
    rng, waves = np.random.default_rng(2), np.array([1, -1, -1, 1, 1, -1, -1, 1])
    for size, quality in ((40, 80), (80, 90), (96, 95)):
        image = rng.integers(60, 196, (1, size)) + 40 * np.tile(waves, size // 8)[:, None]
        data = jpeg(Image.fromarray(image.astype(np.uint8)), quality=quality)
        tables = b"\xff\xdb\x00\x43\x00" + bytes([255] * 64)
        data = data[:2] + tables + _without(data, 0xDB)[2:]
        before = both.own()
        for eighths in (1, 2, 4, 8):
            (code, mine), (other, theirs) = both.whole(data, eighths)
            assert code == other == native.OK and np.array_equal(mine, theirs)
        assert both.own() == before + 4


def test_data_that_end_early_are_said_to(both):
    file = jpeg(picture(100, 120, 3, 20))
    for share in (0.3, 0.6, 0.95):
        (code, _), (other, _) = both.whole(file[: int(share * len(file))])
        assert code == other == native.TRUNCATED
    before = both.own()
    upper = both.decode(file[: int(0.6 * len(file))], (0, 0, 16, 120), (16, 120, 3))
    assert both.own() == before + 1  # the rows that are wanted are there
    assert [code for code, _ in upper] == [native.OK, native.OK] and np.array_equal(upper[0][1], upper[1][1])


def test_tables_of_many_files_take_turns(both):
    """More tables than are kept: each file is decoded by its own."""
    files = [jpeg(picture(40, 40, k, 2 * k), optimize=True, quality=30 + 2 * k) for k in range(30)]
    wanted = [both.whole(file)[1][1] for file in files]
    for k in [*range(30), *range(0, 30, 7), *range(29, -1, -1)]:
        assert np.array_equal(both.whole(files[k])[0][1], wanted[k]), k


def test_a_file_with_more_tables_than_are_kept_is_libjpegs(both):
    data = jpeg(picture(40, 56, 2, 5))
    at = data.index(b"\xff\xc4")
    table = data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")]
    changed = bytearray(table)
    several = b""
    for k in range(20):  # the same code, its last symbols exchanged: other tables, of which the true ones come last
        changed[-1 - k % 3], changed[-4] = changed[-4], changed[-1 - k % 3]
        several += bytes(changed)
    before = both.own()
    (code, mine), (other, theirs) = both.whole(data[:at] + several + data[at:])
    assert code == other == native.OK and np.array_equal(mine, theirs)
    assert both.own() == before


@pytest.mark.parametrize("blocks", [0, 2])
def test_a_file_without_its_end_is_told_as_libjpeg_does(both, blocks):
    """All its pixels are there, and it is cut off all the same."""
    for seed in range(12):
        image = Image.fromarray(picture(16, 29 + 8 * seed, seed, 0)).convert("L")
        file = jpeg(image, quality=10, optimize=True, restart_marker_blocks=blocks)
        before = both.own()
        for cut in (1, 2, 3):
            (code, mine), (other, theirs) = both.whole(file[:-cut])
            assert code == other and np.array_equal(mine, theirs)
        assert both.own() == before


def test_a_restart_that_is_not_the_one_that_is_due_is_libjpegs(both):
    file = jpeg(picture(64, 96, 4, 10), restart_marker_blocks=3)
    scan = jpeg_header(file).scan
    at = file.index(b"\xff\xd1", scan)
    before = both.own()
    assert both.whole(file)[0][0] == native.OK and both.own() == before + 1
    for changed in (
        file[: at + 1] + b"\xd5" + file[at + 2 :],
        file[:at] + b"\x12\x34\x56" + file[at:],
        file[:at] + file[at + 2 :],
        file[: at - 6] + file[at:],
    ):
        (code, mine), (other, theirs) = both.whole(changed)
        assert code == other and np.array_equal(mine, theirs)
        assert both.own() == before + 1
