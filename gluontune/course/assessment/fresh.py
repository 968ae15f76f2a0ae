"""A task that nobody has seen before: classes drawn anew for each assessment.

A class is a set of *styles* (smooth colour patterns, :mod:`gluontune.datasets.synthetic`), which come from a
secret of 128 random bits. So no parameters trained earlier know them, no file on the machine holds them, and the test
images are painted only after the learner's script, and all that it started, has ended.

Beside the styles that all parts share, each part of the data has some *styles of its own*, whose classes were
drawn with dice. Parameters that know the classes of a part's own styles were trained on that part; those
that know none were not. This is the idea of radioactive data (Sablayrolles et al., "Radioactive data:
tracing through training", ICML 2020, arXiv:2002.00937) with an exact test, see :func:`luck`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gluontune.codec import image
from gluontune.datasets.synthetic import Options, Painter
from gluontune.files import write_json
from gluontune.records import RecordWriter

__all__ = ["PARTS", "FreshTask", "Probe", "Scale", "luck"]

PARTS = ("train-a", "train-b", "val")  # those with styles of their own
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
_DRAWS = 100_000


@dataclass(frozen=True)
class Scale:
    """How much data: images of each part, pixels of an edge, classes, shared styles, own styles of a part.

    ``train`` is of both halves together; ``own_share`` of a half's images show its own styles.
    """

    train: int = 12_000
    val: int = 1_500
    test: int = 3_000
    edge: int = 32
    classes: int = 10
    styles: int = 40
    own_styles: int = 12
    own_share: float = 0.15
    val_own_share: float = 0.08


class Probe(NamedTuple):
    """Hidden images: uint8 (N, H, W, C), their int64 classes (N,), and the styles (N,)."""

    images: np.ndarray
    labels: np.ndarray
    styles: np.ndarray


class FreshTask:
    """One draw of the task.

    Args:
        scale: how much of it.
        secret: all that is random follows from it; None draws 128 bits.

    >>> task = FreshTask(Scale(train=40, val=20, test=20))
    >>> probe = task.test()
    >>> probe.images.shape, probe.images.dtype
    ((20, 32, 32, 3), dtype('uint8'))
    """

    def __init__(self, scale: Scale | None = None, secret: int | None = None):
        self.scale = scale = scale or Scale()
        secret = secrets.randbits(128) if secret is None else secret
        self._random = np.random.default_rng([secret, 1])
        own = scale.own_styles
        self._own = {
            part: np.arange(scale.styles + own * i, scale.styles + own * (i + 1))
            for i, part in enumerate(PARTS)
        }
        count = scale.styles + own * len(PARTS)
        #: the class of each style; of the own ones drawn independently, as :func:`luck` needs it
        self.classes_of = self._random.integers(0, scale.classes, count)
        self.classes_of[: scale.styles] = self._random.permutation(np.arange(scale.styles) % scale.classes)
        options = Options(
            train=0, test=0, size=(scale.edge, scale.edge), classes=count, format="png", seed=secret
        )
        self._painter = Painter(options)

    parts = PARTS

    def _styles(self, part: str, count: int, share: float) -> np.ndarray:
        own = np.resize(self._own[part], round(share * count))
        return np.concatenate([own, np.resize(np.arange(self.scale.styles), count - len(own))])

    def write(self, folder: Path, ranks: int) -> dict[str, Any]:
        """Write what a script gets: for each rank ``rank-K/`` with ``train.rec``, ``val.rec`` and ``task.json``.

        One rank gets both halves of the training images in one file; each of two gets one half. All get the same
        validation images.
        """
        scale = self.scale
        halves = [self._styles(part, scale.train // 2, scale.own_share) for part in PARTS[:2]]
        shares = [np.concatenate(halves)] if ranks == 1 else halves
        facts = {
            "classes": scale.classes,
            "image_shape": [scale.edge, scale.edge, 3],
            "mean": list(MEAN),
            "std": list(STD),
            "train_images": [len(share) for share in shares],
            "val_images": scale.val,
        }
        val = list(self._records(9, self._styles("val", scale.val, scale.val_own_share)))
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
        for data, style in zip(self._painter.images(stream, styles), styles.tolist()):
            yield data, int(self.classes_of[style])

    def test(self) -> Probe:
        """Test images, with styles in the shares that they have in training."""
        count = self.scale.test // 2
        share = self.scale.own_share
        styles = np.concatenate([self._styles(part, count, share) for part in PARTS[:2]])
        return self._paint(10, styles)

    def probe(self, part: str, of_each: int = 20) -> Probe:
        """New images of a part's own styles."""
        return self._paint(11 + PARTS.index(part), np.repeat(self._own[part], of_each))

    def _paint(self, stream: int, styles: np.ndarray) -> Probe:
        pixels = [image.decode(data, 3) for data in self._painter.images(stream, styles)]
        return Probe(np.stack([p for p in pixels if p is not None]), self.classes_of[styles], styles)


def luck(predicted: np.ndarray, probe: Probe, classes: int) -> tuple[float, float]:
    """Accuracy on a part's own styles, and the probability that parameters which never saw the part do as well.

    Whoever has not seen the part knows nothing of its styles' classes: to him, each is drawn with dice. So the
    classes are drawn anew 100,000 times, and it is counted how often the predictions, as they are, fit as well:
    an exact test whatever the net answers, and however alike its answers within a style are.

    Args:
        predicted: int (N,) classes. probe: the images of :meth:`FreshTask.probe`. classes: how many there are.

    >>> styles = np.repeat(np.arange(8), 20)
    >>> probe = Probe(np.zeros(160), styles % 4, styles)
    >>> luck(styles % 4, probe, 4)[1] < 0.001, luck(np.zeros(160, int), probe, 4)[1] > 0.5
    (True, True)
    """
    names = np.unique(probe.styles)
    shares = np.stack([np.bincount(predicted[probe.styles == s], minlength=classes) for s in names])
    shares = shares / shares.sum(1, keepdims=True)
    truth = np.array([probe.labels[probe.styles == s][0] for s in names])
    rows = np.arange(len(names))
    reached = shares[rows, truth].sum()
    drawn = np.random.default_rng(0).integers(0, classes, (_DRAWS, len(names)))
    as_good = (shares[rows, drawn].sum(1) >= reached - 1e-9).sum()
    return float(reached / len(names)), float((1 + as_good) / (1 + _DRAWS))
