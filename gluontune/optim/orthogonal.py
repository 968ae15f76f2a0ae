"""Muon: momentum whose matrices are orthogonalized, for few and large steps."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from gluontune.optim._base import chunks, mx, nd, subtract_all
from gluontune.optim.layerwise import GTAdamW
from gluontune.optim.momentum import nesterov

#: The quintic a x + b x³ + c x⁵ of Jordan et al.: it moves singular values of 0.003 … 1 to about 1 in five steps.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_TINY = 1e-14  # a matrix of zeros stays zero
#: Steps between two computations of XXᵀ.
_ROUND = 3
#: Multiplications of one wide product from which steps on the Gram matrix, more and smaller ones, are cheaper.
_WORTH_THE_GRAM = 1 << 20
#: Values in one group of layers up to which memory stays allocated between two updates.
_WORTH_KEEPING = 1 << 20


def orthogonalized(matrices: Any, steps: int = 5) -> Any:
    r"""The nearest (semi-)orthogonal matrices, approximately: with singular values in about 0.7 … 1.2.

    Newton-Schulz steps :math:`X \leftarrow aX + b(XX^T)X + c(XX^T)^2X`, from :math:`X / \|X\|_F` on. A matrix of zeros
    stays zero.

    Args:
        matrices: float32, shape (n, rows, cols): n of them at once. steps: their number.

    >>> import numpy as np
    >>> found = orthogonalized(nd.array(np.random.RandomState(0).normal(size=(1, 4, 9)), dtype="float32"))
    >>> values = np.linalg.svd(found.asnumpy()[0], compute_uv=False)
    >>> bool(0.6 < values.min() and values.max() < 1.3)
    True
    """
    count, rows, cols = matrices.shape
    return _orthogonalized(nd, matrices, count, rows, cols, steps)


def _orthogonalized(F: Any, x: Any, count: int, rows: int, cols: int, steps: int) -> Any:
    """The same for NDArrays or symbols, which have no shape; ``F`` is the module of either."""
    tall = rows > cols
    if tall:  # for the smaller product
        x, rows, cols = F.swapaxes(x, 1, 2), cols, rows
    x = F.L2Normalization(x, mode="instance", eps=_TINY)
    by_gram = cols >= 3 * rows and count * rows * rows * cols >= _WORTH_THE_GRAM
    x = _steps_on_gram(F, x, steps) if by_gram else _steps(F, x, steps)
    return F.swapaxes(x, 1, 2) if tall else x


def _steps(F: Any, x: Any, steps: int) -> Any:
    """Three products a step, each with its sum in one operator: small matrices cost by the number of calls."""
    a, b, c = _QUINTIC
    for _ in range(steps):
        gram = F.linalg.gemm2(x, x, transpose_b=True)
        x = F.linalg.gemm(F.linalg.gemm(gram, gram, gram, alpha=c, beta=b), x, x, beta=a)
    return x


def _steps_on_gram(F: Any, x: Any, count: int) -> Any:
    """The same steps on the small matrices alone: all are polynomials of XXᵀ, and commute.

    Four products with the wide matrix instead of ten. X is multiplied, and XXᵀ computed again, after the third step:
    further steps would amplify rounding errors in the directions of the smallest singular values. Source: "Gram
    Newton-Schulz", https://tridao.me/blog/2026/gram-newton-schulz/.
    """
    a, b, c = _QUINTIC
    for begun in range(0, count, _ROUND):
        steps = min(_ROUND, count - begun)
        gram, share, turn = F.linalg.gemm2(x, x, transpose_b=True), a, None
        for step in range(steps):
            # The step is aI + rest, all steps so far are share I + turn. The identity stays implicit: in a graph it is
            # an operator without inputs, on which AMP's wrapper fails.
            rest = F.linalg.gemm(gram, gram, gram, alpha=c, beta=b)
            if turn is None:
                turn = rest
            else:
                turn, share = F.linalg.gemm(rest, turn, a * turn + share * rest), a * share
            if step + 1 < steps:
                half = F.linalg.gemm(rest, gram, gram, beta=a)
                gram = F.linalg.gemm(half, rest, half, beta=a)
        x = F.linalg.gemm(turn, x, x, beta=share)
    return x


@functools.cache
def _graph(count: int, shape: tuple[int, ...], steps: int) -> Any:
    """A function of ``count`` gradients, as many moments and the factors of both (shape (1,)): the layers' steps.

    One call of a compiled graph: single operators took as long, in Python and the engine, as a small net's products.
    """
    sym = mx.symbol
    grads, moments = ([sym.var(f"{kind}{k}") for k in range(count)] for kind in "gm")
    rescale, momentum = sym.var("rescale"), sym.var("momentum")
    flat = (-1, shape[0], math.prod(shape[1:]))
    stacked = [sym.reshape(sym.stack(*each), shape=flat) for each in (grads, moments)]
    ahead = sym.broadcast_add(
        *(sym.broadcast_mul(each, by.reshape((1, 1, 1))) for each, by in zip(stacked, (rescale, momentum)))
    )
    turned = _orthogonalized(sym, ahead, count, *flat[1:], steps)
    parts = sym.split(turned, num_outputs=count, axis=0)
    found = sym.Group([sym.reshape(part, shape=shape) for part in (parts if count > 1 else [parts])])
    names, given = found.list_inputs(), [*grads, *moments, rescale, momentum]
    order = [[v.name for v in given].index(name) for name in names]
    static = str(count * math.prod(shape) <= _WORTH_KEEPING)
    call = nd.CachedOp(found, [("static_alloc", static), ("static_shape", static)])

    def run(*arrays: Any) -> list[Any]:
        found = call(*(arrays[place] for place in order))
        return list(found) if isinstance(found, (list, tuple)) else [found]

    return run


@mx.optimizer.register
class GTMuon(GTAdamW):
    """Muon for matrices and convolutions, AdamW or Nesterov's rule for the rest, both at one rate.

    A weight of shape (out, in, …) counts as a matrix of out rows. The entries of its update have the size of AdamW's,
    so that both take the same rate.
    """

    def __init__(
        self, momentum: float = 0.95, beta1: float = 0.9, beta2: float = 0.95, epsilon: float = 1e-8,
        rest: str = "adamw", rest_momentum: float = 0.85, ns_steps: int = 5, fixed_norm: bool = False,
        filters_only: bool = False, **kwargs: Any,
    ):  # fmt: skip
        super().__init__(beta1=beta1, beta2=beta2, epsilon=epsilon, **kwargs)
        self.momentum, self.rest, self.rest_momentum = momentum, rest, rest_momentum
        self.ns_steps, self.fixed_norm, self.filters_only = ns_steps, fixed_norm, filters_only

    def create_state(self, index: int, weight: Any) -> Any:
        if self._is_matrix(index, weight) or (self.rest == "nag" and self.rest_momentum):
            return nd.zeros_like(weight)
        return None if self.rest == "nag" else super().create_state(index, weight)

    def _is_matrix(self, index: int, weight: Any) -> bool:
        return weight.ndim > (2 if self.filters_only else 1) and self.trusts(index)

    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        groups: dict[tuple[int, ...], list[int]] = {}  # layers of one shape are orthogonalized together
        rest = []
        for place, (index, weight) in enumerate(zip(indices, weights)):
            if self._is_matrix(index, weight):
                groups.setdefault(weight.shape, []).append(place)
            else:
                rest.append(place)
        lists = (indices, weights, grads, states)
        for shape, places in groups.items():
            self._turn(shape, *([each[p] for p in places] for each in lists))
        left = [[each[p] for p in rest] for each in lists]
        if rest and self.rest == "nag":
            nesterov(self, self.rest_momentum, *left)
        elif rest:
            super().apply(*left)

    def _turn(
        self, shape: tuple[int, ...], indices: list[int], weights: list[Any], grads: list[Any], moments: list[Any]
    ) -> None:
        grads, rescale = self.clipped(grads)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        scale = 0.2 * math.sqrt(max(shape[0], math.prod(shape[1:])))
        if self.fixed_norm:
            scale, wds = 1.0, [0.0] * len(wds)
            for weight in weights:
                norm = nd.norm(weight).reshape((1,) * weight.ndim)
                nd.broadcast_mul(weight, math.sqrt(shape[0]) / (norm + _TINY), out=weight)
        ctx = moments[0].context
        if grads[0].context != ctx:  # an updating kvstore has copies elsewhere
            grads = [grad.as_in_context(ctx) for grad in grads]
        factors = self._factors(rescale, ctx, grads[0].dtype)
        for ws, gs, ms, rates, decays in chunks(weights, grads, moments, lrs, wds):
            n = len(ws)
            subtract_all(ms, gs, [-1.0] * n, [self.momentum - 1.0] * n, factor=rescale)
            turned = _graph(n, shape, self.ns_steps)(*gs, *ms, *factors)
            subtract_all(ws, turned, rates, decays, factor=scale)

    def _factors(self, rescale: float, ctx: Any, dtype: Any) -> tuple[Any, Any]:
        """The factors on gradient and momentum, on ``ctx``."""
        values, place = (rescale, self.momentum), ("factors", str(ctx), np.dtype(dtype).name)
        cached = self._tables.get(place)
        if cached is None or cached[0] != values:
            cached = (values, tuple(nd.full((1,), value, ctx=ctx, dtype=dtype) for value in values))
            self._tables[place] = cached
        return cached[1]
