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
# # 06 · Large batches
#
# **Question.** A larger batch keeps a device busy. How much faster does it train here? What does it do to the accuracy, and what
# can be done about it?
#
# **You will be able to** enlarge a batch with the right rate and warm-up, write LARS and ghost batches, and see what a large batch
# costs in accuracy.
#
# **Before this:** `05_float16`. **Time:** 35 minutes; on two cores the cells run for about a minute.

# %%
from gluontune.course import picture

picture("large-batch")

# %% tags=["parameters"]
dataset = "sample"
epochs = 6
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/06_large_batch"
seed = 0
quick_samples = 6000

# %%
import numpy as np

import gluontune as gt
from gluontune.course import bars, check, compare, descent, lines, paths, pixels_of, predict, table

mx = gt.runtime.mxnet()
gluon, nd, nn = mx.gluon, mx.nd, mx.gluon.nn
predict("points of accuracy lost by a batch of 512 at an unchanged rate", ...)
predict("times as fast with a batch 8 times as large", ...)

# %% [markdown]
# ## By hand: a loop with a batch and a rate
# 2,048 images, a small net, SGD with momentum written out. `update` is what a step does with one parameter; the cells below
# exchange it. `ghosts` is the number of parts of a batch that go through the net, and so through BatchNorm, by themselves: 1 here.

# %%
data = gt.datasets.open(dataset)
pixels, labels = pixels_of(data.train, 2048)
val_pixels, val_labels = pixels_of(data.test, 1000)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()


def sgd(w, g, s, rate):
    s["v"] = 0.9 * s.get("v", 0) + rate * g
    w[:] = w - s["v"]


# %%
def step(net, x, y, memory, rate, update=sgd, ghosts=1):
    with mx.autograd.record():
        parts = x.split(ghosts, axis=0) if ghosts > 1 else [x]
        loss = loss_of(nd.concat(*[net(part) for part in parts], dim=0), y)
    loss.backward()
    for name, p in net.collect_params().items():
        if p.grad_req != "null":
            update(p.data(), p.grad() / len(x), memory.setdefault(name, {}), rate)
    return loss.mean()


# %%
def train(batch, rate, *, epochs=3, warmup=0, draw=0, **options):
    mx.random.seed(draw)
    rng, memory, losses = np.random.default_rng(draw), {}, []
    net = nn.HybridSequential()
    net.add(nn.Dense(64, use_bias=False), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(len(data.classes)))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    for _ in range(epochs):
        order = rng.permutation(len(pixels))
        for at in range(0, len(order) - batch + 1, batch):
            x, y = (nd.array(a[order[at : at + batch]]) for a in (pixels, labels))
            now = rate * min(1.0, (len(losses) + 1) / max(1, warmup))
            losses.append(step(net, x, y, memory, now, **options))
    right = net(nd.array(val_pixels)).asnumpy().argmax(1) == val_labels
    return 100 * right.mean(), [loss.asscalar() for loss in losses]


def tried(*given, **options):
    return [train(*given, draw=draw, **options)[0] for draw in range(2)]  # two seeds


# %% [markdown]
# Equal epochs, a batch 16 times as large: a sixteenth of the steps. Three rules for the rate:
#
# - leave it as it is;
# - the **square-root rule**, $\eta_k = \sqrt{k}\,\eta$: the variance of a step stays that of the small batch
#   ([Krizhevsky, 2014](https://arxiv.org/abs/1404.5997), who found that it works less well than theory says);
# - the **linear rule**, $\eta_k = k\,\eta$, with a *warm-up*: the rate rises over the first steps, for a large rate on fresh weights may
#   blow training up ([Goyal and others, 2017](https://arxiv.org/abs/1706.02677)).

# %%
found = {
    "batch 32, rate 0.05": tried(32, 0.05),
    "batch 512, rate unchanged": tried(512, 0.05),
    "batch 512, √k rule": tried(512, 0.05 * 4),
    "batch 512, linear rule": tried(512, 0.05 * 16),
    "batch 512, linear rule and warm-up": tried(512, 0.05 * 16, warmup=4),
}
bars(
    {name: float(np.mean(values)) for name, values in found.items()},
    unit="validation accuracy, percent: mean of two seeds",
    caption="By hand: a large batch at equal epochs",
)

# %%
small, unchanged = (np.mean(found[name]) for name in list(found)[:2])
print(compare("points of accuracy lost by a batch of 512 at an unchanged rate", small - unchanged))

