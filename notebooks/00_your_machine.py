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
# # 00 · Your machine
#
# **Question.** You install MXNet, write a Gluon script and start it. How much of this machine does it use?
#
# Before you measure anything, write down what you expect. A wrong prediction teaches as much as a right one.

# %% tags=["parameters"]
dataset = "sample"
epochs = 1
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/00_your_machine"
seed = 0
quick_samples = 2560

# %%
import gluontune as gt
from gluontune.course import check, compare, predict, show, table

machine = gt.runtime.machine_facts()
predict("percent of the cores that training uses, as MXNet is installed", ...)

# %% [markdown]
# ## What is here
# *Usable* cores are those that the affinity and the container's quota really leave to this process.

# %%
table({"fact": name, "value": value} for name, value in {**machine["cpu"], **machine["packages"]}.items())

# %% [markdown]
# The doctor looks deeper, without importing mxnet: each finding has its evidence and the command that mends it.

# %%
findings = [f for f in gt.runtime.doctor.run_checks() if f.severity != "ok"]
table({"severity": f.severity, "what": f.message, "mend": f.fix} for f in findings)

# %% [markdown]
# ## Measure
# The same training twice, each in a fresh process: once with the environment as it comes, once with the launch
# settings that gluontune computes for this machine. The images lie decoded in memory, so that only computing counts.

# %%
images = {"train_samples": quick_samples, "val_samples": 500} if quick else {}
recipe = gt.Recipe(
    dataset=dataset,
    epochs=epochs,
    batch_size_per_device=batch_size_per_device,
    dtype=dtype,
    devices=devices,
    loader="resident",
    seed=seed,
    **images,
)
as_installed = gt.train.run(recipe)
tuned = gt.train.run(recipe.override(runtime="tuned"))
results = {"as installed": as_installed, "tuned": tuned}
for name, result in results.items():
    result.save(f"{out_dir}/{name.replace(' ', '-')}.json")

# %%
show("utilization", results)

# %%
busy = as_installed.steadiness["mean_pct"]
print(compare("percent of the cores that training uses, as MXNet is installed", busy))
ratio = tuned.samples_per_sec["median"] / as_installed.samples_per_sec["median"]
print(f"With the launch settings, training runs at {ratio:.2f} times the speed.")
show("throughput", results)

# %% [markdown]
# ## Why
# Two settings decide most of it on a CPU. MXNet's wheel chooses its number of threads by a rule of its own, often half of
# the cores. And the C library's allocator gives each step's memory back to the system, only to ask for it again in the
# next step. Both are environment variables that must be set *before* the process starts.

# %%
table({"setting": name, "value": value, "why": why} for name, value, why in gt.runtime.launch_settings().rows)

# %% [markdown]
# One run each is no proof: other programs may have disturbed one of them. The ladder (`gluontune ladder`) measures
# contenders in turn and gives a 95 % interval.
#
# ## Summary
# - What a machine has and what a process may use differ; count usable cores.
# - As installed, MXNet may leave cores idle; launch settings mend it without touching your script.
# - A setting helps where it measured faster, and nowhere else.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
check("usable-cores", ...)  # how many cores may this process use?

# %%
check("omp-threads", ...)  # two training processes share this machine: how many threads for each?

# %% [markdown]
# **Next:** `01_naive` trains the script that a tutorial would write, and looks where each step's time goes.
