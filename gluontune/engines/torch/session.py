"""A training process on PyTorch's engine: the commands of :mod:`gluontune.engines.base`, without mxnet.

A recipe means the same with ``backend="torch"`` as with ``"mxnet"``: equal start, batches, rates and decay, and equal
figures except for rounding. Checkpoints have the parameters under the same names, the optimizer's states its own.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gluontune import datasets, monitor
from gluontune.compute import LossScaler
from gluontune.convert.bridge.convert import to_torch
from gluontune.convert.bridge.names import gluon_names, quicken
from gluontune.core.errors import GluontuneError
from gluontune.engines import ENGINES
from gluontune.engines.base import SAMPLED_EVERY, Engine, State
from gluontune.engines.progress import MethodSteps
from gluontune.engines.torch.device import Device
from gluontune.engines.torch.export import Exported, NotExported, exported_once
from gluontune.job.batches import Outcome, Score, array_score
from gluontune.job.checkpoint import part_of
from gluontune.job.data import Feed, named_loaders
from gluontune.optim.cards import rates_of
from gluontune.optim.torch_rules import TorchOptimizer
from gluontune.recipe import Recipe
from gluontune.runtime.pytorch import torch

_PATIENCE = datetime.timedelta(seconds=60)  # limit for a silent rank


class TorchSession(Engine):
    """One training process on PyTorch's engine.

    ``rejoins`` of :class:`Engine` has no meaning here.

    Attributes:
        net, loss: ``torch.fx`` modules; the net's parameters have Gluon's names. run: the net as called.
    """

    name = "torch"

    def __init__(self, *given: Any, job: Exported):
        super().__init__(*given)
        self.job = job

    def build(self, opened: Callable[[], None] | None = None) -> None:
        recipe = self.recipe
        self.phase = "importing PyTorch"
        library = self.torch = torch()
        self.phase = "finding the devices"
        self.device = Device(library, recipe, self.local_rank)
        gpu = self.device.kind == "gpu"
        self.phase = "opening the data"
        data = datasets.open(self.job.data)
        where = {"framework": "torch", "normalize": True, "device": self.device.place if gpu else None}
        size = recipe.batch_size_per_device
        train, val, num_train, shape = named_loaders(recipe, data, self.rank, self.world, size, **where)
        self.use_feed(Feed(train, val, None, size, num_train, shape), size)
        if opened is not None:
            opened()
        self.phase = "meeting the other ranks"
        if self.world > 1:
            way, place = "nccl" if gpu else "gloo", os.environ[ENGINES["torch"].meeting]
            ranks = {"init_method": place, "rank": self.rank, "world_size": self.world}
            library.distributed.init_process_group(way, timeout=_PATIENCE, **ranks)
        self.phase = "building the net"
        self.net = to_torch(self.job.net, self.job.arrays, training=self.job.training)
        self.job = self.job.renamed(gluon_names(self.net))
        quicken(self.net)
        self.loss = to_torch(self.job.loss, {}, inputs=self.job.takes)
        self._place()
        self.methods = MethodSteps(recipe, self.rank, self.weights, self.set_weight)
        there = dict(self.net.named_parameters())
        layers = [[there[name] for name in layer] for layer in self.job.layers]
        self.methods.attach(train.loader, data.mean, layers, library.nn.Parameter.requires_grad_)
        self._training_loss = self.methods.training_loss(
            self.loss, lambda output, axis: library.log_softmax(output, axis), self.job.axis
        )
        self.phases = monitor.StepPhases(sync=self.device.sync, every=SAMPLED_EVERY)
        self._initial = {name: value.detach().clone() for name, value in self.net.state_dict().items()}
        self.phase = "trying one batch"
        images, labels = next(iter(self.feed.train.epoch(0)))
        self.net.train()
        with self.device.fitting(self._try):
            self._losses_of(images, labels)[0].mean().backward()
        if self.rank == 0:
            self.news += self.device.warnings()
        self.reset()

    def _place(self) -> None:
        """Put the net on its device, in the recipe's memory order and mode."""
        for name, parameter in self.net.named_parameters():
            if name in self.job.frozen:
                parameter.requires_grad_(False)
        self.net, self.loss = self.net.to(self.device.place), self.loss.to(self.device.place)
        if self.recipe.hybridize != "imperative":
            self.net = self.net.to(memory_format=self.torch.channels_last)
        self.run = self.device.compiled(self.net) if self.recipe.hybridize == "static" else self.net
        self._trained = self.run if self.world == 1 else self._together(self.run)

    def _together(self, net: Any) -> Any:
        """The net with gradients that are the mean over all ranks after each backward pass.

        They are averaged during the pass; each rank has its running statistics, as on MXNet's engines.
        """
        # Gradients are channels-last, the buckets contiguous: a harmless copy. The newer name is not in all versions.
        warnings.filterwarnings("ignore", message="Grad strides do not match|.broadcast_buffers. is deprecated")
        return self.torch.nn.parallel.DistributedDataParallel(
            net, broadcast_buffers=False, gradient_as_bucket_view=True
        )

    def site(self) -> dict[str, Any]:
        height, width, channels = self.feed.image_shape or (0, 0, 0)
        return {
            "device": self.device.kind, "gpus": self.torch.cuda.device_count(), "splits": True,
            "image_bytes": height * width * channels, "rewrites": [], "step": "usual", "recurrent": False,
            "metric": self.job.metric,
        }  # fmt: skip

    def remarks(self) -> list[str]:
        return [*([self.scaler.told()] if self.scaler else []), *self.device.remarks()]

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__}

    def seed(self) -> None:
        super().seed()
        self.torch.manual_seed(self.recipe.seed)

    def weights(self, whole: bool) -> Mapping[str, Any]:
        arrays = self.net.state_dict() if whole else self.optimizer.parameters
        return {self.job.names[name]: value.detach() for name, value in arrays.items()}

    def set_weight(self, place: str, values: Any) -> None:
        self._by_place[place].copy_(values)

    def to_host(self, array: Any) -> np.ndarray:
        return np.array(array.detach().cpu().numpy(), order="C")

    def to_device(self, values: np.ndarray, place: str) -> Any:
        return self._like(values, self._by_place[place])

    def _like(self, values: np.ndarray, parameter: Any) -> Any:
        """On the parameter's device, and in its memory order for equal shapes."""
        tensor = self.torch.from_numpy(np.array(values)).to(parameter.device)
        return self.torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor

    def start_anew(self, total: int) -> None:
        recipe = self.recipe.resolved()
        self.net.load_state_dict(self._initial)
        trained = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        for parameter in trained.values():
            parameter.grad = None
        growth, per_epoch = self.methods.updates.growth(), self.batches_per_epoch
        self.optimizer = TorchOptimizer(
            recipe.optimizer, trained, rates_of(recipe, steps=total, steps_per_epoch=per_epoch, growth=growth),
            momentum=recipe.momentum, wd=float(recipe.wd or 0.0), lr_mult=self.job.lr_mult,
            wd_mult=self.job.wd_mult, **recipe.optimizer_params,
        )  # fmt: skip
        self._by_place, self.gathered = self.weights(True), 0
        self.scaler = LossScaler() if recipe.dtype == "float16" else None

    def _scores(self, images: Any) -> Any:
        self.device.begin_step()
        with self.device.cast():
            output = (self._trained if self.net.training else self.run)(images)
        return self.device.own(output.float() if output.dtype != self.torch.float64 else output)

    def _losses_of(self, images: Any, labels: Any) -> tuple[Any, Any]:
        output = self._scores(images)
        loss = self._training_loss if self.net.training else self.loss
        return loss(output, labels.to(output.dtype)), output

    def _select(self, images: Any, labels: Any) -> tuple[Any, Any]:
        """The chosen images of a batch, by their losses in predict mode."""
        self.net.eval()
        with self.torch.no_grad():
            output = self._scores(images)
            losses = self._training_loss(output, labels.to(output.dtype))
        self.net.train()
        chosen = self.torch.from_numpy(self.methods.select(losses.cpu().numpy(), self.progress.steps))
        return images[chosen.to(images.device)], labels[chosen.to(labels.device)]

    def _try(self, size: int) -> None:
        """A step of ``size`` images without an update, for the memory that it takes."""
        height, width, channels = self.feed.image_shape or (0, 0, 0)
        images = self.torch.zeros(size, channels, height, width, device=self.device.place)
        self._losses_of(images, self.torch.zeros(size, device=self.device.place))[0].mean().backward()

    def steps(self, count: int) -> dict[str, Any]:
        self.net.train()
        with self.device.fitting(self._try):
            return super().steps(count)

    def train(self, batch: tuple[Any, ...], phase: Any) -> int:
        (images, labels), taken = batch, self.progress.steps
        count = len(images)
        with phase("forward"):
            if self.methods.selecting(taken):
                images, labels = self._select(images, labels)
            losses, _ = self._losses_of(images, labels)
            size = self.methods.updates.size(taken)
            whole = losses.sum() / (len(images) * size)
        self.gathered += 1
        last = self.gathered >= size
        with phase("backward"), contextlib.nullcontext() if last or self.world == 1 else self._trained.no_sync():
            (whole if self.scaler is None else self.scaler.scale(whole)).backward()
        with phase("update"):
            if last:
                self._update()
        with phase("metrics"):
            self._losses.append(losses.detach().mean())
        return count

    def _update(self) -> None:
        self.gathered, library = 0, self.torch
        trained = list(self.optimizer.parameters.values())
        grads = [parameter.grad for parameter in trained if parameter.grad is not None]
        scale, finite = 1.0, True
        if self.scaler is not None:
            largest = library.stack(library._foreach_norm(grads, float("inf")))
            scale, finite = self.scaler.scale_value, self.scaler.judge(bool(largest.isfinite().all()))
        factor: Any = 1.0 / scale
        if self.recipe.clip_global_norm is not None:
            norm = library.stack(library._foreach_norm(grads)).norm() / scale
            factor = (self.recipe.clip_global_norm / (norm + 1e-12)).clamp(max=1.0) / scale
        if finite:
            self.optimizer.step(factor)
        for parameter in trained:
            parameter.grad = None

    def step_losses(self) -> list[float]:
        return list(self.torch.stack(self._losses).float().tolist())

    def new_score(self) -> Score:
        return array_score(**self.job.metric, axis=self.job.axis)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        self.net.eval()
        with self.torch.no_grad():
            yield

    def evaluate(self, batch: tuple[Any, ...]) -> Iterator[tuple[Outcome, Any]]:
        images, labels = batch
        losses, output = self._losses_of(images, labels)
        mean = self.methods.flipped(self.progress.steps, images, (2, 3), self._take, self._scores)
        yield Outcome(losses, output, labels), mean

    def _take(self, images: Any, chosen: np.ndarray, axis: int) -> Any:
        return images.index_select(axis, self.torch.from_numpy(chosen).to(images.device))

    def part_states(self) -> State:
        optimizer, arrays = self.optimizer, {}
        for name, state in optimizer.states.items():
            arrays.update({f"optimizer/{name}/{key}": self.to_host(value) for key, value in state.items()})
        if self.gathered:
            for name, parameter in optimizer.parameters.items():
                if parameter.grad is not None:
                    arrays[f"gradient/{name}"] = self.to_host(parameter.grad)
        arrays.update({f"random/{name}": state for name, state in self.device.random_state().items()})
        facts = {"name": optimizer.name, "num_update": optimizer.num_update}
        scaler = self.scaler.state_dict() if self.scaler else None
        return {"optimizer": facts, "gathered": self.gathered, "scaler": scaler}, arrays

    def load_parts(
        self, header: dict[str, Any], arrays: Mapping[str, np.ndarray], path: str, epoch: int | None
    ) -> None:
        optimizer, told = self.optimizer, header["optimizer"]
        if told["name"] != optimizer.name:
            raise GluontuneError(f"{path}: of the optimizer {told['name']!r}, this run has {optimizer.name!r}")
        optimizer.num_update = told["num_update"]
        optimizer.states = {name: {} for name in optimizer.parameters}
        for key, value in part_of(arrays, "optimizer").items():
            name, _, state = key.rpartition("/")
            optimizer.states[name][state] = self._like(value, optimizer.parameters[name])
        if epoch is None:
            self.gathered = header["gathered"]
            for name, value in part_of(arrays, "gradient").items():
                optimizer.parameters[name].grad = self._like(value, optimizer.parameters[name])
        else:
            self.gathered, optimizer.num_update = 0, self.methods.updates.updates(self.progress.steps)
        self.device.restore_random(part_of(arrays, "random"))
        if self.scaler is not None and header.get("scaler"):
            self.scaler.load_state_dict(header["scaler"])

    def loader_state(self) -> dict[str, Any]:
        return dict(self.feed.train.state_dict())

    def load_loader(self, state: dict[str, Any], epoch: int | None) -> None:
        if epoch is None:
            self.feed.train.load_state_dict(state)
        else:
            self.feed.train.set_epoch(epoch)

    def close(self) -> None:
        super().close()
        if self.world > 1 and hasattr(self, "torch") and self.torch.distributed.is_initialized():
            self.torch.distributed.destroy_process_group()


def session_of(recipe: Recipe, rank: int = 0, world: int = 1, *more: Any) -> Engine:
    """The session of a recipe: of its exported net, or the followed one of a job that cannot be exported."""
    if recipe.loader == "gluon":  # its process has mxnet anyway
        return _followed(recipe, rank, world, *more, why="Gluon's DataLoader loads")
    try:
        with ThreadPoolExecutor(1) as importing:  # both take seconds; the export is another process
            importing.submit(torch)
            job = exported_once(recipe, rank, world)
    except NotExported as error:
        return _followed(recipe, rank, world, *more, why=str(error))
    return TorchSession(recipe, rank, world, *more, job=job)


def _followed(recipe: Recipe, *given: Any, why: str) -> Engine:
    from gluontune.engines.torch.followed import FollowedSession  # it brings mxnet

    return FollowedSession(recipe, *given, why=why)
