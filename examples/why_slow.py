"""Where does the time of a training step go, and what would help? A monitor and phases around a plain loop.

python examples/why_slow.py [STEPS]    60 without it
"""

import sys

import gluontune as gt

mx = gt.runtime.mxnet()
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60

net = gt.train.build_net("small_cnn", 10)
net.initialize(mx.init.Xavier())
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
sample = gt.datasets.open("sample")
loader = gt.loading.build("gluon", sample.train, batch_size=32, image_shape=(28, 28, 1), shuffle=True)  # no workers

phases = gt.monitor.StepPhases(sync=mx.nd.waitall)
with gt.monitor.Monitor(period_s=0.05) as monitor:
    batches = iter(loader)
    for _ in range(steps):
        with phases.step() as phase:
            with phase("data"):
                images, labels = next(batches)
            with phase("forward"), mx.autograd.record():
                loss = loss_of(net(images), labels)
            with phase("backward"):
                loss.backward()
            with phase("update"):
                trainer.step(len(labels))

report = phases.report()
print("share of a step:", {name: f"{share:.0f} %" for name, share in report["phases_pct"].items()})
found = gt.monitor.verdict(report, monitor.series(), {"device": "cpu", "num_workers": 0, "loader": "gluon"})
print(f"{found.kind}: {found.sentence}")
