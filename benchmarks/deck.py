"""``python -m benchmarks deck``: oneDNN off and on, over the networks of the seed deck's table.

MXNet's own kernels against oneDNN's, latency at batch 1 and throughput at a larger batch, in two processes
that take turns; random weights, so that the deck's second table (the same accuracy) becomes a comparison of the
outputs. The deck measured MXNet 1.3 on 72 vCPUs; its speedups are shown for orientation only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.published import rounded
from gluontune import runtime
from gluontune.core import stats
from gluontune.core.arrays import gap
from gluontune.core.errors import UsageError, nearest
from gluontune.core.files import set_aside, write_json
from gluontune.core.journal import earlier
from gluontune.runtime.launch import launch_settings
from gluontune.search.bench.benchmark import hold
from gluontune.search.bench.contender import OURS, Contender, Entrant

__all__ = ["NETWORKS", "figure", "run", "show"]

_WORK = "benchmarks._deck:make"
_OFF = {"MXNET_MKLDNN_ENABLED": "0", "MXNET_ONEDNN_ENABLED": "0"}


class Network(NamedTuple):
    """The net's name, the shape of one input, and the deck's speedups at batch 1 and 128 (None: not in it)."""

    net: str
    shape: tuple[int, ...]
    deck_1: float | None
    deck_128: float | None


_IMAGE = (3, 224, 224)
NETWORKS: dict[str, Network] = {
    "ResNet-50 v1": Network("resnet50_v1", _IMAGE, 7.45, 15.90),
    "ResNet-50 v2": Network("resnet50_v2", _IMAGE, 7.58, 15.51),
    "Inception v3": Network("inceptionv3", (3, 299, 299), 10.44, 23.57),
    "DenseNet-121": Network("densenet121", _IMAGE, 5.91, 17.60),
    "MobileNet": Network("mobilenet1.0", _IMAGE, 8.73, 20.60),
    "MobileNet v2": Network("mobilenetv2_1.0", _IMAGE, None, None),
    "VGG16": Network("vgg16", _IMAGE, 20.25, 24.31),
    "AlexNet": Network("alexnet", _IMAGE, 17.00, 36.32),
    "SSD-MobileNet": Network("ssd_512_mobilenet1.0_voc", (3, 512, 512), 8.45, 14.18),
    "GNMT (small stand-in)": Network("small_gnmt", (16, 128), 7.27, 6.83),
    "DCGAN (small stand-in)": Network("small_dcgan", (100, 1, 1), 37.85, 38.94),
}


def run(
    names: Sequence[str] | None = None,
    *,
    batch_size: int = 128,
    rounds: int = 3,
    seconds: float = 1.0,
    say: Callable[[str], None] | None = None,
    out: Path | None = None,
    resume: bool = False,
    contest: Callable[..., list[Contender]] = hold,
) -> dict[str, Any]:
    """Measure the networks, and return the document.

    Args:
        names: parts of names of :data:`NETWORKS`; None takes all. batch_size: of the throughput.
        rounds, seconds: of ``hold``; a slice is at least one batch, which takes long with oneDNN off.
        out: the document, written after each network. resume: networks that ran and are in
            ``out``, measured under the same conditions, are not measured again. contest: measures the entrants.

    Returns:
        ``{"rows": [{"name", "net", "status", "reason", "latency", "throughput", "output_delta", "deck"}],
        "geometric_mean": {"latency", "throughput"}, "machine", "conditions"}``; ``latency`` and ``throughput``
        hold ``off`` and ``on`` (images a second) and ``speedup``; ``output_delta`` is the largest difference
        of the outputs ÷ the largest output.

    Raises:
        UsageError: no network of that name, a number below 1.
    """
    chosen = [name for name in NETWORKS if names is None or any(n.lower() in name.lower() for n in names)]
    if not chosen:
        close = nearest((names or [""])[0], list(NETWORKS))
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(f"benchmarks deck: no network {names}: {hint}Known: {', '.join(NETWORKS)}")
    if batch_size < 1:
        raise UsageError(f"--batch-size {batch_size}: give at least 1")
    tell = say or (lambda line: None)
    conditions = {
        "batch_size": batch_size, "rounds": rounds, "seconds": seconds, "threads": runtime.usable_cores(),
    }  # fmt: skip
    before = _before(out, conditions) if resume else {}
    if not resume:
        set_aside(out)
    rows: list[dict[str, Any]] = []
    for name in chosen:

        def say_of(line: str, name: str = name) -> None:
            tell(f"{name}: {line}")

        measure = functools.partial(contest, rounds=rounds, seconds=seconds, time_limit=600.0, say=say_of)
        rows.append(before.get(name) or _row(name, batch_size, measure))
        if out is not None:
            write_json(out, _document(rows, conditions, complete=len(rows) == len(chosen)))
    return _document(rows, conditions, complete=True)


def _before(out: Path | None, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Finished rows of an interrupted run under the same conditions."""

    def rows(before: Any) -> dict[str, Any]:
        if (then := before["conditions"]) != conditions:
            raise UsageError(
                f"{out}: was measured under other conditions ({then}), now {dict(conditions)}; give "
                "the same options, or start without --resume"
            )
        return {row["name"]: row for row in before["rows"] if row["status"] == "ok"}

    return earlier(out, "benchmarks deck", rows) or {}


