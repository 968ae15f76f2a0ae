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
# # 07 · Several devices
#
# **Question.** Several devices can train one net together. What must each of them do so that the result is right? And what do
# two of them bring here?
#
# **You will be able to** sum gradients over devices, divide the data among ranks, and name the six steps that a correct
# script needs.

# %%
from gluontune.course import picture

picture("data-parallel")

# %% tags=["parameters"]
dataset = "sample"
epochs = 2
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/07_multi_gpu"
seed = 0
quick_samples = 5000

# %%
import numpy as np

import gluontune as gt
from gluontune.course import bars, check, compare, in_turn, predict, table
from gluontune.loading.base import Order
from gluontune.parallel import horovod

predict("times as fast: several devices against one", ...)

# %% [markdown]
# ## One net, several parts of a batch
# A *context* is MXNet's word for a place to compute: a GPU, or the CPU. A *rank* is one of several processes that train together,
# and its number. *All-reduce* adds up what all ranks have, and gives each of them the sum.
#
# *Data parallelism* is the picture above: each device has the whole net and a part of the batch. Their gradients are added up,
# and all make the same update. Here with two CPU contexts in one process, in plain Gluon; on GPUs only the contexts differ.

# %%
mx = gt.runtime.mxnet()
ctxs = gt.parallel.contexts("cpu", 2)
rng = np.random.default_rng(seed)
images = mx.nd.array(rng.normal(size=(64, 3, 16, 16)).astype("float32"))
labels = mx.nd.array(rng.integers(0, 10, 64).astype("float32"))
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Conv2D(8, 3, activation="relu"), mx.gluon.nn.Flatten(), mx.gluon.nn.Dense(10))
net.initialize(mx.init.Xavier(), ctx=ctxs)
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()

# %%
gradients = {}
for name, places in {"whole": ctxs[:1], "parts": ctxs}.items():
    xs, ys = (gt.parallel.split_batch(batch, places) for batch in (images, labels))
    with mx.autograd.record():
        losses = [loss_of(net(x), y) for x, y in zip(xs, ys)]
    mx.autograd.backward(losses)
    weight = net[0].weight
    gradients[name] = sum(weight.grad(ctx).asnumpy() for ctx in places)
gap = np.abs(gradients["parts"] - gradients["whole"]).max() / np.abs(gradients["whole"]).max()
print(f"Sum over two parts against the whole batch: they differ by {gap:.0e} of the largest gradient.")

# %% [markdown]
# The same, but for rounding. With BatchNorm it would not be: each device takes its mean over its own part, as the
# *ghost batches* of the deck "Fundamentals of Deep Learning for Multi-GPUs" do.
#
# An incomplete batch is where plain Gluon breaks: three images over four contexts.

# %%
four = gt.parallel.contexts("cpu", 4)
try:
    mx.gluon.utils.split_and_load(images[:3], four)
except ValueError as error:
    print("split_and_load:", str(error)[:90], "…")
print("split_batch:", [part.shape[0] for part in gt.parallel.split_batch(images[:3], four)])

# %% [markdown]
# ## Several processes, done right
# *Horovod* is a library that does the all-reduce. The deck names six steps for it; here they are for Gluon. Without one of them
# the run still trains, and is wrong.
#
# | step | in Gluon | without it |
# |---|---|---|
# | start the library | `hvd.init()` before the net is built | each rank trains alone |
# | one device for each rank | `mx.gpu(hvd.local_rank())`; on CPUs a share of the cores | all of them crowd on the first |
# | sum the gradients | all-reduce between backward and update | the nets drift apart |
# | equal start | rank 0's parameters to all, after the first batch gave them a shape | they never agree |
# | one writer | checkpoint and log on rank 0 alone | ranks write into one file |
# | parts of the data | equally many batches for each rank | one is done, the others wait for ever |
#
# gluontune does them all: `gluontune launch -n 2 --engine horovod -- train …`. Two other engines need nothing installed.
# `kvstore` is MXNet's own *parameter server*: a process that gets the gradients of all ranks, adds them up and gives the sum
# back. `shared-memory` is for one machine: the ranks write their gradients into memory that all of them see.
#
# ## The mean is taken once
# `gluon.Trainer` adds gradients up and divides by the batch that `step` is given. Horovod's `DistributedTrainer` takes the mean over ranks.
# Whoever exchanges one for the other must change that number as well. Otherwise the rate is another, without an error:

# %%
world, local = 2, 32
total = world * local
table(
    {
        "exchange": how,
        "step(…)": f"step({given})",
        "length of the update, right is 1": f"{scale / given * total:g}",
    }
    for how, given, scale in [
        ("sum", total, 1),
        ("sum", local, 1),
        ("mean over ranks", local, 1 / world),
        ("mean over ranks", total, 1 / world),
    ]
)

# %% [markdown]
# ## Parts of the data
# Cut 1,025 images in two, and keep the incomplete batches of 64. One rank has a batch more, and would wait for a partner in
# it.

