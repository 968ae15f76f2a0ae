"""The entry of a contender's process: ``PYTHON .../gluontune/search/bench/child.py --events FD``.

It is started by its path, because a peer's interpreter does not have gluontune installed: this file makes the
package importable, and nothing else of our environment. It reads one JSON command per line from stdin and answers
each with one JSON event per line on the pipe FD. See ``gluontune.search.bench.contender``.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and sys.path:
    sys.path.pop(0)  # this folder, whose files would shadow modules of the same names

import importlib
import importlib.util
import json
import time
import traceback
from pathlib import Path
from typing import Any


def run(work: Any, command: dict[str, Any]) -> dict[str, Any]:
    """An untimed lead-in of ``lead`` seconds (and at least one step, unless it is 0), then the timed steps.

    These are ``steps``, or as many as begin within ``seconds``.
    """
    sync = getattr(work, "sync", None) or (lambda: None)
    if command.get("lead"):
        end = time.perf_counter() + command["lead"]
        while True:
            work.step()
            sync()
            if time.perf_counter() >= end:
                break
    units, steps = 0, 0
    wanted, seconds = command.get("steps"), command.get("seconds", 0.0)
    begin = time.perf_counter()
    while steps < wanted if wanted else not steps or time.perf_counter() < begin + seconds:
        units += work.step()
        steps += 1
    sync()
    return {"units": units, "seconds": time.perf_counter() - begin, "steps": steps}


def main() -> None:
    setup = json.loads(sys.stdin.readline())
    _make_importable()
    processes = importlib.import_module("gluontune.core.processes")
    processes.die_with_parent(setup["parent"])
    send = processes.event_sender()
    module, _, name = setup["target"].partition(":")
    work = None
    try:
        work = getattr(importlib.import_module(module), name)(**setup["settings"])
        send(event="ready", info=getattr(work, "info", {}))
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "run":
                send(event="done", **run(work, command))
            else:
                send(event="done", value=getattr(work, command["name"])(**command["arguments"]))
    except Exception as error:
        traceback.print_exc()
        lines = [line.strip() for line in str(error).split("Stack trace:")[0].splitlines() if line.strip()]
        message = " ".join(lines[-3:])[:600] or type(error).__name__
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        send(event="error", type=type(error).__name__, message=message, missing=missing)
    finally:
        if (close := getattr(work, "close", None)) is not None:
            close()


def _make_importable() -> None:
    if importlib.util.find_spec("gluontune") is not None:
        return
    folder = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(
        "gluontune", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["gluontune"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # in a process that the work spawned, such as a rank
    _make_importable()
