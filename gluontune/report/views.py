"""The studies of ladders and runs, for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gluontune.core.events import deciding
from gluontune.recipe.result import RunResult
from gluontune.report import figures, formatting as fmt
from gluontune.report.read import reason_of, row_of
from gluontune.report.sentence import advice, best_row, proof_clause, revisited_lines, sentence_parts
from gluontune.report.study import cell, figure, row, section, study, table

Row = dict[str, Any]


def ladder_view(ladder: Mapping[str, Any], key: str, folder: Path | None = None) -> dict[str, Any]:
    """The study of one ladder (of ``check_ladder``), with the files of its best recipe in ``folder``."""
    rows = ladder["rungs"]
    unit = fmt.unit(ladder)
    headline, *rest = (part[0].upper() + part[1:] for part in sentence_parts(ladder))
    named = ladder["best"].get("name")
    best = best_row(ladder)
    recipe = ladder["best"].get("recipe") or (best or {}).get("recipe") or {}
    again = revisited_lines(ladder)
    rungs = _rows_table(rows, unit, named, _limits(rows, ladder["machine"]))
    tried = [_variants(row, unit) for row in rows if len(row["variants"]) > 1]
    naive: Mapping[str, Any] = next((each["recipe"] for each in rows if each["name"] == "naive"), {})
    differing = fmt.changed_fields(naive or ladder["base_recipe"], recipe)
    changed = [row(cell(name, code=True), old, new) for name, old, new in differing]
    last = [
        section("The whole recipe", tables=[table("", ["Field", "naive", "best"], changed)], recipe=fmt.as_yaml(recipe),
                hint=_RECIPE_HINT, folded=True) if recipe and not ladder.get("script") else None,
        section("What was tried on each rung", tables=tried, folded=True) if tried else None,
        section("The machine", facts=fmt.fact_pairs(ladder["machine"]), folded=True) if ladder["machine"] else None,
    ]  # fmt: skip
    view = study(
        key=key,
        headline=headline,
        over=_facts_line(ladder),
        warn="" if ladder["complete"] else "This ladder was interrupted: it shows what was measured until then.",
        remarks=[part for part in rest if not part.startswith("Interrupted:")],
        tiles=_tiles(ladder, rows, best, unit),
        figures=_figures(key, rows, unit),
        advice=advice(ladder, folder),
        first=[section("The rungs", tables=[rungs], lists=[(_AGAIN, _AGAIN_HINT, again)] if again else [])],
        small=_utilization(key, rows),
        last=[part for part in last if part],
    )
    # Percent signs stay on the line of their figures.
    head, *rest = (part.replace(" %", "\u00a0%") for part in (view["headline"], *view["remarks"]))
    return {**view, "headline": head, "remarks": rest}


_AGAIN = "Asked again at the end"
_AGAIN_HINT = "On top of the best recipe: what was dropped is asked again, what was kept early is left out once."
_RECIPE_HINT = "Save it as recipe.yaml: gluontune train --recipe recipe.yaml trains with it."


def _limits(rows: Sequence[Row], machine: Mapping[str, Any]) -> dict[str, list[str]]:
    """Notes by rung: on failed variants, and on limits of MXNet on this CPU."""
    found: dict[str, list[str]] = {}
    cpu = machine.get("cpu")
    flags = cpu.get("flags") if isinstance(cpu, Mapping) else None
    amx = isinstance(flags, (list, str)) and "amx_bf16" in flags
    for each in rows:
        notes = found.setdefault(each["name"], [])
        for variant in each["variants"]:
            if variant["status"] == "failed":
                why = fmt.clean(variant["reason"] or "no reason was given", 200)
                notes.append(f"The variant {fmt.clean(variant['label'], 80)} could not be trained here: {why}")
        if each["name"] == "mixed-precision" and each["status"] == "ran" and amx:
            notes.append(_AMX_NOTE)
    return found


_AMX_NOTE = (
    "This CPU has AMX, and MXNet 1.9.1 cannot use all of it: the oneDNN inside it is of 2021 and has no fast AMX path "
    "for narrow layers. On ResNet-20 and two such cores MXNet's bfloat16 reached 204 to 881 img/s where PyTorch "
    "reached 1,258."
)


def runs_view(runs: Mapping[str, RunResult]) -> dict[str, Any]:
    """The study of runs side by side; ``runs`` maps labels to results."""
    rows = [row_of(run, label) for label, run in runs.items()]
    labels = [fmt.clean(each["name"], 80) for each in rows]
    names = {field: None for each in rows for field in each["recipe"]}
    differing = [field for field in names if len({fmt.canonical(each["recipe"].get(field)) for each in rows}) > 1]
    differences = [
        row(cell(fmt.clean(field, 60), code=True), *(fmt.value_text(each["recipe"].get(field)) for each in rows))
        for field in differing
    ]
    lists: list[Any] = [] if differing or len(rows) == 1 else [("", "The recipes do not differ.", [])]
    machines = list({fmt.canonical(run.machine): run.machine for run in runs.values()}.values())
    several = len(machines) > 1
    return study(
        key="runs",
        headline="One run" if len(rows) == 1 else f"{len(rows)} runs side by side",
        over="",
        figures=_figures("runs", rows, "samples/s"),
        first=[section("The runs", tables=[_rows_table(rows, "samples/s")], lists=lists),
               *([section("What differs in the recipes", tables=[table("", ["Field", *labels], differences)])]
                 if differing else [])],
        small=_utilization("runs", rows),
        last=[*(section(f"Recipe: {label}" if len(rows) > 1 else "The recipe", recipe=fmt.as_yaml(each["recipe"]),
                        folded=len(rows) > 1) for label, each in zip(labels, rows)),
              *(section(f"Machine {n}" if several else "The machine", facts=fmt.fact_pairs(machine))
                for n, machine in enumerate(machines, 1) if machine)],
    )  # fmt: skip


def _facts_line(ladder: Mapping[str, Any]) -> str:
    data = ladder["dataset"]
    parts = [f"{'script' if ladder.get('script') else 'data set'} {data['name']}"] if data.get("name") else []
    images, classes = data.get("num_train"), data.get("classes")
    classes = len(classes) if isinstance(classes, list) else classes
    for count, what in ((images, "training images"), (classes, "classes")):
        if fmt.number(count) is not None:
            parts.append(f"{count:,.0f} {what}")
    parts += [f"{ladder['mode']} ladder"] if ladder.get("mode") else []
    parts += [_moment(str(ladder["created"]))] if ladder.get("created") else []
    parts += [f"gluontune {ladder['gluontune']}"] if ladder.get("gluontune") else []
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
    for title, each in (("naive", naive), ("best", best)):
        if each is not None and each["samples_per_sec"]:
            name = "" if title == "naive" else fmt.clean(each["name"], 40)
            tiles.append((title, f"{fmt.rate(each['samples_per_sec']['median'])} {unit}", name))
    reached = [(row["val_accuracy"] or [None])[-1] if row else None for row in (best, naive)]
    if reached[0] is not None:
        epochs = (best or {})["recipe"].get("epochs") or len((best or {})["val_accuracy"])
        remark = f"naive {fmt.accuracy(reached[1])}" if reached[1] is not None and best is not naive else ""
        tiles.append((f"accuracy after {epochs:g} epoch{'' if epochs == 1 else 's'}", fmt.accuracy(reached[0]), remark))
    if proof_clause(ladder):
        target = fmt.accuracy(ladder["proof"]["target"])
        tiles.append(("accuracy to reach", target, "in the proof: 2 points below the lower one of both in the climb"))
    ran = sum(row["status"] == "ran" for row in rows)
    took = fmt.number((ladder.get("budget") or {}).get("spent_seconds"))
    tiles.append(("rungs that ran", f"{ran} of {len(rows)}", "" if took is None else f"in {fmt.duration(took)}"))
    return tiles


def _rows_table(
    rows: Sequence[Row], unit: str, best: str | None = None, notes: Mapping[str, list[str]] | None = None
) -> dict[str, Any]:
    """The rungs of a ladder, with ``notes`` by rung, or runs side by side (None)."""
    ladder, shown = notes is not None, []
    for each in rows:
        word = fmt.outcome(each)
        trained = [value for value in each["elapsed_seconds"] if value is not None]
        busy, steady = fmt.number(each["steadiness"].get("mean_pct")), _score(each["steadiness"])
        gain = _ratio_cell(deciding(each), fmt.decided_by(each).replace("the speed", ""))
        naive = each["speedup_vs_naive"] and {"median": each["speedup_vs_naive"], "ci95": each["speedup_ci95"]}
        mark = word.replace(" ", "-") if word in fmt.MARKS else "other"
        kept = "kept" if each["in_best"] else "not kept"
        if each["in_best"] != each["kept"]:
            kept += ", asked again at the end" if each["in_best"] else ": left out at the end"
        kept = kept if ladder and each["status"] == "ran" and mark != "start" else ""
        shown.append(row(
            cell(fmt.clean(each["name"], 80), fmt.clean(each.get("sentence") or "", 300),
                 badge="best" if each["name"] == best else ""),
            cell(fmt.clean(word, 24), kept, mark=mark, sign=fmt.MARKS.get(word, [""])[0]),
            _rate_cell(each),
            *((_ratio_cell(naive), gain) if ladder else ()),
            cell(fmt.reached(each) or fmt.accuracy(None), f"in {fmt.duration(trained[-1])}" if trained else ""),
            cell("—" if busy is None else f"{busy:.0f} %", f"steadiness {steady}" if steady else ""),
            "—" if each["peak_rss_mib"] is None else f"{each['peak_rss_mib']:,.0f} MiB",
            why=[reason_of(each), *map(fmt.clean, each["notes"]), *(notes or {}).get(each["name"], ())],
            dim=not each["in_best"],
        ))  # fmt: skip
    predicts = _PREDICTED_HINT if ladder and any(each["predicted"] for each in rows) else ""
    compared = ("against naive", "against the rung before") if ladder else ()
    head = ["Rung" if ladder else "Run", "Verdict" if ladder else "Status", unit, *compared]
    caption = f"Small figures are 95 % intervals. {predicts}{_BUSY_HINT}"
    return table("", [*head, "Accuracy", "Busy", "Memory"], shown, caption, cards=True, left=(0, 1))


_PREDICTED_HINT = (
    "Predicted: before the rung was measured, from its parts, each measured alone; the error is in brackets. "
)
_BUSY_HINT = (
    "Busy: mean utilization of the device that computes. Steadiness: 1 is perfectly even, 1 ∕ (1 + cv²) with cv its "
    "coefficient of variation."
)


def _rate_cell(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The speed of a rung, or of a variant of it: measured and predicted."""
    speed, guess = entry["samples_per_sec"] or {}, fmt.prediction(entry)
    bounds = speed.get("ci95")
    around = fmt.rates(bounds) if bounds else ""
    tip = fmt.clean((entry["predicted"] or {}).get("basis", ""), 200)
    return cell(fmt.rate(speed.get("median")), around, f"predicted {guess}" if guess else "", tip=tip if guess else "")


