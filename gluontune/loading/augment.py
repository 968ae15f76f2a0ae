"""Augmentations: their definitions, and the random draws of a whole batch.

The draws of a batch depend on the seed, the epoch, the rank and the batch alone, never on the thread or the loader: two
loaders with one seed crop alike.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import numpy as np

from gluontune.loading import colour, mixing
from gluontune.recipe.registry import Registry

Box = tuple[int, int, int, int]  # top, left, height, width

TRIES = 10  # of torchvision and MXNet, before a random-resized crop falls back to the centre
AREA = (0.08, 1.0)
LOG_RATIO = (math.log(3 / 4), math.log(4 / 3))
CENTER = 0.875  # 224 of 256


@dataclass(frozen=True)
class Draws:
    """The random numbers of one batch of ``n`` images; None for unused ones."""

    flip: np.ndarray | None = None  # bool (n,)
    offsets: np.ndarray | None = None  # int64 (n, 2), top and left of the crop in the padded image
    uniforms: np.ndarray | None = None  # float64 (n, TRIES, 4): area, ratio, top, left
    jitter: np.ndarray | None = None  # float32 (n, 3): brightness, contrast, saturation
    steps: np.ndarray | None = None  # float64 (n, k, 2): of ``colour.draw_steps``
    operations: np.ndarray | None = None  # int64 (n, k, 2): of ``mixing.draw_operations``

    @property
    def finishes(self) -> bool:
        """Whether an image changes after crop, resize and flip."""
        return self.jitter is not None or self.steps is not None or self.operations is not None

    def finish(self, image: np.ndarray, i: int) -> None:
        """Apply the changes after crop, resize and flip, in place: uint8 (H, W, C), image ``i`` of the batch."""
        place = image[..., 0] if image.shape[2] == 1 else image
        if self.jitter is not None:
            colour.jitter(place, *self.jitter[i].tolist())
        if self.steps is not None:
            colour.apply_steps(place, self.steps[i].tolist())
        if self.operations is not None:
            mixing.apply_operations(place, self.operations[i].tolist())


@dataclass(frozen=True)
class Augment:
    """One augmentation.

    Args:
        name: as in a Recipe.
        summary: one sentence.
        geometry: ``fit``: the largest centred box of the wanted aspect ratio, resized if its size
            differs; ``center``: the same box shrunk to 224/256; ``pad-crop``: fit, then reflect-pad by
            ``pad`` pixels and crop at random; ``resized-crop``: a random box of 8–100 % of the area;
            ``stretch``: the whole image, whatever its aspect ratio.
        flip: mirror half of the images.
        alternate: mirror each image in every second epoch; half of them begin with the first. (Jordan, *94% on
            CIFAR-10 in 3.29 Seconds on a Single GPU*, 2024, section 3.6.)
        jitter: brightness, contrast and saturation are each multiplied by 1 ± ``jitter``, in this order and one pass.
        pad: pixels of padding of ``pad-crop``.
        colour: strengths of brightness, contrast, saturation and hue: see :func:`gluontune.loading.color_jitter`.
        operations, magnitude: see ``num_ops`` and ``magnitude`` of :func:`gluontune.loading.rand_augment`.
    """

    name: str
    summary: str
    geometry: str = "fit"
    flip: bool = False
    jitter: float = 0.0
    pad: int = 0
    alternate: bool = False
    colour: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    operations: int = 0
    magnitude: int = 9
    random: bool = field(init=False)

    def __post_init__(self) -> None:
        random = self.flip or self.finishes or self.geometry in ("pad-crop", "resized-crop")
        object.__setattr__(self, "random", random)

    @property
    def finishes(self) -> bool:
        """Whether images change after crop, resize and flip."""
        return self.jitter > 0 or self.operations > 0 or any(self.colour)

    def draw(self, rng: np.random.Generator, n: int) -> Draws:
        """Draw for ``n`` images.

        >>> from gluontune.loading.base import generator
        >>> AUGMENTS["pad-crop-flip"].draw(generator(0), 2).offsets.shape
        (2, 2)
        """
        flip = rng.random(n) < 0.5 if self.flip else None
        offsets = rng.integers(0, 2 * self.pad + 1, (n, 2)) if self.geometry == "pad-crop" else None
        uniforms = rng.random((n, TRIES, 4)) if self.geometry == "resized-crop" else None
        jitter = None
        if self.jitter:
            jitter = rng.uniform(1 - self.jitter, 1 + self.jitter, (n, 3)).astype(np.float32)
        steps = colour.draw_steps(rng, n, self.colour) if any(self.colour) else None
        operations = mixing.draw_operations(rng, n, self.operations, self.magnitude) if self.operations else None
        return Draws(flip, offsets, uniforms, jitter, steps, operations)

    def box(self, draws: Draws, i: int, height: int, width: int, shape: tuple[int, ...]) -> Box:
        """The part of a ``height`` × ``width`` image for image ``i`` of the batch.

        >>> AUGMENTS["none"].box(Draws(), 0, 480, 640, (224, 224, 3))
        (0, 80, 480, 480)
        """
        if self.geometry == "resized-crop" and draws.uniforms is not None:
            return random_box(draws.uniforms[i].tolist(), height, width)
        if self.geometry == "stretch":
            return 0, 0, height, width
        return centred_box(height, width, shape[0], shape[1], CENTER if self.geometry == "center" else 1.0)


@functools.lru_cache(maxsize=1024)
def centred_box(height: int, width: int, out_h: int, out_w: int, share: float = 1.0) -> Box:
    """The largest centred box of the aspect ratio ``out_h : out_w``, its sides scaled by ``share``."""
    if height * out_w >= width * out_h:
        box_w, box_h = float(width), width * out_h / out_w
    else:
        box_w, box_h = height * out_w / out_h, float(height)
    h, w = max(1, round(box_h * share)), max(1, round(box_w * share))
    return (height - h) // 2, (width - w) // 2, h, w


def random_box(tries: list[list[float]], height: int, width: int) -> Box:
    """The first try that fits (torchvision's RandomResizedCrop); else the centre at an allowed ratio."""
    area = height * width
    for u_area, u_ratio, u_top, u_left in tries:
        target = area * (AREA[0] + (AREA[1] - AREA[0]) * u_area)
        ratio = math.exp(LOG_RATIO[0] + (LOG_RATIO[1] - LOG_RATIO[0]) * u_ratio)
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(u_top * (height - h + 1)), int(u_left * (width - w + 1)), h, w
    ratio = min(max(width / height, 3 / 4), 4 / 3)
    w, h = min(width, max(1, round(height * ratio))), min(height, max(1, round(width / ratio)))
    return (height - h) // 2, (width - w) // 2, h, w


AUGMENTS: Registry[Augment] = Registry("augmentation")
for _entry in (
    Augment("none", "the image as it is; another size is fitted by its largest centred box"),
    Augment("center-crop", "the centre, 224/256 of the sides: the usual one for validation", "center"),
    Augment("flip", "mirror half of the images", flip=True),
    Augment("pad-crop-flip", "pad by 4, crop at random, flip: the usual one of CIFAR", "pad-crop", True, pad=4),
    Augment("pad-crop-alternating-flip", "pad by 4, crop at random, mirror each image in every second epoch",
            "pad-crop", True, pad=4, alternate=True),
    Augment("pad-2-crop-alternating-flip", "the same, padded by 2: airbench's",
            "pad-crop", True, pad=2, alternate=True),
    Augment("random-resized-crop-flip",
            "a random box of 8-100 % of the area, ratio 3/4-4/3, flip: the usual one of ImageNet",
            "resized-crop", True),
    Augment("random-resized-crop-flip-jitter",
            "the same, with brightness, contrast and saturation each times 0.6-1.4",
            "resized-crop", True, jitter=0.4),
    Augment("random-resized-crop-flip-color-jitter",
            "the same box and flip, then torchvision's ColorJitter(0.4, 0.4, 0.4, 0.1): each in a random order, "
            "hue too",
            "resized-crop", True, colour=(0.4, 0.4, 0.4, 0.1)),
    Augment("random-resized-crop-flip-randaugment",
            "the same box and flip, then two of RandAugment's operations of magnitude 9",
            "resized-crop", True, operations=2),
    Augment("pad-crop-flip-randaugment",
            "pad by 4, crop at random, flip, then two of RandAugment's operations of magnitude 9",
            "pad-crop", True, pad=4, operations=2),
    Augment("stretch", "the whole image, its sides stretched to the wanted size: the usual one of SSD", "stretch"),
    Augment("stretch-flip", "the same, and mirror half of the images", "stretch", True),
):  # fmt: skip
    AUGMENTS.add(_entry.name, _entry)
