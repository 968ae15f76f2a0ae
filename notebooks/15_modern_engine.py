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
# # 15 · A modern engine
#
# **Question.** The last MXNet was released in 2022, and the newest GPUs run none of it. Can the very same job train on an
# engine that is still built? Does it learn the same, and how fast is it?
#
# **You will be able to** take a Gluon net to PyTorch by hand and by one call, see how far the two agree, and train a script or a recipe on
# either.
#
# **Before this:** `04_hybridize`. **Time:** 40 minutes; on two cores the cells run for a minute or two.

# %%
from gluontune.course import picture

picture("modern-engine")

# %% tags=["parameters"]
dataset = "sample"
epochs = 2
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "cpu"
quick = True
out_dir = "runs/15_modern_engine"
seed = 0
quick_samples = 1280

# %%
import copy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import gluontune as gt
from gluontune.course import bars, check, compare, in_turn, kept_run, lines, predict, table
from gluontune.runtime.pytorch import torch as pytorch

torch = pytorch()  # without PyTorch, the error names the command that brings it
predict("largest difference between the outputs, as a share of the largest output", ...)
predict("times as fast on PyTorch's engine", ...)

# %% [markdown]
# ## By hand: the same net twice
# Four layers in Gluon, the same four in PyTorch. The names are alike; the weights are copied one by one, in order.

# %%
mx = gt.runtime.mxnet()
gluon, nd, nn = mx.gluon, mx.nd, mx.gluon.nn
mx.random.seed(seed)
ours = nn.HybridSequential()
ours.add(nn.Conv2D(32, 3, padding=1, activation="relu"), nn.Conv2D(32, 3, padding=1, activation="relu"))
ours.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
ours.initialize(mx.init.Xavier())
x = np.random.default_rng(seed).normal(size=(32, 16, 16, 16)).astype("float32")
scores = ours(nd.array(x)).asnumpy()

theirs = torch.nn.Sequential(
    torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(),
    torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10),
)  # fmt: skip
with torch.no_grad():
    for target, source in zip(theirs.parameters(), ours.collect_params().values()):
        target.copy_(torch.from_numpy(source.data().asnumpy()))
    gap = np.abs(theirs(torch.from_numpy(x)).numpy() - scores).max() / np.abs(scores).max()
print(f"largest difference between the outputs: {gap:.0e} of the largest score")

# %% [markdown]
# That went well, because these four layers have one rule in both libraries. Other layers have two: see below.
#
# What makes PyTorch's step fast on today's CPUs?
#
# - *channels-last*: an image lies in memory place by place, with its channels side by side (N, H, W, C), instead of channel by channel.
#   Fast convolutions work on channels, so they need no reordering at their borders. The shapes that you see stay the same.
# - `torch.compile` writes C++ (on GPUs, Triton) for what lies between the large operators: a BatchNorm, a ReLU and an addition become one
#   loop over memory. It needs a compiler and some tens of seconds once, so this lesson leaves it to the ladder.
#
# The first by hand, in turn. Two convolutions have few borders, and may gain nothing; a ResNet has dozens.


# %%
def torch_step(module, x, y):
    loss = torch.nn.functional.cross_entropy(module(x), y)
    module.zero_grad()
    loss.backward()
    return loss.item()


batch, classes = torch.from_numpy(x), torch.zeros(len(x), dtype=torch.int64)
layouts = {
    "channels first": (theirs, batch),
    "channels last": (
        copy.deepcopy(theirs).to(memory_format=torch.channels_last), batch.to(memory_format=torch.channels_last)
    ),
}  # fmt: skip

# %%
times = {name: [] for name in layouts}
for _ in range(8):
    for name, (module, images) in layouts.items():
        started = time.perf_counter()
        torch_step(module, images, classes)
        times[name].append(1000 * (time.perf_counter() - started))
print({name: f"{np.median(found[2:]):.1f} ms a step" for name, found in times.items()})
print("in memory:", {name: tuple(images.stride()) for name, (_, images) in layouts.items()})

