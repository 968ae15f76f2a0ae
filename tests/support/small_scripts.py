"""Small Gluon programs, each of another kind, that print a loss for each epoch."""

from __future__ import annotations

_BEGIN = """
import mxnet as mx, numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn
mx.random.seed(3); np.random.seed(3)
X = np.random.rand(96, 1, 8, 8).astype("float32")
Y = (X.mean((1, 2, 3)) * 1e3 % 4).astype("float32")
loader = gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), 16)
cross = gluon.loss.SoftmaxCrossEntropyLoss()
"""

NORMALIZED = """
net = nn.HybridSequential()
net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(), nn.Dense(4))
net.initialize(mx.init.Xavier()); net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3})
for epoch in range(2):
    total, accuracy = 0.0, mx.metric.Accuracy()
    for x, y in loader:
        with autograd.record():
            out = net(x)
            loss = cross(out, y) + 0.01 * (out ** 2).mean(axis=1)
        loss.backward()
        accuracy.update(y, out)
        grads = [p.grad() for p in net.collect_params().values() if p.grad_req != "null"]
        gluon.utils.clip_global_norm(grads, 20.0)
        trainer.step(len(x))
        total += loss.mean().asscalar()
    print(epoch, round(total, 3), accuracy.get()[1])
print(round(float(net(x).asnumpy().sum()), 3))
"""

ADVERSARIES = """
make, judge = nn.Dense(64), nn.Dense(2)
make.initialize(); judge.initialize()
both = [gluon.Trainer(part.collect_params(), "adam", {"learning_rate": 0.01}) for part in (judge, make)]
for epoch in range(2):
    total = 0.0
    for i in range(6):
        real = nd.array(X[16 * i : 16 * i + 16].reshape(16, -1))
        noise = real[:, :8] * 2
        with autograd.record():
            fake = make(noise)
            first = cross(judge(real), nd.ones(16)) + cross(judge(fake.detach()), nd.zeros(16))
        first.backward()
        both[0].step(16)
        with autograd.record():
            second = cross(judge(fake), nd.ones(16))
        second.backward()
        both[1].step(16)
        total += float((first + second).mean().asscalar())
    print(epoch, round(total, 3))
"""

RECURRENT = """
class Model(gluon.Block):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embed, self.cell, self.out = nn.Embedding(16, 6), rnn.LSTM(6, 1), nn.Dense(16, flatten=False)
    def forward(self, x, state):
        y, state = self.cell(self.embed(x), state)
        return self.out(y), state
net = Model(); net.initialize(mx.init.Uniform(0.3))
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
text = (np.arange(481) * 7 % 16).astype("float32")
for epoch in range(2):
    state, total = net.cell.begin_state(batch_size=4), 0.0
    for i in range(0, 100, 5):
        rows = np.stack([text[j * 120 + i : j * 120 + i + 6] for j in range(4)], 1)
        state = [s.detach() for s in state]
        with autograd.record():
            out, state = net(nd.array(rows[:-1]), state)
            loss = cross(out.reshape((-3, -1)), nd.array(rows[1:]).reshape((-1,)))
        loss.backward()
        for p in net.collect_params().values():
            p.data().grad[:] *= 0.5
        trainer.step(20)
        total += loss.mean().asscalar()
    print(epoch, round(float(total), 3))
"""

BY_HAND = """
w, b = nd.random.normal(scale=0.1, shape=(64, 4)), nd.zeros(4)
for p in (w, b):
    p.attach_grad()
for epoch in range(2):
    total = 0.0
    for x, y in loader:
        with autograd.record():
            out = nd.dot(x.reshape((-1, 64)), w) + b
            loss = -nd.pick(nd.log_softmax(out), y).mean()
        loss.backward()
        norm = sum((p.grad ** 2).sum() for p in (w, b)).sqrt().asscalar()
        for p in (w, b):
            if norm > 0.4:
                p.grad[:] *= 0.4 / norm
            p[:] = p - 0.5 * p.grad
        total += loss.asscalar()
    print(epoch, round(float(total), 3))
"""

GATHERED = """
net = nn.Dense(4)
net.initialize(mx.init.Xavier())
net.collect_params().setattr("grad_req", "add")
trainer = gluon.Trainer(net.collect_params(), "nag", {"learning_rate": 0.1, "momentum": 0.9})
for epoch in range(2):
    total = 0.0
    for i, (x, y) in enumerate(loader):
        with autograd.record():
            loss = cross(net(x), y)
        loss.backward()
        if i % 2:
            trainer.step(32)
            net.collect_params().zero_grad()
        total += loss.mean().asscalar()
    print(epoch, round(float(total), 3))
"""

