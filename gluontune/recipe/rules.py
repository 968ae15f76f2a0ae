"""Rules of the fields of a :class:`gluontune.Recipe`: choices, bounds and contradictions."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.recipe.registry import Parameter, resolve

#: The factor of the rate when the batch grows by a ratio.
LR_SCALING: dict[str, Callable[[float], float]] = {
    "none": lambda ratio: 1.0,
    "linear": lambda ratio: ratio,
    "sqrt": math.sqrt,
}

CHOICES: dict[str, tuple[str, ...]] = {
    "last_batch": ("keep", "discard", "rollover"),
    "partition": ("shard", "whole"),
    "hybridize": ("imperative", "hybridized", "static"),
    "dtype": ("float32", "float16", "bfloat16"),
    "lr_scaling": tuple(LR_SCALING),
    "devices": ("auto", "cpu", "gpu"),
    "engine": ("local", "shared-memory", "kvstore", "horovod", "async", "ddp"),
    "compression": ("none", "2bit", "fp16"),
    "runtime": ("as-installed", "tuned"),
}

#: Fields that hold a number.
NUMBERS: dict[str, Parameter] = {
    "batch_size_per_device": Parameter(int, 1),
    "accumulate": Parameter(int, 1),
    "num_workers": Parameter(int, 0),
    "prefetch": Parameter(int, 0, optional=True),
    "train_samples": Parameter(int, 1, optional=True),
    "val_samples": Parameter(int, 1, optional=True),
    "learning_rate": Parameter(above=0, optional=True),
    "base_batch_size": Parameter(int, 1, optional=True),
    "momentum": Parameter(low=0),
    "wd": Parameter(low=0, optional=True),
    "clip_global_norm": Parameter(above=0, optional=True),
    "stochastic_depth": Parameter(low=0),
    "warmup_epochs": Parameter(low=0),
    "num_devices": Parameter(int, 1),
    "exchange_every": Parameter(int, 1),
    "compression_threshold": Parameter(above=0),
    "epochs": Parameter(above=0),
    "seconds": Parameter(above=0, optional=True),
    "target_accuracy": Parameter(above=0, optional=True),
    "seed": Parameter(int, 0),
}

#: Fields that hold a name; names without an entry in REGISTRIES are resolved when they are opened.
NAMES = ("dataset", "net", "loader", "optimizer", "schedule")

#: Fields that hold names of a registry, and its place in a room above, which is imported when a recipe is made.
REGISTRIES: dict[str, str] = {
    "backend": "gluontune.engines:ENGINES",
    "loader": "gluontune.loading.loaders:LOADERS",
    "augment": "gluontune.loading.augment:AUGMENTS",
    "rewrites": "gluontune.compute.rewrites:REWRITES",
    "optimizer": "gluontune.optim.cards:OPTIMIZERS",
    "schedule": "gluontune.optim.schedules:SCHEDULES",
    "methods": "gluontune.methods.cards:METHODS",
}

#: Fields whose entry takes parameters (it has ``check``), and the fields that hold these.
PARAMETERS = {"optimizer": "optimizer_params", "schedule": "schedule_params"}

#: Fields that hold a list or a mapping: the kind, and how it is written.
COLLECTIONS: dict[str, tuple[type, str]] = {
    "rewrites": (tuple, "give a list of names"),
    "env": (dict, "give a mapping of names to values"),
    "optimizer_params": (dict, "give a mapping of parameters to values"),
    "schedule_params": (dict, "give a mapping of parameters to values"),
    "methods": (dict, "give a mapping of names to parameters, or to true"),
}

#: Fields that the optimizer's card gives where a recipe holds None: attributes of the card.
CARD_FIELDS = ("learning_rate", "base_batch_size", "lr_scaling", "wd")


def _last_epoch(params: Mapping[str, Any]) -> float:
    """The epoch of a schedule's last change; it may end with the run."""
    steps = params.get("steps") or [params.get("step", 0)]
    return max(steps[-1], math.nextafter(params.get("max_update", 0), 0))


Holds = Callable[[Any], bool]
# Values that are too large: field, condition, way out.
_TOO_LARGE: tuple[tuple[str, Holds, str], ...] = (
    ("stochastic_depth", lambda r: r.stochastic_depth >= 1, "give a rate below 1, such as 0.2"),
    # A job may measure something else than accuracy.
    ("target_accuracy", lambda r: r.target_accuracy is not None and r.target_accuracy > 1 and r.job is None,
     "give a share between 0 and 1, such as 0.8"),
    ("momentum", lambda r: r.momentum >= 1, "give a number of at least 0 and below 1"),
    ("warmup_epochs", lambda r: r.warmup_epochs >= r.epochs,
     "it is as long as the run, or longer than the run (epochs={0.epochs:g}); warm up for less"),
)  # fmt: skip


def _of_kind(recipe: Any, *kinds: str) -> bool:
    return any(entry("methods", name).kind in kinds for name in recipe.methods)


