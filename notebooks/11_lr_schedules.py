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
# # 11 · Learning-rate schedules
#
# **Question.** A schedule changes the learning rate of all parameters over time, by a plan made before training. What does
# the plan look like, when exactly does it change, and does it matter for a short run?
#
# **You will be able to** give a Trainer a plan for its rate, find the rate to begin with, and know to the update when it changes.
#
# **Before this:** `10_optimizers`. **Time:** 30 minutes; on two cores the cells run for half a minute.

# %%
from gluontune.course import picture

picture("schedule")

# %% tags=["parameters"]
dataset = "sample"
epochs = 2
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/11_lr_schedules"
seed = 0
quick_samples = 5000

# %%
import numpy as np

import gluontune as gt
from gluontune.course import bars, check, compare, lines, pixels_of, predict, show, table

mx = gt.runtime.mxnet()
gluon, nd, nn = mx.gluon, mx.nd, mx.gluon.nn
s = gt.optim.schedules
UPDATES = 1500
predict("the rate of update 251", ...)
predict("points of accuracy between the best and the worst schedule", ...)

# %% [markdown]
# ## By hand: a plan inside a Trainer
# A scheduler is one argument of the optimizer. The Trainer asks it for the rate of each update, and `trainer.learning_rate` shows it.

# %%
data = gt.datasets.open(dataset)
(pixels, labels), (val_pixels, val_labels) = pixels_of(data.train, 2048), pixels_of(data.test, 1000)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()


def new_net(draw):
    mx.random.seed(draw)
    net = nn.HybridSequential()
    net.add(nn.Dense(64, activation="relu"), nn.Dense(len(data.classes)))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


# %%
def train(plan=None, rate=0.1, steps=160, batch=64, draw=0):
    net, rng, rates, losses = new_net(draw), np.random.default_rng(draw), [], []
    options = {"learning_rate": rate, "momentum": 0.9}
    if plan is not None:
        options["lr_scheduler"] = plan
    trainer = gluon.Trainer(net.collect_params(), "sgd", options)
    for _ in range(steps):
        chosen = rng.integers(0, len(pixels), batch)
        with mx.autograd.record():
            loss = loss_of(net(nd.array(pixels[chosen])), nd.array(labels[chosen]))
        loss.backward()
        trainer.step(batch)
        rates.append(trainer.learning_rate)
        losses.append(loss.mean())
    right = net(nd.array(val_pixels)).asnumpy().argmax(1) == val_labels
    return rates, [loss.asscalar() for loss in losses], 100 * right.mean()


# %%
schedulers = mx.lr_scheduler


def plans():  # new ones for each run: MXNet's schedulers remember
    return {
        "constant": None,
        "multi-factor": schedulers.MultiFactorScheduler([80, 120], factor=0.1, base_lr=0.2),
        "warm-up, cosine": schedulers.CosineScheduler(160, base_lr=0.2, final_lr=0, warmup_steps=16),
    }


runs = {name: [train(plans()[name], rate=0.2, draw=draw) for draw in range(3)] for name in plans()}
lines(
    {name: (range(1, 161), found[0][0]) for name, found in runs.items()},
    x="update",
    y="trainer.learning_rate",
    caption="What the Trainer used, update by update",
    steps=True,
)

# %%
table(
    {
        "schedule": name,
        "accuracy of three seeds, percent": ", ".join(f"{run[2]:.1f}" for run in found),
        "mean loss of the last 20 updates": f"{np.mean([run[1][-20:] for run in found]):.3f}",
    }
    for name, found in runs.items()
)

# %% [markdown]
# Seeds differ by as much as schedules do: by the accuracy nothing is decided. The *training* loss is lower where the rate falls.
#
# **A trap.** A scheduler holds two rates: `base_lr`, and the end of its warm-up, copied from it when it was made. The Trainer's
# `learning_rate` overwrites only the first. So set both to one number. (Leaving the Trainer's out is enough for `sgd`; Adam brings a rate of
# its own, 0.001, which overwrites the scheduler's.) In the next cell they differ, and the rate drops ninefold in one update:

# %%
stale = schedulers.MultiFactorScheduler([30], factor=0.1, base_lr=0.9, warmup_steps=10)
rates = train(stale, rate=0.1, steps=20)[0]
print(f"update 9: {rates[8]:.2f}, at the end of the warm-up; update 11: {rates[10]:.2f}")

