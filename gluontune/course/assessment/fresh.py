"""The assessment's data: classes drawn anew for each assessment, and tests of which images a net was trained on.

A class is a set of *styles* (smooth colour patterns, :mod:`gluontune.datasets.synthetic`), drawn from a secret of 128
random bits. So neither earlier parameters nor any file contain them, and the test images are painted only after the
learner's script and its processes have ended.

Random classes (*dice*) reveal the images on which a net was trained. Each half of the training images has some *own
styles* with random classes: a net that knows them was trained on that half (:func:`luck`). Two validation images in
three have random classes, too: *mixtures* of four styles with one of their four classes, and images of ordinary styles
with one of four other classes. A net that knows these classes has learned the images themselves (:func:`remembered`).
This is the idea of radioactive data (Sablayrolles et al., "Radioactive data: tracing through training", ICML 2020,
arXiv:2002.00937). Both tests are exact, whatever the net answers, because only the dice are random.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from gluontune.codec import image
from gluontune.core.files import write_json
from gluontune.datasets.synthetic import Options, Painter
from gluontune.records import RecordWriter

PARTS = ("train-a", "train-b")  # the parts with own styles
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
_CANDIDATES = 4  # classes for the dice; fewer if the task has no more than four
_MISLABELLED = 1 / 2  # share of mislabelled images among the validation images without mixtures
_STRENGTH = 0.5  # of a mixture: a net that has not learned a weak one is in doubt
_SURE = (0, 2, 4)  # powers of an answer's rank as weights
_GRID = 200  # weight of the highest rank
_LEVELS = 20  # levels of a rounded likelihood


@dataclass(frozen=True)
class Scale:
    """Amounts: images of each part, pixels of an edge, classes, shared styles, own styles of a part.

    ``train`` counts both halves; ``own_share`` of a half's images show its own styles; ``val_own_share`` of the
    validation images are mixtures.
    """

    train: int = 12_000
    val: int = 2_000
    test: int = 3_000
    edge: int = 32
    classes: int = 10
    styles: int = 40
    own_styles: int = 12
    own_share: float = 0.15
    val_own_share: float = 1 / 3


class Probe(NamedTuple):
    """Hidden images: uint8 (N, H, W, C), their int64 classes (N,), and the styles (N,)."""

    images: np.ndarray
    labels: np.ndarray
    styles: np.ndarray


class Dice(NamedTuple):
    """The validation images with random classes: uint8 (N, H, W, C); the candidate classes, int64 (N, M); the place of
    the drawn one (N,); whether the image is a mixture (N,); the style (N,)."""

    images: np.ndarray
    classes: np.ndarray
    drawn: np.ndarray
    mixed: np.ndarray
    styles: np.ndarray

    def usual(self, scores: np.ndarray, probe: Probe) -> np.ndarray:
        """Mean scores of a probe's images with each image's style, (N, classes); 0 for mixtures."""
        found = np.zeros((len(self.styles), scores.shape[1]))
        for style in np.intersect1d(self.styles[~self.mixed], probe.styles):
            found[~self.mixed & (self.styles == style)] = scores[probe.styles == style].mean(0)
        return found

    def views(self) -> np.ndarray:
        """The images, and their usual augmentations (flips, shifts, rotations, zoom): (views · N, H, W, C)."""
        across, down = (2, 1)
        turned = [np.flip(self.images, axes) for axes in ((), across, down, (down, across))]
        moved = [np.roll(self.images, by, axis) for by in (-2, 2) for axis in (down, across)]
        moved += [np.roll(self.images, (by, by), (down, across)) for by in (-3, 3)]
        if self.images.shape[1] == self.images.shape[2]:
            turned += [np.rot90(self.images, k, (down, across)) for k in (1, 3)]
        size = self.images.shape[2], self.images.shape[1]
        for angle, zoom in ((20, 1), (-20, 1), (0, 4 / 3)):
            turn = cv2.getRotationMatrix2D(((size[0] - 1) / 2, (size[1] - 1) / 2), angle, zoom)
            moved.append(np.stack([cv2.warpAffine(p, turn, size, borderMode=cv2.BORDER_REFLECT) for p in self.images]))
        return np.concatenate([*turned, *moved])


class FreshTask:
    """One draw of the task.

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
        own = scale.own_styles
        self._own = {
            part: np.arange(scale.styles + own * i, scale.styles + own * (i + 1)) for i, part in enumerate(PARTS)
        }
        count = scale.styles + own * len(PARTS)
        #: the class of each style, drawn independently for own styles, as :func:`luck` requires
        self.classes_of = self._random.integers(0, scale.classes, count)
        self.classes_of[: scale.styles] = self._random.permutation(np.arange(scale.styles) % scale.classes)
        options = Options(train=0, test=0, size=(scale.edge, scale.edge), classes=count, format="png", seed=secret)
        self._painter = Painter(options)
        self._dice: list[tuple[bytes, np.ndarray, int, bool, int]] = []

    parts = PARTS

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
        for data, style in zip(self._painter.images(stream, styles), styles.tolist()):
            yield data, int(self.classes_of[style])

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


