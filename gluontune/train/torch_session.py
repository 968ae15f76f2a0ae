"""The training process on PyTorch's engine: the same commands as :class:`gluontune.train.session.Session`, no mxnet.

The net comes from MXNet as a graph with the parameters of the seeded start (:mod:`gluontune.train.torch_export`), the
images from gluontune's loaders, the optimizer from its card. So a recipe with ``backend="torch"`` means what it means
with ``"mxnet"``: the same start, batches, rates and decay, and the same figures but for rounding.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gluontune import __version__, bridge, datasets, monitor
from gluontune.bridge.names import gluon_names
from gluontune.bridge.passes import quicken
from gluontune.errors import GluontuneError, UsageError
from gluontune.optim.torch_optimizer import TorchOptimizer, rates_of
from gluontune.reading import understood
from gluontune.runtime import usable_cores
from gluontune.runtime.pytorch import torch
from gluontune.train.base_session import SAMPLED_EVERY, BaseSession
from gluontune.train.checkpoint import read
from gluontune.train.feed import Feed, named_loaders
from gluontune.train.method_steps import MethodSteps
from gluontune.train.metrics import finite
from gluontune.train.torch_ranks import TorchRanks
from gluontune.train.torch_sharing import exported_once
from gluontune.train.torch_snapshot import capture, restore

__all__ = ["TorchSession"]


class TorchSession(BaseSession):
    """One training process on PyTorch's engine.

    ``rejoins`` of :class:`BaseSession` has no meaning here.

    Attributes:
        net, loss: ``torch.fx`` modules; the net's parameters have Gluon's names. run: the net as it is called.
    """

    def build(self, opened: Callable[[], None] | None = None) -> None:
        """Export the net, open the data, convert the net: all that comes before the first step."""
        recipe = self.recipe
        with ThreadPoolExecutor(1) as waiting:  # both take seconds; the export is another process
            self.phase = "importing PyTorch"
            export = waiting.submit(exported_once, recipe, self.rank, self.world)
            library = self.torch = torch()
            self.phase = "exporting the net from MXNet"
            self.job = export.result()
        self.phase = "finding the devices"
        self.device = _device(library, recipe.devices)
        if self.device == "gpu":
            library.cuda.set_device(self.local_rank)
        if self.device == "cpu":
            library.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or usable_cores()))
        self.phase = "opening the data"
        data = datasets.open(self.job.data)
        where = {"framework": "torch", "normalize": True, "device": "cuda" if self.device == "gpu" else None}
        size = recipe.batch_size_per_device
        train, val, num_train, shape = named_loaders(recipe, data, self.rank, self.world, size, **where)
        self.feed = Feed(train, val, None, size, num_train, shape)
        self.batches_per_epoch = len(train)
        self._check_batches(num_train, size)
        self.samples_per_step = size
        if opened is not None:
            opened()
        self.phase = "meeting the other ranks"
        self.ranks = TorchRanks(library, self.rank, self.world, self.device == "gpu")
        self.phase = "building the net"
        self.net = bridge.to_torch(self.job.net, self.job.arrays, training=self.job.training)
        self.job = self.job.renamed(gluon_names(self.net))
        quicken(self.net)
        self.loss = bridge.to_torch(self.job.loss, {})
        self._place()
        self.methods = MethodSteps(recipe, self.rank, self._live, self._put)
        there = dict(self.net.named_parameters())
        layers = [[there[name] for name in layer] for layer in self.job.layers]
        self.methods.attach(train.loader, data.mean, layers, library.nn.Parameter.requires_grad_)
        self._training_loss = self.methods.training_loss(
            self.loss, lambda output, axis: library.log_softmax(output, axis), self.job.axis
        )
        self.phases = monitor.StepPhases(sync=self._sync, every=SAMPLED_EVERY)
        self._initial = {name: value.detach().clone() for name, value in self.net.state_dict().items()}
        self.phase = "trying one batch"
        self._try_one_batch()
        self.reset()

    def _place(self) -> None:
        """The net on its device, in the memory order and the mode that the recipe asks for."""
        library, recipe = self.torch, self.recipe
        for name, parameter in self.net.named_parameters():
            if name in self.job.frozen:
                parameter.requires_grad_(False)
        if self.device == "gpu":
            self.net, self.loss = self.net.cuda(), self.loss.cuda()
        if recipe.hybridize != "imperative":
            self.net = self.net.to(memory_format=library.channels_last)
        self.run = library.compile(self.net) if recipe.hybridize == "static" else self.net
        self._trained = self.ranks.around(self.run)
        where, half = ("cuda" if self.device == "gpu" else "cpu"), recipe.dtype == "bfloat16"
        self._cast: Callable[[], Any] = (
            (lambda: library.autocast(where, dtype=library.bfloat16)) if half else contextlib.nullcontext
        )

    def _try_one_batch(self) -> None:
        images, labels = next(iter(self.feed.train.epoch(0)))
        self.net.train()
        self._losses_of(images, labels)[0].mean().backward()
        self.feed.train.set_epoch(1)
        self.feed.train.set_epoch(0)

    def _live(self, whole: bool) -> dict[str, Any]:
        """The parameters by their places in the net; ``whole``: those that are not trained, too."""
        there = self.net.state_dict() if whole else self.optimizer.parameters
        return {self.job.names[name]: value.detach() for name, value in there.items()}

    def _put(self, place: str, values: Any) -> None:
        self._by_place[place].copy_(values)

    def site(self) -> dict[str, Any]:
        """What the ladder asks of the process that is there."""
        height, width, channels = self.feed.image_shape or (0, 0, 0)
        return {
            "device": self.device,
            "gpus": self.torch.cuda.device_count(),
            "splits": True,
            "image_bytes": height * width * channels,
            "rewrites": [],
            "step": "usual",
            "recurrent": False,
            "metric": self.job.metric,
        }

    def common(self) -> dict[str, Any]:
        """What must be alike on all ranks."""
        versions = {"gluontune": __version__, "torch": self.torch.__version__, "numpy": np.__version__}
        return {"versions": versions, "data": self.job.data, "batches_per_epoch": self.batches_per_epoch}

    def reset(self, epochs: float | None = None) -> None:
        """Back to the seeded start: parameters, optimizer, schedule, random streams, first epoch."""
        if not self._fit_to(epochs):
            return
        self.phase = "setting up the optimizer"
        recipe = self.recipe.resolved()
        self.close_batches()
        self.methods.thaw()
        self.net.load_state_dict(self._initial)
        trained = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        for parameter in trained.values():
            parameter.grad = None
        total = max(1, round(recipe.epochs * self.batches_per_epoch))
        growth = self.methods.plan(total).growth()
        self.optimizer = TorchOptimizer(
            recipe.optimizer,
            trained,
            rates_of(recipe, steps=total, steps_per_epoch=self.batches_per_epoch, growth=growth),
            momentum=recipe.momentum,
            wd=float(recipe.wd or 0.0),
            lr_mult=self.job.lr_mult,
            wd_mult=self.job.wd_mult,
            **recipe.optimizer_params,
        )
        self._by_place = self._live(True)
        self.methods.begin(self.batches_per_epoch)
        random.seed(recipe.seed)
        np.random.seed(recipe.seed)
        self.torch.manual_seed(recipe.seed)
        self.epoch, self.steps_taken, self.gathered = 0, 0, 0
        self._losses: list[Any] = []
        self.feed.train.set_epoch(1)
        self.feed.train.set_epoch(0)
        self.fresh = True

    def _sync(self) -> None:
        if self.device == "gpu":
            self.torch.cuda.synchronize()

    def _scores(self, images: Any) -> Any:
        with self._cast():
            output = (self._trained if self.net.training else self.run)(images)
        return output.float() if output.dtype != self.torch.float64 else output

    def _losses_of(self, images: Any, labels: Any) -> tuple[Any, Any]:
        output = self._scores(images)
        loss = self._training_loss if self.net.training else self.loss
        return loss(output, labels.to(output.dtype)), output

    def _select(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """The images of a batch that are trained on, by their losses as the net would predict."""
        self.net.eval()
        with self.torch.no_grad():
            output = self._scores(images)
            losses = self._training_loss(output, labels.to(output.dtype))
        self.net.train()
        chosen = self.torch.from_numpy(self.methods.select(losses.cpu().numpy(), self.steps_taken))
        return images[chosen.to(images.device)], labels[chosen.to(labels.device)]

    def step(self) -> int:
        """One training step; returns its number of samples."""
        self.methods.before_step(self.steps_taken)
        with self.phases.step() as phase:
            with phase("data"):
                images, labels = self.next_batch()
            count = len(images)
            with phase("forward"):
                if self.methods.selecting(self.steps_taken):
                    images, labels = self._select(images, labels)
                losses, _ = self._losses_of(images, labels)
                size = self.methods.updates.size(self.steps_taken)
                whole = losses.sum() / (len(images) * size)
            last = self.gathered + 1 >= size
            with phase("backward"), contextlib.nullcontext() if last else self.ranks.only_adding():
                whole.backward()
            with phase("update"):
                self._update(last)
            with phase("metrics"):
                self._losses.append(losses.detach().mean())
        self.steps_taken += 1
        self.methods.after_step(self.steps_taken)
        return count

    def _update(self, last: bool) -> None:
        self.gathered += 1
        if not last:
            return
        self.gathered = 0
        factor: Any = 1.0
        trained = list(self.optimizer.parameters.values())
        if self.recipe.clip_global_norm is not None:
            squares = sum((p.grad.float() ** 2).sum() for p in trained if p.grad is not None)
            factor = (self.recipe.clip_global_norm / (squares.sqrt() + 1e-12)).clamp(max=1.0)
        self.optimizer.step(factor)
        for parameter in trained:
            parameter.grad = None

    def steps(self, count: int) -> dict[str, Any]:
        """Take ``count`` steps: ``{"samples", "seconds", "loss"}``."""
        self.phase = "training"
        self.fresh, self._losses = False, []
        self.net.train()
        start = time.perf_counter()
        samples = sum(self.step() for _ in range(count))
        self.phases.wait()
        self._sync()
        seconds = time.perf_counter() - start
        return {"samples": samples, "seconds": seconds, "loss": float(self.torch.stack(self._losses).float().mean())}

    def validate(self) -> dict[str, Any]:
        """The metric and the mean loss over the validation samples; see ``Session.validate``."""
        self.phase = "validating"
        self.net.eval()
        start, total, loss, hits, counted = time.perf_counter(), 0, 0.0, 0, 0
        flipped: int | None = None
        with self.torch.no_grad(), self.methods.second_weights():
            for images, labels in self.feed.val.epoch(0):
                losses, output = self._losses_of(images, labels)
                loss += float(losses.sum())
                total += len(images)
                if self.job.metric["name"] == "accuracy":
                    right = output.argmax(self.job.axis) == labels
                    hits, counted = hits + int(right.sum()), counted + right.numel()
                    mean = self.methods.flipped(self.steps_taken, images, (2, 3), self._take, self._scores)
                    if mean is not None:
                        flipped = (flipped or 0) + int((mean.argmax(self.job.axis) == labels).sum())
        if total == 0:
            raise GluontuneError("the validation data set is empty")
        accuracy = hits / counted if counted else None
        value = loss / total if accuracy is None else accuracy
        return {
            "metric": {**self.job.metric, "value": finite(value)},
            "flipped": None if flipped is None else flipped / counted,
            "accuracy": accuracy,
            "loss": loss / total,
            "samples": total,
            "seconds": time.perf_counter() - start,
        }

    def _take(self, images: Any, chosen: np.ndarray, axis: int) -> Any:
        return images.index_select(axis, self.torch.from_numpy(chosen).to(images.device))

    def _capture(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return capture(self)

    def restore(self, path: str, epoch: int | None = None) -> None:
        """Go on from a checkpoint, after :meth:`build` or :meth:`reset`; see :func:`torch_snapshot.restore`."""
        self.phase = "reading a checkpoint"
        self.close_batches()
        header, arrays = read(path)
        with understood(path):
            restore(self, header, arrays, path, epoch)
        self.fresh = False

    def agree(self) -> None:
        """One process has nothing to agree on."""

    def close(self) -> None:
        """Let go of loaders and checkpoints, and leave the other ranks."""
        super().close()
        if hasattr(self, "ranks"):
            self.ranks.close()


def _device(library: Any, wanted: str) -> str:
    there = library.cuda.is_available()
    if wanted == "gpu" and not there:
        raise UsageError("recipe field devices='gpu': this PyTorch sees no GPU; use devices='cpu' or 'auto'")
    return "gpu" if there and wanted != "cpu" else "cpu"
