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
# # 09 · Learning-rate schedules
#
# **Question.** A schedule changes the learning rate of all parameters over time, by a plan made before training. What does
# the plan look like, when exactly does it change, and does it matter for a short run?
#
# **You will be able to** plan a learning rate, and know to the update when it changes.

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
out_dir = "runs/09_lr_schedules"
seed = 0
quick_samples = 5000

# %%
import gluontune as gt
from gluontune.course import bars, check, compare, lines, predict, show, table

mx = gt.runtime.mxnet()
s = gt.optim.schedules
UPDATES = 1500
predict("the rate of update 251", ...)
predict("points of accuracy between the best and the worst schedule", ...)

# %% [markdown]
# ## The deck's two plots
# Deck "The Steady State" shows two of MXNet's schedulers from a base rate of 1. *Fixed factor*: halve the rate every 250
# updates. These are MXNet's own numbers, one for each update, and the same rule as a pure function of the update.


# %%
def mxnet_factor():
    scheduler = mx.lr_scheduler.FactorScheduler(step=250, factor=0.5)
    scheduler.base_lr = 1
    return scheduler


factor = s.factor(base_lr=1, step=250, factor=0.5)
updates = range(UPDATES)

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
# back. A pure function gives the same answer whenever it is asked; that is why gluontune's are pure.

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
# falls: in a *cosine*, as a *polynomial*, or in *one cycle* that rises for a third of the run and falls to zero.

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
    caption="Schedules that end at a rate of zero, and one that does not",
)

# %% [markdown]
# ## Does it matter?
# The same small net, the same data in the same order, the same highest rate, and as many updates; only the schedule differs.

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
for name in ("constant", "cosine", "onecycle"):
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
print(f"Chance alone moves an accuracy on so many images by up to about {2 * noise:.1f} points.")

# %% [markdown]
# ## Why
# A large rate moves far, but the noise of small batches keeps it from settling; a small rate settles wherever it is. A schedule does
# the first and then the second. A constant rate has to be a compromise. With few epochs the fall must come early, so give a
# schedule the length of *your* run. One run of each is a hint, not a proof: another seed moves the figures as well.

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
# ## Summary
# - A schedule is a function of the update; the step takes effect once the count exceeds it.
# - Ask MXNet's schedulers only in order; a pure function may be asked at any time.
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

# %% [markdown]
# **Reference:** `gt.optim.schedules?`, `gt.optim.plot_schedule?` in a cell show what they take.
#
# **Next:** `10_composing` puts the steps together. Or climb: `gluontune ladder --quick` tries each of them on your data and
# your net, and keeps what helps. The highest rate for a schedule is found by `gt.optim.find_learning_rate`.
