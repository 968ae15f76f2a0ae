"""``gluontune init``: a commented job file as a start."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from gluontune.cli._common import JSON_OPTION, argument, deliver, say
from gluontune.core.errors import UsageError


def init(
    file: Path = argument(Path("job.py"), "The file to write.", metavar="[JOB.py]"), as_json: bool = JSON_OPTION
) -> None:
    """Write a commented job file: your net, data and loss for the ladder. Nothing is overwritten."""
    from gluontune import training
    from gluontune.core import files

    if file.suffix != ".py":
        raise UsageError(f"{file}: a job is a Python file; give a name that ends in .py")
    if file.exists():
        raise UsageError(f"{file}: this file exists and is not overwritten; give another name")
    template = Path(str(training.__file__)).with_name("job.py.template")
    with files.atomic_write(file, "w") as out:
        out.write(template.read_text(encoding="utf-8"))
    next_step = f"wrote {file}; next: gluontune doctor --job {quote(str(file))}"
    deliver({"out": str(file)}, as_json, lambda: say(next_step))