# %% [markdown]
# ## By hand: find the rate to begin with
# Which peak? Let the rate grow from tiny to huge within one short run, $\eta_n = \eta_0\,(\eta_1 / \eta_0)^{n/N}$, and watch the loss
# ([Smith, 2015](https://arxiv.org/abs/1506.01186)). The loss first stays, then falls, then blows up. A good peak lies before the lowest loss,
# where the fall is steepest.

# %%
net, rng, found = new_net(0), np.random.default_rng(0), []
trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9})
for rate in np.geomspace(1e-4, 10, 80):
    trainer.set_learning_rate(float(rate))
    chosen = rng.integers(0, len(pixels), 64)
    with mx.autograd.record():
        loss = loss_of(net(nd.array(pixels[chosen])), nd.array(labels[chosen]))
    loss.backward()
    trainer.step(64)
    found.append((float(rate), loss.mean().asscalar()))
    if not found[-1][1] < 3 * found[0][1]:
        break
print(f"lowest loss at the rate {min(found, key=lambda pair: pair[1])[0]:.2g}")
lines(
    {"loss": tuple(zip(*found))},
    x="learning rate",
    y="loss",
    log_x=True,
    log_y=True,
    caption="A rate that grows: the loss stays, falls, and blows up",
)

# %% [markdown]
# `gt.optim.find_learning_rate` does it with a smoothed loss, on a copy of the weights, for any of its optimizers. What it suggests is where to
# begin trying; the 0.2 of above is more.

# %%
batches = [(nd.array(pixels[i : i + 64]), nd.array(labels[i : i + 64])) for i in range(0, 1024, 64)]
suggested = gt.optim.find_learning_rate(new_net(0), loss_of, batches, optimizer="sgd")
print(f"suggested peak: {suggested.suggestion:.3g}")

# %% [markdown]
# ## The deck's two plots
# Deck "The Steady State" shows two of MXNet's schedulers from a base rate of 1. *Fixed factor*: halve the rate every 250
# updates. These are MXNet's own numbers, one for each update, and the same rule as a *pure* function: it depends on the update alone, and
# remembers nothing.


# %%
def mxnet_factor():
    scheduler = mx.lr_scheduler.FactorScheduler(step=250, factor=0.5)
    scheduler.base_lr = 1
    return scheduler


factor = s.factor(base_lr=1, step=250, factor=0.5)
updates = range(1, UPDATES + 1)

# %%
theirs = mxnet_factor()
lines(
    {
        "MXNet's FactorScheduler": (updates, [theirs(n) for n in updates]),
        "gt.optim.schedules.factor": (updates, [factor(n) for n in updates]),
    },
    x="update",
    y="learning rate",
    caption="Fixed factor: the rate is halved every 250 updates",
    steps=True,
)

# %% [markdown]
# *Multi-factor*: the same, but at the updates that you name; here 250, 750 and 900.


# %%
def mxnet_multifactor():
    scheduler = mx.lr_scheduler.MultiFactorScheduler(step=[250, 750, 900], factor=0.5)
    scheduler.base_lr = 1
    return scheduler


multifactor = s.multifactor(base_lr=1, steps=[250, 750, 900], factor=0.5)

# %%
theirs = mxnet_multifactor()
lines(
    {
        "MXNet's MultiFactorScheduler": (
            updates,
            [theirs(n) for n in updates],
        ),
        "gt.optim.schedules.multifactor": (updates, [multifactor(n) for n in updates]),
    },
    x="update",
    y="learning rate",
    caption="Multi-factor: halved after the updates 250, 750 and 900",
    steps=True,
)

# %% [markdown]
# ## When exactly?
# Updates are counted from 1, and a step takes effect once the count *exceeds* it: update 250 still has the old rate.

# %%
fresh = mxnet_factor()
table({"update": n, "MXNet": fresh(n), "pure function": factor(n)} for n in (249, 250, 251, 500, 501))

# %%
print(compare("the rate of update 251", factor(251)))

# %% [markdown]
# ## A trap: schedulers that remember
# MXNet's scheduler changes itself when it is asked. Ask it about the future, to plot it, say, and it will not come
# back. gluontune's are pure: they give the same answer whenever they are asked.

# %%
asked = mxnet_factor()
asked(1400)
table(
    [
        {"asked about update 1,400 first, then about update 1": "MXNet", "rate": asked(1)},
        {"asked about update 1,400 first, then about update 1": "pure function", "rate": factor(1)},
    ]
)