NUMPY = """
from mxnet import np as mnp, npx
npx.set_np()
net = nn.Sequential()
net.add(nn.Dense(8, activation="tanh"), nn.Dense(4))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
for epoch in range(2):
    total = 0.0
    for i in range(6):
        x, y = mnp.array(X[16 * i : 16 * i + 16]), mnp.array(Y[16 * i : 16 * i + 16])
        rare = y > 2
        y[mnp.nonzero(rare)[0]] = y[rare] - 1
        with autograd.record():
            out = net(x.reshape(16, -1))
            loss = cross(out, y).mean() + 0.1 * (out[:, 1:3] ** 2).mean()
            loss = loss + 0.1 * (mnp.expand_dims(out[-1], 1) * out[0]).mean()
        loss.backward()
        trainer.step(1)
        total += float(loss)
    print(epoch, round(total, 3))
"""

COMPILED = """
inner = nn.HybridSequential()
inner.add(nn.Dense(8, activation="relu"), nn.BatchNorm(), nn.Dense(4))
inner.initialize(mx.init.Xavier())
inner(nd.zeros((2, 64)))
net = gluon.SymbolBlock(inner(mx.sym.var("data")), mx.sym.var("data"), params=inner.collect_params())
trainer = gluon.Trainer(net.collect_params(), "rmsprop", {"learning_rate": 0.01})
for epoch in range(2):
    total = 0.0
    for x, y in loader:
        with autograd.record():
            loss = cross(net(x.reshape((-1, 64))), y)
        loss.backward()
        trainer.step(16)
        total += loss.mean().asscalar()
    print(epoch, round(float(total), 3))
"""

SCRIPTS = {
    "normalized": NORMALIZED, "adversaries": ADVERSARIES, "recurrent": RECURRENT, "by hand": BY_HAND,
    "gathered": GATHERED, "numpy": NUMPY, "compiled": COMPILED,
}  # fmt: skip


def script(name: str) -> str:
    """The text of a program."""
    return _BEGIN + SCRIPTS[name]


#: Programs that share memory, change it in place, or do in the second epoch what no step did before: ``{epoch}`` stands
#: in a loop over two epochs of six steps, after a backward pass and before the update.
_ODD = """
w, b = nd.random.normal(scale=0.1, shape=(64, 4)), nd.zeros(4)
net = nn.Dense(4, in_units=4); net.initialize(mx.init.Xavier())
net(nd.zeros((1, 4)))
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
for p in (w, b):
    p.attach_grad("add")
count, flat, slopes, rows = 0, w.reshape((-1,)), [w.grad, b.grad], w[:8]
class Double(autograd.Function):
    def forward(self, x):
        return x * 2
    def backward(self, grad):
        return grad * 2
for epoch in range(3):
    total = 0.0
    for x, y in loader:
        x = x.reshape((-1, 64))
        with autograd.record():
            out = net(nd.dot(x, w) + b)
            loss = cross(out, y).mean()
            BEFORE
        loss.backward()
        AFTER
        w[:] = w - 0.1 * w.grad
        b -= 0.1 * slopes[1]
        for slope in slopes:
            slope[:] = 0
        trainer.step(1)
        total += loss.mean().asscalar()
    print(epoch, round(float(total), 4), round(float(w.norm().asscalar()), 4))
"""

ODD = {
    "a view that stays": ("", "total += float(flat.sum().asscalar() + rows.sum().asscalar())"),
    "a view that is written to": ("", "flat[:] = flat * 0.9"),
    "a part that is a copy": ("", "part = w[:, 1:3]; w[:] = w * 0.9; total += part.sum().asscalar()"),
    "gradients added over steps": ("", "count += 1; total += loss.mean().asscalar()\n        if count % 2: continue"),
    "a function of its own": ("if epoch: loss = Double()(loss)", ""),
    "autograd.grad": ("if epoch: loss = loss + (autograd.grad(loss, [b], retain_graph=True)[0] ** 2).sum()", ""),
    "frozen and back": (
        """net.collect_params().setattr("grad_req", "null" if epoch == 1 else "write")
            loss = net(nd.dot(x, w)).mean()""",
        "",
    ),
    "a computed variable": (
        "",
        """z = x + 0.1; z.attach_grad()
        with autograd.record(): again = cross(net(nd.dot(z, w.detach()) + b.detach()), y)
        again.backward(); x = z + 0.1 * z.grad.sign(); total += float(x.sum().asscalar())""",
    ),
    "a part that is written to": ("", "if epoch: w[2:4] = 0; rows[1:3] = 0.5; total += float(w[:5].sum().asscalar())"),
    "values from the host, twice": (
        "",
        """h = nd.zeros((4,)); h[:] = np.ones(4); b += h * total / 100; h[:] = 3 * np.ones(4); b += h / 100
        if epoch: b = b.sin() if False else b; rows[0] = 0""",
    ),
    "data that was computed": (
        "",
        """if count in (9, 15): z = nd.concat(x * 2, x[3:5] - 1, dim=0); loader = gluon.data.DataLoader(
            gluon.data.ArrayDataset(z, nd.arange(18) % 4), 6); total += sum(a.sum().asscalar() for a, _ in loader)
        if count == 12: total += sum(float(b.data[0].sum().asscalar()) for b in mx.io.NDArrayIter(x + 1, batch_size=4))
        count += 1""",
    ),
    "a store": ("", """if epoch and not count: store = mx.kv.create("local"); store.init(3, w)
        if epoch: count += 1; store.push(3, w * 2); a = w * 0; store.pull(3, a); total += a.norm().asscalar()"""),
    "a net that is exported": (
        "",
        """if epoch == 0: net.hybridize()
        if epoch == 1: net.export("net"); total += 1 - abs(gluon.SymbolBlock.imports(
            "net-symbol.json", ["data"], "net-0000.params")(x[:, :4]) - net(x[:, :4])).max().asscalar()""",
    ),
}  # fmt: skip


