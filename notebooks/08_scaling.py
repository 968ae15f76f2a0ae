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
# # 08 · What more devices cost
#
# **Question.** Four V100s trained 1.3 times as many images a second as one with the deck's naive script, and 2.9 times as many
# with batches of 640. Where does the rest go, and how does it grow with the number of devices?
#
# **You will be able to** write a ring all-reduce, measure the exchange, expect an efficiency for more devices, and say what not waiting
# costs.
#
# **Before this:** `07_multi_gpu`. **Time:** 35 minutes; on two cores the cells run for about a minute.

# %%
from gluontune.course import picture

picture("exchange")

# %% tags=["parameters"]
dataset = "sample"
epochs = 1
batch_size_per_device = 64
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/08_scaling"
seed = 0
quick_samples = 5000

# %%
import numpy as np

import gluontune as gt
from gluontune.course import check, compare, in_turn, kept_run, lines, predict, show, table

mx = gt.runtime.mxnet()
gluon, nd, nn = mx.gluon, mx.nd, mx.gluon.nn
predict("percent of a step that goes into the exchange", ...)

# %% [markdown]
# ## By hand: a ring
# Four ranks, each with the gradient of its own part of a batch. In a *ring all-reduce* each rank cuts its gradient into $n$ pieces. In
# each turn it sends one piece to the next rank, which adds it to its own. After $n - 1$ turns each rank has one piece of the whole sum;
# $n - 1$ turns more hand the finished pieces out.

# %%
ranks = 4
data = gt.datasets.open(dataset)
rng = np.random.default_rng(seed)
pixels = np.stack([data.train.decode(i) for i in range(1024)]).reshape(1024, -1).astype("float32") / 255
labels = data.train.labels[:1024]
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
net = nn.Dense(len(data.classes), in_units=pixels.shape[1])
net.initialize(mx.init.Xavier())


def gradient_of(rows):
    with mx.autograd.record():
        loss = loss_of(net(nd.array(pixels[rows])), nd.array(labels[rows]))
    loss.backward()
    return net.weight.grad().asnumpy().ravel()


gradients = [gradient_of(range(rank, 64, ranks)) for rank in range(ranks)]


# %%
def ring(gradients):
    n, sent = len(gradients), 0
    parts = [np.array_split(g.copy(), n) for g in gradients]
    for t in range(n - 1):  # add up
        for rank in range(n):
            piece, to = (rank - t) % n, (rank + 1) % n
            parts[to][piece] += parts[rank][piece]
            sent += parts[rank][piece].nbytes
    for t in range(n - 1):  # hand out
        for rank in range(n):
            piece, to = (rank + 1 - t) % n, (rank + 1) % n
            parts[to][piece] = parts[rank][piece].copy()
            sent += parts[rank][piece].nbytes
    return [np.concatenate(pieces) for pieces in parts], sent / n


# %%
sums, sent = ring(gradients)
whole = gradient_of(range(64))
print(
    "largest difference from the whole batch's gradient:", f"{max(np.abs(s - whole).max() for s in sums):.0e}"
)
print(f"each rank sent {sent / whole.nbytes:.2f} times the gradient")

# %% [markdown]
# Now the formula. A gradient of $S$ bytes, $n$ ranks, a connection that needs $\alpha$ seconds to begin a message and $1/\beta$ seconds
# for a byte ([Patarasuk and Yuan, 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)):
#
# $$T_{ring} = 2\,(n-1)\left(\alpha + \frac{S}{n\,\beta}\right), \qquad
# T_{tree} = 2\,\log_2 n \left(\alpha + \frac{S}{\beta}\right), \qquad T_{server} = 2\, n\, \frac{S}{\beta} + 2\alpha .$$
#
# A *tree* adds up in pairs: $\log_2 n$ turns to the top, as many down, each with the whole gradient. Through the one *server*'s connection all
# $n$ gradients go in and out. The ring sends least, $2\,(n-1)/n$ of the gradient, but begins $2(n-1)$ messages: with many ranks and small
# gradients its latency counts, and a tree is faster. *Topology* says which GPUs are joined by NVLink, which by PCIe, which by the network
# (`nvidia-smi topo -m` shows it). NCCL, NVIDIA's library, chooses ring or tree by it and by the size.

