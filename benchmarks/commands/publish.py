"""``python -m benchmarks publish``."""

from __future__ import annotations

from pathlib import Path

import typer

from gluontune.cli._common import stdout

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(publish)


def publish(
    ident: str = typer.Argument(..., metavar="ID", help="The figure's name, as in docs/figures.md."),
    run: Path = typer.Argument(..., metavar="RUN", help="ladder.json or scripts.json of a whole run."),
) -> None:
    """Write benchmarks/ID.json from a run's own document, and the tables that show it."""
    from benchmarks import publishing, tables

    stdout.print(str(publishing.publish(ident, run)), highlight=False, soft_wrap=True)
    tables.main()
