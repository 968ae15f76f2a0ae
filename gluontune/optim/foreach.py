"""Rules of the torch backend for all parameters in few calls: what :mod:`gluontune.optim.torch_rules` gives one by one.

A net of 60 small parameters spends more on the calls than on the numbers; Muon's matrix products of equal shapes are
one batched product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Callable, NamedTuple

from gluontune.optim.torch_rules import TINY, TORCH_RULES, State, kept, orthogonalized
from gluontune.runtime.pytorch import torch

__all__ = ["TOGETHER", "Part"]


class Part(NamedTuple):
    """A parameter in an update, with the arguments that its rule takes."""

    state: State
    w: Any
    g: Any
    lr: float
    wd: float
    trusted: bool


#: By the rule of one parameter, ``rule(parts, t, options)``.
TOGETHER: dict[Callable[..., None], Callable[[list[Part], int, Mapping[str, Any]], None]] = {}


def _together(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def registered(rule: Callable[..., None]) -> Callable[..., None]:
        TOGETHER.update({TORCH_RULES[name]: rule for name in names})
        return rule

    return registered


def _by_rate(parts: Iterable[Part]) -> list[list[Part]]:
    """Parts of one rate and one decay each, which the calls take as single numbers."""

    def rate(part: Part) -> tuple[float, float]:
        return part.lr, part.wd

    return [list(group) for _, group in groupby(sorted(parts, key=rate), key=rate)]


@_together("nag")
def _nag(parts: list[Part], t: int, o: Mapping[str, Any]) -> None:
    _descend(parts, o["momentum"], True)


@_together("sgd")
def _sgd(parts: list[Part], t: int, o: Mapping[str, Any]) -> None:
    _descend(parts, o["momentum"], False)


def _descend(parts: list[Part], momentum: float, nesterov: bool) -> None:
    library = torch()
    for group in _by_rate(parts):
        ws, gs, lr, wd = [p.w for p in group], [p.g for p in group], group[0].lr, group[0].wd
        if wd:
            gs = library._foreach_add(gs, ws, alpha=wd)
        if momentum:
            ms = [kept(p.state, "m", p.w) for p in group]
            library._foreach_mul_(ms, momentum)
            library._foreach_add_(ms, gs, alpha=-lr)
            library._foreach_add_(ws, ms, alpha=momentum if nesterov else 1)
        if nesterov or not momentum:
            library._foreach_add_(ws, gs, alpha=-lr)


@_together("muon")
def _muon(parts: list[Part], t: int, o: Mapping[str, Any]) -> None:
    least = 3 if o["filters_only"] else 2
    rest = [p for p in parts if not p.trusted or p.w.dim() < least]
    if o["rest"] == "nag":
        _descend(rest, o["rest_momentum"], True)
    else:
        for part in rest:
            TORCH_RULES["adamw"](part.state, part.w, part.g, part.lr, part.wd, t, o, part.trusted)
    matrices = [p for p in parts if p.trusted and p.w.dim() >= least]

    def shape(part: Part) -> tuple[int, ...]:
        return tuple(part.w.shape)

    for rated in _by_rate(matrices):
        for _, alike in groupby(sorted(rated, key=shape), key=shape):
            _turn(list(alike), o)


def _turn(parts: list[Part], o: Mapping[str, Any]) -> None:
    """Muon's update of matrices of one shape, one rate and one decay."""
    library = torch()
    ws, gs, lr, wd = [p.w for p in parts], [p.g for p in parts], parts[0].lr, parts[0].wd
    ms = [kept(p.state, "m", p.w) for p in parts]
    library._foreach_mul_(ms, o["momentum"])
    library._foreach_add_(ms, gs)
    ahead = library.stack(library._foreach_add(gs, ms, alpha=o["momentum"]))
    x = orthogonalized(ahead.reshape(*ahead.shape[:2], -1), o["ns_steps"])
    scale = 0.2 * math.sqrt(max(x.shape[1:]))
    if o["fixed_norm"]:
        scale = 1.0
        for w in ws:
            w.mul_(math.sqrt(len(w)) / (w.norm() + TINY))
    elif wd:
        library._foreach_mul_(ws, 1 - lr * wd)
    library._foreach_add_(ws, list(x.reshape(ahead.shape).unbind()), alpha=-lr * scale)
