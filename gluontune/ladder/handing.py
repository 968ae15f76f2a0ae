"""What a climb leaves in the user's hand: ``best.yaml``, and ``best.py``, a plain script with the kept changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gluontune import runtime
from gluontune.files import atomic_write
from gluontune.ladder.revisiting import AGAIN
from gluontune.recipe import Recipe

__all__ = ["best_script", "best_yaml", "hand_over"]

#: Of the climb, not of the job: a quick climb's one epoch of the sample must not become somebody's recipe.
_OF_THE_CLIMB = ("train_samples", "val_samples", "seconds", "target_accuracy")


def hand_over(document: Mapping[str, Any], folder: Path) -> dict[str, str | None]:
    """Write ``best.yaml``, and ``best.py`` where a script of one process can be written.

    Returns:
        ``{"yaml", "script"}``: names of the files, and ``"reason"`` where there is no script.
    """
    best = Recipe.from_dict(document["best"]["recipe"])
    with atomic_write(folder / "best.yaml") as file:
        file.write(best_yaml(document).encode("utf-8"))
    reason = _no_script(best)
    if reason is None:
        with atomic_write(folder / "best.py") as file:
            file.write(best_script(document).encode("utf-8"))
    return {"yaml": "best.yaml", "script": None if reason else "best.py", "reason": reason}


def _no_script(best: Recipe) -> str | None:
    if best.engine != "local" or best.num_devices > 1:
        return "several processes: gluontune launch starts them"
    if best.job is not None:
        return "the net and the data are those of the job: gluontune train --recipe best.yaml trains it"
    if best.net in ("mlp", "small_cnn", "softmax") or best.net.startswith("sigmoid_"):
        return "its net is one of gluontune's own small ones"
    if best.dtype == "float16" or best.stochastic_depth or best.accumulate > 1:
        return "its training step needs more than a plain script"
    return None


def changed_fields(document: Mapping[str, Any]) -> dict[str, str]:
    """Each field that the climb changed, with what its rung brought here."""
    said: dict[str, str] = {}
    for row in document["rungs"]:
        if not row["kept"] or row["name"] == "naive":
            continue
        by_time = (row.get("seconds_to_accuracy") or {}).get("ratio")
        ratio = by_time or row["ratio_to_previous"]
        what = "less time to the accuracy" if by_time else "the speed"
        told = f"{row['name']}: {ratio['median']:.2f}x {what} here" if ratio else row["name"]
        said.update(dict.fromkeys(row["changes"], told))
    for answer in document.get("revisited") or ():
        if answer["adopted"] and answer["kind"] == AGAIN:
            told = f"{answer['rung']}: {answer['ratio']['median']:.2f}x the speed here, on top of the rest"
            said.update(dict.fromkeys(answer["changes"], told))
        elif answer["adopted"]:
            for field in answer["changes"]:
                said.pop(field, None)
    return said


def best_yaml(document: Mapping[str, Any]) -> str:
    """The recipe that won, with what each change brought; fields of the climb itself are left out, and that is said."""
    best, base = Recipe.from_dict(document["best"]["recipe"]), Recipe.from_dict(document["base_recipe"])
    naive = next(
        (Recipe.from_dict(r["recipe"]) for r in document["rungs"] if r["name"] == "naive" and r["recipe"]),
        base,
    )
    said, usual = changed_fields(document), Recipe()
    lines = [
        "# What gluontune ladder found fastest on this machine. Train with it: gluontune train --recipe best.yaml",
        f"# The climb trained {naive.epochs:g} epoch(s) of {document['dataset']['name']}; its length is left out:"
        " give yours by --epochs.",
    ]
    for name, value in best.to_dict().items():
        if name in _OF_THE_CLIMB or (name == "dataset" and value == "sample" and best.job is None):
            continue
        if name == "epochs":
            if value != naive.epochs:
                share = value / naive.epochs
                lines.append(
                    f"# Its epochs were {share:.2f} of the naive script's: {said.get(name, 'large-batch')}"
                )
                lines.append(f"epochs: {round(share * base.epochs, 3):g}")
            continue
        if name in said or value != usual.to_dict()[name]:
            plain = yaml.safe_dump(value, default_flow_style=True, width=10_000).replace("\n...", "").strip()
            lines.append(f"{name}: {plain}  # {said[name]}" if name in said else f"{name}: {plain}")
    return "\n".join(lines) + "\n"


def best_script(document: Mapping[str, Any]) -> str:
    """A Gluon training script of the best recipe: pieces of gluontune, none of its training loop."""
    best = Recipe.from_dict(document["best"]["recipe"]).resolved()
    said = changed_fields(document)
    env = runtime.applied(runtime.child_env(best.runtime, best.env, processes=1))

    def why(*names: str) -> str:
        told = dict.fromkeys(said[name] for name in names if name in said)
        return f"  # {'; '.join(told)}" if told else ""

    values = {
        "environment": "".join(f'    "{k}": "{v}",\n' for k, v in sorted(env.items())),
        "why_environment": why("runtime", "env"),
        "dataset": repr(best.dataset),
        "loader": repr(best.loader),
        "workers": best.num_workers,
        "prefetch": best.prefetch,
        "why_loader": why("loader", "num_workers"),
        "batch": best.batch_size_per_device,
        "why_batch": why("batch_size_per_device"),
        "augment": repr(best.augment) if best.augment else "data.augment",
        "net": repr(best.net),
        "epochs": repr(best.epochs),
        "why_epochs": why("epochs"),
        "dtype": repr(best.dtype),
        "why_dtype": why("dtype"),
        "rewrites": repr(list(best.rewrites)),
        "mode": repr(best.hybridize),
        "why_mode": why("hybridize", "rewrites"),
        "optimizer": repr(best.optimizer),
        "why_optimizer": why("optimizer"),
        "rate": best.learning_rate,
        "base": best.base_batch_size,
        "scaling": repr(best.lr_scaling),
        "momentum": best.momentum,
        "wd": best.wd,
        "schedule": repr(best.schedule),
        "warmup": best.warmup_epochs,
        "seed": best.seed,
        "last_batch": repr(best.last_batch),
        "parameters": "".join(f", {k}={v!r}" for k, v in best.optimizer_params.items()),
        "schedule_params": repr(dict(best.schedule_params)),
        "clip": repr(best.clip_global_norm),
    }
    return _SCRIPT.format(**values)


_SCRIPT = '''"""The training that gluontune ladder found fastest on this machine. Change it as you like."""

import os
import random
import sys
import time

# Read when the process starts, so it starts itself again with them.{why_environment}
ENVIRONMENT = {{
{environment}}}
if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
    os.environ.update(ENVIRONMENT)
    os.execv(sys.executable, [sys.executable, *sys.argv])

import numpy as np

import gluontune as gt

mx = gt.runtime.mxnet()
EPOCHS = float(sys.argv[1]) if len(sys.argv) > 1 else {epochs}{why_epochs}
BATCH = {batch}{why_batch}
ctx = mx.gpu() if mx.context.num_gpus() else mx.cpu()
gt.compute.start_process({dtype}, ctx.device_type){why_dtype}


def seed():
    random.seed({seed})
    np.random.seed({seed})
    mx.random.seed({seed})


seed()
data = gt.datasets.open({dataset})
shape = data.image_shape
common = dict(
    batch_size=BATCH, image_shape=shape, num_workers={workers}, prefetch={prefetch}, mean=data.mean, std=data.std
)
train = gt.loading.build(
    {loader}, data.train, augment={augment}, shuffle=True, seed={seed}, last_batch={last_batch}, **common
){why_loader}
val = gt.loading.build({loader}, data.test, augment="none", last_batch="keep", **common)

try:  # put your own net here
    from gluoncv.model_zoo import get_model
except ImportError:
    from mxnet.gluon.model_zoo.vision import get_model

net = get_model({net}, classes=len(data.classes))
seed()
net.initialize(mx.init.Xavier(magnitude=2), ctx=ctx)
sample = mx.nd.zeros((2, shape[2], shape[0], shape[1]), ctx=ctx)
net(sample)
gt.compute.apply_rewrites(net, {rewrites}, sample){why_mode}
gt.compute.set_mode(net, {mode})
if train.yields == "uint8-nhwc":  # the pixels are normalized inside the graph
    net = gt.compute.with_input_stage(net, gt.compute.InputStage(data.mean, data.std))
    gt.compute.set_mode(net, {mode})

steps = max(1, round(EPOCHS * len(train)))
trainer = gt.optim.setup(
    {optimizer}, net, learning_rate={rate}, global_batch_size=BATCH, base_batch_size={base}, lr_scaling={scaling},
    schedule={schedule}, schedule_params={schedule_params}, total_updates=steps,
    warmup_updates=round({warmup} * len(train)), momentum={momentum}, wd={wd}, clip_global_norm={clip}{parameters},
){why_optimizer}
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()


def accuracy():
    right = total = 0
    for images, labels in val.epoch(0):
        x, y = gt.loading.to_device(images, labels, ctx)
        right += int((net(x).astype("float32").argmax(axis=1) == y).sum().asscalar())
        total += len(labels)
    return right / total


seed()
done, epoch, seconds = 0, 0, 0.0
while done < steps:
    start = time.perf_counter()
    for images, labels in train.epoch(epoch):
        x, y = gt.loading.to_device(images, labels, ctx)
        with mx.autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step(BATCH)
        done += 1
        if done == steps:
            break
    mx.nd.waitall()
    seconds += time.perf_counter() - start
    epoch += 1
    speed = done * BATCH / seconds
    print(f"epoch {{epoch}}: {{speed:,.0f}} img/s, accuracy {{100 * accuracy():.1f}} %, {{seconds:.1f}} s", flush=True)
net.save_parameters("best.params")
'''
