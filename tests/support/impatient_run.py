"""``python impatient_run.py OUT SCRIPT ARGS…``: as ``gluontune run --out``, with contests from the first steps on."""

from __future__ import annotations

import sys
import time


def main() -> None:
    from gluontune.capture import account, contest, script
    from gluontune.capture.helpers import blocks, proving

    contest._BEGIN_S, contest._BEGIN_STEPS, contest._SHARE, contest._SLICE_S = 0.0, 1, 1e9, 0.0
    blocks._WATCHED_S, proving._WAIT_S = 0.0, 200.0
    options = {"began": time.time(), "settings": [], "out": sys.argv[1], "leave": [], "dtype": "float32"}
    script.run(script.Program.of(sys.argv[2:]), [account.ChangesAccount(options).begin])


if __name__ == "__main__":
    main()