def _ratio_cell(ratio: Any, what: str = "") -> dict[str, Any]:
    if not ratio:
        return cell(fmt.ratio(None))
    around = fmt.interval(ratio["ci95"], fmt.decimals(ratio["median"])) if ratio["ci95"] else ""
    return cell(fmt.ratio(ratio["median"]), around, what)


def _variants(rung: Row, unit: str) -> dict[str, Any]:
    """The variants of a rung, with the accuracies of those that were trained."""
    trained, shown = any(fmt.number(v.get("accuracy")) is not None for v in rung["variants"]), []
    for variant in rung["variants"]:
        became = "" if variant["status"] == "ran" else variant["status"]
        outcome = fmt.clean("chosen for the rung" if variant["chosen"] else became, 24)
        changes = fmt.clean(", ".join(f"{k}: {fmt.value_text(v)}" for k, v in variant["changes"].items())) or "nothing"
        reached = [fmt.accuracy(fmt.number(variant.get("accuracy")))] if trained else []
        why = ": ".join(part for part in (outcome, fmt.clean(variant["reason"] or "", 300)) if part)
        label, ratio = cell(fmt.clean(variant["label"], 100)), _ratio_cell(variant["ratio_to_previous"])
        cells = (label, cell(changes, code=True), _rate_cell(variant), ratio, *reached, cell(why))
        shown.append(row(*cells, chosen=variant["chosen"]))
    head = ["Variant", "Changes", unit, "speed against the rung before", *(["Accuracy"] if trained else []), "Outcome"]
    return table(fmt.clean(rung["name"], 60), head, shown, left=(0, 1, len(head) - 1))


