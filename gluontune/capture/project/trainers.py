"""Trainers as text: the rule of an optimizer, its numbers, and its rate at each update."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluontune.capture.events import Op
from gluontune.capture.project.sections import Plan
from gluontune.capture.project.tracing import Told
from gluontune.capture.updates import UPDATES
from gluontune.convert.graph.schemas import as_mxnet_reads, schema
from gluontune.core.errors import GluontuneError
from gluontune.optim.cards import OPTIMIZERS
from gluontune.optim.torch_rules import TORCH_RULES, Part

_CHANGING = ("lr", "wd", "rescale_grad")
_LOOKED_AT = 2000  # updates of a scheduler that are compared with its text


@dataclass
class TrainerText:
    """A trainer; its rule is called as operators are, or as those of :mod:`gluontune.optim.torch_rules`."""

    name: str  # in train.py
    line: str
    optimizer: str
    parameters: list[str]  # Gluon's names
    run: Callable[..., Any]  # the rule's function
    operator: bool
    corrected: bool
    options: dict[str, Any]
    scale: float  # of the gradients beside the batch's size
    lr_mult: dict[str, float]
    wd: dict[str, float]
    states: dict[str, list[np.ndarray]]  # of the first update, by parameter
    count: int
    rate: str = ""  # text of n
    noted: str = ""  # where this text is not whole, why

    @property
    def rule(self) -> str:
        """The rule's name in rules.py."""
        return str(self.run.__name__) if self.operator else f"{self.optimizer}_rule"


def trainer_text(name: str, plans: Sequence[tuple[Plan, Told]]) -> TrainerText:
    """A trainer of which updates were seen, each in its step; refuses one whose rule is not known."""
    plan, told = plans[0]
    optimizer = told.trainer._optimizer
    kind = type(optimizer).__name__.lower()
    ops = _updates(plan, told)
    made = _of_operators(name, kind, plan, told, ops) if ops else _by_name(name, kind, told)
    made.rate, made.noted = _rate(optimizer, [one for _, one in plans])
    return made


def _updates(plan: Plan, told: Told) -> dict[str, Op]:
    """Update operators by the parameter."""
    found: dict[str, Op] = {}
    for event in plan.events[told.begin : told.end]:
        if isinstance(event, Op) and event.name in UPDATES and event.inputs[0] in plan.owner:
            found[plan.owner[event.inputs[0]]] = event
    return found


def _of_operators(name: str, kind: str, plan: Plan, told: Told, ops: dict[str, Op]) -> TrainerText:
    rules = {op.name for op in ops.values()}
    if len(rules) > 1:
        raise GluontuneError(f"{told.line}: one trainer with the rules {', '.join(sorted(rules))}")
    rule = rules.pop()
    typed = {parameter: schema(rule).typed(op.attrs) for parameter, op in ops.items()}
    first = next(iter(typed.values()))
    if any(op.attrs.get("lazy_update") == "True" for op in ops.values()):
        raise GluontuneError(f"{told.line}: an update of the rows alone that a sparse gradient has: no text yet")
    options = {key: _short(value) for key, value in first.items() if key not in (*_CHANGING, "lazy_update")}
    correction = 1.0
    if rule == "adam_update":
        correction = math.sqrt(1 - first["beta2"] ** told.count) / (1 - first["beta1"] ** told.count)
    rate = told.rate * correction
    lr_mult = {p: _near(one["lr"] / rate if rate else 1.0, 4, 1e-5) for p, one in typed.items()}
    states = {}
    for parameter, op in ops.items():
        arrays = [plan.value(number).array for number in op.inputs[2:]]
        states[parameter] = [np.zeros(plan.value(op.inputs[0]).shape, "float32") if a is None else a for a in arrays]
    return TrainerText(
        name, told.line, kind, list(ops), UPDATES[rule], True, rule == "adam_update", options,
        _near(first["rescale_grad"] * float(told.batch_size), 6, 3e-7),
        {p: m for p, m in lr_mult.items() if m != 1.0}, {p: _short(one["wd"]) for p, one in typed.items()}, states,
        told.count - 1,
    )  # fmt: skip


def _by_name(name: str, kind: str, told: Told) -> TrainerText:
    """A rule that MXNet has in Python: gluontune's of the same name."""
    optimizer = told.trainer._optimizer
    if kind not in TORCH_RULES.names() or told.count > 1:
        raise GluontuneError(f"{told.line}: the rule of {kind} has no text yet")
    defaults = {"eps": 1e-7, **OPTIMIZERS[kind].defaults}
    named = {"eps": "float_stable_eps", "epsilon": "epsilon"}
    options = {
        key: getattr(optimizer, key, getattr(optimizer, named.get(key, key), value)) for key, value in defaults.items()
    }
    options["momentum"] = getattr(optimizer, "momentum", 0.0)
    trained = {p.name: p for p in told.trainer._params if p.name in told.gradients}
    at = {p.name: i for i, p in enumerate(told.trainer._params)}
    lr_mult = {p: one.lr_mult for p, one in trained.items() if one.lr_mult != 1.0}
    wd = {p: float(optimizer._get_wd(at[p])) for p in trained}
    return TrainerText(
        name, told.line, kind, list(trained), _MXNETS.get(kind) or TORCH_RULES[kind], False, False, options,
        float(told.trainer._scale), lr_mult, wd, {}, 0,
    )  # fmt: skip


