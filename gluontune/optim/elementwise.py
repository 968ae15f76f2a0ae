"""Corrected versions of MXNet 1.9.1's DCASGD, FTML, AdaDelta, AdaMax and Nadam.

Their rules are in :mod:`gluontune.optim._formulas`, their hyper-parameters and what MXNet's get wrong on their cards.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gluontune.optim._base import TunedOptimizer, mx, nd
from gluontune.optim._formulas import FORMULAS
from gluontune.optim.cards import OPTIMIZERS


class _OneByOne(TunedOptimizer):
    """A rule of a few array operations on one parameter.

    Args:
        kwargs: the hyper-parameters of the optimizer's card, and those of ``mx.optimizer.Optimizer``.
    """

    name: ClassVar[str]
    #: Whether ``clip_gradient`` limits the gradient with decay added to it, as in MXNet's optimizer of the name.
    clips_decayed = False

    def __init__(self, **kwargs: Any):
        card, formula = OPTIMIZERS[self.name], FORMULAS[self.name]
        known = {**card.defaults, **({"momentum": 0.0} if card.momentum else {})}
        del known["clip_gradient"]  # MXNet's own
        self.options = {name: kwargs.pop(name, default) for name, default in known.items()}
        super().__init__(**{"learning_rate": card.learning_rate, **kwargs})
        self._rule, self._states, self._copies = formula

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


@mx.optimizer.register
class GTFTML(_OneByOne):
    """FTML: follow the moving leader. Zheng & Kwok, ICML 2017."""

    name, clips_decayed = "ftml", True


@mx.optimizer.register
class GTAdaDelta(_OneByOne):
    """AdaDelta, with a rate; the paper's rule has a rate of 1. Zeiler, arXiv:1212.5701."""

    name = "adadelta"


@mx.optimizer.register
class GTAdaMax(_OneByOne):
    """Adam with the largest recent gradient as denominator. Kingma & Ba, arXiv:1412.6980, section 7."""

    name, clips_decayed = "adamax", True


@mx.optimizer.register
class GTNadam(_OneByOne):
    """Adam with Nesterov momentum and its warm-up, by the number of updates. Dozat, ICLR workshop 2016."""

    name, clips_decayed = "nadam", True
