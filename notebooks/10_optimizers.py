# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 · Optimizers by name
#
# **Question.** `gluon.Trainer(params, "sgd")`: MXNet has seventeen words for that place, gluontune nineteen. What do they do
# differently, and how much does the choice matter here?
#
# **You will be able to** exchange a Trainer's optimizer, write the formulas of seven as code, and choose one by trying, at a rate
# tuned for it and over several seeds.
#
# **Before this:** `06_large_batch`, `09_descent`. **Time:** 35 minutes; on two cores the cells run for half a minute.

# %%
from gluontune.course import picture

picture("optimizers")

# %% tags=["parameters"]
dataset = "sample"
epochs = 2
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/10_optimizers"
seed = 0
quick_samples = 5000

# %%
import numpy as np

import gluontune as gt
from gluontune.course import bars, check, compare, descent, pixels_of, predict, table

mx = gt.runtime.mxnet()
gluon, nd, nn = mx.gluon, mx.nd, mx.gluon.nn
predict("points of accuracy between the best and the worst of six optimizers", ...)
predict("points of accuracy between the best and the worst seed of plain SGD", ...)

# %% [markdown]
# ## By hand: another word for the Trainer
# In Gluon an optimizer is a name and its options. The loop does not change: `trainer.step` applies its rule to each parameter.

# %%
data = gt.datasets.open(dataset)
(pixels, labels), (val_pixels, val_labels) = pixels_of(data.train, 2048), pixels_of(data.test, 1000)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()


# %%
def train(make_trainer, draw, steps=80, batch=64):
    mx.random.seed(draw)
    net, rng = nn.HybridSequential(), np.random.default_rng(draw)
    net.add(nn.Dense(64, activation="relu"), nn.Dense(len(data.classes)))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    net(nd.array(pixels[:2]))
    trainer = make_trainer(net)
    for _ in range(steps):
        chosen = rng.integers(0, len(pixels), batch)
        with mx.autograd.record():
            loss = loss_of(net(nd.array(pixels[chosen])), nd.array(labels[chosen]))
        loss.backward()
        trainer.step(batch)
    right = net(nd.array(val_pixels)).asnumpy().argmax(1) == val_labels
    return 100 * right.mean()


# %%
trainers = {
    "sgd": {"learning_rate": 0.2},
    "sgd, momentum": {"learning_rate": 0.1, "momentum": 0.9},
    "nag": {"learning_rate": 0.1, "momentum": 0.9},
    "adam": {"learning_rate": 0.003},
    "adamax": {"learning_rate": 0.005},
    "nadam": {"learning_rate": 0.003},
}


def with_mxnet(name):
    return lambda net: gluon.Trainer(net.collect_params(), name.split(",")[0], trainers[name])


seeds = range(3)
accuracy = {name: [train(with_mxnet(name), draw) for draw in seeds] for name in trainers}

# %%
bars(
    {n: {"median": float(np.median(a)), "ci95": (min(a), max(a))} for n, a in accuracy.items()},
    unit="validation accuracy, percent",
    caption="Six optimizers after 80 updates: median of three seeds, and the least and greatest",
)

# %%
middle = {name: np.median(found) for name, found in accuracy.items()}
first = max(middle, key=middle.get)
apart = [name for name, found in accuracy.items() if max(found) < min(accuracy[first])]
print(f"lines that do not overlap with {first}'s, the best: {', '.join(apart) or 'none'}")
print(
    compare(
        "points of accuracy between the best and the worst of six optimizers",
        max(middle.values()) - min(middle.values()),
    )
)
print(compare("points of accuracy between the best and the worst seed of plain SGD", np.ptp(accuracy["sgd"])))

# %% [markdown]
# Where the lines overlap, nothing is decided. The deck trained CIFAR-10 for 20 epochs, once each: SGD 0.816, NAG 0.771 (0.824 two epochs
# before), LBSGD 0.793. The accuracy goes up and down from epoch to epoch by as much as these differ.
#
# ## By hand: a rate for each
# The rates above were tried before. With one rate for all, the comparison says which optimizer the rate suits, and nothing else. Three rates
# for each, two seeds, the mean:

# %%
table_of_rates = {}
for name in ("sgd", "sgd, momentum", "adam"):
    for times in (0.1, 1, 10):
        label = f"{name}, {times:g} × its rate"
        trainers[label] = {**trainers[name], "learning_rate": trainers[name]["learning_rate"] * times}
        found = [train(with_mxnet(label), draw) for draw in range(2)]
        table_of_rates.setdefault(name, {})[f"{times:g} × its rate"] = f"{np.mean(found):.1f}"
