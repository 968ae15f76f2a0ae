"""The project on disk: model, operators, weights, reference, check and README; with a recipe its training, too."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gluontune.convert.bridge.agreement import gradients_of, outputs_of
from gluontune.convert.bridge.names import is_attribute
from gluontune.convert.bridge.source import as_numpy
from gluontune.convert.bridge.stand_ins import rounded
from gluontune.convert.migrate.calls import Trace, nested, trace_calls
from gluontune.convert.migrate.classes import Writer
from gluontune.convert.migrate.copying import copied
from gluontune.convert.migrate.text import model_text, tidied
from gluontune.core.arrays import flat
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.files import atomic_write, writable_folder
from gluontune.loading.augment import AUGMENTS
from gluontune.optim import _schedules
from gluontune.optim.cards import exempt_name, rates_of
from gluontune.optim.torch_rules import Part, TorchOptimizer
from gluontune.recipe import Recipe
from gluontune.runtime import mxnet
from gluontune.runtime.pytorch import torch

_TEMPLATES = Path(__file__).parent / "templates"
_MULTS = ("lr_mult", "wd_mult")
_KEPT = 4096  # numbers of each gradient in the reference
_MOST = 400 * 2**20  # bytes of pixels in data.npz
_HEADER = '''"""The optimizer's rule and the schedule of train.py. Taken from gluontune (Apache-2.0)."""

from __future__ import annotations

