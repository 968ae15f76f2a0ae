"""A plain Gluon detector, without gluontune: a small SSD (Liu et al., 2016) finds one square or disc in noise.

python examples/detection.py [--epochs 5]
"""

import argparse

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

SIZE, BATCH, CLASSES = 64, 16, 2


def drawn(count, seed):
    """Images float32 (N, 3, 64, 64) and objects (N, 1, 5): class, left, top, right, bottom, from 0 to 1."""
    draw = np.random.RandomState(seed)
    images = draw.rand(count, 3, SIZE, SIZE).astype("float32") * 0.5
    objects = np.zeros((count, 1, 5), "float32")
    rows, columns = np.mgrid[:SIZE, :SIZE]
    for image, (thing,) in zip(images, objects):
        side, kind = draw.randint(14, 32), draw.randint(CLASSES)
        left, top = draw.randint(0, SIZE - side, 2)
        across, down = (columns - left + 0.5) / side, (rows - top + 0.5) / side
        inside = (abs(across - 0.5) < 0.5) & (abs(down - 0.5) < 0.5)
        if kind == 1:
            inside = (across - 0.5) ** 2 + (down - 0.5) ** 2 < 0.25
        image[:, inside] += 0.3 + 0.2 * draw.rand(3, 1)
        thing[:] = kind, left / SIZE, top / SIZE, (left + side) / SIZE, (top + side) / SIZE
    return gluon.data.ArrayDataset(mx.nd.array(images), mx.nd.array(objects))


class Detector(nn.HybridBlock):
    """Anchors, class scores and offsets of boxes, from feature maps of 8 x 8 and 4 x 4."""

    sizes, ratios = ((0.3, 0.4), (0.45, 0.55)), (1, 2, 0.5)

    def __init__(self):
        super().__init__()
        anchors = len(self.sizes[0]) + len(self.ratios) - 1
        with self.name_scope():
            self.maps, self.scores, self.offsets = nn.HybridSequential(), nn.HybridSequential(), nn.HybridSequential()
            for channels in ((16, 32, 64), (64,)):
                part = nn.HybridSequential()
                for width in channels:
                    part.add(nn.Conv2D(width, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(2))
                self.maps.add(part)
                self.scores.add(nn.Conv2D(anchors * (CLASSES + 1), 3, padding=1))
                self.offsets.add(nn.Conv2D(anchors * 4, 3, padding=1))

    def hybrid_forward(self, F, x):
        anchors, scores, offsets = [], [], []
        for number in range(len(self.sizes)):
            x = self.maps[number](x)
            anchors.append(F.contrib.MultiBoxPrior(x, sizes=self.sizes[number], ratios=self.ratios))
            scores.append(F.flatten(self.scores[number](x).transpose((0, 2, 3, 1))))
            offsets.append(F.flatten(self.offsets[number](x).transpose((0, 2, 3, 1))))
        return (
            F.concat(*anchors, dim=1), F.concat(*scores, dim=1).reshape((0, -1, CLASSES + 1)), F.concat(*offsets, dim=1)
        )  # fmt: skip


def overlap(one, other):
    """Intersection over union of boxes (N, 4)."""
    low, high = np.maximum(one[:, :2], other[:, :2]), np.minimum(one[:, 2:], other[:, 2:])
    both = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = [np.prod(box[:, 2:] - box[:, :2], axis=1) for box in (one, other)]
    return both / (areas[0] + areas[1] - both)


def found(net, data):
    """The share of images whose surest box has the right class and overlaps the object by half."""
    right = 0
    for images, objects in gluon.data.DataLoader(data, BATCH):
        anchors, scores, offsets = net(images)
        boxes = mx.nd.contrib.MultiBoxDetection(scores.softmax().transpose((0, 2, 1)), offsets, anchors)
        best, true = boxes[:, 0].asnumpy(), objects[:, 0].asnumpy()
        right += ((best[:, 0] == true[:, 0]) & (overlap(best[:, 2:], true[:, 1:]) >= 0.5)).sum()
    return right / len(data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    mx.random.seed(0)
    np.random.seed(0)
    train, test = drawn(640, seed=1), drawn(160, seed=2)
    net = Detector()
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 2e-3})
    class_loss, box_loss = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.HuberLoss()
    for epoch in range(options.epochs):
        total = 0.0
        for images, objects in gluon.data.DataLoader(train, BATCH, shuffle=True):
            with autograd.record():
                anchors, scores, offsets = net(images)
                with autograd.pause():
                    targets, mask, classes = mx.nd.contrib.MultiBoxTarget(
                        anchors, objects, scores.transpose((0, 2, 1)), negative_mining_ratio=3
                    )
                counted = (classes >= 0).expand_dims(2)
                loss = class_loss(scores, classes * (classes >= 0), counted) + box_loss(offsets * mask, targets * mask)
            loss.backward()
            trainer.step(len(images))
            total += loss.mean().asscalar()
        print(f"epoch {epoch + 1}: loss {total * BATCH / len(train):.4f}, found {found(net, test):.3f}")


if __name__ == "__main__":
    main()
