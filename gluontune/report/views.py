"""What the page's template shows, as plain values: every figure becomes words here, not in the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gluontune.report import charts, plain, words
from gluontune.report.advice import advice, revisited_best, revisited_lines
from gluontune.report.read import reason_of, row_of
from gluontune.report.sentence import sentence_parts
from gluontune.result import RunResult

__all__ = ["ladder_view", "runs_view"]

Row = dict[str, Any]


def ladder_view(ladder: Mapping[str, Any], label: str, key: str, folder: Path | None = None) -> dict[str, Any]:
    """One ladder (checked by ``check_ladder``), ready for the template; ``key`` keeps ids apart.

    Args:
        folder: where the climb left ``best.py`` and ``best.yaml``.
    """
    rows = ladder["rungs"]
    unit = "img/s" if ladder["dataset"].get("image_shape") else "samples/s"
    headline, *rest = (part.replace(" %", "\u00a0%") for part in sentence_parts(ladder))
    best = next((row for row in rows if row["name"] == ladder["best"].get("name")), None)
    best = revisited_best(ladder, best or (rows[-1] if rows else {})) or best
    recipe = ladder["best"].get("recipe") or (best or {}).get("recipe") or {}
    return {
        "key": key,
        "label": words.clean(label, 120),
        "headline": headline[0].upper() + headline[1:],
        "rest": [part[0].upper() + part[1:] for part in rest if not part.startswith("interrupted:")],
        "facts": _facts_line(ladder),
        "complete": ladder["complete"],
        "advice": advice(ladder, folder),
        "revisited": revisited_lines(ladder),
        "unit": unit,
        "tiles": _tiles(ladder, rows, best, unit),
        "rows": [_with_limits(_row_view(row, ladder["best"].get("name")), row, ladder["machine"]) for row in rows],
        "predicts": any(row["predicted"] for row in rows),
        "figures": charts.figures_of(key, rows, unit),
        "utilization": charts.utilization_of(key, rows),
        "variants": [_variants(row) for row in rows if len(row["variants"]) > 1],
        "machine": plain.pairs(ladder["machine"]),
        "recipe_yaml": plain.as_yaml(recipe),
        "recipe_changes": plain.changes(_base_recipe(ladder), recipe),
    }


def _with_limits(shown: dict[str, Any], row: Row, machine: Mapping[str, Any]) -> dict[str, Any]:
    """A rung's view with what the reader should know beside it: variants that failed, and what MXNet cannot do here."""
    for variant in row["variants"]:
        if variant["status"] == "failed":
            why = words.clean(variant["reason"] or "no reason was given", 200)
            shown["why"].append(f"The variant {words.clean(variant['label'], 80)} could not be trained here: {why}")
    cpu = machine.get("cpu")
    flags = cpu.get("flags") if isinstance(cpu, Mapping) else None
    if not isinstance(flags, (list, str)):
        flags = []
    if row["name"] == "mixed-precision" and row["status"] == "ran" and "amx_bf16" in flags:
        shown["why"].append(_AMX_SAYS)
    return shown


_AMX_SAYS = (
    "This CPU has AMX, and MXNet 1.9.1 cannot use all of it: the oneDNN inside it is of 2021 and has no fast AMX path "
    "for narrow layers. On ResNet-20 and two such cores MXNet's bfloat16 reached 204 to 881 img/s where PyTorch "
    "reached 1,258."
)


def runs_view(runs: Mapping[str, RunResult]) -> dict[str, Any]:
    """Runs side by side; ``runs`` maps labels to results."""
    rows = [row_of(run, label) for label, run in runs.items()]
    names = {field: None for row in rows for field in row["recipe"]}
    differing = [field for field in names if len({plain.key(row["recipe"].get(field)) for row in rows}) > 1]
    machines = {plain.key(run.machine): run.machine for run in runs.values()}
    return {
        "rows": [_row_view(row, None) for row in rows],
        "unit": "samples/s",
        "figures": charts.figures_of("runs", rows, "samples/s"),
        "utilization": charts.utilization_of("runs", rows),
        "labels": [words.clean(row["name"], 80) for row in rows],
        "differences": [
            (words.clean(field, 60), [plain.said(row["recipe"].get(field)) for row in rows]) for field in differing
        ],
        "machines": [plain.pairs(machine) for machine in machines.values()],
        "recipes": [(words.clean(row["name"], 80), plain.as_yaml(row["recipe"])) for row in rows],
    }


def _facts_line(ladder: Mapping[str, Any]) -> str:
    data = ladder["dataset"]
    parts = []
    if data.get("name"):
        parts.append(f"data set {data['name']}")
    counts = [words.number(data.get(k)) for k in ("num_train", "num_test", "classes")]
    if counts[0] is not None:
        parts.append(f"{counts[0]:,.0f} training images")
    if isinstance(data.get("classes"), list):
        counts[2] = float(len(data["classes"]))
    if counts[2] is not None:
        parts.append(f"{counts[2]:,.0f} classes")
    if ladder.get("mode"):
        parts.append(f"{ladder['mode']} ladder")
    if ladder.get("created"):
        parts.append(_moment(str(ladder["created"])))
    if ladder.get("gluontune"):
        parts.append(f"gluontune {ladder['gluontune']}")
    return " · ".join(words.clean(part, 80) for part in parts)


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    return moment.strftime("%Y-%m-%d %H:%M") + (" UTC" if moment.utcoffset() == timedelta(0) else "")