def odd_script(name: str) -> str:
    """The text of one of :data:`ODD`."""
    before, after = ODD[name]
    return _BEGIN + _ODD.replace("BEFORE", before).replace("AFTER", after)


#: Programs whose steps are alike but for what is named: ``BEFORE`` stands in the recorded part, ``BETWEEN`` after the
#: backward pass, ``AFTER`` after the update. The number is that of steps, of 24, that can be followed at least.
_FOLLOWED = """
net = nn.HybridSequential()
net.add(nn.Dense(8, activation="relu"), nn.BatchNorm(), nn.Dense(4))
net.initialize(mx.init.Xavier())
extra = nn.Dense(4, in_units=4); extra.initialize(mx.init.Xavier())
trainer = gluon.Trainer([*net.collect_params().values(), *extra.collect_params().values()], "adam",
                        {"learning_rate": 0.01, "wd": 1e-3})
count, kept, outs, state = 0, None, [], nd.zeros((16, 4))
for epoch in range(4):
    total = 0.0
    for x, y in loader:
        count += 1
        with autograd.record():
            out = net(x)
            BEFORE
            loss = cross(out, y)
        loss.backward()
        BETWEEN
        trainer.step(len(x), ignore_stale_grad=True)
        AFTER
        total += float(loss.mean().asscalar())
    print(epoch, round(total, 4), round(float(net[0].weight.data().norm().asscalar()), 4))
print(round(float(net(x).sum().asscalar()), 4))
"""

FOLLOWED = {
    "the same each time": ("", "", "", 16),
    "another operator in mid-step": ("if count in (9, 17): out = out * 1.5", "", "", 12),
    "a rate that changes": ("", "", "trainer.set_learning_rate(0.02 / (1 + count))", 16),
    "a factor that changes": ("out = out * (1 + 0.1 * count) - 0.01 * count", "", "", 16),
    "two structures in turn": ("out = extra(out) if count % 2 else out", "", "", 12),
    "a value that is read at times": ("if count % 3 == 0: total += float(out.sum().asscalar())", "", "", 14),
    "a gradient that is read at times": (
        "", "if count % 4 == 0: total += float(net[0].weight.grad().norm().asscalar())", "", 8),
    "a step that ends early": ("", "if count in (8, 19): continue", "", 8),
    "a view that outlives its step": (
        "", "", "total += 0 if kept is None else float(kept.sum().asscalar()); kept = out[2:5]", 0),
    "outputs that are kept": ("", "", "outs.append(out); total += float(outs[len(outs) // 2].sum().asscalar())", 16),
    "a state that is carried": ("out = out + 0.1 * state", "", "state = out.detach() * 0.5", 16),
    "a state that is replaced": (
        "out = out + 0.1 * state", "", "state = nd.ones((16, 4)) * count if count % 5 == 0 else out * 0.5", 8),
    "weights that are set": ("", "", "if count == 12: net[0].weight.set_data(net[0].weight.data() * 0.5)", 12),
    "arrays from the host": ("out = out * nd.array(np.full((16, 1), 1 + count / 10))", "", "", 16),
    "a buffer that is written to": ("", "", "state[:] = out; total += float(state.sum().asscalar())", 0),
    "gradients that are scaled": (
        "", "for p in net.collect_params().values():\n            if p.grad_req != 'null': p.grad()[:] *= 0.5", "", 16),
    "a part that is written to, once": ("", "if count == 13: net[0].weight.data()[1:3] = 0", "", 8),
}  # fmt: skip

#: A critic learns several times before the other net goes through what was recorded for it; ``OFTEN`` is how often.
CRITICS = (
    _BEGIN
    + """
make, judge = nn.Sequential(), nn.Sequential()
make.add(nn.Dense(8, activation="relu"), nn.Dense(4))
judge.add(nn.Dense(8, activation="tanh"), nn.Dense(1))
for part in (make, judge):
    part.initialize(mx.init.Xavier())
makes, judges = [gluon.Trainer(part.collect_params(), "sgd", {"learning_rate": 0.05}) for part in (make, judge)]
for i in range(4 * OFTEN):
    real, noise = [nd.array(np.random.rand(8, size)) for size in (4, 3)]
    with autograd.record():
        fake = make(noise)
        loss = judge(fake.detach()).mean() - judge(real).mean()
    loss.backward()
    judges.step(1)
    if i % OFTEN == OFTEN - 1:
        with autograd.record():
            other = -judge(fake).mean()
        other.backward()
        makes.step(1)
        print(i, loss.asscalar(), other.asscalar(), make[0].weight.data().norm().asscalar())
"""
)

