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
# # 14 · The assessment
#
# **Question.** You get a training script as a tutorial would write it. Can you make it reach a given accuracy within a given time, and
# then again on two processes?
#
# The deck "Fundamentals of Deep Learning for Multi-GPUs" ends the same way: take a script for one device, and reach an
# accuracy with several in a fixed time. Here the time is no fixed figure: a solution that we keep apart runs on *your* machine first.
#
# **You will be able to** make a naive script reach an accuracy within a time, on one rank and on two.
#
# **Before this:** `01_naive` to `11_lr_schedules`. **Time:** 30 minutes, and as long as your script needs you; on two cores the cells run
# for two minutes.

# %%
from gluontune.course import picture

picture("assessment")

# %% tags=["parameters"]
dataset = "fresh"  # drawn anew for each assessment
epochs = 6
batch_size_per_device = 16
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/14_assessment"
seed = 0
quick_samples = 2400
settings = "tuned"  # environment of the scripts; "as-installed" where other programs are at work
my_script = None  # your file; None: OUT_DIR/my_script.py, the naive one for you to change; "solution": ours

# %%
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import gluontune as gt
from gluontune.course import assessment, bars, check, compare, predict, show, table

predict("times the reference's time that the naive script takes", ...)
predict("points of 50 that the naive script gets on one rank", ...)

# %% [markdown]
# ## By hand: from naive to fast in five stages
# The loop of a naive script, on a few images. Every image is decoded again in each epoch, by a data set in a `DataLoader`; the loss is read
# back in each step. Each stage changes one line; each is timed.

# %%
mx = gt.runtime.mxnet()
gluon, nd, nn = mx.gluon, mx.nd, mx.gluon.nn
split = gt.datasets.open("sample").train
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()


class Images(gluon.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, i):
        return split.decode(i).transpose(2, 0, 1).astype("float32") / 255, int(split.labels[i])


def from_memory(batch):
    order = np.random.permutation(len(pixels))
    for at in range(0, len(order) - batch + 1, batch):
        chosen = order[at : at + batch]
        yield nd.array(pixels[chosen]), nd.array(labels[chosen])


# %%
pixels, labels = (np.array(column) for column in zip(*(Images()[i] for i in range(512))))


# %%
def stage(batches, graph=False, read_back=True):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, strides=2, activation="relu"), nn.Conv2D(16, 3, strides=2), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    if graph:
        net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.02})

    def epoch():
        started, total = time.perf_counter(), 0.0
        for x, y in batches():
            with mx.autograd.record():
                loss = loss_of(net(x), y)
            loss.backward()
            trainer.step(len(x))
            total += loss.mean().asscalar() if read_back else loss.mean()
        nd.waitall()
        return time.perf_counter() - started

    return epoch


# %%
naive = gluon.data.DataLoader(Images(), 16, shuffle=True)
stages = {
    "1 naive": stage(lambda: naive),
    "2 decoded once": stage(lambda: from_memory(16)),
    "3 no read-back in a step": stage(lambda: from_memory(16), read_back=False),
    "4 one graph": stage(lambda: from_memory(16), graph=True, read_back=False),
    "5 batches of 64": stage(lambda: from_memory(64), graph=True, read_back=False),
}
times = {name: [] for name in stages}
for _ in range(4):  # in turn; the first sets up, and of the others the least counts: a disturbance only adds
    for name, epoch in stages.items():
        times[name].append(epoch())
rates = {name: 512 / min(found[1:]) for name, found in times.items()}
gain, most = max((rates[b] / rates[a], b) for a, b in zip(rates, list(rates)[1:]))
print(f"Most came with stage {most}: {gain:.1f} times.")
bars(
    rates,
    unit="images/s",
    caption="The same epoch by hand, one change after the other",
)

