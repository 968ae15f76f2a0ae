"""The files of a climb's best recipe: ``best.yaml``, and ``best.py``, a script with the kept changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gluontune import runtime
from gluontune.core.errors import clean, literal
from gluontune.core.events import deciding
from gluontune.core.files import atomic_write, set_aside
from gluontune.job.models import SMALL_NETS
from gluontune.recipe import Recipe
from gluontune.search.revisit import AGAIN

_WIDTH = 1 << 20  # of a line of YAML
#: Fields of the climb, not of the job: they do not belong into somebody's recipe.
_CLIMB_FIELDS = ("train_samples", "val_samples", "seconds", "target_accuracy")


def write_best(document: Mapping[str, Any], folder: Path, step: str = "usual") -> dict[str, str | None] | None:
    """Write ``best.yaml``, and ``best.py`` if a script can train the recipe.

    Files of an earlier climb that this one does not replace become ``best.previous.yaml`` and ``best.previous.py``.

    Returns:
        ``{"yaml", "script", "reason"}``: names, and the reason for no script; None if naive is the best.
    """
    if document["best"] is None or document["best"]["name"] == "naive":
        set_aside(folder / "best.yaml")
        set_aside(folder / "best.py")
        return None
    best = Recipe.from_dict(document["best"]["recipe"])
    with atomic_write(folder / "best.yaml") as file:
        file.write(best_yaml(document).encode("utf-8"))
    reason = _no_script(best, step)
    if reason is not None:
        set_aside(folder / "best.py")
    else:
        script = best_script(document) if best.job is None else job_script(document)
        with atomic_write(folder / "best.py") as file:
            file.write(script.encode("utf-8"))
    return {"yaml": "best.yaml", "script": None if reason else "best.py", "reason": reason}


def _no_script(best: Recipe, step: str) -> str | None:
    if best.backend == "torch":
        return (
            "PyTorch trains it in gluontune's loop: gluontune train --recipe best.yaml; a PyTorch project of your own "
            "comes from gluontune migrate"
        )
    ranks = best.engine == "shared-memory" and best.exchange_every == 1
    if not ranks and (best.engine != "local" or best.num_devices > 1):
        return "its processes need more than a plain script: gluontune train --recipe best.yaml starts them"
    if best.methods:
        names = ", ".join(best.methods)
        return f"its methods ({names}) are gluontune's: gluontune train --recipe best.yaml trains with them"
    if best.dtype == "float16":
        return "float16 needs more than a plain script: gluontune train --recipe best.yaml"
    if best.job is not None:
        why = "the job's own step() trains in gluontune's loop: gluontune train --recipe best.yaml trains it"
        return None if step == "usual" else why
    return None


def changed_fields(document: Mapping[str, Any]) -> dict[str, str]:
    """Each field that the climb changed, with its rung's gain: one line, for comments."""
    gains: dict[str, str] = {}
    for row in document["rungs"]:
        if not row["kept"] or row["name"] == "naive":
            continue
        by_time, ratio = (row.get("seconds_to_accuracy") or {}).get("ratio"), deciding(row)
        what = "less time to the accuracy" if by_time else "the speed"
        text = f"{row['name']}: {ratio['median']:.2f}x {what} here" if ratio else row["name"]
        gains.update(dict.fromkeys(row["changes"], clean(text)))
    for answer in document.get("revisited") or ():
        if answer["adopted"] and answer["kind"] == AGAIN:
            text = f"{answer['rung']}: {answer['ratio']['median']:.2f}x the speed here, on top of the rest"
            gains.update(dict.fromkeys(answer["changes"], clean(text)))
        elif answer["adopted"]:
            for field in answer["changes"]:
                gains.pop(field, None)
    return gains


def best_yaml(document: Mapping[str, Any]) -> str:
    """The best recipe as YAML with the gain of each change; fields of the climb itself are left out."""
    best, base = Recipe.from_dict(document["best"]["recipe"]), Recipe.from_dict(document["base_recipe"])
    naive = next(
        (Recipe.from_dict(r["recipe"]) for r in document["rungs"] if r["name"] == "naive" and r["recipe"]), base
    )
    gains, usual = changed_fields(document), Recipe()
    lines = [
        "# The fastest recipe of gluontune ladder on this machine. Train with it: gluontune train --recipe best.yaml",
        f"# The climb trained {naive.epochs:g} epoch(s) of {clean(document['dataset']['name'])}; its length is left"
        " out: give yours by --epochs.",
    ]
    for name, value in best.to_dict().items():
        if name in _CLIMB_FIELDS or (name == "dataset" and value == "sample" and best.job is None):
            continue
        if name == "epochs":
            if value != naive.epochs:
                share = value / naive.epochs
                lines.append(f"# Its epochs were {share:.2f} of the naive script's: {gains.get(name, 'large-batch')}")
                lines.append(f"epochs: {round(share * base.epochs, 3):g}")
            continue
        if name in gains or value != usual.to_dict()[name]:
            scalar = yaml.safe_dump(value, default_flow_style=True, width=_WIDTH).replace("\n...", "").strip()
            if "\n" in scalar:  # escaped, a text of several lines is one line
                scalar = yaml.safe_dump(value, default_flow_style=True, width=_WIDTH, default_style='"').strip()
            lines.append(f"{name}: {scalar}  # {gains[name]}" if name in gains else f"{name}: {scalar}")
    return "\n".join(lines) + "\n"


def best_script(document: Mapping[str, Any]) -> str:
    """A Gluon training script of the best recipe, with its own loop around gluontune's parts."""
    best = Recipe.from_dict(document["best"]["recipe"]).resolved()
    accumulated = best.accumulate > 1
    return _filled(
        "best.py", best, changed_fields(document), own_net=best.net in SMALL_NETS.names(),
        whole="GLOBAL_BATCH" if best.num_devices > 1 else "BATCH",
        updates=f"steps // {best.accumulate}" if accumulated else "steps",
        per_update=f" / {best.accumulate}" if accumulated else "",
        parameters="".join(f", {k}={v!r}" for k, v in best.optimizer_params.items()),
    )  # fmt: skip


def job_script(document: Mapping[str, Any]) -> str:
    """The script of a job file: its net, data, loss and metric, and ``gt.tuned`` with ``best.yaml``."""
    best, gains = Recipe.from_dict(document["best"]["recipe"]).resolved(), changed_fields(document)
    changes = "".join(f"#   {clean(field)}: {gain}\n" for field, gain in gains.items()) or "#   none\n"
    return _filled("best_job.py", best, gains, changes=changes, job=str(Path(str(best.job)).resolve()))


def _filled(name: str, best: Recipe, gains: Mapping[str, str], **values: Any) -> str:
    import jinja2

    def why(*names: str) -> str:
        texts = dict.fromkeys(gains[name] for name in names if name in gains)
        return f"  # {'; '.join(texts)}" if texts else ""

    env = runtime.applied(runtime.child_env(best.runtime, best.env, processes=best.num_devices))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters.update(repr=repr, dict=dict)
    lines = "".join(f"    {literal(k)}: {literal(v)},\n" for k, v in sorted(env.items()))
    return environment.get_template(f"{name}.j2").render(best=best, why=why, environment=lines, **values)
