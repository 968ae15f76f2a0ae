"""Exercises in code about gradients of several ranks: a sum through a store, and a ring.

Each checker draws its data anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gluontune import runtime
from gluontune.course.exercises._registry import calling, exercise, values_of

_ALLREDUCE = """
def all_reduce(grads):
    total = sum(g.as_in_context(grads[0].context) for g in grads)
    return [total.as_in_context(g.context) for g in grads]
all_reduce
"""


@exercise("write-allreduce", _ALLREDUCE, "function")
def _write_allreduce(answer: Callable[..., Any]) -> str | None:
    """The sum of gradients that lie on several contexts, on each of them."""
    mx, rng = runtime.mxnet(), np.random.default_rng()
    parts = rng.normal(size=(int(rng.integers(3, 6)), 4, 3)).astype(np.float32)
    grads = [mx.nd.array(part, ctx=mx.cpu(i)) for i, part in enumerate(parts)]
    with calling(f"{len(parts)} gradients on cpu(0) to cpu({len(parts) - 1})"):
        found = list(answer(grads))
        values, places = [values_of(x) for x in found], [x.context for x in found]
    if len(found) != len(parts):
        return f"It shall give {len(parts)} arrays, one for each context; yours gives {len(found)}."
    for values_wrong, hint in ((parts.mean(0), "That is the mean; gluon.Trainer expects the sum."),
                               (parts[0], "That is the first device's gradient; the others are missing.")):  # fmt: skip
        if np.allclose(values[0], values_wrong, atol=1e-5):
            return hint
    if any(value.shape != (4, 3) or not np.allclose(value, parts.sum(0), atol=1e-4) for value in values):
        return "Each of the arrays shall be the sum of all gradients."
    if places != [mx.cpu(i) for i in range(len(parts))]:
        return "The values are right, but each sum shall lie on the context of its gradient: as_in_context."
    return None


_RING = """
def turn(parts, t):
    n = len(parts)
    for rank in range(n):
        parts[(rank + 1) % n][(rank - t) % n] += parts[rank][(rank - t) % n]
turn
"""


@exercise("write-ring", _RING, "function")
def _write_ring(answer: Callable[..., Any]) -> str | None:
    """One turn of the first half of a ring all-reduce, on pieces in numpy."""
    rng = np.random.default_rng()
    n = int(rng.integers(3, 7))
    start = rng.normal(size=(n, n, 2))
    parts = [[piece.copy() for piece in row] for row in start]
    for t in range(n - 1):
        before = np.array(parts)
        with calling(f"the pieces of {n} ranks and t={t}"):
            answer(parts, t)
            now = np.array(parts, dtype=np.float64)
        if now.shape != start.shape:
            return "The pieces keep their number and shape; only their values change."
        changed = (np.abs(now - before) > 1e-9).any(axis=2)
        if not changed.any():
            return f"Turn {t} changed nothing: add in place, with +=."
        if (changed.sum(axis=1) > 1).any():
            return f"In turn {t} a rank got {changed.sum(axis=1).max()} pieces; it shall get one, from its left."
        truth = before.copy()
        for rank in range(n):
            truth[(rank + 1) % n, (rank - t) % n] += before[rank, (rank - t) % n]
        if not np.allclose(now, truth):
            back = before.copy()
            for rank in range(n):
                back[rank - 1, (rank - t) % n] += before[rank, (rank - t) % n]
            if np.allclose(now, back):
                return "The pieces go the other way round: rank r sends to rank r + 1."
            return f"In turn {t} rank r sends its piece (r − t) mod n to rank r + 1, which adds it."
    return None
