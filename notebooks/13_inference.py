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
# # 13 · Inference
#
# **Question.** The net is trained; now it has to answer. In the deck "The Steady State" ResNet-50 took 97 ms for one image on a CPU, and
# 13 ms with oneDNN. What do graph, folding, integers of 8 bits and another runtime bring to a net of yours, and are its answers
# still the same?
#
# **You will be able to** measure latency and throughput of a trained net, quantize a layer to integers, and check that a faster net gives
# the same answers.
#
# **Before this:** `04_hybridize`. **Time:** 40 minutes; on two cores the cells run for a minute or two.

# %%
from gluontune.course import picture

picture("inference")

# %% tags=["parameters"]
dataset = "sample"
epochs = 1
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "cpu"
quick = True
out_dir = "runs/13_inference"
seed = 0
quick_samples = 1280

# %%
import time

import numpy as np

import gluontune as gt
from gluontune.core.files import write_json
from gluontune.course import bars, check, compare, kept_folder, kept_run, onednn, predict, table
from gluontune.job.trained import trained
from gluontune.search.bench import inference

predict("times as fast with oneDNN, one image at a time", ...)
predict("times the images/s: the best rung that agrees, against imperative", ...)
predict("p99 as a multiple of p50, one image at a time", ...)

# %% [markdown]
# ## By hand: one image
# *Latency* is how long one image waits for its answer. Time each prediction by itself, from the pixels to the scores in numpy, and keep all
# the times. No `autograd.record()`: in prediction nothing is kept for a backward pass.

# %%
mx = gt.runtime.mxnet()
nd = mx.nd
rng = np.random.default_rng(seed)


def latencies(net, count=60, batch=1):
    found = []
    for _ in range(count + 5):
        pixels = rng.normal(size=(batch, 3, 32, 32)).astype("float32")
        started = time.perf_counter()
        scores = net(nd.array(pixels)).asnumpy()  # asnumpy waits for the result
        found.append(1000 * (time.perf_counter() - started))
    assert scores.shape == (batch, 10)
    return np.sort(found[5:])  # the first ones set up


# %%
nets = {}
for name, options in {
    "imperative": None,
    "static graph": {"static_alloc": True, "static_shape": True},
}.items():
    nets[name] = gt.train.build_net("cifar_resnet20_v1", 10)
    nets[name].initialize(mx.init.Xavier())
    if options:
        nets[name].hybridize(**options)
times = {name: latencies(net) for name, net in nets.items()}

# %% [markdown]
# *p50* is the middle: half of the answers are faster, half are slower. *p99*: of 100 answers, 99 are faster. With the times sorted,
# $p_q$ is the one at place $\lceil q\, n / 100 \rceil$. A user meets the slow ones, too: two of three pages with ten images have one among
# them that is slower than p90, for $1 - 0.9^{10} \approx 0.65$. So latency is promised by *percentiles*, not by its mean.
# (Of 60 times, as below, p99 is the slowest: one disturbed answer makes it. A promise needs thousands.)

# %%
table(
    {
        "net": name,
        **{f"p{q}, ms": f"{found[int(np.ceil(q * len(found) / 100)) - 1]:.1f}" for q in (50, 90, 99)},
        "mean, ms": f"{found.mean():.1f}",
        "images/s, one by one": f"{1000 / found.mean():.0f}",
        "images/s in batches of 64": f"{64_000 / np.median(latencies(nets[name], 2, 64)):.0f}",
    }
    for name, found in times.items()
)

# %% [markdown]
# ## By hand: integers of 8 bits
# A float becomes an integer $q$ from 0 to 255 by a *scale* $s$ and a *zero point* $z$, the integer that means 0.0
# ([Jacob and others, 2018](https://arxiv.org/abs/1712.05877)):
#
# $$s = \frac{x_{max} - x_{min}}{255}, \qquad z = \mathrm{round}(-x_{min} / s), \qquad q = \mathrm{clip}(\mathrm{round}(x / s) + z,\; 0,\; 255),
# \qquad x \approx s\,(q - z) .$$
#
# The range has to contain 0, so that padding stays exact. The error is at most half a step, $s/2$. A layer then multiplies integers,
# sums them in 32 bits, and returns to floats once, at its end:
#
# $$y = \sum_i x_i\, w_i \approx s_x\, s_w \sum_i (q_i - z_x)(p_i - z_w) .$$


