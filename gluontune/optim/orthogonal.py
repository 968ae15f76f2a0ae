"""Muon: momentum whose matrices are orthogonalized, for few and large steps."""

from __future__ import annotations

import math
from typing import Any

from gluontune.optim._base import chunks, mx, nd, subtract_all
from gluontune.optim.layerwise import GTAdamW

__all__ = ["GTMuon", "orthogonalized"]

#: The quintic a x + b x³ + c x⁵ of Jordan et al.: it drives singular values of 0.003 … 1 to about 1 in five steps.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_STEPS = (3, 2)
#: Multiplications in one wide product; below, the steps on the Gram matrix, which are more and smaller, cost more.
_WORTH_THE_GRAM = 1 << 20


def orthogonalized(matrices: Any) -> Any:
    r"""The nearest (semi-)orthogonal matrices, roughly: singular values come to lie in about 0.7 … 1.2.

    Five Newton-Schulz steps :math:`X \leftarrow aX + b(XX^T)X + c(XX^T)^2X`, from :math:`X / \|X\|_F` on. A matrix of
    zeros stays so.

    Args:
        matrices: float32, shape (n, rows, cols): n of them at once.

    >>> import numpy as np
    >>> found = orthogonalized(nd.array(np.random.RandomState(0).normal(size=(1, 4, 9)), dtype="float32"))
    >>> values = np.linalg.svd(found.asnumpy()[0], compute_uv=False)
    >>> bool(0.6 < values.min() and values.max() < 1.3)
    True
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = nd.swapaxes(matrices, 1, 2) if tall else matrices  # the product is then as small as it can be
    x = nd.L2Normalization(x, mode="instance", eps=1e-14)
    count, rows, cols = x.shape
    by_gram = cols >= 3 * rows and count * rows * rows * cols >= _WORTH_THE_GRAM
    x = _steps_on_gram(x) if by_gram else _steps(x)
    return nd.swapaxes(x, 1, 2) if tall else x


def _steps(x: Any) -> Any:
    """Three products a step, each with its sum in one operator: on small matrices it is the starts that cost."""
    a, b, c = _QUINTIC
    for _ in range(sum(_STEPS)):
        gram = nd.linalg.gemm2(x, x, transpose_b=True)
        x = nd.linalg.gemm(nd.linalg.gemm(gram, gram, gram, alpha=c, beta=b), x, x, beta=a)
    return x


def _steps_on_gram(x: Any) -> Any:
    """The same steps, taken by the small matrices alone: all are polynomials of XXᵀ, and commute.

    Four products with the wide matrix instead of ten. X is multiplied, and XXᵀ made anew, after the third step: from
    there on, rounding errors in the directions of the smallest singular values would grow. Source: "Gram
    Newton-Schulz", https://tridao.me/blog/2026/gram-newton-schulz/.
    """
    a, b, c = _QUINTIC
    one = a * nd.eye(x.shape[1], ctx=x.context).expand_dims(0)
    for steps in _STEPS:
        gram, turn = nd.linalg.gemm2(x, x, transpose_b=True), None
        for step in range(steps):
            rest = nd.linalg.gemm(gram, gram, gram, alpha=c, beta=b)  # the step is aI + rest
            turn = nd.broadcast_add(rest, one) if turn is None else nd.linalg.gemm(rest, turn, turn, beta=a)
            if step + 1 < steps:
                half = nd.linalg.gemm(rest, gram, gram, beta=a)
                gram = nd.linalg.gemm(half, rest, half, beta=a)
        x = nd.linalg.gemm2(turn, x)
    return x


@mx.optimizer.register
class GTMuon(GTAdamW):
    r"""Muon for matrices and convolutions, AdamW for the rest, both at one rate.

    A weight of shape (out, in, …) counts as a matrix of out rows. With
    :math:`m = momentum\,m + g` and :math:`u = g + momentum\,m` the update is
    :math:`w -= lr\,(0.2\sqrt{\max(rows, cols)}\,O(u) + wd\,w)`, O being :func:`orthogonalized`: its entries are
    then of the size of AdamW's, so that both take the same rate. Jordan et al., "Muon: an optimizer for hidden
    layers in neural networks" (2024); the factor: Liu et al., arXiv:2502.16982.

    Args:
        momentum: of the matrices, in [0, 1).
        beta1, beta2, epsilon: of AdamW.
        kwargs: of ``mx.optimizer.Optimizer``; ``wd`` is multiplied by the rate.
    """

    def __init__(
        self,
        momentum: float = 0.95,
        beta1: float = 0.9,
        beta2: float = 0.95,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ):
        super().__init__(beta1=beta1, beta2=beta2, epsilon=epsilon, **kwargs)
        self.momentum = momentum

    def create_state(self, index: int, weight: Any) -> Any:
        return (
            nd.zeros_like(weight) if self._is_matrix(index, weight) else super().create_state(index, weight)
        )

    def _is_matrix(self, index: int, weight: Any) -> bool:
        return weight.ndim > 1 and self.trusts(index)

    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        groups: dict[tuple[int, int], list[int]] = {}  # layers of one shape are orthogonalized together
        rest = []
        for place, (index, weight) in enumerate(zip(indices, weights)):
            if self._is_matrix(index, weight):
                groups.setdefault((weight.shape[0], weight.size // weight.shape[0]), []).append(place)
            else:
                rest.append(place)
        lists = (indices, weights, grads, states)
        for shape, places in groups.items():
            self._turn(shape, *([each[p] for p in places] for each in lists))
        if rest:
            super().apply(*([each[p] for p in rest] for each in lists))

    def _turn(
        self,
        shape: tuple[int, int],
        indices: list[int],
        weights: list[Any],
        grads: list[Any],
        moments: list[Any],
    ) -> None:
        grads, rescale = self.clipped(grads)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        scale = 0.2 * math.sqrt(max(shape))
        for ws, gs, ms, rates, decays in chunks(weights, grads, moments, lrs, wds):
            n = len(ws)
            subtract_all(ms, gs, [-1.0] * n, [self.momentum - 1.0] * n, factor=rescale)
            ahead = rescale * nd.stack(*gs) + self.momentum * nd.stack(*ms)
            turned = orthogonalized(ahead.reshape((n, *shape)))
            steps = [turned[place].reshape(w.shape) for place, w in enumerate(ws)]
            subtract_all(ws, steps, rates, decays, factor=scale)
