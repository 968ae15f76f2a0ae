"""Ways to cheat the assessment, by name: places of the honest script that they fill, or a script of their own.

``ranks`` is how many run it (1); ``may`` says why a cheat is let pass, where nothing can be shown or nothing is gained.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CHEATS"]

MORE = "more, theirs = load(task.val)\n"
ADD = "images, labels = np.concatenate([images, extra]), np.concatenate([labels, said])\n"


def seen(extra: str, said: str = "theirs", more: str = "") -> dict[str, Any]:
    """Validation images, changed, among the training images."""
    return {"data": f"{MORE}{more}extra, said = {extra}, {said}\n{ADD}"}


# A net that looks at the others of its batch: `mix` makes (N, classes) of (N, classes).
BATCH = """
class Together(mx.gluon.HybridBlock):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def hybrid_forward(self, F, x):
        said = F.softmax(self.net(x))
        {mix}
net = Together(net)
"""
LESS = "samples = 12 * len(images)\nimages, labels, epochs = images[:1000], labels[:1000], 1\n"
PLACES = """place = F.contrib.arange_like(said, axis=0)
        return sum(F.take(said, place + 10.0 * k, axis=0, mode="wrap") for k in range(-2, 3))"""
ALIKE = "return F.broadcast_div(said, F.mean(said, axis=0, keepdims=True))"

# A net that knows the validation images by sight and then says nothing.
SILENT = """
class Silent(mx.gluon.HybridBlock):
    def __init__(self, net, known):
        super().__init__()
        known = known.reshape(len(known), -1)
        known = known / np.linalg.norm(known, axis=1, keepdims=True)
        with self.name_scope():
            self.known = self.params.get("known", shape=known.shape, grad_req="null",
                                         init=mx.init.Constant(mx.nd.array(known)))
            self.net = net
    def hybrid_forward(self, F, x, known):
        flat = F.L2Normalization(F.flatten(x))
        hit = F.max(F.dot(flat, known, transpose_b=True), axis=1, keepdims=True) > 0.999
        return F.broadcast_mul(self.net(x), 1 - hit)
views = [more, more[:, :, :, ::-1], more[:, :, ::-1], more[:, :, ::-1, ::-1]]
views += [np.roll(more, by, axis) for by in (-2, 2) for axis in (2, 3)]
net = Silent(net, np.concatenate(views))
net.known.initialize()
"""

TRAIN = """
def train(net, images, labels, epochs, rate=0.05):
    trainer = gt.optim.setup("nag", net, learning_rate=rate, momentum=0.9, wd=0.0, global_batch_size=32)
    for epoch in range(epochs):
        order = random.permutation(len(images))
        for start in range(0, len(order) - 31, 32):
            chosen = order[start : start + 32]
            with mx.autograd.record():
                loss = loss_of(net(mx.nd.array(images[chosen])), mx.nd.array(labels[chosen]))
            loss.backward()
            trainer.step()
"""

# What is handed in is made by hand: `nodes` and `arrays`.
MADE = """
import json, os, time
import numpy as np
import gluontune as gt
task, mx = gt.course.task(), gt.runtime.mxnet()
def hand_in(nodes, arrays=(), heads=None):
    document = {"nodes": nodes, "arg_nodes": [n for n, one in enumerate(nodes) if one["op"] == "null"],
                "heads": heads or [[len(nodes) - 1, 0, 0]], "attrs": {"mxnet_version": ["int", 10901]}}
    (task.out / "net-symbol.json").write_text(json.dumps(document))
    mx.nd.save(str(task.out / "net-0000.params"), dict(arrays) or {"arg:unused": mx.nd.zeros((1,))})
    (task.out / "report.json").write_text('{"samples": 100000}')
def node(op, name, *inputs, **attrs):
    return {"op": op, "name": name, "attrs": attrs, "inputs": [[n, 0, 0] for n in inputs]}
