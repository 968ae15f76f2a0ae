"""Random mutants of the rooms that must not be wrong: does a test fail? Run by ``make mutants``; not part of the tests.

Each mutant is one small change of one line (cosmic-ray's operators), made in a copy of the project, where the tests of
its room run until one fails. A seed draws them; what survives is printed as a diff: kill it by a test, or explain it.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
#: Of each room: its modules, and the tests that must notice.
ROOMS = {
    "records": (["gluontune/records/*.py"], ["tests/records/test_*.py", "tests/loading/test_fields.py"]),
    "optim": (
        ["gluontune/optim/*.py"],
        [
            "tests/optim/test_*.py",
            "tests/recipe/test_recipe.py",
            "tests/methods/test_methods.py",
            "tests/convert/test_bridge_updates.py",
        ],
    ),
    "stats": (["gluontune/core/stats.py"], ["tests/core/test_stats.py"]),
    "verdicts": (
        ["gluontune/search/judge.py", "gluontune/search/sequential.py", "gluontune/monitor/verdicts.py"],
        ["tests/search/test_*.py", "tests/monitor/test_*.py"],
    ),
}
Mutant = tuple[str, str, int, dict]  # module, operator, occurrence, the operator's arguments
SAME = ("_Is_Eq", "_IsNot_NotEq")  # of None, which is what is compared so
#: Files whose tests take minutes each, and would be asked by nearly all survivors.
SLOW = {"test_real.py", "test_dist.py"}


def annotations(source: str) -> set[tuple[int, int]]:
    """Places (line, column) inside annotations, which no test can notice."""
    found: set[tuple[int, int]] = set()
    for node in ast.walk(ast.parse(source)):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if part is not None:
                found |= {(n.lineno, n.col_offset) for n in ast.walk(part) if hasattr(n, "lineno")}
                found |= {(part.lineno, column) for column in range(part.col_offset, part.end_col_offset or 0)}
    return found


def mutants(room: str) -> list[list[Mutant]]:
    """The mutants of each place in a room."""
    from cosmic_ray.commands.init import init
    from cosmic_ray.work_db import WorkDB, use_db

    paths = sorted({p for pattern in ROOMS[room][0] for p in PROJECT.glob(pattern)})
    with tempfile.TemporaryDirectory() as folder, use_db(f"{folder}/items.sqlite", WorkDB.Mode.create) as items:
        init(paths, items, {})
        found = [m for item in items.work_items for m in item.mutations]
    typed = {str(path): annotations(path.read_text(encoding="utf-8")) for path in paths}
    places: dict[tuple, list[Mutant]] = {}
    for m in found:
        if tuple(m.start_pos) not in typed[str(m.module_path)] and not m.operator_name.endswith(SAME):
            module = str(Path(m.module_path).relative_to(PROJECT))
            place = (module, tuple(m.start_pos), tuple(m.end_pos))
            places.setdefault(place, []).append((module, m.operator_name, m.occurrence, dict(m.operator_args)))
    return list(places.values())


def distance(module: str, test: str) -> int:
    """How far a test's name is from the module's: the nearest are asked first, as they are likely to notice.

    >>> distance("gluontune/search/judge.py", "tests/search/test_judge.py")
    -2
    """
    return -len(set(re.split(r"\W|_", module)) & set(re.split(r"\W|_", str(Path(test).with_suffix("")))))


def trial(place: Path, python: str, room: str, mutant: Mutant, seconds: float) -> str:
    """``killed``, ``killed by time`` (the tests never ended, or this machine is slow), or what survived: the diff."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    module, operator, occurrence, arguments = mutant
    path = place / module
    source = path.read_text(encoding="utf-8")
    changed = mutate_code(source, get_operator(operator)(**arguments), occurrence)
    if changed is None or changed == source:
        return ""
    tests = [str(p.relative_to(place)) for pattern in ROOMS[room][1] for p in sorted(place.glob(pattern))]
    tests = [module, *sorted((t for t in tests if Path(t).name not in SLOW), key=partial(distance, module))]
    path.write_text(changed, encoding="utf-8")
    try:
        run = subprocess.run(
            [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
            cwd=place, env={"PYTHONPATH": str(place), **_environment()}, timeout=seconds, capture_output=True,
        )  # fmt: skip
        if run.returncode:
            return "killed"
    except subprocess.TimeoutExpired:
        return "killed by time"
    finally:
        path.write_text(source, encoding="utf-8")
    lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), module, module, lineterm="", n=1)
    return "\n".join(lines)


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


def main() -> int:
    """Draw, try, and tell the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rooms", default=",".join(ROOMS), help="comma-separated: " + ", ".join(ROOMS))
    parser.add_argument("--each", type=int, default=40, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=400.0, help="a mutant whose tests take longer is killed")
    parser.add_argument("--python", default=sys.executable, help="with gluontune's environment")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    work: queue.Queue = queue.Queue()
    for room in asked.rooms.split(","):
        there, draw = mutants(room), random.Random(f"{seed} {room}")
        for place in draw.sample(there, min(asked.each, len(there))):
            work.put((room, draw.choice(place)))
    told: list[tuple[str, str]] = []

    def worker() -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "project"
            wanted = subprocess.run(
                ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=True
            ).stdout.decode()
            for name in filter(None, wanted.split("\0")):
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(PROJECT / name, place / name)
            while True:
                try:
                    room, mutant = work.get_nowait()
                except queue.Empty:
                    return
                outcome = trial(place, asked.python, room, mutant, asked.seconds)
                if outcome:
                    told.append((room, outcome))
                    print(f"{room}: {outcome}", *[mutant[:3]] * outcome.startswith("killed"), flush=True)

    workers = [threading.Thread(target=worker) for _ in range(asked.jobs)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    from scipy.stats import binomtest

    for room in (*asked.rooms.split(","), None):
        mine = [outcome for r, outcome in told if room in (r, None)]
        if mine:
            killed, late = sum(o.startswith("killed") for o in mine), mine.count("killed by time")
            low, high = binomtest(killed, len(mine)).proportion_ci(method="wilson")
            share = f"{100 * killed / len(mine):.0f} % ({100 * low:.0f}-{100 * high:.0f})"
            late_ones = f", {late} of them by time" if late else ""
            print(f"{room or 'all'}: killed {killed} of {len(mine)}, {share}{late_ones}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
