"""A whole training in PyTorch: the work of the peer in ``gluontune tta --against-torch``.

A careful PyTorch script: the images decoded once and cached as uint8, each batch augmented as a whole,
channels_last and ``torch.compile`` where they pay, no weight decay on biases and BatchNorm. Net, images, order,
augmentation, loss, update and schedule are those of our recipe; the first weights are drawn as PyTorch's users do
(He et al., normal, fan out). MXNet's momentum contains the rate, PyTorch's does not: while the rate changes, NAG and
SGD differ slightly, as between any two such scripts. torch is imported by :func:`make`, in the peers' environment.
"""

from __future__ import annotations

import importlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

_QUINTIC = (3.4445, -4.7750, 2.0315)


def make(
    recipe: dict[str, Any], threads: int, channels_last: bool, compiled: bool, ranks: Ranks | None = None
) -> TorchRun:
    """Build the training from the fields of a recipe; rank 0 (without ``ranks``) starts the others."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    if ranks is None:
        how = {"recipe": recipe, "threads": threads, "channels_last": channels_last, "compiled": compiled}
        ranks = Ranks(torch, recipe["num_devices"], make, how)
    return TorchRun(torch, recipe, channels_last, compiled, ranks)


class TorchRun:
    """One seeded training, epoch by epoch, or one rank of it."""

    def __init__(self, torch: Any, recipe: dict[str, Any], channels_last: bool, compiled: bool, ranks: Ranks):
        from gluontune import datasets, loading
        from gluontune.loading.loaders import seeded_subset
        from gluontune.search.bench._torch_training import build

        self.torch, self.recipe, self.ranks = torch, recipe, ranks
        self.channels_last = channels_last
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
        self.scale = torch.tensor([1 / (255 * s) for s in data.std]).view(1, -1, 1, 1)
        self.shift = torch.tensor([-m / s for m, s in zip(data.mean, data.std)]).view(1, -1, 1, 1)
        self.loss = torch.nn.CrossEntropyLoss()
        torch.manual_seed(recipe["seed"])
        self.net = build(torch.nn, recipe["net"], shape[2], len(data.classes))
        for layer in self.net.modules():
            if isinstance(layer, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        if channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)
        self.start = {k: v.clone() for k, v in self.net.state_dict().items()}
        self.model = torch.compile(self.net) if compiled else self.net
        begin = time.perf_counter()
        self._reset()
        for _, (images, labels) in zip(range(2), self.train.epoch(0)):
            self._step(images, labels)
        self._reset()
        self.info: dict[str, Any] = {
            "versions": {"torch": torch.__version__}, "warmup_seconds": time.perf_counter() - begin,
            "batches_per_epoch": len(self.train), "parameters": sum(p.numel() for p in self.net.parameters()),
        }  # fmt: skip

    def _reset(self) -> None:
        from gluontune.optim import schedules
        from gluontune.optim.cards import scaled_learning_rate

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
        begin = time.perf_counter()
        self.net.eval()
        correct = total = 0
        with self.torch.no_grad():
            for images, labels in self.val.epoch(0):
                x, y = self._tensors(images, labels)
                correct += int((self.net(x).argmax(1) == y).sum())
                total += len(y)
        return {"accuracy": correct / total, "seconds": time.perf_counter() - begin}

    def close(self) -> None:
        self.ranks.close()


class TorchMuon:
    """Our ``muon``, layers of one shape at once; biases, gammas and betas by PyTorch's fused AdamW.

    ``torch.optim.Muon`` refuses the weights of convolutions. ``wd`` is for matrices only.
    """

    def __init__(self, torch: Any, parameters: list[Any], *, lr: float, wd: float, momentum: float):
        self.torch, self.wd, self.momentum = torch, wd, momentum
        vectors = [p for p in parameters if p.ndim <= 1]
        self.rest = torch.optim.AdamW(vectors, lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True)
        self.matrices = {"lr": lr}
        self.param_groups = [self.matrices, *self.rest.param_groups]
        self.by_shape: dict[tuple[int, int], list[Any]] = {}
        for p in parameters:
            if p.ndim > 1:
                self.by_shape.setdefault((p.shape[0], p.numel() // p.shape[0]), []).append(p)
        self.moments = {shape: torch.zeros(len(ps), *shape) for shape, ps in self.by_shape.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.rest.zero_grad(set_to_none=set_to_none)
        for layers in self.by_shape.values():
            for p in layers:
                p.grad = None

    def step(self) -> None:
        torch, rate = self.torch, self.matrices["lr"]
        with torch.no_grad():
            for shape, layers in self.by_shape.items():
                moment = self.moments[shape]
                grads = torch.stack([p.grad.reshape(shape) for p in layers])
                moment.mul_(self.momentum).add_(grads)
                turned = self._orthogonalized(grads.add_(moment, alpha=self.momentum))
                turned *= rate * 0.2 * math.sqrt(max(shape))
                torch._foreach_mul_(layers, 1 - rate * self.wd)
                torch._foreach_sub_(layers, [each.reshape(p.shape) for each, p in zip(turned, layers)])
        self.rest.step()

    def _orthogonalized(self, x: Any) -> Any:
        a, b, c = _QUINTIC
        tall = x.shape[1] > x.shape[2]
        x = x.mT if tall else x
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        for _ in range(5):
            gram = x @ x.mT
            x = self.torch.baddbmm(x, self.torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.mT if tall else x


class Ranks:
    """The ranks of one training, a process each, gradients averaged by gloo: rank 0's view, or a follower's.

    ``follow(ranks=…, **settings)`` builds a follower's work, with the methods of :meth:`call`. With one rank nothing is
    started or exchanged.
    """

    def __init__(
        self, torch: Any, size: int, follow: Callable[..., Any] | None = None, settings: dict[str, Any] | None = None,
        rank: int = 0, folder: str | None = None,
    ):  # fmt: skip
        self.torch, self.size, self.rank = torch, size, rank
        self.followers: list[Any] = []
        if size == 1:
            return
        self.folder = folder or tempfile.mkdtemp(prefix="gluontune-torch-")
        if rank == 0:
            processes = importlib.import_module("torch.multiprocessing").get_context("spawn")
            for number in range(1, size):
                arguments = (number, size, self.folder, os.getpid(), follow, settings or {})
                self.followers.append(processes.Process(target=_follow, args=arguments, daemon=True))
                self.followers[-1].start()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.dist = importlib.import_module("torch.distributed")
        self.dist.init_process_group("gloo", init_method=f"file://{self.folder}/meeting", rank=rank, world_size=size)

    def average(self, parameters: list[Any]) -> None:
        if self.size == 1:
            return
        grads = [p.grad for p in parameters]
        flat = self.torch.cat([g.reshape(-1) for g in grads])
        self.dist.all_reduce(flat)
        flat /= self.size
        parts = flat.split([g.numel() for g in grads])
        self.torch._foreach_copy_(grads, [part.view(g.shape) for part, g in zip(parts, grads)])

    def call(self, name: str, **arguments: Any) -> None:
        if self.size > 1:
            self.dist.broadcast_object_list([(name, arguments)], src=0)

    def receive(self) -> tuple[str, dict[str, Any]]:
        message: list[Any] = [None]
        self.dist.broadcast_object_list(message, src=0)
        return message[0]

    def close(self) -> None:
        for process in self.followers:
            process.kill()
            process.join()
        if self.followers:
            shutil.rmtree(self.folder, ignore_errors=True)


def _follow(
    rank: int, size: int, folder: str, parent: int, follow: Callable[..., Any], settings: dict[str, Any]
) -> None:
    importlib.import_module("gluontune.core.processes").die_with_parent(parent)
    ranks = Ranks(importlib.import_module("torch"), size, rank=rank, folder=folder)
    work = follow(ranks=ranks, **settings)
    while True:
        name, arguments = ranks.receive()
        getattr(work, name)(**arguments)
