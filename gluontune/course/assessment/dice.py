"""Tests of which images a net was trained on, by images with random classes (*dice*): the idea of radioactive data
(Sablayrolles et al., "Radioactive data: tracing through training", ICML 2020, arXiv:2002.00937). They are exact,
whatever the net answers, because only the dice are random.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import cv2
import numpy as np

_SURE = (0, 2, 4)  # powers of an answer's rank as weights
_GRID = 200  # weight of the highest rank
_LEVELS = 20  # levels of a rounded likelihood


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
        down, across = axes = (1, 2)
        found = [np.flip(self.images, over) for over in ((), across, down, axes)]
        found += [np.roll(self.images, by, axis) for by in (-2, 2) for axis in axes]
        found += [np.roll(self.images, (by, by), axes) for by in (-3, 3)]
        height, width = self.images.shape[1:3]
        found += [np.rot90(self.images, k, axes) for k in (1, 3) if height == width]
        for angle, zoom in ((20, 1), (-20, 1), (0, 4 / 3)):
            turn = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), angle, zoom)
            turned = [cv2.warpAffine(p, turn, (width, height), borderMode=cv2.BORDER_REFLECT) for p in self.images]
            found.append(np.stack(turned))
        return np.concatenate(found)


def luck(predicted: np.ndarray, probe: Probe, classes: int) -> tuple[float, float]:
    """Accuracy on a part's own styles, and the probability of at least this accuracy without training on the part.

    Without it, the styles' classes are independent of the net. So the probability is that of the dice, for the given
    predictions (int (N,)), however correlated they are within a style.

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

    A net is surer of learned images. So the scores ((N, classes), at any scale; or of several views, one after the
    other; less those that are ``usual`` by :meth:`Dice.usual`) are tested in five ways: by the rank of the drawn class;
    by the number of right answers (sensitive to a little learning of all); by right answers weighted with the second
    and the fourth power of their margin's rank (sensitive to a few learned images); and by the likelihood of the drawn
    class (sensitive to slight preferences). Mixtures and others are tested apart, likelihoods also together, each for
    each view. The smallest probability is multiplied by the number of tests (Bonferroni); the likelihoods of all images
    in the original view have half of the error.

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
