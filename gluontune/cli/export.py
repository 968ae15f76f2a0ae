"""``gluontune export``: a trained net as ONNX, checked."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Optional

from gluontune.cli._common import JSON_OPTION, argument, deliver, emit, option, say, stderr, stdout, stdout_reserved
from gluontune.cli._progress import status_line
from gluontune.core.errors import UsageError
from gluontune.recipe import Recipe


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
    source, out = _places(places, random)
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
    deliver(found, as_json, lambda: _show(found))
    return 0 if found["check"]["equal"] else 1


def _places(places: list[Path], random: bool) -> tuple[Optional[Path], Path]:
    wanted = 1 if random else 2
    if len(places) != wanted:
        text = "OUT.onnx alone with --random" if random else "RUN_OR_PARAMS OUT.onnx (or --random and OUT.onnx)"
        raise UsageError(f"export onnx: {len(places)} path{'s' if len(places) > 1 else ''} given; write {text}")
    if places[-1].suffix != ".onnx":
        raise UsageError(f"{places[-1]}: the file to write ends in .onnx")
    return (None if random else places[0]), places[-1]


def _show(found: dict[str, Any]) -> None:
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

    def build(name: str) -> Any:
        return build_net(name, classes)

    if out is not None:
        writable_folder(out)
    with stdout_reserved(), tempfile.TemporaryDirectory() as scratch:
        export.export_zoo(build, out or scratch, names or None, keep=out is not None, on_row=show)
    equal = sum(row["status"] == "equal" for row in rows)
    text = f"{equal} of {len(rows)} exported, run in ONNX Runtime, and equal to 1e-5 of the largest output"
    deliver({"rows": rows, "equal": equal, "nets": len(rows)}, as_json, lambda: say(text))
    return 0 if equal == len(rows) else 1


GROUP = "Export a net to ONNX, and check that it computes the same."
COMMANDS = (onnx, zoo)
