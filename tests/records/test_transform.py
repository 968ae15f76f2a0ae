"""What becomes of an image's pixels: sizes, cuts, colours and kinds, exactly where nothing is lost."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from gluontune.codec import native
from gluontune.codec.header import ImageError, inspect
from gluontune.codec.image import raw_to_pixels
from gluontune.core.errors import UsageError
from gluontune.records.transform import Transform


def noise(height, width, channels=3, seed=0):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def png(pixels):
    return cv2.imencode(".png", pixels)[1].tobytes()


def jpg(pixels, quality=95):
    return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def pixels_of(data):
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)


@pytest.mark.parametrize(
    "options",
    [
        {"resize": 0}, {"resize": 16385}, {"resize": -1}, {"quality": 0}, {"quality": 101}, {"format": "gif"},
        {"color": "blue"}, {"quality": 90, "format": "png"}, {"quality": 90, "format": "raw"},
        {"exact": True, "resize": 5},
        {"exact": True, "crop": True}, {"exact": True, "format": "jpg"}, {"exact": True, "quality": 5},
        {"exact": True, "color": "rgb"},
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(options):
    name = "exact copies" if "exact" in options else next(iter(options))
    with pytest.raises(UsageError, match=name):
        Transform(**options)


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        ({}, True), ({"exact": True}, True), ({"resize": 1}, False), ({"resize": 16384}, False),
        ({"crop": True}, False),
        ({"quality": 1}, False), ({"quality": 100, "format": "jpg"}, False), ({"format": "raw"}, False),
        ({"color": "grey"}, False),
    ],
)  # fmt: skip
def test_what_may_be_asked_and_whether_most_files_are_copied(options, copies):
    assert Transform(**options).copies == copies


def test_exact_copies_anything_but_nothing():
    assert Transform(exact=True)(b"x") == (b"x", False)
    with pytest.raises(ImageError, match="empty file"):
        Transform(exact=True)(b"")


@pytest.mark.parametrize(
    ("options", "copied"),
    [
        ({}, True), ({"format": "png"}, True), ({"format": "jpg"}, False), ({"format": "raw"}, False),
        ({"resize": 20}, True), ({"resize": 19}, False), ({"resize": 30}, False), ({"crop": True}, False),
        ({"color": "rgb"}, True), ({"color": "grey"}, False), ({"quality": 95}, False),
    ],
)  # fmt: skip
def test_a_plain_file_is_copied_where_nothing_changes_it(options, copied):
    for shape in ((20, 30), (30, 20)):
        data = png(noise(*shape))
        made, changed = Transform(**options)(data)
        assert changed != copied and (changed or made == data)
    assert Transform(crop=True)(png(noise(20, 20)))[1] is False
    grey = png(noise(20, 30, 1))
    assert Transform(color="grey")(grey) == (grey, False) and Transform(color="rgb")(grey)[1]


@pytest.mark.parametrize(
    ("shape", "resize", "size"),
    [
        ((31, 50), 20, (20, 32)), ((50, 31), 20, (32, 20)), ((10, 30), 20, (20, 60)), ((30, 10), 20, (60, 20)),
        ((40, 41), 20, (20, 20)), ((20, 33), 20, (20, 33)), ((20, 20), 7, (7, 7)), ((100, 129), 10, (10, 13)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["png", "jpg", "jpg without the codec"])
def test_the_shorter_side_is_what_was_asked(kind, shape, resize, size, monkeypatch):
    if kind == "jpg without the codec":
        monkeypatch.setattr(native, "load", lambda: None)
        kind = "jpg"
    data = png(noise(*shape)) if kind == "png" else jpg(noise(*shape))
    made, _ = Transform(resize=resize)(data)
    assert pixels_of(made).shape[:2] == size and inspect(made).kind == kind
    square, _ = Transform(resize=resize, crop=True)(data)
    assert pixels_of(square).shape[:2] == (resize, resize)


@pytest.mark.parametrize(
    ("shape", "top", "left"), [((20, 31), 0, 5), ((33, 20), 6, 0), ((20, 22), 0, 1), ((21, 20), 0, 0)]
)
def test_the_middle_is_cut_out_to_the_pixel(shape, top, left):
    pixels = noise(*shape)
    made, changed = Transform(crop=True)(png(pixels))
    assert changed and np.array_equal(pixels_of(made), pixels[top : top + 20, left : left + 20])
    raw, _ = Transform(crop=True, format="raw")(png(pixels))
    assert np.array_equal(raw_to_pixels(raw), pixels[top : top + 20, left : left + 20, ::-1])


def test_images_too_long_and_thin_are_refused():
    assert pixels_of(Transform(resize=5)(png(noise(1, 13100, 1)))[0]).shape == (5, 65500)
    for pixels in (noise(1, 13101, 1), noise(13101, 1, 1)):
        with pytest.raises(ImageError, match=r"too long and thin for a shorter side of 5"):
            Transform(resize=5)(png(pixels))


def test_colours_are_opencvs():
    colour, grey = noise(8, 9), noise(8, 9, 1)
    made = pixels_of(Transform(color="grey")(png(colour))[0])
    assert np.array_equal(made, cv2.cvtColor(colour, cv2.COLOR_BGR2GRAY))
    made = pixels_of(Transform(color="rgb")(png(grey))[0])
    assert np.array_equal(made, np.repeat(grey[..., None], 3, axis=2))
    raw = raw_to_pixels(Transform(format="raw")(png(grey))[0])
    assert np.array_equal(raw, grey[..., None])
    raw = raw_to_pixels(Transform(format="raw", color="rgb")(png(grey))[0])
    assert np.array_equal(raw, np.repeat(grey[..., None], 3, axis=2))
    for data in (jpg(colour), jpg(grey)):
        for color, channels in (("grey", 1), ("rgb", 3)):
            assert inspect(Transform(color=color, quality=90)(data)[0]).channels == channels


def test_kinds_and_qualities():
    pixels = noise(16, 24)
    bmp = cv2.imencode(".bmp", pixels)[1].tobytes()
    assert np.array_equal(pixels_of(Transform()(bmp)[0]), pixels) and inspect(Transform()(bmp)[0]).kind == "png"
    assert Transform(format="jpg")(bmp) == (jpg(pixels, 95), True)
    assert Transform(format="jpg", quality=40)(bmp) == (jpg(pixels, 40), True)
    assert Transform(quality=1, format="jpg")(bmp)[0] == jpg(pixels, 1)
    webp = cv2.imencode(".webp", pixels, [cv2.IMWRITE_WEBP_QUALITY, 101])[1].tobytes()
    assert Transform()(webp)[0] == jpg(pixels_of(webp), 95)
    assert Transform(format="png")(webp)[0] == png(pixels_of(webp))
    with pytest.raises(ImageError):
        Transform()(b"no image at all")


def test_a_jpeg_that_is_enlarged_or_made_colour_goes_by_opencv():
    grey, colour = jpg(noise(16, 24, 1)), jpg(noise(16, 24))
    assert pixels_of(Transform(resize=32)(colour)[0]).shape == (32, 48, 3)
    assert pixels_of(Transform(resize=15)(colour)[0]).shape == (15, 22, 3)
    assert np.array_equal(
        pixels_of(Transform(color="rgb", format="png")(grey)[0]), cv2.cvtColor(pixels_of(grey), cv2.COLOR_GRAY2BGR)
    )
    made = Transform(resize=8, color="rgb")(grey)[0]
    assert inspect(made).channels == 3 and pixels_of(made).shape == (8, 12, 3)
    fine, coarse = Transform(resize=12)(colour)[0], Transform(resize=12, quality=30)(colour)[0]
    assert Transform(resize=12, quality=95)(colour)[0] == fine and len(coarse) < len(fine)