#: A gamma that is trained and fixed: the decay changes it, and MXNet writes ones into it at the next forward.
FIXED_GAMMA = (
    _BEGIN
    + """
class Fixed(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        for name, value in (("gamma", 0.5), ("beta", 0.0), ("mean", 0.0), ("var", 1.0)):
            req = "write" if name in ("gamma", "beta") else "null"
            setattr(self, name, self.params.get(name, shape=(64,), init=mx.init.Constant(value), grad_req=req))
    def hybrid_forward(self, F, x, gamma, beta, mean, var):
        return F.BatchNorm(x, gamma, beta, mean, var)
net = nn.HybridSequential()
net.add(nn.Flatten(), Fixed(), nn.Dense(4))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.1})
for epoch in range(3):
    for x, y in loader:
        with autograd.record():
            loss = cross(net(x), y)
        loss.backward()
        trainer.step(len(x))
        print(net[1].gamma.data().asnumpy()[3], loss.mean().asscalar())
    if epoch == 1:
        print(net(x).sum().asscalar(), net[1].gamma.data().asnumpy()[3])
"""
)

#: Training and test data are parts of one array, as large as a batch; each sample is a view of a view.
HELD_OUT = """
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
mx.random.seed(0)
data, labels, held_out = mx.nd.random.uniform(shape=(60, 5)), mx.nd.arange(60), 6
train = gluon.data.ArrayDataset(data[held_out:], labels[held_out:])
test = gluon.data.ArrayDataset(data[:held_out], labels[:held_out])
net = nn.Dense(1)
net.initialize()
trainer, loss_of = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3}), gluon.loss.L2Loss()
for epoch in range(3):
    for x, y in gluon.data.DataLoader(train, held_out):
        with autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step(len(y))
    rest = gluon.data.DataLoader(test, held_out)
    print(epoch, sum(float((net(x)[:, 0] - y).abs().sum().asscalar()) for x, y in rest))
"""

#: Batches of kept samples, and whatever a script may do with one beside computing.
BATCHES = """
import pickle, threading
import numpy as np
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
mx.random.seed(0); np.random.seed(0)
data = gluon.data.ArrayDataset(np.random.uniform(size=(30, 4)).astype("float32"), np.arange(30, dtype="int32"))
data = data.transform_first(lambda x: x * 2)
net = nn.Dense(1)
net.initialize()
trainer, loss_of = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3}), gluon.loss.L2Loss()
kept = []
def odd_uses(x, y):
    mx.nd.save("batch.params", [x, y])
    again = pickle.loads(pickle.dumps(x))
    mx.nd.waitall()
    saved = mx.nd.load("batch.params")
    print(x.dtype, y.dtype, x.shape, x.context, (again - saved[0]).abs().sum().asscalar(), saved[1].sum().asscalar())
    print(x[1:3].sum().asscalar(), x.reshape((-1,))[:2].asnumpy(), x.copy().mean().asscalar(), len(y))
    print(int(y[0].asscalar()))
    x[:] = 0
    print(x.sum().asscalar(), x.as_in_context(mx.cpu(0)).sum().asscalar())
for epoch in range(4):
    for at, (x, y) in enumerate(gluon.data.DataLoader(data, 6)):
        with autograd.record():
            loss = loss_of(net(x), y.astype("float32"))
        loss.backward()
        trainer.step(len(y))
        print("loss", loss.mean().asscalar())
        kept.append((x, y))
        if at == epoch:
            odd_uses(x, y)
print([(float(x.sum().asscalar()), float(y.sum().asscalar())) for x, y in kept])
def elsewhere():
    for x, y in gluon.data.DataLoader(data, 15):
        print(x.asnumpy().sum(), y.asnumpy())
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
"""


def followed_script(name: str) -> str:
    """The text of one of :data:`FOLLOWED`."""
    before, between, after, _ = FOLLOWED[name]
    text = _FOLLOWED.replace("adam", "sgd") if "scaled" in name else _FOLLOWED  # Adam's steps are alike at any scale
    return _BEGIN + text.replace("BEFORE", before).replace("BETWEEN", between).replace("AFTER", after)


