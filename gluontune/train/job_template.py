# A job file of gluontune: it says what differs from the default. Keep what you need, delete the rest.
#
#   gluontune doctor --job job.py            trains and validates one batch, and says what is slow
#   gluontune ladder --job job.py --quick    makes it fast, measured on this machine
from mxnet.gluon import loss as losses
from mxnet.gluon import nn


def net():
    """The network, not yet initialized. It may also be a dict of several."""
    net = nn.HybridSequential()
    for channels in (16, 32):
        net.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D())
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
    return net


def data():
    """The name of a data set, or (train, val): Gluon datasets whose samples are (input, …, label)."""
    return "sample"  # or "folder:/data/birds", "records:/data/birds"; `gluontune data list` shows more


def loss():
    """Called as loss(output, label); it gives one value for each sample."""
    return losses.SoftmaxCrossEntropyLoss()


# def metric():
#     """What validation counts; without it: accuracy, or the loss where the loss is no classification's."""
#     return mx.metric.MAE()  # and metric_mode = "min" where less is better and the name does not say so


# def step(net, *batch):
#     """Replaces net(x) and loss: returns the loss of each sample, or (loss, output)."""
#     x, y = batch
#     output = net(x)
#     return losses.SoftmaxCrossEntropyLoss()(output, y), output
