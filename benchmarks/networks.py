"""``python -m benchmarks networks``: whether ``gt.compute.hybridize`` ever makes a network slower, or changes it.

Networks of every family in gluoncv's and MXNet's zoos, each in a process of its own with the tuned
settings. ``hybridize`` chooses on one measurement; its choice then runs against freshly built networks
in MXNet's own modes, interleaved, in an independent series.

*Made slower*: the whole 95 % interval of the ratio (best plain mode's step time ÷ the choice's, pairs of
the same round) lies below 1, in that series and in a second one. One series alone would call one network in forty
slower that runs the same graph, and the best of three plain modes is picked after the fact. A choice that *is* the
best plain mode, without a rewrite, runs the same graph: it counts as equally fast, and its ratio is noise.

*Agreement*: see :mod:`benchmarks.agreement`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._one_network import PLAIN
from benchmarks.published import rounded
from gluontune import runtime
from gluontune.core.errors import GluontuneError, UsageError, nearest
from gluontune.core.files import set_aside, writable_folder, write_json
from gluontune.core.journal import earlier
from gluontune.runtime import machine_facts
from gluontune.search.bench.contender import OURS, Contender, Entrant

__all__ = ["Case", "NETWORKS", "Pace", "figure", "run", "show"]

SCHEMA = 1


class Case(NamedTuple):
    """A family's representative: the side of its square input, and images in a batch.

    The inputs are as small as the family takes them; a fixed pooling window decides in some (224, 299).
    """

    family: str
    side: int
    batch: int


NETWORKS: dict[str, Case] = {
    "cifar_resnet20_v1": Case("CIFAR ResNet v1", 32, 8),
    "cifar_resnet20_v2": Case("CIFAR ResNet v2", 32, 8),
    "cifar_wideresnet16_10": Case("CIFAR WideResNet", 32, 2),
    "cifar_resnext29_32x4d": Case("CIFAR ResNeXt", 32, 4),
    "cifar_residualattentionnet56": Case("CIFAR residual attention", 32, 4),
    "resnet18_v1": Case("ResNet v1", 64, 4),
    "resnet18_v2": Case("ResNet v2", 64, 4),
    "resnet18_v1b": Case("ResNet v1b", 64, 4),
    "resnet50_v1d": Case("ResNet v1d", 64, 2),
    "resnext50_32x4d": Case("ResNeXt", 64, 2),
    "se_resnet18_v1": Case("SE-ResNet", 64, 4),
    "resnest14": Case("ResNeSt", 64, 2),
    "mobilenet0.25": Case("MobileNet v1", 64, 8),
    "mobilenetv2_0.25": Case("MobileNet v2", 64, 8),
    "mobilenet_v2_0_25": Case("MobileNet v2 (MXNet's)", 64, 8),
    "mobilenetv3_small": Case("MobileNet v3", 64, 8),
    "squeezenet1.1": Case("SqueezeNet", 224, 2),
    "densenet121": Case("DenseNet", 224, 2),
    "vgg11": Case("VGG", 32, 8),
    "vgg11_bn": Case("VGG with BatchNorm", 32, 8),
    "alexnet": Case("AlexNet", 64, 8),
    "googlenet": Case("GoogLeNet", 224, 1),
    "inception_v3": Case("Inception v3 (MXNet's)", 299, 1),
    "shufflenet_v2": Case("ShuffleNet v2", 64, 8),
    "dla34": Case("DLA", 64, 2),
}


class Pace(NamedTuple):
    """Rounds and seconds of the choice, then rounds and slices of each race."""

    choice_rounds: int
    choice_s: float
    rounds: int
    slice_s: float


#: Makes the row of a network; takes its name, the pace, the time limit and a function for lines of progress.
Measure = Callable[[str, Pace, float, Callable[[str], None]], "dict[str, Any]"]
QUICK, FULL = Pace(3, 15.0, 15, 0.05), Pace(7, 30.0, 15, 0.5)


def run(
    nets: Sequence[str] | None = None,
    *,
    pace: Pace = FULL,
    out: Path | None = None,
    resume: bool = False,
    time_limit: float = 300.0,
    say: Callable[[str], None] = lambda line: None,
    measure: Measure | None = None,
) -> dict[str, Any]:
    """Measure each network and return the document; it is saved to ``out`` after each.

    Args:
        nets: names of :data:`NETWORKS`; default all.
        pace: ``FULL``, or ``QUICK``: about 40 seconds a network on two cores.
        out: the JSON file; an earlier one is kept as ``NAME.previous.json``. resume: keep its finished rows, which must
            have been measured at the same pace.
        time_limit: seconds that one part of a network's work may take.
        say: called with lines of progress. measure: makes a row, by default in a process of the network's own.

    Returns:
        ``{"rows": [{"name", "family", "side", "batch", "status", "reason", "choice", "series", "verdict":
        "faster|as fast|slower", "agreement"}], "figures": {"networks", "failed", "made_slower",
        "made_faster", "disagree", "largest_output_difference", "largest_gradient_difference",
        "largest_float64_difference"}, "machine", "conditions"}``. Failures are rows.

    Raises:
        UsageError: an unknown network.
    """
    names = list(dict.fromkeys(nets or NETWORKS))
    for name in names:
        if name not in NETWORKS:
            close = nearest(name, list(NETWORKS), n=3)
            hint = f"did you mean {', '.join(close)}?" if close else f"choose of {', '.join(NETWORKS)}"
            raise UsageError(f"benchmarks networks: unknown net {name!r}: {hint}")
    rows, measure = _known(out, pace) if resume else {}, measure or _row
    if out is not None:
        writable_folder(out.absolute().parent)
    if not resume:
        set_aside(out)
    document: dict[str, Any] = {}
    for place, name in enumerate(names, 1):
        if name not in rows:
            rows[name] = measure(name, pace, time_limit, lambda line: say(f"{place}/{len(names)} {line}"))  # noqa: B023
        done = [rows[n] for n in names if n in rows]
        document = {
            "schema_version": SCHEMA,
            "kind": "networks",
            "rows": done,
            "figures": _figures(done),
            "machine": machine_facts(),
            "conditions": {"pace": pace._asdict(), "threads": runtime.usable_cores()},
        }
        if out is not None:
            write_json(out, document)
    return document


def _known(out: Path | None, pace: Pace) -> dict[str, dict[str, Any]]:
    def rows(before: Any) -> dict[str, dict[str, Any]]:
        if before["schema_version"] != SCHEMA or before["conditions"]["pace"] != pace._asdict():
            raise GluontuneError(f"{out}: was measured at another pace; start without --resume")
        return {row["name"]: row for row in before["rows"] if row["status"] == "ok"}

    return earlier(out, "benchmarks networks", rows) or {}


def _row(name: str, pace: Pace, time_limit: float, say: Callable[[str], None]) -> dict[str, Any]:
    """One network, in its own process; failures are in the row."""
    case = NETWORKS[name]
    settings = {"name": name, "side": case.side, "batch": case.batch}
    target = "benchmarks._one_network:make"
    entrant = Entrant(name, OURS, target, settings, env=runtime.launch_settings().env)
    contender = Contender(entrant, time_limit)
    row: dict[str, Any] = {
        "name": name,
        **case._asdict(),
        "status": "ok",
        "reason": "",
        "agreement": None,
        "choice": None,
        "series": [],
        "verdict": None,
    }
    try:
        say(f"{name}: building")
        contender.launch()
        row.update(contender.info)
        say(f"{name}: comparing outputs and gradients")
        row["agreement"] = contender.ask("agree")
        say(f"{name}: choosing")
        row["choice"] = contender.ask("choose", rounds=pace.choice_rounds, seconds=pace.choice_s)
        for _ in range(2):
            say(f"{name}: racing")
            series = contender.ask("race", rounds=pace.rounds, slice_s=pace.slice_s)
            if contender.failure is not None:
                break
            row["series"].append(series)
            if series["ratio_to_best_plain"]["ci95"][1] >= 1.0 or _is_plain(row["choice"], series["best_plain"]):
                break
    finally:
        contender.close()
    if contender.failure is not None:
        row.update(status="failed", reason=str(contender.failure))
    else:
        same = _is_plain(row["choice"], row["series"][-1]["best_plain"])
        row["verdict"] = "as fast" if same else _verdict(row["series"])
    return row


def _is_plain(choice: Mapping[str, Any], mode: str) -> bool:
    """Whether gluontune's choice is just this mode of MXNet's.

    >>> _is_plain({"settings": "static", "rewrites": []}, "hybridize(static_alloc, static_shape)")
    True
    >>> _is_plain({"settings": "static", "rewrites": ["pool-to-mean"]}, "hybridize(static_alloc, static_shape)")
    False
    """
    from gluontune.compute import MODES

    flags = MODES.get(choice["settings"], {})
    return not choice["rewrites"] and bool(flags) and {"active": False, **PLAIN[mode]} == flags


def _verdict(series: Sequence[Mapping[str, Any]]) -> str:
    """``slower`` requires two slower series; ``faster`` requires a certain gain in the last one.

    >>> low, high = {"ratio_to_best_plain": {"ci95": [0.9, 0.95]}}, {"ratio_to_best_plain": {"ci95": [0.9, 1.1]}}
    >>> _verdict([low, low]), _verdict([low, high]), _verdict([high])
    ('slower', 'as fast', 'as fast')
    """
    intervals = [s["ratio_to_best_plain"]["ci95"] for s in series]
    if len(intervals) == 2 and all(high < 1.0 for _, high in intervals):
        return "slower"
    return "faster" if intervals[-1][0] > 1.0 else "as fast"


def _figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    agreements = [r["agreement"] for r in rows if r["agreement"]]

    def count(verdict: str) -> int:
        return sum(r["verdict"] == verdict for r in rows)

    def largest(key: str) -> float | None:
        return max((a[key] for a in agreements), default=None)

    return {
        "networks": len(rows),
        "failed": sum(r["status"] != "ok" for r in rows),
        "made_slower": count("slower"),
        "made_faster": count("faster"),
        "disagree": sum(not a["agrees"] for a in agreements),
        "arrays": sum(a["arrays"] for a in agreements),
        "arrays_above_tolerance": sum(len(a["above"]) for a in agreements),
        "largest_output_difference": largest("outputs"),
        "largest_gradient_difference": largest("gradients"),
        "largest_float64_difference": largest("float64"),
    }


def show(found: Mapping[str, Any], console: Any) -> None:
    """Print the table and the figures."""
    from rich.table import Table

    table = Table("network", "best plain", "ms", "÷ best plain", "verdict", "choice", "outputs", "gradients", "f64")
    for row in found["rows"]:
        agreed = row["agreement"]
        cells = [f"{agreed[k]:.0e}" for k in ("outputs", "gradients", "float64")] if agreed else [""] * 3
        if row["status"] != "ok":
            table.add_row(row["name"], "", "", "", "failed", row["reason"], *cells)
            continue
        last, choice = row["series"][-1], row["choice"]
        ratio = last["ratio_to_best_plain"]
        table.add_row(
            row["name"],
            last["best_plain"].split("(")[0] if "static" not in last["best_plain"] else "static",
            f"{last['step_ms'][last['best_plain']]['median']:.1f}",
            f"{ratio['median']:.2f} ({ratio['ci95'][0]:.2f}-{ratio['ci95'][1]:.2f})",
            row["verdict"] + ("" if agreed["agrees"] else ", DISAGREES"),
            " + ".join([choice["settings"], *choice["rewrites"]]),
            *cells,
        )
    console.print(table)
    f = found["figures"]
    console.print(
        f"networks made slower than the best plain MXNet mode: {f['made_slower']} of {f['networks']} "
        f"({f['made_faster']} made faster, {f['failed']} failed)\n"
        f"networks whose outputs or gradients disagree with the original's: {f['disagree']} "
        f"({f['arrays_above_tolerance']} of {f['arrays']} arrays differ by more than 1e-5 of their scale in float32)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def figure(found: Mapping[str, Any]) -> dict[str, Any]:
    """What ``python -m benchmarks publish`` makes of the document: a row for each network."""
    rows, counts = [], found["figures"]
    for row in found["rows"]:
        last = row["series"][-1] if row["series"] else None
        ratio = rounded(last["ratio_to_best_plain"], 2) if last else ""
        chosen = " + ".join([row["choice"]["settings"], *row["choice"]["rewrites"]]) if row["choice"] else ""
        rows.append([row["name"], ratio, row["verdict"] or row["status"], chosen])
    return {
        "title": f"gt.compute.hybridize on {counts['networks']} networks, one of each family of the zoos",
        "command": "python -m benchmarks networks",
        "n": f"{found['conditions']['pace']['rounds']} rounds of an independent race",
        "columns": ["network", "÷ MXNet's best mode", "verdict", "what was chosen"],
        "rows": rows,
        "notes": [
            f"Made slower: {counts['made_slower']}; faster: {counts['made_faster']}; failed: {counts['failed']}; "
            f"{counts['arrays_above_tolerance']} of {counts['arrays']} outputs and gradients are more than 1e-5 of "
            "their scale apart."
        ],
    }
