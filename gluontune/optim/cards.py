"""The registry of optimizers, with one card each, exempt parameters, a recipe's rates; imports no mxnet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gluontune.core.errors import UsageError, did_you_mean
from gluontune.optim._formulas import FORMULAS
from gluontune.optim.schedules import Schedule, build, stretch
from gluontune.recipe import Recipe
from gluontune.recipe.registry import Parameter, Registry
from gluontune.recipe.rules import LR_SCALING

# Exempt from weight decay and trust ratios. MXNet decides by name, but ``gluon.Trainer`` gives the optimizer no names:
# its LARS then scales biases and gammas like weights, and decay applies to all of them. Here the parameters decide, and
# the result is written for each path: ``Parameter.wd_mult`` (local updates) and the optimizer's ``idx2name`` and
# ``wd_mult`` (updates on a server, which gets no parameters).
EXEMPT_SUFFIXES = ("bias", "gamma", "beta")


def exempt_name(name: str) -> bool:
    """Whether a name is Gluon's for a bias, gamma or beta.

    >>> exempt_name("resnetv10_batchnorm0_gamma"), exempt_name("lstm0_l0_i2h_bias"), exempt_name("dense0_weight")
    (True, True, False)
    """
    return name.endswith(EXEMPT_SUFFIXES)


def is_exempt(param: Any) -> bool:
    """Whether a ``gluon.Parameter`` is a bias, gamma or beta, or any other vector or scalar.

    Decay moves scales and offsets away from their normalization, and the trust ratio of a vector that starts at zero
    is meaningless (Goyal et al., arXiv:1706.02677; You et al., arXiv:1708.03888).

    Args:
        param: decided by its name and shape.

    >>> from gluontune.runtime import mxnet
    >>> net = mxnet().gluon.nn.Dense(4, in_units=3)
    >>> [is_exempt(p) for p in (net.weight, net.bias)]
    [False, True]
    """
    return exempt_name(param.name) or (param.shape is not None and len(param.shape) <= 1)


def scaled_learning_rate(
    learning_rate: float, *, global_batch_size: int, base_batch_size: int | None = None, rule: str = "linear"
) -> float:
    """The rate for ``global_batch_size``, from a rate for ``base_batch_size``.

    ``linear`` is the rule of Goyal et al. (arXiv:1706.02677), ``sqrt`` that of Krizhevsky (arXiv:1404.5997), which
    preserves the variance of the step. ``sqrt`` fits adaptive optimizers.

    Args:
        learning_rate: above 0.
        global_batch_size: samples in one update, over all devices and workers.
        base_batch_size: the batch of ``learning_rate``; None: this batch.
        rule: ``linear``, ``sqrt`` or ``none``.

    Raises:
        UsageError: a rate or batch that is not above 0, or another rule.

    >>> scaled_learning_rate(0.1, global_batch_size=1024, base_batch_size=256)
    0.4
    >>> scaled_learning_rate(0.1, global_batch_size=1024, base_batch_size=256, rule="sqrt")
    0.2
    """
    if rule not in LR_SCALING:
        raise UsageError(f"lr_scaling={rule!r}: choose one of {', '.join(LR_SCALING)}")
    if not (isinstance(learning_rate, (int, float)) and math.isfinite(learning_rate) and learning_rate >= 0):
        raise UsageError(f"learning_rate={learning_rate!r}: give a finite number of at least 0")
    for name, size in (("global_batch_size", global_batch_size), ("base_batch_size", base_batch_size)):
        if size is not None and not size > 0:
            raise UsageError(f"{name}={size!r}: give a number of samples above 0")
    return learning_rate * LR_SCALING[rule](global_batch_size / (base_batch_size or global_batch_size))


def warmup_mode(options: Mapping[str, Any], usual: str = "linear") -> str:
    """The course of the warm-up before a schedule: that of lbsgd's ``warmup_strategy``, where it has one."""
    strategy = str(options.get("warmup_strategy", ""))
    return strategy if strategy in ("power2", "sqrt") else usual


