"""Work of ``python -m benchmarks networks``, a process each: gluontune's choice against MXNet's modes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gluontune.core import stats

__all__ = ["PLAIN", "Network", "make"]

PLAIN: dict[str, dict[str, bool]] = {
    "imperative": {},
    "hybridize()": {"active": True},
    "hybridize(static_alloc, static_shape)": {"active": True, "static_alloc": True, "static_shape": True},
}


def make(name: str, side: int, batch: int) -> Network:
    """Called in the process."""
    return Network(name, side, batch)


class Network:
    """A zoo's network on a synthetic batch.

    Args:
        name: of ``gt.train.build_net``. side: of the square input. batch: images.
    """

    def __init__(self, name: str, side: int, batch: int):
        from gluontune.runtime import mxnet

        self.name, self.mx = name, mxnet()
        self.mx.random.seed(0)
        self.x = self.mx.nd.random.normal(shape=(batch, 3, side, side))
        self.info = {"parameters": self._count()}

    def _build(self) -> Any:
        from gluontune.job.job import build_net

        self.mx.random.seed(1)
        net = build_net(self.name, 10)
        net.initialize(self.mx.init.Xavier(magnitude=2))
        net(self.x)
        return net

    def _count(self) -> int:
        return sum(int(p.data().size) for p in self._build().collect_params().values())

    def agree(self) -> dict[str, Any]:
        """Outputs and gradients with all applicable rewrites, against the original."""
        from benchmarks.agreement import agreement
        from gluontune import compute

        net = self._build()
        names = compute.rewrites_for(net, self.x)
        return {"rewrites": names, **agreement(net, self.x, names)}

    def choose(self, rounds: int, seconds: float) -> dict[str, Any]:
        """Let ``gt.compute.hybridize`` choose, and build MXNet's modes."""
        from gluontune import compute

        self.chosen = self._build()
        began = time.perf_counter()
        report = compute.hybridize(self.chosen, self.x, rounds=rounds, budget_s=seconds, refresh=True)
        self.steps = {"gluontune": self._step(self.chosen)}
        for mode, flags in PLAIN.items():
            net = self._build()
            if flags:
                net.hybridize(**flags)
            self.steps[mode] = self._step(net)
        for step in self.steps.values():
            step()
            step()
        return {
            "settings": report.chosen.settings,
            "rewrites": list(report.chosen.rewrites),
            "seconds": time.perf_counter() - began,
        }

    def race(self, rounds: int, slice_s: float) -> dict[str, Any]:
        """One interleaved series of all; at ratios above 1 gluontune's choice is faster."""
        times: dict[str, list[float]] = {name: [] for name in self.steps}
        names = list(self.steps)
        for number in range(rounds):
            for name in stats.in_turn(names, number):
                step = self.steps[name]
                step()
                count, begin = 0, time.perf_counter()
                while not count or time.perf_counter() < begin + slice_s:
                    step()
                    count += 1
                times[name].append((time.perf_counter() - begin) / count)
        step_ms = {name: stats.interval([1e3 * t for t in values]) for name, values in times.items()}
        best = min(PLAIN, key=lambda mode: step_ms[mode]["median"])
        return {
            "step_ms": step_ms,
            "best_plain": best,
            "ratio_to_best_plain": stats.ratio_interval(times[best], times["gluontune"]),
        }

    def _step(self, net: Any) -> Callable[[], None]:
        mx, x = self.mx, self.x

        def step() -> None:
            with mx.autograd.record():
                head = net(x).square().mean()
            head.backward()
            mx.nd.waitall()

        return step
