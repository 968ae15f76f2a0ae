"""Honest scripts for the assessment as people write them: whole programs, each in another style.

:func:`styled_script` draws one. They use what a learner may: files of their own, processes, threads, PyTorch, numpy,
the validation images to look at. They run on one rank, but those of ``TWO``, which join their ranks.
"""

# ruff: noqa: E501 - the texts are programs
from __future__ import annotations

import random
import re

__all__ = ["STYLES", "TWO", "styled_script"]

BLOCK = """class Block(nn.HybridBlock):
    def __init__(self, channels, stride=1):
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(nn.Conv2D(channels, 3, stride, 1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"),
                      nn.Conv2D(channels, 3, 1, 1, use_bias=False), nn.BatchNorm())
        self.side = nn.Conv2D(channels, 1, stride, use_bias=False)

    def hybrid_forward(self, F, x):
        return F.relu(self.body(x) + self.side(x))


def make_net(classes):
    net = nn.HybridSequential()
    net.add(Block(<8|12|16>), nn.MaxPool2D(2), Block(<16|24>, 2), nn.<GlobalAvgPool2D()|Flatten()>, nn.Dense(classes))
    return net
"""
PLAIN = """def make_net(classes):
    net = nn.HybridSequential(<|prefix="mine_">)
    for width in <(16, 32)|(24, 48)|(12, 24, 48)>:
        net.add(nn.Conv2D(width, 3, padding=1), nn.<BatchNorm|BatchNorm(momentum=0.8)|LayerNorm|InstanceNorm>, nn.<Activation("relu")|LeakyReLU(0.1)|SELU()|Swish()>)
        net.add(nn.<MaxPool2D|AvgPool2D>(2))
    net.add(nn.Flatten(), nn.Dense(<48|64>, activation="relu"), nn.Dropout(<0.1|0.3>), nn.Dense(classes))
    return net
"""
DENSE = """def make_net(classes):
    net = nn.HybridSequential()
    net.add(nn.Flatten(), nn.Dense(<96|128|200>, activation="<relu|tanh|softsign>"), nn.BatchNorm(), nn.Dense(classes))
    return net
"""
HEAD = """import numpy as np
import gluontune as gt

mx = gt.runtime.mxnet()
nn = mx.gluon.nn
"""

