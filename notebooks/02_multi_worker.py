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
# # 02 · Several workers
#
# **Question.** In the deck a V100 went from 307 to 664 images/s when 29 processes loaded its images instead of one. Its rule is *number of
# cores less three*. How many workers are right here?
#
# **You will be able to** choose the number of workers by measuring, and explain when more of them harm.
#
# **Before this:** `01_naive`. **Time:** 25 minutes; on two cores the cells run for about a minute.

# %%
from gluontune.course import picture

picture("workers")

# %% tags=["parameters"]
dataset = "synthetic:train=1200,test=100,size=224"
epochs = 1
batch_size_per_device = 32
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/02_multi_worker"
seed = 0
quick_samples = 128

# %%
import multiprocessing
import queue
import threading
import time

import numpy as np

import gluontune as gt
from gluontune.course import as_files, bars, check, compare, feed, lines, predict, show, table

mx = gt.runtime.mxnet()
gluon, vision = mx.gluon, mx.gluon.data.vision
data = gt.datasets.open(dataset)
cores = gt.runtime.usable_cores()
predict("times as fast with the best number of workers", ...)
predict("the best number of workers", ...)

# %% [markdown]
# ## By hand: the deck's line
# A folder of JPEG files, a transform, Gluon's `DataLoader`. The number of workers is one argument. Its default is
# `num_workers=0`: the training process loads the images itself. (The deck says "3 cores by default"; Gluon has no such default.)

# %%
folder = as_files(data.train, f"{out_dir}/files", quick_samples if quick else 4000)
transforms = vision.transforms
to_tensor = transforms.Compose([transforms.RandomFlipLeftRight(), transforms.ToTensor()])
photos = vision.ImageFolderDataset(str(folder)).transform_first(to_tensor)


def loader(**options):
    return gluon.data.DataLoader(photos, batch_size_per_device, shuffle=True, last_batch="discard", **options)


# %% [markdown]
# The loop is an epoch that keeps two clocks: all of its time, and the part in which it waits for the next batch. `work` is
# what a step does with the batch. The first epoch is not counted: workers start in it.


# %%
def epoch(batches, work):
    waited, started, steps = 0.0, time.perf_counter(), iter(batches)
    for _ in range(len(batches)):
        asked = time.perf_counter()
        x, y = next(steps)
        x.wait_to_read()  # MXNet works asynchronously: only now the pixels are there
        waited += time.perf_counter() - asked
        work(x, y)
    mx.nd.waitall()
    seconds = time.perf_counter() - started
    return {"images/s": len(batches) * batch_size_per_device / seconds, "waits": 100 * waited / seconds}


def second_epoch(work, **options):
    batches = loader(**options)
    epoch(batches, work)
    return epoch(batches, work)


# %% [markdown]
# A GPU computes while the cores are free. There may be none here, so the work is `time.sleep`: a **simulated device**, which
# takes a fixed time for each batch. Its speed follows the deck: 941 images/s once all was mended, against 307 from the naive loader.

# %%
alone = second_epoch(lambda x, y: None, num_workers=0)["images/s"]
device_rate = alone * 941 / 307
seconds_per_batch = batch_size_per_device / device_rate
numbers = sorted({0, 1, cores, 2 * cores})
seen = {n: second_epoch(lambda x, y: time.sleep(seconds_per_batch), num_workers=n) for n in numbers}
table(
    {
        "DataLoader": f"num_workers={n}",
        "images/s": f"{row['images/s']:,.0f}",
        "waits for data, percent": f"{row['waits']:.0f}",
    }
    for n, row in seen.items()
)

# %%
rates = {n: row["images/s"] for n, row in seen.items()}
best = max(rates, key=rates.get)
print(compare("times as fast with the best number of workers", rates[best] / rates[0]))
print(compare("the best number of workers", best))
bars(
    {f"num_workers={n}": rate for n, rate in rates.items()},
    unit="images/s that reach the simulated device",
    caption=f"Gluon's DataLoader by hand, one epoch of each (usable cores: {cores})",
    limits={"the device's limit": device_rate},
)

# %% [markdown]
# Without workers the loop loads, then computes, then loads. A device that is much faster than the loader *starves*. How many workers
# feed it? [Little's law](https://doi.org/10.1287/opre.9.3.383) (1961): the number of images that are being loaded at a time is their rate
# times the time of each,
#
# $$L = \lambda\,W .$$
#
# One worker loads one image at a time. So the device's rate $\lambda$ and the seconds $W$ of one image give the number of workers
# $\lceil \lambda W \rceil$, as long as each has a core of its own.

