"""Results of the trainings of ``python -m benchmarks optimizers``: rows, groups, and whether the bar holds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks._deck_logs import BATCHES, LOGS
from gluontune.core import stats

__all__ = [
    "DECK_TARGET", "LARGE_REFERENCE", "LARGE_WITHIN", "NETS", "conclude_batches", "conclude_large", "conclude_logs",
    "conclude_nets", "describe", "epochs_to", "summarize", "table",
]  # fmt: skip

#: The seed deck's accuracy by the end of its twenty epochs: its three logs reach 0.8158, 0.8238 and 0.8034 at best.
DECK_TARGET = 0.8158
LARGE_REFERENCE = "batch 64"
_BAR_EPOCHS = 8
LARGE_WITHIN = 0.010  # of accuracy
#: The nets of the other seed deck's comparison, from the smallest on.
NETS = ("softmax", "sigmoid_100", "sigmoid_300_100_50")


def describe(piece: Any, result: Any) -> dict[str, Any]:
    """The row of a training."""
    ended = result.val_accuracy[-1] if result.val_accuracy else None
    return {
        "name": piece.name,
        "group": piece.group,
        "seed": piece.recipe.seed,
        "status": result.status,
        "reason": (result.error or {}).get("message", ""),
        "final_accuracy": ended if result.status == "ok" else None,
        "val_accuracy": list(result.val_accuracy),
        "val_loss": list(result.val_loss),
        "train_loss": list(result.train_loss),
        "epoch_seconds": list(result.epoch_seconds),
        "samples_per_sec": result.samples_per_sec,
        "steps": result.steps,
    }


def summarize(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each group, over its seeds: final accuracy (median, 95 % interval, n), and failures."""
    found = []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        ended = [row["final_accuracy"] for row in mine if row["final_accuracy"]]
        found.append(
            {
                "group": group,
                "final_accuracy": stats.interval(ended) if ended else None,
                "by_seed": {str(row["seed"]): row["final_accuracy"] for row in mine},
                "epochs_to_target": {str(row["seed"]): epochs_to(row, DECK_TARGET) for row in mine},
                "epoch_seconds": statistics.median(s for row in mine for s in row["epoch_seconds"])
                if any(row["epoch_seconds"] for row in mine)
                else None,
                "failed": [row["reason"] for row in mine if row["status"] != "ok"],
                "n": len(mine),
            }
        )
    return found


def epochs_to(row: Mapping[str, Any], target: float) -> int | None:
    """The first epoch, counted from 1, whose validation reached ``target``.

    >>> epochs_to({"val_accuracy": [0.5, 0.9]}, 0.8), epochs_to({"val_accuracy": [0.5]}, 0.8)
    (2, None)
    """
    return next((n for n, value in enumerate(row["val_accuracy"], 1) if value >= target), None)


def _accuracy(groups: Sequence[Mapping[str, Any]], name: str) -> float | None:
    found = [g["final_accuracy"] for g in groups if g["group"] == name and g["final_accuracy"]]
    return float(found[0]["median"]) if found else None


