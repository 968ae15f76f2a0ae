"""A plain Gluon loop that trains as a recipe says: its loader, rewrites, mode, optimizer and schedule.

python examples/own_loop.py [best.yaml]    the file that `gluontune ladder` leaves; without it a recipe is made here
"""

import sys

import gluontune as gt

mx = gt.runtime.mxnet()
recipe = sys.argv[1] if len(sys.argv) > 1 else gt.Recipe(
    loader="resident", batch_size_per_device=100, hybridize="static", rewrites=["pool-to-mean"],
    optimizer="nag", learning_rate=0.1, schedule="onecycle",
)  # fmt: skip

net = gt.train.build_net("small_cnn", 10)  # or a Gluon block of your own
loader, net, trainer, val = gt.tuned(recipe, net, "sample", epochs=1)
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()

for images, labels in loader:
    with mx.autograd.record():
        loss = loss_of(net(images), labels)
    loss.backward()
    trainer.step(len(labels))

right = mx.metric.Accuracy()
for images, labels in val:
    right.update(labels, net(images))
print(f"validation accuracy after one epoch: {right.get()[1]:.3f}")
