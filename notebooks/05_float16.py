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
# # 05 · Numbers of half the size
#
# **Question.** With float16 the deck's V100 went from 941 to 3,100 images/s. Half of the bits were thrown away. What was lost with
# them, what must stay in float32, and what does it bring here?
#
# **You will be able to** say what float16 and bfloat16 lose, what must stay in float32, and when half the bits help.

# %%
from gluontune.course import picture

picture("bits")

# %% tags=["parameters"]
dataset = "sample"
epochs = 1
batch_size_per_device = 64
dtype = "auto"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/05_float16"
seed = 0
quick_samples = 2560

# %%
import numpy as np

import gluontune as gt
from gluontune.course import check, compare, lines, numbers, predict, show, table

predict("times as fast in half the bits", ...)
predict("percent of the gradients that lose digits in float16", ...)

# %% [markdown]
# ## Two ways to save sixteen bits
# A number is a sign, an exponent (how large) and a significand (which digits). *float16* keeps digits and gives up range; *bfloat16* keeps
# the range of float32 and gives up digits.

# %%
table(
    {
        "format": name,
        "exponent bits": f.exponent,
        "significand bits": f.significand,
        "largest": f"{f.largest:.3g}",
        "smallest": f"{f.smallest:.1e}",
        "next after 1": f"1 + {f.next_after_one - 1:.1e}",
    }
    for name in numbers.FORMATS.names()
    for f in [numbers.FORMATS[name]]
)

# %%
sizes = 2.0 ** np.arange(-30, 20)
lines(
    {name: (sizes, 100 * numbers.FORMATS[name].relative_step(sizes)) for name in numbers.FORMATS.names()},
    x="number",
    y="next number, percent away",
    log_x=True,
    log_y=True,
    caption="How finely each format divides: float16 ends on both sides",
)

# %% [markdown]
# ## What goes wrong: three things
# **Labels and large numbers.** The deck casts labels to float16 as well. Class numbers above 2,048 are then no longer
# exact, and a sum above 65,504 is infinite.

# %%
table(
    {
        "number": n,
        "in float16": numbers.round_to([n], "float16")[0],
        "in bfloat16": numbers.round_to([n], "bfloat16")[0],
    }
    for n in (2048, 2049, 65_504, 70_000)
)

# %% [markdown]
# **Small updates.** A weight of 1 gets an update of 0.0002, a thousand times. In half the bits each one is rounded away: the weight
# never moves. So the optimizer keeps a float32 copy, the *master weights*; that is what `multi_precision=True` means.

# %%
counts = np.arange(1001)
lines(
    {name: (counts, numbers.add_up(1.0, 2e-4, 1000, name)) for name in numbers.FORMATS.names()},
    x="update",
    y="weight",
    caption="A thousand updates of 0.0002: only float32 adds them up",
)

# %% [markdown]
# **Small gradients.** Here are the real gradients of one batch of a ResNet. Below 0.00006 float16 keeps fewer digits, and far below
# it nothing. As training goes on, gradients shrink. *Loss scaling* multiplies the loss, hence all gradients, by a power of two and
# divides again before the update; too large a scale makes them infinite. Scales below 1 show what smaller gradients would suffer.

# %%
gradients = numbers.gradient_values(dataset=dataset, batch_size=batch_size_per_device, seed=seed)
scales = 2.0 ** np.arange(-20, 31, 2)
lost = numbers.lost_shares(gradients, scales)
lines(
    {
        "become zero": (scales, lost["vanish"]),
        "lose digits": (scales, lost["digits"]),
        "become infinite": (scales, lost["overflow"]),
    },
    x="loss scale",
    y="gradients lost, percent",
    log_x=True,
    markers=True,
    caption="The window in which float16 holds this net's gradients",
)

# %%
as_they_are = numbers.lost_shares(gradients, [1.0])
print(
    compare(
        "percent of the gradients that lose digits in float16",
        as_they_are["digits"][0] + as_they_are["vanish"][0],
    )
)
kept = numbers.lost_shares(gradients, [1.0], "bfloat16")
print(
    f"In bfloat16 {kept['vanish'][0] + kept['digits'][0]:.2f} % do, without a loss scale: it has the range of float32."
)

# %% [markdown]
# ## What does this machine have?
# MXNet computes float16 on a GPU only and bfloat16 on a CPU only. Whether a CPU has instructions for it stands in its list of
# features. Whether they help, only a measurement says.

