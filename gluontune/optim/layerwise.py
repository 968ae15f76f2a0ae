"""Adaptive optimizers with kernels for many layers at once: AdamW, LAMB, NovoGrad.

The rules, their sources and parameters are on the optimizers' cards.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from gluontune.optim._base import TunedOptimizer, chunks, interleaved, is_large, mx, nd, squares, subtract_all


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