def _score(steadiness: Mapping[str, Any]) -> str:
    score = fmt.number(steadiness.get("score"))
    return "" if score is None else f"{score:.2f}"


def _figures(key: str, rows: Sequence[Row], unit: str) -> list[dict[str, Any]]:
    ladder = any(row["name"] == "naive" for row in rows)
    phases = [phase for phase in fmt.PHASES if any(row["phases_pct"].get(phase) for row in rows)]
    others = sorted({p for row in rows for p in row["phases_pct"] if p not in fmt.PHASES})
    legend = [(f"{p}: {fmt.PHASES[p]}", figures.PHASE_SERIES[p]) for p in phases]
    legend += [(fmt.clean(p, 40), 7) for p in others]
    bars = _BARS_CAPTION + (_KEPT_CAPTION if ladder else "")
    bars += _PREDICTED_CAPTION if any(row["predicted"] for row in rows) else ""
    curves = _CURVES_CAPTION + (" Dashed: not kept." if ladder else "")
    return [
        figure("Throughput", figures.throughput(f"{key}-throughput", rows, unit), bars),
        figure("What each rung brought", figures.gains(f"{key}-gains", rows), _GAINS_CAPTION),
        figure("Where a step's time goes", figures.phases(f"{key}-phases", rows), _PHASES_CAPTION, legend),
        figure("Accuracy against time", figures.accuracy(f"{key}-accuracy", rows), curves),
    ]