table({"optimizer": name, **found} for name, found in table_of_rates.items())

# %% [markdown]
# A factor of ten in the rate changes more than the name of the optimizer does.
#
# ## Seven formulas
# $w$ are the weights, $g$ is their gradient, $\eta$ the learning rate. All steps are element by element; $\Vert w \Vert$ is the length
# of a layer's weights, the root of the sum of their squares. $\mu$, $\rho$ and $\beta$ say how much of the old is kept, $\tau$ is a factor
# (lesson 06), $\epsilon$ keeps a division from zero, $t$ counts updates. Plain SGD is $w \leftarrow w - \eta g$.
#
# | name | what it remembers | the step |
# |---|---|---|
# | momentum ([Polyak, 1964](https://doi.org/10.1016/0041-5553%2864%2990137-5)) | $v \leftarrow \mu v - \eta g$ | $w \leftarrow w + v$ |
# | Nesterov ([1983](https://www.mathnet.ru/eng/dan46009), [as here: Sutskever, 2013](https://proceedings.mlr.press/v28/sutskever13.html)) | $v \leftarrow \mu v - \eta g$ | $w \leftarrow w + \mu v - \eta g$ |
# | Adagrad ([Duchi, 2011](https://jmlr.org/papers/v12/duchi11a.html)) | $G \leftarrow G + g^2$ | $w \leftarrow w - \eta\, g / \sqrt{G + \epsilon}$ |
# | AdaDelta ([Zeiler, 2012](https://arxiv.org/abs/1212.5701)) | $A \leftarrow \rho A + (1-\rho) g^2$, then $B \leftarrow \rho B + (1-\rho) d^2$ | $d = g\,\sqrt{B + \epsilon} / \sqrt{A + \epsilon}$, $\; w \leftarrow w - \eta d$ |
# | Adam ([Kingma, 2014](https://arxiv.org/abs/1412.6980)) | $m \leftarrow \beta_1 m + (1-\beta_1) g$, $\; v \leftarrow \beta_2 v + (1-\beta_2) g^2$ | $w \leftarrow w - \eta\, \hat m / (\sqrt{\hat v} + \epsilon)$ with $\hat m = m/(1-\beta_1^t)$, $\hat v = v/(1-\beta_2^t)$ |
# | LARS ([You, 2017](https://arxiv.org/abs/1708.03888)) | as momentum, with the layer's rate $\lambda = \eta\,\tau\,\Vert w \Vert / \Vert g \Vert$ | $w \leftarrow w + v$ |
# | LAMB ([You, 2019](https://arxiv.org/abs/1904.00962)) | as Adam | $r = \hat m / (\sqrt{\hat v} + \epsilon)$, $\; w \leftarrow w - \eta\,(\Vert w \Vert / \Vert r \Vert)\, r$ |
#
# *Momentum* keeps going where gradients agree. *Nesterov* brakes earlier, because it looks where the momentum is about to
# arrive. *Adagrad* gives each weight a rate of its own, which only falls; *AdaDelta* forgets old gradients and needs no rate: its step has the
# size of its earlier steps, and $\eta$ stays 1. *Adam* remembers two running means: $m$ of the gradients, which is its momentum, and $v$ of
# their squares, which gives each weight a rate of its own. Both begin at zero and are too small at first; the hats, $\hat m$ and $\hat v$,
# correct for that. *LARS* and *LAMB* make a layer's step a fixed share of its weights, whatever the size of the gradient: so a large batch may
# take a large rate (lesson 06). The same as code:


# %%
def momentum(s, w, g, lr, mu=0.9):
    s["v"] = mu * s.get("v", 0) - lr * g
    return w + s["v"]


def nesterov(s, w, g, lr, mu=0.9):
    s["v"] = mu * s.get("v", 0) - lr * g
    return w + mu * s["v"] - lr * g


def adagrad(s, w, g, lr, eps=1e-7):
    s["G"] = s.get("G", 0) + g * g
    return w - lr * g / np.sqrt(s["G"] + eps)


def adadelta(s, w, g, lr, rho=0.9, eps=1e-5):
    s["A"] = rho * s.get("A", 0) + (1 - rho) * g * g
    d = g * np.sqrt(s.get("B", 0) + eps) / np.sqrt(s["A"] + eps)
    s["B"] = rho * s.get("B", 0) + (1 - rho) * d * d
    return w - lr * d


