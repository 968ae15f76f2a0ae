"""The proof of compiled blocks, in a forked copy of the process: random streams, averages and gradients of the script's
own process stay untouched, and it goes on meanwhile.
"""

from __future__ import annotations

import warnings
from typing import Any

from gluontune.capture.forked import Forked
from gluontune.capture.helpers.compiled import Compiled, static_flags
from gluontune.core.arrays import worst

OUTPUTS, GRADIENTS = 1e-5, 1e-3  # relative; a rewritten layer rounds otherwise
_SAMPLES = 8  # of the batch
_LIMIT_S, _WAIT_S = 240.0, 0.0


class Proving:
    """A forked process that computes each root both ways.

    Attributes:
        roots: in the order of the answers.
    """

    def __init__(self, mx: Any, roots: list[Any]):
        self.roots = roots
        self._copy = Forked(lambda: [_answer(mx, root) for root in roots], _LIMIT_S)

    def answer(self) -> list[dict[str, Any]] | None:
        """The answers, one for each root; None while the process is at work."""
        if not self._copy.ended(_WAIT_S):
            return None
        found: list[dict[str, Any]] | None = self._copy.answer()
        return found or [_refusal("the proof did not come to an end")] * len(self.roots)


def _refusal(reason: str) -> dict[str, Any]:
    return {"reason": reason, "apart": 0.0, "rewrites": []}


def _answer(mx: Any, root: Any) -> dict[str, Any]:
    """Whether the root's block computes the same compiled, how far apart it is, and with which rewrites."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _compared(mx, root)
    except Exception as error:
        return _refusal(f"{type(error).__name__} when compiled: {(str(error).splitlines() or [''])[0][:200]}")


def _compared(mx: Any, root: Any) -> dict[str, Any]:
    from gluontune.compute.process import started_dtype

    outputs, gradients = (OUTPUTS, GRADIENTS) if started_dtype() != "bfloat16" else (0.1, 0.5)
    block, args = root.block, _part(root.arguments, _SAMPLES)
    plain = _passes(mx, block, block, args)
    again = _passes(mx, block, block, args)
    if _apart(again, plain)[0] > outputs:
        return _refusal("it computes something else at each call")
    flags = static_flags(False, False)
    apart = _apart(_passes(mx, Compiled(mx, block, flags, (), args), block, args), plain)
    if apart[0] > outputs or apart[1] > gradients:
        return _refusal(f"compiled, outputs differ by {apart[0]:.1e} and gradients by {apart[1]:.1e}")
    names = _rewrites(block, args)
    if names:
        rewritten = _apart(_passes(mx, Compiled(mx, block, flags, names, args), block, args), plain)
        if rewritten[0] > outputs or rewritten[1] > gradients:
            names = []
        else:
            apart = max(apart, rewritten)
    return {"reason": "", "apart": apart[0], "rewrites": names}


def _rewrites(block: Any, args: Any) -> list[str]:
    from gluontune.compute.process import started_dtype
    from gluontune.compute.rewriting import rewrites_for

    try:
        left = ("whole-sequential",) if started_dtype() == "bfloat16" else ("whole-sequential", "pad-channels")
        return [name for name in rewrites_for(block, *args) if name not in left]
    except Exception:
        return []


def _passes(mx: Any, call: Any, block: Any, args: Any) -> tuple[list[Any], list[Any]]:
    """Outputs in training (twice, as a graph is first made and then used) and in prediction, and all gradients."""
    from gluontune.compute._passes import _same_averages
    from gluontune.core.arrays import flat
    from gluontune.runtime import as_nd_array

    parameters = [p for p in block.collect_params().values() if p.grad_req != "null" and p._grad is not None]
    outputs: list[Any] = []
    gradients: list[Any] = []
    for _ in range(2):
        mx.random.seed(0)
        inputs = _leaves(mx, args)
        with _same_averages(block):
            for gradient in (as_nd_array(g) for p in parameters for g in p.list_grad()):
                mx.nd.zeros_like(gradient, out=gradient)
            with mx.autograd.record():
                made = [as_nd_array(o) for o in flat(call(*inputs))]
                heads = [o.astype("float32").square().sum() for o in made]
            mx.autograd.backward(heads)
            outputs = [o.astype("float32").asnumpy() for o in made]
            leaves = [a.grad for a in flat(inputs) if getattr(a, "grad", None) is not None]
            taken = [g for p in parameters for g in p.list_grad()] + leaves
            gradients = [as_nd_array(g).astype("float32").asnumpy() for g in taken]
    with _same_averages(block), mx.autograd.pause(train_mode=False):
        mx.random.seed(0)
        outputs += [as_nd_array(o).astype("float32").asnumpy() for o in flat(call(*args))]
    return outputs, gradients


def _apart(mine: tuple[list[Any], list[Any]], theirs: tuple[list[Any], list[Any]]) -> tuple[float, float]:
    from gluontune.compute._passes import gradient_gap

    return worst(mine[0], theirs[0]), gradient_gap(mine[1], theirs[1])


def _leaves(mx: Any, args: Any) -> Any:
    """Copies of the arguments, with gradients where they are numbers."""
    if isinstance(args, (list, tuple)):
        return type(args)(_leaves(mx, part) for part in args)
    if not hasattr(args, "attach_grad"):
        return args
    copy = args.copy()
    if str(copy.dtype).find("float") >= 0:
        copy.attach_grad()
    return copy


def _part(args: Any, most: int) -> Any:
    """The first samples of a batch, where every array has the batch as its first dimension."""
    from gluontune.compute._traversal import first_samples
    from gluontune.core.arrays import flat

    arrays = [a for a in flat(args) if hasattr(a, "shape")]
    size = arrays[0].shape[0] if arrays and arrays[0].shape else 0
    if size <= most or any(not a.shape or a.shape[0] != size for a in arrays):
        return args

    return first_samples(args, most)