_BARS_CAPTION = "Training throughput, loading included. Whiskers: 95 % interval."
_KEPT_CAPTION = (
    " Blue: kept; grey: not kept. Dashed: naive. In brackets: the speed against naive measured in the same "
    "minutes, which is valid even if the machine's speed drifts."
)
_PREDICTED_CAPTION = " Hollow diamonds: predicted before it was measured."
_GAINS_CAPTION = (
    "Measured in turn with the best rung before it: speed, or time to the accuracy. A whisker that crosses the dashed "
    "line shows no certain gain. Dots: kept; diamonds: not kept."
)
_PHASES_CAPTION = "Percent of one training step. A phase that shrinks gives its time to the others."
_CURVES_CAPTION = "The clock counts training alone."


def _utilization(key: str, rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for place, each in enumerate(rows):
        svg = figures.utilization(f"{key}-util{place}", each)
        if svg is None:
            continue
        forms = [("mean", "mean_pct", "{:.0f} %"), ("below half", "below_50_pct", "{:.0f} % of the time"),
                 ("longest idle gap", "longest_idle_gap_s", "{:.1f} s")]  # fmt: skip
        steady = each["steadiness"]
        values = [(title, fmt.number(steady.get(name)), form) for title, name, form in forms]
        caption = [f"{title} {form.format(value)}" for title, value, form in values if value is not None]
        if _score(steady):
            caption.insert(1, f"steadiness {_score(steady)}")
        found.append(figure(fmt.clean(each["name"], 60), svg, ", ".join(caption), figures.utilization_series(each)))
    return found