# %%
def corrected(s, g, b1=0.9, b2=0.999):
    s["t"] = s.get("t", 0) + 1
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    return s["m"] / (1 - b1 ** s["t"]), s["v"] / (1 - b2 ** s["t"])


def adam(s, w, g, lr, eps=1e-8):
    m, v = corrected(s, g)
    return w - lr * m / (np.sqrt(v) + eps)


def lars(s, w, g, lr, trust=0.02):
    return momentum(s, w, g, lr * trust * np.linalg.norm(w) / np.linalg.norm(g))


def lamb(s, w, g, lr, eps=1e-6):
    m, v = corrected(s, g)
    r = m / (np.sqrt(v) + eps)
    return w - lr * np.linalg.norm(w) / np.linalg.norm(r) * r


# %% [markdown]
# ## With gluontune: the same rules
# Are these the optimizers that train nets here? Each takes 30 updates on a surface whose gradient is `(x, 25·y)`, once by the
# formula and once by `gt.optim`. The walks should be the same, but for rounding.


# %%
def by_formula(rule, lr, w=(-4.0, 1.5), updates=30):
    state, found = {}, [np.array(w)]
    for _ in range(updates):
        w = found[-1]
        found.append(rule(state, w, np.array([w[0], 25 * w[1]]), lr))
    return np.stack(found)


formulas = {
    "sgd": (momentum, {"learning_rate": 0.01, "momentum": 0.9}),
    "nag": (nesterov, {"learning_rate": 0.01, "momentum": 0.9}),
    "adagrad": (adagrad, {"learning_rate": 0.6}),
    "adadelta": (adadelta, {"learning_rate": 1.0}),
    "adam": (adam, {"learning_rate": 0.2}),
    "lars": (lars, {"learning_rate": 1.0, "momentum": 0.9, "trust_coefficient": 0.02}),
    "lamb": (lamb, {"learning_rate": 0.05}),
}

# %%
gaps = {}
for name, (rule, options) in formulas.items():
    options = {
        **options,
        "wd": 0.0,
        "exempt": lambda p: False,
    }  # LARS and LAMB spare vectors; here is only one
    theirs = descent.walk(name, "valley", start=(-4.0, 1.5), updates=30, **options)
    gaps[name] = np.abs(theirs - by_formula(rule, options["learning_rate"])).max()
table({"optimizer": name, "largest difference on the way": f"{gap:.1e}"} for name, gap in gaps.items())

# %%
assert max(gaps.values()) < 1e-3, gaps

# %% [markdown]
# ## The others in the list
# `gt.optim.list_optimizers()` has nineteen: these seven, eleven below, and *YellowFin*.
#
# | name | idea | made for |
# |---|---|---|
# | RMSProp (Tieleman and Hinton, 2012) | Adagrad that forgets: a running mean of `g²` | gradients that change their size |
# | AdaMax (Kingma, 2014) | Adam with the largest recent gradient, $u \leftarrow \max(\beta_2 u, \vert g \vert)$, in place of $\sqrt{v}$ | sparse gradients, embeddings |
# | Nadam (Dozat, 2016) | Adam that looks ahead as Nesterov does | as Adam |
# | AdamW (Loshchilov, 2017) | Adam whose *weight decay* (each weight shrinks a little at each update) is not divided by `√v̂` | whoever decays weights with Adam |
# | LARC (NVIDIA) | LARS whose layer rate never exceeds `η` | large batches, without a warm-up that is tuned |
# | NovoGrad (Ginsburg, 2019) | Adam with one `v` for a whole layer | large batches with half of Adam's memory |
# | Signum (Bernstein, 2018) | momentum, of which only the sign is used | sending one bit for each weight |
# | FTML (Zheng and Kwok, 2017) | follows the leader that moves: recent gradients count more | data that drifts |
# | DCASGD (Zheng, 2016) | corrects a gradient for the weights having moved since | ranks that do not wait (`08_scaling`) |
# | LBSGD (MXNet) | LARS with its warm-up built in | large batches (lesson 06) |
# | Muon (Jordan, 2024) | makes a layer's step orthogonal: every direction moves | few, large updates (lesson 06) |
#
# *YellowFin* ([Zhang and Mitliagkas, 2017](https://arxiv.org/abs/1706.03471)) sets rate and momentum by itself, from the smallest and the
# largest curvature, $h_{min}$ and $h_{max}$, that it has seen lately. For a bowl the choice that is fastest in the long run is known:
#
# $$\sqrt{\mu} = \frac{\sqrt{h_{max}/h_{min}} - 1}{\sqrt{h_{max}/h_{min}} + 1}, \qquad \eta = \frac{(1 - \sqrt{\mu})^2}{h_{min}} .$$

