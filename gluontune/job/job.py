"""The subject of a training: a data set and a net by name, or the user's own ``job.py`` (``docs/how-to/own-job.md``).

A name of ``job.py`` holds a function, or the object itself (``net = nn.Dense(10)``), as in scripts. A ``step`` with a
parameter ``trainers`` (a dict by the nets' names; or ``trainer``, for one net) does its own updates.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gluontune import compute, datasets
from gluontune.core.errors import GluontuneError, UsageError, nearest
from gluontune.job.user_file import call, load_module, place_of
from gluontune.methods.cards import numbers_of
from gluontune.methods.nets import change_net
from gluontune.recipe import Recipe, rules
from gluontune.recipe.registry import Registry
from gluontune.runtime import mxnet


@dataclass
class Job:
    """The subject of one training process.

    Args:
        net: makes a new net, or a dict of nets. loss: makes the loss block.
        dataset: an opened ``gt.datasets.Dataset``, or None for Gluon datasets of the job.
        train, val: Gluon datasets of the job, or None.
        classes: number of classes, or None if only the job knows it.
        file: path of the job file, for messages. module: its module.
    """

    net: Callable[[], Any]
    loss: Callable[[], Any]
    dataset: Any = None
    train: Any = None
    val: Any = None
    classes: int | None = None
    file: str | None = None
    module: ModuleType | None = None

    def function(self, name: str) -> Callable[..., Any] | None:
        found = getattr(self.module, name, None)
        return found if callable(found) else None

    def place(self, name: str) -> str:
        """``job.py:12: ``, the definition of ``name`` in the job, as the start of a message."""
        return place_of(self.file, None, self.function(name))

    @property
    def step(self) -> Callable[..., Any] | None:
        return self.function("step")

    @property
    def begin(self) -> Callable[..., Any] | None:
        return self.function("begin")

    @property
    def updates(self) -> str | None:
        """``trainers`` or ``trainer``, the parameter of a ``step`` with its own updates, or None."""
        names = _parameters(self.step)
        return next((name for name in ("trainers", "trainer") if name in names), None)

    def metric(self) -> tuple[Any, str | None]:
        """A new metric of the job and its ``metric_mode``; None without one."""
        given = getattr(self.module, "metric", None)
        if given is None:
            return None, None
        kind = mxnet().metric.EvalMetric
        found = given if isinstance(given, kind) else call(self.file, "metric", given)
        if not isinstance(found, kind):
            raise GluontuneError(
                f"{self.place('metric')}metric() returned {type(found).__name__}; return an mx.metric.EvalMetric"
            )
        mode = getattr(self.module, "metric_mode", None)
        if mode not in (None, "min", "max"):
            raise GluontuneError(f"{self.file}: metric_mode = {mode!r}: give 'min' or 'max'")
        return found, mode


def load_job(recipe: Recipe) -> Job:
    """The job of a recipe.

    Raises:
        GluontuneError: the job file, its data or its functions do not fit; names the file and function.

    >>> load_job(Recipe(dataset="sample")).__class__.__name__
    'Job'
    """
    module = load_module(recipe.job) if recipe.job else None

    def has(name: str) -> bool:
        given = getattr(module, name, None)
        return given is not None and (callable(given) or _is_ready(given)) and not inspect.ismodule(given)

    def make(name: str) -> Any:
        given = getattr(module, name)
        return given if _is_ready(given) else call(recipe.job, name, given)

    data = make("data") if has("data") else recipe.dataset
    job = Job(
        net=lambda: make("net"), file=recipe.job, module=module,
        loss=lambda: make("loss") if has("loss") else mxnet().gluon.loss.SoftmaxCrossEntropyLoss(),
    )  # fmt: skip
    _check_step(job)
    if isinstance(data, str):
        job.dataset = datasets.open(data)
        classes = job.classes = len(job.dataset.classes)
        if not has("net"):
            job.net = lambda: build_net(recipe.net, classes)
    else:
        job.train, job.val = _pair(data, job)
        if not has("net"):
            raise GluontuneError(f"{recipe.job}: data() returns Gluon datasets, so the job must define net() too")
    job.net = _changed(job.net, recipe)
    return job


def _is_ready(given: Any) -> bool:
    """Whether a name of the job holds the object itself, not a function that makes it."""
    return isinstance(given, (str, tuple, Mapping, mxnet().gluon.Block))


def _parameters(function: Callable[..., Any] | None) -> set[str]:
    return set(inspect.signature(function).parameters) if function is not None else set()


def _check_step(job: Job) -> None:
    """Check ``step`` and ``begin`` against each other, before anything is built."""
    if job.begin is not None and "state" not in _parameters(job.step):
        raise GluontuneError(
            f"{job.place('step' if job.step else 'begin')}begin() gives a recurrent state, so step() must take it: "
            "def step(net, *batch, state): … return loss, state"
        )
    if job.begin is None and "state" in _parameters(job.step):
        raise GluontuneError(
            f"{job.place('step')}step() takes a state, so the job must say where it starts: "
            "def begin(net, batch_size): return …"
        )


def _changed(net: Callable[[], Any], recipe: Recipe) -> Callable[[], Any]:
    """``net`` with the layers of the recipe's methods, and its stochastic depth."""
    layers = numbers_of(recipe.methods, "net")
    if not recipe.stochastic_depth and not layers:
        return net

    def build() -> Any:
        found = net()
        if layers and not isinstance(found, Mapping):
            with rules.naming(recipe, "methods", "job" if recipe.job else "net"):
                change_net(layers, found)
        if recipe.stochastic_depth:
            with rules.naming(recipe, "stochastic_depth", "job" if recipe.job else "net"):
                compute.add_stochastic_depth(found, recipe.stochastic_depth)
        return found

    return build


