"""Adaptive optimizers with kernels for many layers at once: AdamW, LAMB, NovoGrad; and Muon, of orthogonal momentum."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import numpy as np

from gluontune.optim._base import TunedOptimizer, chunks, interleaved, is_large, mx, nd, squares, subtract_all
from gluontune.optim.momentum import nesterov


def _float32(beta: float) -> float:
    """``beta`` as in the kernels, whose 1 - 0.999 is 1.3e-5 off, for the same bias correction."""
    return float(np.float32(beta))


class _TwoMoments(TunedOptimizer):
    """Adam's two states and hyper-parameters."""

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, **kwargs: Any):
        super().__init__(**kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def create_state(self, index: int, weight: Any) -> tuple[Any, Any]:
        return (nd.zeros_like(weight), nd.zeros_like(weight))

    def options(self) -> dict[str, float]:
        """The common options of MXNet's kernels of the family."""
        clip = {"clip_gradient": self.clip_gradient} if self.clip_gradient else {}
        return {"beta1": self.beta1, "beta2": self.beta2, **clip}


@mx.optimizer.register
class GTAdam(mx.optimizer.Adam):
    """MXNet's Adam with a bias correction for the float32 betas of its kernel."""

    def __init__(
        self, learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
        lazy_update: bool = True, **kwargs: Any,
    ):  # fmt: skip
        super().__init__(learning_rate, _float32(beta1), _float32(beta2), epsilon, lazy_update, **kwargs)


@mx.optimizer.register
class GTAdamW(_TwoMoments):
    """Adam with decoupled weight decay; bias corrections and epsilon as in the paper (and PyTorch).

    MXNet's contrib kernel for many arrays loses five digits of the first second moments and waits for the device;
    LAMB's kernel for many arrays does neither, and without its ratio it is AdamW's. Large layers take Adam's kernel,
    which is several times as fast for them, with the bias corrections in its rate and epsilon.
    """

    bias_correction = True
    #: LAMB's kernel reads a norm of 0 as "no ratio".
    no_ratio: ClassVar[dict[str, float]] = {"upper_bound": 0.0}

    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        self.descend(indices, weights, grads, states, self.no_ratio)

    def descend(
        self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any], limits: dict[str, float]
    ) -> None:
        """One update by LAMB's rule, with the weights' norms within ``limits`` in the ratio."""
        ages = [self._index_update_count[index] for index in indices]
        lists = (weights, grads, states, ages, self._get_lrs(indices), self._get_wds(indices))
        for ws, gs, ss, some_ages, lrs, wds in chunks(*lists):
            if is_large(ws[0]) and ws[0].dtype == np.float32:
                self._descend_alone(ws[0], gs[0], ss[0], some_ages[0], lrs[0], wds[0], limits)
                continue
            if ws[0].dtype == np.float64 and limits is self.no_ratio:
                for each in zip(ws, gs, ss, some_ages, lrs, wds):
                    self._descend_exactly(*each)
                continue
            nd.contrib.multi_lamb_update(
                ws, gs, [s[0] for s in ss], [s[1] for s in ss], out=ws, step_count=some_ages,
                lrs=lrs, wds=wds, epsilon=self.epsilon, rescale_grad=self.rescale_grad,
                bias_correction=self.bias_correction, **self.options(), **limits,
            )  # fmt: skip

    def _descend_exactly(self, weight: Any, grad: Any, state: Any, age: int, lr: float, wd: float) -> None:
        """The same in float64; the kernels' float32 scalars would leave seven digits."""
        grad, (m, v), beta1, beta2 = grad * self.rescale_grad, state, self.beta1, self.beta2
        first, second = (1.0 - beta**age if self.bias_correction else 1.0 for beta in (beta1, beta2))
        if self.clip_gradient:
            grad = nd.clip(grad, -self.clip_gradient, self.clip_gradient)
        m[:] = beta1 * m + (1.0 - beta1) * grad
        v[:] = beta2 * v + (1.0 - beta2) * grad * grad
        weight *= 1.0 - lr * wd
        weight -= (lr / first) * m / (nd.sqrt(v / second) + self.epsilon)

    def _descend_alone(
        self, weight: Any, grad: Any, state: Any, age: int, lr: float, wd: float, limits: dict[str, float]
    ) -> None:
        """The same for one large layer, by the kernels that are fastest for it, with exact norms."""
        options = {"rescale_grad": self.rescale_grad, **self.options()}
        if limits is self.no_ratio:
            first = 1.0 - _float32(self.beta1) ** age if self.bias_correction else 1.0
            correction = math.sqrt(1.0 - _float32(self.beta2) ** age) if self.bias_correction else 1.0
            if wd:
                weight *= 1.0 - lr * wd
            rate, epsilon = lr * correction / first, self.epsilon * correction
            nd.adam_update(
                weight, grad, *state, out=weight, lr=rate, wd=0.0, epsilon=epsilon, lazy_update=False, **options
            )
            return
        turn = nd.lamb_update_phase1(
            weight, grad, *state, t=age, wd=wd, epsilon=self.epsilon, bias_correction=self.bias_correction, **options
        )
        norms = nd.sqrt(squares([weight, turn]))
        nd.lamb_update_phase2(weight, turn, norms[:1], norms[1:], out=weight, lr=lr, **limits)