def rates_of(
    recipe: Recipe, *, steps: int, steps_per_epoch: int, growth: Sequence[tuple[float, float]] = ()
) -> Schedule:
    """The schedule of a recipe, ``num_update -> lr``; arguments as of :func:`gt.optim.setup_recipe`."""
    recipe = recipe.resolved()
    updates = max(1, steps // recipe.accumulate)
    warmup = round(recipe.warmup_epochs * steps_per_epoch / recipe.accumulate)
    rates = build(
        recipe.schedule, base_lr=recipe.scaled_learning_rate, total_updates=updates,
        warmup_updates=min(warmup, updates - 1), warmup_mode=warmup_mode(recipe.optimizer_params),
        **{"updates_per_epoch": steps_per_epoch / recipe.accumulate, **recipe.schedule_params},
    )  # fmt: skip
    return stretch(rates, growth=growth) if growth else rates


#: Decay factors: at least 0 and below 1.
_SHARES = ("beta", "beta1", "beta2", "gamma1", "gamma2", "rho", "rest_momentum")
_CHOICES = {"warmup_strategy": ("linear", "power2", "sqrt", "lars"), "rest": ("adamw", "nag")}


@dataclass(frozen=True)
class OptimizerCard:
    """A description of an optimizer.

    Args:
        name: the name in :data:`OPTIMIZERS`.
        path: ``module:class``; in ``mxnet.optimizer`` if MXNet's is right.
        rule: the update, in words of w (weight), g (averaged gradient), m, v (states), lr, wd.
        source: the paper.
        learning_rate: a rate to start from, the peak of a schedule; for updates of ``base_batch_size`` samples.
        wd: the decay to start from.
        defaults: the other hyper-parameters of ``setup`` for it, with their defaults.
        defaults_from: their source.
        states: float32 arrays for each parameter, without masters of float16 weights.
        momentum: whether ``setup``'s ``momentum`` applies.
        lr_scaling: the rule that fits it.
        needs_masters: float16 weights need ``multi_precision=True``, because its states are float32.
        needs_shapes: its rule depends on shapes, which a parameter server forgets.
        when, when_not: when to use it and when not.
        instead_of: the fault of MXNet 1.9.1's, if this is another one.
    """

    name: str
    path: str
    rule: str
    source: str
    learning_rate: float
    base_batch_size: int = 64
    wd: float = 5e-4
    defaults: Mapping[str, Any] = field(default_factory=dict)
    defaults_from: str = "MXNet 1.9.1"
    states: float = 1
    momentum: bool = False
    lr_scaling: str = "linear"
    needs_masters: bool = False
    needs_shapes: bool = False
    when: str = ""
    when_not: str = ""
    instead_of: str = ""

    def check(self, params: Mapping[str, Any]) -> None:
        """Refuse unknown parameters and values out of range.

        Raises:
            UsageError: names the parameter, the value and the way out.

        >>> OPTIMIZERS["lars"].check({"trust_coefficient": "high"})
        Traceback (most recent call last):
        gluontune.errors.UsageError: optimizer 'lars': trust_coefficient='high': give a number of at least 0
        """
        for name, value in params.items():
            if name not in self.defaults:
                hint = did_you_mean(name, self.defaults)
                raise UsageError(f"optimizer {self.name!r} has no parameter {name!r}: {hint and hint + ' '}It has: "
                                 f"{', '.join(self.defaults) or 'none'}")  # fmt: skip
            spec = _parameter(name, self.defaults[name])
            whole = isinstance(value, float) and value.is_integer() and spec.kind is int
            fault = spec.fault(int(value) if whole else value)
            if fault:
                none = " or none" if spec.optional else ""
                raise UsageError(f"optimizer {self.name!r}: {name}={value!r}: give {fault}{none}")


def _parameter(name: str, default: Any) -> Parameter:
    """The allowed values of a parameter with this name and default."""
    if name in _CHOICES:
        return Parameter(choices=_CHOICES[name])
    if isinstance(default, bool):
        return Parameter(bool)
    if name in _SHARES:
        return Parameter(low=0, below=1)
    return Parameter(int, 1) if isinstance(default, int) else Parameter(low=0, optional=default is None)


OPTIMIZERS: Registry[OptimizerCard] = Registry("optimizer")


def _add(name: str, path: str, rule: str, source: str, learning_rate: float, **more: Any) -> None:
    OPTIMIZERS.add(name, OptimizerCard(name, path, rule, source, learning_rate, **more))


def list_optimizers() -> list[str]:
    """Names of all optimizers of ``gt.optim.setup``.

    >>> "nag" in list_optimizers()
    True
    """
    return OPTIMIZERS.names()


# fmt: off

_add("sgd", "mxnet.optimizer:SGD", "m = momentum m - lr (g + wd w); w += m",
    "Robbins & Monro 1951; Polyak 1964", 0.1, defaults={"clip_gradient": None}, momentum=True,
    when="The baseline: whatever else you try has to beat it.",
    when_not="Sparse or badly scaled gradients (embeddings, transformers): adamw.")
_add("nag", "gluontune.optim.momentum:GTNAG", "m = momentum m - lr (g + wd w); w += momentum m - lr (g + wd w)",
    "Nesterov 1983; Sutskever et al., ICML 2013", 0.2, defaults={"clip_gradient": None}, momentum=True,
    when="The default for convolutional nets; a little better than sgd at the same cost.",
    when_not="Momentum near 1 with noisy small batches.",
    instead_of="MXNet's decays the momentum by the new weight instead of the old one (its kernel runs in place).")
_add("signum", "mxnet.optimizer:Signum",
    "m = momentum m - (1 - momentum)(g + wd w); w = (1 - lr wd_lh) w + lr sign(m)",
    "Bernstein et al., arXiv:1802.04434", 1e-3, defaults={"wd_lh": 0.0, "clip_gradient": None}, momentum=True,
    lr_scaling="sqrt",
    when="With compressed gradients, where only signs travel.",
    when_not="For accuracy alone: each weight moves by lr at each update, so it needs a decaying rate.")
_add("adagrad", "mxnet.optimizer:AdaGrad", "v += g²; w -= lr (g / √(v + eps) + wd w)",
    "Duchi, Hazan & Singer, JMLR 2011", 0.01, defaults={"eps": 1e-7, "clip_gradient": None}, needs_masters=True,
    lr_scaling="sqrt",
    when="Sparse features: rare ones keep a high rate.",
    when_not="Long runs: the sum only grows, so the rate dies out.")
_add("rmsprop", "mxnet.optimizer:RMSProp", "v = gamma1 v + (1-gamma1) g²; w -= lr g / √(v + eps), g with wd w added",
    "Tieleman & Hinton 2012; centered: Graves, arXiv:1308.0850", 0.001,
    defaults={"gamma1": 0.9, "gamma2": 0.9, "epsilon": 1e-8, "centered": False, "clip_weights": None,
              "clip_gradient": None},
    needs_masters=True,
    lr_scaling="sqrt",
    when="Recurrent nets and reinforcement learning, by tradition.",
    when_not="Where adam works: it has the same memory of scales and a bias correction too.")
_add("adam", "gluontune.optim.layerwise:GTAdam",
    "m = b1 m + (1-b1) g; v = b2 v + (1-b2) g²; w -= lr √(1-b2^t)/(1-b1^t) m / (√v + eps), g with wd w added",
    "Kingma & Ba, arXiv:1412.6980", 0.001,
    defaults={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "clip_gradient": None}, states=2, lr_scaling="sqrt",
    when="A first try on a new problem: it forgives a wrong rate.",
    when_not="With weight decay (the adaptive denominators undo it: adamw); for the last point of accuracy.",
    instead_of="MXNet's, with the bias correction of the float32 betas that its kernel uses (1e-6 off otherwise).")
_add("lbsgd", "gluontune.optim.momentum:GTLBSGD",
    "g = mean of batch_scale micro-gradients; then sgd, with warm-up; warmup_strategy='lars': with trust ratios",
    "Goyal et al., arXiv:1706.02677; You et al., arXiv:1708.03888", 0.1,
    defaults={"batch_scale": 1, "warmup_strategy": "linear", "trust_coefficient": 0.001, "clip_gradient": None},
    momentum=True,
    when="A batch that does not fit in memory at once, with the warm-up that large batches need.",
    when_not="Batches that fit: sgd or nag with warmup_updates is the same and faster.",
    instead_of="MXNet's aliases the gradient buffer, multiplies the rate by batch_scale, drifts on two contexts.")
_add("lars", "gluontune.optim.momentum:GTLARS",
    "r = trust_coefficient |w| / (|g| + wd |w| + eps); m = momentum m - lr r (g + wd w); w += m",
    "You, Gitman & Ginsburg, arXiv:1708.03888", 10.0, base_batch_size=1024,
    defaults={"trust_coefficient": 0.001, "eps": 0.0, "clip_gradient": None}, momentum=True,
    when="Batches of thousands, with warm-up and poly decay; the rate is of the order of 1 to 30.",
    when_not="Batches below about 1,000: nag is as good and has one number less to tune.",
    instead_of="MXNet's exempts nothing under gluon.Trainer and corrects momentum in its first four layers only.")
_add("larc", "gluontune.optim.momentum:GTLARC",
    "r = min(trust_coefficient |w| / (|g| + wd |w| + eps), lr); m = momentum m - r (g + wd w); w += m",
    "NVIDIA Apex; You, Gitman & Ginsburg, arXiv:1708.03888", 0.1,
    defaults={"trust_coefficient": 0.02, "eps": 1e-8, "clip_gradient": None}, momentum=True,
    when="A large batch with the rate of sgd: the ratio only brakes, so there is little to tune.",
    when_not="When the ratio never brakes (plot it): then it is sgd at a higher price.")
_add("lamb", "gluontune.optim.layerwise:GTLAMB",
    "r = m̂ / (√v̂ + eps) + wd w; w -= lr |w|/|r| r", "You et al., arXiv:1904.00962", 0.002, wd=0.01,
    defaults={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "lower_bound": None, "upper_bound": None,
              "clip_gradient": None},
    states=2, lr_scaling="sqrt",
    when="Large batches of nets that want adam (transformers).",
    when_not="Small batches: adamw.",
    instead_of="MXNet's scales biases, gammas and betas by their trust ratio too.")
# MXNet's names of LAMB's kernel for many layers
OPTIMIZERS.alias("multilamb", "lamb")
OPTIMIZERS.alias("multi_lamb", "lamb")
_add("novograd", "gluontune.optim.layerwise:GTNovoGrad",
    "v = b2 v + (1-b2) |g|² (one number a layer); m = b1 m + g/(√v + eps) + wd w; w -= lr m",
    "Ginsburg et al., arXiv:1905.11286", 0.01, wd=0.001,
    defaults={"beta1": 0.95, "beta2": 0.98, "epsilon": 1e-8, "clip_gradient": None}, defaults_from="the paper",
    lr_scaling="sqrt",
    when="adam's robustness with sgd's memory; large batches.",
    when_not="Layers whose weights want different scales within one layer (embeddings).")
_add("adamw", "gluontune.optim.layerwise:GTAdamW", "w -= lr (m̂ / (√v̂ + eps) + wd w)",
    "Loshchilov & Hutter, arXiv:1711.05101", 0.001, wd=0.01,
    defaults={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "clip_gradient": None}, defaults_from="the paper",
    states=2, lr_scaling="sqrt",
    when="The default wherever adam is used and weights decay; wd of 0.01 to 0.1.",
    when_not="Convolutional nets on images, where nag with decay generalizes better.",
    instead_of="MXNet's is in contrib only, with a correction of its own and a wait at each step.")
_add("muon", "gluontune.optim.layerwise:GTMuon",
    "m = momentum m + g; w -= lr (0.2 √max(rows, cols) O(g + momentum m) + wd w), O making matrices orthogonal; "
    "biases, gammas and betas: adamw; with fixed_norm w = √rows w/|w|, then w -= lr O(g + momentum m)",
    "Jordan et al. 2024; Liu et al., arXiv:2502.16982", 0.02, wd=0.1,
    defaults={
        "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "rest": "adamw", "rest_momentum": 0.85, "ns_steps": 5,
        "fixed_norm": False, "filters_only": False, "clip_gradient": None,
    }, defaults_from="the papers",
    momentum=True, needs_masters=True, needs_shapes=True, lr_scaling="sqrt",
    when="Large batches, whose few updates must each count; wd of 0.01 to 0.1.",
    when_not="Small batches of small nets, where its matrix products cost more than the step; depthwise layers.")
_add("yellowfin", "gluontune.optim.elementwise:GTYellowFin",
    "m = mu m - alpha (g + wd w); w += lr m, with mu and alpha measured from the gradients",
    "Zhang & Mitliagkas, arXiv:1706.03471", 1.0,
    defaults={"beta": 0.999, "initial_rate": 0.1, "clip_gradient": None}, defaults_from="the paper", states=2,
    lr_scaling="none",
    when="When nothing may be tuned: learning_rate is only a factor on its own rate.",
    when_not="Runs of fewer than some thousand updates at the default beta, and sparse gradients (a layer "
    "without gradient has curvature 0).")
for _name, _formula in FORMULAS.items():
    _rule = (_formula.rule.__doc__ or "").partition("\n")[0].rstrip(".")
    _add(_name, f"gluontune.optim.elementwise:GT{_formula.kind}", _rule, states=len(_formula.states), **_formula.card)