CLASSES = (
    '''"""Training as a class, with settings, a log and a learning curve."""
import argparse
import dataclasses
import json
import logging
import time
<|from pathlib import Path>
'''
    + HEAD
    + """
log = logging.getLogger("train")


@dataclasses.dataclass
class Settings:
    epochs: int = <5|7|9>
    batch: int = <24|32|48|64>
    rate: float = <0.02|0.05|0.08>
    smooth: float = <0.0|0.1>
    seed: int = <1..9999>


NET

class Trainer:
    def __init__(self, task, settings):
        self.task, self.s = task, settings
        np.random.seed(settings.seed)
        mx.random.seed(settings.seed)
        self.x, self.y = self.read(task.train)
        self.vx, self.vy = self.read(task.val)
        self.net = make_net(task.classes)
        self.net.initialize(mx.init.<Xavier()|MSRAPrelu()|Xavier(magnitude=2.24)>)
        <pass|self.net.hybridize()|self.net.hybridize(static_alloc=True)>
        self.history = []

    def read(self, split):
        return self.task.normalize(np.array([split.decode(i) for i in range(len(split))])), np.array(split.labels)

    def batches(self):
        order = np.random.permutation(len(self.x))
        for chunk in np.array_split(order, len(order) // self.s.batch):
            yield mx.nd.array(self.augment(self.x[chunk])), mx.nd.array(self.y[chunk])

    def augment(self, x):
        <return x|return x + 0.1 * np.random.randn(*x.shape).astype("float32")|return x[:, :, :, ::-1].copy() if np.random.randint(3) else x>

    def validate(self):
        return float((self.net(mx.nd.array(self.vx)).asnumpy().argmax(1) == self.vy).mean())

    def fit(self):
        steps = self.s.epochs * (len(self.x) // self.s.batch)
        plan = mx.lr_scheduler.<CosineScheduler(steps, self.s.rate, warmup_steps=20)|PolyScheduler(steps, self.s.rate)|FactorScheduler(max(1, steps // 3), 0.3, base_lr=self.s.rate)>
        trainer = mx.gluon.Trainer(self.net.collect_params(), "<sgd|nag>", {"lr_scheduler": plan, "momentum": 0.9, "wd": <0.0|1e-4>})
        loss_of, seen = mx.gluon.loss.SoftmaxCELoss(sparse_label=False), 0
        for epoch in range(self.s.epochs):
            start, total = time.time(), 0.0
            for x, y in self.batches():
                hot = mx.nd.one_hot(y, self.task.classes)
                hot = hot * (1 - self.s.smooth) + self.s.smooth / self.task.classes
                with mx.autograd.record():
                    loss = loss_of(self.net(x), hot)
                loss.backward()
                trainer.step(len(x))
                total += float(loss.mean().asscalar())
                seen += len(x)
            self.history.append({"epoch": epoch, "loss": total, "val": self.validate(), "s": time.time() - start})
            log.info("%s", json.dumps(self.history[-1]))
        return seen


def main():
    parser = argparse.ArgumentParser()
    for field in dataclasses.fields(Settings):
        parser.add_argument("--" + field.name, type=type(field.default), default=field.default)
    logging.basicConfig(level=logging.INFO)
    trainer = Trainer(gt.course.task(), Settings(**vars(parser.parse_args())))
    seen = trainer.fit()
    with open("history.json", "w") as stream:
        json.dump(trainer.history, stream)
    CURVE
    trainer.task.save(trainer.net, seen)


if __name__ == "__main__":
    main()
"""
)
CURVE = """import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    pyplot.plot([h["val"] for h in trainer.history])
    pyplot.savefig("curve.png")"""

WORKERS = (
    '''"""Decoding in processes."""
import multiprocessing
import os
'''
    + HEAD
    + """
NET

def decode(job):
    name, part = job
    split = getattr(gt.course.task(), name)
    return gt.course.task().normalize(np.stack([split.decode(int(i)) for i in part]))


def load(task, name, pool):
    parts = np.array_split(np.arange(len(getattr(task, name))), <2|3|5>)
    return np.concatenate(pool.map(decode, [(name, part) for part in parts]))


def main():
    task = gt.course.task()
    with multiprocessing.get_context("<fork|spawn|forkserver>").Pool(<1|2|3>) as pool:
        images, looked = load(task, "train", pool), load(task, "val", pool)
    mx.random.seed(<1..9999>)
    net = make_net(task.classes)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    data = mx.gluon.data.ArrayDataset(images, task.train.labels.astype("float32"))
    loader = mx.gluon.data.DataLoader(data, <32|50>, shuffle=True, last_batch="<keep|rollover|discard>",
                                      num_workers=<0|1|2>)
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": <1e-3|2e-3|3e-3>})
    loss_of, metric, seen = mx.gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy(), 0
    for epoch in range(<4|6|8>):
        metric.reset()
        for x, y in loader:
            x, y = x.as_in_context(mx.cpu()), y.as_in_context(mx.cpu())
            with mx.autograd.record():
                out = net(x)
                loss = loss_of(out, y)
            loss.backward()
            trainer.step(x.shape[0])
            metric.update([y], [out])
            seen += x.shape[0]
        print("epoch", epoch, metric.get(), os.getpid())
        net.save_parameters(f"epoch-{epoch}.params")
    net.load_parameters(f"epoch-{epoch}.params")
    print("validation", (net(mx.nd.array(looked)).argmax(1).asnumpy() == task.val.labels).mean())
    task.save(net, seen)


if __name__ == "__main__":
    main()
"""
)