# %%
seconds_per_image = 1 / alone
print(
    f"{device_rate:,.0f} images/s of {1000 * seconds_per_image:.2f} ms each: {device_rate / alone:.2f} workers."
)
if device_rate / alone > cores:
    print(f"{cores} cores run only {cores} of them at a time, so the device still waits.")
print(f"The deck's rule, cores less three, says {cores - 3}.")

# %% [markdown]
# ## By hand: the CPU trains
# Now the work is a training step on this CPU. Workers load beside it, and take cores away from it.

# %%
net = gluon.nn.HybridSequential()
net.add(
    gluon.nn.Conv2D(16, 7, strides=4, activation="relu"), gluon.nn.Conv2D(32, 3, strides=2, activation="relu")
)
net.add(gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(len(data.classes)))
net.initialize(mx.init.Xavier())
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})


def train(x, y):
    with mx.autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    trainer.step(len(x))
    mx.nd.waitall()


# %%
trained = {n: second_epoch(train, num_workers=n)["images/s"] for n in (0, cores)}
gain = trained[cores] / trained[0]
print(f"With {cores} workers, training here runs at {gain:.2f} times its speed without:")
print(
    "loading beside it brought more than the cores cost."
    if gain > 1
    else "the cores cost more than loading beside it brought."
)

# %% [markdown]
# ## What a worker is
# Linux starts a process in one of two ways. *fork* copies the running process, at once, with all that it holds; but MXNet's threads
# are not copied, and a lock that one of them held stays locked for ever. *spawn* starts anew and imports everything again: safe,
# and slow. Gluon forks.

# %%
starts = {}
for way in ("fork", "spawn"):
    started = time.perf_counter()
    process = multiprocessing.get_context(way).Process(target=gt.runtime.mxnet)
    process.start()
    process.join()
    starts[way] = 1000 * (time.perf_counter() - started)
print({way: f"{ms:.0f} ms until a process has MXNet, and ends" for way, ms in starts.items()})

# %% [markdown]
# A worker gives its batch back through *shared memory*: pages that both processes see. Nothing is copied and nothing is pickled. Here a
# forked process writes, and this one reads:

# %%
shared = multiprocessing.get_context("fork").RawArray("f", 4)
pixels = np.frombuffer(shared, "float32")
writer = multiprocessing.get_context("fork").Process(target=lambda: pixels.fill(7))
writer.start()
writer.join()
print("this process sees", pixels)

# %% [markdown]
# A GPU takes its batches from the CPU's memory. If that memory is *pinned* (page-locked: the system may not move it), the copy
# runs beside the computing; otherwise it waits. In Gluon that is `pin_memory=True`; without a GPU it changes nothing but the name of
# the place. Beside it means: in another *stream*. A stream is a queue of work for the GPU; two streams run at the same time. With two
# buffers on the GPU, one stream fills the one while the other computes on the other: *double buffering*, as in the deck's GaDei.

# %%
x, y = next(iter(loader(num_workers=1, pin_memory=True)))
print("the batch lies in", x.context)

# %% [markdown]
# ## The queue
# Loaded batches wait in a queue until the device takes them: that is *prefetching* (`DataLoader(prefetch=…)`). A queue is a dozen
# lines. Its depth says who is slower: an empty queue means that the device waits, a full one that the loader does. (The depth is
# read when a batch has just been taken: full is three of four. At the end nothing is left to load, and the queue runs empty.)


# %%
def prefetched(batches, depth):
    waiting = queue.Queue(depth)

    def fill():
        for _ in range(2):  # epochs
            for batch in batches:
                waiting.put(batch)  # stops here while the queue is full
        waiting.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := waiting.get()) is not None:
        yield batch, waiting.qsize()


def depths(seconds, depth=4):
    found = []
    for _, waiting in prefetched(loader(num_workers=0), depth):
        found.append(waiting)
        time.sleep(seconds)
    return found


# %%
slow_device = 2 * batch_size_per_device / alone
shown = {"fast device": depths(0.0), "a device half as fast as the loader": depths(slow_device)}
lines(
    {name: (range(1, len(found) + 1), found) for name, found in shown.items()},
    x="step",
    y="batches that wait",
    caption="Depth of a queue of four: empty behind a fast device, full behind a slow one",
    steps=True,
)

