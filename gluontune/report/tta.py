"""Time to accuracy for the reader: a sentence, its lines, the tables, and the page with its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from gluontune.core.errors import GluontuneError, UsageError
from gluontune.core.reading import read_json
from gluontune.report import formatting as fmt, study_figures as figures
from gluontune.report.study import figure, finish, row, study, table, text_table


def titles(document: Mapping[str, Any]) -> dict[str, str]:
    """The recipes' names in a report: one that gluontune did not train has its trainer's name.

    >>> titles({"given": {"trainers": {"against": "PyTorch compile"}}})["against"]
    'PyTorch compile'
    """
    return {"this": "this recipe", "against": "the other recipe", **document["given"].get("trainers", {})}


def load_tta(path: str | Path) -> dict[str, Any]:
    """Read a ``tta.json``, or the one in a folder.

    Args:
        path: the file or its folder.

    Raises:
        GluontuneError: missing, no ``tta.json``, or of another schema version.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "tta.json").write_text('{"kind": "tta", "schema_version": 1, "summary": {}}')
    >>> load_tta(folder)["schema_version"]
    1
    >>> load_tta("nowhere")
    Traceback (most recent call last):
        ...
    gluontune.errors.GluontuneError: nowhere...
    """
    file = Path(path)
    file = file / "tta.json" if file.is_dir() else file
    document = read_json(file)
    if not isinstance(document, dict) or document.get("kind") != "tta" or "summary" not in document:
        raise GluontuneError(f"{file}: not a finished document of `gluontune tta`")
    if document.get("schema_version") != 1:
        raise GluontuneError(f"{file}: schema_version {document.get('schema_version')}, but this gluontune reads 1")
    return document


def check_comparable(other: Mapping[str, Any], where: str | Path, dataset: str, target: float) -> None:
    """Refuse another result that differs in data set or target.

    Args:
        other: the other ``tta.json``. where: its file. dataset, target: of this one.

    Raises:
        UsageError: another data set or another target; names both.

    >>> given = {"target": 0.9, "recipes": {"this": {"dataset": "cifar10"}}}
    >>> check_comparable({"given": given}, "tta.json", "cifar10", 0.9)
    >>> check_comparable({"given": given}, "tta.json", "cifar10", 0.94)
    Traceback (most recent call last):
        ...
    gluontune.errors.UsageError: tta.json: its target is 0.9, this one's 0.94: their times and costs cannot be compared
    """
    theirs = other["given"]["recipes"]["this"]["dataset"], other["given"]["target"]
    for name, own, found in (("data set", dataset, theirs[0]), ("target", target, theirs[1])):
        if own != found:
            raise UsageError(
                f"{where}: its {name} is {found}, this one's {own}: their times and costs cannot be compared"
            )


def tta_sentence(document: Mapping[str, Any]) -> str:
    """The result in a line."""
    target, found = fmt.accuracy(document["given"]["target"]), document["summary"]["this"]
    times = found["train_seconds"]
    if not times["repeats"]:
        return f"no repeat was finished (target {target})"
    if not times["reached"]:
        return f"{target} was not reached in any of {times['repeats']} repeats"
    text = f"{target} in {_seconds(times['median'], times['ci95'])} of training"
    if times["cv_pct"] is not None:
        text += f", varying by {times['cv_pct']:.1f} %"
    text += f"; {times['reached']} of {times['repeats']} repeats reached it"
    if ratio := (document["ratio"] or {}).get("train_seconds"):
        compared = "the speed of" if ratio["median"] < 1 else "faster than"
        text += f"; {fmt.gain(ratio)} {compared} {titles(document)['against']}"
    return text


def _seconds(median: float | None, bounds: Any) -> str:
    if median is None:
        return "—"
    digits = 0 if median >= 100 else 1 if median >= 10 else 2
    around = f" (95 %: {fmt.interval(bounds, digits)})" if bounds else ""
    return f"{median:.{digits}f} s{around}"


def tta_table(document: Mapping[str, Any]) -> Any:
    """The repeats, for a terminal.

    Args:
        document: a ``tta.json``.

    >>> from rich.console import Console
    >>> one = {"recipe": "this", "seed": 0, "status": "ok", "first": None, "sustained": None, "reason": None,
    ...        "val_accuracy": [0.71]}
    >>> document = {"given": {"target": 0.8}, "done": [one]}
    >>> Console(width=80).print(tta_table(document))
    recipe       seed  status  epochs  training s  sustained s  all s   final
    this recipe     0  ok           —           —            —      —  71.0 %
    """
    shown = text_table("recipe|>seed|status|>epochs|>training s|>sustained s|>all s|>final")
    shown.columns[0].max_width, shown.columns[0].overflow, shown.columns[2].no_wrap = 20, "fold", True
    for r in document["done"]:
        shown.add_row(*_repeat_cells(r, titles(document)), style="" if r["first"] else "red")
        if r["reason"]:
            shown.add_row(Text(f"  ↳ {fmt.clean(r['reason'], 300)}", style="dim"))
    return shown


def _repeat_cells(r: Mapping[str, Any], named: Mapping[str, str]) -> list[str]:
    """A repeat in the order of the tables' columns; ``named``: names of the recipes."""
    first, held = r["first"], r["sustained"]
    return [
        named[r["recipe"]], str(r["seed"]), r["status"],
        f"{first.get('epochs', first['epoch']):g}" if first else "—",
        f"{first['train_seconds']:.1f}" if first else "—", f"{held['train_seconds']:.1f}" if held else "—",
        f"{first['wall_seconds']:.1f}" if first else "—",
        fmt.accuracy(r["val_accuracy"][-1] if r["val_accuracy"] else None),
    ]  # fmt: skip