#: Programs whose calls of blocks and updaters can be answered, but for what is named: ``FORWARD`` is a block's own,
#: ``SETUP`` stands before the loop, ``BEFORE`` in the recorded part, ``AFTER`` after the update. The number is that of
#: calls, of 120, that can be answered at least.
_CALLED = """
import random
random.seed(5)
class Own(gluon.Block):
    def __init__(self):
        super().__init__()
        self.inner, self.factor, self.factors, self.seen = nn.Dense(4, in_units=4), 1.0, [1.0], 0
        self.register_child(self.inner)
    def forward(self, x):
        FORWARD
net = nn.HybridSequential()
net.add(nn.Dense(8), nn.LeakyReLU(0.1), nn.BatchNorm(), nn.Dense(4))
other, own = nn.Dense(4, in_units=8), Own()
for block in (net, other, own):
    block.initialize(mx.init.Xavier())
net(nd.array(X[:2]))
together = [p for block in (net, other, own) for p in block.collect_params().values()]
trainer = gluon.Trainer(together, "sgd", {"learning_rate": 0.05, "momentum": 0.9})
count, kept, scale, shown = 0, [], 1.0, 0
SETUP
for epoch in range(5):
    total = 0.0
    for x, y in loader:
        count += 1
        with autograd.record():
            out = own(net(x))
            BEFORE
            loss = cross(out, y)
        loss.backward()
        trainer.step(len(x), ignore_stale_grad=True)
        AFTER
        total += float(loss.mean().asscalar())
    print(epoch, round(total, 4), round(float(net[0].weight.data().norm().asscalar()), 4))
print(own.seen, shown, len(kept), round(float(out.sum().asscalar()), 4))
"""

_PLAIN = "return self.inner(x) * self.factor"
CALLED = {
    "blocks that do the same": (_PLAIN, "", "", "", 60),
    "a net that is hybridized": (_PLAIN, "net.hybridize()", "", "", 60),
    "a forward that counts its calls": ("self.seen += 1; return self.inner(x) * (1 + self.seen / 50)", "", "", "", 30),
    "a forward that prints at times": (
        "global shown; shown += 1; print(shown) if shown % 7 == 0 else None; return self.inner(x)", "", "", "", 30),
    "a forward that draws in Python": ("return self.inner(x) * (1 + random.random())", "", "", "", 30),
    "a forward that collects": ("kept.append(1); self.factors.append(2); return self.inner(x)", "", "", "", 30),
    "a forward that asks for a value": ("return self.inner(x) * (2 if x.sum().asscalar() > 0 else 1)", "", "", "", 30),
    "a number of the script's": ("return self.inner(x) * scale", "", "", "scale = 1 + count / 40", 30),
    "an attribute that is set": (_PLAIN, "", "", "if count % 6 == 0: own.factor = 1 + count / 40", 30),
    "a list of a block's": (
        "return self.inner(x) * self.factors[0]", "", "", "if count % 6 == 0: own.factors[0] = 1 + count / 40", 30),
    "an array of a block's": (
        "return self.inner(x) + self.array", "own.array = nd.ones((4,))", "",
        "if count % 7 == 0: own.array = nd.arange(4) * count / 10", 30),
    "an attribute of a layer": (_PLAIN, "", "", "if count == 15: net[1]._alpha = 0.7", 30),
    "a layer that is replaced": (_PLAIN, "", "", "if count == 15: net._children['3'] = other", 30),
    "a hook that comes later": (
        _PLAIN, "", "", "if count == 15: net[1].register_forward_hook(lambda *_: kept.append(1))", 30),
    "hybridized again": (
        _PLAIN, "net.hybridize()", "", "if count == 15: net._children['3'] = other; net.hybridize()", 30),
    "a layer that is frozen": (
        _PLAIN, "", "", "if count == 15: net[0].collect_params().setattr('grad_req', 'null')", 30),
    "a smaller batch at the end": (
        _PLAIN, "loader = gluon.data.DataLoader(gluon.data.ArrayDataset(X[:90], Y[:90]), 16)", "", "", 30),
    "another operator after a call": (_PLAIN, "", "if count in (12, 19): out = out * 1.5", "", 30),
    "a schedule": (_PLAIN, """trainer = gluon.Trainer(together, "nag", {"learning_rate": 0.05, "momentum": 0.9,
        "lr_scheduler": mx.lr_scheduler.FactorScheduler(5, 0.7, base_lr=0.05)})""", "", "", 80),
    "a schedule of the script's": (_PLAIN, """class Falling(mx.lr_scheduler.LRScheduler):
    def __call__(self, steps):
        self.base_lr *= 0.99
        return self.base_lr
trainer = gluon.Trainer(together, "adam", {"learning_rate": 0.05, "lr_scheduler": Falling(0.05)})""", "", "", 60),
    "a momentum that changes": (_PLAIN, "", "", "if count == 15: trainer._optimizer.momentum = 0.3", 60),
    "states that are loaded": (
        _PLAIN, "", "",
        "trainer.save_states('s') if count == 12 else trainer.load_states('s') if count == 20 else None", 30),
    "images": ("return self.inner(x)", """net = nn.HybridSequential()
net.add(nn.Conv2D(4, 3, padding=1), nn.BatchNorm(), nn.MaxPool2D(), nn.Conv2D(8, 2, in_channels=4), nn.Dense(4))
net.initialize(mx.init.Xavier()); net(nd.array(X[:2])); net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})""",
        "shown = round(float(out.sum().asscalar()), 3) if count % 9 == 0 else shown", "", 60),
    "a recurrent net": ("return self.inner(x)", """net = nn.HybridSequential()
net.add(nn.Dense(64), nn.HybridLambda(lambda F, x: F.reshape(x, shape=(8, -1, 8))), rnn.LSTM(6),
        nn.HybridLambda(lambda F, y: F.SequenceLast(y)), nn.Dense(4))
net.initialize(mx.init.Xavier()); net(nd.array(X[:2]))
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})""", "", "", 60),
    "nested results": (
        "return self.inner(x), [x * 2, None]", "",
        "out, (twice, nothing) = out; out = out + 0.01 * twice; assert nothing is None", "", 60),
    "views in a call": (
        "y = x[1:]; return self.inner(nd.concat(y.reshape((-1, 2)).reshape((-1, 4)), x[:1], dim=0))", "",
        "if count in (12, 19): out = out * out.detach().abs()", "", 30),
    "a view that is written to": (
        "return self.inner(x)[:]", "", "", "out[:] = 0; total += float(out.sum().asscalar())", 0),
    "outputs that outlive their step": (_PLAIN, "", "", "kept.append(out); total += kept[-3:][0].sum().asscalar()", 60),
}  # fmt: skip


