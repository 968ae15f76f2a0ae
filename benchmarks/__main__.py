"""``python -m benchmarks NAME …``: runs the commands of ``benchmarks.commands``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from gluontune.cli import main as cli

__all__ = ["build_app", "main"]


def build_app() -> typer.Typer:
    """The application with every command file of ``benchmarks.commands`` (each defines ``register(app)``)."""
    app = typer.Typer(
        help="Measure gluontune's own parts, for its published figures.", add_completion=False, **cli.OPTIONS
    )

    @app.callback(invoke_without_command=True)
    def top(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    cli.add_commands(app, "benchmarks.commands")
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, as ``gluontune`` does."""
    return cli.main(argv, build_app, "python -m benchmarks")


if __name__ == "__main__":
    sys.exit(main())