def luck(predicted: np.ndarray, probe: Probe, classes: int) -> tuple[float, float]:
    """Accuracy on a part's own styles, and the probability of at least this accuracy without training on the part.

    Without training on the part, its styles' classes are independent of the net. So the probability is that of the
    dice, for the given predictions, however correlated they are within a style.

    Args:
        predicted: int (N,) classes. probe: of :meth:`FreshTask.probe`. classes: their number.

    >>> styles = np.repeat(np.arange(8), 20)
    >>> probe = Probe(np.zeros(160), styles % 4, styles)
    >>> luck(styles % 4, probe, 4), luck(np.zeros(160, int), probe, 4)[1] > 0.5
    ((1.0, 1.52587890625e-05), True)
    """
    names = np.unique(probe.styles)
    votes = np.stack([np.bincount(predicted[probe.styles == s], minlength=classes) for s in names])
    truth = np.array([probe.labels[probe.styles == s][0] for s in names])
    reached = int(votes[np.arange(len(names)), truth].sum())
    return float(reached / len(predicted)), float(_by_dice(votes)[reached])


def remembered(scores: np.ndarray, dice: Dice, usual: np.ndarray | None = None) -> tuple[float, float]:
    """The share of images whose drawn class the net prefers among the candidates, and the probability of such scores
    for a net that has not learned them.

    A net is surer of learned images. So the scores are tested in five ways: by the rank of the drawn class; by the
    number of right answers (sensitive to a little learning of all); by right answers weighted with the second and the
    fourth power of their margin's rank (sensitive to a few learned images); and by the likelihood of the drawn class
    (sensitive to slight preferences). Mixtures and others are tested apart, likelihoods also together, each for each
    view. The smallest probability is multiplied by the number of tests (Bonferroni); the likelihoods of all images in
    the original view have half of the error.

    Args:
        scores: of the net, (N, classes), at any scale; or of several views of the images, one after the other.
        usual: scores of other images of the same styles, :meth:`Dice.usual`, which are subtracted.

    >>> rest = np.arange(40) % 4, np.ones(40, bool), np.zeros(40, int)
    >>> seen = Dice(np.zeros(40), np.tile(np.arange(4), (40, 1)), *rest)
    >>> remembered(np.eye(4)[np.arange(40) % 4], seen)[1] < 1e-20, remembered(np.zeros((40, 4)), seen)[1] > 0.1
    (True, True)
    """
    shares, chances = [], []
    for view in np.asarray(scores, float).reshape(-1, len(dice.drawn), scores.shape[-1]):
        own = np.take_along_axis(view, dice.classes, 1)
        shares.append((own.argmax(1) == dice.drawn).mean())
        if usual is not None:
            own = own - np.take_along_axis(_strength(view, usual, dice.classes) * usual, dice.classes, 1)
        second, first = np.sort(own, 1)[:, -2:].T
        right = own.argmax(1) == dice.drawn
        likely = np.zeros(own.shape, int)
        for kind in (dice.mixed, ~dice.mixed):
            ranks = np.argsort(np.argsort((first - second)[kind], kind="stable"))
            for power in _SURE:
                worth, by_dice = _ranked(len(ranks), own.shape[1], power)
                chances.append(by_dice[worth[ranks[right[kind]]].sum()])
            places = (own[kind] < np.take_along_axis(own, dice.drawn[:, None], 1)[kind]).sum(1)
            chances.append(_placed(*own[kind].shape)[places.sum()])
            likely[kind] = _likely(own[kind])
        for kind in (dice.mixed | True, dice.mixed, ~dice.mixed):
            reached = np.take_along_axis(likely, dice.drawn[:, None], 1)[kind].sum()
            chances.append(_by_dice(likely[kind])[reached])
    first_view = chances.pop(len(_SURE) * 2 + 2)
    return float(max(shares)), min(1.0, 2 * float(min(first_view, len(chances) * min(chances))))