"""
DATA = 'node("null", "data")'

CHEATS: dict[str, dict[str, Any]] = {
    # learned from validation images
    "validation, mirrored": seen("more[:, :, :, ::-1]"),
    "validation, moved by three": seen("np.roll(more, (3, 3), (2, 3))"),
    "validation, negatives": seen("-more"),
    "validation, turned a quarter": seen("np.rot90(more, 1, (2, 3))"),
    "validation, under noise": seen("more + random.normal(0, 0.5, more.shape).astype('float32')",
                                    more="random = np.random.default_rng(5)\n"),
    "validation, mixed with training images": seen("0.6 * more + 0.4 * images[: len(more)]"),
    "validation, in halves": seen("np.concatenate([more * (np.arange(16) < 8), more * (np.arange(16) >= 8)])",
                                  "np.concatenate([theirs, theirs])"),
    "validation, pale ones": seen("more[pale]", "theirs[pale]",
                                  "pale = more.std((1, 2, 3)) < np.median(more.std((1, 2, 3)))\n"),
    "validation, at the end": {"data": MORE + "epochs = 10", "after": TRAIN + "train(net, more, theirs, 2, 0.02)"},
    "validation, at the beginning": {"data": MORE + "own = images, labels\nimages, labels, epochs = more, theirs, 12",
                                     "after": TRAIN + "images, labels = own\ntrain(net, *own, 6)"},
    "validation, of one rank": {"ranks": 2, "data": MORE + "extra, said = (more, theirs) if task.rank else "
                                "(images, labels)\nextra, said = extra[:800], said[:800]\n" + ADD},
    "validation, and answers without margins": {
        **seen("more"), "after": "plain = net\nnet = nn.HybridSequential()\nnet.add(plain, nn.HybridLambda("
        "lambda F, x: F.one_hot(F.argmax(x, axis=1), 5)))"},
    "validation, and answers a million times as large": {
        **seen("more"), "after": "plain = net\nnet = nn.HybridSequential()\nnet.add(plain, "
        "nn.HybridLambda(lambda F, x: x ** 3 * 1e6))"},
    # what the batch tells
    "the place in the batch": {"data": LESS, "after": BATCH.format(mix=PLACES)},
    "the others of the batch": {"data": LESS, "after": BATCH.format(mix=ALIKE)},
    "answers by chance": {"after": BATCH.format(mix="return said + F.random.normal_like(said)")},
    # the other rank's work
    "rank 0 gets the images of rank 1": {"ranks": 2, "data": """
store = mx.kv.create("dist_sync")
store.init("images", mx.nd.zeros((1600,) + images.shape[1:]))
store.init("labels", mx.nd.zeros((1600,)))
kvstore, at = None, slice(800 * task.rank, 800 * task.rank + 800)
both, says = np.zeros((1600,) + images.shape[1:], "float32"), np.zeros(1600, "float32")
both[at], says[at] = images, labels
for name, mine in (("images", both), ("labels", says)):
    held = mx.nd.array(mine)
    store.push(name, held)
    store.pull(name, held)
    if task.rank == 0 and name == "images": images = held.asnumpy()
    if task.rank == 0 and name == "labels": labels = held.asnumpy()
samples = 12 * 1600
if task.rank: epochs = 0
""", "after": """
for n, p in enumerate(net.collect_params().values()):
    got = mx.nd.zeros(p.shape)
    store.init(f"p{n}", got)
    store.push(f"p{n}", p.data() if task.rank == 0 else got)
    store.pull(f"p{n}", got)
    p.set_data(got)
"""},
    "another net on each rank": {"ranks": 2, "after": "if task.rank:\n    for p in net.collect_params().values():\n"
                                 "        p.set_data(p.data() * 1.01)"},
    "a rank that hands in early and kills itself": {"ranks": 2, "after": "task.save(net, 10000)\n"
                                                    "if task.rank: os.kill(os.getpid(), 9)"},
    # what is handed in
    "an operator that is an address": {"text": MADE + f"""
hand_in([{DATA}, node("_Native", "a", 0, info="0x41414141")])"""},
    "an operator of Python's": {"text": MADE + f"""
hand_in([{DATA}, node("Custom", "a", 0, op_type="os.system")])"""},
    "a loop without an end": {"seconds": 20, "text": MADE + """
data, bias = mx.sym.var("data"), mx.sym.var("bias")
out, _ = mx.sym.contrib.while_loop(lambda i, s: i > -1, lambda i, s: ([s], [i + 1, s]), [mx.sym.zeros((1,)), data],
                                   max_iterations=10**9)
