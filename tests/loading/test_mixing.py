"""Mixup, CutMix, random erasing and soft labels against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from gluontune.core.errors import UsageError
from gluontune.loading import cutmix, mixup, random_erasing, soft_labels

IMAGES = np.random.default_rng(0).integers(1, 256, (6, 20, 30, 3), np.uint8)
LABELS = np.array([0, 1, 2, 3, 4, 4])


def rng(*key):
    return np.random.default_rng(list(key) or [0])


def test_soft_labels_are_pytorchs_label_smoothing():
    targets = soft_labels(LABELS, 5, 0.1)
    assert targets.dtype == np.float32 and np.allclose(targets, np.eye(5)[LABELS] * 0.9 + 0.1 / 5)


def test_mixup_blends_images_and_labels_by_the_same_share():
    mixed, targets = mixup(IMAGES, LABELS, rng(1), num_classes=5, alpha=1.0)
    share = targets[0, 0]  # the image before the first one is of class 4
    assert 0.01 < share < 0.99 and np.isclose(targets[0, 4], 1 - share) and np.isclose(targets[5, 4], 1)
    wanted = IMAGES * np.float64(share) + np.roll(IMAGES, 1, 0) * (1 - np.float64(share))
    assert mixed.dtype == np.uint8 and np.abs(mixed - wanted).max() <= 0.51


def test_the_shares_of_mixup_are_beta():
    shares = np.array(
        [mixup(IMAGES[:, :1, :1], LABELS, rng(k), num_classes=5, alpha=0.2)[1][0, 0] for k in range(3000)]
    )
    assert abs(shares.mean() - 0.5) < 0.03
    assert abs(shares.var() - 1 / (4 * (2 * 0.2 + 1))) < 0.01


def test_cutmix_counts_the_pixels_that_it_replaced():
    kept = []
    for k in range(200):
        mixed, targets = cutmix(IMAGES, LABELS, rng(k), num_classes=5)
        other = np.roll(IMAGES, 1, 0)
        assert ((mixed == IMAGES) | (mixed == other)).all()
        changed = (mixed[0] != IMAGES[0]).any(-1)
        rows, columns = changed.any(1).sum(), changed.any(0).sum()
        kept.append(float(targets[0, 0]))
        assert np.isclose(1 - kept[-1], rows * columns / 600, atol=0.02)
    assert min(kept) < 0.3 and max(kept) > 0.9


def test_random_erasing_has_torchvisions_areas_ratios_and_probability():
    images = np.full((4000, 32, 32, 1), 7, np.uint8)
    gone = (random_erasing(images, rng(2), probability=0.25, value=9) == 9)[..., 0]
    boxes = gone[gone.any((1, 2))]
    assert abs(len(boxes) / 4000 - 0.25) < 0.03
    heights, widths = boxes.any(2).sum(1), boxes.any(1).sum(1)
    assert (boxes.sum((1, 2)) == heights * widths).all()
    areas, ratios = heights * widths / 1024, heights / widths
    assert areas.min() >= 0.015 and areas.max() <= 0.35 and abs(areas.mean() - 0.175) < 0.02
    assert ratios.min() > 0.2 and ratios.max() < 4.5 and abs(np.log(ratios).mean()) < 0.1


def test_the_same_key_gives_the_same_pixels_and_the_input_is_left_alone():
    before = IMAGES.copy()
    for change in (
        lambda key: mixup(IMAGES, LABELS, rng(key), num_classes=5, alpha=1.0)[0],
        lambda key: cutmix(IMAGES, LABELS, rng(key), num_classes=5)[0],
        lambda key: random_erasing(IMAGES, rng(key), probability=1.0),
    ):
        assert np.array_equal(change(3), change(3)) and not np.array_equal(change(3), change(4))
    assert np.array_equal(IMAGES, before)


def test_values_out_of_range():
    for call in (
        lambda: soft_labels(LABELS, 4),
        lambda: soft_labels(LABELS, 5, 1.0),
        lambda: mixup(IMAGES, LABELS, rng(), num_classes=5, alpha=0),
        lambda: random_erasing(IMAGES, rng(), probability=2),
    ):
        with pytest.raises(UsageError):
            call()
