"""``python -m benchmarks formats``."""

from __future__ import annotations

from dataclasses import asdict

import typer

from gluontune.cli._common import deliver
from gluontune.cli._options import JSON_OPTION
from gluontune.records import compare_formats

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(formats)


def formats(
    src: str = typer.Argument(help="Class folders, .lst or .csv."),
    resize: int = typer.Option(256, "--resize", min=1, help="Shorter side, pixels."),
    as_json: bool = JSON_OPTION,
) -> None:
    """The same images as files, JPEG records, raw-pixel records and LMDB: size, packing speed, reading speed."""
    rows = compare_formats(src, resize)

    def show() -> None:
        print(f"{'':20}{'MB':>10}{'packing':>12}{'reading':>12}{'to pixels':>12}   (images/s)")
        for row in rows:
            if row.status != "ok":
                print(f"{row.name:20}{row.status:>10}")
                continue
            speeds = (row.packing_images_per_sec, row.reading_images_per_sec, row.pixels_images_per_sec)
            print(f"{row.name:20}{(row.bytes or 0) / 1e6:10.1f}" + "".join(f"{speed:12,.0f}" for speed in speeds))

    deliver({"rows": [asdict(row) for row in rows]}, as_json, show)