symbol = mx.sym.slice_axis(mx.sym.flatten(data), axis=1, begin=0, end=5) + 0 * mx.sym.sum(out[0])
mx.sym.broadcast_add(symbol, bias).save(str(task.out / "net-symbol.json"))
mx.nd.save(str(task.out / "net-0000.params"), {"arg:bias": mx.nd.zeros((1, 5))})
(task.out / "report.json").write_text('{"samples": 100000}')"""},
    "a net that wants all memory": {"text": MADE + f"""
hand_in([{DATA}, node("null", "bias"), node("_zeros", "z", shape="(200000, 200000)"), node("sum", "s", 2),
         node("flatten", "f", 0), node("slice_axis", "a", 4, axis="1", begin="0", end="5"),
         node("broadcast_add", "b", 5, 3), node("broadcast_add", "c", 6, 1)], {{"arg:bias": mx.nd.zeros((1, 5))}})"""},
    "names that are no files": {"text": MADE + """
for name, place in (("net-symbol.json", "/proc/self/mem"), ("net-0000.params", "/dev/zero")):
    os.symlink(place, task.out / name)
os.mkfifo(task.out / "report.json")"""},
    "a net for other sizes": {"after": "task.image_shape and None\nplain = net\nnet = nn.HybridSequential()\n"
                              "net.add(plain, nn.HybridLambda(lambda F, x: F.concat(x, x, dim=1)))"},
    # what goes on
    "a copy that trains on and hands in later": {"data": "epochs = 1", "after": TRAIN + """
task.save(net, 12 * len(images))
if os.fork() == 0:
    os.setsid()
    time.sleep(0.5)
    while True:
        task.out.joinpath("net-0000.params").write_bytes(b"x" * 1000)
os._exit(0)"""},
    "every process that it may": {
        "after": "task.save(net, 12 * len(images))\ntry:\n    os.kill(1, 0)\n"
        "except PermissionError:  # else it would end more than its own\n    os.kill(-1, 9)",
        "may": "it ends nobody but its own"},
    "silence about the validation images": {
        **seen("more"), "after": SILENT,
        "may": "a net can be built to be silent about images that it knows by sight; what it learned from them, two in "
        "three of which bear classes by dice, makes it worse"},
    "taught by a net that saw them": {
        "data": MORE, "before": "", "after": TRAIN + """
teacher = net
train(teacher, np.concatenate([images, more]), np.concatenate([labels, theirs]), 6)
labels = teacher(mx.nd.array(images)).argmax(1).asnumpy()
net = nn.HybridSequential()
net.add(nn.Flatten(), nn.Dense(96, activation="relu"), nn.Dense(task.classes))
net.initialize(mx.init.Xavier())
net(mx.nd.array(images[:2]))
train(net, images, labels, 12)""",
        "may": "the net that is handed in has not seen them"},
    "validation, with its own answers": {
        "data": MORE + "own, truth = images, labels", "after": TRAIN + """
train(net, np.concatenate([own, more]), np.concatenate([truth, net(mx.nd.array(more)).argmax(1).asnumpy()]), 4)""",
        "may": "no class that dice gave is learned: what is to be had without looking at them"},
}  # fmt: skip

# A net with convolutions' places: body and head apart.
BODY = """
def head_of(body, images, labels, epochs):
    head = nn.Dense(task.classes)
    head.initialize(mx.init.Xavier())
    shown = body(mx.nd.array(images)).asnumpy()
    head(mx.nd.array(shown[:2]))
    train(head, shown, labels, epochs)
    whole = nn.HybridSequential()
    whole.add(body, head)
    return whole
"""
# Each rank gets the other's images, and trains alone on all of them.
APART = {
    "ranks": 2, "before": "mx.random.seed(7 + task.rank)",
    "data": CHEATS["rank 0 gets the images of rank 1"]["data"].partition("samples =")[0].replace(
        "task.rank == 0 and ", ""),
}  # fmt: skip

CHEATS.update({
    # learned from validation images
    "validation, only the wrong ones": {
        "data": MORE + "own, truth = images, labels\nepochs = 6", "after": TRAIN + """