# %% [markdown]
# Both rules win back a part of the accuracy. The warm-up may add some, but two seeds cannot say so; the small batch stays ahead.
#
# ## By hand: what else helps
# **LARS** ([You and others, 2017](https://arxiv.org/abs/1708.03888)) gives each layer $l$ its own rate, so that a step is a fixed share of
# its weights, whatever the size of the gradient:
#
# $$\lambda_l = \eta\,\tau\,\frac{\|w_l\|}{\|g_l\|}, \qquad w_l \leftarrow w_l - \lambda_l\, g_l ,$$
#
# with a small factor $\tau$, the *trust*. **LAMB** ([You and others, 2019](https://arxiv.org/abs/1904.00962)) does so with Adam's step
# $r = \hat m / (\sqrt{\hat v} + \epsilon)$: $\; w \leftarrow w - \eta\, \frac{\|w\|}{\|r\|}\, r$, where
# $\hat m$ and $\hat v$ are Adam's means of $g$ and $g^2$ (lesson `10_optimizers`). Both leave out biases and BatchNorm's parameters: in the
# code, what has one dimension gets the factor 0.1.


# %%
def lars(w, g, s, rate, trust=0.02):
    own = trust * w.norm() / g.norm() if w.ndim > 1 else 0.1
    sgd(w, g, s, rate * own)


def lamb(w, g, s, rate):
    t = s["t"] = s.get("t", 0) + 1
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["u"] = 0.999 * s.get("u", 0) + 0.001 * g * g
    r = s["m"] / (1 - 0.9**t) / ((s["u"] / (1 - 0.999**t)).sqrt() + 1e-6)
    w[:] = w - rate * (w.norm() / r.norm() if w.ndim > 1 else 0.1) * r


def noisy(w, g, s, rate):
    noise = nd.random.normal(shape=g.shape) * g.norm() / g.size**0.5
    sgd(w, g + 0.3 * noise, s, rate)


# %% [markdown]
# **Noise** that a large batch lacks can be added to its gradient. **Ghost batches**
# ([Hoffer and others, 2017](https://arxiv.org/abs/1705.08741)) bring it by BatchNorm: the mean and variance come from small parts of the
# batch. That is what several devices do anyway, and it is `ghosts` above. **Longer training** is the plainest cure.

# %%
more = {
    "linear rule and warm-up": found["batch 512, linear rule and warm-up"],
    "LARS": tried(512, 2.0, warmup=4, update=lars),
    "LAMB": tried(512, 0.05, warmup=2, update=lamb),
    "with noise": tried(512, 0.8, warmup=4, update=noisy),
    "ghost batches of 32": tried(512, 0.8, warmup=4, ghosts=16),
    "3 times as long": tried(512, 0.8, warmup=4, epochs=9),
}
table(
    {
        "batch 512, two seeds": name,
        "accuracy, percent": ", ".join(f"{value:.1f}" for value in values),
        "mean": f"{np.mean(values):.1f}",
    }
    for name, values in more.items()
)

# %% [markdown]
# Two seeds differ by up to four points, so only large differences count: longer training helped, LAMB lost at the rate tried; LARS, noise and
# ghost batches changed nothing that shows. The rates were tried by hand; another net needs others.
#
# ## By hand: the limit
# How many *steps* does a loss need, by batch? As long as twice the batch needs half the steps, it is free on a device with room. Beyond some
# size the steps stop falling: more images then make an exact gradient more exact
# ([Shallue and others, 2018](https://arxiv.org/abs/1811.03600)).


