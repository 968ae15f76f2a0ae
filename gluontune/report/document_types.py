"""The kinds of gluontune's documents with their views; the views of searches and benchmarks.

A new kind of document is one entry of :data:`KINDS`; ``gluontune report`` then reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gluontune.core import stats
from gluontune.core.errors import GluontuneError
from gluontune.report import formatting as fmt
from gluontune.report.factors import factors_view
from gluontune.report.study import figure, row, study, table
from gluontune.report.study_figures import set_bars
from gluontune.report.svg import SERIES, draw, label
from gluontune.report.tta import tta_view

_UNITS = {"images_per_sec", "samples_per_sec"}
_HIDDEN = {"name", "part", "peer", "status", "reason", "note", "info", "sizes", "recipe"}


@dataclass(frozen=True)
class Kind:
    """A kind of document, written by ``command``.

    ``view``: its study, by a key; ``schema``: the supported version, if its documents have one; ``folder``: whether
    NAME.json represents its folder, whose other files are its runs; ``mark``: whether a document is of this kind; None:
    its ``kind`` is the name in :data:`KINDS`.
    """

    command: str
    view: Callable[[Mapping[str, Any], str], dict[str, Any]]
    schema: int | None = 1
    folder: bool = False
    mark: Callable[[Mapping[str, Any]], bool] | None = None


def tune_table(document: Mapping[str, Any]) -> dict[str, Any]:
    """The options that ``gluontune tune`` tried."""
    rows = []
    for tried in document["tried"]:
        speed = tried["samples_per_sec"]
        outcome = "kept" if tried["kept"] else "" if tried["status"] == "ran" else tried["status"]
        why = "; ".join(part for part in (tried["remark"], tried["reason"]) if part)
        ratio = fmt.ratio_with_interval(tried["speedup_vs_start"], tried["speedup_ci95"])
        rate = fmt.rate(speed["median"] if speed else None)
        rows.append(row(tried["label"], tried["stage"], rate, ratio, outcome, why=why))
    head = ["Option", "Knob", "samples/s", "× start (95 %)", "Outcome"]
    return table("What was tried", head, rows, "Measured in turn with the start.")


def tune_view(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study of a document of ``gluontune tune``."""
    best, base, tried_table = document["best"], document["base_recipe"], tune_table(document)
    bars = [
        {"name": tried["label"], "part": "cumulative" if tried["kept"] else "other", "lost": "",
         "value": {"median": tried["speedup_vs_start"], "ci95": tried["speedup_ci95"]}}
        for tried in sorted(document["tried"], key=lambda tried: not tried["kept"])
        if tried["speedup_vs_start"] is not None and tried["stage"] not in ("start", "take back")
    ]  # fmt: skip
    tiles = []
    if best:
        tiles = [
            ("against the start", fmt.ratio(best["speedup_vs_start"]), "training throughput"),
            ("best", f"{fmt.rate(best['samples_per_sec']['median'])} samples/s", best["name"]),
            ("searched for", fmt.duration(document["seconds"]), ""),
        ]
    caption = "Above: kept. Below: not kept. Each was measured on top of the changes kept before it."
    return study(
        key=key,
        headline=document["sentence"] or "the search found nothing yet",
        over=f"{document['dataset']['name']} · {base['net']}",
        of=document,
        remarks=document["notes"],
        tiles=tiles,
        figures=[figure("What was tried", set_bars("tried", bars, "× the start's throughput"), caption)],
        tables=[tried_table],
        recipes={"The best recipe": best["recipe"]} if best else {},
    )


def esgd_table(document: Mapping[str, Any]) -> dict[str, Any]:
    """The generations of ``gluontune esgd``."""
    rows = []
    for one in document["generations"]:
        best, score = one["best"], one["best"]["score"]
        setup = best["setup"] or {}
        drawn = f"{setup.get('optimizer')}, rate {setup.get('learning_rate', 0):.3g}"
        loss, fitness = ("diverged" if score[k] is None else f"{score[k]:.4f}" for k in ("loss", "fitness"))
        reached, elite = fmt.accuracy(score["accuracy"]), f"{100 * one['offspring_share_of_elite']:.0f} %"
        which = "offspring" if best["offspring"] else drawn
        rows.append(row(one["generation"], which, fitness, loss, reached, elite))
    head = ["Generation", "Its best", "Fitness", "Loss", "Accuracy", "Offspring in the elite"]
    chooses = "Fitness is the loss of the selection; loss and accuracy are over images that take no part in it."
    return table("The generations", head, rows, chooses)


