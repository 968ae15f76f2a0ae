"""The trained net back from what a run has kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gluontune import compute
from gluontune.errors import GluontuneError, UsageError
from gluontune.export.parameters import set_parameters
from gluontune.recipe import Recipe
from gluontune.train import checkpoint
from gluontune.train.job import load_job

__all__ = ["load"]


def load(source: str | Path, *, pixels: bool = False, job: str | Path | None = None) -> Any:
    """The net that a run has trained, as its ``net()`` built it: no rewrites, imperative, float32, on the CPU.

    With averaged weights (methods ``ema`` and ``lookahead``) it has these. What was rewritten for speed is not
    rewritten here; ``gt.applied(recipe, net, x)`` does it again. Hybridize it, save it with ``net.save_parameters``,
    or predict with it.

    Args:
        source: a checkpoint (``.ckpt``) or the folder of a run's checkpoints, whose newest whole one is read.
        pixels: return the net behind its input stage: it takes uint8 (N, H, W, C) as the loaders give them. Else it
            takes what ``net()`` takes: for a data set normalized float32 (N, C, H, W).
        job: where the run's ``job.py`` is now, if it was moved.

    Returns:
        a Gluon block; a dict of them where the job has several nets.

    Raises:
        GluontuneError: no checkpoint there, damaged, or of another net than ``net()`` gives now.
        UsageError: ``pixels`` for a job that brings its own datasets.

    >>> import tempfile, gluontune as gt
    >>> folder = tempfile.mkdtemp()
    >>> fast = gt.Recipe(net="mlp", loader="resident", train_samples=512, val_samples=128)
    >>> result = gt.train.run(fast, checkpoints=gt.train.Checkpoints(folder))
    >>> net = gt.train.load(folder, pixels=True)
    >>> net(gt.runtime.mxnet().nd.zeros((4, 28, 28, 1), dtype="uint8")).shape
    (4, 10)
    """
    path = Path(source)
    if path.is_dir():
        newest, _, _ = checkpoint.newest(path)
        if newest is None:
            raise GluontuneError(f"{path}: no checkpoint in this folder (step-….ckpt)")
        path = newest
    header, arrays = checkpoint.read(path)
    recipe = Recipe.from_dict(header["recipe"], str(path))
    if job is not None:
        recipe = recipe.override(job=str(job))
    work = load_job(recipe)
    saved = checkpoint.weights_in(arrays)
    made = work.net()
    if isinstance(made, Mapping):
        nets = {str(name): net for name, net in made.items()}
        for name, net in nets.items():
            own = {k[len(name) + 1 :]: v for k, v in saved.items() if k.startswith(f"{name}.")}
            set_parameters(net, own, f"{path} ({name})")
        found: Any = nets
    else:
        set_parameters(made, saved, str(path))
        found = made
    if not pixels:
        return found
    data = work.dataset
    if data is None or isinstance(found, dict):
        raise UsageError(
            "pixels=True: the job brings its own datasets, which no input stage stands before; leave it out"
        )
    return compute.with_input_stage(found, compute.InputStage(data.mean, data.std))
