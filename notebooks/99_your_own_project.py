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
# # 99 · Your own project
#
# **Question.** The lessons showed what holds a training back, with nets and images that we had chosen. What holds *yours* back, and with
# which settings does it train fastest on this machine?
#
# Bring a file that defines any of `net()`, `data()` and `loss()`, and name it in `job`; you leave with `recipe.yaml`. (A script of your own
# runs as it is, by `gluontune run`; see below.)
#
# **You will be able to** write a script with your own data, loss and net, run it faster as it is, and take it from a first look to a
# recipe.
#
# **Before this:** `01_naive`, `04_hybridize`. **Time:** 35 minutes; on two cores the cells run for two or three.

# %%
from gluontune.course import picture

picture("project")

# %% tags=["parameters"]
job = None  # such as "job.py"; without one, the example below
dataset = "sample"  # for a job without data()
epochs = 3
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/99_your_own_project"
seed = 0
quick_samples = 2560

# %%
import subprocess
import sys
import time
from pathlib import Path

import gluontune as gt
from gluontune.course import bars, check, compare, kept_run, kept_study, predict, show, table
from gluontune.training.diagnosis import examine

predict("times as fast with the recipe as the job is now", ...)
predict("percent of a step spent waiting for data, as the job is now", ...)

# %% [markdown]
# ## By hand: a script
# Plain Gluon, without a line of gluontune: data of its own (circles and squares in noise), a loss of its own, a net, a loop. A Gluon data set
# needs `__len__`, and `__getitem__`, which returns an image and its label. The loss is cross-entropy with smoothed labels
# ([Szegedy and others, 2015](https://arxiv.org/abs/1512.00567)): a share $\epsilon$ of it goes to all classes alike, so that the net is never
# quite sure of one. With $K$ classes, scores that give $p_k$ and the label $y$ the loss of an image is
#
# $$L = -(1 - \epsilon)\, \log p_y - \frac{\epsilon}{K} \sum_{k=1}^{K} \log p_k .$$

# %%
DATA = """import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd


class Shapes(gluon.data.Dataset):
    def __init__(self, count, seed=0):
        rng = np.random.RandomState(seed)
        self.labels = rng.randint(0, 2, count)
        self.images = rng.randint(0, 120, (count, 24, 24, 1)).astype("uint8")
        y, x = np.mgrid[-12:12, -12:12]
        for image, label, size in zip(self.images, self.labels, rng.randint(5, 10, count)):
            distance = np.hypot(y, x) if label else np.maximum(abs(y), abs(x))
            image[distance < size] += 100

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return nd.array(self.images[i]), int(self.labels[i])
"""

# %%
NET = """

class Smoothed(gluon.loss.Loss):
    def __init__(self, share=0.1):
        super().__init__(None, 0)
        self.share = share

    def hybrid_forward(self, F, scores, label):
        logs = F.log_softmax(scores)
        return -(1 - self.share) * F.pick(logs, label) - self.share * logs.mean(axis=1)


def small_net():
    net, nn = gluon.nn.HybridSequential(), gluon.nn
    for channels in (16, 32):
        net.add(nn.Conv2D(channels, 3, strides=2, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(2))
    return net
"""

# %%
LOOP = """

def main():
    mx.random.seed(0), np.random.seed(0)
    net, loss_of = small_net(), Smoothed()
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})
    images = Shapes(640).transform_first(gluon.data.vision.transforms.ToTensor())
    for epoch in range(6):
        total, batches = 0.0, gluon.data.DataLoader(images, 32, shuffle=True)
        for x, y in batches:
            with autograd.record():
                loss = loss_of(net(x), y.astype("float32"))
            loss.backward()
            trainer.step(len(x))
            total += loss.mean().asscalar()
        print(f"epoch {epoch + 1}: loss {total / len(batches):.3f}")

if __name__ == "__main__":
    main()
"""

