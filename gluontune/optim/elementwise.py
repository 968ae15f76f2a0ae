"""Corrected versions of MXNet 1.9.1's DCASGD, FTML, AdaDelta, AdaMax and Nadam.

Their rules are in :mod:`gluontune.optim._formulas`, their hyper-parameters and what MXNet's get wrong on their cards.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gluontune.optim._base import TunedOptimizer, mx, nd
from gluontune.optim._formulas import FORMULAS


class _OneByOne(TunedOptimizer):
    """A rule of a few array operations on one parameter.

    Args:
        options: the rule's. kwargs: of ``mx.optimizer.Optimizer``.
    """

    name: ClassVar[str]
    #: Whether ``clip_gradient`` limits the gradient with decay added to it, as in MXNet's optimizer of the name.
    clips_decayed = False

    def __init__(self, options: dict[str, float], **kwargs: Any):
        super().__init__(**kwargs)
        self.options = options
        self.__dict__.update(options)  # by MXNet's names, too
        self._rule, self._states, self._copies = FORMULAS[self.name]

    def create_state(self, index: int, weight: Any) -> tuple[Any, ...]:
        return tuple(weight.copy() if name in self._copies else nd.zeros_like(weight) for name in self._states)

    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        limit = self.clip_gradient if self.clips_decayed else None
        grads, rescale = (grads, self.rescale_grad) if limit else self.clipped(grads)
        lists = (indices, weights, grads, states, self._get_lrs(indices), self._get_wds(indices))
        for index, w, g, state, lr, wd in zip(*lists):
            g = g if rescale == 1.0 else g * rescale
            if limit:
                g, wd = nd.clip(g + wd * w, -limit, limit), 0.0
            self._rule(nd, w, g, state, lr, wd, self._index_update_count[index], self.options)


@mx.optimizer.register
class GTDCASGD(_OneByOne):
    """SGD with compensation for delayed gradients. Zheng et al., arXiv:1609.08326."""

    name = "dcasgd"

    def __init__(self, momentum: float = 0.0, lamda: float = 0.04, **kwargs: Any):
        super().__init__({"momentum": momentum, "lamda": lamda}, **kwargs)


@mx.optimizer.register
class GTFTML(_OneByOne):
    """FTML: follow the moving leader. Zheng & Kwok, ICML 2017."""

    name, clips_decayed = "ftml", True

    def __init__(self, beta1: float = 0.6, beta2: float = 0.999, epsilon: float = 1e-8, **kwargs: Any):
        super().__init__({"beta1": beta1, "beta2": beta2, "epsilon": epsilon}, **kwargs)


@mx.optimizer.register
class GTAdaDelta(_OneByOne):
    """AdaDelta, with a rate; the paper's rule has a rate of 1. Zeiler, arXiv:1212.5701."""

    name = "adadelta"

    def __init__(self, rho: float = 0.9, epsilon: float = 1e-5, learning_rate: float = 1.0, **kwargs: Any):
        super().__init__({"rho": rho, "epsilon": epsilon}, learning_rate=learning_rate, **kwargs)


@mx.optimizer.register
class GTAdaMax(_OneByOne):
    """Adam with the largest recent gradient as denominator. Kingma & Ba, arXiv:1412.6980, section 7."""

    name, clips_decayed = "adamax", True

    def __init__(
        self, learning_rate: float = 0.002, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
        **kwargs: Any,
    ):  # fmt: skip
        options = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        super().__init__(options, learning_rate=learning_rate, **kwargs)


@mx.optimizer.register
class GTNadam(_OneByOne):
    """Adam with Nesterov momentum and its warm-up, by the number of updates. Dozat, ICLR workshop 2016."""

    name, clips_decayed = "nadam", True

    def __init__(
        self, learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
        schedule_decay: float = 0.004, **kwargs: Any,
    ):  # fmt: skip
        options = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "schedule_decay": schedule_decay}
        super().__init__(options, learning_rate=learning_rate, **kwargs)