# %%
alpha, beta, n = 20e-6, 1.25e9, 64  # 20 µs for a message, 10 Gbit/s, ranks
sizes = np.geomspace(1e3, 1e9, 25)
times = {
    "ring": 2 * (n - 1) * (alpha + sizes / n / beta),
    "tree": 2 * np.log2(n) * (alpha + sizes / beta),
    "one server": 2 * n * sizes / beta + 2 * alpha,
}
lines(
    {name: (sizes, 1000 * seconds) for name, seconds in times.items()},
    x="bytes of the gradient",
    y="milliseconds of an exchange",
    log_x=True,
    log_y=True,
    caption="A model, 64 ranks: a tree for small gradients, a ring for large ones",
)

# %%
picture("ring")

# %% [markdown]
# ## By hand: not waiting
# Ranks that wait for each other are *synchronous*. Two other ways, here with four ranks in turn on the net of above:
#
# - *asynchronous*: each rank adds its gradient when it is ready. By then the weights are up to $n - 1$ updates further
#   (*Hogwild*, [Recht and others, 2011](https://arxiv.org/abs/1106.5730), is that without locks on the weights);
# - *elastic averaging* ([Zhang and others, 2015](https://arxiv.org/abs/1412.6651)): each rank has weights $w_i$ of its own, and every few
#   steps they and a centre $\tilde w$ pull at each other:
#   $w_i \leftarrow w_i - \rho\,(w_i - \tilde w)$, $\; \tilde w \leftarrow \tilde w + \rho \sum_i (w_i - \tilde w)$.


# %%
def gradient_at(weights, rows):
    net.weight.set_data(nd.array(weights.reshape(net.weight.shape)))
    return gradient_of(rows) / len(rows)


