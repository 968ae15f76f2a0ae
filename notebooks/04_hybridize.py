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
# # 04 · Imperative and symbolic
#
# **Question.** `net.hybridize()` is one line. The deck's V100 went from 664 to 941 images/s with it. What does MXNet
# do differently after that line, and is it faster *here*?
#
# **You will be able to** say what a graph saves, tell whether an operator waits for arithmetic or for memory, and
# choose a mode by measuring.
#
# **Before this:** `03_recordio`. **Time:** 30 minutes; on two cores the cells run for about a minute.

# %%
from gluontune.course import picture

picture("graph")

# %% tags=["parameters"]
dataset = "sample"
epochs = 1
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/04_hybridize"
seed = 0
quick_samples = 2560

# %%
import json
import time

import gluontune as gt
from gluontune.course import (
    bars,
    check,
    compare,
    deck_graph_memory,
    folded,
    lines,
    net_memory,
    predict,
    table,
)

mx = gt.runtime.mxnet()
gluon, nd, nn = mx.gluon, mx.nd, mx.gluon.nn
predict("times as fast with hybridize, batch 1", ...)
predict("bytes that the symbolic graph holds", ...)

# %% [markdown]
# ## By hand: one line, three batches
# A small net as a tutorial builds it, and a step of training. `HybridSequential` can run in two ways: *imperatively*, operator by
# operator as Python calls them, or as one graph.


