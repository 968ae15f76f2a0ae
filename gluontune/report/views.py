"""The values of the page's template: numbers are formatted here, not in the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gluontune.recipe.result import RunResult
from gluontune.report import figures, formatting as fmt
from gluontune.report.advice import advice, revisited_best, revisited_lines
from gluontune.report.read import reason_of, row_of
from gluontune.report.sentence import sentence_parts

Row = dict[str, Any]


def ladder_view(ladder: Mapping[str, Any], label: str, key: str, folder: Path | None = None) -> dict[str, Any]:
    """One ladder (of ``check_ladder``) for the template; ``key`` is the prefix of ids.

    Args:
        folder: of ``best.py`` and ``best.yaml``.
    """
    rows = ladder["rungs"]
    unit = "img/s" if ladder["dataset"].get("image_shape") else "samples/s"
    headline, *rest = (part.replace(" %", "\u00a0%") for part in sentence_parts(ladder))
    best = next((row for row in rows if row["name"] == ladder["best"].get("name")), None)
    best = revisited_best(ladder, best or (rows[-1] if rows else {})) or best
    recipe = ladder["best"].get("recipe") or (best or {}).get("recipe") or {}
    return {
        "key": key, "label": fmt.clean(label, 120), "headline": headline[0].upper() + headline[1:],
        "rest": [part[0].upper() + part[1:] for part in rest if not part.startswith("interrupted:")],
        "facts": _facts_line(ladder), "complete": ladder["complete"], "advice": advice(ladder, folder),
        "revisited": revisited_lines(ladder), "unit": unit, "tiles": _tiles(ladder, rows, best, unit),
        "rows": [_with_limits(_row_view(row, ladder["best"].get("name")), row, ladder["machine"]) for row in rows],
        "predicts": any(row["predicted"] for row in rows), "figures": _figures(key, rows, unit),
        "utilization": _utilization(key, rows),
        "variants": [_variants(row) for row in rows if len(row["variants"]) > 1],
        "machine": fmt.fact_pairs(ladder["machine"]), "recipe_yaml": fmt.as_yaml(recipe),
        "recipe_changes": fmt.changed_fields(_base_recipe(ladder), recipe),
    }  # fmt: skip


def _with_limits(shown: dict[str, Any], row: Row, machine: Mapping[str, Any]) -> dict[str, Any]:
    """A rung's view with notes on failed variants and on limits of MXNet on this CPU."""
    for variant in row["variants"]:
        if variant["status"] == "failed":
            why = fmt.clean(variant["reason"] or "no reason was given", 200)
            shown["why"].append(f"The variant {fmt.clean(variant['label'], 80)} could not be trained here: {why}")
    cpu = machine.get("cpu")
    flags = cpu.get("flags") if isinstance(cpu, Mapping) else None
    if not isinstance(flags, (list, str)):
        flags = []
    if row["name"] == "mixed-precision" and row["status"] == "ran" and "amx_bf16" in flags:
        shown["why"].append(_AMX_NOTE)
    return shown


_AMX_NOTE = (
    "This CPU has AMX, and MXNet 1.9.1 cannot use all of it: the oneDNN inside it is of 2021 and has no fast AMX path "
    "for narrow layers. On ResNet-20 and two such cores MXNet's bfloat16 reached 204 to 881 img/s where PyTorch "
    "reached 1,258."
)


def runs_view(runs: Mapping[str, RunResult]) -> dict[str, Any]:
    """Runs side by side; ``runs`` maps labels to results."""
    rows = [row_of(run, label) for label, run in runs.items()]
    names = {field: None for row in rows for field in row["recipe"]}
    differing = [field for field in names if len({fmt.canonical(row["recipe"].get(field)) for row in rows}) > 1]
    machines = {fmt.canonical(run.machine): run.machine for run in runs.values()}
    return {
        "rows": [_row_view(row, None) for row in rows],
        "unit": "samples/s",
        "figures": _figures("runs", rows, "samples/s"),
        "utilization": _utilization("runs", rows),
        "labels": [fmt.clean(row["name"], 80) for row in rows],
        "differences": [
            (fmt.clean(field, 60), [fmt.value_text(row["recipe"].get(field)) for row in rows]) for field in differing
        ],
        "machines": [fmt.fact_pairs(machine) for machine in machines.values()],
        "recipes": [(fmt.clean(row["name"], 80), fmt.as_yaml(row["recipe"])) for row in rows],
    }


