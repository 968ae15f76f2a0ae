"""``python -m benchmarks tables``."""

from __future__ import annotations

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(tables)


def tables(
    check: bool = typer.Option(False, "--check", help="Write nothing; exit with 1 where one is out of date."),
) -> None:
    """Make the tables of README.md and docs/, and the README's picture, from the documents in benchmarks/."""
    from benchmarks import tables as work

    raise typer.Exit(work.main(check))
