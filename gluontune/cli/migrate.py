"""``gluontune migrate``: a Gluon net, or a whole script, as a PyTorch project, checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from gluontune.cli._common import JSON_OPTION, argument, deliver, option, say
from gluontune.cli._progress import status_line
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.recipe import Recipe


def migrate(
    recipe: Recipe,
    given: dict[str, Any],
    places: Optional[list[str]] = argument(
        None,
        "A script, with its own words after --; a job.py, a checkpoint (.ckpt) or a folder of them, a .params or .npz "
        "file; then a new folder.",
        metavar="[SOURCE] OUT [-- ARGS]",
    ),
    image_size: Optional[int] = option(None, "Side of the images, for data sets of mixed sizes.", min=1),
    as_json: bool = JSON_OPTION,
) -> int:
    """Write a PyTorch project of a net or a whole script that needs neither mxnet nor gluontune, and run its check.

    Of a script: nets, losses, backward passes, updates and data, and a check of its first steps. It runs unchanged
    until it has taken them; what it has written by then stays. What cannot be written is refused with its line.

    Of a job, a checkpoint or a net: model.py has classes after the Gluon blocks, weights.pt the parameters by Gluon's
    names, check.py compares outputs, gradients and running statistics with MXNet's, train.py trains on data.npz by the
    recipe's schedule and optimizer. A checkpoint brings its recipe; for .params and .npz files say --net and --dataset
    (or --job); a job.py alone, or --net alone, has random weights. Exits 1 if the check shows a difference.
    """
    given_words = places or []
    if given_words[:1] and given_words[0].endswith(".py") and len(given_words) > 1:
        from gluontune.job.user_file import trains

        if len(given_words) > 2 or trains(given_words[0]):
            return _script(given_words[0], given_words[1], given_words[2:], as_json)
    source, out = _places([Path(word) for word in given_words])
    if source is not None and source.suffix == ".py":
        recipe, source = recipe.override(job=str(source)), None
    with status_line("migrating"):
        from gluontune.convert.migrate.project import migrate as write
        from gluontune.job.trained import recipe_of_source, trained

        keep = [name for name in given if name in ("dataset", "job")]
        found = trained(recipe_of_source(source, recipe, keep), source, image_size=image_size, images=False)
        training = {"recipe": found.recipe, "data": found.data} if found.own is None else {}
        made = write(found.net, out, _sample(found), **training)
        if found.own is not None:
            made = replace(made, untrained=found.own)
    lines = (
        f"{made.path}: {', '.join(made.files)}",
        f"{made.parameters:,} trained numbers, {made.classes} classes in model.py",
        made.told,
        "train.py goes on training" if made.untrained is None else f"no train.py: {made.untrained}",
    )
    deliver(vars(made), as_json, lambda: say(*lines))
    return 0 if made.agrees else 1


def _script(script: str, out: str, args: list[str], as_json: bool) -> int:
    with status_line("migrating"):
        from gluontune.capture.api import migrate_script

        made = migrate_script([script, *args], out)
    lines = (
        f"{made.path}: {', '.join(made.files)}",
        f"{made.parameters:,} numbers of {len(made.nets)} nets, {made.losses} losses, {made.steps} steps compared",
        made.told,
        *(f"by hand: {one}" for one in made.by_hand),
    )
    deliver(vars(made), as_json, lambda: say(*lines))
    return 0


def _places(places: list[Path]) -> tuple[Optional[Path], Path]:
    if len(places) not in (1, 2):
        raise UsageError(f"migrate: {len(places)} paths given; write [SOURCE] OUT")
    source = places[0] if len(places) == 2 else None
    if source is not None and source.suffix == ".json":
        raise UsageError(
            f"{source}: a symbol has lost its blocks, from which the classes are made: give the job.py or "
            "--net, with the .params; gt.bridge.to_torch turns the symbol itself into a module"
        )
    if source is not None and not source.exists():
        raise GluontuneError(f"{source}: no such file or folder")
    return source, places[-1]


def _sample(found: Any) -> Any:
    """Four inputs for the check: pixels normalized for the net, or the job's first sample."""
    import numpy as np

    if found.inputs:
        return tuple(array.asnumpy() for array in found.inputs)
    height, width, channels = found.image_shape
    drawn = np.random.default_rng(found.recipe.seed).standard_normal((4, channels, height, width))
    return drawn.astype("float32")
