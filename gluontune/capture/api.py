"""What a script computes in a training step, learned from the running script and proven."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gluontune.capture import script
from gluontune.capture.devices import with_hint
from gluontune.core.errors import GluontuneError
from gluontune.core.processes import last_words
from gluontune.core.reading import parse_json


def capture(
    words: Sequence[str], steps: int = 20, time_limit: float | None = None, cwd: str | None = None
) -> dict[str, Any]:
    """Run a script until it has taken some training steps, and prove that PyTorch computes them.

    The script is left after these steps; what it has written by then stays. In them nothing is dropped between the
    layers of a recurrent operator. Each step is computed again from its recorded leaves by PyTorch, and by MXNet and
    PyTorch both in float64: every structure of a step once, and all steps if that takes ten seconds at most; where it
    takes longer and float32 shows no agreement, two steps are all.

    Args:
        words: the script and its arguments, or ``-m``, a module and its arguments. steps: how many to look at.
        time_limit: seconds for the whole process. cwd: the folder in which the script runs.

    Returns:
        ``{"refused", "steps", "steps_float64", "gaps_float64", "gaps_of_the_script", "seven_digits", "trainers",
        "kinds"}``. ``refused`` is None, or why there is no proof; ``steps_float64``: how many were computed in it. The
        gaps are ``{"losses", "gradients", "weights"}``, relative; a kind is one structure of a step, with its
        ``operators`` and ``leaves``: of each its ``source``, shape, type and line.
        ``seven_digits``: MXNet computes an operator of it in float32 whatever it is given.

    Raises:
        UsageError: there is no such script.
        GluontuneError: the script failed before a step was over, or took longer than ``time_limit``.

    >>> import gluontune as gt
    >>> path = Path(tempfile.mkdtemp(), "three_steps.py")
    >>> _ = path.write_text('''
    ... import mxnet as mx
    ... w = mx.nd.ones(2)
    ... w.attach_grad()
    ... for x in (1, 2, 3):
    ...     with mx.autograd.record():
    ...         loss = ((w * x - 1) ** 2).sum()
    ...     loss.backward()
    ...     w[:] = w - 0.1 * w.grad
    ... ''')
    >>> found = gt.capture.capture([str(path)])
    >>> found["refused"], found["steps"], found["gaps_float64"]["losses"] < 1e-12
    (None, 3, True)
    >>> [leaf["source"] for leaf in found["kinds"][0]["leaves"]]
    ['variable']
    """
    program = script.Program.of(words)
    program.check()
    with tempfile.TemporaryDirectory(prefix="gluontune-capture-") as folder:
        options = {"out": str(Path(folder, "capture.json")), "steps": steps}
        return document_of(program, "gluontune.capture.capturing", options, time_limit, cwd)


def document_of(
    program: script.Program, module: str, options: dict[str, Any], time_limit: float | None, cwd: str | None
) -> dict[str, Any]:
    """The document that ``module`` writes to ``options["out"]`` of a script's first ``options["steps"]`` steps.

    Raises:
        GluontuneError: the script failed before a step was over, or took longer than ``time_limit``.
    """
    command, out = script.command(program, module, json.dumps(options)), Path(options["out"])
    try:
        done = subprocess.run(
            command, cwd=cwd, env=script.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=time_limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise GluontuneError(f"{program.target}: no {options['steps']} training steps in {time_limit:.0f} s") from error
    found = parse_json(out.read_text("utf-8")) if out.exists() else None
    if found is None or (done.returncode and not found.get("steps")):
        why = last_words(done.stderr) or f"code {done.returncode}, and not a word"
        raise GluontuneError(with_hint(f"{program.target}: ended before a training step: {why}"))
    return dict(found)


def summary(found: dict[str, Any]) -> list[str]:
    """The document in a few lines."""
    lines = []
    for trainer in found["trainers"]:
        rates = trainer["learning_rates"]
        span = f"{rates[0]:g}" if len(set(rates)) == 1 else f"{rates[0]:g} … {rates[-1]:g}"
        lines.append(
            f"{trainer['optimizer']} on {len(trainer['parameters'])} parameters, rate {span}, gradients ÷ "
            f"{trainer['batch_size']} ({trainer['line']})"
        )
    for kind in found["kinds"]:
        sources: dict[str, int] = {}
        for leaf in kind["leaves"]:
            sources[leaf["source"]] = sources.get(leaf["source"], 0) + 1
        told = ", ".join(f"{count} {source}" for source, count in sources.items())
        lines.append(f"{kind['steps']} steps of {kind['instructions']} instructions from {told}")
    gaps = found["gaps_float64"]
    if found["refused"]:
        lines.append(f"refused: {found['refused']}")
    elif gaps:
        worst = max(gaps.values())
        exact = found["steps_float64"]
        some = "" if exact == found["steps"] else f" ({exact} of them)"
        lines.append(f"proven over {found['steps']} steps: MXNet and PyTorch agree to {worst:.0e} in float64{some}")
    return lines
