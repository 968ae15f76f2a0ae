"""Records of raw pixels through the loaders: the same images as from encoded ones."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from gluontune.codec.header import ImageError, inspect
from gluontune.codec.image import decode, decode_image
from gluontune.core.errors import GluontuneError
from gluontune.loading import AUGMENTS, ResidentLoader, ThreadedLoader, from_records
from gluontune.loading.augment import Draws
from gluontune.loading.base import generator
from gluontune.loading.decode import Decoder
from gluontune.records import RecordWriter, pixels_to_raw


def picture(height: int, width: int, channels: int, seed: int = 0) -> np.ndarray:
    """RGB or grey, (H, W, C)."""
    image = cv2.resize(np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8), (width, height))
    return image if channels == 3 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None]


def png(image: np.ndarray) -> bytes:
    return cv2.imencode(".png", image[:, :, ::-1] if image.shape[2] == 3 else image)[1].tobytes()


@pytest.mark.parametrize("name", AUGMENTS.names())
@pytest.mark.parametrize("stored", [1, 3])
@pytest.mark.parametrize("channels", [1, 3])
def test_raw_pixels_give_the_images_of_a_lossless_file(name, stored, channels):
    augment, shape = AUGMENTS[name], (64, 48, channels)
    draws = augment.draw(generator(1), 4) if augment.random else Draws()
    decoder = Decoder(shape, augment)
    for size in ((97, 133), (64, 48), (300, 200), (40, 30)):
        image = picture(*size, stored)
        for i in range(4):
            raw, encoded = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
            decoder.into(raw, pixels_to_raw(image), draws, i)
            decoder.into(encoded, png(image), draws, i)
            difference = np.abs(raw.astype(int) - encoded)
            # Grey is made before the resize on one way and after it on the other.
            if stored != channels and augment.operations:  # which stretch a step of one level to many
                assert difference.mean() < 4, (size, i)
            else:
                assert difference.max() <= (4 if stored != channels else 0), (size, i)
            assert raw.std() > 5


@pytest.mark.parametrize("stored", [2, 4])
def test_pixels_of_other_channels_are_refused_by_name(stored):
    raw = pixels_to_raw(np.zeros((8, 8, stored), np.uint8))
    assert decode(raw, 0).shape == (8, 8, stored)
    for channels in (1, 3):
        assert decode(raw, channels) is None
        with pytest.raises(GluontuneError, match=f"{stored} channels cannot become {channels}: pack 3 or 1"):
            Decoder((8, 8, channels), AUGMENTS["none"]).into(np.zeros((8, 8, channels), np.uint8), raw, Draws(), 0)
    with pytest.raises(ImageError, match=f"{stored} channels"):
        decode_image(raw, inspect(raw))


def test_loaders_read_raw_records(tmp_path):
    with RecordWriter(tmp_path / "raw.rec") as writer:
        for i in range(10):
            writer.write(pixels_to_raw(picture(32, 32, 3, i)), i)
    split = from_records(tmp_path / "raw.rec")
    assert np.array_equal(split.decode(3), picture(32, 32, 3, 3))
    options = {"batch_size": 5, "image_shape": (32, 32, 3), "augment": "pad-crop-flip", "shuffle": True}
    with ThreadedLoader(split, num_workers=2, **options) as threaded, ResidentLoader(split, **options) as resident:
        for (images, labels), (others, their_labels) in zip(threaded.epoch(0), resident.epoch(0)):
            assert np.array_equal(images, others) and np.array_equal(labels, their_labels)


@pytest.mark.parametrize("cut", [7, 60, -1])
def test_damaged_raw_pixels_are_an_error_that_names_the_record(tmp_path, cut):
    with RecordWriter(tmp_path / "raw.rec") as writer:
        writer.write(pixels_to_raw(picture(32, 32, 3))[:cut], 0)
    with (
        ThreadedLoader(from_records(tmp_path / "raw.rec"), batch_size=1, image_shape=(32, 32, 3)) as loader,
        pytest.raises(GluontuneError, match=r"raw\.rec, record 0: .*raw pixels"),
    ):
        next(loader.epoch(0))
