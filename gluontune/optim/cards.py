"""The registry of optimizers: one card each, the one place where an optimizer is added.

Nothing here imports mxnet. The cards make the command line's choices, the documentation's table and the
parameters of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gluontune.registry import Registry

__all__ = ["OPTIMIZERS", "OptimizerCard", "list_optimizers"]


@dataclass(frozen=True)
class OptimizerCard:
    """What one should know before choosing an optimizer.

    Args:
        name: the name in :data:`OPTIMIZERS`.
        path: ``module:class``; ``mxnet.optimizer`` where MXNet's own is right.
        rule: the update, in words of w (weight), g (averaged gradient), m, v (states), lr, wd.
        source: the paper.
        learning_rate: a rate to start from.
        defaults: the other hyper-parameters that ``setup`` takes for it, with their defaults.
        defaults_from: where they come from.
        states: float32 arrays that it keeps for each parameter, masters of float16 weights not counted.
        momentum: whether ``setup``'s ``momentum`` applies.
        lr_scaling: the rule that suits it.
        when, when_not: when to use it and when not.
        instead_of: what is wrong with MXNet 1.9.1's, if it has one and this is not it.
    """

    name: str
    path: str
    rule: str
    source: str
    learning_rate: float
    defaults: Mapping[str, Any] = field(default_factory=dict)
    defaults_from: str = "MXNet 1.9.1"
    states: float = 1
    momentum: bool = False
    lr_scaling: str = "linear"
    when: str = ""
    when_not: str = ""
    instead_of: str = ""

    @property
    def bytes_per_parameter(self) -> float:
        """Memory of the states for one float32 weight."""
        return 4.0 * self.states


OPTIMIZERS: Registry[OptimizerCard] = Registry("optimizer")


def _add(name: str, path: str, rule: str, source: str, learning_rate: float, **more: Any) -> None:
    OPTIMIZERS.add(name, OptimizerCard(name, path, rule, source, learning_rate, **more))


def list_optimizers() -> list[str]:
    """Names of all optimizers that ``gt.optim.setup`` knows.

    >>> "nag" in list_optimizers()
    True
    """
    return OPTIMIZERS.names()


_add(
    "sgd", "mxnet.optimizer:SGD", "m = momentum m - lr (g + wd w); w += m",
    "Robbins & Monro 1951; Polyak 1964", 0.1, defaults={"clip_gradient": None}, momentum=True,
    when="The baseline: whatever else you try has to beat it.",
    when_not="Sparse or badly scaled gradients (embeddings, transformers): adamw.",
)  # fmt: skip
_add(
    "nag", "mxnet.optimizer:NAG", "m = momentum m - lr (g + wd w); w += momentum m - lr (g + wd w)",
    "Nesterov 1983; Sutskever et al., ICML 2013", 0.1, defaults={"clip_gradient": None}, momentum=True,
    when="The default for convolutional nets; a little better than sgd at the same cost.",
    when_not="Momentum near 1 with noisy small batches.",
)  # fmt: skip
_add(
    "signum", "mxnet.optimizer:Signum", "m = momentum m - (1 - momentum)(g + wd w); w = (1 - lr wd_lh) w + lr sign(m)",
    "Bernstein et al., arXiv:1802.04434", 1e-3, defaults={"wd_lh": 0.0, "clip_gradient": None}, momentum=True,
    lr_scaling="sqrt",
    when="With compressed gradients, where only signs travel.",
    when_not="For accuracy alone: each weight moves by lr at each update, so it needs a decaying rate.",
)  # fmt: skip
_add(
    "ftml", "mxnet.optimizer:FTML",
    "v = b2 v + (1-b2) g²; d = (1-b1^t)/lr (√(v/(1-b2^t)) + eps); z = b1 z + (1-b1) g - (d - b1 d') w; w = -z/d",
    "Zheng & Kwok, ICML 2017", 0.0025,
    defaults={"beta1": 0.6, "beta2": 0.999, "epsilon": 1e-8, "clip_gradient": None}, states=3, lr_scaling="sqrt",
    when="As adam, where the best solution moves during training.",
    when_not="With a rate that reaches 0 (the rule divides by it) or where memory is short.",
)  # fmt: skip
_add(
    "adagrad", "mxnet.optimizer:AdaGrad", "v += g²; w -= lr (g / √(v + eps) + wd w)",
    "Duchi, Hazan & Singer, JMLR 2011", 0.01, defaults={"eps": 1e-7, "clip_gradient": None}, lr_scaling="sqrt",
    when="Sparse features: rare ones keep a high rate.",
    when_not="Long runs: the sum only grows, so the rate dies out.",
)  # fmt: skip
_add(
    "rmsprop", "mxnet.optimizer:RMSProp", "v = gamma1 v + (1-gamma1) g²; w -= lr g / √(v + eps), g with wd w added",
    "Tieleman & Hinton 2012; centered: Graves, arXiv:1308.0850", 0.001,
    defaults={"gamma1": 0.9, "gamma2": 0.9, "epsilon": 1e-8, "centered": False, "clip_weights": None,
              "clip_gradient": None},
    lr_scaling="sqrt",
    when="Recurrent nets and reinforcement learning, by tradition.",
    when_not="Where adam works: it has the same memory of scales and a bias correction too.",
)  # fmt: skip
_add(
    "adam", "mxnet.optimizer:Adam",
    "m = b1 m + (1-b1) g; v = b2 v + (1-b2) g²; w -= lr √(1-b2^t)/(1-b1^t) m / (√v + eps), g with wd w added",
    "Kingma & Ba, arXiv:1412.6980", 0.001,
    defaults={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "clip_gradient": None}, states=2, lr_scaling="sqrt",
    when="A first try on a new problem: it forgives a wrong rate.",
    when_not="With weight decay (the adaptive denominators undo it: adamw); for the last point of accuracy.",
)  # fmt: skip
