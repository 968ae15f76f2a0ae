"""Campaigns against the assessment: honest scripts by dice, all graded for real, and ways to cheat it.

    python tests/trials/assess_trials.py honest --scripts 200 --seed 1
    python tests/trials/assess_trials.py cheats
    python tests/trials/assess_trials.py statistics --scripts 110 --seed 2

An honest script is refused where it is called dishonest (validation, samples, left behind, agreement), or reaches the
reference's accuracy (less five points, as ever) and fails by anything else. A cheat passes where every criterion but
steadiness holds. ``--first N --scripts 1`` repeats script N. The data are small, and the clock is not looked at.
``statistics``: accuracy of honest nets of two ranks with the means of their running statistics, and with those that the
grader measures again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil

from gluontune import runtime
from gluontune.course.assessment import Assessment, assess, assessing, examine as examining
from gluontune.course.assessment.assessing import SLACK
from gluontune.course.assessment.fresh import FreshTask, Scale
from gluontune.course.assessment.task import Task

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from assessments import SCALE, SCRIPT
from course_cheats import CHEATS
from honest_styles import STYLES, TWO, styled_script

FEW = replace(SCALE, val=400)  # for honest scripts: most of a grading is looking at validation images
GOAL = {"seconds": 1800.0, "accuracy": 0.75, "steadiness": 0.0}

# Honest scripts: what is drawn stands in braces.

HONEST = """
import numpy as np
import gluontune as gt
task = gt.course.task()
mx = gt.runtime.mxnet()
nn, random = mx.gluon.nn, np.random.default_rng({seed} + task.rank)
mx.random.seed({seed})
ranks = task.ranks

def load(split):
    pixels = np.stack([split.decode(i) for i in range(len(split))])
    return task.normalize(pixels), split.labels.astype("float32")

def conv(net, channels, **more):
    net.add(nn.Conv2D(channels, 3, padding=1, **more){norm}, nn.Activation("{act}"))

def build():
    net = nn.HybridSequential()
{net}
    net.add(nn.Dense(task.classes))
    net.initialize({init})
    {hybridize}
    net(mx.nd.array(images[:2]))
    return net

def augment(x):
{augment}
    return np.ascontiguousarray(x)

def accuracy(net, x, y):
    return float((net(mx.nd.array(x)).argmax(1).asnumpy() == y).mean())

images, labels = load(task.train)
looked, theirs = load(task.val)
{held}
epochs, batch, samples = {epochs}, {batch}, 0
loss_of = mx.gluon.loss.{loss}

