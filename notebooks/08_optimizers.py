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
# # 08 · Descent that you can see
#
# **Question.** All optimizers walk downhill on the loss. Why are there so many? A net has a million parameters; this lesson
# walks on surfaces of two, where every step can be seen.
#
# **You will be able to** write the formulas of seven optimizers as code, and choose one by trying, at a rate tuned for
# it.

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
out_dir = "runs/08_optimizers"
seed = 0
quick_samples = 5000

# %%
import numpy as np

import gluontune as gt
from gluontune.course import bars, check, compare, descent, lines, paths, predict, show, table

predict("points looked at until the line fits: stochastic, as a share of full descent", ...)
predict("times as many updates: plain SGD against momentum, until height 0.1", ...)

# %% [markdown]
# ## A line through points
# The smallest model: slope `w` and offset `b`, half of the mean square error as loss. Seen from above the loss is a bowl. *Full*
# descent looks at all 256 points for each update, *stochastic* at a single one, *mini-batch* at 16.

# %%
x, y = descent.line_points(256, seed=seed)
loss = descent.line_loss(x, y)
plans = {
    "full: 256 points an update": {"batch_size": 256, "updates": 40, "learning_rate": 0.3},
    "mini-batch: 16 points": {"batch_size": 16, "updates": 160, "learning_rate": 0.15},
    "stochastic: 1 point": {"batch_size": 1, "updates": 512, "learning_rate": 0.05},
}

# %%
walks = {name: descent.fit_line(x, y, seed=seed, **plan) for name, plan in plans.items()}
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
looked = {n: np.arange(len(walk)) * plans[n]["batch_size"] for n, walk in walks.items()}
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
# Full descent pays for an exact gradient while a rough one would do, and a GPU pays nothing extra for 16 points at a
# time. So everybody trains in mini-batches. At the end the noise of small batches keeps the walk from settling, unless
# the rate falls: lesson 09.
#
# ## Seven formulas
# `w` are the weights, `g` is their gradient, `η` the learning rate. All steps are element by element; `‖w‖` is the length of a
# layer's weights, the root of the sum of their squares. Plain SGD is `w ← w − η·g`.
#
# | name | what it remembers | the step |
# |---|---|---|
# | momentum (Polyak, 1964) | `v ← μ·v − η·g` | `w ← w + v` |
# | Nesterov (1983) | `v ← μ·v − η·g` | `w ← w + μ·v − η·g` |
# | Adagrad (Duchi, 2011) | `G ← G + g²` | `w ← w − η·g / √(G + ε)` |
# | AdaDelta (Zeiler, 2012) | `A ← ρ·A + (1−ρ)·g²`, then `B ← ρ·B + (1−ρ)·d²` | `d = g·√(B + ε) / √(A + ε)`, `w ← w − η·d` |
# | Adam (Kingma, 2014) | `m ← β₁·m + (1−β₁)·g`, `v ← β₂·v + (1−β₂)·g²` | `w ← w − η·m̂ / (√v̂ + ε)`, with `m̂ = m/(1−β₁ᵗ)`, `v̂ = v/(1−β₂ᵗ)` |
# | LARS (You, 2017) | as momentum, with the layer's rate `λ = η·τ·‖w‖/‖g‖` | `w ← w + v` |
# | LAMB (You, 2019) | as Adam | `r = m̂ / (√v̂ + ε)`, `w ← w − η·(‖w‖/‖r‖)·r` |
#
# *Momentum* keeps going where gradients agree. *Nesterov* brakes earlier, because it looks where the momentum is about to
# arrive. *Adagrad* gives each weight a rate of its own, which only falls; *AdaDelta* forgets old gradients and needs no rate;
# *Adam* is momentum with such rates, and corrects for its start at zero. *LARS* and *LAMB* scale the step of a layer to the
# length of its weights: so a large batch may take a large rate (lesson 06). The same as code:


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
# `gt.optim.list_optimizers()` has nineteen. What the rest add, in a sentence each:
#
# | name | idea | made for |
# |---|---|---|
# | RMSProp (Tieleman and Hinton, 2012) | Adagrad that forgets: a running mean of `g²` | gradients that change their size |
# | AdamW (Loshchilov, 2017) | Adam whose *weight decay* (each weight shrinks a little at each update) is not divided by `√v̂` | whoever decays weights with Adam |
# | LARC (NVIDIA) | LARS whose layer rate never exceeds `η` | large batches, without a warm-up that is tuned |
# | NovoGrad (Ginsburg, 2019) | Adam with one `v` for a whole layer | large batches with half of Adam's memory |
# | Signum (Bernstein, 2018) | momentum, of which only the sign is used | sending one bit for each weight |
# | FTML (Zheng and Kwok, 2017) | follows the leader that moves: recent gradients count more | data that drifts |
# | DCASGD (Zheng, 2016) | corrects a gradient for the weights having moved since | ranks that do not wait (lesson 07) |
# | LBSGD (MXNet) | LARS with its warm-up built in | large batches (lesson 06) |
# | Muon (Jordan, 2024) | makes a layer's step orthogonal: every direction moves | few, large updates (lesson 06) |
#
# *ESGD* (Cui, 2018) is another kind: it trains a *population* of nets. Each trains a while by an optimizer of its own, then
# the best of them are kept and mixed, and the rest are dropped. `gluontune esgd` does it, and compares at equal compute.
#
# ## A narrow valley
# This bowl is 25 times as steep across as along. The rate must suit the steep direction, and then the flat one is slow. Momentum
# adds up gradients: across the valley they cancel out, along it they grow. The *adaptive* methods, Adagrad to Adam, find a rate
# for each direction.

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
valley = descent.walk_all(rates, "valley", (-4.0, 1.5), 60)
names = list(rates)
span = (-4.6, 2.2, -2.2, 2.2)
paths(
    descent.SURFACES["valley"],
    {n: valley[n] for n in names[:3]},
    x="x",
    y="y",
    span=span,
    goal=(0, 0),
    caption="Plain SGD, momentum and Nesterov in a narrow valley, 60 updates",
)

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
# Each rate above was tuned for this valley by hand. That matters: an optimizer compared at a rate that suits another one tells
# nothing. What follows uses smaller rates and the usual momentum of 0.9.
#
# ## A bent valley, and two hollows
# Real losses bend, and have more than one hollow. In the second figure the left hollow is deeper. Who starts on the right
# and only ever goes downhill ends in the wrong one.

