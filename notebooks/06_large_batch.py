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
# **Question.** The deck's V100 trained 17,000 images/s with a batch of 640 and 941 with a batch of 64. A larger batch keeps a device
# busy. What does it do to the accuracy, and what can be done about it?

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
# By its times of an epoch, 4.0 and 13.25 s, it is 3.3 times as fast; by its images a second, 18 times. Both cannot be true.
#
# The deck's own table, on V100s with CIFAR-10, after three epochs. The batch of 1,280 is four times as fast as the one of 64, and more
# than ten points behind it.

# %%
deck = {64: (27.5, 71.3), 128: (14.3, 71.4), 256: (7.7, 68.8), 512: (5.5, 65.9), 1280: (6.8, 60.8)}
table({"batch": b, "third epoch, s": s, "validation accuracy, percent": a} for b, (s, a) in deck.items())

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
# A net, three batch sizes, equal epochs. First with the rate unchanged, then by the linear rule with a *warm-up*: a large rate on fresh parameters
# may blow training up, so it rises over the first part of the run. Last with *Muon*, an optimizer of 2024 for few and large steps: it
# takes each layer's weights as a matrix and makes its step orthogonal, so that every direction moves, not only the steepest.

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
# ## Why
# A GPU has thousands of arithmetic units; a small batch leaves many idle, and each step has a fixed cost. Few cores are busy with few images, so
# a CPU gains little. The accuracy falls because there are fewer steps, and the rule gives each of them more length. It works only as far as
# the loss is smooth enough for such a step: beyond some batch no rate makes up for missing steps.
#
# Muon makes more of each step. Its matrix products have a price at every update, whatever the batch, so it pays where updates are few.
#
# What else helps: layer-wise rates (`optimizer="lars"`, `"lamb"`), noise added on purpose (`gt.optim.gradient_noise`), statistics over
# smaller *ghost* batches (`gt.optim.use_ghost_batch_norm`; `accumulate`, which gathers small steps to one update, gives them for free), and
# a batch that grows while others let the rate fall (`gt.optim.BatchGrowth`). MXNet's own `LBSGD`, the deck's choice, has faults;
# gluontune's has the same name and is built anew.
#
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
# **Next:** `07_multi_gpu`: several devices make one large batch together.
