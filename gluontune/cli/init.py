"""``gluontune init``: a commented job file to begin with."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import typer

from gluontune.cli._common import JSON_OPTION, emit, stdout
from gluontune.errors import UsageError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command ``init``."""

    @app.command("init")
    def init(
        file: Path = typer.Argument(Path("job.py"), metavar="[JOB.py]", help="The file to write."),
        as_json: bool = JSON_OPTION,
    ) -> None:
        """Write a commented job file: your net, data and loss for the ladder. Nothing is overwritten."""
        from gluontune import files, train

        if file.suffix != ".py":
            raise UsageError(f"{file}: a job is a Python file; give a name that ends in .py")
        if file.exists():
            raise UsageError(f"{file}: this file exists and is not overwritten; give another name")
        template = Path(train.__file__).with_name("job.py.template")
        with files.atomic_write(file, "w") as out:
            out.write(template.read_text(encoding="utf-8"))
        if as_json:
            emit({"out": str(file)})
        else:
            stdout.print(
                f"wrote {file}; next: gluontune doctor --job {quote(str(file))}", highlight=False, soft_wrap=True
            )