def _pair(data: Any, job: Job) -> tuple[Any, Any]:
    fits = isinstance(data, (tuple, list)) and len(data) == 2
    if not fits or not all(hasattr(d, "__len__") and hasattr(d, "__getitem__") for d in data):
        loaders = fits and all(hasattr(d, "__iter__") for d in data)
        hint = " (of loaders: return their data sets; gluontune makes the loaders; own batches: batchify(samples))"
        raise GluontuneError(
            f"{job.place('data')}data() returned {type(data).__name__}{hint if loaders else ''}; return a pair "
            "(train, val) of Gluon datasets, or the name of a data set of images, such as 'folder:/data/birds'"
        )
    for name, part in zip(("training", "validation"), data):
        if len(part) == 0:
            raise GluontuneError(f"{job.place('data')}the {name} data set that data() returns is empty")
        item = call(job.file, "data", part.__getitem__, 0)
        if job.step is None and (not isinstance(item, (tuple, list)) or len(item) < 2):
            raise GluontuneError(
                f"{job.place('data')}an item of the {name} data set is not (input, …, label) but "
                f"{_described(item)}; return pairs, or define step(net, *batch)"
            )
    return data[0], data[1]


def _described(item: Any) -> str:
    shape = getattr(item, "shape", None)
    return f"{type(item).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")


SMALL_NETS: Registry[Any] = Registry("net")


@SMALL_NETS.register("small_cnn")
def _small_cnn(classes: int) -> Any:
    """Three convolutions with BatchNorm: learns the sample in seconds on a laptop."""
    nn = mxnet().gluon.nn
    net = nn.HybridSequential()
    for channels in (16, 32, 64):
        net.add(nn.Conv2D(channels, 3, strides=2, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes))
    return net


