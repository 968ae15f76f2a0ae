"""``gluontune run``: a user's own program, unchanged, faster."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Optional

import typer

from gluontune.core.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
    def run(
        words: list[str] = typer.Argument(..., metavar="SCRIPT [ARGS…]", help="As after python: a file, or -m MODULE."),
        out: Optional[Path] = typer.Option(None, "--out", help="Write what was changed and gained to FILE.json."),
        backend: str = typer.Option(
            "mxnet", "--backend", help="mxnet, or torch: PyTorch computes once a step is proven."
        ),
        leave: str = typer.Option("", "--leave", help="Changes to leave out, between commas."),
    ) -> None:
        """Run a script as it is, faster, with its own output, files and exit code.

        All that follows SCRIPT is the script's. Changes are kept where they measure better while it trains; two lines on
        stderr say at the end what they brought.
        """
        began = time.time()
        from gluontune.capture import script

        program = script.Program.of(words)
        program.check()
        environment = script.environment()
        settings = sorted(set(environment) - set(os.environ))
        if backend not in ("mxnet", "torch"):
            raise UsageError(f"--backend {backend!r}: give mxnet or torch")
        options = {"began": began, "settings": settings, "out": str(out.absolute()) if out else None}
        options["backend"] = backend
        options["leave"] = [name.strip() for name in leave.split(",") if name.strip()]
        command = script.command(program, "gluontune.capture.running", json.dumps(options))
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            os.execve(command[0], command, environment)
        except OSError as error:
            raise UsageError(f"{command[0]}: cannot be started: {error}") from error