THREADS = (
    HEAD
    + """import queue
import threading

NET

task = gt.course.task()
batch, epochs = <32|40|64>, <5|8>
todo = queue.Queue(maxsize=<2|8>)


def feed():
    random = np.random.default_rng(<1..9999>)
    kept = {}
    for epoch in range(epochs):
        order = random.permutation(len(task.train))
        for start in range(0, len(order) - batch + 1, batch):
            picked = order[start:start + batch]
            for i in picked:
                if i not in kept:
                    kept[i] = task.train.decode(int(i))
            todo.put((task.normalize(np.stack([kept[i] for i in picked])), task.train.labels[picked]))
        todo.put(epoch)
    todo.put(None)


threading.Thread(target=feed, daemon=<True|False>).start()
mx.random.seed(<1..9999>)
net = make_net(task.classes)
net.initialize(mx.init.Xavier())
loss_of, samples = mx.gluon.loss.SoftmaxCrossEntropyLoss(), 0
velocity, rate = {}, <0.02|0.04>
while True:
    work = todo.get()
    if work is None:
        break
    if isinstance(work, int):
        rate *= <0.7|0.85>
        print("epoch", work, "done,", samples, "images")
        continue
    x, y = map(mx.nd.array, work)
    with mx.autograd.record():
        loss = loss_of(net(x), y).mean()
    loss.backward()
    for name, p in net.collect_params().items():  # momentum by hand
        if p.grad_req != "null":
            velocity[name] = 0.9 * velocity.get(name, 0) - rate * p.grad()
            p.set_data(p.data() + velocity[name])
    samples += len(y)
task.save(net, samples)
"""
)

TORCH = (
    '''"""Trained by PyTorch; its parameters are given to the same net of Gluon's."""
import torch
'''
    + HEAD
    + """
task = gt.course.task()
torch.manual_seed(<1..9999>)
torch.set_num_threads(<1|2>)
x = torch.from_numpy(task.normalize(np.stack([task.train.decode(i) for i in range(len(task.train))])))
y = torch.from_numpy(np.array(task.train.labels))
height, width, channels = task.image_shape
flat = <16|24> * (height // 4) * (width // 4)
wide = flat * 16 // (height * width)
theirs = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(16, wide, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(), torch.nn.Linear(flat, <48|64>), torch.nn.ReLU(), torch.nn.LazyLinear(task.classes))
theirs(x[:2])
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), <32|64>, shuffle=True, num_workers=<0|0|2>)
steps = torch.optim.<AdamW(theirs.parameters(), 2e-3)|SGD(theirs.parameters(), 0.05, momentum=0.9)|Adam(theirs.parameters(), 1e-3)>
samples = 0
for epoch in range(<5|8>):
    for images, labels in loader:
        steps.zero_grad()
        torch.nn.functional.cross_entropy(theirs(images), labels).backward()
        steps.step()
        samples += len(labels)
    print(f"epoch {epoch}: {samples} images")
net = nn.HybridSequential()
for layer in theirs:
    kind = type(layer).__name__
    if kind == "Conv2d":
        net.add(nn.Conv2D(layer.out_channels, 3, padding=1, in_channels=layer.in_channels))
    elif "Linear" in kind:
        net.add(nn.Dense(layer.out_features, in_units=layer.in_features))
    else:
        net.add({"ReLU": nn.Activation("relu"), "MaxPool2d": nn.MaxPool2D(2), "Flatten": nn.Flatten()}[kind])
net.initialize()
for ours, given in zip(net.collect_params().values(), theirs.parameters()):
    ours.set_data(mx.nd.array(given.detach().numpy()))
task.save(net, samples)
"""
)