@mx.optimizer.register
class GTLAMB(GTAdamW):
    """LAMB: Adam's direction, scaled for each layer to the norm of its weight; an exempt layer's ratio is 1.

    ``lower_bound`` and ``upper_bound`` limit the weight's norm in the ratio.
    """

    def __init__(
        self, learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6,
        lower_bound: float | None = None, upper_bound: float | None = None, bias_correction: bool = True,
        **kwargs: Any,
    ):  # fmt: skip
        super().__init__(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, **kwargs)
        self.bias_correction, self.lower_bound, self.upper_bound = bias_correction, lower_bound, upper_bound

    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        trusted = [p for p, index in enumerate(indices) if self.trusts(index)]
        exempt = [p for p, index in enumerate(indices) if not self.trusts(index)]
        given = {"lower_bound": self.lower_bound, "upper_bound": self.upper_bound}
        bounds = {name: bound for name, bound in given.items() if bound is not None}
        for places, limits in ((trusted, bounds), (exempt, self.no_ratio)):
            if places:
                numbers, ws, gs, ss = ([each[p] for p in places] for each in (indices, weights, grads, states))
                self.descend(numbers, ws, gs, ss, limits)


@mx.optimizer.register
class GTNovoGrad(_TwoMoments):
    """NovoGrad: the second moment is one number for each layer, and starts as the first gradient's square."""

    def __init__(self, beta1: float = 0.95, beta2: float = 0.98, epsilon: float = 1e-8, **kwargs: Any):
        super().__init__(beta1=beta1, beta2=beta2, epsilon=epsilon, **kwargs)

    def create_state(self, index: int, weight: Any) -> tuple[Any, Any]:
        return (nd.zeros_like(weight), nd.zeros((1,), ctx=weight.context))

    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        grads, rescale = self.clipped(grads)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        fresh = [self._index_update_count[index] == self.begin_num_update + 1 for index in indices]
        for ws, gs, ss, rates, decays, first in chunks(weights, grads, states, lrs, wds, fresh):
            self._descend(ws, gs, [s[0] for s in ss], [s[1] for s in ss], rates, decays, first, rescale)

    def _descend(
        self, ws: Any, gs: Any, ms: Any, vs: Any, lrs: Any, wds: Any, first: list[bool], rescale: float
    ) -> None:
        n = len(ws)
        norms = squares(gs) * rescale**2
        # multi_sgd_update computes y -= lr (x + wd y) for many arrays, which gives this rule's sums.
        share = [-1.0 if new else self.beta2 - 1.0 for new in first]
        subtract_all(vs, [norms[i : i + 1] for i in range(n)], share, [-1.0] * n)
        scale = 1.0 / (nd.sqrt(nd.concat(*vs, dim=0)) + self.epsilon)
        nd.preloaded_multi_sgd_update(
            *interleaved(ms, gs), -scale, -(1.0 - self.beta1) / scale, out=ms, num_weights=n, rescale_grad=rescale
        )
        if any(wds):
            subtract_all(ms, ws, [-wd for wd in wds], [0.0] * n)
        subtract_all(ws, ms, lrs, [0.0] * n)


#: The quintic a x + b x³ + c x⁵ of Jordan et al.: it moves singular values of 0.003 … 1 to about 1 in five steps.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_TINY = 1e-14  # a matrix of zeros stays zero
#: Steps between two computations of XXᵀ.
_ROUND = 3
#: Multiplications of one wide product from which steps on the Gram matrix, more and smaller ones, are cheaper.
_WORTH_THE_GRAM = 1 << 20
#: Values in one group of layers up to which memory stays allocated between two updates.
_WORTH_KEEPING = 1 << 20


def orthogonalized(F: Any, x: Any, count: int, rows: int, cols: int, steps: int) -> Any:
    r"""The nearest (semi-)orthogonal matrices, approximately: with singular values in about 0.7 … 1.2.

    Newton-Schulz steps :math:`X \leftarrow aX + b(XX^T)X + c(XX^T)^2X`, from :math:`X / \|X\|_F` on, of ``count``
    float32 matrices at once. NDArrays or symbols, which have no shape; ``F`` is the module of either. A matrix of zeros
    stays zero.
    """
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
    turned = orthogonalized(sym, ahead, count, *flat[1:], steps)
    parts = sym.split(turned, num_outputs=count, axis=0)
    found = sym.Group([sym.reshape(part, shape=shape) for part in (parts if count > 1 else [parts])])
    given = [variable.name for variable in (*grads, *moments, rescale, momentum)]
    order = [given.index(name) for name in found.list_inputs()]
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
        dtype = np.dtype(grads[0].dtype)
        factors = self.copied(f"factors, {dtype.name}", ctx, [rescale], [self.momentum], dtype=dtype)
        for ws, gs, ms, rates, decays in chunks(weights, grads, moments, lrs, wds):
            n = len(ws)
            subtract_all(ms, gs, [-1.0] * n, [self.momentum - 1.0] * n, factor=rescale)
            turned = _graph(n, shape, self.ns_steps)(*gs, *ms, *factors)
            subtract_all(ws, turned, rates, decays, factor=scale)