def called_script(name: str) -> str:
    """The text of one of :data:`CALLED`."""
    forward, setup, before, after, _ = CALLED[name]
    text = _BEGIN + _CALLED.replace("FORWARD", forward).replace("SETUP", setup)
    return text.replace("BEFORE", before).replace("AFTER", after)


_PREDICTED = """
def batches(size):
    for at in range(0, 90, size):
        yield nd.array(X[at : at + size].reshape(-1, 64)), nd.array(Y[at : at + size])
net = nn.HybridSequential()
net.add(nn.Dense(8, activation="relu"), nn.BatchNorm(), nn.Dense(4))
net.initialize(mx.init.Xavier())
def plain(x):
    w, b = (net[2].weight.data(), net[2].bias.data())
    return nd.dot(net[0](x), w.T) + b
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})
for epoch in range(5):
    total, right = 0.0, 0.0
    for x, y in batches(18):
        with autograd.record():
            out = net(x)
            loss = cross(out, y)
        BEFORE
        loss.backward()
        trainer.step(len(x))
        total += float(loss.mean().asscalar())
    PREDICT
    print(epoch, round(total, 4), round(right, 4), round(float(net[0].weight.data().norm().asscalar()), 4))
"""

#: Passes that are not recorded, in the midst of training: what is done before a backward pass and after an epoch, and
#: how many steps are followed at least.
PREDICTED = {
    "by a net": ("", """for x, y in batches(4):
        right += float((net(x).argmax(axis=1) == y).sum().asscalar())""", 80),
    "by functions": ("", """for x, y in batches(4):
        p = plain(x).softmax(); p = p / p.sum(axis=1, keepdims=True)
        right += float((p.argmax(axis=1) == y).sum().asscalar()) + float((p * p.log()).mean().asscalar())""", 130),
    "of several losses": ("", """for x, y in batches(4):
        out = net(x); right += float(cross(out, y).mean().asscalar())
        right += float(out.max().asscalar()) + out.asnumpy().std()""", 100),
    "of longer and longer inputs": ("", """seen = nd.array(X[:1].reshape(1, 64))
    for step in range(20):
        seen = nd.concat(seen, seen[-1:] + net(seen).mean() * 0.1, dim=0); right += float(seen.sum().asscalar())
        if step % 6 == 5: right += seen[1:3].asnumpy().sum()""", 10),
    "before the backward pass": ("""for a, b in batches(30):
            right += float((net(a).argmax(axis=1) == b).sum().asscalar()) + float(out.sum().asscalar())""", "", 8),
    "with a value that is kept": ("", """for x, y in batches(4):
        kept = net(x); old = kept if not right else old; right += float((kept - old[0]).sum().asscalar())""", 80),
}  # fmt: skip


def predicted_script(name: str) -> str:
    """The text of one of :data:`PREDICTED`."""
    before, predict, _ = PREDICTED[name]
    return _BEGIN + _PREDICTED.replace("BEFORE", before).replace("PREDICT", predict)


_RESIDENT = """
net = nn.HybridSequential()
net.add(nn.Dense(8, activation="tanh"), nn.Dense(4))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
data, labels, count, kept = nd.array(X.reshape(96, 64)), nd.array(Y), 0, None
SETUP
for epoch in range(5):
    total = 0.0
    for at in range(0, 96, 16):
        count += 1
        x, y = TAKE, labels[at : at + 16]
        BEFORE
        with autograd.record():
            loss = cross(net(x), y)
            WITHIN
        loss.backward()
        BETWEEN
        trainer.step(16)
        AFTER
        total += float(loss.mean().asscalar())
    print(epoch, round(total, 4), round(float(net[0].weight.data().norm().asscalar()), 4))
print(float(data.sum().asscalar()), float(x.sum().asscalar()))
"""

