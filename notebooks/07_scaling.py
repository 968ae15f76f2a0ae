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
# # 07 · What more devices cost
#
# **Question.** Four V100s trained 1.3 times as many images a second as one with the deck's naive script, and 2.9 times as many
# with batches of 640. Where does the rest go, and how does it grow with the number of devices?
#
# **You will be able to** measure the exchange, say what a parameter server and a ring send, and expect an efficiency for more
# devices.

# %%
from gluontune.course import picture

picture("exchange")

# %% tags=["parameters"]
dataset = "sample"
epochs = 2
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/07_scaling"
seed = 0
quick_samples = 5000

# %%
import numpy as np

import gluontune as gt
from gluontune.course import check, compare, in_turn, kept_run, lines, predict, show, table

mx = gt.runtime.mxnet()
predict("percent of a step that goes into the exchange", ...)

# %%
gpus = gt.runtime.gpu_count() if devices != "cpu" else 0
on_gpu, count = gpus > 1, max(gpus, 2)
share = max(1, gt.runtime.usable_cores() // count)
small = {"train_samples": quick_samples, "val_samples": 500} if quick else {}
base = gt.Recipe(
    dataset=dataset,
    net="small_cnn" if quick else "cifar_resnet20_v1",
    epochs=epochs,
    batch_size_per_device=batch_size_per_device,
    num_workers=num_workers,
    dtype=dtype,
    devices="gpu" if on_gpu else "cpu",
    loader="resident",
    hybridize="static",
    runtime="tuned",
    learning_rate=0.1,
    seed=seed,
    **small,
)

# %%
single = base if on_gpu else base.override(env={"OMP_NUM_THREADS": str(share)})
several = base.override(engine="kvstore" if on_gpu else "shared-memory", num_devices=count)

# %% [markdown]
# ## Measure
# Two ranks train, and one rank alone on the same share of the machine. The step is cut into phases; the exchange is part of
# *update*. The update of two takes longer than the update of one: the difference is the exchange, and the wait for the slower
# rank.

# %%
runs = {
    "one device": kept_run(single, f"{out_dir}/one.json"),
    "several": kept_run(several, f"{out_dir}/several.json"),
}
show("phases", runs)

# %%
step_ms, update_ms = {}, {}
for name, run in runs.items():
    devices_here = 1 if name == "one device" else count
    step_ms[name] = 1000 * batch_size_per_device * devices_here / run.samples_per_sec["median"]
    update_ms[name] = step_ms[name] * run.phases_pct["update"] / 100
exchange = max(0.0, update_ms["several"] - update_ms["one device"])
percent = 100 * exchange / step_ms["several"]
print(f"A step takes {step_ms['several']:.1f} ms on each rank, and {exchange:.1f} ms of it are the exchange.")
print(compare("percent of a step that goes into the exchange", percent))

# %% [markdown]
# The deck on DAWNBench's entries: 18 % of an epoch inside one server of 8 V100s, 53 % between servers.
#
# ## One place, or a ring
# How much there is to send does not depend on the batch, only on the net. A *parameter server* gets the gradients of all ranks
# and gives the sum back. So its connection has n times the traffic of a rank's.

# %%
picture("parameter-server")

# %% [markdown]
# In a *ring all-reduce* each rank cuts its gradient into n pieces. In each turn it sends one piece to the next rank and adds the
# piece that it gets to its own. After n − 1 turns each rank has one piece of the whole sum; n − 1 turns more hand the pieces out.
# So each rank sends 2 (n − 1) / n of the gradient: less than twice of it, however many ranks there are.

# %%
picture("ring")

# %%
data = gt.datasets.open(dataset)
height, width, channels = data.image_shape
net = gt.train.build_net(base.net, len(data.classes))
net.initialize()
net(mx.nd.zeros((1, channels, height, width)))
weights = sum(int(np.prod(p.shape)) for p in net.collect_params().values() if p.grad_req != "null")
mib = 4 * weights / 2**20
table(
    {
        "ranks": n,
        "a rank of a ring sends, MiB": f"{2 * (n - 1) / n * mib:.2f}",
        "one server gets and sends, MiB": f"{2 * n * mib:.2f}",
    }
    for n in (2, 4, 8, 64)
)

# %% [markdown]
# `gt.parallel.expected` computes what that means for many devices. **It is a model**, nothing is measured: a net of 25 million
# weights, a step of 200 ms on each device, and how fast each device's connection is.

# %%
parts = gt.parallel.Parts(step_ms=[200.0], gradient_bytes=100e6, batch=64)
links = {
    "ring, 10 Gbit/s": (1.25, "ring"),
    "ring, 100 Gbit/s": (12.5, "ring"),
    "one server, 100 Gbit/s": (12.5, "parameter-server"),
}
ranks = [1, 2, 4, 8, 16, 64]
lines(
    {
        name: (
            ranks,
            [100 * gt.parallel.expected(parts, n, gt.parallel.Link(speed), how)["efficiency"] for n in ranks],
        )
        for name, (speed, how) in links.items()
    },
    x="devices",
    y="expected efficiency, percent",
    log_x=True,
    markers=True,
    caption="A model: a ring keeps its efficiency, one server does not",
)

# %% [markdown]
# ## A larger batch
# A larger batch sends as much, for more work. So the one measured step says what efficiency to expect from other batches.
# Measure this batch and one four times as large:

# %%
large = 4 * batch_size_per_device
pairs = {"1": single, "1 several": several}
pairs["4"], pairs["4 several"] = (r.override(batch_size_per_device=large) for r in (single, several))
measured = []
for factor in ("1", "4"):
    two = {name: pairs[name] for name in (factor, f"{factor} several")}
    found = in_turn(two, rounds=5 if quick else 9, slice_s=0.4 if quick else 1.0)
    measured.append(100 * found[f"{factor} several"]["ratio"]["median"] / count)

# %%
sizes = [batch_size_per_device * k for k in (0.5, 1, 2, 4, 8, 16)]
work = (step_ms["several"] - exchange) / batch_size_per_device
lines(
    {
        "expected from the exchange alone": (sizes, [100 / (1 + exchange / (work * b)) for b in sizes]),
        "measured": ([batch_size_per_device, large], measured),
    },
    x="batch size on each device",
    y="efficiency, percent",
    log_x=True,
    markers=True,
    caption="Efficiency by batch size",
)

# %% [markdown]
# Where the measured efficiency is below the expected one, devices take something else from each other: memory, caches, the input.
#
# ## More devices are not always better
# Several devices make one batch together, so an epoch has fewer updates, as with a large batch (lesson 06). More images a
# second buy nothing if they come to a lower accuracy.

# %%
table(
    {
        "run": name,
        "updates": run.steps,
        "seconds of training": f"{run.elapsed_seconds[-1]:.1f}",
        "validation accuracy, percent": f"{100 * run.val_accuracy[-1]:.1f}",
    }
    for name, run in runs.items()
)

# %% [markdown]
# ## Not waiting at all
# Ranks that wait for each other are *synchronous*. *Hogwild* (Recht and others, 2011) lets threads write their updates into the
# same weights without a lock: with sparse gradients they rarely meet. *GaDei* (Zhang and others, 2017, deck `001`) does so with
# whole nets and small batches: learners add their updates to weights in shared memory, and push and pull while they compute. A
# gradient is then older than the weights that it changes; *DCASGD* (lesson 08) corrects for that. Here it is `engine="async"`.
#
# Between the two: exchange every few steps only (`exchange_every`), or send fewer bits (`compression`). Each has a price in
# accuracy. `python -m benchmarks exchange` measures it (in a clone of gluontune), and `gluontune scale` says what the model
# expects of your job on more devices.
#
# ## Why
# Each step pays for its exchange. So a step must be long for what it sends: large batches, and nets with much arithmetic for
# each weight. A ring needs no faster middle; one server does.

# %%
# Try this: a longer step, by a larger batch. What does the slow ring gain?
for milliseconds in (100.0, 200.0, 400.0):
    longer = gt.parallel.Parts(step_ms=[milliseconds], gradient_bytes=100e6, batch=64)
    seen = gt.parallel.expected(longer, 8, gt.parallel.Link(1.25), "ring")
    print(f"{milliseconds:g} ms: {100 * seen['efficiency']:.0f} % on 8 devices")

# %% [markdown]
# ## Summary
# - The exchange depends on the net, the work on the batch: a larger batch hides the exchange.
# - A ring sends less than twice the gradient from each rank; one server gets n times the gradient.
# - Efficiency rises with the batch, and the batch costs accuracy: compare the time to one accuracy.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
# A net has 25 million float32 weights. How many million bytes does each of 4 ranks send in a ring all-reduce?
check("ring-bytes", ...)

# %%
# A step takes 40 ms, and 10 of them are the exchange. With twice the batch, how many percent is the exchange?
check("exchange-share", ...)

# %% [markdown]
# **Reference:** `gt.parallel.expected?`, `gt.ladder.scale?` in a cell show what they take.
#
# **Next:** `08_optimizers` looks closer at the walk itself.