# %% [markdown]
# ## Less work for the loader
# What a loader does for each image can also be done once for a batch, on the device: a flip of the batch is three lines of `mx.nd`, and
# runs where `x` lies. For nets that wait for data the NVIDIA deck recommends it.


# %%
def flipped(x):
    heads = mx.nd.random.uniform(shape=(len(x), 1, 1, 1), ctx=x.context) < 0.5  # a throw for each image
    return mx.nd.where(heads.broadcast_like(x), x.flip(axis=3), x)


x, _ = next(iter(loader()))
started = time.perf_counter()
changed = (flipped(x) != x).max(axis=(1, 2, 3)).sum().asscalar()
print(f"{changed:.0f} of {len(x)} images flipped in {1000 * (time.perf_counter() - started):.1f} ms")

# %% [markdown]
# ## With gluontune
# `feed` measures the same for a loader of gluontune, in windows with an interval, and records how busy the device is. The loader
# is `threaded`: decoding a JPEG is C code that lets other threads run, so threads of one process do, and nothing is copied between
# processes. (Gluon's own `thread_pool=True` returns wrong records from a record file: its threads share one file position.)

# %%
recipe = gt.Recipe(
    dataset=dataset, batch_size_per_device=batch_size_per_device, num_workers=num_workers, seed=seed
)
ways = {
    "Gluon, no workers": recipe,
    f"Gluon, {cores} workers": recipe.override(num_workers=cores),
    f"threaded, {cores} threads": recipe.override(loader="threaded", num_workers=cores),
}
seconds = 1.0 if quick else 6
fed = {
    name: feed(way, data, ms_per_batch=1000 * seconds_per_batch, seconds=seconds)
    for name, way in ways.items()
}
for number, result in enumerate(fed.values()):
    result.save(f"{out_dir}/way-{number}.json")

# %%
bars(
    {name: result.samples_per_sec for name, result in fed.items()},
    unit="images/s that reach the simulated device",
    caption="The same device, fed by three loaders: median and 95 % interval",
    limits={"the device's limit": device_rate},
)

# %%
show("utilization", fed)

# %% [markdown]
# `gt.loading.size` looks for the least that keeps a step fed which takes as long as yours:

# %%
sized = gt.loading.size(
    data.train,
    image_shape=data.image_shape,
    batch_size=batch_size_per_device,
    augment=data.augment,
    step_time_ms=1000 * seconds_per_batch,
    seconds=0.3 if quick else 1.5,
    max_workers=cores,
    disk=not quick,
)
print(f"choose loader={sized.choice.loader}, num_workers={sized.choice.num_workers}: {sized.reason}")

# %%
# Try this: a device of twice the speed. How many workers does it need?
faster = second_epoch(lambda x, y: time.sleep(seconds_per_batch / 2), num_workers=cores)
print(f"The faster device waits {faster['waits']:.0f} % of the time.")

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `DataLoader(num_workers=n)` for a few `n` | `gt.loading.size(…)` | the least that feeds your step, of all loaders |
# | two clocks in a loop | `feed`, `gt.train.run` | windows with an interval; phases; how busy the device is |
# | `thread_pool=True` | `loader="threaded"` | right records, decoding in C straight into the batch |
# | a seeded parent, forked workers | the recipe's `seed` | workers that do not repeat each other's augmentation |
#
# ## Summary: what to remember
# - Workers help while the device waits and cores are free; on a CPU that trains, they compete with it.
# - Little's law gives a first number: rate times time of one image. More workers than cores only take memory.
# - Look at the queue: empty, the loader is too slow; full, the device is.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
# One worker makes 200 images/s. A device takes 1,100. How many workers keep it fed, if each has a core of its own?
check("workers-needed", ...)

# %%
# A batch takes 80 ms to load and 50 ms to compute. How long is a step without workers?
check("step-serial", ...)

# %%
# And with one worker, which loads the next batch while the device computes?
check("step-overlapped", ...)

# %%
# Write a function (images_per_sec, seconds_per_image) -> the whole number of workers for DataLoader(num_workers=…).
check("write-worker-count", ...)

# %% [markdown]
# **Reference:** `gt.loading.size?`, `gt.loading.build?` in a cell show what they take.
#
# **Next:** [`03_recordio`](03_recordio.ipynb): one file instead of many.
