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
#
# **Before this:** `04_hybridize`. **Time:** 30 minutes; on two cores the cells run for about a minute.

# %%
from gluontune.course import picture

picture("bits")

# %% tags=["parameters"]
dataset = "sample"
epochs = 3
batch_size_per_device = 64
dtype = "auto"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/05_float16"
seed = 0
quick_samples = 2560

# %%
import subprocess
import sys
from pathlib import Path

import numpy as np

import gluontune as gt
from gluontune.course import bars, check, compare, in_turn, lines, numbers, pixels_of, predict, table

mx = gt.runtime.mxnet()
gluon, nd, nn = mx.gluon, mx.nd, mx.gluon.nn
gpus = gt.runtime.gpu_count()
on_gpu = gpus > 0 and devices != "cpu"
ctx = mx.gpu() if on_gpu else mx.cpu()
predict("times as fast in half the bits", ...)
predict("percent of the gradients that lose digits in float16", ...)

# %% [markdown]
# ## By hand: the deck's line
# The net and the images are cast; loss and labels stay float32 (the deck casts labels as well: more about that below). On a GPU this
# is all that it takes to run. A CPU has no float16 arithmetic for such layers, and MXNet says so:

# %%
net = nn.Dense(10)
net.initialize(ctx=ctx)
net.cast("float16")
images = nd.ones((64, 20), ctx=ctx).astype("float16")
try:
    print("float16 scores:", net(images).astype("float32").sum().asscalar())
except mx.MXNetError as error:
    print("not here:", str(error).strip().splitlines()[-1])

# %% [markdown]
# Single operators work in float16 on a CPU, slowly, and that is enough to see the two things that a float16 training needs.
#
# **First: master weights.** A weight of 1 gets a thousand updates of 0.0002. In float16 the next number after 1 is 1.001: each update is
# rounded away. With `multi_precision=True` the optimizer keeps a float32 copy, the *master weight*, updates that, and rounds it for the
# net:
#
# $$w_{32} \leftarrow w_{32} - \eta\, g_{16}, \qquad w_{16} \leftarrow \mathrm{round}_{16}(w_{32}) .$$


# %%
def thousand_updates(multi_precision):
    weight = gluon.Parameter("weight", shape=(1,), dtype="float16")
    weight.initialize(mx.init.One())
    options = {"learning_rate": 2e-4, "multi_precision": multi_precision}
    trainer = gluon.Trainer({"weight": weight}, "sgd", options)
    for _ in range(1000):
        with mx.autograd.record():
            loss = -weight.data()  # its gradient is -1
        loss.backward()
        trainer.step(1)
    return weight.data().asscalar()


print({f"multi_precision={flag}": float(thousand_updates(flag)) for flag in (False, True)})

# %% [markdown]
# **Second: loss scaling.** Gradients become small, and below $2^{-24} \approx 6 \cdot 10^{-8}$ float16 has nothing but zero. So the loss
# is multiplied by a scale $S$, and with it every gradient; the optimizer divides by $S$ in float32
# ([Micikevicius and others, 2018](https://arxiv.org/abs/1710.03740)). `trainer.step` divides by what it is given, so the scale goes in
# there. A *dynamic* scale looks for its own size: it is halved when a gradient overflows, and that step is left out; it is doubled
# after some good steps in a row.

# %%
rng = np.random.default_rng(seed)
features = 1e-4 * rng.normal(size=(64, 8))
x, y = (nd.array(a, dtype="float16") for a in (features, features @ rng.normal(size=8)))