def _facts_line(ladder: Mapping[str, Any]) -> str:
    data = ladder["dataset"]
    parts = []
    if data.get("name"):
        parts.append(f"data set {data['name']}")
    counts = [fmt.number(data.get(k)) for k in ("num_train", "num_test", "classes")]
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
    return " · ".join(fmt.clean(part, 80) for part in parts)


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
            name = "" if title == "naive" else fmt.clean(row["name"], 40)
            tiles.append((title, f"{fmt.rate(row['samples_per_sec']['median'])} {unit}", name))
    reached = [(row["val_accuracy"] or [None])[-1] if row else None for row in (best, naive)]
    if reached[0] is not None:
        epochs = len(best["val_accuracy"]) if best else 0
        remark = f"naive {fmt.accuracy(reached[1])}" if reached[1] is not None and best is not naive else ""
        tiles.append((f"accuracy after {epochs} epoch{'' if epochs == 1 else 's'}", fmt.accuracy(reached[0]), remark))
    ran = sum(row["status"] == "ran" for row in rows)
    took = [row["seconds"] for row in rows if row["seconds"] is not None]
    tiles.append(("rungs that ran", f"{ran} of {len(rows)}", f"in {fmt.duration(sum(took))}" if took else ""))
    return tiles


def _row_view(row: Row, best: str | None) -> dict[str, Any]:
    verdict = fmt.outcome(row)
    trained = [value for value in row["elapsed_seconds"] if value is not None]
    busy = fmt.number(row["steadiness"].get("mean_pct"))
    return {
        **_measured(row),
        "name": fmt.clean(row["name"], 80), "sentence": fmt.clean(row.get("sentence") or "", 300),
        "best": row["name"] == best, "kept": row["kept"], "ran": row["status"] == "ran",
        "verdict": fmt.clean(verdict, 24), "mark": verdict.replace(" ", "-") if verdict in fmt.MARKS else "other",
        "sign": fmt.MARKS.get(verdict, [""])[0],
        "speedup": fmt.ratio(row["speedup_vs_naive"]), "speedup_ci": _ci(row["speedup_vs_naive"], row["speedup_ci95"]),
        "accuracy": fmt.reached(row) or fmt.accuracy(None), "trained": fmt.duration(trained[-1] if trained else None),
        "busy": "—" if busy is None else f"{busy:.0f} %", "steady": _score(row["steadiness"]),
        "memory": "—" if row["peak_rss_mib"] is None else f"{row['peak_rss_mib']:,.0f} MiB",
        "why": [sentence for sentence in [reason_of(row), *map(fmt.clean, row["notes"])] if sentence],
    }  # fmt: skip


def _measured(entry: Mapping[str, Any]) -> dict[str, str]:
    """The speed of a rung, or of a variant of it: measured, predicted, and against the rung before."""
    speed, previous = entry["samples_per_sec"] or {}, entry["ratio_to_previous"] or {}
    bounds = speed.get("ci95")
    return {
        "rate": fmt.rate(speed.get("median")),
        "rate_ci": f"{fmt.rate(bounds[0])}–{fmt.rate(bounds[1])}" if bounds else "",
        "predicted": fmt.prediction(entry),
        "basis": fmt.clean((entry["predicted"] or {}).get("basis", ""), 200),
        "previous": fmt.ratio(previous.get("median")),
        "previous_ci": _ci(previous.get("median"), previous.get("ci95")),
    }


def _ci(value: float | None, bounds: Any) -> str:
    return fmt.interval(bounds, fmt.decimals(value)) if value is not None and bounds else ""


