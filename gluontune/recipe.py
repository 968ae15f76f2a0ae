"""The Recipe: everything about one training run, frozen, in plain values.

A recipe is read from YAML, overridden by flags, handed to a fresh process, and written whole into
the result, so that a figure can always be made again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional  # read at run time by the command line, so no `X | None` on 3.9

import yaml

from gluontune import rules
from gluontune.errors import GluontuneError, UsageError, nearest

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """One training run.

    Args:
        dataset: a name of ``gt.datasets`` (``sample``, ``cifar10``, ``folder:PATH``, ``records:PATH``, …).
        net: a name of the model zoo (``cifar_resnet20_v1``, ``mlp``, …).
        job: path of the user's own ``job.py``; it replaces data set, net and loss where it defines them.
        batch_size_per_device: images in one step on one device.
        accumulate: steps whose gradients make one update: an update of so many times the batch, in the memory of
            one. BatchNorm still takes its statistics from each step's images.
        loader: a name of ``gt.loading``; ``gluon`` is what a plain Gluon script does.
        num_workers: loader processes or threads; 0 loads in the training thread.
        prefetch: batches made ahead; None lets the loader choose.
        last_batch: ``keep``, ``discard`` or ``rollover`` for the incomplete batch of an epoch.
        augment: a name of the loaders' augmentations; None takes the data set's usual one.
        train_samples: use only so many training images (the first of a seeded shuffle); None: all.
        val_samples: the same for validation.
        stochastic_depth: rate at which the last residual block's branch is dropped in training, rising from 0
            over the blocks (0 … 1; residual nets of the v1 family); 0 leaves the net as it is.
        hybridize: ``imperative``, ``hybridized``, or ``static`` (static_alloc and static_shape).
        rewrites: names of ``gt.compute`` rewrites to apply to the net.
        dtype: ``float32``; ``float16`` (GPU, multi-precision); ``bfloat16`` (CPU, AMP).
        optimizer: a name of ``gt.optim``.
        learning_rate: peak rate for ``base_batch_size``.
        base_batch_size: the images in an update that ``learning_rate`` was chosen for.
        lr_scaling: how the rate follows the images in an update: ``none``, ``linear`` or ``sqrt``.
        momentum, wd: of the optimizer. ``wd`` does not touch biases, gammas and betas.
        schedule: a name of ``gt.optim.schedules``.
        warmup_epochs: epochs of linear warm-up before the schedule.
        devices: ``auto``, ``cpu`` or ``gpu``.
        num_devices: GPUs of one process (engine ``local``) or ranks (the other engines).
        engine: ``local``; ``shared-memory`` (ranks of one machine sum their gradients in memory that they share),
            ``kvstore`` (parameter server), ``horovod`` (ring all-reduce), or ``async`` (learners that update weights
            in shared memory without waiting for each other).
        partition: which images a rank takes in an epoch: ``shard``, its share of one shuffle of all; ``whole``, as
            many from a shuffle of its own over all. All ranks have equally many batches.
        exchange_every: steps of a rank between exchanges. 1 exchanges in each step; above, each rank trains
            alone for so many steps, then the ranks' parameters are averaged (``async``: their changes added).
        compression: of the gradients on their way: ``none``; ``2bit`` (kvstore, with error feedback); ``fp16``
            (horovod).
        compression_threshold: of ``2bit``: what a gradient, summed over a rank's batch, must reach to be sent.
        epochs: length of the run. ``seconds`` and ``target_accuracy`` end it earlier.
        seconds: time limit of training, in seconds, checked after each step.
        target_accuracy: stop at the first validation accuracy (0 … 1) that reaches it.
        seed: of parameters, shuffling and augmentation.
        runtime: ``as-installed`` leaves the environment alone; ``tuned`` applies ``gt.runtime``'s settings.
        env: further environment variables of the training process; they win over ``runtime``.

    Raises:
        UsageError: fields that are unknown, out of range or contradict each other.

    >>> fast = Recipe(dtype="bfloat16", hybridize="static").override(epochs=3)
    >>> fast.epochs, Recipe.from_dict(fast.to_dict()) == fast
    (3, True)
    >>> Recipe(dtype="float31")
    Traceback (most recent call last):
    gluontune.errors.UsageError: recipe field dtype='float31': choose one of float32, float16, bfloat16
    """

    dataset: str = "sample"
    net: str = "cifar_resnet20_v1"
    job: Optional[str] = None

    batch_size_per_device: int = 64
    accumulate: int = 1
    loader: str = "gluon"
    num_workers: int = 0
    prefetch: Optional[int] = None
    last_batch: str = "discard"
    augment: Optional[str] = None
    train_samples: Optional[int] = None
    val_samples: Optional[int] = None

    stochastic_depth: float = 0.0
    hybridize: str = "imperative"
    rewrites: tuple[str, ...] = ()
    dtype: str = "float32"

    optimizer: str = "nag"
    learning_rate: float = 0.2
    base_batch_size: int = 64
    lr_scaling: str = "linear"
    momentum: float = 0.9
    wd: float = 5e-4
    schedule: str = "onecycle"
    warmup_epochs: float = 0.0

    devices: str = "auto"
    num_devices: int = 1
    engine: str = "local"
    partition: str = "shard"
    exchange_every: int = 1
    compression: str = "none"
    compression_threshold: float = 0.5

    epochs: float = 1.0
    seconds: Optional[float] = None
    target_accuracy: Optional[float] = None
    seed: int = 0

    runtime: str = "as-installed"
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("rewrites", tuple(self.rewrites)), ("env", dict(self.env))):
            object.__setattr__(self, name, value)
        rules.check(self)

    @property
    def global_batch_size(self) -> int:
        """Images in one step, over all devices; ``async`` learners update one by one, each with its own batch."""
        return self.batch_size_per_device * (1 if self.engine == "async" else self.num_devices)

    @property
    def update_batch_size(self) -> int:
        """Images in one update of the weights: those of ``accumulate`` steps.

        >>> Recipe(batch_size_per_device=128, accumulate=10).update_batch_size
        1280
        """
        return self.global_batch_size * self.accumulate

    @property
    def scaled_learning_rate(self) -> float:
        """``learning_rate`` carried over from ``base_batch_size`` to the images in an update.

        >>> Recipe(learning_rate=0.1, base_batch_size=64, batch_size_per_device=256).scaled_learning_rate
        0.4
        """
        ratio = self.update_batch_size / self.base_batch_size
        return self.learning_rate * rules.LR_SCALING[self.lr_scaling](ratio)

    def override(self, **changes: Any) -> Recipe:
        """The same recipe with some fields changed; values are checked again."""
        return Recipe.from_dict({**self.to_dict(), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["rewrites"] = list(self.rewrites)
        values["env"] = dict(self.env)
        return values

    def differences(self, other: Recipe) -> dict[str, Any]:
        """The fields of this recipe whose value differs in ``other``.

        >>> Recipe(epochs=2).differences(Recipe())
        {'epochs': 2}
        """
        mine, theirs = self.to_dict(), other.to_dict()
        return {name: value for name, value in mine.items() if theirs[name] != value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "recipe") -> Recipe:
        """Build from plain values; unknown fields are refused with the nearest name."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                close = nearest(str(name), known)
                hint = f": did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
                raise UsageError(f"{source}: unknown field {name!r}{hint}")
        return cls(**dict(values))

    @classmethod
    def from_yaml(cls, path: str | Path) -> Recipe:
        """Read a YAML mapping of fields. Fields that are left out keep their default."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GluontuneError(f"{path}: cannot read the recipe: {error}") from error
        try:
            values = yaml.safe_load(text) or {}
        except yaml.YAMLError as error:
            raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
        if not isinstance(values, dict):
            raise UsageError(
                f"{path}: a recipe is a mapping such as 'epochs: 3', not a {type(values).__name__}"
            )
        return cls.from_dict(values, source=str(path))

    def to_yaml(self) -> str:
        """YAML that :meth:`from_yaml` reads back to an equal recipe."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)