# %%
def descend(way, rate=0.05, updates=160):
    rng, centre = np.random.default_rng(seed), np.zeros(net.weight.shape).ravel()
    own, history, exchanges = [centre.copy() for _ in range(ranks)], [centre], 0
    for n in range(updates):
        rank, rows = n % ranks, rng.integers(0, 1024, 16)
        if way == "elastic":
            own[rank] = own[rank] - rate * gradient_at(own[rank], rows)
            if (n // ranks) % 4 == 3:  # every fourth step of a rank
                pull = 0.2 * (own[rank] - centre)
                own[rank], centre, exchanges = own[rank] - pull, centre + pull, exchanges + 1
        else:
            together = ranks if way == "synchronous" else 1  # one update of all four, by the linear rule
            age = min(n, ranks - together)  # of the weights, in updates: 0 if all wait, else 3
            rows = rng.integers(0, 1024, 16 * together)
            if together == 1 or rank == ranks - 1:  # if all wait: one update, at the last rank's turn
                step = together * rate * gradient_at(history[-1 - age], rows)
                centre, exchanges = centre - step, exchanges + together
                history.append(centre)
    net.weight.set_data(nd.array(centre.reshape(net.weight.shape)))
    return loss_of(net(nd.array(pixels)), nd.array(labels)).mean().asscalar(), exchanges


# %%
ends = {way: descend(way) for way in ("synchronous", "asynchronous", "elastic")}
table(
    {"way": way, "loss after 160 small batches": f"{loss:.3f}", "exchanges of the weights or a gradient": n}
    for way, (loss, n) in ends.items()
)

# %% [markdown]
# By equal work waiting is better. Not waiting pays by the clock, where one rank is often slow; the table shows no clock. A gradient is then
# older than the weights that it changes: with a larger rate the asynchronous walk is the first to blow up (*DCASGD*, lesson
# `10_optimizers`, corrects for the age). Elastic averaging exchanges a quarter as often. In gluontune: `engine="async"`, and
# `exchange_every` and `compression` to send less. Each has a price in accuracy.
#
# ## With gluontune: measure the exchange
# One recipe for a single rank, one for two.

# %%
gpus = gt.runtime.gpu_count() if devices != "cpu" else 0
on_gpu, count = gpus > 1, max(gpus, 2)
share = max(1, gt.runtime.usable_cores() // count)
small = {"train_samples": quick_samples, "val_samples": 500} if quick else {}
base = gt.Recipe(
    dataset=dataset,
    net="small_cnn" if quick else "cifar_resnet20_v1",
    epochs=epochs,
    batch_size_per_device=batch_size_per_device,
    num_workers=num_workers,
    dtype=dtype,
    devices="gpu" if on_gpu else "cpu",
    loader="resident",
    hybridize="static",
    runtime="tuned",
    learning_rate=0.1,
    seed=seed,
    **small,
)

# %%
single = base if on_gpu else base.override(env={"OMP_NUM_THREADS": str(share)})
several = base.override(engine="kvstore" if on_gpu else "shared-memory", num_devices=count)

# %% [markdown]
# Two ranks train, and one rank alone on the same share of the machine. The step is cut into phases; the exchange is part of
# *update*. The update of two takes longer than the update of one: the difference is the exchange, and the wait for the slower
# rank.

# %%
runs = {
    "one device": kept_run(single, f"{out_dir}/one.json"),
    "several": kept_run(several, f"{out_dir}/several.json"),
}
show("phases", runs)

# %%
step_ms, update_ms = {}, {}
for name, run in runs.items():
    devices_here = 1 if name == "one device" else count
    step_ms[name] = 1000 * batch_size_per_device * devices_here / run.samples_per_sec["median"]
    update_ms[name] = step_ms[name] * run.phases_pct["update"] / 100
exchange = max(0.0, update_ms["several"] - update_ms["one device"])
percent = 100 * exchange / step_ms["several"]
print(
    f"A step takes {step_ms['several']:.1f} ms on each rank, of it {exchange:.1f} ms for the exchange and the wait."
)
print(compare("percent of a step that goes into the exchange", percent))

# %% [markdown]
# Of DAWNBench's entries the exchange took 18 % of an epoch inside one server of 8 V100s, 53 % between servers (deck "Practical Deep Learning
# Systems Performance").
#
# ## One place, or a ring
# How much there is to send does not depend on the batch, only on the net. A *parameter server* gets the gradients of all ranks
# and gives the sum back. So its connection has n times the traffic of a rank's.

# %%
picture("parameter-server")

# %%
height, width, channels = data.image_shape
net = gt.train.build_net(base.net, len(data.classes))
net.initialize()
net(mx.nd.zeros((1, channels, height, width)))
weights = sum(int(np.prod(p.shape)) for p in net.collect_params().values() if p.grad_req != "null")
mib = 4 * weights / 2**20
table(
    {
        "ranks": n,
        "a rank of a ring sends, MiB": f"{2 * (n - 1) / n * mib:.2f}",
        "one server gets and sends, MiB": f"{2 * n * mib:.2f}",
    }
    for n in (2, 4, 8, 64)
)

# %% [markdown]
# `gt.parallel.expected` computes what that means for many devices. **It is a model**, nothing is measured: a net of 25 million
# weights, a step of 200 ms on each device, and how fast each device's connection is.

# %%
parts = gt.parallel.Parts(step_ms=[200.0], gradient_bytes=100e6, batch=64)
links = {
    "ring, 10 Gbit/s": (1.25, "ring"),
    "ring, 100 Gbit/s": (12.5, "ring"),
    "one server, 100 Gbit/s": (12.5, "parameter-server"),
}
many = [1, 2, 4, 8, 16, 64]
lines(
    {
        name: (
            many,
            [100 * gt.parallel.expected(parts, n, gt.parallel.Link(speed), how)["efficiency"] for n in many],
        )
        for name, (speed, how) in links.items()
    },
    x="devices",
    y="expected efficiency, percent",
    log_x=True,
    markers=True,
    caption="A model: a ring keeps its efficiency, one server does not",
)

# %% [markdown]
# ## A larger batch
# A larger batch sends no more bytes than a small one, and works longer for them. With $t$ the work for an image, $B$ images a device and an
# exchange of $T$, the efficiency is $E = 1 / (1 + T / (t B))$. So the one measured step says what to expect from other batches.
# Measure this batch and one four times as large:

# %%
large = 4 * batch_size_per_device
pairs = {"1": single, "1 several": several}
pairs["4"], pairs["4 several"] = (r.override(batch_size_per_device=large) for r in (single, several))
measured = []
for factor in ("1", "4"):
    two = {name: pairs[name] for name in (factor, f"{factor} several")}
    found = in_turn(two, rounds=4 if quick else 9, slice_s=0.3 if quick else 1.0)
    measured.append(100 * found[f"{factor} several"]["ratio"]["median"] / count)

# %%
sizes = [batch_size_per_device * k for k in (0.5, 1, 2, 4, 8, 16)]
work = (step_ms["several"] - exchange) / batch_size_per_device
for b, efficiency in zip((batch_size_per_device, large), measured):
    print(f"batch {b}: {efficiency:.0f} % measured, {100 / (1 + exchange / (work * b)):.0f} % expected")
lines(
    {
        "expected from the exchange alone": (sizes, [100 / (1 + exchange / (work * b)) for b in sizes]),
        "measured": ([batch_size_per_device, large], measured),
    },
    x="batch size on each device",
    y="efficiency, percent",
    log_x=True,
    markers=True,
    caption="Efficiency by batch size",
)

# %% [markdown]
# Where less is measured than expected, devices take something else from each other: memory, caches, the input.
#
# ## More devices are not always better
# Several devices make one batch together, so an epoch has fewer updates, as with a large batch (`06_large_batch`). More images a
# second buy nothing if they come to a lower accuracy. One epoch of the runs above, with the rate by the linear rule:

# %%
table(
    {
        "run": name,
        "updates": run.steps,
        "seconds of training": f"{run.elapsed_seconds[-1]:.1f}",
        "validation accuracy, percent": f"{100 * run.val_accuracy[-1]:.1f}",
    }
    for name, run in runs.items()
)

# %% [markdown]
# ## Why
# Each step pays for its exchange. So a step must be long for what it sends: large batches, and nets with much arithmetic for
# each weight. In a ring no connection has to be faster than the others; the one server's has to be n times as fast.

# %%
# Try this: a longer step, by a larger batch. What does the slow ring gain?
for milliseconds in (100.0, 200.0, 400.0):
    longer = gt.parallel.Parts(step_ms=[milliseconds], gradient_bytes=100e6, batch=64)
    seen = gt.parallel.expected(longer, 8, gt.parallel.Link(1.25), "ring")
    print(f"{milliseconds:g} ms: {100 * seen['efficiency']:.0f} % on 8 devices")

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `ring` in numpy | `engine="horovod"`, `"shared-memory"` | the same sums, between processes |
# | $\alpha$ and $\beta$ in a formula | `gt.parallel.expected`, `gluontune scale` | measures them here; names what bounds the efficiency |
# | `descend("asynchronous")` | `engine="async"`, `exchange_every` | real processes; the accuracy beside the speed |
#
# ## Summary: what to remember
# - The exchange depends on the net, the work on the batch: a larger batch hides the exchange.
# - A ring sends less than twice the gradient from each rank; one server gets n times the gradient; a tree begins fewer messages.
# - Efficiency rises with the batch, and the batch costs accuracy: compare the time to one accuracy.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
# A net has 25 million float32 weights. How many million bytes does each of 4 ranks send in a ring all-reduce?
check("ring-bytes", ...)

# %%
# A step takes 40 ms, and 10 of them are the exchange. With twice the batch, how many percent is the exchange?
check("exchange-share", ...)

# %%
# Write a function (parts, t): turn t of the first half of a ring. parts[r][k] is piece k of rank r, a numpy array. Each
# rank r sends its piece (r − t) mod n to rank r + 1 (the last one to the first), which adds it in place.
check("write-ring", ...)

# %% [markdown]
# **Reference:** `gt.parallel.expected?`, `gt.ladder.scale?` in a cell show what they take.
#
# **Next:** [`09_descent`](09_descent.ipynb) looks closer at the walk itself.