def fit(scale, dynamic, steps=60):
    w, losses, scales, good = gluon.Parameter("w", shape=(8,), dtype="float16"), [], [], 0
    w.initialize(mx.init.Zero())
    trainer = gluon.Trainer({"w": w}, "sgd", {"learning_rate": 3e7, "multi_precision": True})
    for _ in range(steps):
        with mx.autograd.record():
            loss = ((x * w.data()).sum(axis=1) - y).astype("float32") ** 2 / 2
            scaled = loss * scale
        scaled.backward()
        finite = bool(np.isfinite(w.grad().asnumpy()).all())
        if finite:
            trainer.step(len(x) * scale)  # divides by the batch and by the scale
        losses, scales, good = [*losses, loss.mean().asscalar()], [*scales, scale], good + finite
        if dynamic and (not finite or good == 10):
            scale, good = (scale * 2 if finite else scale / 2), 0
    return losses, scales


# %%
fits = {"scale 1": fit(1, False), "dynamic, from a scale too large": fit(2.0**40, True)}
lines(
    {name: (range(1, len(losses) + 1), losses) for name, (losses, _) in fits.items()},
    x="step",
    y="loss",
    log_y=True,
    caption="A small linear model in float16: without a scale its gradients vanish",
)

# %%
scales = fits["dynamic, from a scale too large"][1]
print("scale, every 6th step:", ", ".join(f"2^{np.log2(scale):.0f}" for scale in scales[::6]))

# %% [markdown]
# **bfloat16** needs no loss scale, and it is what a CPU has. MXNet's *AMP* (automatic mixed precision) casts operator by operator: those
# that multiply get bfloat16, the loss and the weights stay float32. `amp.init` patches the whole process and cannot be undone: so this
# is a script, and each type gets a process of its own.

# %%
SCRIPT = """import sys, time
import gluontune as gt
mx = gt.runtime.mxnet()
nn = mx.gluon.nn
if sys.argv[1] == "bfloat16":
    from mxnet.contrib import amp
    amp.init(target_dtype="bfloat16")  # before the net is built
net = nn.HybridSequential()
for channels in (16, 32, 32):
    net.add(nn.Conv2D(channels, 3, padding=1, activation="relu"))
net.add(nn.HybridLambda(lambda F, x: F.mean(x, axis=(2, 3))), nn.Dense(10))
net.initialize(mx.init.Xavier())
net.hybridize(static_alloc=True, static_shape=True)
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
x, y = mx.nd.random.normal(shape=(32, 16, 16, 16)), mx.nd.zeros(32)
"""

# %%
SCRIPT += """times = []
for _ in range(11):
    started = time.perf_counter()
    with mx.autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    trainer.step(len(x))
    mx.nd.waitall()
    times.append(time.perf_counter() - started)
print(f"{1000 * sorted(times)[5]:.1f} ms a step; weights are {net[0].weight.data().dtype.__name__}")
"""
script = Path(out_dir) / "amp.py"
script.parent.mkdir(parents=True, exist_ok=True)
script.write_text(SCRIPT)
for kind in ("float32", "bfloat16", "float32", "bfloat16"):  # in turn
    done = subprocess.run([sys.executable, str(script), kind], capture_output=True, text=True)
    print(kind.ljust(8), done.stdout.strip() or done.stderr.strip().splitlines()[-1])

# %% [markdown]
# ## Two ways to save sixteen bits
# A number is a sign, an exponent (how large) and a significand (which digits). *float16* gives up range and some digits; *bfloat16*
# keeps the range of float32 and gives up more digits.

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
# ## What goes wrong in a real net
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
# **Small gradients.** Here are the real gradients of one batch of a ResNet. Below 0.00006 float16 keeps fewer digits, and far below
# it nothing. As training goes on, gradients shrink. Scales below 1 show what smaller gradients would suffer.

# %%
data = gt.datasets.open(dataset)
height, width, channels = data.image_shape
pixels, labels = pixels_of(data.train, batch_size_per_device)
net = gt.train.build_net("cifar_resnet20_v1", len(data.classes))
net.initialize(mx.init.Xavier(magnitude=2))
with mx.autograd.record():
    scores = net(nd.array(pixels.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)))
    loss = gluon.loss.SoftmaxCrossEntropyLoss()(scores, nd.array(labels)).mean()