NUMPY = (
    '''"""No framework: gradients by hand."""
'''
    + HEAD
    + """
task, random = gt.course.task(), np.random.default_rng(<1..9999>)
x = task.normalize(np.stack([task.train.decode(i) for i in range(len(task.train))])).reshape(len(task.train), -1)
y = np.eye(task.classes, dtype="float32")[task.train.labels]
wide, batch, epochs, rate = <96|128|200>, <32|64>, <10|14>, <0.03|0.06>
p = [random.normal(0, (2 / x.shape[1]) ** 0.5, (x.shape[1], wide)), np.zeros(wide),
     random.normal(0, (1 / wide) ** 0.5, (wide, task.classes)), np.zeros(task.classes)]
p = [a.astype("float32") for a in p]
v = [np.zeros_like(a) for a in p]
for epoch in range(epochs):
    total = 0
    for chosen in np.array_split(random.permutation(len(x)), len(x) // batch):
        a, t = x[chosen], y[chosen]
        h = np.maximum(a @ p[0] + p[1], 0)
        z = h @ p[2] + p[3]
        e = np.exp(z - z.max(1, keepdims=True))
        s = e / e.sum(1, keepdims=True)
        total -= np.log(s[t > 0] + 1e-9).sum()
        d = (s - t) / len(a)
        dh = (d @ p[2].T) * (h > 0)
        for w, m, g in zip(p, v, (a.T @ dh, dh.sum(0), h.T @ d, d.sum(0))):
            m *= 0.9
            m -= rate * (1 - epoch / epochs) * g
            w += m
    print(epoch, total / len(x))
net = nn.HybridSequential()
net.add(nn.Flatten(), nn.Dense(wide, activation="relu"), nn.Dense(task.classes))
net.initialize()
net(mx.nd.zeros((1,) + x[:1].reshape(1, 3, *task.image_shape[:2]).shape[1:]))
for mine, a in zip(net.collect_params().values(), p):
    mine.set_data(mx.nd.array(a.T if a.ndim == 2 else a))
task.save(net, epochs * len(x))
"""
)

MODULE = (
    '''"""The symbolic interface of before Gluon."""
'''
    + HEAD
    + """
task = gt.course.task()
x = task.normalize(np.stack([task.train.decode(i) for i in range(len(task.train))]))
np.random.seed(<1..9999>)
mx.random.seed(<1..9999>)
s = mx.sym.var("data")
for n, width in enumerate(<(16, 32)|(24, 24)>):
    s = mx.sym.Convolution(s, num_filter=width, kernel=(3, 3), pad=(1, 1), name=f"c{n}")
    s = mx.sym.<BatchNorm(s, fix_gamma=False, name=f"b{n}")|BatchNorm(s, name=f"b{n}")|identity(s)>
    s = mx.sym.Pooling(mx.sym.relu(s), kernel=(2, 2), stride=(2, 2), pool_type="max")
s = mx.sym.FullyConnected(mx.sym.flatten(s), num_hidden=task.classes, name="out")
mod = mx.mod.Module(mx.sym.SoftmaxOutput(s, mx.sym.var("softmax_label")), context=mx.cpu())
feed, epochs = mx.io.NDArrayIter(x, task.train.labels.astype("float32"), <32|50>, shuffle=True), <5|7>
mod.fit(feed, num_epoch=epochs, optimizer="sgd", initializer=mx.init.Xavier(),
        optimizer_params={"learning_rate": <0.03|0.06>, "momentum": 0.9}, batch_end_callback=mx.callback.Speedometer(32, 20))
arg, aux = mod.get_params()
net = mx.gluon.SymbolBlock(s, mx.sym.var("data"))
for name, p in net.collect_params().items():
    p._load_init({**arg, **aux}[name], mx.cpu())
task.save(net, epochs * len(x))
"""
)

