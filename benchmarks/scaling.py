"""Test of the scaling model: its prediction for one and two ranks beside their throughput.

A rank has one thread. For one rank the model has the net and the loader, each measured alone; for two, the steps of
ranks that work side by side but exchange nothing (they share the machine's memory and caches), and a link fitted to
exchanges of other sizes than any of the nets'.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._link import measure_link
from benchmarks.exchange import NEVER
from gluontune import runtime
from gluontune.core import stats
from gluontune.core.errors import UsageError
from gluontune.core.journal import Journal
from gluontune.parallel import horovod
from gluontune.parallel.scaling import Parts, expected
from gluontune.recipe import Recipe
from gluontune.search.measure import STARTS, Contender, interleave
from gluontune.search.parts_alone import measure_parts
from gluontune.training.group import Group

__all__ = ["BAR_PCT", "run", "show"]

BAR_PCT = 15.0


def run(
    nets: Sequence[str],
    *,
    dataset: str = "sample",
    engine: str | None = None,
    batch_size: int = 32,
    changes: Mapping[str, Any] | None = None,
    rounds: int = 9,
    seconds: float = 1.0,
    out: Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Predict and measure each net on 1 and 2 ranks; with ``out`` a journal beside it keeps each net.

    Returns:
        ``{"rows": [{"name", "predicted_samples_per_sec", "samples_per_sec", "error_pct", …}], "link",
        "median_error_pct", "holds"}``; an error is the prediction's, in percent of the measured median.

    Raises:
        UsageError: an unknown engine. GluontuneError: a net does not train.
    """
    engine = engine or ("horovod" if horovod.installed() else "kvstore")
    if engine not in ("horovod", "kvstore"):
        raise UsageError(f"--engine {engine!r}: choose horovod or kvstore")
    algorithm = "ring" if engine == "horovod" else "parameter-server"
    base = Recipe(
        dataset=dataset, loader="resident", hybridize="static", runtime="tuned", devices="cpu", epochs=1000,
        batch_size_per_device=batch_size, base_batch_size=batch_size, learning_rate=0.01,
        env={"OMP_NUM_THREADS": "1"},
    ).override(**(changes or {}))  # fmt: skip
    say(f"measuring exchanges over {engine}")
    link, exchanges = measure_link(engine, 2, base)
    given = {"recipe": base.to_dict(), "engine": engine, "rounds": rounds, "seconds": seconds}
    rows: list[dict[str, Any]] = []
    with Journal(out, "benchmarks scaling", given, runtime.machine_facts, resume=resume) as journal:
        for net in nets:
            one = partial(_one_net, net, base, link, engine, algorithm, rounds, seconds, say)
            rows += journal.piece(net, one)
    error = statistics.median(abs(row["error_pct"]) for row in rows)
    of_two = statistics.median(abs(row["error_pct"]) for row in rows if row["ranks"] == 2)
    return {
        "rows": rows,
        "link": {**vars(link), "engine": engine, "exchanges": exchanges},
        "median_error_pct": error,
        "median_error_pct_2_ranks": of_two,
        "bar_pct": BAR_PCT,
        "holds": error <= BAR_PCT and of_two <= BAR_PCT,
        "machine": runtime.machine_facts(),
        "conditions": {"recipe": base.to_dict(), "rounds": rounds, "seconds": seconds},
    }


def _one_net(
    net: str, base: Recipe, link: Any, engine: str, algorithm: str, rounds: int, seconds: float,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of one net."""
    rows = []
    batch_size = base.batch_size_per_device
    one = base.override(net=net)
    say(f"{net}: net and loader alone")
    with Group(one) as group:
        parts = measure_parts(group)
    two = one.override(engine=engine, num_devices=2)
    field = [
        Contender(one, "1 rank"),
        Contender(two, "2 ranks"),
        Contender(two.override(exchange_every=NEVER), "2 ranks, no exchange"),
    ]
    say(f"{net}: measuring 1 and 2 ranks")
    try:
        interleave(field, rounds=rounds, slice_s=seconds, starts=STARTS)
    finally:
        for contender in field:
            contender.close()
    failed = next((c.failure for c in field if c.failure is not None), None)
    if failed is not None:
        raise failed
    beside = [1e3 * 2 * batch_size / rate for rate in field[2].rates]
    together = Parts(step_ms=beside, gradient_bytes=parts.gradient_bytes, tensors=parts.tensors, batch=batch_size)
    guesses = (expected(parts, 1, link), expected(together, 2, link, algorithm))
    for ranks, guess, contender in zip((1, 2), guesses, field):
        measured = stats.interval(contender.rates)
        rows.append(
            {
                "name": f"{net}, {ranks} rank{'s' if ranks > 1 else ''}",
                "net": net,
                "ranks": ranks,
                "predicted_samples_per_sec": guess["samples_per_sec"],
                "samples_per_sec": measured,
                "error_pct": 100 * (guess["samples_per_sec"] / measured["median"] - 1),
                "exchange_ms": guess["exchange_ms"],
                "gradient_bytes": parts.gradient_bytes,
                "bound_by": guess["bound_by"],
            }
        )
    return rows


def show(found: Mapping[str, Any], console: Any) -> None:
    """Print the table, the link and the errors."""
    from rich.table import Table

    table = Table("training", "predicted images/s", "measured", "95 %", "error %", "exchange ms", "bound by")
    for row in found["rows"]:
        rate = row["samples_per_sec"]
        table.add_row(
            row["name"],
            f"{row['predicted_samples_per_sec']:,.0f}",
            f"{rate['median']:,.0f}",
            f"{rate['ci95'][0]:,.0f}-{rate['ci95'][1]:,.0f}",
            f"{row['error_pct']:+.1f}",
            f"{row['exchange_ms']:.2f}",
            row["bound_by"],
        )
    console.print(table)
    link = found["link"]
    console.print(
        f"{link['engine']}: {link['gb_per_sec']:.2f} GB/s, {link['overhead_ms']:.2f} ms an exchange, "
        f"{link['tensor_us']:.1f} µs a tensor. Median error {found['median_error_pct']:.1f} % "
        f"(2 ranks {found['median_error_pct_2_ranks']:.1f} %), bar {found['bar_pct']:g} %",
        highlight=False,
    )
