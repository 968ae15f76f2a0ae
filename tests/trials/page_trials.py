"""Draw ladders by chance, render their pages, and find statements that contradict each other.

    python -m tests.trials.page_trials [COUNT [FIRST-SEED]]

Ends with 1 if a page contradicts itself; the pages stay in a temporary folder, whose name is printed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gluontune.report.page import finish_ladder
from tests.support.drawn_ladders import drawn
from tests.support.page_checker import contradictions


def main(count: int = 200, first: int = 0) -> int:
    folder, wrong = Path(tempfile.mkdtemp(prefix="drawn-ladders-")), 0
    for seed in range(first, first + count):
        finish_ladder(drawn(seed, folder / str(seed)), folder / str(seed))
        found = contradictions((folder / str(seed) / "ladder.html").read_text(encoding="utf-8"))
        wrong += bool(found)
        for sentence in found:
            print(f"ladder {seed}: {sentence}")
    print(f"{count} ladders drawn into {folder}: {wrong} with contradictions")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
