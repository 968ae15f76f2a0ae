"""The assessment's starting point: a serial, naive training script. Make it fast, then make it work on two ranks.

    gluontune assess --new my_script.py     writes this file
    python my_script.py                     runs it on a small task to practise on
    gluontune assess my_script.py           grades it

Change whatever you like, but train on task.train only, and call task.save() on each rank.
On two ranks the script runs twice at the same time: task.rank is 0 or 1, task.ranks is 2, and task.train is another
half of the images on each. mx.kv.create("dist_sync") joins the two; give it to gt.optim.setup, or
to Gluon's own Trainer before the net has run for the first time.
"""

import time

import gluontune as gt

mx = gt.runtime.mxnet()
nn = mx.gluon.nn

EPOCHS = 6
BATCH_SIZE = 16
LEARNING_RATE = 0.01


class Images:
    """Reads, decodes and normalizes one image at a time."""

    def __init__(self, split, task):
        self.split, self.task = split, task

    def __len__(self):
        return len(self.split)

    def __getitem__(self, i):
        image = self.task.normalize(self.split.decode(i)[None])[0]
        return image, int(self.split.labels[i])


def build(classes):
    """A small convolutional net."""
    net = nn.HybridSequential()
    for channels in (24, 48, 96):
        net.add(nn.Conv2D(channels, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.MaxPool2D(2))
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes))
    return net


def accuracy(net, loader):
    """Share of right answers."""
    right = total = 0
    for images, labels in loader:
        right += (net(images).argmax(1).astype("int64") == labels.astype("int64")).sum().asscalar()
        total += len(labels)
    return right / total


def main():
    task = gt.course.task()
    train = mx.gluon.data.DataLoader(Images(task.train, task), BATCH_SIZE, shuffle=True, last_batch="discard")
    val = mx.gluon.data.DataLoader(Images(task.val, task), BATCH_SIZE)
    net = build(task.classes)
    net.initialize(mx.init.Xavier())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": LEARNING_RATE})
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    samples, start = 0, time.time()
    for epoch in range(EPOCHS):
        total = 0.0
        for images, labels in train:
            with mx.autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(len(images))
            total += loss.mean().asscalar()
            samples += len(images)
        seen = f"epoch {epoch + 1}: loss {total / len(train):.3f}, accuracy {accuracy(net, val):.3f}"
        print(f"{seen}, {samples / (time.time() - start):.0f} images/s", flush=True)
    task.save(net, samples)


if __name__ == "__main__":
    main()