# %% [markdown]
# ## With gluontune: a script, as it is
# A Gluon script need not be translated to train on PyTorch. It runs under MXNet's front end; its operators are gathered and computed by
# PyTorch. First `capture`: what does a step compute, and can PyTorch compute the same? The proof is in float64. An instruction is an operator
# or a backward pass; the first step has seven more than the others, for it makes the momentum (*state*) of each of the 7 trained parameters.

# %%
SCRIPT = """import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

nn, rng = gluon.nn, np.random.RandomState(0)
net = nn.HybridSequential()
net.add(nn.Conv2D(32, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
net.add(nn.Conv2D(32, 3, padding=1, activation="relu"), nn.GlobalAvgPool2D(), nn.Dense(10))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "nag", {"learning_rate": 0.05, "momentum": 0.9})
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
x, y = nd.array(rng.normal(size=(32, 8, 16, 16))), nd.array(rng.randint(0, 10, 32))
for step in range(30):
    with autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    trainer.step(32)
    if step % 10 == 9:
        print(f"step {step + 1}: loss {loss.mean().asscalar():.4f}")
"""

# %%
script = Path(out_dir).resolve() / "train.py"
script.parent.mkdir(parents=True, exist_ok=True)
script.write_text(SCRIPT)
gluontune = str(Path(sys.executable).with_name("gluontune"))


def shell(*words):
    done = subprocess.run([gluontune, *words], cwd=script.parent, capture_output=True, text=True)
    print("$ gluontune", *words)
    print(done.stdout + "\n".join(line for line in done.stderr.splitlines() if "gluontune:" in line))


shell("capture", "--steps", "3", "train.py")

# %% [markdown]
# Then the training itself, on each engine. The losses agree; the last line says how many steps PyTorch computed, and how near the proof was.
# (MXNet computes the first step, which initializes, and the second, which is proven; the script's last step is not counted.) Thirty steps
# save less than PyTorch's start and the proof take.

# %%
shell("run", "train.py")
shell("run", "--backend", "torch", "train.py")

# %% [markdown]
# ## A net is a graph
# The layers that you call in Gluon are one thing, the operators that run are another. MXNet writes them down: `export` saves
# the graph as a file of JSON, with the attributes of each operator, and the weights beside it. Whoever knows what each
# operator means can compute the net.

# %%
data = gt.datasets.open(dataset)
height, width, channels = data.image_shape
mx.random.seed(seed)
net = gt.train.build_net("cifar_resnet20_v1", len(data.classes))
net.initialize(mx.init.Xavier())
images = mx.nd.random.normal(shape=(8, channels, height, width))
net.hybridize()
net(images)
Path(out_dir).mkdir(parents=True, exist_ok=True)
net.export(f"{out_dir}/net")
graph = gt.graph.read_symbol(f"{out_dir}/net-symbol.json")  # needs no mxnet
table({"operator": op, "times": len(layers), "first": layers[0]} for op, layers in graph.operators().items())

# %% [markdown]
# ## The same name, another rule
# Both libraries have a BatchNorm. In training both keep a running variance, for predicting later. MXNet divides the squares
# of a batch by $n$, PyTorch by $n - 1$:
#
# $$\sigma^2_{MXNet} = \frac{1}{n} \sum_i (x_i - \bar x)^2, \qquad \sigma^2_{PyTorch} = \frac{1}{n - 1} \sum_i (x_i - \bar x)^2 .$$
#
# With 4 values a channel that is a third more, and a net that was trained by the one
# and predicts by the other is wrong, quietly.

# %%
x = np.array([1.0, 2.0, 3.0, 6.0], "float32").reshape(4, 1, 1, 1)
norm = mx.gluon.nn.BatchNorm(momentum=0.9, in_channels=1)
norm.initialize()
norm(mx.nd.array(x))
taken = gt.bridge.to_torch(norm).train()
own = torch.nn.BatchNorm2d(1, momentum=0.1).train()
with mx.autograd.record():
    loss = norm(mx.nd.array(x)).sum()
