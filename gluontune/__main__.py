"""``gluontune`` and ``python -m gluontune``: the command line."""

from __future__ import annotations

import sys


def entry() -> None:
    """The console script. ``run [--backend …] SCRIPT`` starts the script at once, without the other commands."""
    from gluontune.core.errors import GluontuneError

    words, backend = sys.argv[1:], "mxnet"
    if words[:2] == ["run", "--backend"] and words[2:3] in (["mxnet"], ["torch"]):
        backend, words = words[2], ["run", *words[3:]]
    if words[:1] == ["run"] and len(words) > 1 and (not words[1].startswith("-") or words[1] == "-m"):
        from gluontune.capture.script import start

        try:
            start(words[1:], backend=backend)
        except GluontuneError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
    from gluontune.cli.main import entry as command_line

    command_line()


if __name__ == "__main__":
    from gluontune.core.interpreter import leave_current_folder

    leave_current_folder()  # before anything else is imported
    entry()
