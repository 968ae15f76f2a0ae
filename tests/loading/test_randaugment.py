"""RandAugment and colour jitter against Pillow, which is what torchvision's transforms call for Pillow images."""

from __future__ import annotations

import colorsys
import math

import cv2
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from gluontune.core.errors import UsageError
from gluontune.loading import AUGMENTS, build, color_jitter, colour, mixing, normalize, rand_augment
from gluontune.loading.augment import Draws

LEVELS = (0, 1, 5, 9, 17, 30)
SIGNED = {"shear-x", "shear-y", "translate-x", "translate-y", "rotate", "brightness", "color", "contrast", "sharpness"}


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    smooth = cv2.resize(rng.integers(0, 256, (7, 9, channels), np.uint8), (width, height)).astype(int)
    noisy = smooth.reshape(height, width, channels) + rng.integers(-20, 20, (height, width, channels))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def theirs(name: str, image: Image.Image, level: int) -> Image.Image:
    """torchvision 0.28, ``RandAugment._augmentation_space`` and ``_apply_op`` for a Pillow image, by their text."""
    width, height = image.size
    share = level / 30
    affine = {
        "shear-x": (1, 0.3 * share, 0, 0, 1, 0),
        "shear-y": (1, 0, 0, 0.3 * share, 1, 0),
        "translate-x": (1, 0, -int(150 / 331 * width * share), 0, 1, 0),
        "translate-y": (1, 0, 0, 0, 1, -int(150 / 331 * height * share)),
    }
    enhance = {
        "brightness": ImageEnhance.Brightness, "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast, "sharpness": ImageEnhance.Sharpness,
    }  # fmt: skip
    if name in affine:
        return image.transform(image.size, Image.Transform.AFFINE, affine[name], Image.Resampling.NEAREST)
    if name in enhance:
        return enhance[name](image).enhance(1 + 0.9 * share)
    if name == "rotate":
        return image.rotate(30 * share, Image.Resampling.NEAREST)
    if name == "posterize":
        return ImageOps.posterize(image, 8 - round(level / 7.5))
    if name == "solarize":
        return ImageOps.solarize(image, float(np.linspace(255, 0, 31, dtype=np.float32)[level]))
    return {"identity": lambda i: i, "autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize}[name](image)


@pytest.mark.parametrize("name", mixing.OPERATIONS)
@pytest.mark.parametrize("size", [(32, 32, 3), (97, 61, 3), (50, 80, 1), (2, 5, 3)])
def test_each_operation_makes_pillows_pixels(name, size):
    number = mixing.OPERATIONS.index(name)
    image, changed = (20 + picture(*size) * 0.8).astype(np.uint8), 0
    for level in LEVELS:
        for sign in (1, -1) if name in SIGNED else (1,):
            wanted = np.asarray(theirs(name, Image.fromarray(image.squeeze()), sign * level))
            made = image.copy()
            mixing.apply_operations(made, [[number, sign * level]])
            assert np.array_equal(made.reshape(wanted.shape), wanted), (level, sign)
            changed += not np.array_equal(made, image)
    assert changed or name == "identity" or size[2] == 1 or size[0] == 2


@pytest.mark.parametrize(
    ("name", "enhance"), [("brightness", "Brightness"), ("contrast", "Contrast"), ("saturation", "Color")]
)
@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.4, 3.0])
def test_colours_are_pillows(name, enhance, factor):
    image = picture(40, 30)
    wanted = np.asarray(getattr(ImageEnhance, enhance)(Image.fromarray(image)).enhance(factor))
    getattr(colour, name)(image, factor)
    assert np.array_equal(image, wanted)


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.0, 0.07, 0.3])
def test_the_hue_is_that_of_the_colour_circle(turn):
    image = picture(12, 9)
    exact = np.array(
        [colorsys.hsv_to_rgb((h + turn) % 1, s, v) for h, s, v in
         (colorsys.rgb_to_hsv(*pixel) for pixel in (image.reshape(-1, 3) / 255).tolist())]
    )  # fmt: skip
    colour.hue(image, turn)
    assert np.abs(image.reshape(-1, 3) - exact * 255).max() <= 0.51


def test_the_draws_of_rand_augment_are_even_and_signed():
    drawn = mixing.draw_operations(np.random.default_rng(0), 7000, 2, 9)
    counts = np.bincount(drawn[..., 0].ravel(), minlength=14)
    assert len(counts) == 14 and abs(counts / 1000 - 1).max() < 0.12
    assert set(np.unique(drawn[..., 1])) == {-9, 9} and abs((drawn[..., 1] > 0).mean() - 0.5) < 0.02
    assert abs(np.corrcoef(drawn[:, 0, 0], drawn[:, 1, 0])[0, 1]) < 0.05