# Fields that contradict each other on any engine: fields, condition, reason and way out. An engine's card has more.
_CONTRADICTIONS: tuple[tuple[tuple[str, ...], Holds, str], ...] = (
    (("engine", "exchange_every"), lambda r: r.engine == "ddp" and r.exchange_every > 1,
     "DistributedDataParallel exchanges in each step; use exchange_every=1"),
    (("env", "loader", "num_workers"),
     lambda r: r.loader == "gluon" and r.num_workers > 0 and r.env.get("MXNET_ENGINE_TYPE") == "NaiveEngine",
     "that engine computes in the thread which forks the workers, and a fork of OpenMP's threads hangs; use "
     "num_workers=0 or loader='threaded'"),
    (("engine", "devices", "num_devices"),
     lambda r: r.engine == "local" and r.devices == "cpu" and r.num_devices > 1,
     "one process already uses every core; use engine='shared-memory', 'kvstore' or 'horovod'"),
    (("exchange_every", "engine"), lambda r: r.exchange_every > 1 and r.engine == "local",
     "one process exchanges nothing; use shared-memory, kvstore, horovod or async"),
    (("engine", "dtype"), lambda r: r.engine in ("async", "shared-memory") and r.dtype == "float16",
     "what the ranks share is float32; use engine='kvstore' or another dtype"),
    (("accumulate", "dtype"), lambda r: r.accumulate > 1 and r.dtype == "float16",
     "the loss scale may change, and a step may be left out, between the steps of one update; use a larger "
     "batch_size_per_device"),
    (("schedule_params", "epochs"),
     lambda r: r.schedule_params.get("unit") == "epochs" and _last_epoch(r.schedule_params) >= r.epochs,
     "the last change of the rate would come after the run"),
    (("optimizer_params", "accumulate"), lambda r: "batch_scale" in r.optimizer_params,
     "a recipe says batch_scale by accumulate: give accumulate={0.optimizer_params[batch_scale]} alone"),
    (("accumulate", "engine"), lambda r: r.accumulate > 1 and r.engine == "async",
     "asynchronous learners update at each of their steps; use a larger batch_size_per_device"),
    (("compression", "exchange_every"), lambda r: r.compression != "none" and r.exchange_every > 1,
     "what is exchanged every so many steps are parameters, and only gradients are compressed"),
    (("compression", "engine"), lambda r: r.compression == "fp16" and r.engine != "horovod",
     "fp16 is Horovod's; kvstore has '2bit'"),
    (("compression", "engine"), lambda r: r.compression == "2bit" and r.engine not in ("kvstore", "local"),
     "2bit is MXNet's kvstore's; horovod has 'fp16', shared memory needs none"),
    (("compression", "num_devices"),
     lambda r: r.compression == "2bit" and r.engine == "local" and r.num_devices == 1,
     "one device exchanges nothing"),
    (("compression", "dtype"), lambda r: r.compression == "2bit" and r.dtype == "float16",
     "MXNet compresses float32 gradients only"),
    (("augment", "loader"), lambda r: r.loader == "gluon" and str(r.augment).endswith("alternating-flip"),
     "Gluon's transforms know neither sample nor epoch; use loader='resident' or 'threaded'"),
    (("methods", "loader"), lambda r: r.loader == "gluon" and _of_kind(r, "batch", "validation"),
     "Gluon's DataLoader hands out normalized arrays, and these methods change pixels; use loader='resident' or "
     "'threaded'"),
    (("methods", "engine", "exchange_every"),
     lambda r: (r.engine == "async" or r.exchange_every > 1) and _of_kind(r, "weights"),
     "ranks that train apart have no common weights to average; use engine='shared-memory' and exchange_every=1"),
    (("methods", "dtype", "num_devices"),
     lambda r: (r.dtype == "float16" or (r.engine == "local" and r.num_devices > 1)) and _of_kind(r, "weights"),
     "the second set of weights is float32, of one device in each process; use dtype='bfloat16' or another engine"),
    (("methods", "engine", "num_devices", "accumulate"),
     lambda r: (r.engine != "local" or r.num_devices > 1 or r.accumulate > 1) and "layer-freezing" in r.methods,
     "layer-freezing changes which gradients there are, on one device and in each step; use engine='local', "
     "num_devices=1 and accumulate=1"),
    (("methods", "accumulate"), lambda r: r.accumulate > 1 and "selective-backprop" in r.methods,
     "selective-backprop takes a share of each batch, and an update is averaged over one number of images; use "
     "accumulate=1"),
    (("methods", "dtype", "engine"),
     lambda r: "batch-growth" in r.methods and (r.dtype == "float16" or r.engine == "async"),
     "batch-growth makes an update of several steps, which float16's loss scale and asynchronous learners do not "
     "allow; use dtype='bfloat16' and another engine"),
    (("train_samples", "last_batch"),
     lambda r: r.train_samples is not None and r.train_samples < r.global_batch_size and r.last_batch != "keep",
     "they leave no whole batch of {0.global_batch_size}; use more images, a smaller batch or last_batch='keep'"),
)  # fmt: skip