def summary_lines(document: Mapping[str, Any]) -> list[str]:
    """Each recipe's statistics, the ratio and the parity, one sentence each.

    Args:
        document: a ``tta.json``.

    >>> times = {"repeats": 3, "reached": 0, "failed": 3, "median": None, "ci95": None}
    >>> this = {"train_seconds": times, "wall_seconds": times, "not_reached": 3, "crashed": 0, "usd": None,
    ...         "joules": None}
    >>> document = {"given": {}, "summary": {"this": this}, "done": [], "ratio": None, "parity": None}
    >>> summary_lines(document)
    ['this recipe: 0 of 3 reached the target; 3 did not']
    """
    named, lines = titles(document), []
    for name, found in document["summary"].items():
        times, wall = found["train_seconds"], found["wall_seconds"]
        parts = [f"{times['reached']} of {times['repeats']} reached the target"]
        parts += [f"{found['not_reached']} did not"] if found["not_reached"] else []
        crashes = [run["reason"] for run in document["done"] if run["recipe"] == name and run["status"] == "crashed"]
        parts += [f"{found['crashed']} crashed ({next(iter(crashes), '?')})"] if found["crashed"] else []
        if times["reached"]:
            parts.append(f"first crossing: median {_seconds(times['median'], times['ci95'])}")
            parts.append(f"mean {_seconds(times['mean'], times['mean_ci95'])}")
            parts += [f"coefficient of variation {times['cv_pct']:.1f} %"] if times["cv_pct"] is not None else []
            held = found["sustained_train_seconds"]
            spread = _seconds(held["median"], held["ci95"])
            parts += [f"sustained: median {spread}"] if held["median"] is not None else []
            parts.append(f"all included: median {_seconds(wall['median'], wall['ci95'])}")
            parts += [f"with failed runs started over {times['expected_seconds']:.1f} s"] if times["failed"] else []
        ends = (("accuracy", "accuracy at the end"), ("flipped", "with test-time flips"))
        parts += [f"{what}: mean {100 * found[key]['mean']:.2f} %" for key, what in ends if found.get(key)]
        if found["usd"] is not None:
            price = document["price"]
            parts.append(
                f"${found['usd']:.4f} at ${price['usd_per_hour']:g} an hour ({price['machine']}, {price['date']}, "
                f"{price['source']})"
            )
        parts += [f"{found['joules']['median']:,.0f} J"] if found["joules"] else []
        lines.append(f"{named[name]}: {'; '.join(parts)}")
    ratio = document["ratio"]
    if ratio and ratio["train_seconds"]:
        texts = f"{fmt.gain(ratio['train_seconds'])} in training time; {fmt.gain(ratio['wall_seconds'])} all included"
        lines.append(f"{named['against']} ÷ this recipe, within each repeat: {texts}")
    if ratio and ratio["pairs_without_a_time"]:
        lines.append(f"{ratio['pairs_without_a_time']} of {ratio['pairs']} pairs have no ratio: a run of them failed")
    if document["parity"] and document["parity"]["verdict"] != "too few repeats":
        mark = "look for a change beyond speed: " if document["parity"]["suspicious"] else ""
        lines.append(f"convergence: {mark}{document['parity']['verdict']} ({document['parity']['reason']})")
    return lines


