"""The process of ``gluontune run``: the user's program with changes in place, and two lines about them at the end."""

from __future__ import annotations

import json
import sys
from typing import Any

from gluontune.capture import script


def main() -> None:
    """``OPTIONS SCRIPT ARGS…``: options as one JSON document."""
    options, program = json.loads(sys.argv[1]), script.Program.of(sys.argv[2:])
    account: Any
    if options["backend"] == "torch":
        from gluontune.capture.on_torch import TorchAccount  # each brings its own libraries

        account = TorchAccount(options, program.folder)
    else:
        from gluontune.capture.account import ChangesAccount

        account = ChangesAccount(options)
    script.run(program, [account.begin])


if __name__ == "__main__":
    main()