#: Steps on other parts of one array each time: how a part is taken, what is done beside it (in the order of the
#: places above), and how many steps of 30 are followed at least.
RESIDENT = {
    "rows": ("data[at : at + 16]", {}, 24),
    "rows of a part": ("whole[8 + at : 24 + at]", {"SETUP": "whole = nd.concat(data, data, dim=0)[4:180]"}, 27),
    "rows in another shape": ("data[at : at + 16].reshape((16, 64))", {}, 20),
    "rows beside others that begin to change": (
        "nd.concat(data[:8], data[8:16] if count < 14 else data[at : at + 8], dim=0)", {}, 14),
    "rows of what operators made": ("data[at : at + 16]", {"SETUP": "data = data * 2 - 1"}, 24),
    "rows that change when the array does, before": ("data[at : at + 16]", {"BEFORE": "data[:] = data * 0.99"}, 0),
    "in the step": ("data[at : at + 16]", {"BETWEEN": "data[:] = data * 0.98; total += float(x.sum().asscalar())"}, 0),
    "at times": (
        "data[at : at + 16]", {"AFTER": "if count % 7 == 0: data[:] = data * 0.9; total += float(x.sum().asscalar())"},
        22),
    "from the host, at times": (
        "data[at : at + 16]",
        {"AFTER": "if count % 7 == 0: data[:] = X.reshape(96, 64) * count; total += float(x.sum().asscalar())"}, 12),
    "beside the array": ("data[at : at + 16]", {"WITHIN": "loss = loss + 0.01 * data.mean()"}, 0),
    "that are kept": (
        "data[at : at + 16]", {"AFTER": "total += 0 if kept is None else float(kept.sum().asscalar()); kept = x"}, 27),
    "that are shown": ("data[at : at + 16]", {"BEFORE": "total += float(x[3].sum().asscalar())"}, 20),
    "of a variable, in the pass": (
        "data[at : at + 16]", {"SETUP": "data.attach_grad()", "WITHIN": "loss = cross(net(data[at : at + 16]), y)",
                 "BETWEEN": "total += float(data.grad[at : at + 16].norm().asscalar())"}, 0),
    "that arrive with their array": (
        "nd.concat(whole[count], parts[count], dim=0)",
        {"SETUP": "whole = [nd.array(X.reshape(96, 64)[k : k + 8]) for k in range(31)]; "
                  "last = nd.array(X.reshape(96, 64)[-8:]); "
                  "parts = [last.copy() if k < 14 else whole[k].reshape((8, 64)) for k in range(31)]",
         "BETWEEN": "whole[count][:] = whole[count] * 0.5; total += float(parts[count].asnumpy().sum())"}, 5),
    "of weights that are loaded": (
        "data[at : at + 16]",
        {"AFTER": "if count % 6 == 0: net[1].weight.set_data(net[1].weight.data() * 0.9); net[1].bias._load_init("
                  "nd.ones((4,)) * 0.1, mx.cpu())"}, 19),
}  # fmt: skip


def resident_script(name: str) -> str:
    """The text of one of :data:`RESIDENT`."""
    take, parts, _ = RESIDENT[name]
    text = _RESIDENT.replace("TAKE", take)
    for place in ("SETUP", "BEFORE", "WITHIN", "BETWEEN", "AFTER"):
        text = text.replace(place, parts.get(place, ""))
    return _BEGIN + text


#: What users do, each of which was once computed wrongly.
PLAIN = {
    "losses that are kept, and added up at the end": """
mx.random.seed(42)
net = nn.Sequential(); net.add(nn.Dense(8, activation="relu"), nn.Dense(4)); net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
X, Y, kept, shown = nd.array(X), nd.array(Y), [], []
for epoch in range(6):
    for i in range(0, 96, 24):
        with autograd.record():
            loss = cross(net(X[i : i + 24]), Y[i : i + 24])
        loss.backward(); trainer.step(24)
    kept.append(cross(net(X), Y))
    shown.append(nd.sum(kept[-1]).asscalar())
print(*shown, *[nd.sum(each).asscalar() for each in kept])
""",
    "a loss of one number for each sample": """
X, Y = nd.array(X.reshape((96, -1))), nd.array(Y)
net, half = nn.Dense(1), gluon.loss.L2Loss(); net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.02})
for i in range(0, 96, 12):
    with autograd.record():
        each = half(net(X[i : i + 12]).reshape((-1,)), Y[i : i + 12])
    each.backward(); trainer.step(12)
    print(*each.asnumpy(), each.size)
""",
    "layers that are frozen half-way": """
body, head = nn.HybridSequential(), nn.Dense(4)
body.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Flatten())
body.initialize(mx.init.Xavier()); head.initialize(mx.init.Xavier()); body.hybridize()
trainers = [gluon.Trainer(part.collect_params(), "sgd", {"learning_rate": 0.02}) for part in (body, head)]
for epoch in range(4):
    if epoch == 2: body.collect_params().setattr("grad_req", "null"); trainers = trainers[1:]
    for x, y in loader:
        with autograd.record():
            loss = cross(head(body(x)), y)
        loss.backward()
        for trainer in trainers: trainer.step(16)
    print(loss.mean().asscalar(), *body[1].running_mean.data().asnumpy())
""",
}  # fmt: skip


