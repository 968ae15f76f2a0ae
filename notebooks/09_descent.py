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
# # 09 · Descent that you can see
#
# **Question.** Every optimizer walks downhill on the loss. How do many rough steps compare with a few exact ones, and what does momentum
# change? A net has a million parameters; this lesson walks on surfaces of two, where every step can be seen.
#
# Words: the *loss* is the height, a *gradient* is the slope at one place (it points uphill), the *learning rate* $\eta$ says how long a
# step is, an *update* is one step.
#
# **You will be able to** write gradient descent and momentum, say which rates are too large, and choose a size of batch and a momentum.
#
# **Before this:** `01_naive`. **Time:** 30 minutes; on two cores the cells run for half a minute.

# %%
from gluontune.course import picture

picture("descent")

# %% tags=["parameters"]
dataset = "sample"
epochs = 2
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/09_descent"
seed = 0
quick_samples = 5000

# %%
import numpy as np

import gluontune as gt
from gluontune.course import check, compare, descent, lines, paths, predict, table

mx = gt.runtime.mxnet()
gluon, nd = mx.gluon, mx.nd
predict("points looked at until the line fits: stochastic, as a share of full descent", ...)
predict("times as many updates: plain SGD against momentum, until height 0.1", ...)

# %% [markdown]
# ## By hand: a line through points
# The smallest model: a slope `w` and an offset `b`, which is `nn.Dense(1)` in Gluon; half of the mean square error is its loss. Each
# place of the map below is one line through the points; over it the loss is a bowl. *Full* descent looks at all 256 points for each update,
# *mini-batch* descent at 16, *stochastic* descent at a single one. The loop is the same for all; the rate is one that suits each: a gradient
# of few points is noisy, so its steps must be shorter.

# %%
x, y = descent.line_points(256, seed=seed)
loss_of = gluon.loss.L2Loss()  # half of the square


def fit(batch, updates, rate):
    net, rng = gluon.nn.Dense(1, in_units=1), np.random.default_rng(seed)
    net.initialize()
    net.weight.set_data(nd.array([[-1]]))
    net.bias.set_data(nd.array([4]))
    trainer, places = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}), [(-1.0, 4.0)]
    for _ in range(updates):
        chosen = rng.permutation(len(x))[:batch]
        with mx.autograd.record():
            loss = loss_of(net(nd.array(x[chosen, None])), nd.array(y[chosen, None]))
        loss.backward()
        trainer.step(batch)
        places.append((net.weight.data().asscalar(), net.bias.data().asscalar()))
    return np.array(places, float)


# %%
plans = {
    "full: 256 points an update": {"batch": 256, "updates": 40, "rate": 0.3},
    "mini-batch: 16 points": {"batch": 16, "updates": 160, "rate": 0.15},
    "stochastic: 1 point": {"batch": 1, "updates": 512, "rate": 0.05},
}
walks = {name: fit(**plan) for name, plan in plans.items()}
loss = descent.line_loss(x, y)
best = np.linalg.lstsq(np.stack([x, np.ones_like(x)], 1), y, rcond=None)[0]
paths(
    loss,
    walks,
    x="slope w",
    y="offset b",
    span=(-1.6, 3.6, -0.6, 4.6),
    goal=tuple(best),
    caption="Descent on the loss of a line: the star is the best line, the ring the start",
)

# %% [markdown]
# The paths differ because the gradients do: that of one point is right only on average. What counts is the work, so let
# the horizontal axis be the points that were looked at, not the updates.

# %%
heights = {n: [loss(w, b) - loss(*best) for w, b in walk] for n, walk in walks.items()}
looked = {n: np.arange(len(walk)) * plans[n]["batch"] for n, walk in walks.items()}
lines(
    {n: (looked[n][1:], np.maximum(heights[n][1:], 1e-6)) for n in walks},
    x="points looked at",
    y="loss above the best line",
    log_x=True,
    log_y=True,
    caption="Few points an update: fast at first, never quite there",
)

# %%
first = {n: next((k for k, h in zip(looked[n], heights[n]) if h < 0.1), None) for n in walks}
table(
    {"descent": n, "points looked at until 0.1 above the best": k, "at the end": f"{heights[n][-1]:.2g}"}
    for n, k in first.items()
)

# %%
full, single = (first[n] for n in plans if n.startswith(("full", "stochastic")))
if full and single:
    print(
        compare("points looked at until the line fits: stochastic, as a share of full descent", single / full)
    )

