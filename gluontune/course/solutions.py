"""One right answer for each exercise, as the expression a learner would write. Kept apart from the lessons.

A test puts them into the lessons in place of the three dots and runs them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from gluontune.core.errors import GluontuneError

__all__ = ["SOLUTIONS", "solved", "solved_notebook"]

SOLUTIONS: dict[str, str] = {
    "usable-cores": "machine['cpu']['usable_cores']",
    "omp-threads": "int(gt.runtime.launch_settings(processes=2).env['OMP_NUM_THREADS'])",
    "epoch-seconds": "num_train / result.samples_per_sec['median']",
    "step-time-ms": "1000 * batch_size_per_device / result.samples_per_sec['median']",
    "workers-needed": "-(-1100 // 200)",
    "step-serial": "80 + 50",
    "step-overlapped": "max(80, 50)",
    "record-bytes": "(8 + 24 + payload + 3) // 4 * 4",
    "label-limit": "2**24",
    "feed-rate": "256 / 0.025",
    "arrays-imperative": "6",
    "arrays-symbolic": "3",
    "break-even": "2000 / (50 - 40)",
    "largest-float16": "numbers.FORMATS['float16'].largest",
    "next-bfloat16": "numbers.FORMATS['bfloat16'].next_after_one",
    "loss-scale": "2**16",
    "linear-rule": "0.1 * 1024 / 256",
    "noise-share": "(64 / 1024) ** 0.5",
    "large-batch-updates": "30 * 50_000 // 1000",
    "updates-per-epoch": "10_000 // 50",
    "momentum-step": "0.1 / (1 - 0.9)",
    "write-sgd": "lambda x, y, gx, gy, lr: (x - lr * gx, y - lr * gy)",
    "multifactor-rate": "multifactor(900)",
    "step-update": "60 * (50_000 // 128) / 2",
    "write-schedule": "s.warmup(s.cosine(base_lr=0.4, max_update=1000), warmup_steps=100)",
    "efficiency": "100 * 50_000 / (4 * 17_000)",
    "ring-bytes": "2 * (4 - 1) / 4 * 25 * 4",
    "exchange-share": "100 * 10 / (2 * 30 + 10)",
    "write-partition": "lambda n, rank, world: list(range(n // world * world))[rank::world]",
    "measured-promised": "4.5 / (2 * 3)",
    "left-out": "8 / 10",
    "cost-of-four": "4 * 3 * 20 / 60",
    "batch-wait": "1000 * 128 / 163.52",
    "tail-latency": "50",
    "assessment-budget": "2 * second.reference['2']['seconds']",
    "rank-steps": "12_000 // 2 // 64",
    "lucky-styles": "12 * 0.1",
    "recipe-field": "'job'",
    "speedup-hours": "24 / speedup",
    "write-agreement": "lambda a, b: 100 * (a.argmax(1) == b.argmax(1)).mean()",
    "variance-ratio": "16 / 15",
    "write-hard-sigmoid": "lambda x: np.clip(0.2 * x + 0.5, 0, 1)",
    "migration-weeks": "30 / (60 - 60 / 1.5)",
}

_STUB = re.compile(r'check\("([a-z0-9-]+)", \.\.\.')


def solved(source: str) -> str:
    """The source of a lesson's cell with its exercises answered.

    Raises:
        GluontuneError: an exercise without a solution.

    >>> solved('check("step-time-ms", ..., result=result)')
    'check("step-time-ms", 1000 * batch_size_per_device / result.samples_per_sec[\\'median\\'], result=result)'
    """

    def answer(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in SOLUTIONS:
            raise GluontuneError(f"exercise {name!r} has no solution in gluontune.course.solutions")
        return f'check("{name}", {SOLUTIONS[name]}'

    return _STUB.sub(answer, source)


def solved_notebook(lesson: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Write a copy of a lesson in which each exercise is followed by its solution.

    Returns:
        The number of exercises.
    """
    import nbformat

    notebook = nbformat.read(lesson, as_version=4)  # type: ignore[no-untyped-call]
    cells, count = [], 0
    for cell in notebook.cells:
        cells.append(cell)
        found = _STUB.findall(cell.source) if cell.cell_type == "code" else []
        if found:
            cells.append(nbformat.v4.new_code_cell(solved(cell.source)))  # type: ignore[no-untyped-call]
            count += len(found)
    notebook.cells = cells
    Path(target).write_text(nbformat.writes(notebook), encoding="utf-8")  # type: ignore[no-untyped-call]
    return count
