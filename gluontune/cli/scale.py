"""``gluontune scale``: the scaling model's prediction for more devices."""

from __future__ import annotations

from typing import Any, Optional

from gluontune.cli._common import JSON_OPTION, TIME_LIMIT_OPTION, deliver, numbers_of, option, say, say_table
from gluontune.cli._progress import status_line
from gluontune.recipe import Recipe


def scale(
    recipe: Recipe,
    given: dict[str, Any],
    counts: str = option("8,64,512", "Numbers of devices; comma-separated.", "--to"),
    bandwidth: str = option("1.25,12.5,50", "GB/s of each device's connection; comma-separated."),
    latency_us: float = option(20.0, "Of one message.", min=0.0),
    overhead_ms: float = option(0.5, "Of one exchange, besides.", min=0.0),
    servers: Optional[int] = option(None, "Of the parameter server (default: one for each device).", min=1),
    hidden: float = option(0.0, "Share of the exchange behind the backward pass.", min=0.0, max=1.0),
    shared_loader: Optional[float] = option(None, "Samples/s of one source that feeds all devices.", min=0.001),
    time_limit: float = TIME_LIMIT_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Expected efficiency on 8, 64 and 512 devices, from a step, loader and gradients measured here. A model."""
    options = {key: value for key, value in locals().items() if key not in ("given", "counts", "bandwidth", "as_json")}
    from gluontune import ladder

    options["devices"] = numbers_of(counts, "--to", "8,64")
    options["bandwidths"] = numbers_of(bandwidth, "--bandwidth", "1.25,12.5", float)
    with status_line() as tell:
        found = ladder.scale(say=tell, **options)
    deliver(found, as_json, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    parts = found["parts"]
    say(
        f"Measured here: {parts['step_ms']:.1f} ms a step of {parts['batch']}, "
        f"{parts['gradient_bytes'] / 1e6:.2f} MB of gradients in {parts['tensors']} tensors. A second device brings "
        f"nothing below {found['minimum_bandwidth_gb_per_sec']:.3g} GB/s."
    )
    rows = [
        (row["algorithm"], f"{row['gb_per_sec']:g}", str(row["devices"]), f"{row['samples_per_sec']:,.0f}",
         f"{100 * row['efficiency']:.0f}", f"{row['exchange_ms']:.2f}", row["bound_by"]) for row in found["rows"]
    ]  # fmt: skip
    say_table(("exchange", "GB/s", "devices", "samples/s", "efficiency %", "exchange ms", "bound by"), rows)
    say(found["note"])