def _strength(view: np.ndarray, usual: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The factor of the usual scores in each answer, (N, 1), fitted to the other classes; 1 if unknown.

    >>> _strength(np.array([[0.0, 9.0, 2.0, 4.0]]), np.array([[0.0, 0.0, 1.0, 2.0]]), np.array([[0, 1]]))
    array([[2.]])
    """
    rest = np.ones(view.shape, bool)
    np.put_along_axis(rest, classes, False, 1)
    count = np.maximum(rest.sum(1, keepdims=True), 1)
    apart, expected = (np.where(rest, a - np.where(rest, a, 0).sum(1, keepdims=True) / count, 0) for a in (view, usual))
    size = (expected**2).sum(1, keepdims=True)
    share = (apart * expected).sum(1, keepdims=True) / np.where(size > 0, size, 1)
    return np.where(size > 0, np.clip(share, 0, 2), 1.0)


def _likely(own: np.ndarray) -> np.ndarray:
    """The likelihood of each of an image's candidates, 0 to ``_LEVELS``, independent of the scale of the scores.

    The median image sets the scale, so that a few huge scores do not hide the others.

    >>> _likely(np.array([[0.0, 0.0], [0.9, 0.0], [9e9, 0.0]])).tolist()
    [[10, 10], [16, 4], [20, 0]]
    """
    apart = own - own.mean(1, keepdims=True)
    if not len(apart):
        return apart.astype(int)
    apart = np.exp(np.clip(apart / max(1.5 * float(np.median(apart.std(1))), np.finfo(float).tiny), -30, 30))
    return np.rint(_LEVELS * apart / apart.sum(1, keepdims=True)).astype(int)


@functools.cache
def _placed(count: int, candidates: int) -> np.ndarray:
    """Probabilities of sums of the drawn classes' ranks: of 0 or more, 1 or more, …."""
    return _by_dice(np.tile(np.arange(candidates), (count, 1)))


@functools.cache
def _ranked(count: int, candidates: int, power: int) -> tuple[np.ndarray, np.ndarray]:
    """The weight of a right answer of each rank, and the probabilities of sums of weights by dice."""
    worth = np.rint(_GRID * (np.arange(1, count + 1) / count) ** power).astype(int)
    values = np.zeros((count, candidates), int)
    values[:, 0] = worth
    return worth, _by_dice(values)


def _by_dice(values: np.ndarray) -> np.ndarray:
    """Probabilities of sums of 0 or more, 1 or more, … for one equally likely value of each row.

    >>> _by_dice(np.array([[0, 1], [0, 1]]))
    array([1.  , 0.75, 0.25])
    """
    chances = np.ones(1)
    for row in values:
        before, chances = chances, np.zeros(len(chances) + int(row.max()))
        for value, times in zip(*np.unique(row, return_counts=True)):
            chances[value : value + len(before)] += before * (times / len(row))
    return np.minimum(1.0, chances[::-1].cumsum()[::-1])