# %% [markdown]
# A stage that brings nothing here may be the one that counts elsewhere. On a CPU a read-back (stage 3) costs little, for Python has
# nothing to hand over in advance; on a GPU it empties the queue in each step. And a graph (stage 4) may choose slower layouts on a CPU
# (lesson `04_hybridize`).
#
# The same stages as changes of a script:
#
# ```diff
# -train = DataLoader(Images(task.train, task), 16, shuffle=True)        # 2: decodes in each epoch
# +pixels = task.normalize(np.stack([task.train.decode(i) for i in range(len(task.train))]))
# -        total += loss.mean().asscalar()                               # 3: waits in each step
# +net.hybridize(static_alloc=True, static_shape=True)                   # 4
# -BATCH_SIZE, LEARNING_RATE = 16, 0.01
# +BATCH_SIZE, LEARNING_RATE = 128, 0.1                                  # 5: fewer, longer steps (lesson 06)
# -trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": LEARNING_RATE})
# +trainer = gt.optim.setup("nag", net, schedule=…, kvstore=mx.kv.create("dist_sync"))   # lessons 07 to 11
# ```

# %% [markdown]
# ## The rules
# Your script is one file. It calls `task = gt.course.task()` and trains on `task.train`, a split as `gt.datasets` gives them; `task.val` is
# there to look at: dice drew the class of two in three of its images, for half of these from wrong classes alone, so a good net is right on
# about 42 percent. At its end the script calls `task.save(net, samples)`, with the number of images that it has trained on. That is all: net,
# optimizer, loader, batch size, data type are yours to choose. `gluontune assess --new my_script.py` writes the naive one.

# %%
naive = Path(out_dir) / "naive.py"
naive.unlink(missing_ok=True)
text = assessment.new_script(naive).read_text()
text = text.replace("EPOCHS = 6", f"EPOCHS = {epochs}")
naive.write_text(text.replace("BATCH_SIZE = 16", f"BATCH_SIZE = {batch_size_per_device}"))
print(text[text.index("def main()") :])

# %% [markdown]
# On two ranks it will run twice, at the same time: `task.rank` is 0 or 1, and each gets its own half of the images. The naive script would
# then train two nets apart, and fail.
#
# ## With gluontune: graded
# The reference first, then the naive script, each alone in a process of its own, on the same images. The time is taken by the grader, from
# the start of the process to its end; twice the reference's is the budget. A script that takes three times as long is ended. Wanted is the
# reference's accuracy less five points; a part of it gives that part of the points for time and steadiness. *Steadiness* is how even the
# device's use is over the run. A script passes if it meets every criterion but steadiness.

# %%
scale = assessment.Scale()
if quick:
    scale = replace(scale, train=quick_samples, val=600, test=1000)
options = {"scale": scale, "settings": settings, "out": f"{out_dir}/graded", "on_event": print}
first = gt.course.assess(naive, ranks=1, **options)
table(
    {"what": c.name, "points": f"{c.points:g} of {c.max_points}", "feedback": c.feedback}
    for c in first.parts[0].criteria
)

# %%
reference = first.reference["1"]
print(
    compare(
        "times the reference's time that the naive script takes",
        first.parts[0].seconds / reference["seconds"],
    )
)
print(compare("points of 50 that the naive script gets on one rank", first.points))
print("Not met:", ", ".join(c.name for c in first.parts[0].criteria if not c.passed) or "nothing")
if first.parts[0].accuracy is None:
    print("It was ended before it was done: in truth it takes longer still.")

# %% [markdown]
# ## Your turn
# The naive script is put into a file for you. Change it there. You know from the lessons before what to look for: what does a step wait for (`01`, `02`)? Is each image
# decoded more than once (`03`)? Does the net run as one graph (`04`)? Are there enough images in a batch (`06`), and does the
# rate fit them (`11`)? Does anything copy a value back in each step? Then: `mx.kv.create("dist_sync")`, given
# to `gt.optim.setup`, joins two ranks (`07`); Gluon's own Trainer may start them from different weights if the net has run before.
#
# Then run the cells below again, or grade it in a terminal: `gluontune assess my_script.py`. To see our solution at work, as in the published
# outputs, set `my_script = "solution"`.

# %%
mine = Path(my_script or f"{out_dir}/my_script.py")
if my_script == "solution":
    mine = assessment.solution()
    print("Our solution is graded, not a file of yours.")