def conclude_batches(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, last = (_accuracy(groups, f"batch {size}") for size in (min(BATCHES), max(BATCHES)))
    if first is None or last is None:
        return {"holds": False, "sentence": "The smallest and the largest batch were not both measured."}
    lost = 100 * (first - last)
    deck = 100 * (BATCHES[min(BATCHES)][-1] - BATCHES[max(BATCHES)][-1])
    way = "below" if lost > 0 else "above"
    return {
        "holds": lost > 0,
        "lost_points": lost,
        "sentence": f"With nothing but the batch changed, batch {max(BATCHES)} ends {abs(lost):.1f} points {way} batch "
        f"{min(BATCHES)} (the seed deck, on CIFAR-10: {deck:.1f} below).",
    }


def conclude_large(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Differences to batch 64 by seed; the best is chosen among the setups with the most seeds.

    Of several setups of batch 64 the reference is the most accurate of those with the most seeds.
    """
    small = [g for g in groups if g["group"].startswith(LARGE_REFERENCE) and _ended(g)]
    reference = max(small, key=lambda g: (len(_ended(g)), statistics.mean(_ended(g).values())), default=None)
    nothing = {"holds": False, "sentence": "Batch 64 and a setup of batch 1280 were not both measured."}
    if reference is None:
        return nothing
    behind: dict[str, dict[str, Any]] = {}
    for group in groups:
        here = _ended(group)
        points = [100 * (there - here[seed]) for seed, there in _ended(reference).items() if seed in here]
        if points and group is not reference:
            behind[group["group"]] = {"mean": statistics.mean(points), "by_seed": points, "n": len(points)}
    large = {name: entry for name, entry in behind.items() if not name.startswith(LARGE_REFERENCE)}
    if not large:
        return nothing
    most = max(entry["n"] for entry in large.values())
    best = min((name for name in large if large[name]["n"] == most), key=lambda name: large[name]["mean"])
    others = [name for name in behind if name.startswith(LARGE_REFERENCE) or name == "batch 1280, naive"]
    beside = "".join(
        f"; {name}: {_points(behind[name]['mean'])} it ({_seeds(behind[name]['n'])})" for name in others if name != best
    )
    return {
        "holds": large[best]["mean"] <= 100 * LARGE_WITHIN,
        "best": best,
        "reference": reference["group"],
        "points_behind": behind,
        "sentence": f"{best[0].upper()}{best[1:]}: {_points(large[best]['mean'])} {reference['group']} at equal epochs "
        f"({_seeds(most)}){beside}. Bar: at most {100 * LARGE_WITHIN:.1f} behind.",
    }


def _ended(group: Mapping[str, Any]) -> dict[Any, float]:
    return {seed: value for seed, value in group["by_seed"].items() if value is not None}


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"


def _points(behind: float) -> str:
    """
    >>> _points(0.5), _points(-1.672)
    ('0.50 points behind', '1.67 points ahead of')
    """
    return f"{abs(behind):.2f} points {'behind' if behind >= 0 else 'ahead of'}"


def conclude_logs(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    reached = {group["group"]: list(group["epochs_to_target"].values()) for group in groups}
    names = list(dict.fromkeys(group.split(",")[0] for group in reached))
    good, texts = [], []
    for name in names:  # it holds if one of its lengths does, with every seed
        mine = {group: epochs for group, epochs in reached.items() if group.startswith(f"{name},")}
        good.append(any(all(e is not None and e <= _BAR_EPOCHS for e in epochs) for epochs in mine.values()))
        lengths = [f"{_epochs_text(epochs)} of {group.split(', ')[1]}" for group, epochs in mine.items()]
        texts.append(f"{name} {', '.join(lengths)}")
    deck = {name: epochs_to({"val_accuracy": LOGS[name]}, DECK_TARGET) for name in names if name in LOGS}
    return {
        "holds": bool(good) and all(good),
        "epochs_to_target": reached,
        "deck_epochs_to_target": deck,
        "sentence": f"First epoch with {100 * DECK_TARGET:.1f} %: {'; '.join(texts)}. Bar: {_BAR_EPOCHS}.",
    }


def _epochs_text(epochs: Sequence[int | None]) -> str:
    """
    >>> _epochs_text([7, None])
    '7/never'
    """
    return "/".join("never" if epoch is None else str(epoch) for epoch in epochs)


def conclude_nets(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    best = {}
    for net in NETS:
        ended = {
            g["group"].split(", ")[1]: g["final_accuracy"]["median"]
            for g in groups
            if g["group"].startswith(f"{net}, ") and g["final_accuracy"]
        }
        if ended:
            best[net] = max(ended, key=lambda name: ended[name])
    text = ", ".join(f"{net}: {name}" for net, name in best.items()) or "nothing was measured"
    missing = [g["group"] for g in groups if g["final_accuracy"] is None]
    return {
        "holds": len(best) == len(NETS) and not missing,
        "best": best,
        "without_result": missing,
        "sentence": f"Most accurate at the cards' rates: {text}.",
    }


def table(document: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells for the terminal and the page."""
    part = document["given"]["part"]
    if part == "step-time":
        head = ["part", "optimizer", "ms", "95 %", "÷ SGD", "95 %"]
        return head, [_step_cells(r) for r in document["done"]]
    if part == "esgd":
        head = ["contender", "seed", "fitness", "loss", "accuracy", "images trained", "images scored"]
        return head, [_contender_cells(r) for r in document["done"]]
    timed = part == "epochs"
    head = ["group", "final accuracy %", "95 %", "by seed", "s an epoch", "failed"]
    head += [f"first epoch with {100 * DECK_TARGET:.1f} %"] if timed else []
    return head, [_group_cells(g, timed) for g in document["groups"]]


def _group_cells(group: Mapping[str, Any], timed: bool) -> list[str]:
    found = group["final_accuracy"]
    seeds = ["failed" if v is None else f"{100 * v:.2f}" for v in group["by_seed"].values()]
    cells = [
        group["group"],
        f"{100 * found['median']:.2f}" if found else "failed",
        f"{100 * found['ci95'][0]:.2f}-{100 * found['ci95'][1]:.2f}" if stats.bounds(found) else "",
        ", ".join(seeds) if len(seeds) > 1 else "",
        f"{group['epoch_seconds']:.1f}" if group["epoch_seconds"] else "",
        "; ".join(dict.fromkeys(group["failed"])),
    ]
    return cells + ([_epochs_text(list(group["epochs_to_target"].values()))] if timed else [])


def _around(measured: Mapping[str, Any], digits: int) -> str:
    bounds = stats.bounds(measured)
    return f"{bounds[0]:.{digits}f}-{bounds[1]:.{digits}f}" if bounds else ""


def _step_cells(r: Mapping[str, Any]) -> list[str]:
    if r["status"] != "ok":
        return [r["part"], r["name"], "failed", "", "", r["reason"]]
    time, ratio = r["step_time_ms"], r["ratio_to_sgd"]
    return [
        r["part"], r["name"], f"{time['median']:.2f}", _around(time, 2), f"{ratio['median']:.3f}", _around(ratio, 3),
    ]  # fmt: skip


def _contender_cells(r: Mapping[str, Any]) -> list[str]:
    if r["status"] != "ok":
        return [r["contender"], str(r["seed"]), "failed", "", "", "", r["reason"]]
    best, used = r["best"], r["cost"]
    numbers = ["diverged" if best[key] is None else f"{best[key]:.4f}" for key in ("fitness", "loss")]
    images = [f"{used[key]:,}" for key in ("trained_images", "scored_images")]
    return [r["contender"], str(r["seed"]), *numbers, f"{100 * best['accuracy']:.2f} %", *images]
