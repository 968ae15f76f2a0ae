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
# **You will be able to** train on several contexts, write a script for several ranks with MXNet's kvstore or with Horovod, and name the
# six steps that it needs.
#
# **Before this:** `06_large_batch`. **Time:** 40 minutes; on two cores the cells run for about a minute.

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
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

import gluontune as gt
from gluontune.course import bars, check, compare, in_turn, predict, table
from gluontune.loading.base import Order
from gluontune.parallel import horovod

predict("times as fast: several devices against one", ...)

# %% [markdown]
# ## By hand: one process, two contexts
# A *context* is MXNet's word for a place to compute: a GPU, or the CPU. *Data parallelism* is the picture above: each device has the
# whole net and a part of the batch. In Gluon that is `initialize(ctx=[…])` and `split_and_load`; on GPUs only the contexts differ:
# `[mx.gpu(0), mx.gpu(1)]`.

# %%
mx = gt.runtime.mxnet()
gluon, nd, nn = mx.gluon, mx.nd, mx.gluon.nn
ctxs = [mx.cpu(0), mx.cpu(1)]
rng = np.random.default_rng(seed)
images = nd.array(rng.normal(size=(64, 3, 16, 16)))
labels = nd.array(rng.integers(0, 10, 64))
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()


# %%
def after_three_steps(places):
    mx.random.seed(seed)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, in_channels=3, activation="relu"), nn.Flatten(), nn.Dense(10, in_units=1568))
    net.initialize(mx.init.Xavier(), ctx=places)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for _ in range(3):
        xs, ys = (gluon.utils.split_and_load(batch, places) for batch in (images, labels))
        with mx.autograd.record():
            losses = [loss_of(net(x), y) for x, y in zip(xs, ys)]  # each on its context
        mx.autograd.backward(losses)
        trainer.step(len(images))  # sums the gradients of all contexts, then updates each copy
    return [net[2].weight.data(place).asnumpy() for place in places]


# %%
(whole,), (one, two) = after_three_steps(ctxs[:1]), after_three_steps(ctxs)
print("the two copies are equal:", bool((one == two).all()))
print(
    f"two contexts against one: {np.abs(one - whole).max() / np.abs(whole).max():.0e} of the largest weight"
)

# %% [markdown]
# The same, but for rounding, because a gradient is a sum over the images of the batch. With $n$ parts $B_1 \dots B_n$ of a batch $B$
#
# $$g = \frac{1}{|B|} \sum_{i=1}^{n} \sum_{x \in B_i} \nabla L(x) .$$
#
# With BatchNorm it would not be: each device takes its mean over its own part, as *ghost batches* do (lesson `06_large_batch`).
#
# An incomplete batch is where plain Gluon breaks: three images over four contexts. gluontune makes three parts; the fourth context has
# nothing to do in that step.

# %%
four = gt.parallel.contexts("cpu", 4)
try:
    gluon.utils.split_and_load(images[:3], four)
except ValueError as error:
    print("split_and_load:", str(error)[:90], "…")
print("split_batch:", [part.shape[0] for part in gt.parallel.split_batch(images[:3], four)])

# %% [markdown]
# ## By hand: two processes and a kvstore
# A *rank* is one of several processes that train together, and its number. MXNet's `dist_sync` is a *parameter server*: a process that
# gets the gradients of all ranks, adds them up and gives the result back. The script differs from one for a single process in four
# lines: they are marked.

# %%
SCRIPT = """import numpy as np
import gluontune as gt
mx = gt.runtime.mxnet()  # `import mxnet as mx`, with what it needs
kv = mx.kv.create("dist_sync")                                    # 1: meet the others
rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 20)).astype("float32")
y = x @ rng.normal(size=(20, 1)).astype("float32")
mine = np.arange(1024)[kv.rank :: kv.num_workers]                 # 2: equally many images for each
net = mx.gluon.nn.Dense(1, in_units=20)
net.initialize(mx.init.Normal())
loss_of = mx.gluon.loss.L2Loss()
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kv)  # 3
for at in range(0, len(mine), 32):
    rows = mine[at : at + 32]
    with mx.autograd.record():
        loss = loss_of(net(mx.nd.array(x[rows])), mx.nd.array(y[rows]))
    loss.backward()
    trainer.step(32 * kv.num_workers)                             # 4: the images of all ranks
print(f"rank {kv.rank}: loss {loss.mean().asscalar():.4f}, weights {net.weight.data().norm().asscalar():.6f}")
"""

# %%
script = Path(out_dir) / "ranks.py"
script.parent.mkdir(parents=True, exist_ok=True)
_ = script.write_text(SCRIPT)

# %% [markdown]
# Who is who stands in the environment: one *scheduler*, where all meet, one server, two workers. All four are the same script; in
# the first two `import mxnet` never returns: it serves until all are done.

# %%
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
meeting = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port), "DMLC_NODE_HOST": "127.0.0.1"}
meeting.update({"DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": "2", "OMP_NUM_THREADS": "1"})
command = [sys.executable, str(script)]
processes = [
    subprocess.Popen(
        command, env={**os.environ, **meeting, "DMLC_ROLE": role}, stdout=subprocess.PIPE, text=True
    )
    for role in ("scheduler", "server", "worker", "worker")
]
try:
    print("".join(process.communicate(timeout=120)[0] for process in processes), end="")
finally:
    for process in processes:
        process.kill()

