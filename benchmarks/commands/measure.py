"""``python -m benchmarks measure``."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer

from gluontune.cli._common import stderr, stdout

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(measure)


def measure(
    names: Optional[list[str]] = typer.Argument(None, metavar="[ID]...", help="Figures; all if left out."),
    out: Path = typer.Option(Path("runs/measure"), "--out", help="Folder for the runs."),
    data: Optional[Path] = typer.Option(None, "--data", help="A folder with photos/, a folder a class."),
    again: bool = typer.Option(False, "--again", help="Those of today's code, too."),
    listing: bool = typer.Option(False, "--list", help="How each figure stands to today's code; measure nothing."),
) -> None:
    """Measure all published figures whose code has changed, and write their documents and tables: hours.

    A figure that fails is named at the end, and the rest goes on. Stopped, the same command goes on.
    """
    from benchmarks import measuring, tables

    if listing:
        for ident, entry in measuring.figures(names or ()).items():
            stdout.print(
                f"{ident}: {measuring.state(ident, entry['code']) or 'of today'}", highlight=False, soft_wrap=True
            )
        return
    found = measuring.measure(
        names or (), out, data, again, lambda line: stderr.print(line, highlight=False, soft_wrap=True)
    )
    tables.main()
    if any(became not in ("measured", "of today's code") for became in found.values()):
        raise typer.Exit(1)