def finish_tta(
    document: dict[str, Any], folder: str | Path, beside: Sequence[tuple[str, Mapping[str, Any]]] = ()
) -> None:
    """Add the document's sentence; write ``tta.json`` and ``tta.html``.

    ``beside`` are ``(label, document)`` of other results to show on the cost plot.
    """
    finish(document, folder, "tta", tta_sentence, lambda found, key: tta_view(found, key, beside))


def tta_view(
    document: Mapping[str, Any], key: str, beside: Sequence[tuple[str, Mapping[str, Any]]] = ()
) -> dict[str, Any]:
    """The study of a finished document; ``beside`` as for :func:`finish_tta`."""
    named = titles(document)
    groups = {
        named[name]: [r for r in document["done"] if r["recipe"] == name] for name in document["given"]["recipes"]
    }
    costs = [
        {"name": ", ".join(filter(None, (label, titles(each)[name]))), "seconds": found["wall_seconds"]["median"],
         "usd": found["usd"], "joules": (found["joules"] or {}).get("median")}
        for label, each in [("", document), *beside] for name, found in each["summary"].items()
    ]  # fmt: skip
    recipes, rows = document["given"]["recipes"], []
    for r in document["done"]:
        apart = (r["start_seconds"], r["warmup_seconds"], (r["first"] or r["spent"])["eval_seconds"])
        rows.append(row(*_repeat_cells(r, named), *(f"{seconds:.1f}" for seconds in apart), why=r["reason"]))
    return study(
        key=key,
        headline=tta_sentence(document),
        over=f"{document['dataset']['name']} · {recipes['this']['net']} · {len(document['seeds'])} repeats",
        of=document,
        remarks=[*summary_lines(document), document["rule"]],
        tiles=_tiles(document),
        figures=[
            figure("Accuracy against time", figures.accuracy_band("band", groups, document["given"]["target"]), _BAND),
            figure("The repeats", figures.repeats("repeats", groups), _DOTS),
            figure("Cost against time", figures.cost_against_time("cost", costs), _COST),
        ],
        tables=[table("The repeats", _REPEATS, rows, _REPEATS_CAPTION)],
        recipes={f"Recipe: {named[name]}": recipe for name, recipe in recipes.items()},
    )


_BAND = "Thin: each repeat. Thick: their median. Band: from the lowest to the highest."
_DOTS = "Dots: first crossing. Bar: median. Crosses: repeats that ended without reaching the target."
_REPEATS = [
    "Recipe", "Seed", "Status", "Epochs", "Training s", "Sustained s", "All s", "Final accuracy", "Start s",
    "Warm-up s", "Validation s",
]  # fmt: skip
_REPEATS_CAPTION = (
    "Training seconds count. Sustained: from there to the end of the run no validation fell below the target. "
    "All: with start, warm-up and validation, whose own columns are on the right."
)
_COST = "Lower left is better. The time counts start, warm-up and validation, too, because they are paid."


def _tiles(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found = document["summary"]["this"]
    times, wall = found["train_seconds"], found["wall_seconds"]
    bounds = f"95 %: {times['ci95'][0]:.1f}–{times['ci95'][1]:.1f} s" if times["ci95"] else ""
    target = fmt.accuracy(document["given"]["target"])
    tiles = [
        ("to the target", fmt.duration(times["median"]), bounds),
        ("all included", fmt.duration(wall["median"]), "start, warm-up, validation"),
        ("reached", f"{times['reached']} of {times['repeats']}", f"target {target}"),
    ]
    if times["cv_pct"] is not None:
        tiles.append(("varies by", f"{times['cv_pct']:.1f} %", "coefficient of variation"))
    if found["usd"] is not None:
        tiles.append(("cost", f"${found['usd']:.4f}", f"at ${document['price']['usd_per_hour']:g} an hour"))
    return tiles
