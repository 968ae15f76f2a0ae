"""``python impatient_run.py OUT SCRIPT ARGS…``: as ``gluontune run --out``, with contests from the first steps on."""

from __future__ import annotations

import sys
import time


def main() -> None:
    from gluontune.capture import changes, contest
    from gluontune.capture.helpers import blocks, compiled
    from gluontune.capture.running import run
    from gluontune.capture.script import Program

    contest._BEGIN_S, contest._BEGIN_STEPS, contest._SHARE, contest._SLICE_S = 0.0, 1, 1e9, 0.0
    blocks._WATCHED_S, compiled._WAIT_S = 0.0, 200.0
    options = {"began": time.time(), "settings": [], "out": sys.argv[1], "leave": [], "dtype": "float32"}
    run(Program.of(sys.argv[2:]), [changes.ChangesAccount(options).begin])


if __name__ == "__main__":
    main()
