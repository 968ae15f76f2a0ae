"""``gluontune assess``: grade a learner's training script."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any, Optional

from gluontune.cli._common import JSON_OPTION, argument, deliver, option, say, stderr, stdout, stdout_reserved
from gluontune.core.errors import UsageError


def assess(
    script: Optional[Path] = argument(None, "The training script.", metavar="[SCRIPT.py]"),
    new: Optional[Path] = option(None, "Write the naive script to begin with, and stop.", metavar="FILE"),
    ranks: Optional[int] = option(None, "Try this part alone; default: one rank, then two.", min=1, max=2),
    quick: bool = option(False, "A third of the data: for a try."),
    engine: str = option("kvstore", "How two ranks talk: kvstore or horovod."),
    out: Path = option(Path("runs/assessment"), "Folder of assessment.json and reference.json."),
    fresh: bool = option(False, "Measure the reference again, though --out has it."),
    runtime: str = option("tuned", "Environment of the script: tuned or as-installed."),
    memory_mib: Optional[int] = option(
        None, "Limit for the script's processes; default: 3/4 of the free memory.", min=256
    ),
    as_json: bool = JSON_OPTION,
) -> int:
    """Grade a training script: accuracy, time, steadiness and correctness, on one rank and then on two.

    Begin with `gluontune assess --new my_script.py`: a naive, serial script. Make it reach the accuracy of a reference
    solution, less 5 points, within twice the reference's time on this machine; then on two ranks. The script calls
    gt.course.task(), trains on task.train, and each rank ends with task.save(net, samples). The classes are drawn anew
    each time and the test images made after the script's end; it runs under limits of time, memory and files, and what
    it leaves running is ended. Exit 0: passed, 1: not passed, 2: wrong usage.
    """
    if (script is None) == (new is None):
        raise UsageError("assess: give the script to grade, or --new FILE to get one to begin with")
    from gluontune.course import assessment

    if new is not None:
        written = assessment.new_script(new)
        begin = f"{written}: begin here; `gluontune assess {quote(str(written))}` grades it"
        deliver({"written": str(written)}, as_json, lambda: say(begin))
        return 0
    if engine not in ("kvstore", "horovod"):
        raise UsageError(f"--engine {engine!r}: choose kvstore or horovod")
    assert script is not None
    with stdout_reserved():
        found = assessment.assess(
            script, ranks=ranks, quick=quick, engine=engine, out=out, fresh=fresh, settings=runtime,
            memory_mib=memory_mib,
            on_event=lambda text: say(text, to=stderr),
        )  # fmt: skip
    deliver(found.to_dict(), as_json, lambda: _show(found))
    return 0 if found.passed else 1


def _show(found: Any) -> None:
    from gluontune.report.study import text_table

    for part in found.parts:
        rows = [
            (c.name, f"{c.points:g} of {c.max_points}", "ok" if c.passed else "no", c.feedback) for c in part.criteria
        ]
        stdout.print(text_table(f"on {'one rank' if part.ranks == 1 else 'two ranks'}|points||feedback", rows))
        stdout.print()
    if found.skipped:
        say(found.skipped)
    if not found.isolated:
        say("this kernel cannot keep a script from other files (no Landlock)")
    if not found.secluded:
        say("this system cannot keep a script from the network (no namespaces)")
    say(f"{'passed' if found.passed else 'not passed'}: {found.points:g} of {found.max_points} points")