# %% [markdown]
# Their losses differ, for each has seen its own images; their weights are equal. That is what to look for in a script of yours.
#
# **Horovod** is a library that does the same without a server: it sums by *all-reduce*, which adds up what all ranks have and gives each
# the sum. The deck "Fundamentals of Deep Learning for Multi-GPUs" names six steps for it, the table below. Four of them are in these lines;
# one device for each rank and one writer are left out in so small a script:

# %%
HOROVOD = SCRIPT.replace('kv = mx.kv.create("dist_sync")', "import horovod.mxnet as hvd; hvd.init()")
HOROVOD = HOROVOD.replace("kv.rank", "hvd.rank()").replace("kv.num_workers", "hvd.size()")
HOROVOD = HOROVOD.replace(
    'trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kv)  # 3',
    "hvd.broadcast_parameters(net.collect_params(), root_rank=0)\n"
    'trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})  # 3',
).replace(
    "trainer.step(32 * hvd.size())                             # 4: the images of all ranks",
    "trainer.step(32)  # 4: it takes the mean over the ranks",
)
script.with_name("horovod_ranks.py").write_text(HOROVOD)
before = SCRIPT.splitlines()
print("\n".join(line for line in HOROVOD.splitlines() if line not in before))

# %%
if horovod.installed():
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable]
    done = subprocess.run(
        [*command, str(script.with_name("horovod_ranks.py"))], capture_output=True, text=True
    )
    print(done.stdout or done.stderr[-500:])
else:
    print("Horovod is not installed here (make horovod builds it).")

# %% [markdown]
# ## Six steps
# Without one of them the run may still train, and is wrong; without the last it hangs.
#
# | step | in Gluon | without it |
# |---|---|---|
# | start the library | `hvd.init()` before the net is built | each rank trains alone |
# | one device for each rank | `mx.gpu(hvd.local_rank())`; on CPUs a share of the cores | all of them crowd on the first |
# | sum the gradients | all-reduce between backward and update | the nets drift apart |
# | equal start | rank 0's parameters to all, after the first batch gave them a shape (`dist_sync` does so by itself) | they never agree |
# | one writer | checkpoint and log on rank 0 alone | ranks write into one file |
# | parts of the data | equally many batches for each rank | one is done, the others wait for ever |
#
# gluontune does them all: `gluontune launch -n 2 --engine horovod -- train …`. Two other engines need nothing installed: `kvstore`, the
# parameter server of above, and `shared-memory` for one machine: the ranks write their gradients into memory that all of them see.
#
# ## The mean is taken once
# `gluon.Trainer` adds gradients up and divides by the batch that `step` is given. Horovod's `DistributedTrainer` takes the mean over ranks.
# Whoever exchanges one for the other must change the argument of `step` as well. If the batch is divided by twice, each update of two ranks
# has half its length, without an error:

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
# That deck gives two ways to shuffle: all ranks share *one* permutation and each takes its part of it, or each rank draws from
# the whole by itself. How many of the images does an epoch then show?

# %%
one = rng.permutation(10_000)
shared = np.union1d(one[0::2], one[1::2])
own = np.union1d(*(rng.permutation(10_000)[:5_000] for _ in range(2)))
print(f"one permutation: {len(shared) / 100:.0f} % of the images; each its own: {len(own) / 100:.0f} %")

# %% [markdown]
# ## With gluontune
# The engine is a field of the recipe. With two GPUs or more, these are the devices. On a CPU the devices are two *processes*, each with its
# share of the cores: so the fair comparison is with one process on such a share. One process on all cores is measured as well, for it is
# the real alternative. *Efficiency* is the gain (how many times as fast as one device) divided by the number of devices: 100 % would
# be ideal.

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
found = in_turn(contenders, rounds=4 if quick else 9, slice_s=0.3 if quick else 1.0)
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
    if whole < 1:
        print("Below 1: threads meet after each operator, and wait for one whose core another program holds.")

# %% [markdown]
# ## The deck's figures
# The deck "The Steady State" gives images a second and seconds of an epoch. The first show a larger gain than the second, and both cannot be
# right: read both columns.

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
# long for what it sends. Cores are not devices. One process can use all of them without an exchange, but its threads meet after each operator,
# and ranks meet once a step: where other programs take a core now and then, ranks lose less (lesson `00_your_machine`). Whether one process
# or several ranks win here, the figure above says; on several machines only ranks can.

# %%
# Try this: another number of ranks. Have all of them equally many batches?
for world in (2, 3, 4):
    print(world, [Order(1025, 64, rank=rank, world_size=world).num_batches() for rank in range(world)])

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `split_and_load`, `initialize(ctx=[…])` | `num_devices=n` | incomplete batches; ghost statistics written down |
# | `dist_sync`, four processes, `DMLC_…` | `engine="kvstore"`, `gluontune launch -n 2` | starts and ends them; a rank that dies ends all, with its reason |
# | six steps of Horovod | `engine="horovod"` | none is forgotten: equal start, equal batches, one writer |
#
# ## Summary: what to remember
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

# %%
# Write a function (grads) -> list: grads are NDArrays, each on a context of its own; give their sum on each context.
check("write-allreduce", ...)

# %% [markdown]
# **Reference:** `gt.parallel.split_batch?`, `gt.parallel.start_ranks?`, `gt.parallel.SharedSum?` in a cell show what they take.
#
# **Next:** [`08_scaling`](08_scaling.ipynb) looks at the price: what the exchange costs, and how it grows with the number of devices.
