"""The optimizers' rules for PyTorch's tensors, with the states and exemptions of the MXNet side.

PyTorch's optimizers of the same names apply the rate, the decay and the bias corrections elsewhere, so that a schedule
or a decay would have another effect. One test compares both sides with the same numpy references.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Callable

from gluontune.recipe.registry import Registry
from gluontune.runtime.pytorch import torch

State = dict[str, Any]
TINY = 1e-14  # a matrix of zeros stays zero
#: By an optimizer's name, ``rule(state, w, g, lr, wd, t, options, trusted)``: changes ``w`` and ``state`` in place.
TORCH_RULES: Registry[Callable[..., None]] = Registry("optimizer of the torch backend")


def kept(state: State, name: str, like: Any) -> Any:
    """The array ``name`` of a parameter's state; zeros before the first update."""
    if name not in state:
        state[name] = torch().zeros_like(like)
    return state[name]


def _decayed(g: Any, w: Any, wd: float) -> Any:
    return g.add(w, alpha=wd) if wd else g


@TORCH_RULES.register("sgd")
@TORCH_RULES.register("lbsgd")
def _sgd(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    g = _decayed(g, w, wd)
    if not o["momentum"]:
        w.sub_(g, alpha=lr)
        return
    w.add_(kept(s, "m", w).mul_(o["momentum"]).sub_(g, alpha=lr))


@TORCH_RULES.register("nag")
def _nag(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    g = _decayed(g, w, wd)
    if o["momentum"]:
        w.add_(kept(s, "m", w).mul_(o["momentum"]).sub_(g, alpha=lr), alpha=o["momentum"])
    w.sub_(g, alpha=lr)


@TORCH_RULES.register("dcasgd")
def _dcasgd(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    before = s.setdefault("before", w.clone())
    step = _decayed(g + o["lamda"] * g * g * (w - before), w, wd)
    before.copy_(w)
    w.add_(kept(s, "m", w).mul_(o["momentum"]).sub_(step, alpha=lr))


@TORCH_RULES.register("signum")
def _signum(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    m = kept(s, "m", w).mul_(o["momentum"]).add_(_decayed(g, w, wd), alpha=1 - o["momentum"])
    w.mul_(1 - lr * o["wd_lh"]).sub_(m.sign(), alpha=lr)


@TORCH_RULES.register("ftml")
def _ftml(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    g = _decayed(g, w, wd)
    v = kept(s, "v", w).mul_(o["beta2"]).addcmul_(g, g, value=1 - o["beta2"])
    scale = (v / (1 - o["beta2"] ** t)).sqrt_().add_(o["epsilon"])
    w.addcdiv_(g, scale, value=-lr * (1 - o["beta1"]) / (1 - o["beta1"] ** t))


@TORCH_RULES.register("adagrad")
def _adagrad(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    v = kept(s, "v", w).addcmul_(g, g)
    step = _decayed(g / (v + o["eps"]).sqrt_(), w, wd)
    w.sub_(step, alpha=lr)


@TORCH_RULES.register("rmsprop")
def _rmsprop(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    g = _decayed(g, w, wd)
    v = kept(s, "v", w).mul_(o["gamma1"]).addcmul_(g, g, value=1 - o["gamma1"])
    if o["centered"]:
        mean = kept(s, "mean", w).mul_(o["gamma1"]).add_(g, alpha=1 - o["gamma1"])
        scale = (v - mean * mean).add_(o["epsilon"]).sqrt_()
        w.add_(kept(s, "delta", w).mul_(o["gamma2"]).addcdiv_(g, scale, value=-lr))
    else:
        w.addcdiv_(g, (v + o["epsilon"]).sqrt_(), value=-lr)
    if o["clip_weights"]:
        w.clamp_(-o["clip_weights"], o["clip_weights"])


@TORCH_RULES.register("adadelta")
def _adadelta(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    g = _decayed(g, w, wd)
    squares = kept(s, "squares", w).mul_(o["rho"]).addcmul_(g, g, value=1 - o["rho"])
    steps = kept(s, "steps", w)
    step = (steps + o["epsilon"]).sqrt_() / (squares + o["epsilon"]).sqrt_() * g
    steps.mul_(o["rho"]).addcmul_(step, step, value=1 - o["rho"])
    w.sub_(step, alpha=lr)


def _moments(s: State, g: Any, o: Mapping[str, Any]) -> tuple[Any, Any]:
    m = kept(s, "m", g).lerp_(g, 1 - o["beta1"])
    v = kept(s, "v", g).mul_(o["beta2"]).addcmul_(g, g, value=1 - o["beta2"])
    return m, v


@TORCH_RULES.register("adam")
def _adam(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    m, v = _moments(s, _decayed(g, w, wd), o)
    rate = lr * math.sqrt(1 - o["beta2"] ** t) / (1 - o["beta1"] ** t)
    w.addcdiv_(m, v.sqrt().add_(o["epsilon"]), value=-rate)


@TORCH_RULES.register("adamw")
def _adamw(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    m, v = _moments(s, g, o)
    if wd:
        w.mul_(1 - lr * wd)
    scale = (v / (1 - o["beta2"] ** t)).sqrt_().add_(o["epsilon"])
    w.addcdiv_(m, scale, value=-lr / (1 - o["beta1"] ** t))


@TORCH_RULES.register("adamax")
def _adamax(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    g = _decayed(g, w, wd)
    m = kept(s, "m", w).lerp_(g, 1 - o["beta1"])
    largest = kept(s, "largest", w)
    largest.copy_(torch().maximum(largest * o["beta2"], g.abs()))
    w.addcdiv_(m, largest + o["epsilon"], value=-lr / (1 - o["beta1"] ** t))


@TORCH_RULES.register("nadam")
def _nadam(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    def mu(k: int) -> float:
        return float(o["beta1"] * (1 - 0.5 * 0.96 ** (k * o["schedule_decay"])))

    g = _decayed(g, w, wd)
    m, v = _moments(s, g, o)
    now = s["product"] = s.get("product", 1.0) * mu(t)
    ahead = (1 - mu(t)) / (1 - now) * g + mu(t + 1) / (1 - now * mu(t + 1)) * m
    w.addcdiv_(ahead, (v / (1 - o["beta2"] ** t)).sqrt_().add_(o["epsilon"]), value=-lr)


@TORCH_RULES.register("lamb")
def _lamb(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    m, v = _moments(s, g, o)
    turn = m / (1 - o["beta1"] ** t) / (v / (1 - o["beta2"] ** t)).sqrt_().add_(o["epsilon"])
    turn = _decayed(turn, w, wd)
    if trusted:
        weight, step = w.norm(), turn.norm()
        if o["lower_bound"] is not None or o["upper_bound"] is not None:
            weight = weight.clamp(o["lower_bound"], o["upper_bound"])
        lr = lr * torch().where((weight > 0) & (step > 0), weight / step, torch().ones_like(weight))
    w.sub_(lr * turn)


@TORCH_RULES.register("novograd")
def _novograd(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    square = (g * g).sum()
    s["v"] = square if t == 1 else s["v"].lerp(square, 1 - o["beta2"])
    m = kept(s, "m", w).mul_(o["beta1"]).add_(_decayed(g / (s["v"].sqrt() + o["epsilon"]), w, wd))
    w.sub_(m, alpha=lr)


def _trust_ratio(w: Any, g: Any, wd: float, o: Mapping[str, Any]) -> tuple[Any, Any]:
    """A layer's trust ratio, and whether it is defined: neither weights nor gradients are all 0."""
    weight, gradient = w.norm(), g.norm()
    ratio = o["trust_coefficient"] * weight / (gradient + wd * weight + o["eps"])
    return ratio, (weight > 0) & (gradient > 0)


@TORCH_RULES.register("lars")
def _lars(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    rate: Any = lr
    if trusted:
        ratio, defined = _trust_ratio(w, g, wd, o)
        rate = lr * torch().where(defined, ratio, torch().ones_like(ratio))
    w.add_(kept(s, "m", w).mul_(o["momentum"]).sub_(rate * _decayed(g, w, wd)))


@TORCH_RULES.register("larc")
def _larc(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    rate: Any = lr
    if trusted:
        ratio, defined = _trust_ratio(w, g, wd, o)
        whole = torch().full_like(ratio, lr)
        rate = torch().where(defined, ratio.minimum(whole), whole)
    w.add_(kept(s, "m", w).mul_(o["momentum"]).sub_(rate * _decayed(g, w, wd)))


@TORCH_RULES.register("muon")
def _muon(s: State, w: Any, g: Any, lr: float, wd: float, t: int, o: Mapping[str, Any], trusted: bool) -> None:
    if not trusted or w.dim() < (3 if o["filters_only"] else 2):
        rest = _nag if o["rest"] == "nag" else _adamw
        rest(s, w, g, lr, wd, t, {**o, "momentum": o["rest_momentum"]}, trusted)
        return
    m = kept(s, "m", w).mul_(o["momentum"]).add_(g)
    x = (g + o["momentum"] * m).reshape(1, len(g), -1)
    scale = 0.2 * math.sqrt(max(x.shape[1:]))
    if o["fixed_norm"]:
        scale = 1.0
        w.mul_(math.sqrt(len(w)) / (w.norm() + TINY))
    elif wd:
        w.mul_(1 - lr * wd)
    w.sub_(orthogonalized(x, o["ns_steps"]).reshape(w.shape), alpha=lr * scale)


def orthogonalized(x: Any, steps: int) -> Any:
    """Quintic Newton-Schulz steps of matrices (n, rows, columns); as ``gluontune.optim.orthogonal.orthogonalized``."""
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (torch().linalg.matrix_norm(x, keepdim=True) + TINY)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch().baddbmm(x, torch().baddbmm(gram, gram, gram, alpha=2.0315, beta=-4.7750), x, beta=3.4445)
    return x.mT if tall else x