# %%
folder = Path(out_dir).resolve()
folder.mkdir(parents=True, exist_ok=True)
script = folder / "train.py"
script.write_text(DATA + NET + LOOP)


def shell(*words):
    started = time.perf_counter()
    done = subprocess.run(
        words, cwd=folder, env=gt.runtime.child_env("as-installed"), capture_output=True, text=True
    )
    print("$", "python" if words[0] == sys.executable else Path(words[0]).name, *words[1:])
    print(done.stdout + "\n".join(line for line in done.stderr.splitlines() if "gluontune:" in line))
    print(f"({time.perf_counter() - started:.1f} s, exit code {done.returncode})")


shell(sys.executable, "train.py")

# %% [markdown]
# ## With gluontune: the script as it is
# `gluontune run` runs it unchanged: its output, files and exit code; the losses agree, for the script sets its seeds. It sets threads and
# allocator, keeps samples that are the same in each epoch, and compiles blocks, each after a proof and only where it measures faster. Two
# lines at the end say what these changes brought: on six short epochs little, on a training of minutes more. The rest of the gain by the
# clock is a faster `import mxnet` and the settings.

# %%
gluontune = str(Path(sys.executable).with_name("gluontune"))
shell(gluontune, "run", "train.py")

# %% [markdown]
# `capture` shows what the script computes in a step, and proves in float64 that PyTorch can compute it (lesson `15_modern_engine`):

# %%
shell(gluontune, "capture", "--steps", "3", "train.py")

# %% [markdown]
# ## From a script to a job
# To try everything else, loaders, batches, rates, types, gluontune needs the parts apart. `net()` returns an uninitialized Gluon block,
# `data()` the name of a data set (`"folder:/data/birds"`) or two Gluon datasets, `loss()` a Gluon loss. What is left out comes from the
# recipe. The job takes them from the script beside it:

# %%
EXAMPLE = """from train import Shapes, Smoothed, gluon, small_net as net


def data():
    to_tensor = gluon.data.vision.transforms.ToTensor()
    return tuple(Shapes(n, seed).transform_first(to_tensor) for n, seed in ((2560, 1), (320, 2)))


def loss():
    return Smoothed()
"""
if job is None:
    job = str(folder / "job.py")
    Path(job).write_text(EXAMPLE)
print(Path(job).read_text())

# %%
images = {"train_samples": quick_samples, "val_samples": 500} if quick else {}
now = gt.Recipe(
    job=job,
    dataset=dataset,
    epochs=epochs,
    batch_size_per_device=batch_size_per_device,
    dtype=dtype,
    num_workers=num_workers,
    devices=devices,
    seed=seed,
    **images,
)
before = kept_run(now, f"{out_dir}/as-it-is.json")
assert before.ok, before.error
show("phases", {"as it is": before})

# %%
print(
    compare("percent of a step spent waiting for data, as the job is now", before.phases_pct.get("data", 0.0))
)

# %% [markdown]
# ## Ask the doctor
# It profiles one step of the job and reads from oneDNN's log which slow kernels run, checks that the net compiles, and says what
# would cure it. In a terminal: `gluontune doctor --job job.py`. It trains a few steps of its own, so its percent are not exactly those above.
# Look at the rows marked *warning* first.

# %%
found = examine(now.override(hybridize="static"))
print(found.sentence)
table({"severity": f["severity"], "what": f["message"], "mend": f["fix"]} for f in found.findings)

# %% [markdown]
# ## Climb
# Each rung is tried with your job, in turn with the one before, and stays if it helped and the accuracy did not suffer. Quick, only some of
# the rungs; `gluontune ladder --job job.py` climbs them all.

# %%
rungs = ["environment", "records", "hybridized"] if quick else None
ladder = kept_study(gt.ladder.climb, now, rungs=rungs, out=f"{out_dir}/ladder")
bars(
    {r["name"]: r["samples_per_sec"] for r in ladder["rungs"]},
    unit="images/s in training",
    caption="Your job on the ladder: median and 95 % interval",
)

