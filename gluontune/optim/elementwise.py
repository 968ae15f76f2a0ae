"""Corrected versions of MXNet 1.9.1's DCASGD, FTML, AdaDelta, AdaMax and Nadam."""

from __future__ import annotations

import abc
from typing import Any

from gluontune.optim._base import TunedOptimizer, mx, nd


class _OneByOne(TunedOptimizer):
    """A rule of a few array operations on one parameter."""

    #: Arrays of the weight's shape in the state.
    arrays = 2
    #: Whether ``clip_gradient`` limits the gradient with decay added to it, as in MXNet's optimizer of the name.
    clips_decayed = False

    def create_state(self, index: int, weight: Any) -> tuple[Any, ...]:
        return tuple(nd.zeros_like(weight) for _ in range(self.arrays))

    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        limit = self.clip_gradient if self.clips_decayed else None
        grads, rescale = (grads, self.rescale_grad) if limit else self.clipped(grads)
        lists = (indices, weights, grads, states, self._get_lrs(indices), self._get_wds(indices))
        for index, w, g, state, lr, wd in zip(*lists):
            age = self._index_update_count[index]
            g = g if rescale == 1.0 else g * rescale
            if limit:
                g, wd = nd.clip(g + wd * w, -limit, limit), 0.0
            self.rule(w, g, state, lr, wd, age)

    @abc.abstractmethod
    def rule(self, w: Any, g: Any, state: Any, lr: float, wd: float, age: int) -> None:
        """Update ``w`` and ``state`` in place from the averaged, clipped gradient ``g``."""


@mx.optimizer.register
class GTDCASGD(_OneByOne):
    r"""SGD with compensation for delayed gradients.

    m = momentum m - lr (g + wd w + lamda g² (w - w')), w += m, where w' is the weight before the last update. Zheng et
    al., arXiv:1609.08326. MXNet's ``DCASGD`` raises with momentum, because it takes an array as a truth value.

    Args:
        momentum: in [0, 1).
        lamda: weight of the compensation.
    """

    def __init__(self, momentum: float = 0.0, lamda: float = 0.04, **kwargs: Any):
        super().__init__(**kwargs)
        self.momentum, self.lamda = momentum, lamda

    def create_state(self, index: int, weight: Any) -> tuple[Any, Any]:
        return (nd.zeros_like(weight), weight.copy())

    def rule(self, w: Any, g: Any, state: Any, lr: float, wd: float, age: int) -> None:
        m, before = state
        step = g + self.lamda * g * g * (w - before)
        if wd:
            step = step + wd * w
        m[:] = self.momentum * m - lr * step
        before[:] = w
        w += m