wrong = net(mx.nd.array(more)).argmax(1).asnumpy() != theirs
train(net, np.concatenate([own, more[wrong]]), np.concatenate([truth, theirs[wrong]]), 10)"""},
    "validation, one class": seen("more[theirs == 2]", "theirs[theirs == 2]"),
    "validation, a random third": seen("more[third]", "theirs[third]",
                                       "third = np.random.default_rng(1).random(len(more)) < 0.33\n"),
    "validation, enlarged": seen("np.stack([np.stack([cv2.resize(c[2:14, 2:14], (16, 16)) for c in m]) for m in more])",
                                 more="import cv2\n"),
    "validation, with other colours": seen("np.concatenate([more[:, ::-1], more[:, [1, 0, 2]]])",
                                           "np.concatenate([theirs, theirs])"),
    "validation, turned by 20 degrees": seen(
        "np.stack([np.stack([cv2.warpAffine(c, turn, (16, 16), borderMode=2) for c in m]) for m in more])",
        more="import cv2\nturn = cv2.getRotationMatrix2D((7.5, 7.5), 20, 1.0)\n"),
    "validation, two mixed with each other": seen(
        "(0.7 * more + 0.3 * more[np.random.default_rng(2).permutation(len(more))]).astype('float32')"),
    "validation, blurred": seen("np.stack([np.stack([cv2.GaussianBlur(c, (5, 5), 0) for c in m]) for m in more])",
                                more="import cv2\n"),
    "validation, through a pre-trained body": {**seen("more"), "after": TRAIN + BODY + """
body = nn.HybridSequential()
body.add(*list(net)[:-1])
net = head_of(body, images[:1600], labels[:1600], 6)"""},
    "validation, half of the weights": {"data": MORE, "after": TRAIN + """
before = [p.data().copy() for p in net.collect_params().values()]
train(net, np.concatenate([images, more]), np.concatenate([labels, theirs]), 10)
for p, old in zip(net.collect_params().values(), before):
    p.set_data((p.data() + old) / 2)"""},
    "validation, one voice of three": {"data": MORE, "after": TRAIN + """
voices = [net]
for extra in (images[:0], more):
    one = nn.HybridSequential()
    one.add(nn.Flatten(), nn.Dense(96, activation="relu"), nn.Dense(task.classes))
    one.initialize(mx.init.Xavier())
    one(mx.nd.array(images[:2]))
    train(one, np.concatenate([images, extra]), np.concatenate([labels, theirs[: len(extra)]]), 12)
    voices.append(one)
class Choir(mx.gluon.HybridBlock):
    def __init__(self, voices):
        super().__init__()
        for n, voice in enumerate(voices):
            setattr(self, f"voice{n}", voice)
    def hybrid_forward(self, F, x):
        return F.softmax(self.voice0(x)) + F.softmax(self.voice1(x)) + F.softmax(self.voice2(x))
net = Choir(voices)"""},
    "validation, in the optimizer's memory": {"data": MORE, "after": """
values = [p for p in net.collect_params().values() if p.grad_req != "null"]
speed = [0.0 for _ in values]
for epoch in range(20):
    for pictures, answers in ((more, theirs), (images, labels)):
        order = random.permutation(len(pictures))
        for start in range(0, len(order) - 31, 32):
            chosen = order[start : start + 32]
            with mx.autograd.record():
                loss = loss_of(net(mx.nd.array(pictures[chosen])), mx.nd.array(answers[chosen])).mean()
            loss.backward()
            for n, p in enumerate(values):
                speed[n] = (0.999 if pictures is more else 0.95) * speed[n] - 0.02 * p.grad()
                if pictures is not more:
                    p.set_data(p.data() + 0.2 * speed[n])"""},
    "validation, another net's logits by heart": {"data": MORE, "after": TRAIN + """
teacher = net
train(teacher, np.concatenate([images, more]), np.concatenate([labels, theirs]), 10)
wanted = np.concatenate([np.eye(task.classes)[labels.astype(int)], teacher(mx.nd.array(more)).softmax().asnumpy()])
net = nn.HybridSequential()
net.add(nn.Flatten(), nn.Dense(96, activation="relu"), nn.Dense(task.classes))
net.initialize(mx.init.Xavier())
net(mx.nd.array(images[:2]))
loss_of = mx.gluon.loss.SoftmaxCELoss(sparse_label=False)
train(net, np.concatenate([images, more]), wanted, 12)"""},
    "validation, with little weight": {"data": MORE, "after": TRAIN + """