def test_the_draws_of_color_jitter_are_torchvisions():
    steps = colour.draw_steps(np.random.default_rng(0), 4000, (0.4, 0.3, 1.5, 0.1))
    assert steps.shape == (4000, 4, 2)
    first = np.bincount(steps[:, 0, 0].astype(int)) / 4000
    assert abs(first - 0.25).max() < 0.03, "any of the four comes first"
    for k, (low, high) in enumerate([(0.6, 1.4), (0.7, 1.3), (0.0, 2.5), (-0.1, 0.1)]):
        factors = steps[..., 1][steps[..., 0] == k]
        assert len(factors) == 4000 and low <= factors.min() and factors.max() <= high
        assert factors.max() > high - 0.02 and (k == 2 or abs(factors.mean() - (low + high) / 2) < 0.02)


def test_color_jitter_is_its_steps_one_after_another():
    images = np.stack([picture(16, 16, seed=k) for k in range(6)])
    made = color_jitter(images, np.random.default_rng(3))
    steps = colour.draw_steps(np.random.default_rng(3), 6, (0.4, 0.4, 0.4, 0.1))
    for k, image in enumerate(images.copy()):
        for number, factor in steps[k].tolist():
            (colour.brightness, colour.contrast, colour.saturation, colour.hue)[int(number)](image, factor)
        assert np.array_equal(made[k], image)
    only = color_jitter(images, np.random.default_rng(3), contrast=0, saturation=0, hue=0)
    ratios = only.astype(float).mean((1, 2, 3)) / images.mean((1, 2, 3))
    assert ratios.std() > 0.05 and ratios.min() > 0.55 and ratios.max() < 1.4


def test_normalize_is_totensor_and_normalize():
    images, mean, std = np.stack([picture(6, 5)] * 2), np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.25, 0.3])
    wanted = (images / 255 - mean) / std
    assert np.allclose(normalize(images, mean, std, "NHWC"), wanted, atol=1e-6)
    planes = normalize(images, mean, std)
    assert planes.dtype == np.float32 and np.allclose(planes, wanted.transpose(0, 3, 1, 2), atol=1e-6)
    assert planes.flags["C_CONTIGUOUS"]


@pytest.mark.parametrize("change", [rand_augment, color_jitter])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_same_generator_gives_the_same_pixels_and_the_input_is_left_alone(change, channels):
    images = np.stack([picture(20, 24, channels, k) for k in range(5)])
    before = images.copy()
    first, again, other = (change(images, np.random.default_rng([0, k])) for k in (1, 1, 2))
    assert first.shape == images.shape and np.array_equal(first, again)
    assert not np.array_equal(first, other) and np.array_equal(images, before)


def test_fill_is_the_value_of_what_comes_in():
    white = np.full((1, 20, 20, 3), 255, np.uint8)
    number = mixing.OPERATIONS.index("translate-x")
    mixing.apply_operations(white[0], [[number, 30]], fill=7)
    assert set(np.unique(white)) == {7, 255} and (white[0, :, :9] == 7).all()


class Memory:
    def __init__(self, count: int):
        self.labels = np.arange(count)
        self._files = [cv2.imencode(".png", picture(36, 40, seed=k))[1].tobytes() for k in range(count)]

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> bytes:
        return self._files[index]


@pytest.mark.parametrize("augment", [a.name for a in AUGMENTS if a.operations or any(a.colour)])
def test_loaders_do_it_by_name_whatever_the_threads(augment):
    made = []
    for workers in (0, 1, 3):
        with build("threaded", Memory(12), batch_size=4, image_shape=(32, 32, 3), augment=augment, shuffle=True,
                   num_workers=workers) as loader:  # fmt: skip
            made.append(np.stack([images.copy() for images, _ in loader.epoch(1)]))
    assert np.array_equal(made[0], made[1]) and np.array_equal(made[0], made[2])
    assert np.ptp(made[0].reshape(12, -1).astype(int).mean(1)) > 0


def test_a_loaders_rand_augment_is_that_of_the_batch():
    """The loader's crop and flip, then the operations that it drew."""
    augment = AUGMENTS["pad-crop-flip-randaugment"]
    draws = augment.draw(np.random.default_rng(0), 8)
    assert draws.operations.shape == (8, 2, 2)
    plain, made = np.stack([picture(32, 32, seed=k) for k in range(8)]), None
    made = plain.copy()
    for k in range(8):
        draws.finish(made[k], k)
        mixing.apply_operations(plain[k], draws.operations[k].tolist())
    assert np.array_equal(made, plain) and not Draws().finishes and draws.finishes


@pytest.mark.parametrize(
    "call",
    [
        lambda images, rng: rand_augment(images, rng, magnitude=31),
        lambda images, rng: rand_augment(images, rng, num_ops=-1),
        lambda images, rng: rand_augment(images, rng, fill=256),
        lambda images, rng: color_jitter(images, rng, hue=0.6),
        lambda images, rng: color_jitter(images, rng, brightness=math.nan),
        lambda images, rng: normalize(images, [0.5], [0.5]),
        lambda images, rng: normalize(images, [0.5] * 3, [0.0] * 3),
        lambda images, rng: normalize(images, [0.5] * 3, [0.5] * 3, layout="CHW"),
    ],
)
def test_values_out_of_range(call):
    with pytest.raises(UsageError, match=r"give|choose"):
        call(np.zeros((1, 4, 4, 3), np.uint8), np.random.default_rng(0))