# %% [markdown]
# ## Warm-up, and the smooth ones
# A large rate on fresh parameters can blow training up, so the first updates go up from a small rate (*warm-up*). Then the rate
# falls: in a *cosine*, or as a *polynomial*. *One cycle* does both: it rises for a third of the run, and falls to zero in the rest.

# %%
smooth = {
    "warm-up of 150, then cosine": s.warmup(s.cosine(base_lr=1, max_update=UPDATES), warmup_steps=150),
    "polynomial of power 2": s.poly(base_lr=1, max_update=UPDATES, pwr=2),
    "one cycle": s.onecycle(base_lr=1, max_update=UPDATES),
    "constant": s.constant(base_lr=1),
}
lines(
    {name: (updates, [rate(n) for n in updates]) for name, rate in smooth.items()},
    x="update",
    y="learning rate",
    caption="All but the constant one end at a rate of zero",
)

# %% [markdown]
# ## With gluontune: does it matter?
# In a recipe the plan is a name, and its length is the run's. The same small net, the same data in the same order, the same highest rate, and as many updates; only the schedule differs.

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
runs = {}
for name in ("constant", "onecycle"):
    runs[name] = gt.train.run(base.override(schedule=name))
    runs[name].save(f"{out_dir}/{name}.json")

# %%
accuracy = {name: 100 * run.val_accuracy[-1] for name, run in runs.items()}
bars(
    accuracy,
    unit="validation accuracy at the end, percent",
    caption=f"Equal updates, different schedules (epochs: {epochs:g})",
)

# %%
show("accuracy", runs)

# %%
spread = max(accuracy.values()) - min(accuracy.values())
print(compare("points of accuracy between the best and the worst schedule", spread))
count = images.get("val_samples") or len(gt.datasets.open(dataset).test)
noise = 100 * (0.25 / count) ** 0.5
print(f"Chance alone moves an accuracy on so many images by up to about {2 * noise:.1f} points:")
print(
    "the schedule matters here." if spread > 2 * noise else "the schedule does not matter beyond that here."
)

# %% [markdown]
# ## Why
# A large rate moves far, but the noise of small batches keeps it from settling; a small rate settles wherever it is. So a schedule has a
# large rate first, to move far, and ends near zero, to settle. A constant rate has to be a compromise. With few epochs the fall must come
# early, so give a schedule the length of *your* run. One run of each is a hint, not a proof: another seed moves the figures as well.

# %%
# Try this: change one thing, such as warmup_steps or the power, and look at the rate again.
mine = s.warmup(s.poly(base_lr=1, max_update=UPDATES, pwr=2), warmup_steps=300)
lines(
    {"mine": (updates, [mine(n) for n in updates])},
    x="update",
    y="learning rate",
    caption="A schedule of yours",
)

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `Trainer(…, {"lr_scheduler": …})` | `schedule="cosine"`, `gt.optim.setup(…, schedule=…)` | pure functions: asked in any order, resumed exactly, right after a change of the rate |
# | steps counted by hand | `epochs`, `warmup_epochs` | the length follows from data, batch and ranks |
# | a growing rate in a loop | `gt.optim.find_learning_rate` | weights are put back; a smoothed curve; a suggestion |
#
# ## Summary: what to remember
# - A schedule is a function of the update; the step takes effect once the count exceeds it.
# - Give Trainer and scheduler one and the same rate; ask MXNet's schedulers only in order.
# - Warm up when the rate is large, end near zero, and tell the schedule how long the run is.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
# MultiFactorScheduler(step=[250, 750, 900], factor=0.5), base rate 1: which rate has update 900?
check("multifactor-rate", ...)

# %%
# 50,000 images, batches of 128, incomplete ones left out, 60 epochs. The rate falls half-way: at which update?
check("step-update", ...)

# %%
# Write a function of num_update: straight up from 0 to 0.4 at update 100, then a half cosine down to 0 at 1,000.
check("write-schedule", ...)

# %%
# Write a function (params, peak, warmup, drop) -> a gluon.Trainer with "sgd": its rate rises in a line to `peak` at
# update `warmup`, stays there, and is a tenth of it after update `drop`.
check("write-trainer", ...)

# %% [markdown]
# **Reference:** `gt.optim.schedules?`, `gt.optim.plot_schedule?` in a cell show what they take.
#
# **Next:** [`12_composing`](12_composing.ipynb) puts the steps together. Or climb: `gluontune ladder --quick` tries each of them on your data and
# your net, and keeps what helps. The highest rate for a schedule is found by `gt.optim.find_learning_rate`.