# %% [markdown]
# Against full descent: it pays for an exact gradient while a rough one would do. Against single points: a GPU takes no longer for 16 points
# than for one. So everybody trains in mini-batches. At the end full descent settles; the noise of small batches keeps the other walks above
# the best line, unless the rate falls: lesson `11_lr_schedules`.
#
# ## By hand: a narrow valley
# This bowl, $f = (x^2 + 25\,y^2)/2$, is 25 times as steep across as along. Its *curvature* $h$ is 1 along $x$ and 25 along $y$; the
# gradient is $h$ times the distance from the bottom. So an update of plain SGD multiplies that distance by
#
# $$1 - \eta\, h ,$$
#
# and the walk arrives only if that lies between -1 and 1; beyond -1 it *overshoots*: each update ends farther away, on the other side. The
# steepest direction decides: $\eta < 2/25$, two by the largest curvature. Along the flat direction an update then multiplies the distance by
# $1 - 2/25 = 0.92$ at best: only 8 percent nearer each time. *Momentum* adds up gradients, $v \leftarrow \mu v - \eta g$,
# $\; w \leftarrow w + v$, where $v$ is the last step and $\mu$ the share of it that is kept: across the valley gradients cancel out, along it
# they grow. *Nesterov*'s momentum (`nag`) takes the gradient a step ahead, and so brakes earlier.


# %%
def walk(name, **options):
    w = gluon.Parameter("w", shape=(2,))
    w.initialize()
    w.set_data(nd.array([-4, 1.5]))
    trainer, places = gluon.Trainer({"w": w}, name, options), [(-4.0, 1.5)]
    for _ in range(60):
        with mx.autograd.record():
            height = 0.5 * (w.data()[0] ** 2 + 25 * w.data()[1] ** 2)
        height.backward()
        trainer.step(1)
        places.append(tuple(w.data().asnumpy()))
    return np.array(places)


by_hand = {
    "plain SGD, rate 0.07": walk("sgd", learning_rate=0.07),
    "momentum 0.6, rate 0.05": walk("sgd", learning_rate=0.05, momentum=0.6),
    "Nesterov 0.7, rate 0.04": walk("nag", learning_rate=0.04, momentum=0.7),
}

# %%
span = (-4.6, 2.2, -2.2, 2.2)
paths(
    descent.SURFACES["valley"],
    by_hand,
    x="x",
    y="y",
    span=span,
    goal=(0, 0),
    caption="Plain SGD, momentum and Nesterov in a narrow valley, 60 updates",
)

# %% [markdown]
# ## With gluontune: six optimizers
# `descent.walk` is the loop above with `gt.optim.setup` in the place of `gluon.Trainer`. The *adaptive* methods, AdaGrad, RMSProp and Adam,
# find a rate for each direction (lesson `10_optimizers` has their formulas).

# %%
rates = {
    "sgd": {"learning_rate": 0.07, "momentum": 0.0},
    "sgd with momentum": {"learning_rate": 0.05, "momentum": 0.6},
    "nag": {"learning_rate": 0.04, "momentum": 0.7},
    "adagrad": {"learning_rate": 0.6},
    "rmsprop": {"learning_rate": 0.1},
    "adam": {"learning_rate": 0.2},
}


# %%
def walk_all(surface, start, updates):
    return {
        n: descent.walk(n.split()[0], surface, start=start, updates=updates, **options)
        for n, options in rates.items()
    }


valley = walk_all("valley", (-4.0, 1.5), 60)
names = list(rates)
same = np.abs(valley["sgd"] - by_hand["plain SGD, rate 0.07"]).max()
print(f"plain SGD, setup against Trainer: the walks differ by {same:.0e} at most")

# %%
paths(
    descent.SURFACES["valley"],
    {n: valley[n] for n in names[3:]},
    x="x",
    y="y",
    span=span,
    goal=(0, 0),
    caption="AdaGrad, RMSProp and Adam in the same valley, 60 updates",
)

# %%
height = descent.SURFACES["valley"]
lines(
    {n: (range(len(w)), [max(height(*p), 1e-8) for p in w]) for n, w in valley.items()},
    x="update",
    y="height",
    log_y=True,
    caption="Height over the bottom of the valley",
)

# %%
reached = {n: next((k for k, p in enumerate(w) if height(*p) < 0.1), None) for n, w in valley.items()}
table(
    {"optimizer": n, "updates until height 0.1": reached[n] if reached[n] is not None else "more than 60"}
    for n in names
)

# %%
fast = min(k for n, k in reached.items() if n in ("sgd with momentum", "nag") and k is not None)
print(
    compare(
        "times as many updates: plain SGD against momentum, until height 0.1", (reached["sgd"] or 60) / fast
    )
)

