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
# **You will be able to** enlarge a batch with the right rate and warm-up, and see what it costs in accuracy.

# %%
from gluontune.course import picture

picture("large-batch")

# %% tags=["parameters"]
dataset = "sample"
epochs = 4
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/06_large_batch"
seed = 0
quick_samples = 10_000

# %%
import numpy as np

import gluontune as gt
from gluontune.course import bars, check, compare, descent, lines, paths, predict, table

predict("times as fast with a batch 16 times as large", ...)
predict("points of accuracy lost with it at an unchanged rate", ...)

# %% [markdown]
# ## Noise
# The gradient of a batch is a mean over its images, so it scatters about the true gradient. Take the smallest model, a line through
# 1,024 points: how far is a batch's gradient from that of all points?

# %%
x, y = descent.line_points(1024, seed=seed)
batches = [1, 4, 16, 64, 256]
scatter = [descent.gradient_scatter(x, y, b, seed=seed) for b in batches]
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
# walk does not arrive; multiply it by 16 as well (the *linear rule*), and it does; multiply by more, and it never will.

# %%
plans = {
    "batch 8, rate 0.02": {"batch_size": 8, "updates": 128, "learning_rate": 0.02},
    "batch 128, rate 0.02": {"batch_size": 128, "updates": 8, "learning_rate": 0.02},
    "batch 128, rate 0.32": {"batch_size": 128, "updates": 8, "learning_rate": 0.32},
    "batch 128, rate 1.2": {"batch_size": 128, "updates": 8, "learning_rate": 1.2},
}
walks = {name: descent.fit_line(x, y, seed=seed, **plan) for name, plan in plans.items()}
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
# ## Measure
# A net, three batch sizes, equal epochs. Four words that you need here; `08_optimizers` and `09_lr_schedules`
# take their time for them:
#
# - *Momentum*: a step goes partly where the step before went. All runs have it.
# - *Schedule*: a plan for the rate. Here it falls to nothing along half a *cosine*: fast at first, settling at the end.
# - *Warm-up*: the rate rises over the first part of the run. A large rate on fresh weights may blow training up.
# - *Muon*: an optimizer of 2024 for few and large steps. It takes each layer's weights as a matrix and makes its step orthogonal,
#   so that every direction moves, not only the steepest.
#
# First the rate is left unchanged, then it follows the linear rule with a warm-up, last Muon makes the steps.

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

# %%
sizes = [batch_size_per_device * k for k in (1, 4, 16)]
rules = {
    "rate unchanged": {"lr_scaling": "none"},
    "linear rule, warm-up": {"lr_scaling": "linear", "warmup_epochs": epochs / 4},
    "Muon": {"optimizer": "muon", "learning_rate": 0.02, "lr_scaling": "sqrt", "wd": 0.1},
}

# %%
runs = {}
for rule, changes in rules.items():
    for size in sizes:
        run = gt.train.run(base.override(batch_size_per_device=size, **changes))
        run.save(f"{out_dir}/{rule.split()[0]}-{size}.json")
        runs[rule, size] = run
assert all(run.ok for run in runs.values()), [run.error for run in runs.values()]

# %%
unchanged = next(iter(rules))
bars(
    {f"batch {size}": runs[unchanged, size].samples_per_sec for size in sizes},
    unit="images/s in training",
    caption="Throughput by batch size: median and 95 % interval",
)

# %%
accuracy = {rule: [100 * runs[rule, size].val_accuracy[-1] for size in sizes] for rule in rules}
lines(
    {rule: (sizes, values) for rule, values in accuracy.items()},
    x="batch size",
    y="validation accuracy, percent",
    log_x=True,
    markers=True,
    caption=f"Accuracy at the end, whatever the batch (epochs: {epochs:g})",
)

# %%
speed = [runs[unchanged, size].samples_per_sec["median"] for size in sizes]
lost = {rule: values[0] - values[-1] for rule, values in accuracy.items()}
print(compare("times as fast with a batch 16 times as large", speed[-1] / speed[0]))
print(compare("points of accuracy lost with it at an unchanged rate", lost[unchanged]))
print(f"By the linear rule {lost['linear rule, warm-up']:.1f} points are lost, with Muon {lost['Muon']:.1f}.")
price = [
    runs["Muon", size].samples_per_sec["median"] / runs[unchanged, size].samples_per_sec["median"]
    for size in sizes
]
print("Muon's throughput, as a share of plain:", ", ".join(f"{p:.2f} with {n}" for p, n in zip(price, sizes)))

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
# is wide. The noise of small batches throws a walk out of sharp hollows, and it ends in flat ones, which seem to do better on new
# images (Hochreiter and Schmidhuber, 1997; Keskar and others, 2017). Not everybody agrees: a net can be written with other weights
# so that the same function looks sharp (Dinh and others, 2017). What helps does not depend on who is right: more steps, or noise.
#
# Muon makes more of each step. Its matrix products have a price at every update, whatever the batch, so it pays where updates are few.
#
# What else helps: layer-wise rates (`optimizer="lars"`, `"lamb"`), noise added on purpose (`gt.optim.gradient_noise`), statistics over
# smaller *ghost* batches (`gt.optim.use_ghost_batch_norm`; `accumulate`, which gathers small steps to one update, gives them for free), and
# a batch that grows while others let the rate fall (`gt.optim.BatchGrowth`). MXNet's own `LBSGD`, the deck's choice, has faults;
# gluontune's has the same name and is built anew.

# %%
# Try this: another rate for the batch of 128. Which is the largest that still arrives?
for rate in (0.16, 0.32, 0.64):
    w = descent.fit_line(x, y, seed=seed, batch_size=128, updates=8, learning_rate=rate)
    print(f"rate {rate}: {loss(*w[-1]) - loss(*best):.3g} above the best")

# %% [markdown]
# ## Summary
# - A larger batch makes a step cheaper for each image, as long as the device had room.
# - Equal epochs are fewer steps; scale the rate with the batch, and warm up, or take an optimizer that makes more of each step.
# - Compare accuracy at equal epochs, or better the time to one accuracy.
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

# %% [markdown]
# **Reference:** `gt.optim.setup?`, `gt.optim.use_ghost_batch_norm?`, `gt.optim.BatchGrowth?` in a cell show what they take.
#
# **Next:** `07_multi_gpu`: several devices make one large batch together.
