"""The Recipe: a frozen description of one training run, in plain values, saved whole in the result."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional  # read at run time by the command line, so no `X | None` on 3.9

import yaml

from gluontune.core.errors import GluontuneError, UsageError, did_you_mean
from gluontune.core.reading import MOST_YAML, parse_yaml, read_text
from gluontune.recipe import rules


@functools.cache
def _own() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(Path(__file__).with_name("recipes.yaml").read_text("utf-8"))


def own_recipes() -> list[str]:
    """The names of the recipes that come with gluontune, for :meth:`Recipe.from_yaml`.

    >>> own_recipes()
    ['cifar10-80', 'dawnbench-94', 'deck']
    """
    return sorted(_own())


@dataclass(frozen=True)
class Recipe:
    """One training run.

    Args:
        dataset: a name of ``gt.datasets`` (``sample``, ``cifar10``, ``folder:PATH``, ``records:PATH``, …).
        net: a name of the model zoo (``cifar_resnet20_v1``, ``mlp``, …).
        job: path of the user's own ``job.py``; it replaces data set, net and loss where it defines them.
        backend: the engine that computes: ``mxnet``, or ``torch``: the same net, start, batches and rules in PyTorch,
            in a process without mxnet. There ``hybridize`` means: ``imperative`` as it is, ``hybridized`` in
            channels-last memory order, ``static`` that and ``torch.compile``.
        batch_size_per_device: images in one step on one device.
        accumulate: steps whose gradients make one update: a batch so many times larger in the memory of one. BatchNorm
            still takes its statistics from each step's images.
        loader: a name of ``gt.loading``; ``gluon`` is that of a plain Gluon script.
        num_workers: loader processes or threads; 0 loads in the training thread.
        prefetch: batches made ahead; None: the loader chooses.
        last_batch: ``keep``, ``discard`` or ``rollover`` for the incomplete batch of an epoch.
        augment: a name of the loaders' augmentations; None: the data set's usual one.
        train_samples: use only so many training images (the first of a seeded shuffle); None: all.
        val_samples: the same for validation.
        stochastic_depth: rate at which the last residual block's branch is dropped in training, rising from 0
            over the blocks (0 … 1; residual nets of the v1 family); 0 leaves the net as it is.
        hybridize: ``imperative``, ``hybridized``, or ``static`` (static_alloc and static_shape).
        rewrites: names of ``gt.compute`` rewrites to apply to the net.
        dtype: ``float32``; ``float16`` (with a loss scale; MXNet: on a GPU); ``bfloat16`` (MXNet: on a CPU).
        optimizer: a name of ``gt.optim``.
        optimizer_params: further parameters of the optimizer, such as ``trust_coefficient: 0.002`` of ``lars``; its
            card in ``gt.optim.OPTIMIZERS`` has names and defaults.
        learning_rate: peak rate for ``base_batch_size``; None: that of the optimizer's card.
        base_batch_size: the images in an update that ``learning_rate`` was chosen for; None: the card's.
        lr_scaling: how the rate follows the images in an update: ``none``, ``linear`` or ``sqrt``; None: the card's.
        momentum: of optimizers with a momentum (see their cards).
        wd: weight decay, which does not touch biases, gammas and betas; None: the card's.
        clip_global_norm: largest L2 norm of an update's averaged gradient, all parameters together; None: no limit.
        schedule: a name of ``gt.optim.schedules``.
        schedule_params: parameters of the schedule, such as ``steps: [30, 60]`` and ``factor: 0.1`` of
            ``multifactor``; lengths count updates, or with ``unit: epochs`` epochs.
        warmup_epochs: epochs of linear warm-up before the schedule.
        methods: names of ``gt.methods``, each with a mapping of its parameters, or ``true`` for those of its card:
            ``{mixup: true, ema: {decay: 0.99}}``.
        devices: ``auto``, ``cpu``, ``gpu``, or the GPUs to use, such as ``gpu:0,1``: all of them unless
            ``num_devices`` is given, too.
        num_devices: GPUs of one process (engine ``local``) or ranks (the other engines).
        engine: ``local``; ``shared-memory`` (ranks of one machine sum their gradients in memory that they share),
            ``kvstore`` (parameter server), ``horovod`` (ring all-reduce), ``ddp`` (PyTorch's
            DistributedDataParallel, of the backend ``torch``), or ``async`` (learners that update weights
            in shared memory without waiting for each other).
        partition: the images of a rank in an epoch: ``shard``, its share of one shuffle of all; ``whole``, as many
            from its own shuffle of all. All ranks have equally many batches.
        exchange_every: steps of a rank between exchanges. 1 exchanges in each step; above, each rank trains
            alone for so many steps, then the ranks' parameters are averaged (``async``: their changes added).
        compression: of the gradients on their way: ``none``; ``2bit`` (kvstore, with error feedback); ``fp16``
            (horovod).
        compression_threshold: of ``2bit``: the value from which a gradient, summed over a rank's batch, is sent.
        epochs: length of the run. ``seconds`` and ``target_accuracy`` end it earlier.
        seconds: time limit of training, in seconds, checked after each step.
        target_accuracy: stop at the first validation accuracy (0 … 1) that reaches it; of a job with another metric,
            at the first value of that one that is as good.
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
    backend: str = "mxnet"

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
    optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: Optional[float] = None
    base_batch_size: Optional[int] = None
    lr_scaling: Optional[str] = None
    momentum: float = 0.9
    wd: Optional[float] = None
    clip_global_norm: Optional[float] = None
    schedule: str = "onecycle"
    schedule_params: Mapping[str, Any] = field(default_factory=dict)
    warmup_epochs: float = 0.0

    devices: str = "auto"
    num_devices: int = 1
    engine: str = "local"
    partition: str = "shard"
    exchange_every: int = 1
    compression: str = "none"
    compression_threshold: float = 0.5

    methods: Mapping[str, Any] = field(default_factory=dict)

    epochs: float = 1.0
    seconds: Optional[float] = None
    target_accuracy: Optional[float] = None
    seed: int = 0

    runtime: str = "as-installed"
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in rules.COLLECTIONS:
            object.__setattr__(self, name, _copied(getattr(self, name), tuple))  # equal when read back from YAML
        rules.check(self)

    def __hash__(self) -> int:
        return hash(tuple(_copied(getattr(self, f.name), tuple, frozenset) for f in dataclasses.fields(self)))

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
        whole: Any = self.resolved()
        ratio = self.update_batch_size / whole.base_batch_size
        return whole.learning_rate * rules.LR_SCALING[whole.lr_scaling](ratio)

    def resolved(self) -> Recipe:
        """The recipe with the optimizer card's values in place of None.

        >>> adam = Recipe(optimizer="adam").resolved()
        >>> adam.learning_rate, adam.base_batch_size, adam.lr_scaling, adam.wd
        (0.001, 64, 'sqrt', 0.0005)
        """
        card = rules.entry("optimizer", self.optimizer)
        return self.override(**{n: getattr(card, n) for n in rules.CARD_FIELDS if getattr(self, n) is None})

    def override(self, **changes: Any) -> Recipe:
        """The same recipe with some fields changed; values are checked again.

        Another optimizer or schedule does not keep the ``…_params`` of the one before it.

        >>> lars = Recipe(optimizer="lars", optimizer_params={"trust_coefficient": 0.002})
        >>> lars.override(optimizer="muon").optimizer_params
        {}
        """
        kept = self.to_dict()
        for owner, params in rules.PARAMETERS.items():
            if changes.get(owner, kept[owner]) != kept[owner]:
                kept[params] = {}
        if rules.listed_gpus(changes.get("devices")):
            del kept["num_devices"]
        return Recipe.from_dict({**kept, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML."""
        return {f.name: _copied(getattr(self, f.name), list) for f in dataclasses.fields(self)}

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
                hint = did_you_mean(name, known)
                raise UsageError(f"{source}: unknown field {name!r}{hint and f': {hint}'}")
        gpus = rules.listed_gpus(values.get("devices"))
        return cls(**{**({"num_devices": len(gpus)} if gpus else {}), **values})

    @classmethod
    def from_yaml(cls, path: str | Path) -> Recipe:
        """Read a YAML mapping of fields. Fields that are left out keep their default.

        Args:
            path: of the file, or the name of one of gluontune's own: ``cifar10-80`` (ResNet-20 to 80 % in three
                epochs), ``deck`` (the same net to 82 %), ``dawnbench-94`` (94 % on CIFAR-10 with test-time flips).
                A file here comes before one of gluontune's.

        Raises:
            GluontuneError: no such file or name, not text, not YAML; UsageError: unknown or wrong fields.

        >>> Recipe.from_yaml("deck").net
        'cifar_resnet20_v1'
        """
        if str(path) in _own() and not Path(path).is_file():
            return cls.from_dict(_own()[str(path)], source=str(path))
        try:
            text = read_text(path, MOST_YAML)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            if isinstance(error, FileNotFoundError):
                why = f"no such file; gluontune's own are {', '.join(own_recipes())}"
            raise GluontuneError(f"{path}: cannot read the recipe: {why}") from error
        try:
            values = parse_yaml(text) or {}
        except ValueError as error:
            raise UsageError(f"{path}: not valid YAML: {error}") from error
        if not isinstance(values, dict):
            raise UsageError(f"{path}: a recipe is a mapping such as 'epochs: 3', not a {type(values).__name__}")
        return cls.from_dict(values, source=str(path))

    def to_yaml(self) -> str:
        """YAML that :meth:`from_yaml` reads back to an equal recipe."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)


def _copied(value: Any, sequence: Any, mapping: Any = dict) -> Any:
    """A copy whose lists and tuples are of the type ``sequence``, and whose mappings are ``mapping`` of their pairs."""
    if isinstance(value, Mapping):
        return mapping((name, _copied(item, sequence, mapping)) for name, item in value.items())
    return sequence(_copied(i, sequence, mapping) for i in value) if isinstance(value, (list, tuple)) else value