# %%
def quantize(x):
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = (high - low) / 255
    zero = round(-low / scale)
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype("uint8"), scale, zero


dense = mx.gluon.nn.Dense(10, in_units=256, use_bias=False)
dense.initialize(mx.init.Xavier())
x = np.maximum(rng.normal(size=(500, 256)), 0).astype("float32")  # after a ReLU
exact = dense(nd.array(x)).asnumpy()
(q, s_x, z_x), (p, s_w, z_w) = quantize(x), quantize(dense.weight.data().asnumpy())
sums = (q.astype("int32") - z_x) @ (p.astype("int32") - z_w).T
close = s_x * s_w * sums
same = 100 * (close.argmax(1) == exact.argmax(1)).mean()
error = np.abs(close - exact).max() / np.abs(exact).max()
print(f"zero points {z_x} and {z_w}; sums up to {np.abs(sums).max():,}: more than 16 bits hold")
print(f"largest error {error:.1%} of the largest score; same class: {same:.1f} %")

# %% [markdown]
# The ranges of the inputs must be known before: they come from some training images (*calibration*). The weights'
# ranges need no images.
#
# ## Two figures, not one
# *Throughput* is how many images are answered in a second. A batch raises throughput and lengthens latency. From the deck's table
# (72 vCPUs, MXNet 1.3, with oneDNN):

# %%
answers = {  # ms at batch 1 and images/s at batch 128, each without and with oneDNN
    "ResNet-50 v1": (97.19, 13.04, 10.29, 163.52),
    "Inception v3": (175.17, 16.77, 5.74, 135.33),
    "MobileNet": (38.56, 4.42, 24.87, 512.25),
    "VGG16": (406.50, 20.07, 2.91, 70.84),
    "AlexNet": (64.60, 3.80, 26.58, 965.20),
}
table(
    {
        "net": net,
        "ms for one": ms,
        "images/s, one by one": f"{1000 / ms:.0f}",
        "images/s in batches of 128": f"{rate:.0f}",
        "ms until such a batch is answered": f"{128_000 / rate:.0f}",
    }
    for net, (_, ms, _, rate) in answers.items()
)

# %% [markdown]
# ## The same switch here
# oneDNN is Intel's library of fast operators, and part of today's mxnet. An environment variable turns it off. The same net
# with random weights, in two processes that take turns. The outputs are compared, too: in the deck's second table, 17 nets
# have the same accuracy with and without it, to the last digit.

# %%
pace = {"rounds": 2, "seconds": 0.1} if quick else {"rounds": 5, "seconds": 1.0}
deck_gain = {"AlexNet": 17.00, "ResNet-50 v1": 7.45}  # times as fast, one image at a time
nets = {"AlexNet": "alexnet"} if quick else {"AlexNet": "alexnet", "ResNet-50 v1": "resnet50_v1"}
measured = {net: onednn(name, **pace) for net, name in nets.items()}
write_json(f"{out_dir}/onednn.json", measured)
table(
    {
        "net": net,
        "ms without": f"{1000 / seen['off']['median']:.1f}",
        "ms with": f"{1000 / seen['on']['median']:.1f}",
        "times as fast": f"{seen['speedup']['median']:.1f}",
        "the deck's": deck_gain[net],
        "largest difference of the outputs": f"{seen['output_delta']:.0e}",
    }
    for net, seen in measured.items()
)

# %%
print(compare("times as fast with oneDNN, one image at a time", measured["AlexNet"]["speedup"]["median"]))
print(f"The deck had 72 vCPUs; the cores that this process may use: {gt.runtime.usable_cores()}.")

# %% [markdown]
# ## With gluontune: a trained net
# Speed needs no training, but the question whether the answers stay the same does. A short one is enough; its checkpoint
# names the net and the data.

# %%
images = {"train_samples": quick_samples, "val_samples": 500} if quick else {}
recipe = gt.Recipe(
    dataset=dataset,
    epochs=epochs,
    batch_size_per_device=batch_size_per_device,
    dtype=dtype,
    devices=devices,
    num_workers=num_workers,
    loader="resident",
    runtime="tuned",
    hybridize="static",
    learning_rate=0.1,
    seed=seed,
    **images,
)
kept = kept_folder(recipe, out_dir)
run = kept_run(recipe, f"{out_dir}/training.json", checkpoints=gt.train.Checkpoints(kept, resume=True))
how_many = run.recipe["val_samples"] or "all"
print(f"{recipe.net}, validation accuracy {100 * run.val_accuracy[-1]:.1f} % on {how_many} images")

