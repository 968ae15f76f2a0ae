"""Figures and the page of ``python -m benchmarks optimizers``; reads its document alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._deck_logs import BATCHES, LOGS
from benchmarks._optimizer_findings import DECK_TARGET, NETS, table
from gluontune.core import stats
from gluontune.report.study import row, study, write_study
from gluontune.report.svg import INK, SERIES, draw, label

__all__ = ["figures", "optimizers_view", "write_optimizers_html"]

_MARKERS = "osD^vP*X"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)))
_WIDTH = 4.8


def figures(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``{"title", "svg", "caption"}`` of a part's figures."""
    found = _FIGURES[document["given"]["part"]](document)
    return [figure for figure in found if figure["svg"]]


def _decks_data(document: Mapping[str, Any]) -> bool:
    return "cifar10" in str(document["given"].get("dataset"))


def _whole_epochs(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _batch_figures(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = [g for g in document["groups"] if g["final_accuracy"]]
    sizes = [int(g["group"].split()[-1]) for g in groups]
    ends = [100 * g["final_accuracy"]["median"] for g in groups]
    deck = [100 * values[-1] for values in BATCHES.values()]
    text = ", ".join(f"{size}: {end:.1f} %" for size, end in zip(sizes, ends))

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.145, 0.14, 0.83, 0.83))
        axes.plot(sizes, ends, color=SERIES[4], marker="o", linewidth=2, label="measured here")
        for group, size in zip(groups, sizes):
            seeds = [100 * v for v in group["by_seed"].values() if v]
            axes.plot([size] * len(seeds), seeds, color=SERIES[4], marker="_", linestyle="none")
        if _decks_data(document):
            axes.plot(list(BATCHES), deck, color=SERIES[5], marker="s", linestyle=(0, (4, 2)), label="seed deck")
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(BATCHES), [str(size) for size in BATCHES])
        axes.minorticks_off()
        axes.set_xlabel("batch size (images in an update)")
        axes.set_ylabel("validation accuracy at the end, percent")
        axes.grid()
        axes.legend(loc="lower left")

    svg = draw("batches", (_WIDTH, 3.6), plot, f"Accuracy by batch size. {text}.") if groups else None
    caption = "The same rate and epochs for all: a larger batch takes fewer updates. Ticks: single seeds."
    return [{"title": "Accuracy against batch size", "svg": svg, "caption": caption}]