CHOOSER = (
    '''"""Tries some rates for a little, trains the best one, and averages the last epochs' parameters."""
import copy
import os
import subprocess
import sys
import tempfile
'''
    + HEAD
    + """
NET

def arrays(net):
    return [p.data().copy() for p in net.collect_params().values()]


def put(net, values):
    for p, value in zip(net.collect_params().values(), values):
        p.set_data(value)


def train(task, x, y, rate, epochs, seed, average=False):
    mx.random.seed(seed)
    net, random = make_net(task.classes), np.random.default_rng(seed)
    net.initialize(mx.init.Xavier(), force_reinit=True)
    net.hybridize()
    net(mx.nd.array(x[:2]))
    trainer = gt.optim.setup("<nag|adam>", net, learning_rate=rate, wd=0.0, global_batch_size=<32|64>)
    loss_of, kept = mx.gluon.loss.SoftmaxCrossEntropyLoss(), []
    for epoch in range(epochs):
        for chosen in np.array_split(random.permutation(len(x)), len(x) // <32|64>):
            with mx.autograd.record():
                loss = loss_of(net(mx.nd.array(x[chosen])), mx.nd.array(y[chosen]))
            loss.backward()
            trainer.step()
        if average and epoch >= epochs - 2:
            kept.append(arrays(net))
    if kept:
        put(net, [sum(each) / len(each) for each in zip(*kept)])
    return net


def main():
    task = gt.course.task()
    x = task.normalize(np.stack([task.train.decode(i) for i in range(len(task.train))]))
    y = task.train.labels.astype("float32")
    fifth = len(x) // 5
    scores = {}
    for rate in <(0.002, 0.01)|(0.001, 0.004, 0.01)>:
        net = train(task, x[fifth:], y[fifth:], rate, 1, 1)
        said = net(mx.nd.array(x[:fifth])).argmax(1).asnumpy()
        scores[rate] = float((said == y[:fifth]).mean())
        print(f"rate {rate}: {scores[rate]:.3f}")
    best = max(scores, key=scores.get)
    net = train(task, x, y, best, <5|8>, 2, average=<True|False>)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as notes:
        notes.write(repr(scores))
        notes.flush()
        subprocess.run([sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", notes.name], check=True)
    task.save(net, (len(scores) + 5) * len(x))


main()
"""
)

TOOLS = (
    '''"""gluontune's own loaders and methods."""
'''
    + HEAD
    + """
NET

task = gt.course.task()
mx.random.seed(<1..9999>)
batch, epochs = <32|64>, <5|8>
loader = gt.loading.<ResidentLoader|ThreadedLoader>(task.train, batch_size=batch, image_shape=task.image_shape,
                                   seed=<1..9999>, augment="<none|flip>")
net = make_net(task.classes)
net.initialize(mx.init.Xavier())
net.hybridize(static_alloc=True, static_shape=True)
per_epoch = len(task.train) // batch
trainer = gt.optim.setup("<nag|adam|lamb>", net, learning_rate=0.005, wd=0.0, global_batch_size=batch)
loss_of, samples = mx.gluon.loss.SoftmaxCrossEntropyLoss(), 0
for epoch in range(epochs):
    with gt.monitor.Monitor(period_s=0.25) as watch:
        for images, labels in loader.epoch(epoch):
            x, y = mx.nd.array(task.normalize(images)), mx.nd.array(labels)
            with mx.autograd.record():
                loss = loss_of(net(x), y)
            loss.backward()
            trainer.step()
            samples += len(labels)
        mx.nd.waitall()
    print(epoch, samples, watch.peak_rss_mib)
task.save(net, samples)
"""
)

OWN_FILES = (
    '''"""Writes its modules to its own folder, and imports them."""
import importlib
import pathlib
import sys

MODULE = r\'\'\'
'''
    + HEAD
    + """
NET

def load(split, task):
    return task.normalize(np.stack([split.decode(i) for i in range(len(split))])), split.labels.astype("float32")
'''
folder = pathlib.Path.home() / "parts"
folder.mkdir()
(folder / "__init__.py").write_text("")
(folder / "model.py").write_text(MODULE)
sys.path.insert(0, str(folder.parent))
model = importlib.import_module("parts.model")
gt, mx, np = model.gt, model.mx, model.np
task = gt.course.task()
np.save("images.npy", model.load(task.train, task)[0])
images, labels = np.load("images.npy", mmap_mode="r"), task.train.labels.astype("float32")
looked, theirs = model.load(task.val, task)
mx.random.seed(<1..9999>)
net = model.make_net(task.classes)
net.initialize(mx.init.Xavier())
trainer = mx.gluon.Trainer(net.collect_params(), "<adam|nadam>", {"learning_rate": 0.002})
loss_of, random, samples, best = mx.gluon.loss.SoftmaxCrossEntropyLoss(), np.random.default_rng(3), 0, 0.0
for epoch in range(<6|9>):
    order = random.permutation(len(images))
    for start in range(0, len(order), <32|64>):
        chosen = np.sort(order[start : start + <32|64>])
        with mx.autograd.record():
            loss = loss_of(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
        loss.backward()
        trainer.step(len(chosen))
        samples += len(chosen)
    seen = float((net(mx.nd.array(looked)).argmax(1).asnumpy() == theirs).mean())
    if seen > best:
        best = seen
        net.save_parameters("best.params")
    print(f"{epoch}: {seen:.3f} (best {best:.3f})", flush=True)
net.load_parameters("best.params")
task.save(net, samples)
"""
)

