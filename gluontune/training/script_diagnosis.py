"""Diagnosis of an unchanged script: where a step's time goes, and what ``gluontune run`` can do about it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from gluontune.capture.script import ENVIRONMENT, Program
from gluontune.core.errors import GluontuneError
from gluontune.runtime import pytorch
from gluontune.training.diagnosis import Examination
from gluontune.training.group import Group, RunFailed
from gluontune.training.script_run import ScriptRun, ScriptSite

_PHASE_STEPS = 10
_LONGEST_S = 30.0  # of the steps for the phases, at most
_LARGE_PCT = 25.0  # of the step, from which on a phase is worth a warning
#: What a phase is called, and which change of ``gluontune run`` makes it shorter.
_PHASES = {
    "data": ("waiting for the next batch", "samples"), "forward": ("the forward pass", "blocks"),
    "backward": ("the backward pass", "blocks"), "update": ("the update", ENVIRONMENT),
    "rest": ("the script's own work between them", ""),
}  # fmt: skip
#: What a change does, and what is so without it.
_CHANGES = {
    "samples": ("samples can be kept in memory", "samples are made anew each time"),
    "blocks": ("blocks can be compiled", "blocks are not compiled"),
    "torch": ("PyTorch can compute the same steps", "PyTorch does not compute it"),
}


def examine_script(
    words: Sequence[str], *, time_limit: float = 300.0, say: Callable[[str], None] | None = None
) -> Examination:
    """Look at the first steps of an unchanged script, as it is and with each change of ``gluontune run``.

    The script runs up to four times, one after the other, and is left after these steps; what it has written by then
    stays. The phases come first, by their share of a step.

    Args:
        words: the script and its own words, or ``-m``, a module and its words.
        time_limit: seconds of one process. say: called with lines of progress.
    """
    tell = say or (lambda line: None)
    Program.of(words).check()
    run = ScriptRun(tuple(words))
    ways = {
        "samples": run.override(changes=("samples",)), "blocks": run.override(changes=("blocks",)),
        "torch": run.override(runtime="tuned", backend="torch"),
    }  # fmt: skip
    tell("its first steps, as it is")
    try:
        found = Examination(phases_pct=_look(run, time_limit)["phases_pct"])
    except RunFailed as failure:
        raise GluontuneError(failure.message) from failure
    why_not = {} if pytorch.installed() else {"torch": f"PyTorch is not installed: {pytorch.INSTALL}"}
    for name in [name for name in ways if name not in why_not]:
        tell(f"its first steps, with {name}")
        try:
            _look(ways[name], time_limit)
        except RunFailed as failure:
            why_not[name] = failure.message
    for share, phase in sorted(((v, k) for k, v in found.phases_pct.items()), reverse=True):
        what, change = _PHASES[phase]
        severity = "warning" if share >= _LARGE_PCT and change and change not in why_not else "info"
        fix = f"gluontune run {shlex.join(words)}" if severity == "warning" else ""
        found.add(f"script-{phase}", severity, f"{what} takes {share:.0f} % of a step", why_not.get(change, ""), fix)
        found.sentence = found.sentence or f"{what[0].upper()}{what[1:]} takes {share:.0f} % of a step of {run.job}."
    for name, (does, does_not) in _CHANGES.items():
        if name in why_not:
            found.add(f"script-{name}", "info", f"{does_not}: {why_not[name]}")
        else:
            way = ways[name]
            if name == "torch":
                way = way.override(changes=("samples",))  # run keeps them where there are any
            found.add(f"script-{name}", "ok", does, f"by {way.command()}")
    return found


def _look(run: ScriptRun, time_limit: float) -> Mapping[str, Any]:
    """What a process sees of the script's first steps."""
    with Group(cast(Any, run), time_limit=time_limit, site=ScriptSite) as group:
        steps = max(1, min(_PHASE_STEPS, int(_LONGEST_S / max(group.ready[0]["step_s"], 1e-6))))
        return group.individual("phases", steps=steps)
