"""A compiled graph beside a block, which is called in its place; and its proof, in a forked copy of the process."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gluontune.capture.helpers.base import Forked
from gluontune.compute._traversal import first_samples, walk
from gluontune.core.arrays import flat, mapped, worst

_CACHE: dict[str, Any] = {
    "_cached_graph": (), "_cached_op": None, "_cached_op_args": [], "_in_format": None, "_out_format": None,
}  # fmt: skip


class Compiled:
    """A HybridBlock, or a plain Sequential of hybrid layers, compiled in one way: a graph for each mode."""

    def __init__(
        self, mx: Any, block: Any, flags: Mapping[str, bool], rewrites: Sequence[str], sample: tuple[Any, ...]
    ):
        self._mx, self._block, self._rewrites = mx, block, list(rewrites)
        self._flags = [("static_alloc", False), ("static_shape", False), ("inline_limit", 2)]
        self._flags = [(name, flags.get(name, value)) for name, value in self._flags]
        self._form = _form(sample)
        self._children: list[Any] = []
        self._graphs: dict[tuple[bool, bool], dict[str, Any]] = {}
        self._target = block
        if not isinstance(block, mx.gluon.HybridBlock):
            self._target = mx.gluon.nn.HybridSequential(prefix=block.prefix, params=block.params)
            self._children = list(block._children.values())
            vars(self._target)["_children"] = block._children
            self._rewrites = ["whole-sequential", *self._rewrites]
        self._blocks = {id(part) for _, part in walk(block)}

    def takes(self, args: tuple[Any, ...]) -> bool:
        """Whether a call is of the kind that was proven."""
        if self._children and [*map(id, self._block._children.values())] != [*map(id, self._children)]:
            return False
        return _form(args) == self._form

    def holds(self, block: Any) -> bool:
        """Whether the graph was made of this block among others."""
        return id(block) in self._blocks

    def __call__(self, *args: Any) -> Any:
        autograd, target = self._mx.autograd, self._target
        args = tuple(_out_of_shared(self._mx, arg) for arg in args)
        mode = (autograd.is_training(), autograd.is_recording())
        kept = self._graphs.get(mode)
        values = vars(target)
        before = {name: values[name] for name in (*_CACHE, "_flags", "_backend")}
        values.update(kept or {**_CACHE, "_cached_op_args": []}, _flags=self._flags, _backend=None)
        try:
            with args[0].context:
                if kept is None:
                    self._build(args)
                found = type(target)._call_cached_op(target, *args)
            if kept is None:
                self._graphs[mode] = {name: values[name] for name in _CACHE}
            return found
        finally:
            values.update(before)

    def _build(self, args: tuple[Any, ...]) -> None:
        """Trace and compile, with the layers' classes rewritten for that moment."""
        from gluontune.compute._blocks import take_back
        from gluontune.compute.rewriting import apply_rewrites

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept = {name: vars(self._target)[name] for name in _CACHE}
            done = apply_rewrites(self._target, self._rewrites, *args, verify=False) if self._rewrites else None
            vars(self._target).update(kept)
            try:
                type(self._target)._build_cache(self._target, *args)
            finally:
                if done is not None:
                    take_back(done._before)


def _out_of_shared(mx: Any, array: Any) -> Any:
    """A batch of a loader's workers lies in memory that they share, and a graph takes one kind alone."""
    shared = getattr(getattr(array, "context", None), "device_type", "") == "cpu_shared"
    return array.as_in_context(mx.cpu()) if shared else array


def _form(args: Any) -> Any:
    """How arguments are nested, and the number of dimensions and type of each array."""
    if isinstance(args, (list, tuple)):
        return tuple(_form(part) for part in args)
    if hasattr(args, "dtype") and hasattr(args, "shape"):
        return (type(args).__name__, len(args.shape), str(args.dtype))
    return None if args is None else type(args).__name__


def on_gpu(value: Any) -> bool:
    """Whether one of nested arrays is on a GPU: a forked process cannot use it, and nothing is proven there."""
    return any(getattr(getattr(part, "context", None), "device_type", "") == "gpu" for part in flat(value))


def static_flags(often: bool, varied: bool) -> dict[str, bool]:
    """How a block is compiled. varied: its inputs have several shapes.

    Called more than once in a step (``often``), MXNet 1.9 computes wrong gradients with ``static_shape`` where several
    compiled blocks follow each other.
    """
    if varied:
        return {}
    return {"static_alloc": True} if often else {"static_alloc": True, "static_shape": True}


OUTPUTS, GRADIENTS = 1e-5, 1e-3  # relative; a rewritten layer rounds otherwise
_SAMPLES = 8  # of the batch
_LIMIT_S, _WAIT_S = 240.0, 0.0


def proof_of(mx: Any, roots: list[Any]) -> Forked:
    """A forked process that computes each root both ways."""
    return Forked(lambda: [_answer(mx, root) for root in roots], _LIMIT_S)


def answers_of(proof: Forked, count: int) -> list[dict[str, Any]] | None:
    """The answers, one for each root; None while the process is at work."""
    if not proof.ended(_WAIT_S):
        return None
    return proof.answer() or [_refusal("the proof did not come to an end")] * count


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
    from gluontune.runtime import as_nd_array

    parameters = [p for p in block.collect_params().values() if p.grad_req != "null" and p._grad is not None]
    outputs: list[Any] = []
    gradients: list[Any] = []
    for _ in range(2):
        mx.random.seed(0)
        inputs = mapped(_leaf, args)
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


def _leaf(arg: Any) -> Any:
    """A copy of an array, with a gradient where it has numbers."""
    if not hasattr(arg, "attach_grad"):
        return arg
    copy = arg.copy()
    if "float" in str(copy.dtype):
        copy.attach_grad()
    return copy


def _part(args: Any, most: int) -> Any:
    """The first samples of a batch, where every array has the batch as its first dimension."""
    arrays = [a for a in flat(args) if hasattr(a, "shape")]
    size = arrays[0].shape[0] if arrays and arrays[0].shape else 0
    if size <= most or any(not a.shape or a.shape[0] != size for a in arrays):
        return args
    return first_samples(args, most)