# %%
low, high = 1.0, 25.0  # curvatures of the valley of lesson 09
root = (np.sqrt(high / low) - 1) / (np.sqrt(high / low) + 1)
tuned = {"momentum": root**2, "learning_rate": (1 - root) ** 2 / low}
ends = descent.walk("sgd", "valley", start=(-4.0, 1.5), updates=30, **tuned)[-1]
print(f"momentum {tuned['momentum']:.2f}, rate {tuned['learning_rate']:.3f}:", end=" ")
print(f"height {descent.SURFACES['valley'](*ends):.1e} after 30 updates")

# %% [markdown]
# *ESGD* (Cui, 2018) is another kind: it trains a *population* of nets. Each trains a while by an optimizer of its own, then
# the best of them are kept and mixed, and the rest are dropped. `gluontune esgd` does it, and compares at equal compute.

# %% [markdown]
# ## With gluontune: on the net
# `gt.optim.setup` makes a Trainer with any of them, in the same loop. It counts updates and batch by itself, spares biases from weight
# decay, and keeps float32 masters. It mends faults of MXNet's rules: Nadam advances its momentum once a parameter instead of once an update (so
# the results below differ), `LARS` never spares biases in a Trainer, `LBSGD` sums gradients in a buffer that is overwritten. YellowFin needs
# no rate: the 1.0 in the code is a factor on the one that it finds. The table shows what this ease costs.


# %%
def with_gluontune(name):
    options = {"momentum": 0.0, **trainers[name]} if name in trainers else {"learning_rate": 1.0}
    return lambda net: gt.optim.setup(name.split(",")[0], net, global_batch_size=64, **options)


both = {
    name: (accuracy.get(name), [train(with_gluontune(name), draw) for draw in seeds])
    for name in ("sgd, momentum", "nag", "adamax", "nadam", "yellowfin")
}
table(
    {
        "optimizer": n,
        **{w: ", ".join(f"{x:.1f}" for x in a or []) or "—" for w, a in zip(("Trainer", "setup"), pair)},
    }
    for n, pair in both.items()
)

# %%
# Try this: another pair of rate and momentum. Can you beat YellowFin's formula, soon and in the long run?
for updates in (30, 60):
    for mu, rate in ((0.3, 0.06), tuple(tuned.values()), (0.5, 0.11)):
        w = descent.walk("sgd", "valley", start=(-4.0, 1.5), updates=updates, learning_rate=rate, momentum=mu)
        height = descent.SURFACES["valley"](*w[-1])
        print(f"{updates} updates, momentum {mu:.2f}, rate {rate:.3f}: height {height:.1e}")

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `gluon.Trainer(params, "nag", {…})` | `gt.optim.setup("nag", net, …)` | nineteen rules, checked against their formulas; biases spared; masters; schedules that are pure |
# | a few rates, three seeds, a table | `gt.optim.find_learning_rate`, `gluontune tta` | a rate for each; time to one accuracy over many seeds, in turn |
#
# ## Summary: what to remember
# - An optimizer is a rule for one parameter: what it remembers of the gradients, and the step that it makes of it.
# - The rate matters more than the name.
# - Compare optimizers only at rates tuned for each, and over several seeds.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
# Adam's first update, t = 1: a gradient of 0.001, rate 0.003, ε so small that it does not count. How long is the step?
check("adam-first-step", ...)

# %%
# A net has 25 million float32 weights. How many million bytes does Adam remember beside the weights and gradients?
check("optimizer-memory", ...)

# %%
# Write a function (w, v, g, lr, mu) -> (w, v) on NDArrays: one update of Nesterov's, as in the table. Four updates of
# it are held against MXNet's own nag.
check("write-nag", ...)

# %% [markdown]
# **Reference:** `gt.optim.setup?`, `gt.optim.list_optimizers?`, `gt.optim.find_learning_rate?` in a cell show what they take.
#
# **Next:** [`11_lr_schedules`](11_lr_schedules.ipynb) lets the rate fall.