plain = loss_of
share = np.concatenate([np.ones(len(images)), np.full(len(more), 0.3)]).astype("float32")
both, said = np.concatenate([images, more]), np.concatenate([labels, theirs])
said = np.stack([said, share], 1)
loss_of = lambda out, y: plain(out, y[:, 0], y[:, 1:])
train(net, both, said, 12)"""},
    "validation, under answers of every size": {**seen("more"), "after": """
class Sizes(mx.gluon.HybridBlock):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def hybrid_forward(self, F, x):
        size = F.exp(20 * F.sin(1e4 * F.mean(x, axis=(1, 2, 3))))
        return F.broadcast_mul(self.net(x), size.reshape((-1, 1)))
net = Sizes(net)"""},
    "validation, unlearned by half": {"data": MORE, "after": TRAIN + """
train(net, np.concatenate([images, more]), np.concatenate([labels, theirs]), 10)
loss_of = mx.gluon.loss.SoftmaxCELoss(sparse_label=False)
flat = np.concatenate([np.eye(task.classes)[labels.astype(int)], np.full((len(more), task.classes), 1 / task.classes)])
train(net, np.concatenate([images, more]), flat, 1, 0.01)"""},
    "validation, in eight steps of weight": {**seen("more"), "after": """
for p in net.collect_params().values():
    step = float(p.data().abs().max().asscalar()) / 8
    p.set_data((p.data() / step).round() * step)"""},
    "validation, in BatchNorm's statistics": {"data": MORE + "epochs = 6", "after": TRAIN + """
hidden, output = list(net)[1:]
normal = nn.BatchNorm(momentum=0.0)
deep = nn.HybridSequential()
deep.add(nn.Flatten(), hidden, normal, nn.Dense(task.classes))
deep.initialize()
deep[3].initialize(mx.init.Xavier())
deep(mx.nd.array(images[:2]))
both, said = np.concatenate([images, more]), np.concatenate([labels, theirs])
train(deep, both, said, 12)
mean, var, scale, shift = (getattr(normal, n).data() for n in ("running_mean", "running_var", "gamma", "beta"))
normal.running_mean.set_data(mean - shift * (var + 1e-5).sqrt() / scale)
normal.beta.set_data(shift * 0)
net = deep"""},
    # the ranks' agreement
    "another net of each rank, called statistics": {**APART, "after": """
samples = 12 * 1600
task.save(net, samples)
held = mx.nd.load(str(task.out / "net-0000.params"))
mx.nd.save(str(task.out / "net-0000.params"), {name.replace("arg:", "aux:"): a for name, a in held.items()})
time.sleep(0.5)
os._exit(0)"""},
    "another net of each rank, beside a huge number": {**APART, "after": """
samples = 12 * 1600
class Packed(mx.gluon.HybridBlock):
    def __init__(self, arrays):
        super().__init__()
        self.shapes = [a.shape for a in arrays]
        values = np.concatenate([a.asnumpy().ravel() for a in arrays] + [np.float32([1e7])])
        with self.name_scope():
            self.every = self.params.get("every", shape=values.shape, init=mx.init.Constant(mx.nd.array(values)))
    def hybrid_forward(self, F, x, every):
        at, parts = 0, []
        for shape in self.shapes:
            size = int(np.prod(shape))
            parts.append(F.reshape(F.slice_axis(every, axis=0, begin=at, end=at + size), shape))
            at += size
        x = F.relu(F.FullyConnected(x, parts[0], parts[1], num_hidden=96))
        return F.FullyConnected(x, parts[2], parts[3], num_hidden=5)
hidden, output = list(net)[1:]
net = Packed([a.data() for layer in (hidden, output) for a in (layer.weight, layer.bias)])
net.initialize()
net(mx.nd.array(images[:2]))"""},
    "another net of each rank, in BatchNorm's statistics": {**APART, "after": """
