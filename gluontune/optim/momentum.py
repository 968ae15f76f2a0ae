"""SGD with momentum in kernels for many layers at once: NAG, LARS, LARC and LBSGD; rules are on the cards."""

from __future__ import annotations

from typing import Any

from gluontune.core.errors import UsageError
from gluontune.optim._base import TunedOptimizer, chunks, interleaved, mx, nd, squares, subtract_all
from gluontune.optim.schedules import WARMUP_MODES


class _TrustSGD(TunedOptimizer):
    """SGD with momentum, and a trust ratio on the rate of each layer, in a few kernels for all layers."""

    def __init__(
        self, momentum: float = 0.0, lazy_update: bool = True, eta: float | None = None, eps: float = 0.0,
        momentum_correction: bool = True, trust_coefficient: float = 0.001, **kwargs: Any,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.momentum = momentum
        self.lazy_update = lazy_update  # for row_sparse gradients, unsupported here
        self.trust_coefficient = trust_coefficient if eta is None else eta
        self.eps = eps

    def create_state(self, index: int, weight: Any) -> Any:
        return nd.zeros_like(weight) if self.momentum else None

    def layer_rates(self, lrs: Any, wds: Any, w_squares: Any, g_squares: Any, rescale: float) -> Any:
        """Rates of the layers, from base rates, decays and the sums of squares of weight and gradient."""
        return nd.multi_lars(
            lrs, w_squares, g_squares, wds, eta=self.trust_coefficient, eps=self.eps, rescale_grad=rescale
        )

    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        self.descend(indices, weights, grads, states, self.rescale_grad, trust=True)

    def descend(self, indices: list[int], weights: Any, grads: Any, moments: Any, rescale: float, trust: bool) -> None:
        """The update; trusted layers come first, so that one vector has all rates."""
        order = sorted(range(len(indices)), key=lambda place: not self.trusts(indices[place]))
        n_trusted = sum(self.trusts(i) for i in indices) if trust else 0
        indices, weights, grads, moments = ([each[p] for p in order] for each in (indices, weights, grads, moments))
        lrs, wds = self.rates(indices, weights[0].context)
        if n_trusted:
            trusted = self.layer_rates(
                lrs[:n_trusted], wds[:n_trusted], squares(weights[:n_trusted]), squares(grads[:n_trusted]), rescale
            )
            lrs = trusted if n_trusted == len(indices) else nd.concat(trusted, lrs[n_trusted:], dim=0)
        options = {"rescale_grad": rescale}
        if self.clip_gradient:
            options["clip_gradient"] = self.clip_gradient
        for ws, gs, ms, some_lrs, some_wds in chunks(weights, grads, moments, lrs, wds):
            if self.momentum:
                nd.preloaded_multi_sgd_mom_update(
                    *interleaved(ws, gs, ms), some_lrs, some_wds, out=ws, num_weights=len(ws),
                    momentum=self.momentum, **options,
                )  # fmt: skip
            else:
                nd.preloaded_multi_sgd_update(
                    *interleaved(ws, gs), some_lrs, some_wds, out=ws, num_weights=len(ws), **options
                )


def nesterov(
    optimizer: TunedOptimizer,
    momentum: float,
    indices: list[int],
    weights: list[Any],
    grads: list[Any],
    states: list[Any],
) -> None:
    """One update by Nesterov's rule, in a few kernels; ``states`` are the momenta, or None each."""
    grads, rescale = optimizer.clipped(grads)
    lrs, wds = optimizer._get_lrs(indices), optimizer._get_wds(indices)
    for ws, gs, ms, rates, decays in chunks(weights, grads, states, lrs, wds):
        n = len(ws)
        if momentum:
            # A rate of 0 must still decay the momentum, so the rate is in the factor of g.
            rate = max(rates)
            shares = [lr / rate if rate else 1.0 for lr in rates]
            ages = [(1.0 - momentum) / share if share else 0.0 for share in shares]
            subtract_all(ms, gs, shares, ages, factor=rate * rescale)
            if any(decays):
                subtract_all(ms, ws, [lr * wd for lr, wd in zip(rates, decays)], [0.0] * n)
        subtract_all(ws, gs, rates, decays, factor=rescale)
        if momentum:
            subtract_all(ws, ms, [-momentum] * n, [0.0] * n)


@mx.optimizer.register
class GTNAG(TunedOptimizer):
    """Nesterov's accelerated gradient, for many layers in a few kernels."""

    def __init__(self, momentum: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.momentum = momentum

    def create_state(self, index: int, weight: Any) -> Any:
        return nd.zeros_like(weight) if self.momentum else None

    def apply(self, indices: list[int], weights: list[Any], grads: list[Any], states: list[Any]) -> None:
        nesterov(self, self.momentum, indices, weights, grads, states)


@mx.optimizer.register
class GTLARS(_TrustSGD):
    """LARS: layer-wise adaptive rate scaling; biases, gammas and betas have the rate ``lr`` and no decay.

    ``eta`` is MXNet's name of ``trust_coefficient``; its ``lazy_update`` and ``momentum_correction`` have no effect:
    these gradients are never sparse, and MXNet corrects the momentum of its first four layers only.
    """


@mx.optimizer.register
class GTLARC(_TrustSGD):
    """LARC: LARS whose layer rate never exceeds ``lr``, so that it needs no warm-up.

    As ``apex.parallel.LARC`` with ``clip=True``, named in deck 003.
    """

    def __init__(self, momentum: float = 0.9, trust_coefficient: float = 0.02, eps: float = 1e-8, **kwargs: Any):
        super().__init__(momentum=momentum, trust_coefficient=trust_coefficient, eps=eps, **kwargs)

    def layer_rates(self, lrs: Any, wds: Any, w_squares: Any, g_squares: Any, rescale: float) -> Any:
        local = super().layer_rates(nd.ones_like(lrs), wds, w_squares, g_squares, rescale)
        return nd.where(w_squares * g_squares > 0, nd.minimum(local, lrs), lrs)


@mx.optimizer.register
class GTLBSGD(_TrustSGD):
    """Large-batch SGD: ``batch_scale`` micro-gradients make one update, at a rate that warms up.

    MXNet 1.9.1's ``LBSGD`` differs: its sum of gradients aliases Gluon's gradient buffer, it multiplies the rate by up
    to ``batch_scale`` beside the schedule, its ``lars`` strategy has no trust coefficient and waits for the device at
    each layer, and its replicas drift apart. Here ``num_update`` counts updates of the weights, not micro-batches, and
    ``learning_rate`` is the rate after the warm-up.

    Args:
        momentum, multi_precision: as for MXNet's SGD.
        batch_scale: micro-batches of one update; their averaged gradients are averaged.
        warmup_strategy: the rate's course from ``learning_rate / batch_scale`` to ``learning_rate``:
            ``linear``, ``power2``, ``sqrt``; or ``lars``: no warm-up, but trust ratios as in LARS.
        warmup_epochs, updates_per_epoch: the length of the warm-up, as in MXNet; or
        warmup_updates: the same in updates of the weights.
        begin_epoch: epochs trained before.
        num_epochs: without effect, as in MXNet.
        trust_coefficient: of ``lars``.
        kwargs: of ``mx.optimizer.Optimizer``.
    """

    def __init__(
        self, momentum: float = 0.0, multi_precision: bool = False, warmup_strategy: str = "linear",
        warmup_epochs: float = 5, batch_scale: int = 1, updates_per_epoch: int = 32, begin_epoch: int = 0,
        num_epochs: int = 60, warmup_updates: int | None = None, trust_coefficient: float = 0.001,
        **kwargs: Any,
    ):  # fmt: skip
        super().__init__(
            momentum=momentum, trust_coefficient=trust_coefficient, multi_precision=multi_precision, **kwargs
        )
        if warmup_updates is None:
            warmup_updates = round(warmup_epochs * updates_per_epoch)
        if warmup_strategy not in ("linear", "power2", "sqrt", "lars"):
            raise UsageError(f"warmup_strategy={warmup_strategy!r}: choose one of linear, power2, sqrt, lars")
        if batch_scale < 1 or warmup_updates < 0:
            raise UsageError(f"batch_scale={batch_scale!r}, warmup_updates={warmup_updates!r}: at least 1 and 0")
        self.batch_scale = int(batch_scale)
        self.warmup_strategy, self.warmup_updates = warmup_strategy, warmup_updates
        self.updates_before = begin_epoch * updates_per_epoch

    def create_state(self, index: int, weight: Any) -> list[Any]:
        # A list: the number of gathered micro-gradients changes in place.
        gathered = nd.zeros_like(weight) if self.batch_scale > 1 else None
        return [super().create_state(index, weight), gathered, 0]

    def _get_lrs(self, indices: list[int]) -> list[float]:
        share = 1.0
        update = self.num_update + self.updates_before
        if self.warmup_strategy != "lars" and update < self.warmup_updates:
            least = 1.0 / self.batch_scale
            done = WARMUP_MODES[self.warmup_strategy](update / self.warmup_updates)
            share = least + (1.0 - least) * done
        return [lr * share for lr in super()._get_lrs(indices)]

    def _count_and_apply(self, indices: list[int], weights: Any, grads: Any, states: Any) -> None:
        trust = self.warmup_strategy == "lars"
        if self.batch_scale == 1:
            self._update_count(indices)
            self.descend(indices, weights, grads, [s[0] for s in states], self.rescale_grad, trust)
            return
        sums = [s[1] for s in states]
        for some_sums, some_grads in chunks(sums, grads):
            # No alias of Gluon's reused gradient buffer.
            n = len(some_sums)
            subtract_all(some_sums, some_grads, [-1.0] * n, [0.0] * n, factor=self.rescale_grad)
        for state in states:
            state[2] += 1
        ready = [place for place, state in enumerate(states) if state[2] == self.batch_scale]
        if not ready:
            return
        indices, weights, states, sums = ([each[p] for p in ready] for each in (indices, weights, states, sums))
        self._update_count(indices)
        self.descend(indices, weights, sums, [s[0] for s in states], 1.0 / self.batch_scale, trust)
        nd.reset_arrays(*sums, num_arrays=len(sums))
        for state in states:
            state[2] = 0