def _document(rows: list[dict[str, Any]], conditions: Mapping[str, Any], complete: bool) -> dict[str, Any]:
    ran = [row["name"] for row in rows if row["status"] == "ok"]
    found: dict[str, Any] = {
        "kind": "onednn-deck",
        "rows": list(rows),
        "geometric_mean": {},
        "ours": ran,
        "complete": complete,
    }
    for key in ("latency", "throughput"):
        gains = [row[key]["speedup"]["median"] for row in rows if row[key]]
        mean = math.exp(sum(map(math.log, gains)) / len(gains)) if gains else None
        found["geometric_mean"][key] = mean
    return {**found, "machine": runtime.machine_facts(), "conditions": dict(conditions)}


def _row(name: str, batch: int, measure: Callable[..., list[Contender]]) -> dict[str, Any]:
    network = NETWORKS[name]
    row: dict[str, Any] = {"name": name, "net": network.net, "status": "ok", "reason": None, "output_delta": None}
    row["deck"] = {"latency": network.deck_1, "throughput": network.deck_128}
    row.update(latency=None, throughput=None)
    env = launch_settings(cores=runtime.usable_cores()).env
    for key, size in (("latency", 1), ("throughput", batch)):
        entrants = [
            Entrant("off", "MXNet", _WORK, {"name": name, "batch_size": size}, env={**env, **_OFF}),
            Entrant("on", OURS, _WORK, {"name": name, "batch_size": size}, env=env),
        ]
        outputs: list[Any] = []

        def ask(field: list[Contender], outputs: list[Any] = outputs) -> None:
            outputs.extend(contender.ask("outputs") for contender in field)

        field = measure(entrants, finish=ask)
        failed = next((c for c in field if c.failure is not None), None)
        if failed is not None:
            row.update(status="failed", reason=f"oneDNN {failed.entrant.name}, batch {size}: {failed.failure}")
            return row
        off, on = field
        row[key] = {
            "off": stats.interval(off.rates),
            "on": stats.interval(on.rates),
            "speedup": stats.ratio_interval(on.rates, off.rates),
        }
        if key == "latency":
            row["output_delta"] = _delta(*outputs)
    return row


def _delta(off: Sequence[float], on: Sequence[float]) -> float:
    """
    >>> _delta([1.0, 2.0], [1.0, 2.5])
    0.25
    """
    return gap(np.asarray(on), np.asarray(off))


def show(found: Mapping[str, Any], console: Any) -> None:
    """Print the table, with the deck's speedups."""
    from rich.table import Table

    batch = found["conditions"]["batch_size"]
    # Two lines a row, to fit into 80 columns.
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("network", width=13)
    for heading in ("ms at 1: off, on\n× (95 %)", "deck's\n×", f"images/s at {batch}: off, on\n× (95 %)", "deck's\n×",
                    "output\ndelta"):  # fmt: skip
        table.add_column(heading, no_wrap=True)
    failures = []
    for row in found["rows"]:
        if row["status"] != "ok":
            failures.append(f"{row['name']}: {row['status']}: {row['reason']}")
            continue
        cells = [row["name"]]
        for key in ("latency", "throughput"):
            seen, deck = row[key], row["deck"][key]
            rates = [seen[mode]["median"] for mode in ("off", "on")]
            shown = [f"{1e3 / rate if key == 'latency' else rate:,.1f}" for rate in rates]
            cells.append(f"{', '.join(shown)}\n{stats.said(seen['speedup'], '.2f')}")
            cells.append("" if deck is None else f"{deck:.2f}")
        table.add_row(*cells, f"{row['output_delta']:.0e}")
    console.print(table)
    for line in failures:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    means = [f"{key} {mean:.2f}" for key, mean in found["geometric_mean"].items() if mean is not None]
    console.print(f"oneDNN on ÷ off, geometric mean: {', '.join(means) or 'nothing measured'}", highlight=False)


def figure(found: Mapping[str, Any]) -> dict[str, Any]:
    """What ``python -m benchmarks publish`` makes of the document: a row for each network that ran."""
    rows = []
    for row in found["rows"]:
        if row["status"] != "ok":
            rows.append([row["name"], "", "", "", "", row["status"]])
            continue
        gains = [rounded(row[key]["speedup"], 2) for key in ("latency", "throughput")]
        decks = ["" if row["deck"][key] is None else row["deck"][key] for key in ("latency", "throughput")]
        rows.append([row["name"], gains[0], decks[0], gains[1], decks[1], f"{row['output_delta']:.0e}"])
    batch, means = found["conditions"]["batch_size"], found["geometric_mean"]
    return {
        "title": "oneDNN on ÷ off, random weights; the 2019 deck's are of 72 vCPUs with MXNet 1.3",
        "command": "python -m benchmarks deck",
        "n": f"{found['conditions']['rounds']} interleaved slices",
        "columns": ["network", "on ÷ off at batch 1", "the deck's at 1", f"on ÷ off at batch {batch}",
                    f"the deck's at {batch}", "outputs differ by"],
        "rows": rows,
        "notes": [f"Geometric means: {means['latency']:.2f} at batch 1, {means['throughput']:.2f} at {batch}."],
    }  # fmt: skip
