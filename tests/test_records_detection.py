"""Boxes in labels: written and read as gluon-cv does."""

from __future__ import annotations

import sys

import cv2
import numpy as np
import pytest

from gluontune.errors import GluontuneError, UsageError
from gluontune.loading import RecordDataset
from gluontune.records import RecordWriter, boxes_of, boxes_to_label

BOXES = [[[3, 0.25, 0.5, 0.75, 1.0]], [[0, 0.0, 0.0, 1.0, 1.0], [7, 0.125, 0.25, 0.5, 0.75]]]


@pytest.fixture
def packed(tmp_path):
    image = cv2.imencode(".png", np.zeros((40, 80, 3), np.uint8))[1].tobytes()
    with RecordWriter(tmp_path / "d.rec") as writer:
        for boxes in BOXES:
            writer.write(image, label=boxes_to_label(boxes, header=(80, 40)))
    return tmp_path / "d.rec"


def test_labels_of_different_lengths_are_read_back(packed):
    dataset = RecordDataset(packed, kind="numpy", boxes=True)
    for i, wanted in enumerate(BOXES):
        pixels, boxes = dataset[i]
        assert pixels.shape == (40, 80, 3) and boxes.tolist() == wanted


@pytest.mark.mxnet
def test_gluoncv_reads_the_same_boxes(packed, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # gluoncv refuses to be imported beside a torch of today
    from gluontune.runtime import mxnet

    mxnet()
    from importlib import import_module

    theirs = import_module("gluoncv.data").RecordFileDetection(str(packed), coord_normalized=True)
    for i, wanted in enumerate(BOXES):
        _, label = theirs[i]
        rows = np.float64(wanted)
        corners = rows[:, 1:] * [80, 40, 80, 40]
        assert np.allclose(label[:, :4], corners) and np.allclose(label[:, 4], rows[:, 0])


@pytest.mark.parametrize(
    "label", [5.0, [2, 4, 0, 0, 0, 0], [2, 5, 1, 0, 0, 1], [2, 5], [float("nan"), 5, 0, 0, 0, 1, 1]]
)
def test_other_labels_are_no_boxes(label):
    with pytest.raises(GluontuneError, match="no boxes"):
        boxes_of(label)


@pytest.mark.parametrize("boxes", [[], [[1, 0, 0, 1]], [[1, 0.5, 0, 0.4, 1]], [[1, 0, 0, 1, 1.5]], [[-1, 0, 0, 1, 1]]])
def test_boxes_that_cannot_be_are_refused(boxes):
    with pytest.raises(UsageError, match="box"):
        boxes_to_label(boxes)
