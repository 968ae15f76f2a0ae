"""``gluontune scale``: the scaling model's prediction for more devices."""

from __future__ import annotations

from typing import Any, Optional

import typer

from gluontune.cli._common import JSON_OPTION, TIME_LIMIT_OPTION, deliver, numbers_of, say, stdout, stdout_reserved
from gluontune.cli._progress import status_line
from gluontune.recipe import Recipe


def scale(
    recipe: Recipe,
    given: dict[str, Any],
    counts: str = typer.Option("8,64,512", "--to", help="Numbers of devices; comma-separated."),
    bandwidth: str = typer.Option(
        "1.25,12.5,50", "--bandwidth", help="GB/s of each device's connection; comma-separated."
    ),
    latency_us: float = typer.Option(20.0, "--latency-us", min=0.0, help="Of one message."),
    overhead_ms: float = typer.Option(0.5, "--overhead-ms", min=0.0, help="Of one exchange, besides."),
    servers: Optional[int] = typer.Option(
        None, "--servers", min=1, help="Of the parameter server (default: one for each device)."
    ),
    hidden: float = typer.Option(
        0.0, "--hidden", min=0.0, max=1.0, help="Share of the exchange behind the backward pass."
    ),
    shared_loader: Optional[float] = typer.Option(
        None, "--shared-loader", min=0.001, help="Samples/s of one source that feeds all devices."
    ),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Expected efficiency on 8, 64 and 512 devices, from a step, loader and gradients measured here. A model."""
    options = {key: value for key, value in locals().items() if key not in ("given", "counts", "bandwidth", "as_json")}
    from gluontune import ladder

    options["devices"] = numbers_of(counts, "--to", "8,64")
    options["bandwidths"] = numbers_of(bandwidth, "--bandwidth", "1.25,12.5", float)
    with stdout_reserved(), status_line() as tell:
        found = ladder.scale(say=tell, **options)
    deliver(found, as_json, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    from rich.table import Table

    parts = found["parts"]
    say(
        f"Measured here: {parts['step_ms']:.1f} ms a step of {parts['batch']}, "
        f"{parts['gradient_bytes'] / 1e6:.2f} MB of gradients in {parts['tensors']} tensors. A second device brings "
        f"nothing below {found['minimum_bandwidth_gb_per_sec']:.3g} GB/s."
    )
    table = Table("exchange", "GB/s", "devices", "samples/s", "efficiency %", "exchange ms", "bound by")
    for row in found["rows"]:
        rates = (f"{row['gb_per_sec']:g}", str(row["devices"]), f"{row['samples_per_sec']:,.0f}")
        table.add_row(row["algorithm"], *rates, f"{100 * row['efficiency']:.0f}", f"{row['exchange_ms']:.2f}",
                      row["bound_by"])  # fmt: skip
    stdout.print(table)
    say(found["note"])