def _variants(row: Row) -> dict[str, Any]:
    shown = []
    for variant in row["variants"]:
        became = "" if variant["status"] == "ran" else variant["status"]
        outcome = fmt.clean("chosen for the rung" if variant["chosen"] else became, 24)
        changes = ", ".join(f"{k}: {fmt.value_text(v)}" for k, v in variant["changes"].items())
        shown.append({
            **_measured(variant), "chosen": variant["chosen"], "label": fmt.clean(variant["label"], 100),
            "changes": fmt.clean(changes) or "nothing",
            "accuracy": fmt.accuracy(fmt.number(variant.get("accuracy"))),
            "outcome": ": ".join(part for part in (outcome, fmt.clean(variant["reason"] or "", 300)) if part),
        })  # fmt: skip
    return {
        "name": fmt.clean(row["name"], 60),
        "rows": shown,
        "predicts": any(variant["predicted"] for variant in shown),
        "trained": any(fmt.number(variant.get("accuracy")) is not None for variant in row["variants"]),
    }


def _base_recipe(ladder: Mapping[str, Any]) -> Mapping[str, Any]:
    naive: Mapping[str, Any] = next((row["recipe"] for row in ladder["rungs"] if row["name"] == "naive"), {})
    return naive or ladder["base_recipe"]


def _score(steadiness: Mapping[str, Any]) -> str:
    score = fmt.number(steadiness.get("score"))
    return "" if score is None else f"{score:.2f}"


def _figures(key: str, rows: Sequence[Row], unit: str) -> list[dict[str, Any]]:
    ladder = any(row["name"] == "naive" for row in rows)
    phases = [phase for phase in fmt.PHASES if any(row["phases_pct"].get(phase) for row in rows)]
    others = sorted({p for row in rows for p in row["phases_pct"] if p not in fmt.PHASES})
    legend = [(f"{p}: {fmt.PHASES[p]}", figures.PHASE_SERIES[p]) for p in phases]
    legend += [(fmt.clean(p, 40), 7) for p in others]
    drawn = [
        (
            "Throughput",
            figures.throughput(f"{key}-throughput", rows, unit),
            _BARS_CAPTION
            + (_KEPT_CAPTION if ladder else "")
            + (_PREDICTED_CAPTION if any(row["predicted"] for row in rows) else ""),
            [],
        ),
        ("What each rung brought", figures.gains(f"{key}-gains", rows), _GAINS_CAPTION, []),
        ("Where a step's time goes", figures.phases(f"{key}-phases", rows), _PHASES_CAPTION, legend),
        (
            "Accuracy against time",
            figures.accuracy(f"{key}-accuracy", rows),
            _CURVES_CAPTION + (" Dashed: not kept." if ladder else ""),
            [],
        ),
    ]
    return [{"title": t, "svg": svg, "caption": c, "legend": g} for t, svg, c, g in drawn if svg]


_BARS_CAPTION = "Training throughput, loading included. Whiskers: 95 % interval."
_KEPT_CAPTION = (
    " Blue: kept; grey: not kept. Dashed: naive. In brackets: the speed against naive measured in the same "
    "minutes, which is valid even if the machine's speed drifts."
)
_PREDICTED_CAPTION = " Hollow diamonds: predicted before it was measured."
_GAINS_CAPTION = (
    "Measured in turn with the best rung before it. A whisker that crosses the dashed line shows no certain "
    "gain. Dots: kept; diamonds: not kept."
)
_PHASES_CAPTION = "Percent of one training step. A phase that shrinks gives its time to the others."
_CURVES_CAPTION = "The clock counts training alone."


def _utilization(key: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for place, row in enumerate(rows):
        svg = figures.utilization(f"{key}-util{place}", row)
        if svg is None:
            continue
        steady = row["steadiness"]
        forms = [("mean", "mean_pct", "{:.0f} %"), ("below half", "below_50_pct", "{:.0f} % of the time")]
        forms += [("longest idle gap", "longest_idle_gap_s", "{:.1f} s")]
        values = [(title, fmt.number(steady.get(name)), form) for title, name, form in forms]
        caption = [f"{title} {form.format(value)}" for title, value, form in values if value is not None]
        if _score(steady):
            caption.insert(1, f"steadiness {_score(steady)}")
        legend = figures.utilization_series(row)
        found.append({"name": fmt.clean(row["name"], 60), "svg": svg, "caption": ", ".join(caption), "legend": legend})
    return found