def check(recipe: Any) -> None:
    """Refuse wrong values and contradictions of a recipe's fields, by a UsageError with the way out."""
    for name, (kind, way_out) in COLLECTIONS.items():
        if not isinstance(getattr(recipe, name), kind):
            raise _bad(recipe, name, way_out)
    for name, value in recipe.env.items():
        if not all(isinstance(part, str) and "\0" not in part for part in (name, value)) or not name or "=" in name:
            raise UsageError(f"recipe field env: {name!r}: {value!r}: give texts, such as OMP_NUM_THREADS: '2'")
    for name, allowed in {**CHOICES, "backend": resolve(REGISTRIES["backend"]).names()}.items():
        value = getattr(recipe, name)
        if value in allowed or (name in CARD_FIELDS and value is None) or (name == "devices" and listed_gpus(value)):
            continue
        more = ", or the numbers of GPUs, each once: gpu:0,1" if name == "devices" else ""
        raise _bad(recipe, name, f"choose one of {', '.join(allowed)}{more}")
    for name, number in NUMBERS.items():
        fault = number.fault(getattr(recipe, name))
        if fault:
            raise _bad(recipe, name, f"give {fault}")
    for name in NAMES:
        if not isinstance(getattr(recipe, name), str) or not getattr(recipe, name):
            raise _bad(recipe, name, "give a name")
    if not isinstance(recipe.job, (str, type(None))) or recipe.job == "":
        raise _bad(recipe, "job", "give the path of a job.py")
    _check_methods(recipe)
    for name in REGISTRIES:
        value = () if name == "methods" else getattr(recipe, name)
        for each in value if isinstance(value, tuple) else () if value is None else (value,):
            _check_entry(recipe, name, each)
    for name, too_large, way_out in _TOO_LARGE:
        if too_large(recipe):
            raise _bad(recipe, name, way_out.format(recipe))
    for names, contradict, why in (*entry("backend", recipe.backend).contradictions, *_CONTRADICTIONS):
        if contradict(recipe):
            raise UsageError(f"{_named(recipe, names)} contradict each other: {why.format(recipe)}")


def listed_gpus(devices: Any) -> tuple[int, ...] | None:
    """The GPUs that a recipe's ``devices`` lists; None if it lists none.

    >>> listed_gpus("gpu:2,0"), listed_gpus("gpu")
    ((2, 0), None)
    """
    if not re.fullmatch(r"gpu:\d+(,\d+)*", str(devices)):
        return None
    gpus = tuple(map(int, devices[len("gpu:") :].split(",")))
    return gpus if len(set(gpus)) == len(gpus) else None


@contextlib.contextmanager
def naming(recipe: Any, *names: str) -> Iterator[None]:
    """A context that adds the contradicting recipe fields to errors of rooms below."""
    try:
        yield
    except GluontuneError as error:
        raise UsageError(f"{_named(recipe, names)} do not go together here: {error}") from error


def _named(recipe: Any, names: Sequence[str]) -> str:
    values = [f"{name}={getattr(recipe, name)!r}" for name in names]
    return f"recipe fields {', '.join(values[:-1])} and {values[-1]}"


def entry(field: str, name: str) -> Any:
    """The entry ``name`` of the registry that ``field`` names.

    >>> entry("optimizer", "adam").lr_scaling
    'sqrt'
    """
    return resolve(REGISTRIES[field])[name]


def _check_entry(recipe: Any, field: str, name: str) -> None:
    where = f"field {field}"
    try:
        found = entry(field, name)
        if field in PARAMETERS:
            params: Mapping[str, Any] = getattr(recipe, PARAMETERS[field])
            where = f"fields {field}={name!r} and {PARAMETERS[field]}={dict(params)}"
            found.check(params)
    except UsageError as error:
        raise UsageError(f"recipe {where}: {error}") from None


#: Methods that exclude each other: they use the same place.
_ONE_OF = (
    ("ema", "lookahead"),
    ("mixup", "cutmix"),
    ("batch-growth", "layer-freezing"),
    ("batch-growth", "selective-backprop"),
)


def _check_methods(recipe: Any) -> None:
    for name, params in recipe.methods.items():
        try:
            entry("methods", name).check(params)
        except UsageError as error:
            raise UsageError(f"recipe field methods={{{name!r}: {params!r}}}: {error}") from None
    for names in _ONE_OF:
        if all(name in recipe.methods for name in names):
            raise UsageError(f"recipe field methods: {' and '.join(names)} contradict each other: give one of them")


def _bad(recipe: Any, name: str, way_out: str) -> UsageError:
    return UsageError(f"recipe field {name}={getattr(recipe, name)!r}: {way_out}")
