"""``gluontune capture``: what a script computes in a training step, proven."""

from __future__ import annotations

from typing import Optional

from gluontune.cli._common import JSON_OPTION, argument, deliver, option, say

CONTEXT = {"allow_interspersed_args": False}  # the words after the first are another program's


def capture(
    words: list[str] = argument(..., "A Python file and its own words.", metavar="SCRIPT [ARGS…]"),
    module: bool = option(False, "SCRIPT is a module, as after python -m.", "-m"),
    steps: int = option(20, "Training steps to look at; then the script is left.", min=2),
    time_limit: Optional[float] = option(None, "Seconds for all of it.", min=1),
    as_json: bool = JSON_OPTION,
) -> int:
    """Show what a Gluon script computes in a training step, and prove that PyTorch can compute it.

    The script is not changed. Its first steps are recorded operator by operator and computed again by MXNet and by
    PyTorch in float64. It exits with 1 where a step cannot be proven, and names the line.
    """
    from gluontune.capture import api

    found = api.capture([*(["-m"] if module else []), *words], steps, time_limit)
    deliver(found, as_json, lambda: say("\n".join(api.summary(found))))
    return 1 if found["refused"] else 0
