"""A process that trains one recipe after another: ``python -m gluontune.search.bench._recipe_child --events FD``.

As :mod:`gluontune.training.child`, but a new set-up may follow each ``quit``. What a process does only once (its
environment, AMP's patches) must be the same for all its recipes: :mod:`gluontune.search.bench._recipe_pool` holds it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys

from gluontune import runtime
from gluontune.core.parent_death import die_with_parent
from gluontune.core.piped import event_sender
from gluontune.training.child import serve

__all__ = ["main"]


def main() -> None:
    send = event_sender()
    bound = False
    while line := sys.stdin.readline():
        setup = json.loads(line)
        if "recipe" not in setup:  # a quit, after a recipe that has failed
            continue
        if not bound:
            die_with_parent(setup["parent"])
            if setup.get("cpus"):
                runtime.bind_to_cpus(setup["cpus"])
            bound = True
        os.environ.update(setup["variables"])
        serve(setup, send)
        gc.collect()
        send(event="idle")
    os.killpg(0, signal.SIGKILL) if os.getpgrp() == os.getpid() else os._exit(0)


if __name__ == "__main__":
    main()