else:
    if not mine.exists():
        mine.write_text(naive.read_text())
    print(f"Change this file, then run the next cells: {mine}")

# %%
changed = mine.read_text() != naive.read_text()
if not changed:
    print("It is still the naive script, and has the points from above. Change it, and run this cell again.")
second = gt.course.assess(mine, **options) if changed else first
table(
    {"ranks": p.ranks, "what": c.name, "points": f"{c.points:g} of {c.max_points}", "feedback": c.feedback}
    for p in second.parts
    for c in p.criteria
)

# %%
print(
    f"{mine.name}: {'passed' if second.passed else 'not passed'}, {second.points:g} of {second.max_points} points"
)
seconds = {"reference": reference["seconds"], "naive": first.parts[0].seconds}
seconds.update({f"{mine.stem}, {p.ranks} rank{'s' if p.ranks > 1 else ''}": p.seconds for p in second.parts})
bars(
    seconds,
    unit="seconds by the grader's clock",
    caption="Time from start to end, and the budget on one rank",
    limits={"budget": first.parts[0].goal.budget_s},
)

# %%
results = {**first.results(), **second.results()}
for name, result in results.items():
    result.save(f"{out_dir}/{name.replace(', ', '-').replace(' ', '-')}.json")
show("utilization", results)

# %% [markdown]
# ## How the grader knows
# It reads nothing that your script prints. It takes the saved net and runs it on *hidden* images, which are painted after your script has
# ended: before, they are nowhere. Their classes are drawn by chance for this assessment alone, so no parameters trained
# elsewhere know them.
#
# And it asks the net what it has learned from. Each half of the training images has some styles that are found nowhere else, and whose
# classes were drawn separately. And of two validation images in three, dice drew the class from four.
# Who has not learned from a part can only guess. How often would a guess be as good?

# %%
shown = {
    "train-a": "one half of the training images",
    "train-b": "the other half",
    "val": "the validation images",
}
table(
    {
        "ranks": part.ranks,
        "what dice said in": shown[name],
        "right, percent": f"{100 * share:.0f}",
        "by luck": f"{by_luck:.2g}",
        "learned from": "no" if by_luck > (1e-8 if name == "val" else 0.001) else "yes",
    }
    for part in second.parts
    for name, (share, by_luck) in part.traces.items()
)

# %% [markdown]
# A rank that trains alone knows only its own half, whatever it writes into its report. A net trained on validation images knows
# what dice said of them. The idea is called *radioactive data* (Sablayrolles and others, 2020): what was learned from it can be traced.

# %%
# Try this: how much sooner than its budget was each part done?
for part in second.parts:
    if part.seconds:
        print(f"{part.ranks} rank(s): {part.seconds / part.goal.budget_s:.2f} of the budget")

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | a clock in the script | `gt.course.assess` | a clock from outside, in processes of their own |
# | accuracy on validation images | hidden images, painted afterwards | nobody can have trained on them |
# | "it runs on two ranks" | traces in the training images | the proof that both halves were learned from |
#
# ## Summary: what to remember
# - A target is an accuracy *and* a time, on a named machine; one without the other is easily reached.
# - Measure from outside: from the start of the process to its end, on data that training has never seen.
# - Two ranks that do not exchange gradients are two small trainings, not one large one.
#
# ## Exercises

# %%
# How many seconds may a script take on two ranks?
check("assessment-budget", ..., reference=second.reference)

# %%
# 12,000 images on two ranks, 64 a step on each. How many whole steps has an epoch?
check("rank-steps", ...)

# %%
# A net that never saw a part guesses at its 12 styles, of 10 classes each. How many will it get right on average?
check("lucky-styles", ...)

# %%
# Write a function (net, loss_of, trainer, x, y): one step of training on this batch, in Gluon.
check("write-train-step", ...)

# %% [markdown]
# **Reference:** `gt.course.task?`, `gt.course.assess?` in a cell show what they take.
#
# **Next:** [`15_modern_engine`](15_modern_engine.ipynb): the same job on an engine that is still built.