# %% [markdown]
# ## The rungs of inference
# | rung | what it changes |
# |---|---|
# | imperative | Python calls one operator after the other |
# | hybridized | one graph; operators are called without Python |
# | fused | memory planned once; BatchNorm folded into the weights of its convolution; oneDNN merges convolution, addition and activation into one operator |
# | int8 | and its numbers become integers of 8 bits; the ranges come from training images |
# | onnxruntime | the same net as an ONNX file, in Microsoft's runtime |
# | onnxruntime-int8 | and in integers, by that runtime's own quantization; the last layer stays float32, and further layers do where the classes would not agree (left out of a quick run) |
# | TensorRT | not a rung, and not measured: NVIDIA's compiler takes the folded graph and picks a kernel for each part by timing it on the GPU. MXNet called it by `optimize_for("TensorRT")`, in builds of its own (`mxnet-tensorrt-cu…`, long gone); today's way there is the ONNX file. The deck has 1.2 to 2 times for ResNets on a Titan V |
#
# Each rung has a process of its own, with our launch settings. Slices of throughput are taken in turn. Accuracies below are of fewer
# images than the one above. A rung *agrees* if it gives 99 % of the images the class that the hybridized net gives them.

# %%
rungs = ["imperative", "hybridized", "fused", "int8", "onnxruntime"] + ["onnxruntime-int8"] * (not quick)
found = inference.run(
    recipe,
    kept,
    modes=rungs,
    batch_size=128,
    val_images=256 if quick else 5000,
    latencies=60 if quick else 1000,
    rounds=3 if quick else 9,
    seconds=0.2 if quick else 1.0,
)
write_json(f"{out_dir}/inference.json", found)
rows = {row["name"]: row for row in found["rows"] if row["status"] == "ok"}
for row in found["rows"]:
    if row["status"] != "ok":
        print(f"{row['name']}: {row['reason']}")

# %%
bars(
    {name: rows[name]["images_per_sec"] if name in rows else None for name in rungs},
    unit="images/s in batches of 128",
    caption=f"Throughput of {recipe.net} by rung: median and 95 % interval",
)

# %%
late = {name: row["latency_ms"] for name, row in rows.items()}
bars(
    {n: {"median": t["p50"], "ci95": (t["p50"], t["p99"])} for n, t in late.items()},
    unit="milliseconds from the pixels of one image to its scores",
    caption="Latency by rung: the bar ends at p50, which is the number; the line ends at p99",
)

# %%
table(
    {
        "rung": name,
        "p50 ms": f"{late[name]['p50']:.2f}",
        "p90 ms": f"{late[name]['p90']:.2f}",
        "p99 ms": f"{late[name]['p99']:.2f}",
        "threads": late[name]["threads"],
        "images/s at 128": f"{row['images_per_sec']['median']:,.0f}",
        "accuracy, percent": f"{100 * row['accuracy']:.1f}",
        "same class as hybridized, percent": f"{row['agree_pct']:.1f}",
    }
    for name, row in rows.items()
)

# %%
slow = rows[inference.REFERENCE]["latency_ms"]
print(compare("p99 as a multiple of p50, one image at a time", slow["p99"] / slow["p50"]))
best = found["best"]
if best and "imperative" in rows:
    gain = best["ratio_to_hybridized"]["median"] / rows["imperative"]["ratio_to_hybridized"]["median"]
    print(compare("times the images/s: the best rung that agrees, against imperative", gain))
    print(f"It is {best['name']}: the same class for {best['agree_pct']:.1f} % of the images.")
    for name, row in rows.items():
        if row["ratio_to_hybridized"]["median"] > best["ratio_to_hybridized"]["median"]:
            print(
                f"{name} is faster and does not agree ({row['agree_pct']:.1f} % < 99 %): it does not count."
            )

# %% [markdown]
# ## One image, one thread?
# At the end of each operator its threads wait for each other. In a batch of 128 that is nothing beside the work; for one
# small image it can be most of the time. So MXNet's rungs predict one image at a time in a second process, too, with
# `OMP_NUM_THREADS=1`; the latencies above are those of the better number of threads. For large images more threads win.

# %%
table(
    {
        "rung": name,
        **{
            f"p50 ms, {count} thread{'s' * (count != '1')}": f"{ms:.2f}"
            for count, ms in t["p50_by_threads"].items()
        },
    }
    for name, t in late.items()
    if len(t["p50_by_threads"]) > 1
)

