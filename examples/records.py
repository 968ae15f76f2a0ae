"""Pack a folder of images into one record file, check it, and feed a loop from it. Needs no mxnet.

python examples/records.py [PHOTOS]    PHOTOS has a folder for each class; without it some images are drawn.
"""

import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np

import gluontune as gt


def draw(folder: Path, classes: int = 3, each: int = 40) -> Path:
    """Images whose class is their color."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            image = rng.integers(0, 90, (72, 96, 3), dtype=np.uint8)
            image[..., label] += 120
            cv2.imwrite(str(folder / f"class{label}" / f"{number}.jpg"), image)
    return folder


work = Path(tempfile.mkdtemp())
photos = Path(sys.argv[1]) if len(sys.argv) > 1 else draw(work / "photos")

packed = gt.records.pack(photos, work / "train.rec", resize=64, shuffle=True)
print(f"packed {packed.packed} images, left out {len(packed.skipped)}")
checked = gt.records.verify(work / "train.rec")
print(f"{checked.whole} of {checked.records} records are whole")

train = gt.loading.from_records(work / "train.rec")
loader = gt.loading.build(
    "threaded", train, batch_size=16, image_shape=(64, 64, 3), augment="flip", shuffle=True, num_workers=2
)
with loader:
    for images, labels in loader.epoch(0):  # uint8, (batch, height, width, channels)
        print(images.shape, images.dtype, labels[:8].astype(int).tolist())