loss.backward()
gradients = np.concatenate(
    [p.grad().asnumpy().ravel() for p in net.collect_params().values() if p.grad_req != "null"]
)
gradients = gradients[gradients != 0]

# %%
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
# ## With gluontune
# `dtype=` in a recipe does all of it: casts or AMP, masters, loss scaling, loss and labels in float32. Three recipes: float32 at its
# best, half the bits with the net as it is, and half the bits with the rewrites that avoid slow paths.

# %%
net_name = "small_cnn" if quick else "cifar_resnet20_v1"
net = gt.train.build_net(net_name, len(data.classes))
net.initialize()
probe = nd.zeros((2, channels, height, width))
net(probe)
print(
    "Rewrites for this net:",
    ", ".join(gt.compute.rewrites_for(net, probe, device="gpu" if on_gpu else "cpu")),
)

# %%
images = {"train_samples": quick_samples, "val_samples": 500} if quick else {}
base = gt.Recipe(
    dataset=dataset,
    net=net_name,
    epochs=epochs,
    batch_size_per_device=batch_size_per_device,
    devices=devices,
    loader="resident",
    runtime="tuned",
    hybridize="static",
    seed=seed,
    **images,
)
rewrites = gt.compute.rewrites_for(net, probe, device="gpu" if on_gpu else "cpu")

# %%
contenders = {
    "float32, rewritten": base.override(rewrites=rewrites),
    f"{half}, net as it is": base.override(dtype=half),
    f"{half}, rewritten": base.override(dtype=half, rewrites=rewrites),
}

# %%
found = in_turn(contenders, rounds=4 if quick else 9, slice_s=0.3 if quick else 1.0)
bars(
    {name: row["samples_per_sec"] for name, row in found.items()},
    unit="images/s in training",
    caption="The types in turn: median and 95 % interval",
)

# %%
plain, best = (found[name]["ratio"] for name in (f"{half}, net as it is", f"{half}, rewritten"))
print(compare("times as fast in half the bits", best["median"]))
low, high = best["ci95"]
print(f"95 %: {low:.2f} to {high:.2f}. Without the rewrites: {plain['median']:.2f} times.")
if low <= 1 <= high:
    print("The interval contains 1: nothing is proven here, so float32 stays.")

# %% [markdown]
# Is it as accurate? The same training in both types, from the same first weights. (The accuracy of a run of few steps jumps: BatchNorm's
# averages for prediction are still far from those of the batches. Compare the losses, too.)

# %%
accurate = dict.fromkeys(["float32, rewritten", f"{half}, rewritten"])
runs = {name: gt.train.run(contenders[name]) for name in accurate}
for number, result in enumerate(runs.values()):
    result.save(f"{out_dir}/run-{number}.json")
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
    sums = dict.fromkeys(numbers.FORMATS.names(), np.float32(1))
    for _ in range(1000):
        sums = {name: numbers.round_to([value + np.float32(update)], name)[0] for name, value in sums.items()}
    print(f"1 + 1000 times {update}:", {name: f"{value:.4g}" for name, value in sums.items()})

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `net.cast("float16")`, casts of each batch | `dtype="float16"` | loss and labels stay float32 |
# | `multi_precision=True` | the same | set by itself |
# | a loop with a loss scale | the same | dynamic, and its state is in the checkpoint |
# | `amp.init("bfloat16")` | `dtype="bfloat16"` | a process for each type; rewrites, so that it does not become slower |
#
# ## Summary: what to remember
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

# %%
# Write a function (scale, good, finite, window) -> (scale, good): halve the scale after a step that was not finite;
# double it after `window` good steps in a row; `good` counts them, and begins at 0 after each change.
check("write-loss-scaler", ...)

# %% [markdown]
# **Reference:** `gt.compute.bfloat16_support?`, `gt.compute.to_mixed_precision?` in a cell show what they take.
#
# **Next:** [`06_large_batch`](06_large_batch.ipynb): smaller numbers leave room for larger batches.