loss.backward()  # only now does MXNet change its running variance
mx.nd.waitall()
for module in (taken, own):
    module(torch.from_numpy(x)).sum().backward()
kept = next(v for name, v in taken.named_buffers() if "var" in name)
variances = {
    "MXNet": norm.running_var.data().asscalar(),
    "taken over": float(kept),
    "PyTorch's own": float(own.running_var),
}

# %%
table({"who": who, "running variance after one batch": f"{value:.4f}"} for who, value in variances.items())

# %% [markdown]
# The same holds for the rounding of pooled sizes, for the weight decay of an optimizer, and for whether the rate multiplies a gradient
# before or after it enters the momentum. Scripts that translate names get the shapes right and the numbers wrong.
#
# ## Take it over, and check
# `gt.bridge.to_torch` builds a PyTorch module from the graph, with Gluon's names and MXNet's rules. `check` runs the same
# images through both. In 64 bits a wrong rule cannot hide behind rounding.

# %%
module = gt.bridge.to_torch(net)
agreement = gt.bridge.check(net, module, images)
exact = gt.bridge.check(net, module, images, train=True, dtype="float64")
table(
    {"compared": what, "largest difference": f"{value:.1e}"}
    for what, value in {
        "outputs, 32 bits": agreement.output,
        "outputs, 64 bits": exact.output,
        "gradients, 64 bits": exact.gradient,
        "running statistics, 64 bits": max(exact.statistics.values()),
    }.items()
)

# %%
print(compare("largest difference between the outputs, as a share of the largest output", agreement.output))

# %% [markdown]
# ## One recipe, two engines
# A recipe says what is trained, not by whom. With `backend="torch"` the net, its first weights, the order of the images,
# their augmentation, the rates and the optimizer's rule stay; another engine computes. So the losses must fall together. Another seed is
# trained for comparison.

# %%
few = {"train_samples": quick_samples, "val_samples": 1000} if quick else {}
recipe = gt.Recipe(
    dataset=dataset,
    net="small_cnn" if quick else "cifar_resnet20_v1",
    epochs=epochs,
    batch_size_per_device=batch_size_per_device,
    devices=devices,
    loader="resident",
    hybridize="static",
    runtime="tuned",
    learning_rate=0.05,
    seed=seed,
    **few,
)
modern = recipe.override(backend="torch", hybridize="hybridized")
engines = {"MXNet": recipe, "PyTorch": modern}
trained = {**engines, "MXNet, another seed": recipe.override(seed=seed + 1)}
runs = {name: kept_run(each, f"{out_dir}/{name}.json") for name, each in trained.items()}
assert all(run.ok for run in runs.values()), [run.error for run in runs.values()]

# %%
numbers = np.arange(1, len(runs["MXNet"].train_loss) + 1)
lines(
    {name: (numbers, run.train_loss) for name, run in runs.items()},
    x="epoch",
    y="training loss",
    markers=True,
    caption="The same recipe on two engines: the losses fall together; another seed for comparison",
)

# %%
table(
    {
        "engine": name,
        "loss": f"{run.train_loss[-1]:.4f}",
        "accuracy, percent": f"{100 * run.val_accuracy[-1]:.1f}",
    }
    for name, run in runs.items()
)

# %% [markdown]
# They are not equal to the last digit. Each engine adds up in its own order, and where a value stands at the kink of a ReLU,
# the last digit decides which way it goes. Compare with the distance of two seeds.
#
# ## Which is faster?
# It depends on the machine: on its instructions, on its cores, on the net. So they train in turn, slice by slice. Half the
# bits are tried, too, where this CPU can multiply them.

# %%
contenders = dict(engines)
if gt.compute.bfloat16_support().level != "none":
    contenders["PyTorch, bfloat16"] = modern.override(dtype="bfloat16")
