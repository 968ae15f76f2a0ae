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
# # 01 · The naive script
#
# **Question.** A tutorial's Gluon script reads one image file after the other, transforms each in Python, and computes line
# by line (*imperatively*). How many images a second is that here, and what does a training step wait for?
#
# Four words for all lessons: a *batch* is a handful of images that go through the net together; a *step* trains on one batch,
# an *epoch* on all images once; *throughput* is the images trained in a second.
#
# **You will be able to** write a Gluon training loop, time its phases, and say what a step waits for.
#
# **Before this:** `00_your_machine`. **Time:** 20 minutes; on two cores the cells run for half a minute.

# %%
from gluontune.course import picture

picture("naive")

# %% tags=["parameters"]
dataset = "sample"
epochs = 1
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/01_naive"
seed = 0
quick_samples = 1920

# %% [markdown]
# Write your prediction down. For comparison: deck "The Steady State" (AWS, 2019) measured **307 images a second** for its
# naive script on one V100 GPU, with CIFAR-10 and a batch of 64.

# %%
import time

import gluontune as gt
from gluontune.course import as_files, check, compare, predict, show, table

DECK_SAMPLES_PER_SEC = 307
predict("images a second", ...)
predict("percent of a step spent waiting for data", ...)

# %% [markdown]
# ## By hand: the script
# This is what a tutorial writes, in plain Gluon: images in folders, a `DataLoader` without workers, a net, a loss, a trainer.
#
# - The `DataLoader` reads images, transforms each, and stacks them to a batch `x` with its classes `y`.
# - `autograd.record()` keeps what the net computes from `x` to the loss (*forward*); `loss.backward()` goes that way back and leaves in
#   each parameter its *gradient*: how the loss changes with it.
# - `trainer.step(n)` divides the gradients by `n`, the images of the batch, and moves the parameters a little against them (*update*).

# %%
mx = gt.runtime.mxnet()
data = gt.datasets.open(dataset)
folder = as_files(data.train, f"{out_dir}/files", min(320, quick_samples))
vision = mx.gluon.data.vision
transform = vision.transforms.Compose([vision.transforms.RandomFlipLeftRight(), vision.transforms.ToTensor()])
photos = vision.ImageFolderDataset(str(folder), flag=int(data.image_shape[2] == 3)).transform_first(transform)
loader = mx.gluon.data.DataLoader(photos, batch_size_per_device, shuffle=True, last_batch="discard")

net = gt.train.build_net("cifar_resnet20_v1", len(data.classes))
net.initialize(mx.init.Xavier())
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})


# %%
def train_epoch():
    started, count = time.perf_counter(), 0
    for x, y in loader:
        with mx.autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step(len(x))
        count += len(x)
    mx.nd.waitall()  # only now the work is done
    return count / (time.perf_counter() - started)


train_epoch()  # the first one also sets things up
print(f"The script, in this notebook: {train_epoch():,.0f} images/s")

# %% [markdown]
# ## By hand: where the time goes
# MXNet works asynchronously: a Python line returns before its work is done. A clock around `net(x)` alone would measure nothing but the
# handing over. So wait at the border of each phase: `mx.nd.waitall()` returns when all work is done.


# %%
def phases():
    spent, mark = dict.fromkeys(("data", "forward", "backward", "update"), 0.0), time.perf_counter()

    def ends(phase):
        nonlocal mark
        mx.nd.waitall()
        now = time.perf_counter()
        spent[phase] += now - mark
        mark = now

    for x, y in loader:
        ends("data")
        with mx.autograd.record():
            loss = loss_of(net(x), y)
        ends("forward")
        loss.backward()
        ends("backward")
        trainer.step(len(x))
        ends("update")
    return spent


# %%
spent = phases()
whole = sum(spent.values())
table({"phase": name, "percent of a step": f"{100 * s / whole:.0f}"} for name, s in spent.items())

# %% [markdown]
# The picture at the top shows a device that mostly waits for data; here the share may be a few percent. Both are right: what a step waits
# for is decided by the *slower* side. The deck's V100 computes a batch in milliseconds, so its loader was the slower side. These cores take
# far longer for the net than for loading small images.

