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
quick_samples = 2560

# %%
import gluontune as gt
from gluontune.course import bars, check, compare, feed, lines, loading_rate, predict, show

data = gt.datasets.open(dataset)
cores = gt.runtime.usable_cores()
predict("times as fast with the best number of workers", ...)
predict("the best number of workers", ...)

# %% [markdown]
# ## Starvation
# While the device computes, the next batch should be made. A script without workers does neither at the same time: it loads, then
# computes, then loads. A device that is much faster than the loader *starves*.
#
# There may be no GPU here, so a **simulated device** stands in for it: it takes a fixed time for each batch, computes
# nothing, and leaves the cores to the loader. Its speed follows the deck: 941 images/s once all was mended,
# against 307 from the naive loader.

# %%
naive = gt.Recipe(
    dataset=dataset, batch_size_per_device=batch_size_per_device, num_workers=num_workers, seed=seed
)
seconds = 1.5 if quick else 6
device_rate = loading_rate(naive, data, seconds=seconds) * 941 / 307
ms_per_batch = 1000 * batch_size_per_device / device_rate
print(f"The simulated device could take {device_rate:,.0f} images/s: {ms_per_batch:.1f} ms a batch.")

# %%
starved = feed(naive, data, ms_per_batch=ms_per_batch, seconds=seconds)
starved.save(f"{out_dir}/workers-0.json")
show("utilization", {"no workers": starved})

# %%
print(f"The simulated device is busy {starved.steadiness['mean_pct']:.0f} % of the time.")
print(f"The loop spends {starved.phases_pct['data']:.0f} % of its time waiting for images.")

# %% [markdown]
# ## More workers
# Gluon's `DataLoader` starts *processes*. Each makes whole batches and sends them through shared memory. Some of them wait there
# before they are needed: that is *prefetching*. It evens out a slow image, and costs the memory of the batches that wait.
#
# Linux starts a process in one of two ways. *fork* copies the running process, at once, with all that it holds; but MXNet's threads
# are not copied, and a lock that one of them held stays locked for ever. *spawn* starts anew and imports everything again: safe,
# and slow at the start. Gluon forks; that is one reason for the loader of threads below.
#
# A GPU takes its batches from the CPU's memory. If that memory is *pinned* (page-locked: the system may not move it), the copy
# runs beside the computing; otherwise it waits. Gluon's loader has `pin_memory=True` for it.
#
# Measure different numbers of them, up to twice the usable cores.

# %%
numbers = sorted({0, 1, cores, 2 * cores} if quick else {0, *range(1, cores + 1), 2 * cores})
fed = {0: starved}
for number in numbers[1:]:
    fed[number] = feed(naive.override(num_workers=number), data, ms_per_batch=ms_per_batch, seconds=seconds)
    fed[number].save(f"{out_dir}/workers-{number}.json")

# %%
bars(
    {f"{number} workers": result.samples_per_sec for number, result in fed.items()},
    unit="images/s that reach the simulated device",
    caption=f"Workers of Gluon's DataLoader (usable cores: {cores}): median and 95 % interval",
    limits={"the device's limit": device_rate},
)

# %%
speed = {number: result.samples_per_sec["median"] for number, result in fed.items()}
best = max(speed, key=speed.get)
print(compare("times as fast with the best number of workers", speed[best] / speed[0]))
print(compare("the best number of workers", best))

# %% [markdown]
# ## Threads instead of processes
# Python code needs processes, because only one thread runs Python at a time. Decoding a JPEG is C code that lets other
# threads run. gluontune's threaded loader therefore keeps one process: nothing is copied between processes, and nothing is
# imported twice.

# %%
threads = {}
for number in numbers:
    recipe = naive.override(loader="threaded", num_workers=number)
    threads[number] = feed(recipe, data, ms_per_batch=ms_per_batch, seconds=seconds)
    threads[number].save(f"{out_dir}/threads-{number}.json")
lines(
    {
        "processes (Gluon)": (numbers, [fed[n].steadiness["mean_pct"] for n in numbers]),
        "threads (gluontune)": (numbers, [threads[n].steadiness["mean_pct"] for n in numbers]),
    },
    x="workers",
    y="simulated device busy, percent",
    caption="How busy the simulated device is",
    markers=True,
)

# %% [markdown]
# ## What if the CPU trains?
# The simulated device leaves all cores to the loader. Where the *CPU itself* trains, workers take cores away from it. The same
# training, without workers and with one for each core:

# %%
images = {"train_samples": quick_samples, "val_samples": 200} if quick else {}
own = gt.Recipe(
    dataset="sample", epochs=epochs, dtype=dtype, devices=devices, runtime="tuned", seed=seed, **images
)
trained = {f"{n} workers": gt.train.run(own.override(num_workers=n)) for n in (0, cores)}
for name, result in trained.items():
    result.save(f"{out_dir}/training-{name.replace(' ', '-')}.json")
show("throughput", trained)

# %%
show("phases", trained)

# %%
alone, helped = (result.samples_per_sec["median"] for result in trained.values())
print(f"With {cores} workers, training here runs at {helped / alone:.2f} times its speed without.")

# %% [markdown]
# ## The rule, and a measurement
# The deck's rule comes from a machine with 32 cores and GPUs that leave them free. `gt.loading.size` measures instead: it asks for
# the least that keeps a step fed which takes as long as yours.

# %%
sized = gt.loading.size(
    data.train,
    image_shape=data.image_shape,
    batch_size=batch_size_per_device,
    augment=data.augment,
    step_time_ms=ms_per_batch,
    seconds=0.5 if quick else 1.5,
    max_workers=cores,
)
print(f"choose loader={sized.choice.loader}, num_workers={sized.choice.num_workers}: {sized.reason}")
print(f"the rule {sized.rule['text']} would say {sized.rule['num_workers']}")

# %%
# Try this: a device of twice the speed. How many workers does it need?
faster = feed(naive.override(num_workers=best), data, ms_per_batch=ms_per_batch / 2, seconds=seconds)
print(f"The faster device is busy {faster.steadiness['mean_pct']:.0f} % of the time.")

# %% [markdown]
# ## Summary
# - Workers help while the device waits and cores are free; on a CPU that trains, they compete with it.
# - More workers than cores only take memory.
# - A rule from another machine is a guess; the size of *your* images and *your* step decide.
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

# %% [markdown]
# **Reference:** `gt.loading.size?`, `gt.loading.build?` in a cell show what they take.
#
# **Next:** `03_recordio`: one file instead of many.