def train(rate):
    global samples
    net = build()
    steps = epochs * max(1, len(images) // batch)
{trainer}
    best, kept = -1.0, None
    step = 0
    for epoch in range(epochs):
{feed}
            with mx.autograd.record():
                out = net(mx.nd.array(x))
                loss = loss_of(out, mx.nd.array(y))
            loss.backward()
            {turn}
            step += 1
            samples += len(x)
        {each}
    {end}
    return net

{choose}
task.save(net, samples)
"""

NETS = [
    ["net.add(nn.Flatten())", "net.add(nn.Dense({w}, activation='{act}'))"],
    ["net.add(nn.Flatten())", "net.add(nn.Dense({w}, activation='{act}'))", "net.add(nn.Dropout({p}))",
     "net.add(nn.Dense({w2}, activation='{act}'))"],
    ["net.add(nn.Flatten())", "net.add(nn.Dense({w}), nn.BatchNorm(), nn.Activation('{act}'))"],
    ["conv(net, {c})", "net.add(nn.MaxPool2D(2))", "conv(net, {c2})", "net.add(nn.MaxPool2D(2), nn.Flatten())"],
    ["conv(net, {c}, strides=2)", "conv(net, {c2}, strides=2)", "net.add(nn.Flatten(), nn.Dropout({p}))"],
    ["conv(net, {c})", "net.add(nn.AvgPool2D(4), nn.Flatten(), nn.Dense({w2}, activation='{act}'))"],
    ["conv(net, {c})", "conv(net, {c}, groups={g})", "net.add(nn.MaxPool2D(2))", "conv(net, {c2})",
     "net.add(nn.GlobalAvgPool2D())"],
    ["net.add(nn.Conv2D({c}, 4, strides=4), nn.Activation('{act}'))", "net.add(nn.Flatten())",
     "net.add(nn.Dense({w2}, activation='{act}'))"],
    ["net.add(nn.Flatten(), nn.LayerNorm())", "net.add(nn.Dense({w}, activation='{act}'))"],
]  # fmt: skip
AUGMENT = [
    ["pass"],
    ["pass"],
    ["x = x[:, :, :, ::-1] if random.random() < 0.5 else x"],
    ["x = x[:, :, ::-1] if random.random() < 0.5 else x"],
    ["x = np.roll(x, random.integers(-2, 3, 2), (2, 3))"],
    ["x = x + random.normal(0, 0.2, x.shape).astype('float32')"],
    ["x = x * random.uniform(0.7, 1.3, (len(x), 1, 1, 1)).astype('float32')"],
    ["x = x.copy()", "i, j = random.integers(0, 12, 2)", "x[:, :, i : i + 4, j : j + 4] = 0"],
    ["x = np.rot90(x, random.integers(0, 2) * 2, (2, 3))"],
    ["x = x + 0.3 * x[random.permutation(len(x))]"],
]
HELD = [
    "",
    "",
    "images, labels = images[: -len(images) // 10], labels[: -len(labels) // 10]",  # own validation images
    "images, labels = np.concatenate([images, images[:, :, :, ::-1]]), np.concatenate([labels, labels])",
    "order = labels.argsort(kind='stable')\nimages, labels = images[order], labels[order]",
    "images = (images - images.mean((0, 2, 3), keepdims=True)).astype('float32')",
]
EACH = [  # looks at the validation images, and chooses by them, as anybody may
    "pass",
    "accuracy(net, looked, theirs)",
    "seen, before = accuracy(net, looked, theirs), best\n        best = max(best, seen)\n"
    "        if epoch > 1 and seen < before - 0.1: break",
    "seen = accuracy(net, looked, theirs)\n"
    "        if seen > best: best, kept = seen, [p.data().copy() for p in net.collect_params().values()]",
    "if random.random() < 0.2: trainer.set_learning_rate(trainer.learning_rate / 2)",
]
LOADED = """        loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(images, labels), batch, shuffle=True,
                                          last_batch="{last}", num_workers={workers}{pool})
        for x, y in loader:
            x, y = augment(x.asnumpy()), y.asnumpy()"""
FEEDS = [
    """        order = random.permutation(len(images))
        for start in range(0, len(order) - batch + 1, batch):
            chosen = order[start : start + batch]
            x, y = augment(images[chosen]), labels[chosen]""",
    """        for _ in range(len(images) // batch):
            chosen = random.integers(0, len(images), batch)
            x, y = augment(images[chosen]), labels[chosen]""",
    """        start = int(random.integers(0, batch))
        for start in range(start, len(images) - batch + 1, batch):
            chosen = np.arange(start, start + batch)
            x, y = augment(images[chosen]), labels[chosen]""",
]
OPTIMIZERS = {
    "sgd": (0.005, 0.2, {}), "nag": (0.002, 0.1, {"momentum": 0.9}), "sgd2": (0.002, 0.05, {"momentum": 0.9}),
    "adam": (3e-4, 5e-3, {}), "rmsprop": (2e-4, 2e-3, {}), "adagrad": (0.01, 0.05, {}), "adamax": (5e-4, 5e-3, {}),
    "nadam": (3e-4, 2e-3, {}), "adadelta": (1.0, 1.0, {}), "signum": (1e-4, 1e-3, {}), "ftml": (5e-4, 5e-3, {}),
}  # fmt: skip


def honest_script(rng: random.Random, ranks: int) -> tuple[str, str]:
    """A script, and what was drawn for it."""
    pick, kind = rng.choice, rng.choice(list(OPTIMIZERS))
    batch = pick([16, 32, 32, 64, 100, 128])
    low, high, options = OPTIMIZERS[kind]
    rate = low * (high / low) ** rng.random()
    act = pick(["relu", "relu", "relu", "tanh", "softrelu", "sigmoid"])
    net = pick(NETS)
    sizes = {"w": pick([24, 64, 96, 200]), "w2": pick([16, 32, 64]), "c": pick([8, 12, 16, 24]),
             "c2": pick([16, 24, 32]), "g": pick([1, 2, 4]), "p": pick([0.1, 0.3, 0.5]), "act": act}  # fmt: skip
    wd = pick([0.0, 0.0, 1e-4, 5e-4, 5e-3])
    ours = ranks > 1 or (kind == "sgd" and rng.random() < 0.5)
    kind = pick(["sgd", "nag", "adam"]) if ranks > 1 else kind
    if ours:
        low, high, options = OPTIMIZERS[kind]
        rate = low * (high / low) ** rng.random()
        plan = f", schedule=lambda n: {rate} * (1 - n / (steps + 1))" if rng.random() < 0.5 else ""
        trainer = (
            f"    trainer = gt.optim.setup('{kind}', net, learning_rate=rate, global_batch_size=batch * ranks,\n"
            f"        wd={wd}, kvstore=mx.kv.create('dist_sync') if ranks > 1 else None{plan}"
            f"{''.join(f', {k}={v}' for k, v in options.items())})"
        )
    else:
        options = {"wd": wd, **options}
        trainer = (
            f"    trainer = mx.gluon.Trainer(net.collect_params(), '{kind.rstrip('2')}', "
            f"dict(learning_rate=rate, **{options!r}))"
        )
    feed = rng.randrange(4) if ranks == 1 else rng.randrange(2)
    workers = pick([0, 0, 1, 2])
    loaded = LOADED.format(last=pick(["discard", "keep"]), workers=workers, pool=pick(["", ", thread_pool=True"]))
    each = pick(EACH) if ranks == 1 else EACH[rng.randrange(2)]
    two = ranks == 1 and rng.random() < 0.15
    rounded = f"{rate:.2e}"
    drawn = {
        "seed": rng.randrange(1 << 30), "act": act, "norm": pick(["", ", nn.BatchNorm()"]),
        "net": "\n".join("    " + line.format(**sizes) for line in net), "batch": batch,
        "init": pick(["mx.init.Xavier()", "mx.init.Xavier()", "mx.init.MSRAPrelu()", "mx.init.Normal(0.05)"]),
        "hybridize": pick(["pass", "net.hybridize()", "net.hybridize(static_alloc=True, static_shape=True)"]),
        "augment": "\n".join("    " + line for line in pick(AUGMENT)), "held": pick(HELD) if ranks == 1 else "",
        "epochs": pick([4, 5, 6, 8, 12]), "loss": "SoftmaxCrossEntropyLoss()",
        "trainer": trainer, "feed": FEEDS[feed] if feed < 3 else loaded,
        "turn": "trainer.step()" if ours else "trainer.step(len(x))", "each": each,
        "end": "if kept is not None: [p.set_data(k) for p, k in zip(net.collect_params().values(), kept)]",
        "choose": f"nets = [train({rounded}), train({rounded} / 3)]\n"
        "net = max(nets, key=lambda net: accuracy(net, looked, theirs))" if two else f"net = train({rounded})",
    }  # fmt: skip
    said = f"net {NETS.index(net)}{drawn['norm'] and ' BN'}, {act}, {kind} {rounded}, batch {batch}"
    return HONEST.format(**drawn), f"{said}, {drawn['epochs']} epochs, {ranks} ranks"


@contextlib.contextmanager
def _graded(
    text: str, ranks: int, secret: int, examine_s: float = 300.0, goal: float = 0.75, scale: Scale = SCALE
) -> Iterator[tuple[Assessment, Path]]:
    place = Path(tempfile.mkdtemp(prefix="gt-"))  # short: sockets of a loader's workers lie below it
    try:
        path = place / "script.py"
        path.write_text(text)
        with (
            mock.patch.object(assessing, "FreshTask", lambda scale: FreshTask(scale, secret=secret)),
            mock.patch.object(examining, "_SECONDS", examine_s),
            mock.patch.object(tempfile, "tempdir", str(place)),
        ):
            yield assess(
                path, ranks=ranks, out=place / "out", scale=scale, settings="as-installed", memory_mib=4000,
                reference={count: {**GOAL, "accuracy": goal} for count in "12"},
            ), place  # fmt: skip
    finally:
        shutil.rmtree(place, ignore_errors=True)


def left_running(place: Path) -> list[str]:
    """Processes that have to do with a trial."""
    mark, found = str(place), []
    for process in psutil.process_iter(["cmdline", "pid"]):
        with contextlib.suppress(psutil.Error, OSError):
            said = " ".join(process.info["cmdline"] or ())
            where = os.readlink(f"/proc/{process.pid}/cwd")
            if mark in said or mark in where:
                found.append(said or str(process.pid))
    return found


def honest(scripts: int, seed: int, first: int) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "honest", "seed": seed, "reference": 0.0, "scripts": 0, "two_ranks": 0,
                             "learned": 0, "too_little": 0, "failed": 0, "refused": 0, "left": 0,
                             "least_validation_chance": 1.0}  # fmt: skip
    with _graded(assessing.solution().read_text(), 1, seed, scale=FEW) as (result, _):
        found["reference"] = goal = result.parts[0].accuracy or 0.0
    for number in range(first, first + scripts):
        rng = random.Random(f"honest {seed} {number}")
        ranks = 2 if number % 10 == 9 else 1
        styles = TWO if ranks == 2 else tuple(STYLES)
        if number % 3 == 0:
            text, drawn = honest_script(rng, ranks)
        else:
            text, drawn = styled_script(rng, rng.choice(styles))
        with _graded(text, ranks, rng.randrange(1 << 60), goal=goal, scale=FEW) as (result, place):
            (part,), left = result.parts, left_running(place)
        lost = {c.name: c.feedback for c in part.criteria if not c.passed and c.name != "steadiness"}
        chance = part.traces.get("val", (0, 1.0))[1]
        found["scripts"] += 1
        found["two_ranks"] += ranks == 2
        found["left"] += bool(left)
        found["least_validation_chance"] = min(found["least_validation_chance"], chance)
        reached = part.accuracy is not None and "accuracy" not in lost
        found["learned" if reached else "failed" if "end" in lost or part.accuracy is None else "too_little"] += 1
        unjust = set(lost) if reached else set(lost) & {"validation", "left behind", "samples", "agreement"}
        found["refused"] += bool(unjust) and part.accuracy is not None
        line = {
            "number": number,
            "drawn": drawn,
            "accuracy": part.accuracy,
            "chance": float(f"{chance:.1e}"),
            "lost": lost,
        }
        print(json.dumps(line), file=sys.stderr, flush=True)
    return found


def cheats(names: list[str], seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "cheats", "cheats": 0, "passed": 0, "left": 0, "let_pass": 0}
    for name in names:
        cheat = {"ranks": 1, "data": "", "before": "", "after": "", **CHEATS[name]}
        ranks, text = (
            cheat["ranks"],
            cheat.get("text") or SCRIPT.format(**{k: cheat[k] for k in ("data", "before", "after")}),
        )
        with _graded(text, ranks, 4 + seed, cheat.get("seconds", 300.0)) as (result, place):
            (part,), left = result.parts, left_running(place)
        lost = {c.name: c.feedback for c in part.criteria if not c.passed and c.name != "steadiness"}
        found["cheats"] += "may" not in cheat
        found["let_pass"] += "may" in cheat and part.passed
        found["passed"] += "may" not in cheat and part.passed
        found["left"] += bool(left)
        traces = {key: float(f"{value[1]:.1e}") for key, value in part.traces.items()}
        line = {
            "cheat": name,
            "passed": part.passed,
            "accuracy": part.accuracy,
            "traces": traces,
            "lost": lost,
            "left": left,
        }
        print(json.dumps(line), file=sys.stderr, flush=True)
    return found


def normalized(rng: random.Random) -> tuple[Any, str]:
    """A net with BatchNorm, and what was drawn for it."""
    nn = runtime.mxnet().gluon.nn
    net, kind = nn.HybridSequential(), rng.randrange(5)
    momentum, act = rng.choice([0.0, 0.5, 0.8, 0.9, 0.9, 0.9, 0.99]), rng.choice(["relu", "relu", "tanh"])

    def turn(*layers: Any, **options: Any) -> None:
        net.add(*layers, nn.BatchNorm(momentum=momentum, **options), nn.Activation(act))

    if kind == 0:
        turn(nn.Flatten(), nn.Dense(96))
    elif kind == 1:
        for width in (12, 24, 48):
            turn(nn.Conv2D(width, 3, padding=1))
            net.add(nn.MaxPool2D(2))
        net.add(nn.Flatten(), nn.Dense(48, activation=act), nn.Dropout(0.3))
    elif kind == 2:
        net.add(nn.BatchNorm(momentum=momentum, scale=False, center=False), nn.Conv2D(16, 3, padding=1),
                nn.Activation(act), nn.BatchNorm(momentum=momentum), nn.MaxPool2D(2), nn.Dropout(0.2))  # fmt: skip
        turn(nn.Conv2D(24, 3, padding=1))
        net.add(nn.GlobalAvgPool2D(), nn.Flatten())
    elif kind == 3:
        net.add(nn.Flatten(), nn.Dense(128, activation=act), nn.BatchNorm(momentum=momentum, epsilon=1e-3))
        turn(nn.Dropout(0.4), nn.Dense(64))
    if kind < 4:
        net.add(nn.Dense(SCALE.classes))
    else:
        from gluoncv.model_zoo import get_model

        net = get_model(rng.choice(["cifar_resnet20_v1", "cifar_resnet20_v2"]), classes=SCALE.classes)
    return net, f"kind {kind} momentum {momentum} {act}"


def joined_net(rng: random.Random, place: Path) -> dict[str, Any]:
    """A net of two ranks, trained in this process with the sums of their gradients: its accuracies."""
    mx = runtime.mxnet()
    mx.random.seed(rng.randrange(1 << 30))
    random, task = np.random.default_rng(rng.randrange(1 << 30)), FreshTask(SCALE, secret=rng.randrange(1 << 60))
    facts = task.write(place, 2)
    tasks = [Task.of(facts, place / f"rank-{rank}", place / f"out-{rank}", rank, 2) for rank in range(2)]
    data = [(one.normalize(np.stack([one.train.decode(i) for i in range(len(one.train))])),
             one.train.labels.astype("float32")) for one in tasks]  # fmt: skip
    net, drawn = normalized(rng)
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(data[0][0][:2]))
    net.hybridize()
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
    counted = [p for p in net.collect_params().values() if p.grad_req == "null"]
    own = [[p.data().copy() for p in counted] for _ in tasks]
    batch, rate = rng.choice([8, 16, 32, 64]), rng.choice([0.005, 0.01, 0.03])
    epochs, augment = rng.choice([1, 2, 3, 4]), rng.choice([0, 0, 1, 2])
    epochs = min(epochs, 2) if "kind 4" in drawn else epochs
    options = {"learning_rate": rate, "momentum": 0.9}
    trainer = mx.gluon.Trainer(net.collect_params(), rng.choice(["sgd", "nag"]), options)
    for p in trained:
        p.grad_req = "add"
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(epochs):
        orders = [random.permutation(len(images)) for images, _ in data]
        for start in range(0, len(orders[0]) - batch + 1, batch):
            for p in trained:
                p.zero_grad()
            for rank, (images, labels) in enumerate(data):
                for p, values in zip(counted, own[rank]):
                    p.set_data(values)
                chosen = orders[rank][start : start + batch]
                x = images[chosen]
                if augment == 1:
                    x = x[:, :, :, ::-1].copy() if random.random() < 0.5 else x
                if augment == 2:
                    x = (x + 0.3 * random.standard_normal(x.shape)).astype("float32")
                with mx.autograd.record():
                    loss = loss_of(net(mx.nd.array(x)), mx.nd.array(labels[chosen]))
                loss.backward()
                mx.nd.waitall()
                own[rank] = [p.data().copy() for p in counted]
            trainer.step(2 * batch)
    probe = task.test()

    def accuracy(some: Any) -> float:
        return float((examining._predict(some, probe.images, facts).argmax(1) == probe.labels).mean())

    found: dict[str, Any] = {"drawn": f"{drawn} batch {batch} rate {rate} epochs {epochs} augment {augment}"}
    for rank, one in enumerate(tasks):
        for p, values in zip(counted, own[rank]):
            p.set_data(values)
        one.save(net, 1)
    for p, *both in zip(counted, *own):
        p.set_data((both[0] + both[1]) / 2)
    found["means"] = accuracy(net)
    held, found["difference"] = examining._joined([one.out for one in tasks], probe.images, facts)
    found["measured"] = accuracy(examining._net(tasks[0].out, held[0]))
    return found


def statistics(nets: int, seed: int, first: int) -> dict[str, Any]:
    rows = []
    for number in range(first, first + nets):
        with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as back:
            back.callback(os.chdir, os.getcwd())
            os.chdir(place)
            rows.append(joined_net(random.Random(f"{seed} {number}"), Path(place)))
        print(json.dumps({"number": number, **rows[-1]}), file=sys.stderr, flush=True)
    gained = [row["measured"] - row["means"] for row in rows]
    refused = sum(row["difference"] > 0 or gain < -SLACK for row, gain in zip(rows, gained))
    return {"kind": "statistics", "seed": seed, "nets": nets, "mean_gain": float(np.mean(gained)),
            "least_gain": min(gained), "refused": refused, "left": 0}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=["honest", "cheats", "statistics"])
    parser.add_argument("--scripts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="cheats whose names hold this")
    given = parser.parse_args()
    if given.kind != "cheats":
        found = {"honest": honest, "statistics": statistics}[given.kind](given.scripts, given.seed, given.first)
    else:
        found = cheats([name for name in CHEATS if given.only in name][given.first :], given.seed)
    print(json.dumps(found, indent=2))
    return int(bool(found.get("refused", 0) + found.get("passed", 0) + found["left"]))


if __name__ == "__main__":
    sys.exit(main())
