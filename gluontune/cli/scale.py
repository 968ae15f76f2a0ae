"""``gluontune scale``: what the scaling model expects of more devices."""

from __future__ import annotations

from typing import Any, Optional

import typer

from gluontune.cli._common import JSON_OPTION, TIME_LIMIT_OPTION, emit, stdout, stdout_reserved
from gluontune.cli._progress import status_line
from gluontune.cli._recipe import takes_recipe
from gluontune.errors import UsageError
from gluontune.recipe import Recipe

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("scale")(takes_recipe(scale))


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
    from gluontune import ladder

    with stdout_reserved(), status_line() as say:
        found = ladder.scale(
            recipe,
            devices=[int(n) for n in _numbers("--to", counts, whole=True)],
            bandwidths=_numbers("--bandwidth", bandwidth),
            latency_us=latency_us,
            overhead_ms=overhead_ms,
            servers=servers,
            hidden=hidden,
            shared_loader=shared_loader,
            say=say,
            time_limit=time_limit,
        )
    if as_json:
        emit(found)
    else:
        _show(found)


def _numbers(flag: str, text: str, whole: bool = False) -> list[float]:
    try:
        values = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = []
    if not values or min(values) <= 0 or (whole and any(v != int(v) for v in values)):
        kind = "whole numbers" if whole else "numbers"
        raise UsageError(f"{flag} {text!r}: give {kind} above 0, such as {'8,64' if whole else '1.25,12.5'}")
    return values


def _show(found: dict[str, Any]) -> None:
    from rich.table import Table

    parts = found["parts"]
    stdout.print(
        f"Measured here: {parts['step_ms']:.1f} ms a step of {parts['batch']}, "
        f"{parts['gradient_bytes'] / 1e6:.2f} MB of gradients in {parts['tensors']} tensors. A second device brings "
        f"nothing below {found['minimum_bandwidth_gb_per_sec']:.3g} GB/s.",
        highlight=False,
    )
    table = Table("exchange", "GB/s", "devices", "samples/s", "efficiency %", "exchange ms", "bound by")
    for row in found["rows"]:
        table.add_row(
            row["algorithm"],
            f"{row['gb_per_sec']:g}",
            str(row["devices"]),
            f"{row['samples_per_sec']:,.0f}",
            f"{100 * row['efficiency']:.0f}",
            f"{row['exchange_ms']:.2f}",
            row["bound_by"],
        )
    stdout.print(table)
    stdout.print(found["note"], highlight=False, soft_wrap=True)