def _adadelta(parts: Sequence[Part], t: int, o: Mapping[str, Any]) -> None:
    """MXNet's own: it has no rate, and decays apart from the step."""
    for part in parts:
        squares, steps = part.kept("squares"), part.kept("steps")
        squares.mul_(o["rho"]).add_(part.g * part.g, alpha=1 - o["rho"])
        step = ((steps + o["epsilon"]) / (squares + o["epsilon"])).sqrt() * part.g
        steps.mul_(o["rho"]).add_(step * step, alpha=1 - o["rho"])
        part.w.sub_(step + part.wd * part.w)


#: Where MXNet's rule is not gluontune's of the same name.
_MXNETS = {"adadelta": _adadelta}


def _short(value: Any) -> Any:
    """The number as it was written: 0.9 for 0.8999999761581421, which MXNet has read."""
    short = float(f"{value:.6g}") if isinstance(value, float) else value
    return short if short is value or as_mxnet_reads(repr(short)) == value else value


def _near(value: float, digits: int, apart: float) -> float:
    """A quotient of numbers that MXNet has read, without its last digits."""
    short = float(f"{value:.{digits}g}")
    return short if math.isclose(short, value, rel_tol=apart) else value


def _rate(optimizer: Any, told: Sequence[Told]) -> tuple[str, str]:
    """The rate of update ``n``, counted from 1, as text; and what is not known of it."""
    scheduler = optimizer.lr_scheduler
    seen = {one.count: one.rate for one in told}
    if scheduler is not None:
        for text in _texts(scheduler):
            if _computes(text, scheduler, seen):
                return text, ""
        text = _steps(_table(scheduler))
        if _computes(text, scheduler, seen):
            return text, f"{type(scheduler).__name__}: its first {_LOOKED_AT} rates"
    rates = list(dict.fromkeys(seen.values()))
    if len(rates) == 1 and scheduler is None:
        return repr(float(rates[0])), ""
    steps = [(n, r) for n, r in seen.items() if n == min(seen) or r != seen.get(n - 1)]
    return _steps(steps), f"the script sets the rate: {len(steps)} rates in the first {len(seen)} updates"


def _texts(scheduler: Any) -> list[str]:
    """Texts that may be the scheduler's."""
    s, kind = vars(scheduler), type(scheduler).__name__
    base = repr(float(s.get("base_lr_orig", s.get("base_lr", 0.0))))
    warm, begin = s.get("warmup_steps", 0), s.get("warmup_begin_lr", 0.0)
    body = {
        "FactorScheduler": "max({base} * {factor} ** (max(n - 1, 0) // {step}), {stop_factor_lr})",
        "MultiFactorScheduler": "{base} * {factor} ** sum(n > at for at in {all})",
        "PolyScheduler": "{final_lr} + ({base} - {final_lr}) * (1 - min(n - {warm}, {max_steps}) / {max_steps}) "
                         "** {power}",
        "CosineScheduler": "{final_lr} + ({base} - {final_lr}) * (1 + math.cos(math.pi * min(n - {warm}, "
                           "{max_steps}) / {max_steps})) / 2",
    }.get(kind)  # fmt: skip
    if body is None:
        return []
    numbers = {key: value for key, value in s.items() if isinstance(value, (int, float))}
    numbers["all"] = s.get("step")
    text = body.format(**{**numbers, "base": base, "warm": warm})
    if warm:
        text = f"{begin} + ({base} - {begin}) * n / {warm} if n < {warm} else {text}"
    return [text]


def _computes(text: str, scheduler: Any, seen: dict[int, float]) -> bool:
    own = copy.deepcopy(scheduler)
    start = min(seen)
    rates = {n: own(n) for n in range(start, start + _LOOKED_AT)} | seen
    return all(math.isclose(eval(text, {"math": math, "n": n}), rate, rel_tol=1e-12, abs_tol=1e-18)
               for n, rate in rates.items())  # fmt: skip


def _table(scheduler: Any) -> list[tuple[int, float]]:
    own = copy.deepcopy(scheduler)
    rates = [(n, float(own(n))) for n in range(1, _LOOKED_AT + 1)]
    return [one for at, one in enumerate(rates) if at == 0 or one[1] != rates[at - 1][1]]


def _steps(table: Sequence[tuple[int, float]]) -> str:
    """The rate of the last of these updates that is not after ``n``."""
    rates = [(n, float(r)) for n, r in reversed(table)]  # all digits: a factor of a parameter goes on from them
    return f"next(rate for begin, rate in {rates} if n >= begin or begin == {table[0][0]})"