found = in_turn(contenders, rounds=4 if quick else 9, slice_s=0.3 if quick else 1.0)
bars(
    {name: row["samples_per_sec"] for name, row in found.items()},
    unit="images/s",
    caption="One recipe: images a second by engine, in turn",
)

# %%
ratio = found["PyTorch"]["ratio"]
low, high = ratio["ci95"]
print(compare("times as fast on PyTorch's engine", ratio["median"]))
print(
    f"95 %: {low:.2f} to {high:.2f}. "
    + ("Where that contains 1, nothing is proven." if low < 1 < high else "")
)

# %% [markdown]
# Why may the bars look alike and the ratio still be sure? A bar is the median of all slices of one engine, and its interval holds whatever
# the machine did meanwhile. The ratio compares neighbours, which saw the same disturbance; so it knows more.
#
# The ladder asks the same on its rung `modern-engine`, for your job and after all the others.
#
# ## Out, for good
# A job that shall live without MXNet needs source that one can read. `migrate` writes a PyTorch project: classes after the
# Gluon blocks (`model.py`), the weights, and a check (`check.py`) against MXNet's own numbers (`reference.npz`). It needs neither mxnet nor
# gluontune.

# %%
project = Path(out_dir) / "project"
shutil.rmtree(project, ignore_errors=True)
made = gt.bridge.migrate(net, project, images.asnumpy())
print(f"{made.classes} classes, {made.parameters:,} parameters; agrees with MXNet: {made.agrees}")
table({"file": name, "bytes": (project / name).stat().st_size} for name in made.files)

# %%
text = (project / "model.py").read_text()
print("\n".join(text[text.rindex("class ") :].splitlines()[:30]))  # the net; its blocks stand before it

# %% [markdown]
# ## Why
# A training step is a few dozen *kernels*, the programs that compute one operator: convolutions, sums, products. MXNet's stopped getting faster in 2022; those of
# PyTorch have learned the processors since. What a Gluon job *is*, its net, data and rules, does not depend on either.

# %%
# Try this: a pooling whose last window hangs over the edge. Which size has each rule?
for convention in ("valid", "full"):
    pooled = mx.nd.Pooling(
        images, kernel=(3, 3), stride=(2, 2), pool_type="max", pooling_convention=convention
    )
    print(convention, pooled.shape)

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | layers and weights copied one by one | `gt.bridge.to_torch`, `check` | MXNet's rules, not only its names; outputs, gradients and statistics in 64 bits |
# | a new script | `gluontune run --backend torch train.py` | the script stays; the proof of a step; a way back to MXNet |
# | a new project | `gluontune migrate` | readable source, weights, a check that needs neither mxnet nor gluontune |
#
# ## Summary: what to remember
# - A net is a graph of operators; who keeps their rules can compute it anywhere.
# - The same name is not the same rule: compare numbers, in 64 bits, gradients and statistics as well.
# - Whether another engine is faster, only a measurement in turn says.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
# A channel gets 16 values from a batch. How many times as large is the variance that PyTorch's own BatchNorm keeps?
check("variance-ratio", ...)

# %%
# MXNet's hard_sigmoid is 0.2 x + 0.5, cut off at 0 and 1. PyTorch's divides x by 6. Write MXNet's, for a numpy array.
check("write-hard-sigmoid", ...)

# %%
# A migration takes you 30 hours. The job trains 60 hours a week, and is 1.5 times as fast afterwards. How many weeks
# until as many hours of training are saved?
check("migration-weeks", ...)

# %%
# Write a function (x, weight) -> (x, weight) on NDArrays: images (N, C, H, W) and the weights (O, C, KH, KW) of a
# convolution, both with their channels last.
check("write-nhwc", ...)

# %% [markdown]
# **Reference:** `gt.bridge.to_torch?`, `gt.bridge.check?`, `gt.bridge.migrate?` in a cell show what they take.
#
# **Next:** [`99_your_own_project`](99_your_own_project.ipynb) takes your own job. `gluontune migrate job.py torch/` does so from the command line.