def _tiles(ladder: Mapping[str, Any], rows: Sequence[Row], best: Row | None, unit: str) -> list[tuple[str, str, str]]:
    """The four figures to see first: (name, value, remark)."""
    naive = next((row for row in rows if row["name"] == "naive"), None)
    tiles = []
    for title, row in (("naive", naive), ("best", best)):
        if row is not None and row["samples_per_sec"]:
            name = "" if title == "naive" else words.clean(row["name"], 40)
            tiles.append((title, f"{words.rate(row['samples_per_sec']['median'])} {unit}", name))
    reached = [(row["val_accuracy"] or [None])[-1] if row else None for row in (best, naive)]
    if reached[0] is not None:
        epochs = len(best["val_accuracy"]) if best else 0
        remark = f"naive {words.accuracy(reached[1])}" if reached[1] is not None and best is not naive else ""
        tiles.append((f"accuracy after {epochs} epoch{'' if epochs == 1 else 's'}", words.accuracy(reached[0]), remark))
    ran = sum(row["status"] == "ran" for row in rows)
    took = [row["seconds"] for row in rows if row["seconds"] is not None]
    tiles.append(("rungs that ran", f"{ran} of {len(rows)}", f"in {words.duration(sum(took))}" if took else ""))
    return tiles


def _row_view(row: Row, best: str | None) -> dict[str, Any]:
    speed, previous = row["samples_per_sec"], row["ratio_to_previous"]
    bounds = speed["ci95"] if speed else None
    verdict = row["verdict"] if row["status"] == "ran" else row["status"]
    if row["status"] == "ran" and row.get("measurable") is False:
        verdict = "not measurable"
    elif row["status"] == "ran" and verdict == "n/a":
        verdict = "start" if row["name"] == "naive" else "measured"
    trained = [value for value in row["elapsed_seconds"] if value is not None]
    return {
        "name": words.clean(row["name"], 80),
        "sentence": words.clean(row.get("sentence") or "", 300),
        "best": row["name"] == best,
        "kept": row["kept"],
        "ran": row["status"] == "ran",
        "verdict": words.clean(verdict, 24),
        "mark": verdict.replace(" ", "-") if verdict in _MARKS else "other",
        "sign": _MARKS.get(verdict, ""),
        "rate": words.rate(speed["median"] if speed else None),
        "rate_ci": f"{words.rate(bounds[0])}–{words.rate(bounds[1])}" if bounds else "",
        "predicted": words.prediction(row),
        "basis": words.clean((row["predicted"] or {}).get("basis", ""), 200),
        "speedup": words.ratio(row["speedup_vs_naive"]),
        "speedup_ci": _ci(row["speedup_vs_naive"], row["speedup_ci95"]),
        "previous": words.ratio(previous["median"] if previous else None),
        "previous_ci": _ci(previous["median"], previous["ci95"]) if previous else "",
        "accuracy": words.reached(row) or words.accuracy(None),
        "trained": words.duration(trained[-1] if trained else None),
        "busy": _percent(row["steadiness"].get("mean_pct")),
        "steady": charts.score(row["steadiness"]),
        "memory": "—" if row["peak_rss_mib"] is None else f"{row['peak_rss_mib']:,.0f} MiB",
        "why": [sentence for sentence in [reason_of(row), *map(words.clean, row["notes"])] if sentence],
    }


_MARKS = {
    "helped": "▲",
    "hurt": "▼",
    "no gain": "=",
    "not measurable": "?",
    "failed": "✗",
    "skipped": "–",
    "interrupted": "…",
    "start": "●",
}


def _ci(value: float | None, bounds: Any) -> str:
    return words.interval(bounds, words.decimals(value)) if value is not None and bounds else ""


def _percent(value: Any) -> str:
    known = words.number(value)
    return "—" if known is None else f"{known:.0f} %"


def _variants(row: Row) -> dict[str, Any]:
    shown = []
    for variant in row["variants"]:
        speed, previous = variant["samples_per_sec"], variant["ratio_to_previous"]
        outcome = (
            "chosen for the rung" if variant["chosen"] else "" if variant["status"] == "ran" else variant["status"]
        )
        reason = words.clean(variant["reason"] or "", 300)
        shown.append(
            {
                "label": words.clean(variant["label"], 100),
                "changes": words.clean(", ".join(f"{k}: {plain.said(v)}" for k, v in variant["changes"].items()))
                or "nothing",
                "rate": words.rate(speed["median"] if speed else None),
                "predicted": words.prediction(variant),
                "basis": words.clean((variant["predicted"] or {}).get("basis", ""), 200),
                "previous": words.ratio(previous["median"] if previous else None),
                "previous_ci": _ci(previous["median"], previous["ci95"]) if previous else "",
                "chosen": variant["chosen"],
                "accuracy": words.accuracy(words.number(variant.get("accuracy"))),
                "outcome": ": ".join(part for part in (words.clean(outcome, 24), reason) if part),
            }
        )
    return {
        "name": words.clean(row["name"], 60),
        "rows": shown,
        "predicts": any(variant["predicted"] for variant in shown),
        "trained": any(words.number(variant.get("accuracy")) is not None for variant in row["variants"]),
    }


def _base_recipe(ladder: Mapping[str, Any]) -> Mapping[str, Any]:
    naive: Mapping[str, Any] = next((row["recipe"] for row in ladder["rungs"] if row["name"] == "naive"), {})
    return naive or ladder["base_recipe"]