# %%
cut = [len(range(rank, 1025, 2)) for rank in (0, 1)]
print("cut in two:", cut, "images,", [-(-n // 64) for n in cut], "batches")
for last_batch in ("keep", "discard"):
    parts = [Order(1025, 64, last_batch=last_batch, rank=rank, world_size=2) for rank in (0, 1)]
    print(f"gluontune, {last_batch}:", [part.num_batches() for part in parts], "batches")

# %% [markdown]
# The deck gives two ways to shuffle: all ranks share *one* permutation and each takes its part of it, or each rank draws from
# the whole by itself. How many of the images does an epoch then show?

# %%
one = rng.permutation(10_000)
shared = np.union1d(one[0::2], one[1::2])
own = np.union1d(*(rng.permutation(10_000)[:5_000] for _ in range(2)))
print(f"one permutation: {len(shared) / 100:.0f} % of the images; each its own: {len(own) / 100:.0f} %")

# %% [markdown]
# ## Measure
# With two GPUs or more they are the devices. On a CPU two *processes* are, each with its share of the cores: so the fair
# comparison is with one process on such a share. What one process makes of all cores is measured as well, for it is the real
# alternative.

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
contenders = {"one device": single}
if on_gpu:
    contenders[f"{count} in one process"] = base.override(num_devices=count)
else:
    contenders["one process, all cores"] = base
contenders[f"{count} ranks, kvstore"] = base.override(engine="kvstore", num_devices=count)
contenders[f"{count} ranks, shared memory"] = base.override(engine="shared-memory", num_devices=count)
if horovod.installed():
    contenders[f"{count} ranks, Horovod"] = base.override(engine="horovod", num_devices=count)
else:
    print("Horovod is not installed here (make horovod builds it); kvstore stands for both.")

# %%
found = in_turn(contenders, rounds=5 if quick else 9, slice_s=0.4 if quick else 1.0)
alone = found["one device"]["samples_per_sec"]["median"]
bars(
    {name: row["samples_per_sec"] for name, row in found.items()},
    unit="images/s in training",
    caption="One device against several, measured in turn: median and 95 % interval",
    limits={f"{count} times one device": count * alone},
)

# %%
together = {name: row["ratio"] for name, row in found.items() if name.startswith(f"{count} ")}
best = max(together, key=lambda name: together[name]["median"])
gain = together[best]["median"]
print(compare("times as fast: several devices against one", gain))
print(f"{best}: an efficiency of {100 * gain / count:.0f} %.")
if not on_gpu:
    whole = found["one process, all cores"]["ratio"]["median"]
    print(f"One process on all cores runs at {whole:.2f} times, the ranks at {gain:.2f} times one share.")

# %% [markdown]
# ## The deck's figures
# *Efficiency* is the gain divided by the number of devices: 100 % would be ideal. The deck gives images a second and seconds of
# an epoch. The first show a larger gain than the second, and both cannot be right: read both columns.

# %%
v100 = {  # images/s on one and on four, seconds of an epoch on one and on four
    "naive": (306.63, 392.00, 40.97, 40.22),
    "29 workers": (663.50, 950.43, 18.59, 16.50),
    "hybridized": (941.20, 1266.16, 13.25, 12.77),
    "float16": (3100, 7400, 12.0, 7.5),
    "batch 640": (17_000, 50_000, 4.0, 4.0),
}
table(
    {
        "rung": name,
        "gain by images/s": f"{r4 / r1:.2f}",
        "efficiency, percent": f"{25 * r4 / r1:.0f}",
        "gain by the time of an epoch": f"{t1 / t4:.2f}",
    }
    for name, (r1, r4, t1, t4) in v100.items()
)

# %%
bars(
    {name: r4 / r1 for name, (r1, r4, _, _) in v100.items()},
    unit="times the images/s of one V100",
    caption="The deck: what four V100s brought, rung by rung",
    limits={"four times": 4},
)

# %% [markdown]
# While images are missing, more devices wait together. Only once the input, the graph and the batch are mended is there
# anything to divide: that is why this lesson comes after the others.

# %% [markdown]
# ## Another way: parts of the net
# *Model parallelism* gives each device a part of the *net*. It is for nets that do not fit into one device. The parts wait for
# each other, unless several small batches are on their way at once (a *pipeline*). MXNet can do it: each layer's parameters are
# initialized on a context of their own, and the code copies what goes between them. gluontune trains by data parallelism only.

# %%
picture("model-parallel")

# %% [markdown]
# ## Why
# A step of several ends with the slowest rank, and with the exchange of gradients. Both are paid in each step, so a step must be
# long for what it sends. Cores are not devices: one process can use them all without an exchange, but ranks with few threads
# each wait for each other less often. Which of them wins here, the figure above says; on several machines only ranks can.

# %%
# Try this: another number of ranks. Have all of them equally many batches?
for world in (2, 3, 4):
    print(world, [Order(1025, 64, rank=rank, world_size=world).num_batches() for rank in range(world)])

# %% [markdown]
# ## Summary
# - Mend the input, the graph and the batch first; then there is something to divide.
# - Sum or mean: the batch is divided by once.
# - Equal start, equally many batches, one writer.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
# The deck's batches of 640: 17,000 images/s on one V100, 50,000 on four. What is the efficiency, in percent?
check("efficiency", ...)

# %%
# Write a function (n, rank, world) -> list of the images (0 … n - 1) of this rank, equally many for each.
check("write-partition", ...)

# %% [markdown]
# **Reference:** `gt.parallel.split_batch?`, `gt.parallel.start_ranks?`, `gt.parallel.SharedSum?` in a cell show what they take.
#
# **Next:** `07_scaling` looks at the price: what the exchange costs, and how it grows with the number of devices.