SIMPLE = (
    HEAD
    + """
task = gt.course.task()
x = task.normalize(np.stack([task.train.decode(i) for i in range(len(task.train))]))
y = task.train.labels
flat = x.reshape(len(x), -1).astype("float64")
# least squares in closed form: one look at each image
flat = np.concatenate([flat, np.ones((len(flat), 1))], 1)
w = np.linalg.solve(flat.T @ flat + <10|100> * np.eye(flat.shape[1]), flat.T @ np.eye(task.classes)[y])
net = nn.HybridSequential()
net.add(nn.Flatten(), nn.Dense(task.classes, in_units=flat.shape[1] - 1))
net.initialize()
net[1].weight.set_data(mx.nd.array(w[:-1].T))
net[1].bias.set_data(mx.nd.array(w[-1]))
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.001})
for epoch in range(<2|4>):
    for start in range(0, len(x), 50):
        with mx.autograd.record():
            loss = loss_of(4 * net(mx.nd.array(x[start : start + 50])), mx.nd.array(y[start : start + 50]))
        loss.backward()
        trainer.step(50)
task.save(net, (epoch + 2) * len(x))
"""
)

TEACHER = (
    HEAD
    + """
NET

task = gt.course.task()
mx.random.seed(<1..9999>)
random = np.random.default_rng(<1..9999>)
x = task.normalize(np.stack([task.train.decode(i) for i in range(len(task.train))]))
y = np.eye(task.classes, dtype="float32")[task.train.labels]
soft = mx.gluon.loss.SoftmaxCELoss(sparse_label=False)


def learn(net, wanted, epochs, mix=0.0):
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.002})
    for epoch in range(epochs):
        for chosen in np.array_split(random.permutation(len(x)), len(x) // 40):
            other = random.permutation(chosen)
            share = random.beta(0.4, 0.4) if mix else 1.0
            a = share * x[chosen] + (1 - share) * x[other]
            b = share * wanted[chosen] + (1 - share) * wanted[other]
            with mx.autograd.record():
                loss = soft(net(mx.nd.array(a)), mx.nd.array(b))
            loss.backward()
            trainer.step(len(chosen))
    return net


teacher = learn(make_net(task.classes), y, <4|6>, mix=<0.0|1.0>)
said = np.concatenate([teacher(mx.nd.array(x[k : k + 200])).softmax().asnumpy() for k in range(0, len(x), 200)])
student = learn(make_net(task.classes), 0.5 * y + 0.5 * said, <4|6>)
task.save(student, 8 * len(x))
"""
)