# %%
gpus = gt.runtime.gpu_count()
on_gpu = gpus > 0 and devices != "cpu"
support = gt.compute.bfloat16_support()
half = (
    dtype
    if dtype != "auto"
    else "float16"
    if on_gpu
    else "bfloat16"
    if support.level != "none"
    else "float32"
)
print(f"{gpus} GPUs; {support.message}. This lesson trains in {half}.")

# %% [markdown]
# ## Measure
# Three runs: float32 at its best, half the bits with the net as it is, and half the bits with the rewrites that avoid slow
# paths. The numbers of an image batch, the loss and the labels stay float32.

# %%
mx = gt.runtime.mxnet()
data = gt.datasets.open(dataset)
height, width, channels = data.image_shape
net = gt.train.build_net("cifar_resnet20_v1", len(data.classes))
net.initialize()
x = mx.nd.zeros((2, channels, height, width))
net(x)
print("Rewrites for this net:", ", ".join(gt.compute.rewrites_for(net, x, device="gpu" if on_gpu else "cpu")))

# %%
images = {"train_samples": quick_samples, "val_samples": 500} if quick else {}
base = gt.Recipe(
    dataset=dataset,
    epochs=epochs,
    batch_size_per_device=batch_size_per_device,
    devices=devices,
    loader="resident",
    runtime="tuned",
    hybridize="static",
    seed=seed,
    **images,
)
rewrites = gt.compute.rewrites_for(net, x, device="gpu" if on_gpu else "cpu")

# %%
contenders = {
    "float32, rewritten": base.override(rewrites=rewrites),
    f"{half}, net as it is": base.override(dtype=half),
    f"{half}, rewritten": base.override(dtype=half, rewrites=rewrites),
}

# %%
runs = {name: gt.train.run(recipe) for name, recipe in contenders.items()}
for number, result in enumerate(runs.values()):
    result.save(f"{out_dir}/run-{number}.json")
assert all(run.ok for run in runs.values()), [run.error for run in runs.values()]
show("throughput", runs)

# %%
speeds = {
    name: run.samples_per_sec["median"] for name, run in runs.items()
}  # without a half type two are one run
full, plain, best = (
    speeds[name] for name in ("float32, rewritten", f"{half}, net as it is", f"{half}, rewritten")
)
print(compare("times as fast in half the bits", best / full))
print(f"Without the rewrites it would be {plain / full:.2f} times.")
table(
    {
        "run": n,
        "loss": f"{r.train_loss[-1]:.3f}",
        "validation accuracy, percent": f"{100 * r.val_accuracy[-1]:.1f}",
    }
    for n, r in runs.items()
)

# %% [markdown]
# ## Why
# Half the bits are half the traffic to memory, and special instructions multiply twice as many numbers at once or more. That helps
# where multiplying or memory was the limit. On a CPU one slow operator can hide everything: where oneDNN, the
# library that computes, has no fast code for a case, it takes plain loops, and these are no faster on smaller numbers.
#
# Read the deck's figures twice. Its images a second say 3.3 times with a batch of 64; its times of an epoch, 13.25 and 12.00 s, say
# **1.1** times. And with a batch of 640 it has 17,000 images/s in float32 and 14,000 in float16. A format that helps in one
# place need not help in another.

# %%
# Try this: larger updates. From which size on does bfloat16 add them up?
for update in (2e-4, 1e-3, 4e-3, 1e-2):
    print(
        update, {name: float(numbers.add_up(1.0, update, 1000, name)[-1]) for name in numbers.FORMATS.names()}
    )

# %% [markdown]
# ## Summary
# - float16 lacks range, bfloat16 lacks digits; both need float32 masters for the weights.
# - float16 needs loss scaling; labels and the loss stay float32 in either.
# - Look at accuracy as well as speed, and keep the format only if both say so.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
check("largest-float16", ...)  # the largest finite number in float16?

# %%
check("next-bfloat16", ...)  # the next number after 1 in bfloat16?

# %%
# A gradient is 1e-9. With which power of two, at least, must the loss be scaled to make it a normal number in float16?
check("loss-scale", ...)

# %% [markdown]
# **Reference:** `gt.compute.bfloat16_support?`, `gt.compute.to_mixed_precision?` in a cell show what they take.
#
# **Next:** `06_large_batch`: smaller numbers leave room for larger batches.
