"""The process of ``gluontune run``: the user's program with changes in place, and two lines about them at the end."""

from __future__ import annotations

import json
import sys

from gluontune.capture import script
from gluontune.capture.account import Account


def main() -> None:
    """``OPTIONS SCRIPT ARGS…``: options as one JSON document."""
    account = Account(json.loads(sys.argv[1]))
    program = script.Program.of(sys.argv[2:])
    script.run(program, [account.begin])


if __name__ == "__main__":
    main()
