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
