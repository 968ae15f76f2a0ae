"""``python -m benchmarks strangers``."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer

from gluontune.cli._common import stdout, stdout_reserved
from gluontune.cli._options import names_of
from gluontune.cli._progress import status_line

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command()(strangers)


def strangers(
    checkouts: Path = typer.Option(..., "--from", help="Folder of git checkouts: NAME or OWNER/NAME."),
    out: Path = typer.Option(Path("strangers"), "--out", help="Folder for the scripts, their data and list.yaml."),
    only: Optional[str] = typer.Option(None, "--only", help="These scripts, comma-separated."),
) -> None:
    """Gluon scripts that others wrote, with made-up data, ready to run: for `gluontune bench scripts --list`."""
    from benchmarks.scripts.preparing import prepare

    with stdout_reserved(), status_line() as say:
        made = prepare(checkouts, out, names_of(only, "--only"), say=say)
    stdout.print(str(made), highlight=False, soft_wrap=True)