@mx.optimizer.register
class GTFTML(_OneByOne):
    """FTML: follow the moving leader. Zheng & Kwok, ICML 2017.

    v = b2 v + (1-b2) g²; d = (1-b1^t)/lr (√(v/(1-b2^t)) + epsilon); z = b1 z + (1-b1) g - (d - b1 d') w; w = -z/d, with
    wd w added to g. As each weight is -z'/d' of the step before, this is w -= (1-b1) g/d, which needs neither d nor z,
    and allows a rate of 0. MXNet's form subtracts large numbers from each other, and returns NaN at that rate.

    Args:
        beta1, beta2, epsilon: the paper's 0.6, 0.999, 1e-8.
    """

    arrays = 1
    clips_decayed = True

    def __init__(self, beta1: float = 0.6, beta2: float = 0.999, epsilon: float = 1e-8, **kwargs: Any):
        super().__init__(**kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def rule(self, w: Any, g: Any, state: Any, lr: float, wd: float, age: int) -> None:
        (v,) = state
        g = g + wd * w if wd else g
        v[:] = self.beta2 * v + (1 - self.beta2) * g * g
        scale = (v / (1 - self.beta2**age)).sqrt() + self.epsilon
        w -= lr * (1 - self.beta1) / (1 - self.beta1**age) * (g / scale)


@mx.optimizer.register
class GTAdaDelta(_OneByOne):
    """AdaDelta, with a rate. Zeiler, arXiv:1212.5701.

    a = rho a + (1-rho) g²; step = √(b + epsilon)/√(a + epsilon) g; b = rho b + (1-rho) step²; w -= lr step, with wd w
    added to g. MXNet's ``AdaDelta`` ignores the rate and every schedule, decays separately by wd, and overwrites
    Gluon's gradient.

    Args:
        rho, epsilon: 0.9 and 1e-5.
        kwargs: of ``mx.optimizer.Optimizer``; the paper's rule is ``learning_rate=1``.
    """

    def __init__(self, rho: float = 0.9, epsilon: float = 1e-5, learning_rate: float = 1.0, **kwargs: Any):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.rho, self.epsilon = rho, epsilon

    def rule(self, w: Any, g: Any, state: Any, lr: float, wd: float, age: int) -> None:
        squares, steps = state
        g = g + wd * w if wd else g
        squares[:] = self.rho * squares + (1 - self.rho) * g * g
        step = (steps + self.epsilon).sqrt() / (squares + self.epsilon).sqrt() * g
        steps[:] = self.rho * steps + (1 - self.rho) * step * step
        w -= lr * step


@mx.optimizer.register
class GTAdaMax(_OneByOne):
    """AdaMax: Adam with the largest recent gradient as denominator. Kingma & Ba, arXiv:1412.6980, section 7.

    m = b1 m + (1-b1) g; u = max(b2 u, |g|); w -= lr / (1-b1^t) m / (u + epsilon), with wd w added to g.
    MXNet's has no epsilon: a weight whose first gradient is 0 (behind a dead ReLU) becomes NaN.

    Args:
        beta1, beta2, epsilon: 0.9, 0.999, 1e-8.
    """

    clips_decayed = True

    def __init__(
        self, learning_rate: float = 0.002, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
        **kwargs: Any,
    ):  # fmt: skip
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def rule(self, w: Any, g: Any, state: Any, lr: float, wd: float, age: int) -> None:
        m, u = state
        g = g + wd * w if wd else g
        m[:] = self.beta1 * m + (1 - self.beta1) * g
        nd.maximum(self.beta2 * u, nd.abs(g)).copyto(u)
        w -= (lr / (1 - self.beta1**age)) * m / (u + self.epsilon)


@mx.optimizer.register
class GTNadam(_OneByOne):
    """Nadam: Adam with Nesterov momentum and its warm-up. Dozat, ICLR workshop 2016.

    MXNet's multiplies its momentum product once for each *parameter*, so that the rule depends on the number of layers
    and replicas drift apart; here the product follows the number of updates.

    Args:
        beta1, beta2, epsilon: of Adam.
        schedule_decay: of the momentum's warm-up, 0.004.
    """

    clips_decayed = True

    def __init__(
        self, learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
        schedule_decay: float = 0.004, **kwargs: Any,
    ):  # fmt: skip
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon, self.schedule_decay = beta1, beta2, epsilon, schedule_decay
        self._products = [1.0]

    def _momentum(self, age: int) -> float:
        return self.beta1 * (1 - 0.5 * 0.96 ** (age * self.schedule_decay))

    def _product(self, age: int) -> float:
        while len(self._products) <= age:
            self._products.append(self._products[-1] * self._momentum(len(self._products)))
        return self._products[age]

    def rule(self, w: Any, g: Any, state: Any, lr: float, wd: float, age: int) -> None:
        m, v = state
        g = g + wd * w if wd else g
        now, following = self._momentum(age), self._momentum(age + 1)
        m[:] = self.beta1 * m + (1 - self.beta1) * g
        v[:] = self.beta2 * v + (1 - self.beta2) * g * g
        ahead = (1 - now) / (1 - self._product(age)) * g
        ahead = ahead + following / (1 - self._product(age + 1)) * m
        w -= lr * ahead / ((v / (1 - self.beta2**age)).sqrt() + self.epsilon)