def esgd_view(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study of a document of ``gluontune esgd``."""
    given, cost = document["given"], document.get("cost") or {}
    last = document["generations"][-1]["best"]["score"] if document["generations"] else None
    headline = "no generation was finished"
    tiles = []
    if last is not None:
        reached = fmt.accuracy(last["accuracy"])
        headline = f"{reached} after {len(document['generations'])} generations of {given['plan']['population']}"
        tiles = [("accuracy of the best", reached, "on images that take no part in the selection")]
        if cost:
            tiles.append(("trained on", f"{cost['trained_images']:,}", "images"))
            tiles.append(("scored", f"{cost['scored_images']:,}", "images"))
    caption = "Line: the best individual. Dots: the whole population. Smaller is better."
    return study(
        key=key,
        headline=f"evolutionary SGD: {headline}",
        over=f"{given['recipe']['dataset']} · {given['recipe']['net']}",
        of=document,
        tiles=tiles,
        figures=[figure("Fitness by generation", _fitness(document), caption)],
        tables=[esgd_table(document)],
        recipes={"The recipe": given["recipe"], "The plan": given["plan"]},
    )


def _fitness(document: Mapping[str, Any]) -> str | None:
    points = [
        (one["generation"], each["score"]["fitness"])
        for one in document["generations"]
        for each in one["population"]
        if each["score"]["fitness"] is not None
    ]
    best = [(one["generation"], one["best"]["score"]["fitness"]) for one in document["generations"]]
    best = [(number, value) for number, value in best if value is not None]
    if not best:
        return None

    def plot(figure: Any) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.add_axes((0.13, 0.15, 0.84, 0.82))
        axes.plot([x for x, _ in points], [y for _, y in points], "o", color=SERIES[2], alpha=0.5, markersize=4)
        axes.plot([x for x, _ in best], [y for _, y in best], color=SERIES[4], linewidth=2, label=label("best"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("generation")
        axes.set_ylabel("fitness (loss)")
        axes.grid()

    text = f"Fitness of the best by generation: {', '.join(f'{value:.3g}' for _, value in best)}."
    return draw("fitness", (4.8, 3.4), plot, text)


def benchmark_view(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study of a document of ``gluontune bench``."""
    tables: list[dict[str, Any]] = []
    figures: list[dict[str, Any]] = []
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for r in document.get("rows") or ():
        groups.setdefault(_part(r), []).append(r)
    parts = document.get("parts") or {}
    for title, rows in (groups or {name: list(part["rows"]) for name, part in document["parts"].items()}).items():
        tables.append(_table(title, rows))
        if rows and (unit := next((k for k in rows[0] if k in _UNITS), None)) is not None:
            values = [
                {"name": str(r["name"]), "part": "cumulative" if r.get("peer") in (None, "gluontune") else "other",
                 "value": r.get(unit), "lost": "" if r.get(unit) else str(r.get("status"))} for r in rows
            ]  # fmt: skip
            bars = set_bars(f"bars{len(figures)}", values, unit.replace("_", " "))
            caption = "Lines: 95 % intervals over interleaved rounds. Failures are named."
            figures.append(figure(title or fmt.clean(unit.replace("_", " "), 60), bars, caption))
    bounds = {name: part for name, part in parts.items() if "holds" in part}
    remarks = [f"{name}: {p['bar']}: {'holds' if p['holds'] else 'does not hold'}" for name, p in bounds.items()]
    notes = {(r.get("peer"), r["note"]) for r in document.get("rows") or () if r.get("note")}
    return study(
        key=key,
        headline=document.get("headline") or _headline(document),
        over=" · ".join(f"{name} {value}" for name, value in fmt.fact_pairs(document.get("conditions") or {})),
        warn=document.get("warn") or "",
        remarks=remarks + [f"{peer}: {note}" for peer, note in sorted(notes, key=str)],
        figures=figures,
        tables=tables,
        machine=document.get("machine") or {},
    )


def _part(r: Mapping[str, Any]) -> str:
    if r.get("net") and r.get("batch_size"):
        return f"{r['net']}, batch {r['batch_size']}"
    return str(r.get("part") or "")


def _headline(document: Mapping[str, Any]) -> str:
    ours, best = (document.get(name) or {} for name in ("ours", "best"))
    if texts := [f"{fmt.ratio(ratio['median'])} {peer}" for peer, ratio in ours.get("ratio_to", {}).items()]:
        return f"{ours['name']}: {', '.join(texts)}"
    if best.get("ratio_to_hybridized"):
        return f"{best['name']}: {fmt.ratio(best['ratio_to_hybridized']['median'])} hybridized float32"
    return "benchmark"


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns = list(dict.fromkeys(
        k for r in rows for k, v in r.items() if k not in _HIDDEN and _cell(v) and _part(r) != str(v)
    ))  # fmt: skip
    columns = [k for k in columns if len({fmt.canonical(r.get(k)) for r in rows}) > 1 or len(rows) == 1][:7]
    shown = []
    for r in rows:
        status = r.get("status", "ok")
        why = r.get("reason") or ""
        cells = [_cell(r.get(k)) or "—" for k in columns]
        text = why if status == "ok" or why.startswith(status) else f"{status}: {why}".rstrip(": ")
        shown.append(row(r["name"], *cells, why=text))
    head = ["", *(k.replace("_", " ") for k in columns)]
    return table(title or "The rows", head, shown, "In brackets: 95 % intervals.")


def _cell(value: Any) -> str:
    """A figure as text; "" for a value that does not fit a cell.

    >>> _cell({"median": 1234.5, "ci95": [1200.0, 1300.0], "n": 9}), _cell(0.5), _cell([1, 2])
    ('1,234 (1,200–1,300)', '0.5', '')
    """
    if isinstance(value, Mapping):
        if "median" in value:
            around = stats.bounds(value)
            return fmt.rate(value["median"]) + (f" ({fmt.rates(around)})" if around else "")
        inner = {k: v for k, v in value.items() if fmt.number(v) is not None and k != "n"}
        if "speedup" in value:
            return _cell(value["speedup"])
        return " / ".join(f"{k} {fmt.rate(v)}" for k, v in inner.items()) if inner else ""
    if isinstance(value, (list, tuple)) or value is None or value == "":
        return ""
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else fmt.value_text(value)


KINDS = {
    "tta": Kind("gluontune tta", tta_view, folder=True),
    "factors": Kind("gluontune factors", factors_view, folder=True),
    "esgd": Kind("gluontune esgd", esgd_view, folder=True),
    "tune": Kind("gluontune tune", tune_view, folder=True, mark=lambda document: {"heats", "tried"} <= set(document)),
    "bench": Kind(
        "gluontune bench", benchmark_view, None,
        mark=lambda document: "conditions" in document and bool({"rows", "parts"} & set(document)),
    ),
}  # fmt: skip


def kind_of(document: Mapping[str, Any]) -> str | None:
    """The name in :data:`KINDS`, or None.

    >>> kind_of({"kind": "tta"}), kind_of({"rows": [], "conditions": {}}), kind_of({"recipe": {}})
    ('tta', 'bench', None)
    """
    marks = {name: kind.mark(document) if kind.mark else document.get("kind") == name for name, kind in KINDS.items()}
    return next((name for name, fits in marks.items() if fits), None)


def view(document: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The study of a document, for the page; a GluontuneError for another schema version, or a missing value."""
    if (name := kind_of(document)) is None:
        raise GluontuneError(f"{source}: not a study or a benchmark of gluontune's")
    kind = KINDS[name]
    if kind.schema is not None and document.get("schema_version") != kind.schema:
        raise GluontuneError(
            f"{source}: schema_version {document.get('schema_version')!r}, but this gluontune reads {kind.schema}; "
            "read it with the version that wrote it, or measure again"
        )
    try:
        return kind.view(document, name)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        missing = f"without {error}" if isinstance(error, KeyError) else f"that cannot be read ({error})"
        raise GluontuneError(
            f"{source}: a document of `{kind.command}` {missing}: it is damaged, or was interrupted before "
            "its end; the same command with --resume finishes it"
        ) from error
