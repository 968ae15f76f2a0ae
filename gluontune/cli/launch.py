"""``gluontune launch``: the same recipe on several processes."""

from __future__ import annotations

from typing import Optional

import typer

from gluontune.errors import UsageError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("launch", help=launch.__doc__)(launch)


def launch(
    ranks: int = typer.Option(2, "-n", "--ranks", min=1, help="Training processes on this machine."),
    engine: str = typer.Option("kvstore", "--engine", help="kvstore (MXNet's parameter server) or horovod."),
    restart: int = typer.Option(
        0,
        "--restart",
        min=0,
        help="After a fault, go on from the newest checkpoint (train's --checkpoint) so often.",
    ),
    command: Optional[list[str]] = typer.Argument(None, help="-- train and its options."),
) -> int:
    """Run `train` on several processes that exchange gradients; one merged result comes back.

    Example: gluontune launch -n 2 --engine kvstore -- train --dataset sample --epochs 1 --json
    """
    from gluontune.cli.main import main

    command = command or []
    if command[:1] != ["train"]:
        given = " ".join(command) or "nothing"
        raise UsageError(
            f"launch runs `train`, not {given!r}: write gluontune launch -n 2 -- train --epochs 1"
        )
    taken = [flag for flag in ("--engine", "--num-devices") if flag in command]
    if taken:
        raise UsageError(f"{' and '.join(taken)} after `--`: launch sets them itself, by --engine and -n")
    again = ["--restart", str(restart)] if restart else []
    return main([*command, "--engine", engine, "--num-devices", str(ranks), *again])