'''


@dataclass(frozen=True)
class Migrated:
    """The written project.

    Args:
        path: the folder. files: in it. classes: of ``model.py``. parameters: count of trained numbers.
        agrees: whether ``check.py`` found agreement. told: its output.
        untrained: the reason why ``train.py`` is missing, or None.
    """

    path: str
    files: tuple[str, ...]
    classes: int
    parameters: int
    agrees: bool
    told: str
    untrained: str | None = "no recipe was given"


def migrate(net: Any, out: str | Path, sample: Any, *, recipe: Recipe | None = None, data: Any = None) -> Migrated:
    """Write a PyTorch project of a Gluon net that needs neither mxnet nor gluontune, and run its check.

    Args:
        net: an initialized ``HybridBlock``. out: a new or empty folder.
        sample: the net's input: an array, or a tuple of arrays and of lists of them (states); the check compares on it.
        recipe, data: of its training, and the opened data set; with both, ``train.py`` is written too, with the images
            (``data.npz``), the schedule and the optimizer's rule. Its loss is softmax cross-entropy.

    Returns:
        The written project, and whether its outputs, gradients and statistics agree with MXNet's.

    Raises:
        GluontuneError: the net cannot be traced (the message has the line), an operator is unknown or has no text;
            PyTorch is missing. UsageError: ``out`` is not empty.

    >>> import tempfile
    >>> net = mxnet().gluon.nn.Dense(3, in_units=2)
    >>> net.initialize()
    >>> made = migrate(net, Path(tempfile.mkdtemp()) / "project", np.ones((4, 2), "float32"))
    >>> made.agrees, made.parameters
    (True, 9)
    """
    library = torch()
    place = Path(out)
    if place.is_dir() and any(place.iterdir()):
        raise UsageError(f"{place}: holds files already; name a new folder")
    sample = sample if isinstance(sample, tuple) else (sample,)
    given = nested(sample, map(as_numpy, flat(sample)))
    trace, texts = written(net, given)
    source, names = trace.source, trace.names
    texts["pyproject.toml"] = "[tool.ruff]\nline-length = 100\n"
    texts["check.py"] = (_TEMPLATES / "check.txt").read_text(encoding="utf-8")
    texts["README.md"] = (_TEMPLATES / "README.txt").read_text(encoding="utf-8").replace("NET", _title(net))
    texts["requirements.txt"] = f"torch>={library.__version__.split('+')[0].rsplit('.', 1)[0]}\nnumpy\n"
    writable_folder(place)
    for name, text in texts.items():
        _write(place / name, text)
    weights = {names[n]: library.from_numpy(np.array(a, order="C")) for n, a in source.arrays.items()}
    with atomic_write(place / "weights.pt") as stream:
        library.save(weights, stream)
    with atomic_write(place / "reference.npz") as stream:
        np.savez(stream, **_reference(trace, given))
    untrained: str | None = "no recipe was given"
    if recipe is not None and data is not None:
        params = [(names[p.name], p) for p in net.collect_params().values() if p.name in names]
        mults = ({n: getattr(p, kind) for n, p in params if getattr(p, kind) != 1.0} for kind in _MULTS)
        untrained = write_training(place, recipe, data, *mults)
    ran = run_check(place)
    output, error = ran.stdout.strip(), (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
    if not output.endswith(("agrees", "does NOT agree")):
        output = f"{output}\n{place}/check.py does not run: {error}".strip()
    trained = sum(int(a.size) for n, a in source.arrays.items() if n not in source.frozen)
    count = texts["model.py"].count("\nclass ")
    files = tuple(sorted(p.name for p in place.iterdir() if p.is_file()))
    return Migrated(str(place), files, count, trained, ran.returncode == 0, output, untrained)


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as stream:
        stream.write(text.encode("utf-8"))


def run_check(place: Path) -> subprocess.CompletedProcess[str]:
    """``check.py`` of the project in ``place``, in a process of its own that knows nothing of gluontune."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "check.py"], cwd=place, capture_output=True, text=True, env=env, check=False)


def _title(net: Any) -> str:
    name = type(net).__name__
    return name if is_attribute(name) else "A net"


def written(net: Any, given: tuple[Any, ...]) -> tuple[Trace, dict[str, str]]:
    """A net as ``model.py`` and, if needed, ``operators.py``."""
    trace = trace_calls(net, given)
    writer = Writer(trace)
    root = writer.net()
    texts = {"model.py": tidied(model_text(root, f"{_title(net)}, migrated from MXNet Gluon.", writer.used))}
    if writer.used:
        texts["operators.py"] = tidied(copied(writer.used))
    return trace, texts


def _reference(trace: Trace, given: Any) -> dict[str, np.ndarray]:
    """Inputs, and MXNet's outputs, gradients and statistics in float64, by the names of the project.

    In float32 for operators that MXNet has in float32 only.
    """
    error = mxnet().MXNetError
    few = any(node.op and rounded(node.op, node.attrs) for call in trace.calls for node in call.graph.nodes)
    try:
        return {**_computed(trace, given, "float64"), **({"dtype": np.array("rounded")} if few else {})}
    except error:
        try:
            return _computed(trace, given, "float32")
        except error as why:
            reason = [line for line in str(why).splitlines() if line.strip()][-1]
            raise GluontuneError(f"MXNet itself cannot compute the net on this sample: {reason}") from why


def _computed(trace: Trace, given: Any, dtype: str) -> dict[str, np.ndarray]:
    names, samples = trace.names, flat(given)
    kept: dict[str, np.ndarray] = {f"input/{i}": s for i, s in enumerate(samples)}
    wide = [s.astype(dtype) if s.dtype.kind == "f" else s for s in samples]
    for i, array in enumerate(outputs_of(trace.blocks[0], wide, dtype)):
        kept[f"output/{i}"] = array
    outputs, gradients, states, heads = gradients_of(trace.blocks[1], wide, dtype)
    for i, (array, head) in enumerate(zip(outputs, heads)):
        kept[f"trained/{i}"], kept[f"head/{i}"] = array, head
    for name, array in gradients.items():
        kept[f"gradient/{names[name]}"] = array.reshape(-1)[:: max(1, array.size // _KEPT)]
    for name, array in states.items():
        kept[f"state/{names[name]}"] = array
    nests = {"takes": given, "output": trace.calls[0].gives, "trained": trace.calls[1].gives}
    forms = {f"nest/{kind}": np.array(json.dumps(_places(nest))) for kind, nest in nests.items()}
    return {**kept, **forms, "dtype": np.array(dtype)}


def _places(nest: Any) -> Any:
    """Nested lists with zeros for their items."""
    if isinstance(nest, list) or (isinstance(nest, tuple) and not all(type(n) is int for n in nest)):
        return [_places(item) for item in nest]
    return nest if nest is None else 0


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
    train, test = _images(data.train, recipe.train_samples), _images(data.test, recipe.val_samples)
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

    template = (_TEMPLATES / "train.py.j2").read_text(encoding="utf-8")
    text = jinja2.Template(template, trim_blocks=True, lstrip_blocks=True).render(
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
        _write(place / name, content.rstrip("\n") + "\n")
    with atomic_write(place / "data.npz") as stream:
        np.savez(stream, train_images=train[0], train_labels=train[1], test_images=test[0], test_labels=test[1])
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
