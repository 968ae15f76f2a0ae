"""Trials by the thousand: ``python tests/record_fuzz.py --damages 10000 --reads 1000000 --kills 100``.

Each prints one JSON document with what went wrong; all counts but ``trials`` and ``uncertain_keys`` should be 0. A
trial of damage that fails is named on stderr with the command that runs it alone. Without ``--seed`` the damages are
new ones each time; the seed is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from record_damages import DamageTrial
from record_kills import kill_trials, step_trials
from record_reads import concurrent_reads

__all__ = ["concurrent_reads", "damage_trials", "kill_trials", "main"]

HANG_CPU_S, HANG_S = 20, 900  # of its own work; and by the clock, to which a busy machine does not keep


class _Hang(BaseException):
    """Not an Exception: nothing that is tested may swallow it."""


def damage_trials(n: int, seed: int = 0, first: int = 0) -> dict[str, int]:
    """Damage a record file in one to three places, ``n`` times; verify, read, repair; count what is wrong.

    Returns:
        ``silently_wrong``: records that differ from what was written though nothing said so (by ``verify``, by a
        checked reader, or in the repaired file); ``lost_by_repair``: records that were whole, but are not in the
        repaired file under their key; ``missed``: trials whose damage ``verify`` called no damage though a record
        was hit; ``hangs``; ``crashes``; ``trials``; ``uncertain_keys``: records kept under a key that is not theirs
        and that ``repair`` called uncertain.

    ``first``: number of the first trial; each is named by seed and number alone.
    """
    names = ("silently_wrong", "lost_by_repair", "missed", "hangs", "crashes", "uncertain_keys")
    counts = Counter(dict.fromkeys(names, 0))
    # In memory where there is such a place: the trials are small, and each would wait for the disk five times.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="gluontune-fuzz-", dir=memory))

    def alarm(*_: object) -> None:
        raise _Hang

    before = {number: signal.signal(number, alarm) for number in (signal.SIGALRM, signal.SIGPROF)}
    try:
        for trial in range(first, first + n):
            signal.alarm(HANG_S)
            signal.setitimer(signal.ITIMER_PROF, HANG_CPU_S)
            faults: dict[str, int] = {}
            try:
                one = DamageTrial(folder, np.random.default_rng([seed, trial]))
                faults = one.run()
                counts["uncertain_keys"] += one.wrong_keys
            except _Hang:
                faults = {"hangs": 1}
            except Exception as error:
                faults = {"crashes": 1}
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
            finally:
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
            counts.update(faults)
            if any(faults.values()):
                what = ", ".join(f"{name} {count}" for name, count in faults.items() if count)
                command = f"python tests/record_fuzz.py --damages 1 --seed {seed} --first {trial}"
                print(f"{what}: {command}", file=sys.stderr)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        shutil.rmtree(folder, ignore_errors=True)
    return {"trials": n, **counts}


def main(argv: list[str] | None = None) -> int:
    """Run the trials that the arguments ask for; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(prog="python tests/record_fuzz.py", description=__doc__)
    parser.add_argument("--damages", type=int, default=0, help="random damages to a file")
    parser.add_argument("--reads", type=int, default=0, help="concurrent reads from 8 threads and 4 processes")
    parser.add_argument("--kills", type=int, default=0, help="kill -9 while packing")
    parser.add_argument("--steps", type=int, default=0, help="kill -9 between two lines of the packer")
    parser.add_argument("--seed", type=int, help="default: a new one each time, which is printed")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial of damage")
    chosen = parser.parse_args(argv)
    if chosen.seed is None:
        chosen.seed = secrets.randbelow(1 << 31)
    results: dict[str, Any] = {"seed": chosen.seed}
    if chosen.damages:
        results["damages"] = damage_trials(chosen.damages, chosen.seed, chosen.first)
    if chosen.reads:
        results["reads"] = concurrent_reads(chosen.reads, seed=chosen.seed)
    if chosen.kills:
        results["kills"] = kill_trials(chosen.kills, seed=chosen.seed)
    if chosen.steps:
        results["steps"] = step_trials(chosen.steps, seed=chosen.seed)
    print(json.dumps(results, indent=2))
    neutral = {"trials", "reads", "kills", "jobs", "uncertain_keys"}
    tables = [table for name, table in results.items() if name != "seed"]
    return int(any(v for table in tables for k, v in table.items() if k not in neutral))


if __name__ == "__main__":
    sys.exit(main())