# %%
table(
    {
        "rung": r["name"],
        "changes": ", ".join(f"{field}: {value}" for field, value in r["changes"].items()),
        "verdict": r["verdict"],
        "kept": "yes" if r["kept"] else "no",
    }
    for r in ladder["rungs"]
)

# %% [markdown]
# ## Search
# The ladder changes one thing after the other. `gluontune tune` searches settings against each other, from the ladder's best: threads,
# allocator, mode, rewrites, data type, loader. Quick, only the first of them.

# %%
best = gt.Recipe.from_dict(ladder["best"]["recipe"]) if ladder["best"] else now
knobs, minutes = (["threads"], 0.75) if quick else (None, 10.0)
tuned = kept_study(gt.ladder.tune, best, knobs=knobs, budget_minutes=minutes, out=f"{out_dir}/tuned")
print(tuned["sentence"])
table(
    {
        "setting": r["stage"],
        "tried": r["label"],
        "times the start": f"{r['speedup_vs_start'] or 0:.2f}",
        "kept": "" if r["stage"] == "start" else "yes" if r["kept"] else "no",
    }
    for r in tuned["tried"]
)

# %% [markdown]
# ## Your recipe
# The best recipe goes into a file, and is held against the job as it was: the same epochs, the same images.

# %%
chosen = gt.Recipe.from_dict(tuned["best"]["recipe"])
recipe_file = Path(out_dir) / "recipe.yaml"
recipe_file.write_text(chosen.to_yaml())
print(f"{recipe_file}: {chosen.differences(now)}")

# %%
after = kept_run(chosen.override(epochs=epochs), f"{out_dir}/recipe.json")
assert after.ok, after.error
runs = {"as it is": before, "recipe.yaml": after}
show("throughput", runs)

# %%
speedup = after.samples_per_sec["median"] / before.samples_per_sec["median"]
print(compare("times as fast with the recipe as the job is now", speedup))
accuracy = {name: f"{100 * run.val_accuracy[-1]:.1f}" for name, run in runs.items()}
table({"run": name, "validation accuracy, percent": value} for name, value in accuracy.items())

# %% [markdown]
# Faster and as accurate: that is what counts. If the accuracy fell, look which rung changed the results: batch size and data type do, threads
# and loaders do not.

# %%
# Try this: take one field of the recipe back. What does `differences` say, and is it still as fast?
back = chosen.override(hybridize=now.hybridize)
print("taken back:", back.differences(chosen) or "nothing: it was never changed")

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `python train.py` | `gluontune run train.py` | faster, the same script; each change proven and measured |
# | a rewrite for another library | `gluontune capture`, `run --backend torch` | the proof that a step is the same |
# | settings tried one after the other | `gluontune ladder --job job.py` | in turn, with verdicts; keeps the accuracy; leaves a recipe |
#
# ## Summary: what to remember
# - A script runs faster as it is (`run`); its parts in a job can be searched (`ladder`, `tune`).
# - A recipe is a file: with it the same training runs again, here or on a cluster, by anyone.
# - What helped here may not help on another machine: climb again there.
#
# ## Exercises

# %%
# Which field of the recipe names your file? Give its name in quotes.
check("recipe-field", ..., recipe=chosen)

# %%
# Your training took 24 hours. How many are they with the recipe?
check("speedup-hours", ..., speedup=speedup)

# %%
# Write a function (F, scores, label, eps) -> a loss for each image: the smoothed cross-entropy of above.
check("write-loss", ...)

# %% [markdown]
# **Reference:** `gt.ladder.climb?`, `gt.ladder.tune?`, `gt.tuned?` in a cell show what they take.
#
# **Next:** `gluontune train --recipe recipe.yaml` trains with it, `gluontune launch -n 2 -- train --recipe recipe.yaml` on two ranks. And
# [`00_your_machine`](00_your_machine.ipynb) on the next machine.
