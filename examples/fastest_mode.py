"""Find the fastest way to run a net on this machine: modes and rewrites, measured side by side.

python examples/fastest_mode.py [SECONDS]    how long the race may take; 10 without it
"""

import sys

import gluontune as gt

mx = gt.runtime.mxnet()  # imports MXNet with what it needs; a plain import fails with newer numpy
nn = mx.gluon.nn

net = nn.HybridSequential()
for channels in (16, 32):
    net.add(nn.Conv2D(channels, 3, strides=2, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
net.add(nn.GlobalAvgPool2D(), nn.Dense(10))
net.initialize(mx.init.Xavier())

batch = mx.nd.random.uniform(shape=(32, 3, 32, 32))
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
report = gt.compute.hybridize(net, batch, budget_s=seconds, refresh=True)
print(report)  # the milliseconds of each way
print(f"chosen: {report.chosen.name}; the net is in this mode now, with the same weights and outputs")