# %%
rates = {n: {**r, "learning_rate": r["learning_rate"] / 2} for n, r in rates.items()}
for name in ("sgd with momentum", "nag"):
    rates[name] = {"learning_rate": 0.01, "momentum": 0.9}
bent = descent.walk_all(rates, "bent valley", (-1.3, 1.2), 150)
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
hollows = descent.walk_all(rates, "two hollows", (1.9, 1.0), 60)
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
# hollow only, and a small enough rate always arrives. Draw a thousand such lines on each surface, and look at their middles:

# %%
rng = np.random.default_rng(seed)
one, two = rng.uniform(-2, 2, (2, 2, 1000))
below = {
    name: np.mean((f(*one) + f(*two)) / 2 < f(*(one + two) / 2) - 1e-9)
    for name, f in descent.SURFACES.items()
}
table({"surface": n, "lines that run below it, percent": f"{100 * b:.0f}"} for n, b in below.items())

# %% [markdown]
# The loss of a line through points is convex. That of a net is not: exchange two neurons of a layer, and the net computes the
# same with other weights; between the two lies a ridge. That training works all the same has to do with the *landscape*. Nets of
# many layers have a rough one. *Skip connections*, which add a layer's input to its output as ResNets do, make it much
# smoother: Li and others drew both (*Visualizing the Loss Landscape of Neural Nets*, 2018). Width and BatchNorm help as well.
#
# ## On a net
# Deck "The Steady State" trained CIFAR-10 for 20 epochs: SGD 0.816, NAG 0.771 (0.824 two epochs before), LBSGD 0.793 validation
# accuracy. Its steps up and down from epoch to epoch are as large as the differences. Here: the same small net for each.

# %%
images = {"train_samples": quick_samples, "val_samples": 2000} if quick else {}
base = gt.Recipe(
    dataset=dataset,
    net="small_cnn" if quick else "cifar_resnet20_v1",
    epochs=epochs,
    devices=devices,
    dtype=dtype,
    batch_size_per_device=batch_size_per_device,
    loader="resident",
    runtime="tuned",
    seed=seed,
    **images,
)

# %%
tuned = {"sgd": 0.1, "nag": 0.1, "adam": 0.005}
runs = {name: gt.train.run(base.override(optimizer=name, learning_rate=rate)) for name, rate in tuned.items()}
for name, run in runs.items():
    run.save(f"{out_dir}/{name}.json")
bars(
    {n: 100 * r.val_accuracy[-1] for n, r in runs.items()},
    unit="validation accuracy, percent",
    caption=f"Three optimizers in turn (epochs of each: {epochs:g})",
)

# %%
show("accuracy", runs)

# %%
# Try this: another momentum. Which is the fastest in this valley, and when does it overshoot?
for mu in (0.0, 0.6, 0.9):
    w = descent.walk("sgd", "valley", start=(-4.0, 1.5), updates=60, learning_rate=0.05, momentum=mu)
    print(f"momentum {mu}: height {descent.SURFACES['valley'](*w[-1]):.2g} after 60 updates")

# %% [markdown]
# ## Summary
# - Mini-batches buy many rough steps for the price of one exact one.
# - Momentum helps in narrow valleys, Nesterov brakes it, adaptive methods scale each parameter.
# - Compare optimizers only at rates tuned for each, and over several seeds.
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
# **Reference:** `gt.optim.setup?`, `gt.optim.list_optimizers?`, `gt.optim.find_learning_rate?` in a cell show what they take.
#
# **Next:** `09_lr_schedules` lets the rate fall.