# %% [markdown]
# ## Why
# A batch of one leaves little to compute, so what surrounds an operator counts: the call from Python, the memory, the copy of
# a result for the next operator. The graph removes the first, its plan the second, folding the third: a BatchNorm is only a
# scale and an offset in inference, and disappears into the weights of its convolution.
#
# Integers of 8 bits are a quarter of the traffic, and four times as many fit into a register. Whether that is four times the
# work depends on the CPU.

# %%
flags = gt.runtime.machine_facts()["cpu"]["flags"]
has = [name for name in ("avx512_vnni", "avx_vnni", "amx_int8") if name in flags]
print("Instructions for int8 here:", ", ".join(has) or "none; int8 saves memory, hardly time")
if "int8" in rows:
    ratio = rows["int8"]["ratio_to_hybridized"]
    low, high = ratio["ci95"]
    print(f"int8 runs at {ratio['median']:.2f} times the hybridized net ({low:.2f} to {high:.2f}),")
    print(f"and puts {100 - rows['int8']['agree_pct']:.1f} % of the images into another class.")

# %% [markdown]
# ## ONNX: checked, not believed
# An ONNX file runs without mxnet. Converters have faults, and a wrong net answers as quickly as a right one: so the file is
# run beside the net, on the same images.

# %%
net = trained(recipe, kept)
exported = gt.export.to_onnx(net.net, f"{out_dir}/net.onnx", image_shape=net.image_shape)
rng = np.random.default_rng(seed)
height, width, channels = net.image_shape
batch = rng.normal(size=(16, channels, height, width)).astype("float32")
said = gt.export.check_outputs(net.net, exported.path, batch)
print(f"{exported.nodes} operators, {exported.parameters:,} weights, {exported.bytes / 2**20:.1f} MiB")
print(
    f"largest difference {said.relative_error:.0e} of the largest output: {'equal' if said.equal else 'NOT equal'}"
)

# %% [markdown]
# A check that cannot fail proves nothing. ("Equal" means: at most 1e-5 of the largest output.) So change the net by a thousandth in one
# layer, and compare again:


# %%
def with_layer(parameter, factor):
    whole = parameter.data().copy()
    parameter.set_data(whole * factor)
    found = gt.export.check_outputs(net.net, exported.path, batch)
    parameter.set_data(whole)
    print(
        f"{parameter.name} times {factor}: {found.relative_error:.0e}, {'equal' if found.equal else 'NOT equal'}"
    )
    return found.equal


first, *_, last, _ = net.net.collect_params().values()
assert said.equal and not with_layer(last, 1.001)

# %%
# Try this: an earlier layer. How much must it change until the check says NOT equal?
for factor in (1.000001, 1.0001, 1.01):
    with_layer(first, factor)

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `time.perf_counter()` around a prediction | `gluontune bench inference` | a process for each rung, in turn; percentiles; the better number of threads |
# | `quantize` of a layer | the rung `int8` | all layers; ranges by calibration; the share of equal classes |
# | an ONNX file that somebody believes | `gt.export.to_onnx`, `check_outputs` | compared on images, with a check that has failed once |
#
# ## Summary: what to remember
# - Latency and throughput are two questions; a batch answers one at the price of the other.
# - Promise percentiles, not means.
# - A rung counts only if its answers agree: look at the accuracy and at the share of equal classes.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
# The deck's ResNet-50 answers 163.52 images/s in batches of 128. How many ms is a whole batch on its way?
check("batch-wait", ...)

# %%
# Of 1,000 requests, 985 take 4 ms and 15 take 50 ms. What is p99, in ms?
check("tail-latency", ...)

# %%
# Write a function (a, b) -> percent of the images that both put into the same class; a, b: scores (images, classes).
check("write-agreement", ...)

# %%
# Write a function (x) -> (q, scale, zero) for an NDArray x: q is its uint8, by the formulas above.
check("write-quantize", ...)

# %% [markdown]
# **Reference:** `gt.export.to_onnx?`, `gt.export.agreement?`, `gt.export.quantize_onnx?` in a cell show what they take.
#
# **Next:** [`14_assessment`](14_assessment.ipynb): a script of yours, graded. For a net of your own, `gluontune bench inference` takes its checkpoint, and
# `gluontune export` writes the ONNX file and checks it.
