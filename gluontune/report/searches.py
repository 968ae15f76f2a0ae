"""Pages of searches: ``tune.json`` and ``esgd.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluontune.report import words
from gluontune.report.factor_figures import set_bars
from gluontune.report.study import row, study
from gluontune.report.svg import SERIES, draw, label

__all__ = ["esgd_view", "tune_view"]

_STOPPED = "This was interrupted: it shows what was measured until then."


def tune_view(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study of a document of ``gluontune tune``."""
    best, rows, bars = document["best"], [], []
    for tried in document["tried"]:
        speed, gain = tried["samples_per_sec"], tried["speedup_vs_start"]
        bounds = tried["speedup_ci95"]
        outcome = "kept" if tried["kept"] else "" if tried["status"] == "ran" else tried["status"]
        why = "; ".join(part for part in (tried["remark"], tried["reason"]) if part)
        ratio = words.ratio_with_interval(gain, bounds) if gain is not None else "—"
        rate = words.rate(speed["median"] if speed else None)
        rows.append(row(tried["label"], tried["stage"], rate, ratio, outcome, why=why))
        if gain is not None and tried["stage"] not in ("start", "take back"):
            part = "cumulative" if tried["kept"] else "other"
            bars.append({"name": tried["label"], "part": part, "lost": "",
                         "value": {"median": gain, "ci95": bounds or [gain, gain]}})  # fmt: skip
    bars.sort(key=lambda bar: bar["part"] != "cumulative")
    tiles = []
    if best:
        tiles = [
            ("against the start", words.ratio(best["speedup_vs_start"]), "training throughput"),
            ("best", f"{words.rate(best['samples_per_sec']['median'])} samples/s", best["name"]),
            ("searched for", words.duration(document["seconds"]), ""),
        ]
    figure = {
        "title": "What was tried",
        "svg": set_bars("tried", bars, "× the start's throughput"),
        "caption": "Above: kept. Below: tried and left. Each was measured on top of what was kept before it.",
    }
    table = {
        "title": "What was tried",
        "head": ["Option", "Knob", "samples/s", "× start (95 %)", "Outcome"],
        "rows": rows,
        "caption": "Measured in turn with the start.",
    }
    base = document["base_recipe"]
    return study(
        key=key,
        headline=document["sentence"] or "the search found nothing yet",
        over=" · ".join([str(document["dataset"]["name"]), str(base["net"]), document["created"][:16]]),
        warn="" if document["complete"] else _STOPPED,
        remarks=document["notes"],
        tiles=tiles,
        figures=[figure],
        tables=[table],
        recipes={"The best recipe": best["recipe"]} if best else {},
        machine=document["machine"],
    )


def esgd_view(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The study of a document of ``gluontune esgd``."""
    given, cost, rows = document["given"], document.get("cost") or {}, []
    for one in document["generations"]:
        best, score = one["best"], one["best"]["score"]
        setup = best["setup"] or {}
        drawn = (
            "offspring" if best["offspring"] else f"{setup.get('optimizer')}, rate {setup.get('learning_rate', 0):.3g}"
        )
        loss, fitness = ("diverged" if score[k] is None else f"{score[k]:.4f}" for k in ("loss", "fitness"))
        rows.append(row(one["generation"], drawn, fitness, loss, words.accuracy(score["accuracy"]),
                        f"{100 * one['offspring_share_of_elite']:.0f} %"))  # fmt: skip
    last = document["generations"][-1]["best"]["score"] if document["generations"] else None
    headline = "no generation was finished"
    tiles = []
    if last is not None:
        reached = words.accuracy(last["accuracy"])
        headline = f"{reached} after {len(rows)} generations of {given['plan']['population']}"
        tiles = [("accuracy of the best", reached, "on images that chose nothing")]
        if cost:
            tiles.append(("trained on", f"{cost['trained_images']:,}", "images"))
            tiles.append(("scored", f"{cost['scored_images']:,}", "images"))
    figure = {
        "title": "Fitness by generation",
        "svg": _fitness(document),
        "caption": "Line: the best individual. Dots: the whole population. Smaller is better.",
    }
    table = {
        "title": "The generations",
        "head": ["Generation", "Its best", "Fitness", "Loss", "Accuracy", "Offspring in the elite"],
        "rows": rows,
        "caption": "Fitness is the loss that chooses; loss and accuracy are over images that chose nothing.",
    }
    return study(
        key=key,
        headline=f"evolutionary SGD: {headline}",
        over=" · ".join([given["recipe"]["dataset"], given["recipe"]["net"], document["created"][:16]]),
        warn="" if document["complete"] else _STOPPED,
        tiles=tiles,
        figures=[figure],
        tables=[table],
        recipes={"The recipe": given["recipe"], "The plan": given["plan"]},
        machine=document["machine"],
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

    said = f"Fitness of the best by generation: {', '.join(f'{value:.3g}' for _, value in best)}."
    return draw("fitness", (4.8, 3.4), plot, said)
