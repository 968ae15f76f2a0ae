"""A whole training in PyTorch: the work of the peer in ``gluontune tta --against-torch``.

What a careful PyTorch script does: the images decoded once and kept as uint8, each batch augmented in one go,
channels_last and ``torch.compile`` where they pay, gradients set to None, no weight decay on biases and
BatchNorm. Net, images, order, augmentation, loss, update and schedule are those of our own recipe; the first
weights are drawn as PyTorch's users draw them (He et al., normal, fan out). MXNet's momentum contains the rate,
PyTorch's does not: while the rate changes, NAG and SGD differ slightly, as they do between two such scripts.
torch is imported when it is made, in the peers' environment.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from typing import Any

from gluontune.bench._torch_muon import TorchMuon
from gluontune.bench._torch_ranks import Ranks

__all__ = ["make"]


def make(
    recipe: dict[str, Any], threads: int, channels_last: bool, compiled: bool, ranks: Ranks | None = None
) -> TorchRun:
    """Called in the process.

    Args:
        recipe: fields of a Recipe: data set, net, batch, optimizer's settings, epochs, seed, dtype, ranks.
        threads: of torch's operators, in a rank. channels_last, compiled: how the net runs.
        ranks: of a follower; None makes rank 0, which starts the others.
    """
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    if ranks is None:
        how = {"recipe": recipe, "threads": threads, "channels_last": channels_last, "compiled": compiled}
        ranks = Ranks(torch, recipe["num_devices"], make, how)
    return TorchRun(torch, recipe, channels_last, compiled, ranks)


class TorchRun:
    """One seeded training, epoch by epoch, or a rank's part of it."""

    def __init__(self, torch: Any, recipe: dict[str, Any], channels_last: bool, compiled: bool, ranks: Ranks):
        from gluontune import datasets, loading
        from gluontune.bench._torch_training import build
        from gluontune.loading.splits import seeded_subset

        self.torch, self.recipe, self.ranks = torch, recipe, ranks
        self.channels_last, self.compiled = channels_last, compiled
        data = datasets.open(recipe["dataset"])
        shape, self.batch_size = data.image_shape, recipe["batch_size_per_device"]
        train = seeded_subset(data.train, recipe["train_samples"], recipe["seed"])
        val = seeded_subset(data.test, recipe["val_samples"], recipe["seed"])
        assert shape is not None  # the recipe's data set has images of one size
        common: dict[str, Any] = {"batch_size": self.batch_size, "image_shape": shape}
        self.train = loading.build(
            "resident", train, augment=recipe["augment"] or data.augment, shuffle=True, seed=recipe["seed"],
            last_batch=recipe["last_batch"], rank=ranks.rank, world_size=ranks.size, partition=recipe["partition"],
            **common,
        )  # fmt: skip
        self.val = loading.build("resident", val, augment="none", last_batch="keep", **common)
        scale = [1 / (255 * s) for s in data.std]
        self.scale = torch.tensor(scale).view(1, -1, 1, 1)
        self.shift = torch.tensor([-m / s for m, s in zip(data.mean, data.std)]).view(1, -1, 1, 1)
        self.loss = torch.nn.CrossEntropyLoss()
        torch.manual_seed(recipe["seed"])
        self.net = build(torch.nn, recipe["net"], shape[2], len(data.classes))
        self._draw()
        if channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)
        self.start = {k: v.clone() for k, v in self.net.state_dict().items()}
        self.model = torch.compile(self.net) if compiled else self.net
        begin = time.perf_counter()
        self._reset()
        for images, labels in self._first(2):
            self._step(images, labels)
        self._reset()
        self.info: dict[str, Any] = {
            "versions": {"torch": torch.__version__},
            "warmup_seconds": time.perf_counter() - begin,
            "batches_per_epoch": len(self.train),
            "parameters": sum(p.numel() for p in self.net.parameters()),
        }

    def _draw(self) -> None:
        init, nn = self.torch.nn.init, self.torch.nn
        for layer in self.net.modules():
            if isinstance(layer, nn.Conv2d):
                init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def _reset(self) -> None:
        """Back to the seeded start; the compiled code stays."""
        from gluontune.optim import schedules
        from gluontune.optim.scaling import scaled_learning_rate

        torch, recipe = self.torch, self.recipe
        self.net.load_state_dict(self.start)
        total = max(1, round(recipe["epochs"] * len(self.train)))
        peak = scaled_learning_rate(
            recipe["learning_rate"], global_batch_size=self.batch_size * self.ranks.size,
            base_batch_size=recipe["base_batch_size"], rule=recipe["lr_scaling"],
        )  # fmt: skip
        warmup = round(recipe["warmup_epochs"] * len(self.train))
        self.rate = schedules.build(recipe["schedule"], base_lr=peak, total_updates=total, warmup_updates=warmup)
        self.parameters = parameters = list(self.net.parameters())
        wd, momentum = recipe["wd"], recipe["momentum"]
        if recipe["optimizer"] == "muon":
            self.update: Any = TorchMuon(torch, parameters, lr=peak, wd=wd, momentum=momentum)
        else:
            groups = [
                {"params": [p for p in parameters if p.ndim > 1], "weight_decay": wd},
                {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
            ]
            nesterov = recipe["optimizer"] == "nag"
            self.update = torch.optim.SGD(groups, lr=peak, momentum=momentum, nesterov=nesterov)
        self.updates, self.epoch = 0, 0

    def _first(self, count: int) -> Iterator[tuple[Any, Any]]:
        for number, batch in enumerate(self.train.epoch(0)):
            if number == count:
                return
            yield batch

    def _tensors(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """uint8 (N, H, W, C) of numpy as normalized float32 (N, C, H, W)."""
        torch = self.torch
        x = torch.from_numpy(images).permute(0, 3, 1, 2)  # channels_last as it lies
        x = torch.addcmul(self.shift, x.float(), self.scale)
        if not self.channels_last:
            x = x.contiguous()
        return x, torch.from_numpy(labels).long()

    def _step(self, images: Any, labels: Any) -> Any:
        torch = self.torch
        self.updates += 1
        for group in self.update.param_groups:
            group["lr"] = self.rate(self.updates)
        x, y = self._tensors(images, labels)
        self.update.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe["dtype"] == "bfloat16"):
            value = self.loss(self.model(x), y)
        value.backward()
        self.ranks.average(self.parameters)
        self.update.step()
        return value.detach()

    def train_epoch(self, steps: int) -> dict[str, float]:
        """The next ``steps`` steps of the next epoch, by all ranks: ``{"seconds", "loss", "samples", "steps"}``."""
        if self.ranks.rank == 0:
            self.ranks.call("train_epoch", steps=steps)
        self.net.train()
        losses = []
        begin = time.perf_counter()
        for number, (images, labels) in enumerate(self.train.epoch(self.epoch)):
            if number == steps:
                break
            losses.append(self._step(images, labels))
        loss = float(self.torch.stack(losses).mean())
        seconds = time.perf_counter() - begin
        self.epoch += 1
        samples = len(losses) * self.batch_size * self.ranks.size
        return {"seconds": seconds, "loss": loss, "samples": samples, "steps": len(losses)}

    def validate(self) -> dict[str, float]:
        """Top-1 accuracy over the validation images, and how long that took."""
        torch = self.torch
        begin = time.perf_counter()
        self.net.eval()
        correct = total = 0
        with torch.no_grad():
            for images, labels in self.val.epoch(0):
                x, y = self._tensors(images, labels)
                correct += int((self.net(x).argmax(1) == y).sum())
                total += len(y)
        return {"accuracy": correct / total, "seconds": time.perf_counter() - begin}

    def close(self) -> None:
        """End the other ranks."""
        self.ranks.close()
