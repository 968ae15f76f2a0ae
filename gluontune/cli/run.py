"""``gluontune run``: a user's own program, unchanged, faster."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from gluontune.cli._common import argument, names_of, option
from gluontune.core.errors import GluontuneError, UsageError

CONTEXT = {"allow_interspersed_args": False}  # the words after the first are another program's


def run(
    words: list[str] = argument(..., "A Python file and its own words.", metavar="SCRIPT [ARGS…]"),
    module: bool = option(False, "SCRIPT is a module, as after python -m.", "-m"),
    out: Optional[Path] = option(None, "Write what was changed and gained to FILE.json."),
    backend: str = option("mxnet", "torch: PyTorch computes, once a step is proven."),
    dtype: str = option("float32", "bfloat16: MXNet computes in it on the CPU; losses change."),
    leave: Optional[str] = option(None, "Changes to leave out: environment, samples, blocks."),
) -> None:
    """Run a script as it is, faster, with its own output, files and exit code.

    All that follows SCRIPT is the script's. Changes are kept where they measure better while it trains; two lines
    on stderr say at the end what they brought.
    """
    from gluontune.capture.script import CHANGES, ENVIRONMENT, start

    left = names_of(leave, "--leave") or []
    unknown = [name for name in left if name not in (ENVIRONMENT, *CHANGES)]
    if unknown:
        names = ", ".join([ENVIRONMENT, *CHANGES])
        raise UsageError(f"--leave {leave!r}: {unknown[0]!r} is no change; choose of {names}")
    if backend not in ("mxnet", "torch"):
        raise UsageError(f"--backend {backend!r}: choose mxnet or torch")
    if backend == "torch" and ("blocks" in left or dtype != "float32"):
        raise UsageError("--leave blocks and --dtype go with --backend mxnet")
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype {dtype!r}: choose float32 or bfloat16")
    if dtype == "bfloat16":
        _check_bfloat16()
    start([*(["-m"] if module else []), *words], str(out) if out else None, left, dtype, backend)


def _check_bfloat16() -> None:
    from gluontune.compute.process import bfloat16_support

    support = bfloat16_support()
    if support.level == "none":
        raise GluontuneError(f"--dtype bfloat16: {support.message}; leave it out")
