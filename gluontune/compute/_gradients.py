"""Do two ways to run a network give the same gradients? A check for gross faults, not for rounding.

A kernel that reads its data in another layout than they are in raises nothing: it computes something else.
"""

from __future__ import annotations

import math
from typing import Any

from gluontune.compute.process import started_dtype
from gluontune.core.gaps import gaps, size

__all__ = ["GradientCheck", "first_gross"]

GROSS = {"bfloat16": 0.5}  # of an array's largest gradient; a wrong layout gives about 1
GROSS_FLOAT32 = 0.05
SMALL = 1e-3  # arrays whose gradients are below this share of the net's largest may be all rounding


class GradientCheck:
    """Gradients of a net's plain steps, to compare those of later ways to run it with.

    A net that draws random numbers, or adds its gradients up, gives others each time: then nothing is said.
    """

    def __init__(self, net: Any):
        parameters = net.collect_params().items()
        self._trained = {k: p for k, p in parameters if p.grad_req == "write" and p._grad_stype == "default"}
        self._plain: list[dict[str, Any]] = []

    def note(self) -> None:
        """Keep the gradients as they are after a plain step; of two such steps the check is made."""
        self._plain = [*self._plain, self._now()][-2:]

    def differing(self) -> str:
        """The first parameter whose gradient is grossly another than in the plain steps, or ""."""
        if len(self._plain) < 2:
            return ""
        first, plain = self._plain
        if first_gross(first, plain) is not None:
            return ""
        return first_gross(self._now(), plain) or ""

    def _now(self) -> dict[str, Any]:
        return {k: p.list_grad()[0].astype("float32").asnumpy() for k, p in self._trained.items()}


def first_gross(mine: dict[Any, Any], plain: dict[Any, Any]) -> Any:
    """The first key whose gradient is grossly another in ``mine`` than in ``plain``, or None."""
    limit = GROSS.get(started_dtype() or "", GROSS_FLOAT32)
    least = SMALL * max(map(size, plain.values()), default=0.0)
    for key, apart in gaps(mine, plain).items():
        if apart > limit and (apart == math.inf or size(plain[key]) > least):
            return key
    return None
