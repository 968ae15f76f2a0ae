"""Optimizers that are one formula (MXNet 1.9.1's DCASGD, FTML, AdaDelta, AdaMax and Nadam, corrected), and YellowFin.

Hyper-parameters, and MXNet's faults, are on their cards.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, ClassVar

from gluontune.core.errors import UsageError
from gluontune.optim._base import TunedOptimizer, chunks, interleaved, mx, nd, squares, subtract_all
from gluontune.optim._formulas import FORMULAS, Formula
from gluontune.optim.cards import OPTIMIZERS


class _OneByOne(TunedOptimizer):
    """An optimizer that is one formula; its arguments and their defaults are on its card."""

    formula: ClassVar[Formula]

    def __init__(self, options: dict[str, float], **kwargs: Any):
        super().__init__(**kwargs)
        self.options = options
        self.__dict__.update(options)  # by MXNet's names, too

    def create_state(self, index: int, weight: Any) -> tuple[Any, ...]:
        copies = self.formula.copies
        return tuple(weight.copy() if name in copies else nd.zeros_like(weight) for name in self.formula.states)

    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        limit = self.clip_gradient if self.formula.clips_decayed else None
        grads, rescale = (grads, self.rescale_grad) if limit else self.clipped(grads)
        lists = (indices, weights, grads, states, self._get_lrs(indices), self._get_wds(indices))
        for index, w, g, state, lr, wd in zip(*lists):
            g = g if rescale == 1.0 else g * rescale
            if limit:
                g, wd = nd.clip(g + wd * w, -limit, limit), 0.0
            self.formula.rule(nd, w, g, state, lr, wd, self._index_update_count[index], self.options)


def _class_of(name: str, formula: Formula) -> type[_OneByOne]:
    card = OPTIMIZERS[name]
    usual = {"momentum": 0.0, "learning_rate": card.learning_rate, **card.defaults}
    by_place = functools.partial(inspect.Parameter, kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([
        by_place("self"), *(by_place(each, default=usual[each]) for each in formula.places),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ])  # fmt: skip

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        options = {each: bound.arguments[each] for each in formula.places}
        more = {"learning_rate": options.pop("learning_rate")} if "learning_rate" in options else {}
        _OneByOne.__init__(self, options, **more, **bound.arguments["kwargs"])

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    made = {"formula": formula, "__init__": __init__, "__module__": __name__, "__doc__": formula.rule.__doc__}
    return type(f"GT{formula.kind}", (_OneByOne,), made)


for _name, _formula in FORMULAS.items():  # by a name in this module, for pickle
    globals()[f"GT{_formula.kind}"] = mx.optimizer.register(_class_of(_name, _formula))

WINDOW = 20  # updates with the extreme curvatures, as in the paper
LARGEST_P = 1e10  # beyond it the root of the cubic is 0 to all relevant digits


@mx.optimizer.register
class GTYellowFin(TunedOptimizer):
    r"""YellowFin. Zhang & Mitliagkas, arXiv:1706.03471, algorithms 1 to 4.

    From each update's gradient g it measures the range of curvatures :math:`h = \|g\|^2` (largest and smallest of the
    last 20), the variance :math:`C = E\|g\|^2 - \|E g\|^2` and the distance to the optimum
    :math:`D = E[E\|g\| / E\|g\|^2]`, and chooses momentum and rate of the next update as the minimum of
    :math:`\mu D^2 + \alpha^2 C`; then m = mu m - alpha (g + wd w), w += factor m. All of it stays on the device as
    float64 scalars: nothing waits. An update's measurements apply to the next one (as in the authors' programs), so
    that updates of one parameter at a time are the same.

    Args:
        beta: smoothing of all averages, 0.999. Short runs want 0.99.
        initial_rate: alpha before the first measurement; it decays with ``beta``.
        kwargs: of ``mx.optimizer.Optimizer``; ``learning_rate`` is the *factor*, normally 1.
    """

    progress = ("measured",)

    def __init__(self, beta: float = 0.999, initial_rate: float = 0.1, **kwargs: Any):
        super().__init__(**kwargs)
        if not 0 < beta < 1 or not initial_rate > 0:
            raise UsageError(f"beta={beta!r}, initial_rate={initial_rate!r}: between 0 and 1, and above 0")
        self.beta, self.initial_rate = beta, initial_rate
        self._device = 0
        self._measured: dict[int, dict[str, Any]] = {}
        self._restored: dict[str, Any] | None = None

    @property
    def measured(self) -> dict[str, Any] | None:
        """Averages of one context (the same on all); assigning restores them on each."""
        return next(iter(self._measured.values()), self._restored)

    @measured.setter
    def measured(self, values: dict[str, Any] | None) -> None:
        self._measured, self._restored = {}, values

    def create_state(self, index: int, weight: Any) -> tuple[Any, Any]:
        return (nd.zeros_like(weight), nd.zeros_like(weight))  # m, average of g

    def _set_current_context(self, device_id: int) -> None:
        super()._set_current_context(device_id)
        self._device = device_id

    def _fresh(self, ctx: Any) -> dict[str, Any]:
        if self._restored is not None:
            return {
                name: value.copyto(ctx) if isinstance(value, nd.NDArray) else value
                for name, value in self._restored.items()
            }
        kind = {"ctx": ctx, "dtype": "float64"}
        names = ("h_max", "h_min", "h", "g_norm", "distance", "mu", "seen_h", "seen_mean")
        averages = {name: nd.zeros((1,), **kind) for name in names}
        alpha = nd.full((1,), self.initial_rate, **kind)
        return {**averages, "alpha": alpha, "window": nd.zeros((WINDOW,), **kind), "age": 0}

    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        if self._device not in self._measured:
            self._measured[self._device] = self._fresh(weights[0].context)
        now = self._measured[self._device]
        age = max(self._index_update_count[index] for index in indices)
        if age > now["age"]:
            if now["age"]:
                self._tune(now)
            now["age"] = age
        grads, rescale = self.clipped(grads)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        for ws, gs, ss, rates, decays in chunks(weights, grads, states, lrs, wds):
            ms, means = [s[0] for s in ss], [s[1] for s in ss]
            self._measure(now, gs, means, rescale)
            self._descend(now, ws, gs, ms, rates, decays, rescale)

    def _measure(self, now: dict[str, Any], gs: Any, means: Any, rescale: float) -> None:
        n = len(gs)
        share = 1.0 - self.beta
        subtract_all(means, gs, [-share] * n, [-1.0] * n, factor=rescale)
        now["seen_h"] = now["seen_h"] + _total(gs) * rescale**2
        now["seen_mean"] = now["seen_mean"] + _total(means)

    def _descend(
        self, now: dict[str, Any], ws: Any, gs: Any, ms: Any, factors: list[float], wds: list[float], rescale: float
    ) -> None:
        n = len(ws)
        ones = nd.ones((n,), ctx=ws[0].context)
        alpha, mu = now["alpha"].astype("float32"), now["mu"].astype("float32")
        # m -= alpha (g + (1 - mu)/alpha m), that is m = mu m - alpha g, for many arrays in one kernel
        nd.preloaded_multi_sgd_update(
            *interleaved(ms, gs), ones * alpha, ones * ((1 - mu) / alpha), out=ms, num_weights=n, rescale_grad=rescale
        )
        if any(wds):
            decays = nd.array(wds, ctx=ws[0].context)
            nd.preloaded_multi_sgd_update(*interleaved(ms, ws), decays * alpha, ones * 0, out=ms, num_weights=n)
        subtract_all(ws, ms, [-f for f in factors], [0.0] * n)

    def _tune(self, now: dict[str, Any]) -> None:
        """Choose momentum and rate from the last update's measurements (algorithms 2 to 4)."""
        age, h = now["age"], now["seen_h"]
        place = (age - 1) % WINDOW
        now["window"][place : place + 1] = h
        recent = now["window"][: min(age, WINDOW)]
        debias = 1.0 - self.beta**age
        h_max = self._smoothed(now, "h_max", recent.max()) / debias
        h_min = self._smoothed(now, "h_min", recent.min()) / debias
        mean_h = self._smoothed(now, "h", h) / debias
        mean_norm = self._smoothed(now, "g_norm", h.sqrt()) / debias
        # The floor is the resolution of float32 sums; a first gradient has no variance.
        variance = nd.maximum(mean_h - now["seen_mean"] / debias**2, 1e-6 * mean_h)
        distance = self._smoothed(now, "distance", mean_norm / mean_h) / debias
        root = _root(distance * distance * h_min * h_min / (2 * variance))
        spread = (h_max / h_min).sqrt()
        mu = nd.maximum(root * root, ((spread - 1) / (spread + 1)) ** 2)
        alpha = (1 - mu.sqrt()) ** 2 / h_min
        self._smoothed(now, "mu", mu)
        self._smoothed(now, "alpha", alpha)
        now["seen_h"], now["seen_mean"] = nd.zeros_like(h), nd.zeros_like(h)

    def _smoothed(self, now: dict[str, Any], name: str, value: Any) -> Any:
        now[name] = self.beta * now[name] + (1.0 - self.beta) * value
        return now[name]


def _total(arrays: list[Any]) -> Any:
    """Sum of squares of all arrays, as a float64 scalar on their device."""
    return squares(arrays).astype("float64").sum()


def _root(p: Any) -> Any:
    """The x in [0, 1] with p x = (1 - x)^3, by Cardano's formula."""
    p = nd.minimum(p, LARGEST_P)
    w3 = (-nd.sqrt(p * p + 4.0 / 27.0 * p * p * p) - p) / 2.0
    w = nd.cbrt(w3)
    return nd.clip(w - p / (3.0 * w) + 1.0, 0.0, 1.0)
