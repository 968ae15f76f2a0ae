"""A user's own scripts and nets: ``run``, ``capture``, ``init``, ``migrate`` and ``export``."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Optional

from gluontune.cli._common import deliver, emit, say, stderr, stdout, stdout_reserved
from gluontune.cli._options import JSON_OPTION, argument, names_of, option
from gluontune.cli._progress import status_line
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.recipe import Recipe


def run(
    words: list[str] = argument(..., "A Python file and its own words.", metavar="SCRIPT [ARGS…]"),
    module: bool = option(False, "SCRIPT is a module, as after python -m.", "-m"),
    out: Optional[Path] = option(None, "Write what was changed and gained to FILE.json."),
    backend: str = option("mxnet", "torch: PyTorch computes, once a step is proven."),
    device: str = option("auto", "Where PyTorch computes: auto (a GPU, if it sees one), cpu, cuda:1."),
    dtype: str = option("float32", "bfloat16: MXNet computes in it on the CPU; losses change."),
    leave: Optional[str] = option(None, "Changes to leave out: environment, samples, blocks."),
) -> None:
    """Run a script as it is, faster, with its own output, files and exit code.

    All that follows SCRIPT is the script's. Changes are kept where they measure better while it trains; two lines
    on stderr say at the end what they brought. With GLUONTUNE_DEVICE=cpu, here and in every command that takes a
    script, mx.gpu(i) is the CPU.
    """
    from gluontune.capture.script import CHANGES, ENVIRONMENT, start

    left = names_of(leave, "--leave") or []
    changes = (ENVIRONMENT, *CHANGES)
    if unknown := next((name for name in left if name not in changes), None):
        raise UsageError(f"--leave {leave!r}: {unknown!r} is no change; choose of {', '.join(changes)}")
    if backend not in ("mxnet", "torch"):
        raise UsageError(f"--backend {backend!r}: choose mxnet or torch")
    if backend == "torch" and ("blocks" in left or dtype != "float32"):
        raise UsageError("--leave blocks and --dtype go with --backend mxnet")
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype {dtype!r}: choose float32 or bfloat16")
    if dtype == "bfloat16":
        from gluontune.compute.process import bfloat16_support

        support = bfloat16_support()
        if support.level == "none":
            raise GluontuneError(f"--dtype bfloat16: {support.message}; leave it out")
    if device != "auto":
        if backend != "torch":
            raise UsageError("--device goes with --backend torch")
        from gluontune.runtime.pytorch import device as known

        known(device)
    start([*(["-m"] if module else []), *words], str(out) if out else None, left, dtype, backend, device)


def capture(
    words: list[str] = argument(..., "A Python file and its own words.", metavar="SCRIPT [ARGS…]"),
    module: bool = option(False, "SCRIPT is a module, as after python -m.", "-m"),
    steps: Optional[int] = option(
        None, "Training steps to look at; then the script is left. By default 20, fewer after ten seconds.", min=2
    ),
    time_limit: Optional[float] = option(None, "Seconds for all of it.", min=1),
    as_json: bool = JSON_OPTION,
) -> int:
    """Show what a Gluon script computes in a training step, and prove that PyTorch can compute it.

    The script is not changed. Its first steps are recorded operator by operator and computed again by MXNet and by
    PyTorch in float64. It exits with 1 where a step cannot be proven, and names the line.
    """
    from gluontune.capture import api

    found = api.capture([*(["-m"] if module else []), *words], steps, time_limit)
    deliver(found, as_json, lambda: say("\n".join(api.summary(found))))
    return 1 if found["refused"] else 0


def init(
    file: Path = argument(Path("job.py"), "The file to write.", metavar="[JOB.py]"), as_json: bool = JSON_OPTION
) -> None:
    """Write a commented job file: your net, data and loss for the ladder. Nothing is overwritten."""
    from gluontune import training
    from gluontune.core import files

    if file.suffix != ".py":
        raise UsageError(f"{file}: a job is a Python file; give a name that ends in .py")
    if file.exists():
        raise UsageError(f"{file}: this file exists and is not overwritten; give another name")
    template = Path(str(training.__file__)).with_name("job.py.template")
    with files.atomic_write(file, "w") as out:
        out.write(template.read_text(encoding="utf-8"))
    deliver({"out": str(file)}, as_json, lambda: say(f"wrote {file}; next: gluontune doctor --job {quote(str(file))}"))


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
            return _migrate_script(given_words[0], given_words[1], given_words[2:], as_json)
    source, out = _source_and_folder([Path(word) for word in given_words])
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
    counts = f"{made.parameters:,} trained numbers, {made.classes} classes in model.py"
    trains_on = "train.py goes on training" if made.untrained is None else f"no train.py: {made.untrained}"
    files = f"{made.path}: {', '.join(made.files)}"
    deliver(vars(made), as_json, lambda: say(files, counts, made.told, trains_on))
    return 0 if made.agrees else 1


def _migrate_script(script: str, out: str, args: list[str], as_json: bool) -> int:
    with status_line("migrating"):
        from gluontune.capture.api import migrate_script

        made = migrate_script([script, *args], out)
    nets = f"compared: numbers {made.parameters:,}, nets {len(made.nets)}, losses {made.losses}, steps {made.steps}"
    lines = (f"{made.path}: {', '.join(made.files)}", nets, made.told, *(f"by hand: {one}" for one in made.by_hand))
    deliver(vars(made), as_json, lambda: say(*lines))
    return 0


def _source_and_folder(places: list[Path]) -> tuple[Optional[Path], Path]:
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


def onnx(
    recipe: Recipe,
    given: dict[str, Any],
    places: list[Path] = argument(
        ...,
        "A checkpoint (.ckpt) or a folder of them, a .params or a .npz file; then the file to write.",
        metavar="[RUN_OR_PARAMS] OUT.onnx",
    ),
    random: bool = option(False, "Random weights, instead of a first argument."),
    preprocess: bool = option(False, "Put the normalization into the graph: it takes uint8 pixels, N×H×W×C."),
    batch: Optional[int] = option(None, "Fix the batch size; any fits otherwise.", min=1),
    image_size: Optional[int] = option(None, "Side of the images, for data sets of mixed sizes.", min=1),
    check_images: Optional[int] = option(None, "Compare on so many validation images; all of them by default.", min=1),
    as_json: bool = JSON_OPTION,
) -> int:
    """Export a net as ONNX and compare it with the original in ONNX Runtime.

    The outputs must agree to 1e-5 of the largest on real images, and the classes are compared over the whole
    validation set. A checkpoint brings its recipe; for .params and .npz files, and with --random, say --net and
    --dataset (or --job). Exits 1 if the exported model does not compute the same.
    """
    wanted = 1 if random else 2
    if len(places) != wanted:
        text = "OUT.onnx alone with --random" if random else "RUN_OR_PARAMS OUT.onnx (or --random and OUT.onnx)"
        raise UsageError(f"export onnx: {len(places)} path{'s' if len(places) > 1 else ''} given; write {text}")
    *sources, out = places
    if out.suffix != ".onnx":
        raise UsageError(f"{out}: the file to write ends in .onnx")
    source = next(iter(sources), None)
    with status_line("exporting") as tell:
        from gluontune import compute, export, loading
        from gluontune.job.trained import recipe_of_source, trained

        keep = [name for name in given if name in ("dataset", "job")]
        built = trained(recipe_of_source(source, recipe, keep), source, image_size=image_size)
        net, data, shape, recipe = built.net, built.data, built.image_shape, built.recipe
        tell("converting")
        facts = {"recipe": json.dumps(recipe.to_dict()), "net": recipe.net, "dataset": data.name}
        made = export.to_onnx(
            net, out, image_shape=shape, batch_size=batch, mean=data.mean, std=data.std, preprocess=preprocess,
            classes=data.classes, metadata=facts,
        )  # fmt: skip
        tell("comparing over the validation images")
        split = data.test if check_images is None else data.test.subset(range(min(check_images, len(data.test))))
        size = 64 if batch is None else batch
        with loading.build("threaded", split, batch_size=size, image_shape=shape, last_batch="keep") as loader:
            check = export.agreement(net, out, loader.epoch(0), compute.InputStage(data.mean, data.std))
    found = {**made.to_dict(), "net": recipe.net, "dataset": data.name, "check": check.to_dict()}
    deliver(found, as_json, lambda: _exported(found))
    return 0 if found["check"]["equal"] else 1


def _exported(found: dict[str, Any]) -> None:
    check = found["check"]
    fits = "any batch" if found["dynamic_batch"] else f"batch {found['input_shape'][0]}"
    say(
        f"{found['path']}: {found['nodes']} nodes, {found['bytes'] / 2**20:.1f} MiB, opset {found['opset']}, {fits}, "
        f"takes {found['input_dtype']} {tuple('N' if n is None else n for n in found['input_shape'])}",
        f"tidied: {', '.join(f'{n} {kind}' for kind, n in found['removed'].items())} removed",
        f"on {check['images']:,} validation images: classes agree on {check['agree_pct']:.2f} %, largest difference "
        f"{check['max_abs_error']:.1e} ({check['relative_error']:.1e} of the largest output); top-1 "
        f"{100 * check['accuracy']:.2f} % here, {100 * check['exported_accuracy']:.2f} % exported",
        "equal" if check["equal"] else "NOT equal: the difference passes 1e-5 of the largest output",
        *(f"note: {note}" for note in found["notes"]),
    )


def zoo(
    names: Optional[list[str]] = argument(None, "Of the zoos; 26 of them by default.", metavar="[NET…]"),
    out: Optional[Path] = option(None, "Keep the ONNX files in this folder."),
    classes: int = option(10, "Outputs of each net.", min=2),
    list_names: bool = option(False, "Show the default networks.", "--list"),
    as_json: bool = JSON_OPTION,
) -> int:
    """Export networks of the zoos with random weights and compare each in ONNX Runtime; failures have a reason."""
    from gluontune import export
    from gluontune.core.files import writable_folder
    from gluontune.job.job import build_net

    if list_names:
        emit(list(export.ZOO)) if as_json else print("\n".join(export.ZOO))
        return 0
    rows: list[dict[str, Any]] = []

    def show(row: dict[str, Any]) -> None:
        rows.append(row)
        error = "" if row["relative_error"] is None else f", differs by {row['relative_error']:.1e}"
        because = f": {row['reason']}" if row["reason"] else ""
        fixed = "" if row["dynamic_batch"] in (True, None) else ", batch fixed at 1"
        line = f"{row['name']}: {row['status']}{because}{'' if because else error}{fixed} ({row['seconds']:.1f} s)"
        say(line, to=stderr if as_json else stdout)

    if out is not None:
        writable_folder(out)
    with stdout_reserved(), tempfile.TemporaryDirectory() as scratch:
        build = partial(build_net, classes=classes)
        export.export_zoo(build, out or scratch, names or None, keep=out is not None, on_row=show)
    equal = sum(row["status"] == "equal" for row in rows)
    text = f"{equal} of {len(rows)} exported, run in ONNX Runtime, and equal to 1e-5 of the largest output"
    deliver({"rows": rows, "equal": equal, "nets": len(rows)}, as_json, lambda: say(text))
    return 0 if equal == len(rows) else 1


COMMANDS = (run, capture, init, migrate)
GROUPS = {"export": ("Export a net to ONNX, and check that it computes the same.", (onnx, zoo))}