def _curves(
    name: str,
    groups: Mapping[str, Sequence[Mapping[str, Any]]],
    target: float | None = None,
    beside: Mapping[str, Sequence[float]] | None = None,
) -> str | None:
    """Validation accuracy by epoch: a line for each group (median over seeds), thin ones for the seeds."""
    shown = {group: [r for r in rows if r["val_accuracy"]] for group, rows in groups.items()}
    shown = {group: rows for group, rows in shown.items() if rows}
    if not shown:
        return None
    ends = [f"{g}: {100 * statistics.median(r['val_accuracy'][-1] for r in rows):.1f} %" for g, rows in shown.items()]

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.145, 0.14, 0.83, 0.83))
        for place, (group, rows) in enumerate(shown.items()):
            colour, dash = SERIES[_colour(place)], _DASHES[place // 6 % 4]
            length = min(len(r["val_accuracy"]) for r in rows)
            epochs = list(range(1, length + 1))
            for r in rows if len(rows) > 1 else ():
                axes.plot(epochs, [100 * v for v in r["val_accuracy"][:length]], color=colour, linewidth=0.7, alpha=0.5)
            middle = [100 * statistics.median(r["val_accuracy"][k] for r in rows) for k in range(length)]
            axes.plot(epochs, middle, color=colour, linewidth=2, linestyle=dash, marker=_MARKERS[place % 8],
                      markersize=4, label=label(group))  # fmt: skip
        for place, (group, values) in enumerate((beside or {}).items()):
            axes.plot(range(1, len(values) + 1), [100 * v for v in values], color=INK["muted"], linewidth=1,
                      linestyle=_DASHES[1 + place % 3], label=label(group))  # fmt: skip
        if target is not None:
            axes.axhline(100 * target, color=INK["fg"], linestyle=(0, (3, 3)), linewidth=1)
        _whole_epochs(axes)
        axes.set_xlabel("epoch")
        axes.set_ylabel("validation accuracy in percent")
        axes.grid()
        axes.legend(loc="lower right", fontsize=8)

    return draw(name, (_WIDTH, 4.2), plot, f"Validation accuracy by epoch. At the end: {'; '.join(ends)}.")


def _colour(place: int) -> int:
    return (4, 5, 2, 6, 1, 3, 0, 7)[place % 8]


def _grouped(document: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for r in document["done"]:
        found.setdefault(r["group"], []).append(r)
    return found


def _large_figures(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    caption = "Thick: median over seeds. Thin: the seeds. All took equally many epochs."
    return [{"title": "Batch 1280 and batch 64", "svg": _curves("large", _grouped(document)), "caption": caption}]


def _log_figures(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    beside = {f"seed deck, {name}": values for name, values in LOGS.items()} if _decks_data(document) else {}
    svg = _curves("logs", _grouped(document), DECK_TARGET, beside)
    caption = "Grey: what the seed deck printed. Dashed: its best accuracy with SGD in twenty epochs, 81.58 %."
    return [{"title": "Epochs to the deck's accuracy", "svg": svg, "caption": caption}]


def _net_figures(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One figure with a panel for each net."""
    found = _grouped(document)
    if not any(r["val_accuracy"] for rows in found.values() for r in rows):
        return []
    names = list(dict.fromkeys(group.split(", ")[1] for group in found))

    def plot(figure: Any) -> None:
        for panel, net in enumerate(NETS):
            axes = figure.add_axes((0.115, 0.715 - 0.325 * panel, 0.62, 0.245))
            for place, name in enumerate(names):
                rows = [r for r in found.get(f"{net}, {name}", ()) if r["val_accuracy"]]
                if rows:
                    curve = [100 * statistics.median(v) for v in zip(*(r["val_accuracy"] for r in rows))]
                    axes.plot(range(1, len(curve) + 1), curve, color=SERIES[_colour(place)], marker=_MARKERS[place],
                              markersize=3.5, linestyle=_DASHES[place // 4], label=label(name))  # fmt: skip
            axes.text(0.0, 1.02, net.replace("_", " "), transform=axes.transAxes, va="bottom", weight="bold")
            axes.set_ylabel("accuracy, %")
            _whole_epochs(axes)
            axes.grid()
            if panel == 0:
                axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8.5)
        axes.set_xlabel("epoch")

    svg = draw("nets", (_WIDTH, 7.8), plot, f"Validation accuracy by epoch of {len(names)} optimizers on three nets.")
    caption = "Each optimizer at the rate of its card, constant, without weight decay. Nothing was tuned."
    return [{"title": "Eight optimizers, three nets", "svg": svg, "caption": caption}]


def _step_figures(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = [r for r in document["done"] if r["status"] == "ok"]

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.36, 0.13, 0.61, 0.85))
        for place, r in enumerate(rows):
            ratio = r["ratio_to_sgd"]
            low, high = stats.bounds(ratio) or [ratio["median"]] * 2
            axes.barh(place, ratio["median"], height=0.62, color=SERIES[4 if r["part"] == "whole step" else 5])
            axes.plot([low, high], [place, place], color=INK["fg"], marker="|", markersize=6, linewidth=1.4)
        axes.axvline(1.3, color=INK["muted"], linestyle=(0, (3, 3)))
        axes.set_yticks(range(len(rows)), [f"{r['name']}, {r['part']}" for r in rows], fontsize=8.5)
        axes.invert_yaxis()
        axes.set_xlabel("time ÷ SGD's")
        axes.grid(axis="x")

    text = "; ".join(f"{r['name']}, {r['part']}: {r['ratio_to_sgd']['median']:.2f}" for r in rows)
    svg = draw("steps", (_WIDTH, 0.5 + 0.3 * len(rows)), plot, f"Time against SGD's. {text}.") if rows else None
    return [
        {
            "title": "What an optimizer costs",
            "svg": svg,
            "caption": "Lines: 95 % intervals of the ratios within rounds.",
        }
    ]


def _esgd_figures(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = [r for r in document["done"] if r["status"] == "ok" and r["best"]["loss"] is not None]
    names = list(dict.fromkeys(r["contender"] for r in rows))

    def plot(figure: Any) -> None:
        axes = figure.add_axes((0.36, 0.2, 0.61, 0.77))
        for place, name in enumerate(names):
            losses = [r["best"]["loss"] for r in rows if r["contender"] == name]
            axes.plot(losses, [place] * len(losses), color=SERIES[_colour(place)], marker=_MARKERS[place],
                      linestyle="none", markersize=7)  # fmt: skip
            axes.plot([statistics.mean(losses)] * 2, [place - 0.3, place + 0.3], color=INK["fg"], linewidth=1.6)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("loss over images that chose nothing")
        axes.grid(axis="x")

    svg = draw("esgd", (_WIDTH, 0.9 + 0.42 * len(names)), plot, "Loss by contender and seed.") if rows else None
    return [{"title": "Equal compute", "svg": svg, "caption": "Marks: seeds. Bars: their means. Smaller is better."}]


_FIGURES: dict[str, Callable[[Mapping[str, Any]], list[dict[str, Any]]]] = {
    "batches": _batch_figures,
    "large-batch": _large_figures,
    "epochs": _log_figures,
    "nets": _net_figures,
    "step-time": _step_figures,
    "esgd": _esgd_figures,
}  # fmt: skip


def write_optimizers_html(document: Mapping[str, Any], path: Path) -> None:
    """One self-contained HTML page.

    Args:
        document: of ``python -m benchmarks optimizers``. path: of the HTML file.

    >>> import tempfile
    >>> document = {"given": {"part": "step-time", "net": "mlp"}, "title": "One update", "sentence": "nothing measured",
    ...             "done": [], "created": "2026-01-31T10:00:00", "complete": False, "machine": {}}
    >>> page = Path(tempfile.mkdtemp()) / "optimizers.html"
    >>> write_optimizers_html(document, page)
    >>> "was interrupted" in page.read_text(encoding="utf-8")
    True
    """
    write_study(path, optimizers_view(document, "optimizers"), document)


def optimizers_view(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study of a document of ``python -m benchmarks optimizers``."""
    head, cells = table(document)
    given = document["given"]
    return study(
        key=key,
        headline=document["sentence"],
        over=" · ".join([document["title"], str(given.get("dataset", "synthetic images")), document["created"][:16]]),
        warn="" if document["complete"] else "This was interrupted: it shows what was measured until then.",
        figures=figures(document),
        tables=[{"title": document["title"], "head": head, "rows": [row(*c) for c in cells], "caption": ""}],
        recipes={"The base recipe": given["recipe"]} if "recipe" in given else {},
        machine=document["machine"],
    )