# %%
def small_net():
    net = nn.HybridSequential()
    for channels in (16, 32, 64):
        net.add(nn.Conv2D(channels, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.MaxPool2D(2))
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    return net


loss_of = gluon.loss.SoftmaxCrossEntropyLoss()


def step(net, x, y):
    with mx.autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()


# %% [markdown]
# The line is `hybridize()`. With `static_alloc` the graph keeps its memory from step to step; with `static_shape` it also expects
# every batch to have the same shape, and plans once.

# %%
nets = {"imperative": small_net(), "hybridize()": small_net(), "static": small_net()}
nets["hybridize()"].hybridize()
nets["static"].hybridize(static_alloc=True, static_shape=True)


def milliseconds(batch, steps, rounds=8):
    x, y = nd.random.normal(shape=(batch, 3, 32, 32)), nd.zeros(batch)
    times = {name: [] for name in nets}
    for _ in range(rounds + 1):  # in turn, so that a disturbance falls on all of them
        for name, net in nets.items():
            nd.waitall()
            started = time.perf_counter()
            for _ in range(steps):
                step(net, x, y)
            nd.waitall()  # a step only hands its work over; here it is done
            times[name].append(1000 * (time.perf_counter() - started) / steps)
    # the first turn sets up; of the others the least, for a disturbance only adds
    return {name: min(found[1:]) for name, found in times.items()}


# %%
by_batch = {batch: milliseconds(batch, steps) for batch, steps in {1: 8, 8: 3, 64: 1}.items()}
table(
    {"batch": batch, **{f"{name}, ms": f"{ms:.2f}" for name, ms in found.items()}}
    for batch, found in by_batch.items()
)

# %%
gains = {name: [found["imperative"] / found[name] for found in by_batch.values()] for name in list(nets)[1:]}
lines(
    {name: (list(by_batch), values) for name, values in gains.items()},
    x="batch",
    y="times as fast as imperative",
    log_x=True,
    markers=True,
    limits={"imperative": 1},
    caption="One line, by hand: what a graph brings to a small and to a large batch",
)

# %%
print(compare("times as fast with hybridize, batch 1", max(values[0] for values in gains.values())))

# %% [markdown]
# A step of few images is short, so Python's calls are a large part of it. (A batch of 1 that takes longer than one of 8 was disturbed.) The
# graph saves them; it does not make a convolution faster. With the share $p$ of a step that the change makes $s$ times as fast, [Amdahl's
# law](https://doi.org/10.1145/1465482.1465560) (1967) gives the whole:
#
# $$S = \frac{1}{(1 - p) + p / s} .$$
#
# What does a graph know that a line of Python does not? The rest of this lesson looks at it.

# %% [markdown]
# ## Two ways to compute the same
# The deck's example has ten numbers of eight bytes in each array. *Imperative*: each line computes at once, and each
# name holds an array.

# %%
a = mx.nd.ones(10, dtype="float64")
b = mx.nd.full(10, 2, dtype="float64")
c = b * a
d = c + 1
arrays = {"a": a, "b": b, "c": c, "d": d}
table({"name": name, "bytes": array.size * 8} for name, array in arrays.items())

# %% [markdown]
# *Symbolic*: first describe the whole *graph*, which operator takes whose result. Then give it arrays and run it. Nothing has
# been computed in this cell; `c` is only a place in a graph.

# %%
graph = mx.sym.Variable("b") * mx.sym.Variable("a") + 1
print(graph.list_arguments(), "->", graph.list_outputs())

# %% [markdown]
# The deck counts 4 · 10 · 8 = **320 bytes** for the imperative script and 2 · 10 · 8 = **160** for the graph. Measure it: two fresh
# processes run this graph with large arrays, and we look at how much memory the system had to give to each.

# %%
held = {mode: deck_graph_memory(mode) for mode in ("imperative", "symbolic")}
table(
    {"mode": m, "arrays held": f"{n:.2f}", "for ten numbers": f"{80 * n:.0f} bytes"} for m, n in held.items()
)

# %%
print(compare("bytes that the symbolic graph holds", 80 * held["symbolic"]))
bars(
    {m: 80 * n for m, n in held.items()},
    unit="bytes, scaled to ten numbers",
    caption="Memory that the deck's graph holds",
)

# %% [markdown]
# The graph holds a whole array less: its planner saw that nobody needs `c` after `d` and let `d + 1` write over it. The two
# inputs belong to you, so it may not touch them. The deck's factor of two holds for what the graph *computes*: `c` and `d`
# take 160 bytes imperatively, and 80 in the graph. The price: you cannot look at `c` any more.
#
# ## On a real net
# The same on a ResNet, at its peak and beyond its parameters. Inference needs no intermediate result once it has passed;
# the backward pass of training needs many of them.

# %%
modes = ("imperative", "static")
peaks = {mode: net_memory("cifar_resnet20_v1", mode, batch_size_per_device // 4) for mode in modes}
table(
    {"mode": m, **{f"{stage}, MiB": f"{mib:.0f}" for stage, mib in peak.items()}} for m, peak in peaks.items()
)

# %% [markdown]
# ## Folding operators
# A graph shows all operators before the first one runs. So neighbours can be merged: a convolution, its BatchNorm and its
# activation become one operator, which writes its result once. MXNet does this for *inference*; training needs the results between.

# %%
net = gt.train.build_net("cifar_resnet20_v1", 10)
net.initialize(mx.init.Xavier())
x = mx.nd.random.normal(shape=(batch_size_per_device, 3, 32, 32))
net(x)
fold = folded(net, x)
table(
    {
        "graph": g,
        "operators": sum(fold[g].values()),
        "which": ", ".join(f"{n} × {op}" for op, n in fold[g].items()),
    }
    for g in ("before", "after")
)

# %%
gain = gt.stats.ratio_interval(fold["seconds"]["before"], fold["seconds"]["after"])
low, high = gain["ci95"]
print(f"Folded, inference is {gain['median']:.2f} times as fast (95 %: {low:.2f} to {high:.2f}).")
print(f"The largest difference between the outputs is {fold['max_difference']:.1e}.")

# %% [markdown]
# ## Arithmetic or memory?
# Why does one result less matter? An operator reads numbers, computes, and writes numbers. Its *intensity* is the number of
# operations for each byte that it moves. With a low intensity it waits for memory, with a high one for arithmetic. The *roofline*
# ([Williams and others, 2009](https://doi.org/10.1145/1498765.1498785)) draws this for a machine: with an intensity $I$, a bandwidth
# $\beta$ and a peak $\pi$ it computes at most
#
# $$P(I) = \min(\pi,\; \beta\, I) .$$

# %%
peaks = gt.monitor.measured_peaks(repeats=3)
size, c = batch_size_per_device * 32 * 32, 64  # places in a batch of images, channels
work = {  # operations, and bytes that must be moved
    "ReLU, 64 channels": (size * c, 8 * size * c),
    "BatchNorm in inference": (2 * size * c, 8 * size * c),
    "convolution 1×1": (2 * size * c * c, 8 * size * c + 4 * c * c),
    "convolution 3×3": (18 * size * c * c, 8 * size * c + 36 * c * c),
}
found = {
    n: gt.monitor.attainable_flops(*w, peaks["flops_per_sec"], peaks["bytes_per_sec"])
    for n, w in work.items()
}
table(
    {
        "operator": name,
        "operations a byte": f"{roof['intensity']:.2g}",
        "waits for": {"memory": "memory", "compute": "arithmetic"}[roof["bound_by"]],
        "at most, GFLOP/s": f"{roof['flops_per_sec'] / 1e9:,.0f}",
    }
    for name, roof in found.items()
)

# %%
intensity = [2.0**k for k in range(-4, 10)]
roof = [gt.monitor.attainable_flops(i, 1, peaks["flops_per_sec"], peaks["bytes_per_sec"]) for i in intensity]
points = sorted((r["intensity"], r["flops_per_sec"] / 1e9) for r in found.values())
lines(
    {
        "roofline": (intensity, [r["flops_per_sec"] / 1e9 for r in roof]),
        "the four operators": tuple(zip(*points)),
    },
    x="operations for each byte moved",
    y="GFLOP/s at most",
    log_x=True,
    log_y=True,
    points=("the four operators",),
    caption="The roofline of this machine's cores, measured",
)

# %% [markdown]
# A ReLU alone only moves numbers. Merged into the convolution before it, it moves none. How much of a step do such operators take?
# MXNet's profiler counts the time of each:

# %%
net, x, y = (
    small_net(),
    nd.random.normal(shape=(batch_size_per_device, 3, 32, 32)),
    nd.zeros(batch_size_per_device),
)
step(net, x, y)  # sets up
nd.waitall()
mx.profiler.set_config(profile_imperative=True, aggregate_stats=True, filename=f"{out_dir}/profile.json")
mx.profiler.set_state("run")
for _ in range(5):
    step(net, x, y)
nd.waitall()
mx.profiler.set_state("stop")
spent = json.loads(mx.profiler.dumps(reset=True, format="json", sort_by="total"))["Time"]["operator"]
whole = sum(row["Total"] for row in spent.values())
table(
    {"operator": name, "calls": row["Count"], "percent of the time": f"{100 * row['Total'] / whole:.0f}"}
    for name, row in list(spent.items())[:8]
)

# %% [markdown]
# Convolutions do nearly all of the arithmetic, and take a part of the time only. The deck's figures for a GPU say the same: a ResNet-50
# there spends about 40 % of its time in kernels that reach less than 6 TFLOP/s, among them BatchNorm and ReLU; in the fastest DAWNBench
# entry 85 % of the time went into kernels that did not use the Tensor Cores at all. So a GPU that is busy all the time may reach a tenth
# of its peak. A *kernel* is the program that computes one operator. *DeepBench* (Baidu, 2016) is a list of such
# operators and their sizes; `python -m benchmarks operators` (in a clone of gluontune) measures it, and the layers of your
# net, against this machine's roofline.
#
# ## With gluontune
# `gt.compute.hybridize` tries the modes on your net and your batch in turn, as you did, with an interval. It also tries *rewrites*:
# changes to an equal net that avoids slow paths. It first proves that outputs and gradients stay the same. A mode that is far behind in
# its first two steps is dropped, and has few measurements. The fastest mode is kept, which is no proven gain where its
# interval contains 1; a rewrite only if it is faster beyond doubt.

# %%
report = gt.compute.hybridize(small_net(), x, budget_s=8 if quick else 60, refresh=True)
steps = {
    t.name: t.step_ms
    for t in report.trials
    if t.step_ms and (t is report.chosen or (not t.rewrites and "bulks" not in t.name))
}
bars(
    steps,
    unit="milliseconds for one step (forward and backward)",
    caption="The small net, batch 64, the modes in turn: median and 95 % interval",
) if len(steps) > 1 else "One mode alone was measured in so little time: raise budget_s."

# %%
print(f"chosen: {report.chosen.name}")
print("\n".join(report.notes))

# %% [markdown]
# On a GPU the step is a queue of small kernels (a *stream*), and Python may be too slow to fill it; a graph is handed over
# at once. On a CPU the operators themselves take the time, so there is little to win, and a graph can even choose worse
# memory layouts. That is why the ladder measures before it keeps a mode.

# %% [markdown]
# ## What cannot be compiled
# A graph is recorded once. A Python `if` on the *values* of a batch would be decided once and for all, so MXNet refuses;
# a `print` runs only while the graph is recorded. The check names the block, the line and a cure.


# %%
class Clipped(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        if x.mean() > 0:
            x = x.clip(-1, 1)
        return x * 2


clipped = Clipped()
clipped.initialize()
print(gt.compute.check_hybridizable(clipped, mx.nd.ones((2, 3))))

# %%
# Try this: fewer channels. From which number on does a 3×3 convolution wait for arithmetic?
for c in (1, 2, 4, 8, 16):
    w = 18 * size * c * c, 8 * size * c + 36 * c * c
    print(c, gt.monitor.attainable_flops(*w, peaks["flops_per_sec"], peaks["bytes_per_sec"])["bound_by"])

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `net.hybridize(static_alloc=True, static_shape=True)` | `gt.compute.hybridize(net, x)` | tries all modes in turn on your net, keeps the fastest, and says what it gained |
# | a net edited by hand | rewrites | equal nets without slow layers, with a proof of outputs and gradients |
# | an error in the middle of a run | `gt.compute.check_hybridizable` | the block, the line and a cure before training |
#
# ## Summary: what to remember
# - `hybridize()` saves Python's calls: much for a small batch, little for a large one on a CPU.
# - A graph knows what comes: it reuses memory, and folds operators where it may.
# - Try the modes on your net, your batch and your machine, in turn; keep the faster.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
# c = b * a; d = c + 1; e = d * 3; f = e - 2. How many arrays does the imperative script hold, a and b included?
check("arrays-imperative", ...)

# %%
# And how many does the symbolic graph hold, with its inputs, if only f is asked for?
check("arrays-symbolic", ...)

# %%
# Compiling takes 2 s; a step takes 50 ms imperatively and 40 ms compiled. After how many steps has it paid?
check("break-even", ...)

# %%
# This breaks when it is hybridized: `return x if x > 0 else 0.1 * x`. Write hybrid_forward as a function (F, x) that
# gives x where it is positive and 0.1 · x elsewhere, for arrays (F is mx.nd) and for graphs (F is mx.sym).
check("write-hybrid-forward", ...)

# %% [markdown]
# **Reference:** `gt.compute.hybridize?`, `gt.compute.check_hybridizable?`, `gt.monitor.attainable_flops?` in a cell show what they take.
#
# **Next:** [`05_float16`](05_float16.ipynb): the same graph with numbers of half the size.