def plain_script(name: str) -> str:
    """The text of one of :data:`PLAIN`."""
    return _BEGIN + PLAIN[name]


#: Of ``mx.np``: three epochs of eight steps, in one of which another operator comes.
NUMPY_UPDATES = """
import mxnet as mx, numpy as onp
from mxnet import np, npx, autograd, gluon
from mxnet.gluon import nn
npx.set_np(); mx.random.seed(3); onp.random.seed(3)
X = onp.random.rand(64, 8).astype("float32")
net = nn.Sequential(); net.add(nn.Dense(8, activation="tanh"), nn.Dense(4)); net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
loss_fn, count = gluon.loss.L2Loss(), 0
for epoch in range(3):
    total = 0.0
    for i in range(8):
        count += 1
        x = np.array(X[8 * i : 8 * i + 8])
        with autograd.record():
            out = net(x)
            if count == 15: out = out * 2
            loss = loss_fn(out, x[:, :4])
        loss.backward()
        trainer.step(8)
        if count % 7 == 0: trainer.set_learning_rate(0.1 / count)
        total += float(loss.mean())
    print(epoch, round(total, 4), round(float(np.linalg.norm(net[0].weight.data())), 4))
"""

#: Of whole numbers, ``a`` and ``b``.
WHOLE = [
    "a+1", "1-a", "a*2", "a+b", "a*b", "a==b", "a==2", "a<b", "a<2", "nd.where(a==2,a,b)", "a.sum()", "a.max()",
    "nd.concat(a,b,dim=0)", "nd.broadcast_add(a.reshape((3,1)),b.reshape((1,3)))", "nd.take(a,b)",
    "nd.pick(a.reshape((1,3)),nd.array([1]))", "nd.gather_nd(a,nd.array([[0,1]]))", "nd.broadcast_maximum(a,b)",
    "nd.maximum(a,2)", "a/2", "a%2", "a**2", "-a", "nd.abs(a)", "a.clip(1,2)", "nd.argmax(a,axis=0)",
    "nd.topk(a,k=2,ret_typ='indices')", "nd.topk(a,k=2,ret_typ='indices',dtype='int32')", "a.astype('float32')",
    "nd.argsort(a,dtype='int32')", "nd.broadcast_logical_and(a,b)", "nd.logical_not(a)", "nd.one_hot(a,4)",
    "nd.one_hot(a,4,dtype='int32')", "a.mean()", "nd.dot(a.astype('float32'),b.astype('float32'))",
    "nd.zeros_like(a)", "nd.ones_like(a)", "nd.stack(a,b)", "nd.tile(a,(2,))", "nd.repeat(a,2)", "a[1:]",
    "nd.arange(3,dtype='int32')", "nd.sort(a)",
    "nd.SequenceMask(a.reshape((3,1)),nd.array([2]),use_sequence_length=True)", "nd.floor(a)", "nd.sqrt(a)",
    "nd.exp(a)", "nd.square(a)", "nd.sign(a)", "5-a", "(a>1)*(b>1)",
    "nd.Embedding(a,nd.ones((5,2)),input_dim=5,output_dim=2)", "a.astype('float16')+1", "a.astype('uint8')+1",
    "a.astype('int64')*2", "nd.shape_array(a)", "a.astype('float32').norm()",
    "nd.broadcast_hypot(a.astype('float32'),b.astype('float32'))", "nd.contrib.arange_like(a.astype('float32'))",
    "a.astype('float32')*b.astype('float32')",
]  # fmt: skip

TYPED = """
import mxnet as mx, numpy as np
from mxnet import nd, autograd
w = nd.ones((3,)); w.attach_grad()
def typed():
    a, b = nd.array([1, 2, 3], dtype="int32"), nd.array([2, 2, 2], dtype="int32")
    found = [eval(text, {"nd": nd, "a": a, "b": b}) for text in WHOLE]
    return [(str(np.dtype(x.dtype)), str(x.asnumpy().dtype), np.round(x.asnumpy(), 3).tolist()) for x in found]
first = typed()
for i in range(4):
    with autograd.record():
        loss = (w * w).sum()
    loss.backward(); w[:] = w - 0.1 * w.grad
print([text for text, one, two in zip(WHOLE, first, typed()) if one != two])
"""