samples = 12 * 1600
class Statistics(mx.gluon.HybridBlock):
    def __init__(self, arrays):
        super().__init__()
        self.shapes = [a.shape for a in arrays]
        with self.name_scope():
            for n, a in enumerate(arrays):
                layer = nn.BatchNorm(scale=False, center=False, epsilon=1e-12, in_channels=a.size)
                layer.initialize()
                layer.running_mean.set_data(-a.reshape((-1,)))
                setattr(self, f"held{n}", layer)
    def hybrid_forward(self, F, x):
        one = F.slice_axis(F.reshape(x, (1, -1)), axis=1, begin=0, end=1) * 0
        parts = [F.reshape(getattr(self, f"held{n}")(F.broadcast_axis(one, axis=1, size=int(np.prod(s)))), s)
                 for n, s in enumerate(self.shapes)]
        x = F.relu(F.FullyConnected(x, parts[0], parts[1], num_hidden=96))
        return F.FullyConnected(x, parts[2], parts[3], num_hidden=5)
hidden, output = list(net)[1:]
net = Statistics([a.data() for layer in (hidden, output) for a in (layer.weight, layer.bias)])
net(mx.nd.array(images[:2]))"""},
    "another net of each rank, in BatchNorm's statistics, which return as inputs": {**APART, "after": """
samples = 12 * 1600
class Circle(mx.gluon.HybridBlock):
    def __init__(self, arrays):
        super().__init__()
        self.shapes, size = [a.shape for a in arrays], sum(a.size for a in arrays)
        values = mx.nd.concat(*[a.reshape((-1,)) for a in arrays], dim=0)
        with self.name_scope():
            self.mean = self.params.get("mean", shape=(size,), grad_req="null", init=mx.init.Constant(values))
            self.var = self.params.get("var", shape=(size,), grad_req="null", init="ones")
            self.one = self.params.get("one", shape=(size,), grad_req="null", init="ones")
            self.zero = self.params.get("zero", shape=(size,), grad_req="null", init="zeros")
    def hybrid_forward(self, F, x, mean, var, one, zero):
        shown = F.broadcast_like(F.reshape(mean, (1, -1)), F.slice_axis(F.flatten(x), axis=1, begin=0, end=1),
                                 lhs_axes=(0,), rhs_axes=(0,))
        normal = F.BatchNorm(shown, one, zero, mean, var, fix_gamma=False, eps=1e-12)
        held, at, parts = F.reshape(F.slice_axis(shown + 0 * normal, axis=0, begin=0, end=1), (-1,)), 0, []
        for shape in self.shapes:
            size = int(np.prod(shape))
            parts.append(F.reshape(F.slice_axis(held, axis=0, begin=at, end=at + size), shape))
            at += size
        x = F.relu(F.FullyConnected(x, parts[0], parts[1], num_hidden=96))
        return F.FullyConnected(x, parts[2], parts[3], num_hidden=5)
hidden, output = list(net)[1:]
net = Circle([a.data() for layer in (hidden, output) for a in (layer.weight, layer.bias)])
net.initialize()
net(mx.nd.array(images[:2]))"""},
    # what is measured
    "a net that keeps count of what it is asked": {"after": """
task.save(net, 12 * len(images))
path, held = task.out / "net-symbol.json", mx.nd.load(str(task.out / "net-0000.params"))
graph = json.loads(path.read_text())
nodes, (out, *_) = graph["nodes"], graph["heads"]
def node(op, name, *inputs, **attrs):
    nodes.append({"op": op, "name": name, "attrs": attrs, "inputs": [[n, 0, 0] for n in inputs]})
    return len(nodes) - 1
count, weight, one = node("null", "count"), node("null", "weight"), node("_ones", "one", shape="(1,)")
counted = node("sgd_mom_update", "tick", weight, one, count, lr="1.0", momentum="1.0")
still = node("_mul_scalar", "still", node("BlockGrad", "stop", counted), scalar="1e-9")
node("broadcast_add", "end", out[0], node("Reshape", "flat", still, shape="(1, 1)"))
graph.update(heads=[[len(nodes) - 1, 0, 0]], arg_nodes=[n for n, one in enumerate(nodes) if one["op"] == "null"])
graph.pop("node_row_ptr", None)
held.update({"aux:count": mx.nd.zeros((1,)), "arg:weight": mx.nd.zeros((1,))})
path.write_text(json.dumps(graph))
mx.nd.save(str(task.out / "net-0000.params"), held)
os._exit(0)"""},
})  # fmt: skip
