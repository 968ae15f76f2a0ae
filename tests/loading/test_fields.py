"""Boxes and masks move with the image: a coloured rectangle, its mask and its box stay together."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.loading import AUGMENTS, FieldsLoader, Motion, TorchLoader, pad_boxes
from gluontune.loading.augment import Draws
from gluontune.records import RecordWriter

MOVING = [a.name for a in AUGMENTS if not a.finishes]


def scene(seed: int) -> tuple[np.ndarray, np.ndarray, list[list[float]]]:
    """A dark image with one bright rectangle, its mask, and its box."""
    rng = np.random.default_rng(seed)
    height, width = int(rng.integers(60, 120)), int(rng.integers(60, 120))
    top, left = int(rng.integers(0, height // 2)), int(rng.integers(0, width // 2))
    bottom, right = top + height // 3, left + width // 3
    image, mask = np.full((height, width, 3), 20, np.uint8), np.zeros((height, width), np.uint8)
    image[top:bottom, left:right], mask[top:bottom, left:right] = 220, 7
    return image, mask, [[seed % 5, left / width, top / height, right / width, bottom / height]]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("fields") / "scenes.rec"
    with RecordWriter(path) as writer:
        for k in range(24):
            image, mask, boxes = scene(k)
            fields = {"image": cv2.imencode(".png", image)[1].tobytes(), "mask": mask, "number": k, "name": f"no. {k}"}
            writer.write_fields({**fields, "boxes": boxes if k % 6 else np.zeros((0, 5))})
    return path


def batches(path, epoch=0, **changes):
    options = {
        "fields": ["boxes", "mask", "number", "name"], "batch_size": 6, "image_shape": (48, 40, 3), "shuffle": True,
        "seed": 3, **changes,
    }  # fmt: skip
    with FieldsLoader(path, **options) as loader:
        return [(images.copy(), fields) for images, fields in loader.epoch(epoch)]


@pytest.mark.parametrize("augment", MOVING)
def test_the_box_and_the_mask_are_where_the_rectangle_is(path, augment):
    seen = 0
    for images, fields in batches(path, augment=augment, visible=0.0):
        assert fields["boxes"].shape[::2] == (6, 5) and fields["mask"].shape == (6, 48, 40)
        assert fields["number"].tolist() == [int(name[4:]) for name in fields["name"]]
        for k in range(6):
            bright = images[k, :, :, 1] > 120
            assert np.mean(bright != (fields["mask"][k] == 7)) < 0.03, "but for the blended edge"
            row = fields["boxes"][k, 0]
            if fields["number"][k] % 6 == 0:
                assert (fields["boxes"][k] == -1).all()
            elif row[0] >= 0:
                seen += 1
                assert row[0] == fields["number"][k] % 5
                left, top, right, bottom = (row[1:] * [40, 48, 40, 48]).tolist()
                inside = np.zeros_like(bright)
                inside[round(top) : round(bottom), round(left) : round(right)] = True
                if AUGMENTS[augment].pad == 0:  # reflected borders show parts of the rectangle twice
                    assert np.mean(inside != bright) < 0.06
                else:
                    assert (bright | ~inside).mean() > 0.94
            else:
                assert bright.mean() < 0.02, "a box that is gone has no pixels left"
    assert seen >= 8


def test_threads_change_nothing_and_half_an_epoch_goes_on(path):
    wanted = batches(path, augment="random-resized-crop-flip")
    for workers in (1, 3):
        made = batches(path, augment="random-resized-crop-flip", num_workers=workers)
        for (images, fields), (others, theirs) in zip(wanted, made):
            assert np.array_equal(images, others) and fields["name"] == theirs["name"]
            assert all(np.array_equal(fields[n], theirs[n]) for n in ("boxes", "mask", "number"))
    options = {"fields": ["boxes"], "batch_size": 6, "image_shape": (48, 40, 3), "shuffle": True, "seed": 3}
    with FieldsLoader(path, augment="random-resized-crop-flip", **options) as first:
        epoch = first.epoch(0)
        next(epoch)
        state = first.state()
    with FieldsLoader(path, augment="random-resized-crop-flip", num_workers=2, **options) as second:
        second.restore(state)
        images, fields = next(second.epoch(0))
    assert np.array_equal(images, wanted[1][0]) and np.array_equal(fields["boxes"], wanted[1][1]["boxes"])


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_flips_and_crops_of_boxes_by_arithmetic(data):
    share = st.integers(0, 16).map(lambda n: n / 16)
    corners = np.sort(data.draw(st.lists(st.tuples(share, share), min_size=2, max_size=2)), axis=0)
    row = np.array([[2, *corners.ravel()]], np.float32)
    top, left = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    crop, flip = ((top, left, data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))), data.draw(st.booleans()))
    made = Motion((16, 16), crop, (32, 32), flip=flip).boxes(row, visible=0.0)
    x = np.clip((row[0, [1, 3]] * 16 - left) / crop[3], 0, 1)
    y = np.clip((row[0, [2, 4]] * 16 - top) / crop[2], 0, 1)
    x = 1 - x[::-1] if flip else x
    if (x[1] - x[0]) * (y[1] - y[0]) > 1e-9:
        assert np.allclose(made, [[2, x[0], y[0], x[1], y[1]]], atol=1e-6)
    else:
        assert made.shape == (0, 5)


def test_a_box_of_which_little_is_left_is_left_out():
    rows = np.array([[1, 0.0, 0.0, 0.5, 1.0, 9]], np.float32)  # six columns are kept
    for start, kept in ((0.3, True), (0.4, False)):  # of ten columns: 2 of 5 are left, then 1
        motion = Motion((10, 10), (0, int(10 * start), 10, 5), (10, 5))
        assert len(motion.boxes(rows)) == kept
    assert motion.boxes(rows, visible=0.0)[0, 5] == 9


def test_the_motion_is_of_the_draws_that_moved_the_image():
    augment = AUGMENTS["pad-crop-flip"]
    draws = Draws(flip=np.array([True]), offsets=np.array([[0, 8]]))
    motion = Motion.of(augment, draws, 0, (32, 32), (32, 32, 3))
    assert (motion.shift, motion.pad, motion.flip, motion.box) == ((0, 8), 4, True, (0, 0, 32, 32))
    # Moved down and left by four pixels, then mirrored.
    assert motion.boxes(np.array([[0, 0.5, 0.5, 0.75, 0.75]], np.float32)).tolist() == [[0, 0.375, 0.625, 0.625, 0.875]]


def test_padding_is_gluoncvs():
    batchify = pad_boxes([np.ones((1, 6), np.float32), np.zeros((3, 5), np.float32)])
    assert batchify.shape == (2, 3, 6) and (batchify[0, 1:] == -1).all() and (batchify[1, :, 5] == -1).all()
    assert pad_boxes([np.zeros((0, 5))] * 2).tolist() == [[[-1.0] * 5]] * 2


def test_tensors_for_pytorch(path):
    pytest.importorskip("torch", reason="wants PyTorch (make setup TORCH=cpu)")
    with FieldsLoader(path, fields=["boxes", "name"], batch_size=6, image_shape=(48, 40, 3)) as loader:
        images, fields = next(iter(TorchLoader(loader)))
    assert tuple(images.shape) == (6, 3, 48, 40) and tuple(fields["boxes"].shape) == (6, 1, 5)
    assert fields["name"][0] == "no. 0"


def test_what_cannot_be_is_said(path, tmp_path):
    options = {"batch_size": 1, "image_shape": (8, 8, 3)}
    for changes, words in (
        ({"fields": "boxes"}, "give a list of names"),
        ({"fields": ["boxes"], "visible": 2}, "visible=2"),
        ({"fields": ["boxes"], "augment": "pad-crop-flip-randaugment"}, "'boxes' would stay"),
    ):
        with pytest.raises(UsageError, match=words):
            FieldsLoader(path, **{**options, **changes})
    with (
        FieldsLoader(path, fields=["depth"], num_workers=1, **options) as loader,
        pytest.raises(GluontuneError, match=r"scenes\.rec, record 0: no field 'depth'"),
    ):
        next(loader.epoch(0))
    with RecordWriter(tmp_path / "odd.rec") as writer:
        image = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
        writer.write_fields({"image": image, "mask": np.zeros((8, 9), np.uint8)})
    with (
        FieldsLoader(tmp_path / "odd.rec", fields=["mask"], **options) as loader,
        pytest.raises(GluontuneError, match="record 0: the mask is 8x9, the image 8x8"),
    ):
        next(loader.epoch(0))