@SMALL_NETS.register("airbench94")
def _airbench94(classes: int) -> Any:
    """A whitening layer, three pairs of wide convolutions, 2 million parameters: 94 % on CIFAR-10 in 8 epochs.

    Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, 2024, and its script airbench94_muon. Its parameters have
    multiples of rate and decay that suit Muon's 0.24: the recipe ``dawnbench-94``.
    """
    mx = mxnet()
    nn = mx.gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Conv2D(24, 2, in_channels=3), nn.GELU())
    for channels in (64, 256, 256):
        net.add(nn.Conv2D(channels, 3, padding=1, use_bias=False), nn.MaxPool2D(2))
        net.add(nn.BatchNorm(momentum=0.6, scale=False), nn.GELU())
        net.add(nn.Conv2D(channels, 3, padding=1, use_bias=False))
        net.add(nn.BatchNorm(momentum=0.6, scale=False), nn.GELU())
    # The script divides the scores by 256 and sums the loss over 2,000 images; here rates and decays include both.
    head = nn.Dense(classes, use_bias=False, weight_initializer=mx.init.Normal(1 / 256))
    net.add(nn.MaxPool2D(3), nn.Flatten(), head)
    head.weight.lr_mult = 0.67 * 2000 / 256**2 / 0.24
    offsets = net.collect_params(".*(bias|beta)")
    offsets.setattr("lr_mult", 0.053 * 2000 / 0.24)
    offsets.setattr("wd_mult", head.weight.lr_mult * 0.24 / (0.053 * 2000))
    return net


def _dense(classes: int, hidden: list[tuple[int, str]]) -> Any:
    nn = mxnet().gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Flatten(), *(nn.Dense(units, activation=kind) for units, kind in hidden), nn.Dense(classes))
    return net


#: Hidden layers and their activations: softmax regression; a difficult start for plain gradient descent; and one for
#: tests and the cost of a batch without convolutions.
for _name, _hidden in {
    "softmax": [],
    "sigmoid_100": [(100, "sigmoid")],
    "sigmoid_300_100_50": [(300, "sigmoid"), (100, "relu"), (50, "sigmoid")],
    "mlp": [(256, "relu"), (256, "relu")],
}.items():
    SMALL_NETS.add(_name, functools.partial(_dense, hidden=_hidden))


def _zoos() -> list[Any]:
    """The available ``get_model`` functions, gluoncv's first, each with its names."""
    found = []
    with contextlib.suppress(ImportError):
        mxnet()
        zoo = importlib.import_module("gluoncv.model_zoo.model_zoo")
        found.append((zoo.get_model, set(zoo._models)))
    vision = mxnet().gluon.model_zoo.vision
    names = {n for n in dir(vision) if callable(getattr(vision, n)) and n[0].islower() and n != "get_model"}
    found.append((lambda name, **kw: getattr(vision, name)(**kw), names - {"get_resnet", "get_vgg"}))
    return found


def net_names() -> list[str]:
    """Every available name for :func:`build_net`.

    >>> "small_cnn" in net_names()
    True
    """
    return sorted(set(SMALL_NETS.names()).union(*(known for _, known in _zoos())))


def build_net(name: str, classes: int) -> Any:
    """A new, uninitialized net with ``classes`` outputs.

    Raises:
        UsageError: unknown name; offers the nearest ones.
        GluontuneError: the net cannot be built with that number of classes.

    >>> build_net("small_cnn", 10)[-1]
    Dense(None -> 10, linear)
    """
    if name in SMALL_NETS:
        return SMALL_NETS[name](classes)
    for get_model, known in _zoos():
        if name.lower() in known:
            try:
                return get_model(name.lower(), classes=classes, pretrained=False)
            except TypeError as error:
                raise GluontuneError(f"net {name!r} cannot be built for {classes} classes: {error}") from error
    known_names = net_names()
    close = nearest(name, known_names, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else "gluontune train --list net shows them"
    raise UsageError(f"unknown net {name!r} among {len(known_names)} known ones: {hint}")


def give_values(net: Any, ctx: Any = None) -> bool:
    """Initialize a net if a parameter has no values. Returns whether it did."""
    lacks = any(not p._data and not p._deferred_init for p in net.collect_params().values())
    if lacks:
        net.initialize(compute.FirstValues(), ctx=ctx)
    return lacks
