"""The training of a migrated project: the recipe's data, schedule and optimizer, with torch and numpy alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.convert.migrate.copying import copied
from gluontune.convert.migrate.text import tidied
from gluontune.core.errors import GluontuneError
from gluontune.core.files import atomic_write
from gluontune.loading.augment import AUGMENTS
from gluontune.optim import _schedules
from gluontune.optim.cards import exempt_name
from gluontune.optim.torch_rules import Part, TorchOptimizer, rates_of
from gluontune.recipe import Recipe

_TEMPLATE = Path(__file__).parent / "templates" / "train.py.j2"
_MOST = 400 * 2**20  # bytes of pixels in data.npz
_HEADER = '''"""The optimizer's rule and the schedule of train.py. Taken from gluontune (Apache-2.0)."""

from __future__ import annotations

'''


def write_training(
    place: Path, recipe: Recipe, data: Any, lr_mult: Mapping[str, float], wd_mult: Mapping[str, float]
) -> str | None:
    """Write ``train.py``, ``rules.py`` and ``data.npz`` beside a project's ``model.py``.

    Args:
        place: the project. recipe: of ``train.py``. data: the opened data set.
        lr_mult, wd_mult: of single parameters, by their names in the project.

    Returns:
        None, or the reason why nothing was written.
    """
    reason = _why_not(recipe, data)
    if reason is not None:
        return reason
    recipe = recipe.resolved()
    train, test = (_images(split, most) for split, most in (
        (data.train, recipe.train_samples), (data.test, recipe.val_samples)
    ))  # fmt: skip
    batch = recipe.global_batch_size
    per_epoch = len(train[0]) // batch
    if per_epoch == 0:
        return f"{len(train[0])} training images make no whole batch of {batch}"
    total = max(1, round(recipe.epochs * per_epoch))
    schedule = rates_of(recipe, steps=total, steps_per_epoch=per_epoch)
    options = {"momentum": recipe.momentum, "wd": float(recipe.wd or 0.0), **recipe.optimizer_params}
    optimizer = TorchOptimizer(recipe.optimizer, {}, schedule, **options)
    rates: set[Callable[..., Any]] = set()
    rate = expression(schedule, rates)
    used: tuple[Callable[..., Any], ...] = (Part, exempt_name, *rates)
    named = {"rule": optimizer.rule, **{each.__name__: each for each in used}}
    import jinja2

    text = jinja2.Template(_TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True, lstrip_blocks=True).render(
        recipe=recipe, rate=rate,
        rules=sorted(named),
        options={name: value for name, value in optimizer.options.items() if name != "clip_gradient"},
        limit=optimizer.options.get("clip_gradient"), updates=max(1, total // recipe.accumulate), batch=batch,
        augment=AUGMENTS[recipe.augment or data.augment], lr_mult=dict(lr_mult), wd_mult=dict(wd_mult),
        mean=[round(float(value), 6) for value in data.mean],
        std=[round(float(value), 6) for value in data.std],
    )  # fmt: skip
    rules = tidied(copied(named, _HEADER))
    for name, content in (("train.py", tidied(text)), ("rules.py", rules)):
        with atomic_write(place / name) as stream:
            stream.write((content.rstrip("\n") + "\n").encode("utf-8"))
    with atomic_write(place / "data.npz") as stream:
        names = ("train_images", "train_labels", "test_images", "test_labels")
        np.savez(stream, **dict(zip(names, (*train, *test))))
    return None


def _why_not(recipe: Recipe, data: Any) -> str | None:
    shape = data.image_shape
    if shape is None:
        return f"data set {data.name} has images of mixed sizes"
    size = math.prod(shape) * (len(data.train) + len(data.test))
    if size > _MOST:
        return f"data set {data.name} has {size / 2**20:,.0f} MiB of pixels, more than {_MOST / 2**20:.0f}"
    augment = AUGMENTS[recipe.augment or data.augment]
    if augment.geometry not in ("fit", "pad-crop") or augment.finishes:
        return f"augment={augment.name!r} has no plain text yet"
    for field, known in (
        ("methods", {}), ("stochastic_depth", 0.0), ("dtype", ("float32", "bfloat16")), ("last_batch", "discard"),
    ):  # fmt: skip
        value = getattr(recipe, field)
        if value != known and not (isinstance(known, tuple) and value in known):
            return f"recipe field {field}={value!r} has no plain text yet"
    try:
        TorchOptimizer(recipe.optimizer, {}, lambda n: 0.0)
    except GluontuneError as error:
        return str(error)
    return None


def _images(split: Any, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    count = len(split) if most is None else min(most, len(split))
    return np.stack([split.decode(i) for i in range(count)]), np.asarray(split.labels[:count], np.int64)


def expression(rate: Any, used: set[Callable[..., Any]] | None = None, n: str = "n") -> str:
    """A schedule as a Python expression of the update ``n``.

    Args:
        rate: a ``gt.optim.schedules`` schedule. used: gets the functions that the expression calls.

    >>> from gluontune.optim.schedules import cosine, warmup
    >>> expression(cosine(base_lr=0.4, max_update=100))
    '_cosine_rate(n, base_lr=0.4, max_update=100, final_lr=0.0)'
    """
    kind, params = rate.kind, dict(rate.params)
    if kind == "constant":
        return repr(params["base_lr"])
    if kind == "scale":
        return f"{params['by']!r} * {expression(params['schedule'], used, n)}"
    if kind == "in_epochs":
        return expression(params["schedule"], used, f"{n} / {params['updates_per_epoch']!r}")
    run = _schedules._RULES[kind]
    if used is not None:
        used.add(run)

    def text(value: Any) -> str:
        if isinstance(value, _schedules.Schedule):
            return f"lambda n: {expression(value, used)}"
        if isinstance(value, tuple) and any(isinstance(item, _schedules.Schedule) for item in value):
            return f"[{', '.join(text(item) for item in value)}]"
        return repr(list(value)) if isinstance(value, tuple) else repr(value)

    given = ", ".join(f"{name}={text(value)}" for name, value in params.items())
    return f"{run.__name__}({n}, {given})"
