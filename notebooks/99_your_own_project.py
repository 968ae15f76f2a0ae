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
# Bring a file that defines any of `net()`, `data()` and `loss()`, and name it in `job`. You leave with `recipe.yaml`.
#
# **You will be able to** take a job of your own from a first look to a recipe.

# %%
from gluontune.course import picture

picture("project")

# %% tags=["parameters"]
job = None  # such as "job.py"; without one, a small example is written
dataset = "sample"  # for a job without data()
epochs = 1
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/99_your_own_project"
seed = 0
quick_samples = 2560

# %%
from pathlib import Path

import gluontune as gt
from gluontune.course import bars, check, compare, kept_run, kept_study, predict, show, table
from gluontune.training.diagnosis import examine

predict("times as fast with the recipe as the job is now", ...)
predict("percent of a step spent waiting for data, as the job is now", ...)

# %% [markdown]
# ## The job
# `net()` returns an uninitialized Gluon block, `data()` the name of a data set (`"folder:/data/birds"`) or two Gluon datasets, `loss()` a
# Gluon loss. What is left out comes from the recipe.

# %%
EXAMPLE = '''"""An example of a job: a small net for the embedded sample."""
import gluontune as gt

nn = gt.runtime.mxnet().gluon.nn


def net():
    found = nn.HybridSequential()
    for channels in (16, 32, 64):
        found.add(nn.Conv2D(channels, 3, strides=2, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    found.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
    return found
'''

# %%
if job is None:
    path = Path(out_dir).resolve() / "job.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EXAMPLE)
    job = str(path)
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
# would cure it. In a terminal: `gluontune doctor --job job.py`.

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
    {"rung": r["name"], "verdict": r["verdict"], "kept": "yes" if r["kept"] else "no"}
    for r in ladder["rungs"]
)

# %% [markdown]
# ## Search
# The ladder changes one thing after the other. `gluontune tune` searches settings against each other, from the ladder's best: threads,
# allocator, mode, rewrites, data type, loader. Quick, only the first of them.

# %%
best = gt.Recipe.from_dict(ladder["best"]["recipe"]) if ladder["best"] else now
knobs, minutes = (["threads"], 1.0) if quick else (None, 10.0)
tuned = kept_study(gt.ladder.tune, best, knobs=knobs, budget_minutes=minutes, out=f"{out_dir}/tuned")
print(tuned["sentence"])
table(
    {
        "setting": r["stage"],
        "tried": r["label"],
        "times the start": f"{r['speedup_vs_start'] or 0:.2f}",
        "kept": "yes" if r["kept"] else "no",
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
# ## Summary
# - Look first (`doctor`), then change one thing at a time (`ladder`), then search (`tune`).
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

# %% [markdown]
# **Reference:** `gt.ladder.climb?`, `gt.ladder.tune?`, `gt.tuned?` in a cell show what they take.
#
# **Next:** `gluontune train --recipe recipe.yaml` trains with it, `gluontune launch -n 2 -- train --recipe recipe.yaml` on two ranks. And
# `00_your_machine` on the next machine.
