"""The assessment's data: a class is a set of *styles* (colour patterns), drawn from a secret of 128 random bits.

So neither earlier parameters nor any file contain them; test images are painted after the learner's script has ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.codec import image
from gluontune.core.files import write_json
from gluontune.course.assessment.dice import Dice, Probe
from gluontune.datasets.synthetic import Options, Painter
from gluontune.records import RecordWriter

PARTS = ("train-a", "train-b")  # the parts with own styles
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
_CANDIDATES = 4  # classes for the dice; fewer if the task has no more than four
_MISLABELLED = 1 / 2  # share of mislabelled images among the validation images without mixtures
_STRENGTH = 0.5  # of a mixture: a net that has not learned a weak one is in doubt


@dataclass(frozen=True)
class Scale:
    """Amounts: images of each part, pixels of an edge, classes, shared styles, own styles of a part."""

    train: int = 12_000  # of both halves
    val: int = 2_000
    test: int = 3_000
    edge: int = 32
    classes: int = 10
    styles: int = 40
    own_styles: int = 12
    own_share: float = 0.15  # of a half's images, which show its own styles
    val_own_share: float = 1 / 3  # of the validation images, which are mixtures


class FreshTask:
    """One draw of the task.

    Random classes reveal the images on which a net was trained (:mod:`gluontune.course.assessment.dice`): those of the
    *own styles* of each half of the training images, and of two validation images in three, which are *mixtures* of
    four styles with one of their four classes, or of ordinary styles with one of four other classes.

    Args:
        scale: amounts of data. secret: seed of all random choices; None draws 128 bits.

    >>> task = FreshTask(Scale(train=40, val=20, test=20))
    >>> probe = task.test()
    >>> probe.images.shape, probe.images.dtype
    ((20, 32, 32, 3), dtype('uint8'))
    """

    def __init__(self, scale: Scale | None = None, secret: int | None = None):
        self.scale = scale = scale or Scale()
        secret = secrets.randbits(128) if secret is None else secret
        self._random = np.random.default_rng([secret, 1])
        count = scale.styles + scale.own_styles * len(PARTS)
        self._own = dict(zip(PARTS, np.arange(scale.styles, count).reshape(len(PARTS), -1)))
        #: the class of each style; those of own styles are drawn independently, as ``dice.luck`` requires
        self.classes_of = self._random.integers(0, scale.classes, count)
        self.classes_of[: scale.styles] = self._random.permutation(np.arange(scale.styles) % scale.classes)
        options = Options(train=0, test=0, size=(scale.edge, scale.edge), classes=count, format="png", seed=secret)
        self._painter = Painter(options)
        self._dice: list[tuple[bytes, np.ndarray, int, bool, int]] = []

    def _styles(self, part: str, count: int, share: float) -> np.ndarray:
        own = np.resize(self._own[part], round(share * count))
        return np.concatenate([own, np.resize(np.arange(self.scale.styles), count - len(own))])

    def write(self, folder: Path, ranks: int) -> dict[str, Any]:
        """Write the data of a script: for each rank ``rank-K/`` with ``train.rec``, ``val.rec`` and ``task.json``.

        A single rank gets both halves of the training images, each of two ranks one half; all get the same
        validation images.
        """
        scale = self.scale
        halves = [self._styles(part, scale.train // 2, scale.own_share) for part in PARTS]
        shares = [np.concatenate(halves)] if ranks == 1 else halves
        facts = {
            "classes": scale.classes, "image_shape": [scale.edge, scale.edge, 3], "mean": list(MEAN), "std": list(STD),
            "train_images": [len(share) for share in shares], "val_images": scale.val,
        }  # fmt: skip
        val = self._validation()
        for rank, share in enumerate(shares):
            place = folder / f"rank-{rank}"
            for name, records in (("train", self._records(rank, share)), ("val", val)):
                with RecordWriter(place / f"{name}.rec") as writer:
                    for data, label in records:
                        writer.write(data, label)
            write_json(place / "task.json", facts)
        return facts

    def _records(self, stream: int, styles: np.ndarray) -> Iterator[tuple[bytes, int]]:
        """Encoded images of these styles in random order, with their classes."""
        styles = self._random.permutation(styles)
        return zip(self._painter.images(stream, styles), self.classes_of[styles].tolist())

    def _validation(self) -> list[tuple[bytes, int]]:
        """Encoded validation images with their classes; those with random classes are kept for :meth:`dice`."""
        scale, random, shared = self.scale, self._random, self.classes_of[: self.scale.styles]
        mixtures, first = round(scale.val_own_share * scale.val), len(self._painter.patterns)
        plain = np.resize(np.arange(scale.styles), scale.val - mixtures)
        wrong = round(_MISLABELLED * len(plain))
        known = np.unique(shared)
        count = min(_CANDIDATES, len(known) - 1)
        candidates = [random.permutation(known)[:count] for _ in range(mixtures)]
        for classes in candidates:
            parts = [self._painter.patterns[random.choice(np.flatnonzero(shared == k))] for k in classes]
            self._painter.patterns.append((_STRENGTH * sum(parts) / len(parts) ** 0.5).astype(np.float32))
        plain = random.permutation(plain)
        candidates += [random.permutation(known[known != shared[style]])[:count] for style in plain[:wrong]]
        drawn = random.integers(0, count, len(candidates))
        styles = np.concatenate([np.arange(first, first + mixtures), plain])
        labels = np.array([row[k] for row, k in zip(candidates, drawn)] + shared[plain[wrong:]].tolist())
        order = random.permutation(scale.val)
        images = list(self._painter.images(9, styles[order]))
        places = np.argsort(order)[: len(candidates)]
        drawings = zip(places, candidates, drawn.tolist(), styles.tolist())
        self._dice = [(images[p], row, n, k < mixtures, style) for k, (p, row, n, style) in enumerate(drawings)]
        return list(zip(images, labels[order].tolist()))

    def dice(self) -> Dice:
        """The validation images of :meth:`write` with random classes."""
        images, classes, *rest = zip(*self._dice)
        return Dice(_decoded(images), np.stack(classes), *map(np.array, rest))

    def test(self) -> Probe:
        """Test images, with styles in the same shares as in training."""
        count, share = self.scale.test // 2, self.scale.own_share
        return self._paint(10, np.concatenate([self._styles(part, count, share) for part in PARTS]))

    def probe(self, part: str, of_each: int = 20) -> Probe:
        """New images of a part's own styles."""
        return self._paint(11 + PARTS.index(part), np.repeat(self._own[part], of_each))

    def _paint(self, stream: int, styles: np.ndarray) -> Probe:
        return Probe(_decoded(self._painter.images(stream, styles)), self.classes_of[styles], styles)


def _decoded(images: Iterable[bytes]) -> np.ndarray:
    pixels = [image.decode(data, 3) for data in images]
    return np.stack([p for p in pixels if p is not None])