JOINED = (
    '''"""Two ranks, or one."""
'''
    + HEAD
    + """
NET

def main():
    task = gt.course.task()
    mx.random.seed(<1..9999>)
    store = mx.kv.create("<dist_sync|dist_device_sync>") if task.ranks > 1 else None
    images = task.normalize(np.stack([task.train.decode(i) for i in range(len(task.train))]))
    labels = task.train.labels.astype("float32")
    net = make_net(task.classes)
    net.initialize(mx.init.Xavier())
    WAY


main()
"""
)
WAYS = [
    """net.hybridize()
    net(mx.nd.array(images[:2]))
    batch = <32|48>
    trainer = gt.optim.setup("<nag|adam>", net, learning_rate=0.005, wd=0.0, global_batch_size=batch * task.ranks, kvstore=store)
    loss_of, random, epochs = mx.gluon.loss.SoftmaxCrossEntropyLoss(), np.random.default_rng(task.rank), <5|7>
    for epoch in range(epochs):
        order = random.permutation(len(images))
        for start in range(0, len(order) - batch + 1, batch):
            chosen = order[start : start + batch]
            with mx.autograd.record():
                loss = loss_of(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
            loss.backward()
            trainer.step()
        print(task.rank, epoch, float(loss.mean().asscalar()), flush=True)
    task.save(net, epochs * (len(order) // batch) * batch)""",
    """trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": <0.02|0.04>, "momentum": 0.9}, kvstore=store)
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(images, labels), <25|40>, shuffle=True, last_batch="discard")
    loss_of, seen = mx.gluon.loss.SoftmaxCrossEntropyLoss(), 0
    for epoch in range(<5|7>):
        for x, y in loader:
            with mx.autograd.record():
                loss = loss_of(net(x), y)
            loss.backward()
            trainer.step(len(x) * task.ranks)
            seen += len(x)
    task.save(net, seen)""",
    """net(mx.nd.array(images[:2]))
    parameters = [p for p in net.collect_params().values() if p.grad_req != "null"]
    for n, p in enumerate(parameters if store else []):
        store.init(n, p.data())
    momentum, rate, batch, seen = [0.0 for _ in parameters], <0.02|0.04>, 40, 0
    loss_of, random = mx.gluon.loss.SoftmaxCrossEntropyLoss(), np.random.default_rng(5 + task.rank)
    for epoch in range(<5|7>):
        for chosen in np.array_split(random.permutation(len(images)), len(images) // batch):
            with mx.autograd.record():
                loss = loss_of(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen])).mean()
            loss.backward()
            for n, p in enumerate(parameters):  # gradients are summed by the server, steps are made here
                slope = p.grad()
                if store:
                    store.push(n, slope)
                    store.pull(n, slope)
                momentum[n] = 0.9 * momentum[n] - rate / task.ranks * slope
                p.set_data(p.data() + momentum[n])
            seen += len(chosen)
    task.save(net, seen)""",
]  # fmt: skip

STYLES = {
    "classes": CLASSES, "workers": WORKERS, "threads": THREADS, "torch": TORCH, "numpy": NUMPY, "module": MODULE,
    "chooser": CHOOSER, "tools": TOOLS, "own files": OWN_FILES, "closed form": SIMPLE, "teacher": TEACHER,
    "joined": JOINED,
}  # fmt: skip
TWO = ("joined",)
NETS = [BLOCK, PLAIN, PLAIN, DENSE]


def styled_script(rng: random.Random, style: str) -> tuple[str, str]:
    """A script in a style, and what was drawn for it.

    ``<a|b>`` in the texts is one of these, ``<1..9>`` a number.
    """
    drawn: list[str] = []

    def draw(found: re.Match[str]) -> str:
        said = found[1]
        if re.fullmatch(r"\d+\.\.\d+", said):
            low, high = map(int, said.split(".."))
            return str(rng.randint(low, high))
        drawn.append(rng.choice(said.split("|")))
        return drawn[-1]

    text = STYLES[style].replace("NET\n", rng.choice(NETS) + "\n", 1).replace("WAY", rng.choice(WAYS))
    text = text.replace("CURVE", CURVE if rng.random() < 0.5 else "pass")
    text = re.sub(r"<([^<>\n]*\|[^<>\n]*|\d+\.\.\d+)>", draw, text)
    text = re.sub(r"nn\.(BatchNorm|LayerNorm|InstanceNorm)(?=[,)])", r"nn.\1()", text)
    return text, f"{style}: {', '.join(drawn)[:160]}"
