"""A net with its trained parameters from a checkpoint or a parameter file; for ``load``, export and inference.

From a checkpoint with averaged weights (methods ``ema``, ``lookahead``) the net gets these, the validated ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from gluontune import compute
from gluontune.convert.graph.params import load_parameters, perturb, set_parameters
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.job import checkpoint
from gluontune.job.data import make_feed
from gluontune.job.job import Job, give_values, load_job
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet


@dataclass
class Trained:
    """A net ready for inference.

    Args:
        net: takes normalized float32 (N, C, H, W). data: the data set of its training.
        image_shape: (H, W, C). recipe: of its training, as far as known.
        own: the job's training objective besides softmax cross-entropy and accuracy, or None.
        inputs: inputs of the net, for a job with Gluon datasets; data is None then.
    """

    net: Any
    data: Any
    image_shape: tuple[int, int, int]
    recipe: Recipe
    own: str | None = None
    inputs: tuple[Any, ...] = ()


def recipe_of_source(source: str | Path | None, recipe: Recipe, keep: Sequence[str] = ()) -> Recipe:
    """The recipe of a checkpoint, else ``recipe``. No mxnet is needed.

    Args:
        keep: fields of ``recipe`` that override the checkpoint's.
    """
    path = _checkpoint_of(source)
    if path is None:
        return recipe
    header = checkpoint.read_header(path, whole=False)
    if not header.get("recipe"):
        return recipe
    if not isinstance(header["recipe"], dict):
        raise GluontuneError(f"{source}: its recipe is none")
    theirs, mine = Recipe.from_dict(header["recipe"], str(source)), recipe.to_dict()
    if theirs.job is not None and "job" not in keep and theirs.job != recipe.job:
        raise UsageError(
            f"{source}: was trained with the job file {theirs.job}, a program that would run: name it yourself, with "
            f"--job {quote(theirs.job)}"
        )
    return theirs.override(**{name: mine[name] for name in keep})


def trained(
    recipe: Recipe, source: str | Path | None, *, image_size: int | None = None, images: bool = True
) -> Trained:
    """Build the recipe's net with the parameters of ``source``.

    Args:
        source: a checkpoint (``.ckpt``), a folder of them (the newest), a ``.params`` or ``.npz`` file; None: random
            weights by the recipe's seed, with BatchNorm's values moved off their initial ones.
        image_size: side of the images of a data set with mixed sizes.
        images: refuse a job with Gluon datasets.
    """
    mx = mxnet()
    job = load_job(recipe)
    data = job.dataset
    if data is None and images:
        raise GluontuneError(
            f"{recipe.job}: data() returns Gluon datasets; this is for images of a named data set "
            "('folder:/data/birds'), on which it is checked. Any net alone: gt.train.load(RUN), then gt.export.to_onnx"
        )
    shape = (0, 0, 0) if data is None else data.image_shape or ((image_size,) * 2 + (3,) if image_size else None)
    if shape is None:
        raise UsageError(f"data set {data.name} has images of mixed sizes: say --image-size, such as 224")
    path = _checkpoint_of(source)
    arrays = checkpoint.read(path)[1] if path is not None else {}
    mx.random.seed(recipe.seed)
    net = job.net()
    give_values(net)
    inputs: tuple[Any, ...] = ()
    if data is None:
        one = recipe.override(loader="gluon", batch_size_per_device=1)
        with contextlib.closing(make_feed(one, job, 0, 1)) as feed:
            inputs = feed.inputs(mx.cpu())
    net(*inputs or (mx.nd.zeros((1, shape[2], shape[0], shape[1])),))
    if path is not None:
        set_parameters(net, checkpoint.weights_in(arrays), str(source))
    elif source is not None:
        load_parameters(net, source)
    else:
        perturb(net, recipe.seed)
    return Trained(net, data, shape, recipe, _own(job), inputs)


def load(source: str | Path, *, pixels: bool = False, job: str | Path | None = None) -> Any:
    """The net that a run has trained, as its ``net()`` built it: no rewrites, imperative, float32, on the CPU.

    With averaged weights (methods ``ema`` and ``lookahead``) it has these. ``gt.applied(recipe, net, x)`` repeats the
    rewrites. Hybridize it, save it with ``net.save_parameters``, or predict with it.

    Args:
        source: a checkpoint (``.ckpt``) or the folder of a run's checkpoints, of which the newest whole one is read.
        pixels: return the net behind its input stage, for uint8 (N, H, W, C) as in the loaders. Otherwise it takes the
            inputs of ``net()``: normalized float32 (N, C, H, W) for a data set.
        job: the present path of the run's ``job.py``, if it was moved.

    Returns:
        a Gluon block; a dict of them for several nets.

    Raises:
        GluontuneError: no checkpoint, a damaged one, or one of another net than that of ``net()`` now.
        UsageError: ``pixels`` for a job with its own datasets.

    >>> import tempfile, gluontune as gt
    >>> folder = tempfile.mkdtemp()
    >>> fast = gt.Recipe(net="mlp", loader="resident", train_samples=512, val_samples=128)
    >>> result = gt.train.run(fast, checkpoints=gt.train.Checkpoints(folder))
    >>> net = gt.train.load(folder, pixels=True)
    >>> net(gt.runtime.mxnet().nd.zeros((4, 28, 28, 1), dtype="uint8")).shape
    (4, 10)
    """
    path = _checkpoint_of(source) or Path(source)
    header, arrays = checkpoint.read(path)
    recipe = Recipe.from_dict(header["recipe"], str(path))
    if job is not None:
        recipe = recipe.override(job=str(job))
    work = load_job(recipe)
    saved = checkpoint.weights_in(arrays)
    made = work.net()
    if isinstance(made, Mapping):
        made = {str(name): net for name, net in made.items()}
        for name, net in made.items():
            own = {k[len(name) + 1 :]: v for k, v in saved.items() if k.startswith(f"{name}.")}
            set_parameters(net, own, f"{path} ({name})")
    else:
        set_parameters(made, saved, str(path))
    if not pixels:
        return made
    data = work.dataset
    if data is None or isinstance(made, dict):
        raise UsageError(
            "pixels=True: the job brings its own datasets, which no input stage stands before; leave it out"
        )
    return compute.with_input_stage(made, compute.InputStage(data.mean, data.std))


def _own(job: Job) -> str | None:
    if job.step is not None:
        return "the job has a step() of its own"
    if job.dataset is None:
        return "data() returns Gluon datasets"
    loss, metric = job.loss(), job.metric()[0]
    usual = mxnet().gluon.loss.SoftmaxCrossEntropyLoss
    options = [getattr(loss, name, None) for name in ("_sparse_label", "_from_logits", "_weight", "_axis")]
    if type(loss) is not usual or options[:3] != [True, False, None] or options[3] not in (-1, 1):
        return f"the job's loss is {loss}"
    if metric is not None and type(metric) is not mxnet().metric.Accuracy:
        return f"the job's metric is {metric.name}"
    return None


def _checkpoint_of(source: str | Path | None) -> Path | None:
    """The checkpoint of a path, or None for a parameter file and for random weights."""
    if source is None:
        return None
    path = Path(source)
    if path.is_dir():
        newest, _, _ = checkpoint.newest(path)
        if newest is None:
            raise GluontuneError(f"{path}: no checkpoint in this folder (step-….ckpt)")
        return newest
    return path if path.suffix == ".ckpt" else None