# %% [markdown]
# ## With gluontune: measure
# One figure of one epoch says little. The *recipe* below is this script with every value named: the same loop, in a fresh
# process, measured in many windows. It starts as MXNet is installed, whereas this notebook may have the launch settings of
# lesson 00: so the two figures can differ. The other lessons change the recipe's values one by one.

# %%
images = {"train_samples": quick_samples, "val_samples": 500} if quick else {}
naive = gt.Recipe(
    dataset=dataset,
    epochs=epochs,
    batch_size_per_device=batch_size_per_device,
    dtype=dtype,
    num_workers=num_workers,
    devices=devices,
    seed=seed,
    **images,
)
result = gt.train.run(naive)
result.save(f"{out_dir}/naive.json")
rate = result.samples_per_sec
print(compare("images a second", rate["median"]))
low, high = rate["ci95"]
print(f"95 % interval: {low:,.0f} to {high:,.0f}, from {rate['n']} windows of training")
print(f"That is {rate['median'] / DECK_SAMPLES_PER_SEC:.2f} times the deck's V100.")

# %% [markdown]
# A V100 computes far more in a second than a laptop's CPU. If the CPU comes near the V100's figure, the V100 was not computing: it waited.
#
# Check a source before you lean on it. The deck also says that an epoch took 40.97 s; but 50,000 images at 307 a second take 163 s.
# The product of its two figures is 12,560 images, a quarter of CIFAR-10, and with workers or hybridized it is the same
# quarter. So the *ratios* between those runs can be trusted, the absolute figures cannot.
#
# ## Where a step's time goes
# gluontune waits at the border of each phase, too, but on a few sampled steps only; the other steps run undisturbed. The last line
# is about the undisturbed ones, so its percent may differ by a few from the picture's.

# %%
show("phases", {"naive": result})

# %%
print(compare("percent of a step spent waiting for data", result.phases_pct.get("data", 0.0)))
verdict = gt.monitor.verdict(result.phases, result.utilization, naive.to_dict())
print(f"{verdict.kind}: {verdict.sentence}")

# %% [markdown]
# ## How steady it is
# The deck is called *Reduce Spikiness from GPU Utilization*: a device that works in bursts waits in between.

# %%
show("utilization", {"naive": result})

# %%
busy = result.steadiness["mean_pct"]
print(f"On average {busy:.0f} % of the usable cores are at work.")

# %%
# Try this: change one value, such as augment=False or batch_size_per_device=16, and run the cell.
changed = naive.override(batch_size_per_device=32)
print("what differs:", changed.differences(naive))  # gt.train.run(changed) trains it

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | the loop and one clock | `gt.train.run(recipe)` | a fresh process, many windows, an interval; all values named in a file |
# | `waitall()` after each phase | `result.phases_pct` | sampled steps: the others are not slowed |
# | a guess at what is slow | `gt.monitor.verdict` | one sentence, from phases and utilization |
#
# ## Summary: what to remember
# - Throughput counts everything a step waits for, the loading of its images included.
# - MXNet is asynchronous: a clock without `waitall` measures nothing.
# - First find what the step waits for; what does not hold it back is not worth mending.
#
# ## Exercises

# %%
num_train = len(gt.datasets.open(dataset).train)
# How many seconds does an epoch over all num_train images take?
check("epoch-seconds", ..., result=result, num_train=num_train)

# %%
check("step-time-ms", ..., result=result)  # milliseconds of one training step?

# %%
# Write a function (step, waitall, clock, n) -> seconds of one step: step() hands a step over and returns at once,
# waitall() returns when all is done, clock() gives seconds. The very first step takes longer: leave it out.
check("write-timer", ...)

# %% [markdown]
# **Reference:** `gt.Recipe?`, `gt.train.run?`, `gt.monitor.verdict?` in a cell show what they take.
#
# **Next:** [`02_multi_worker`](02_multi_worker.ipynb) lets other processes load the images. To see all rungs at once: `gluontune ladder --quick`
# climbs from this script; `ladder-out/ladder.html` shows what each one brought on this machine.
