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
# Before you measure anything, write down what you expect: put a number in place of the three dots of `predict`. A wrong
# prediction teaches as much as a right one.
#
# **You will be able to** say how many cores a process may really use, and choose the settings with which a training
# should start.
#
# **Before this:** Python; no MXNet is needed, lesson `01_naive` explains the script. **Time:** 15 minutes; on two cores the cells run for
# half a minute.

# %%
from gluontune.course import picture

picture("machine")

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
quick_samples = 1280

# %%
import subprocess
import sys
from pathlib import Path

import gluontune as gt
from gluontune.course import check, compare, in_turn, predict, show, table

machine = gt.runtime.machine_facts()
predict("percent of the cores that training uses, as MXNet is installed", ...)

# %% [markdown]
# ## By hand: a script and an environment variable
# A net, random images, ten steps of training, in plain Gluon. It prints two figures: images a second, and the seconds of all cores for
# each second of the clock, which is the number of cores at work.

# %%
SCRIPT = """import time
import gluontune as gt
mx = gt.runtime.mxnet()  # `import mxnet as mx`, with what it needs
net, nn = mx.gluon.nn.HybridSequential(), mx.gluon.nn
net.add(nn.Conv2D(32, 3, activation="relu"), nn.Conv2D(32, 3, strides=2), nn.GlobalAvgPool2D(), nn.Dense(10))
net.initialize(mx.init.Xavier())
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
x, y = mx.nd.random.normal(shape=(16, 3, 32, 32)), mx.nd.zeros(16)
for step in range(13):
    if step == 3:  # the first steps set things up
        mx.nd.waitall()
        started, cores = time.perf_counter(), time.process_time()
    with mx.autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    trainer.step(16)
mx.nd.waitall()
seconds = time.perf_counter() - started
print(f"{160 / seconds:,.0f} images/s, {(time.process_time() - cores) / seconds:.1f} cores at work")
"""

# %%
script = Path(out_dir) / "script.py"
script.parent.mkdir(parents=True, exist_ok=True)
script.write_text(SCRIPT)
cores = gt.runtime.usable_cores()


def shell(variables):
    """What a terminal does with `NAME=value … python script.py`."""
    env = gt.runtime.child_env("as-installed")  # without what this notebook was started with
    env.update(word.split("=", 1) for word in variables.split())
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True)
    print(f"$ {variables} python script.py".replace("  ", " "))
    print(" ", done.stdout.strip() or done.stderr.strip().splitlines()[-1])


for _ in range(2):  # in turn
    shell("")
    shell(f"OMP_NUM_THREADS={cores}")
shell(f"OMP_NUM_THREADS={cores} MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_MMAP_MAX_=0")

# %% [markdown]
# `OMP_NUM_THREADS` is the number of threads with which MXNet computes. It is read once, when MXNet is imported. Inside the script it is too
# late: it belongs before `python`, or into `os.environ` before the import. The last line also tells the C library to keep freed memory for
# the next step.
#
# Are more threads slower here? Then other programs want the cores. At the end of each operator its threads wait for the last of them, and
# one that gets no core holds up all. `top` shows who else is at work.
#
# **A GPU** is looked at with `nvidia-smi`. Its *GPU-Util* is the share of time in which *any* kernel ran, not the share of the chip that
# was at work: a GPU at 100 % may still be nearly idle. Power (*Pwr:Usage/Cap*) tells more; *Memory-Usage* is what MXNet keeps, not what it
# needs. In the deck's picture of the naive script one of four V100s draws 123 W of 300, and the others wait.

# %% [markdown]
# ## What is here
# *Usable* cores are those that this process may really run on. Two things can take some of them away: its *affinity*, the
# list of cores that it was given, and the quota of its container.

# %%
table({"fact": name, "value": value} for name, value in {**machine["cpu"], **machine["packages"]}.items())

# %% [markdown]
# The doctor looks deeper, without importing mxnet: each finding has its evidence and the command that mends it.

# %%
findings = [f for f in gt.runtime.doctor.run_checks() if f.severity != "ok"]
table({"severity": f.severity, "what": f.message, "mend": f.fix} for f in findings)

# %% [markdown]
# ## With gluontune: measure
# The same training twice, each in a fresh process: once with the environment as it comes, once with the launch
# settings that gluontune computes for this machine. The images lie decoded in memory, so that only computing counts. First look
# how busy the cores are.

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

# %% [markdown]
# Which is faster? Two runs one after the other are no proof: another program may have disturbed one of them. So both now train
# *in turn*: a slice of the one, a slice of the other, and so on. A disturbance then falls on both, and the ratio of neighbours says
# who is faster. From the ratios comes a *95 % interval*: a range that holds the true ratio in 95 of 100
# such measurements. Where it contains 1, nothing is proven. (How it is computed: lesson `12_composing`.)

# %%
in_turns = {"as installed": recipe, "tuned": recipe.override(runtime="tuned")}
found = in_turn(in_turns, rounds=5 if quick else 15, slice_s=0.4 if quick else 1.0)
ratio = found["tuned"]["ratio"]
low, high = ratio["ci95"]
verdict = "They help here." if low > 1 else "They harm here." if high < 1 else "Here nothing is proven."
print(f"The launch settings: {ratio['median']:.2f} times the speed (95 %: {low:.2f} to {high:.2f}).", verdict)

# %% [markdown]
# ## Why
# Two settings decide most of it on a CPU. MXNet's wheel chooses its number of threads by a rule of its own, often half of
# the cores. And the C library's *allocator*, which hands
# out memory, gives each step's memory back to the system, only to ask for it again in the
# next step. Both are environment variables that must be set *before* the process starts.

# %%
table({"setting": name, "value": value, "why": why} for name, value, why in gt.runtime.launch_settings().rows)

# %% [markdown]
# The ladder (`gluontune ladder`) measures in turn, too, and keeps a change only where its interval lies above 1.

# %%
# Try this: more processes share the machine. Each gets the usable cores divided by their number, and at least one.
for processes in (1, 2, 4):
    print(processes, gt.runtime.launch_settings(processes=processes).env["OMP_NUM_THREADS"])

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `OMP_NUM_THREADS=… python script.py` | `gluontune run script.py`, `runtime="tuned"` | right for this machine, this container, and several processes |
# | two runs, one after the other | `in_turn`, `gluontune ladder` | slices in turn; an interval |
# | `nvidia-smi`, `top` | `gluontune doctor` | causes, each with the command that mends it |
#
# ## Summary: what to remember
# - What a machine has and what a process may use differ; count usable cores.
# - As installed, MXNet may leave cores idle; launch settings are a way to change that without touching your script.
# - A setting helps where it measured faster, and nowhere else.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
check("usable-cores", ...)  # how many cores may this process use?

# %%
check("omp-threads", ...)  # two training processes share this machine: how many threads for each?

# %%
# Write a function (cores, processes) -> a dict with the variable that gives each process its share of the cores.
check("write-environment", ...)

# %% [markdown]
# **Reference:** `gt.runtime.launch_settings?`, `gt.runtime.doctor?`, `gt.train.run?` in a cell show what they take.
#
# **Next:** [`01_naive`](01_naive.ipynb) trains the script that a tutorial would write, and looks where each step's time goes.