# %%
def steps_to(target, batch, epochs):
    counts = []
    for rate in (0.05 * batch / 32, 0.05 * (batch / 32) ** 0.5):  # the better of both rules
        losses, window = train(batch, rate, epochs=epochs)[1], max(1, 256 // batch)
        smooth = np.convolve(losses, np.ones(window) / window, "valid")
        counts.append(next((n + window for n, value in enumerate(smooth) if value < target), None))
    return min((n for n in counts if n), default=None)


# %%
needed = {b: steps_to(0.8, b, epochs) for b, epochs in {32: 1, 128: 2, 512: 6, 2048: 16}.items()}
needed = {batch: n for batch, n in needed.items() if n}
first_batch, first_steps = next(iter(needed.items()), (32, 1))
lines(
    {
        "measured": (list(needed), list(needed.values())),
        "half the steps for twice the batch": (
            list(needed),
            [max(1, first_steps * first_batch / b) for b in needed],
        ),
    },
    x="batch size",
    y="steps until the loss is 0.8",
    log_x=True,
    log_y=True,
    markers=True,
    caption="Steps to a loss, by batch: at first they fall, then they stop",
)

# %% [markdown]
# ## Why: noise
# The gradient of a batch is a mean over its images, so it scatters about the true gradient: its deviation is
# $\sigma / \sqrt{B}$. Take the smallest model, a line through
# 1,024 points: how far is a batch's gradient from that of all points?

# %%
x, y = descent.line_points(1024, seed=seed)
batches = [1, 4, 16, 64, 256]
slopes = np.stack([-y * x, -y], axis=1)  # the gradient of each point, for w and for b, at w = b = 0


def scatter_of(batch, draws=400):
    chosen = np.random.default_rng(seed).integers(0, len(x), (draws, batch))
    away = slopes[chosen].mean(axis=1) - slopes.mean(axis=0)
    return (away**2).sum(axis=1).mean() ** 0.5


# %%
scatter = [scatter_of(batch) for batch in batches]
lines(
    {
        "measured": (batches, scatter),
        "one over the root of the batch": (batches, [scatter[0] / b**0.5 for b in batches]),
    },
    x="batch size",
    y="distance from the true gradient",
    log_x=True,
    log_y=True,
    markers=True,
    caption="Four times the batch, half of the noise",
)

# %% [markdown]
# So a batch of four times the size costs four times the work and brings half of the noise. While the walk is far from the bottom, noise does no
# harm, and steps are what is needed.
#
# ## Fewer steps
# The same points, the same number of *epochs*. With a batch 16 times as large there are a sixteenth of the steps. Keep the rate, and the
# walk hardly begins; multiply it by 16 as well (the *linear rule*), and it comes as far as the small batch does; multiply by much more, and
# it leaves the map.


# %%
def fit(batch_size, updates, learning_rate):
    order, places = np.random.default_rng(seed).permutation(len(x)), [np.array([-1.0, 4.0])]
    for n in range(updates):
        rows = order[n * batch_size : (n + 1) * batch_size]
        error = places[-1][0] * x[rows] + places[-1][1] - y[rows]
        places.append(places[-1] - learning_rate * np.array([(error * x[rows]).mean(), error.mean()]))
    return np.array(places)


# %%
plans = {
    "batch 8, rate 0.02": {"batch_size": 8, "updates": 128, "learning_rate": 0.02},
    "batch 128, rate 0.02": {"batch_size": 128, "updates": 8, "learning_rate": 0.02},
    "batch 128, rate 0.32": {"batch_size": 128, "updates": 8, "learning_rate": 0.32},
    "batch 128, rate 1.2": {"batch_size": 128, "updates": 8, "learning_rate": 1.2},
}
walks = {name: fit(**plan) for name, plan in plans.items()}
best = np.linalg.lstsq(np.stack([x, np.ones_like(x)], 1), y, rcond=None)[0]
paths(
    descent.line_loss(x, y),
    walks,
    x="slope w",
    y="offset b",
    span=(-2.5, 5.5, -1.5, 5.5),
    goal=tuple(best),
    caption="One epoch over 1,024 points: the linear rule, too little and too much",
)

# %%
loss = descent.line_loss(x, y)
table(
    {"plan": n, "updates": len(w) - 1, "loss above the best at the end": f"{loss(*w[-1]) - loss(*best):.3g}"}
    for n, w in walks.items()
)

# %% [markdown]
# ## With gluontune
# In a recipe the rules are fields: `lr_scaling`, `warmup_epochs`, `optimizer`. Four runs at equal epochs, each in a fresh process, with
# a schedule that falls along a cosine (lesson `11_lr_schedules`), with one seed. The last has *Muon*
# ([Jordan, 2024](https://kellerjordan.github.io/posts/muon/)), an optimizer for few and large steps, with a rate and a weight decay of its
# own. It takes a layer's momentum $M$ as a matrix with the singular value decomposition $U \Sigma V^T$ and leaves $\Sigma$ out:
#
# $$M \leftarrow \mu M + g, \qquad w \leftarrow w - \eta\, U V^T .$$
#
# So every direction moves as far, not only the steepest. A few matrix products (Newton and Schulz) stand in for the decomposition.

# %%
images = {"train_samples": quick_samples, "val_samples": 2000} if quick else {}
base = gt.Recipe(
    dataset=dataset,
    net="small_cnn" if quick else "cifar_resnet20_v1",
    epochs=epochs,
    devices=devices,
    dtype=dtype,
    loader="resident",
    runtime="tuned",
    schedule="cosine",
    learning_rate=0.05,
    base_batch_size=batch_size_per_device,
    seed=seed,
    **images,
)
large = base.override(batch_size_per_device=8 * batch_size_per_device)

# %%
ways = {
    "small batch": base.override(batch_size_per_device=batch_size_per_device),
    "large, rate unchanged": large.override(lr_scaling="none"),
    "large, linear rule, warm-up": large.override(lr_scaling="linear", warmup_epochs=epochs / 3),
    "large, Muon": large.override(optimizer="muon", learning_rate=0.02, lr_scaling="sqrt", wd=0.1),
}
runs = {name: gt.train.run(recipe) for name, recipe in ways.items()}
for number, run in enumerate(runs.values()):
    run.save(f"{out_dir}/run-{number}.json")
assert all(run.ok for run in runs.values()), [run.error for run in runs.values()]

# %%
table(
    {
        "run": name,
        "batch": run.recipe["batch_size_per_device"],
        "images/s": f"{run.samples_per_sec['median']:,.0f}",
        "steps": run.steps,
        "validation accuracy, percent": f"{100 * run.val_accuracy[-1]:.1f}",
    }
    for name, run in runs.items()
)

# %%
speed = [run.samples_per_sec["median"] for run in runs.values()]
print(compare("times as fast with a batch 8 times as large", speed[1] / speed[0]))
print(f"Muon's throughput, as a share of plain SGD's: {speed[3] / speed[1]:.2f}")

# %% [markdown]
# ## The deck's figures
# On V100s with CIFAR-10, after three epochs: the batch of 1,280 is four times as fast as the one of 64, and more than ten points
# behind it. Elsewhere the deck has 941 images/s with a batch of 64 and 17,000 with one of 640: 18 times. But its times of an epoch,
# 13.25 and 4.0 s, say 3.3 times. Both cannot be true.

# %%
deck = {64: (27.5, 71.3), 128: (14.3, 71.4), 256: (7.7, 68.8), 512: (5.5, 65.9), 1280: (6.8, 60.8)}
table({"batch": b, "third epoch, s": s, "validation accuracy, percent": a} for b, (s, a) in deck.items())

# %% [markdown]
# ## Why
# A GPU has thousands of arithmetic units; a small batch leaves many idle, and each step has a fixed cost. Few cores are busy with few images, so
# a CPU gains little. The accuracy falls because there are fewer steps, and the rule gives each of them more length. It works only as far as
# the loss is smooth enough for such a step: beyond some batch no rate makes up for missing steps.
#
# There is a second explanation. A *sharp* minimum is a narrow hollow: small changes of the weights raise the loss much. A *flat* one
# is wide. The noise of small batches throws a walk out of sharp hollows, so it ends in a flat one, which seems to do better on new
# images (Hochreiter and Schmidhuber, 1997; Keskar and others, 2017). A large batch has little noise: its walk may stay in a sharp one. Not
# everybody agrees: a net can be written with other weights so that the same function looks sharp (Dinh and others, 2017). What helps does not
# depend on who is right: more steps. Noise is said to help, too; above it made no difference that two seeds can show.
#
# Two more ways stand in gluontune: `gt.optim.BatchGrowth` lets the batch grow where others let the rate fall
# ([Smith and others, 2018](https://arxiv.org/abs/1711.00489)), and `accumulate` gathers small steps to one update. MXNet's own `LBSGD`,
# the deck's choice, sums gradients in a buffer that Gluon overwrites; gluontune's has the same name and is built anew.

# %%
# Try this: another rate for the batch of 128. Which is the largest that still arrives?
# The linear rule says 0.32, and is a rule of thumb.
for rate in (0.16, 0.32, 0.64):
    w = fit(batch_size=128, updates=8, learning_rate=rate)
    print(f"rate {rate}: {loss(*w[-1]) - loss(*best):.3g} above the best")

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `rate * k`, a warm-up in the loop | `lr_scaling="linear"`, `warmup_epochs` | the batch of all ranks and contexts is counted |
# | `lars`, `lamb` | `optimizer="lars"`, `"lamb"`, `"muon"` | biases and BatchNorm's parameters left out by name; float32 masters; several contexts |
# | `x.split(ghosts)` | `gt.optim.use_ghost_batch_norm` | statistics for prediction are kept right |
# | noise in `update` | `gt.optim.gradient_noise` | seeded, resumed from a checkpoint |
#
# ## Summary: what to remember
# - A larger batch makes a step cheaper for each image, as long as the device had room.
# - Equal epochs are fewer steps; scale the rate with the batch, and warm up, or take an optimizer that makes more of each step.
# - Beyond some batch the number of steps no longer falls; then only longer training helps.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
# A rate of 0.1 suits a batch of 256. Which rate does the linear rule give for 1,024?
check("linear-rule", ...)

# %%
# A batch of 64 becomes 1,024. To which share of its size does the gradient's noise fall?
check("noise-share", ...)

# %%
# 50,000 images, 30 epochs, batches of 1,000. How many updates is that?
check("large-batch-updates", ...)

# %%
# Write a function (w, v, g, lr, trust, wd, mu) -> (w, v) on NDArrays, a step of LARS with weight decay and momentum:
# g ← g + wd·w;  rate = lr·trust·‖w‖/‖g‖;  v ← mu·v + rate·g;  w ← w − v
check("write-lars", ...)

# %% [markdown]
# **Reference:** `gt.optim.setup?`, `gt.optim.use_ghost_batch_norm?`, `gt.optim.BatchGrowth?` in a cell show what they take.
#
# **Next:** [`07_multi_gpu`](07_multi_gpu.ipynb): several devices make one large batch together.