# %% [markdown]
# An adaptive method is not faster by its name: here RMSProp needs more updates than plain SGD. Each rate above was tuned for this valley by
# hand. That matters: an optimizer compared at a rate that suits another one tells nothing. What follows uses smaller rates and the usual
# momentum of 0.9.
#
# ## A bent valley, and two hollows
# Real losses bend, and have more than one hollow. In the figure of two hollows the left one is deeper. Who starts on the right
# and only ever goes downhill ends in the wrong one.

# %%
rates = {n: {**r, "learning_rate": r["learning_rate"] / 2} for n, r in rates.items()}
for name in ("sgd with momentum", "nag"):
    rates[name] = {"learning_rate": 0.01, "momentum": 0.9}
bent = walk_all("bent valley", (-1.3, 1.2), 150)
paths(
    descent.SURFACES["bent valley"],
    {n: bent[n] for n in ("sgd", "nag", "rmsprop", "adam")},
    x="x",
    y="y",
    span=(-1.8, 1.8, -0.8, 2.2),
    goal=(1, 1),
    caption="A bent valley (Rosenbrock's), 150 updates",
)

# %%
hollows = walk_all("two hollows", (1.9, 1.0), 60)
paths(
    descent.SURFACES["two hollows"],
    {n: hollows[n] for n in ("sgd", "sgd with momentum", "nag", "adam")},
    x="x",
    y="y",
    span=(-2.2, 2.2, -1.4, 1.4),
    goal=(-1.036, 0),
    caption="Two hollows: momentum can carry over the ridge between them",
)

# %%
table(
    {
        "optimizer": n,
        "ends at x": f"{w[-1][0]:.2f}",
        "height": f"{descent.SURFACES['two hollows'](*w[-1]):.3f}",
    }
    for n, w in hollows.items()
)

# %% [markdown]
# Do not conclude that momentum finds the best hollow: another start, another result. The noise of mini-batches helps in the
# same way.
#
# ## Convex or not
# A surface is *convex* when the straight line between any two of its points never runs below it. Such a surface has one
# hollow only, and a small enough rate always arrives. Draw a thousand such lines on each surface, and look at their middles
# (0 percent below is a hint, not a proof):

# %%
rng = np.random.default_rng(seed)
one, two = rng.uniform(-2, 2, (2, 2, 1000))
below = {
    name: np.mean((f(*one) + f(*two)) / 2 < f(*(one + two) / 2) - 1e-9)
    for name, f in descent.SURFACES.items()
}
table({"surface": n, "lines that run below it, percent": f"{100 * b:.0f}"} for n, b in below.items())

# %% [markdown]
# The loss of a line through points is convex. That of a net is not. Exchange two neurons of a layer: the net computes the same, at another
# place of the surface. So there are two equally deep hollows, with a ridge between them, which no convex surface has. That training works all
# the same has to do with the *landscape*. Nets of many layers have a rough one. *Skip connections*, which add a layer's input to its output
# as ResNets do, make it much smoother: Li and others drew both (*Visualizing the Loss Landscape of Neural Nets*, 2018). Width and BatchNorm
# help as well.

# %%
# Try this: another momentum. Which is the fastest in this valley, and when does it overshoot?
for mu in (0.0, 0.6, 0.9):
    w = descent.walk("sgd", "valley", start=(-4.0, 1.5), updates=60, learning_rate=0.05, momentum=mu)
    print(f"momentum {mu}: height {descent.SURFACES['valley'](*w[-1]):.2g} after 60 updates")

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `fit`: a loop with `nn.Dense(1)` | `gt.train.run(recipe)` | the same loop for any net; a process of its own; figures |
# | `walk` with `gluon.Trainer` | `gt.optim.setup(name, …)` | nineteen optimizers by name (lesson `10_optimizers`) |
#
# ## Summary: what to remember
# - Mini-batches buy many rough steps for the price of one exact one.
# - A rate is too large when it overshoots in the *steepest* direction; the flat ones then have to wait.
# - Momentum helps in narrow valleys, Nesterov brakes it, adaptive methods scale each parameter.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
# 10,000 images, batches of 50, incomplete ones left out: how many updates are in an epoch?
check("updates-per-epoch", ...)

# %%
# Momentum 0.9, rate 0.1, and a gradient that is always 1: how long do SGD's steps become in the end?
check("momentum-step", ...)

# %%
# Write a function (x, y, gx, gy, lr) -> (x, y): one update of plain gradient descent.
check("write-sgd", ...)

# %% [markdown]
# **Reference:** `gt.optim.setup?`, `gt.optim.list_optimizers?` in a cell show what they take.
#
# **Next:** [`10_optimizers`](10_optimizers.ipynb): all of them by name, on a net.
