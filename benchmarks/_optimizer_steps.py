"""The cost of an optimizer: a whole training step of a deep net, and the update alone, beside SGD's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gluontune.core import stats
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import launch_settings
from gluontune.search.bench.benchmark import hold, selected
from gluontune.search.bench.contender import Entrant

__all__ = ["BAR", "CONTENDERS", "make", "measure"]

BAR = 1.3
_TARGET = "benchmarks._optimizer_steps:make"
_BASE = "sgd"
#: Name: its peer and its options.
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("gluontune", {"name": "sgd"}),
    "lars": ("gluontune", {"name": "lars"}),
    "lbsgd": ("gluontune", {"name": "lbsgd"}),
    "lbsgd, lars": ("gluontune", {"name": "lbsgd", "warmup_strategy": "lars"}),
    "lamb": ("gluontune", {"name": "lamb"}),
    "nag": ("gluontune", {"name": "nag"}),
    "adamw": ("gluontune", {"name": "adamw"}),
    "MXNet's nag": ("mxnet", {"name": "nag"}),
    "MXNet's lars": ("mxnet", {"name": "lars"}),
    "MXNet's lbsgd, lars": ("mxnet", {"name": "lbsgd", "warmup_strategy": "lars"}),
}


def make(net: str, batch_size: int, side: int, whole: bool, peer: str, name: str, **options: Any) -> Any:
    """The work of one contender; see :class:`OptimizerStep`."""
    return OptimizerStep(net, batch_size, side, whole, peer, name, options)


class OptimizerStep:
    """Training steps of a net of ten classes, or its updates from existing gradients.

    Args:
        net: a name that :func:`gluontune.job.job.build_net` knows, or the number of weight layers of a CIFAR
            ResNet, 6 n + 2. batch_size, side: of the synthetic images.
        whole: forward, loss, backward and update; otherwise the update alone.
        peer: ``gluontune``: the optimizer of ``gt.optim.setup``; ``mxnet``: MXNet's own under ``gluon.Trainer``.
        name, options: of the optimizer.
    """

    def __init__(
        self, net: str, batch_size: int, side: int, whole: bool, peer: str, name: str, options: dict[str, Any]
    ):
        import importlib

        from gluontune import compute, optim
        from gluontune.job.job import build_net
        from gluontune.runtime import mxnet

        mx = self.mx = mxnet()
        mx.random.seed(0)
        self.whole, self.batch_size = whole, batch_size
        if net.isdecimal():
            zoo = importlib.import_module("gluoncv.model_zoo.cifarresnet")
            self.net = zoo.get_cifar_resnet(1, int(net), classes=10)
        else:
            self.net = build_net(net, 10)
        self.net.initialize(mx.init.Xavier(magnitude=2))
        self.x = mx.nd.random.normal(shape=(batch_size, 3, side, side))
        self.y = mx.nd.random.randint(0, 10, shape=(batch_size,)).astype("float32")
        self.net(self.x)
        compute.apply_rewrites(self.net, ("pool-to-mean",), self.x)
        compute.set_mode(self.net, "static")
        self.loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        if peer == "gluontune":
            self.trainer = optim.setup(
                name, self.net, learning_rate=1e-3, global_batch_size=batch_size, wd=5e-4, **options
            )
        else:
            settings = {"learning_rate": 1e-3, "momentum": 0.9, "wd": 5e-4, **options}
            self.trainer = mx.gluon.Trainer(self.net.collect_params(), name, settings)
        self._whole_step()
        self._whole_step()
        self.sync()
        trained = [p for p in self.net.collect_params().values() if p.grad_req != "null"]
        self._weights = [p.data() for p in trained]
        self.info: dict[str, Any] = {
            "versions": {"mxnet": mx.__version__},
            "parameter_arrays": len(trained),
            "weight_layers": sum(p.name.endswith("weight") for p in trained),
        }

    def _whole_step(self) -> None:
        with self.mx.autograd.record():
            value = self.loss(self.net(self.x), self.y)
        value.backward()
        self.trainer.step(self.batch_size)

    def step(self) -> int:
        """One step, synchronous; it counts as one."""
        if self.whole:
            self._whole_step()
        else:
            for weight in self._weights:  # the last backward pass's gradients once more
                weight._fresh_grad = True
            self.trainer.step(self.batch_size)
        self.sync()
        return 1

    def sync(self) -> None:
        self.mx.nd.waitall()


def measure(
    *,
    net: str = "62",
    batch_size: int = 64,
    side: int = 32,
    rounds: int = 9,
    seconds: float = 1.0,
    only: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Rows of all contenders: whole steps in interleaved rounds, then updates alone in others.

    Args:
        net, batch_size, side: see :class:`OptimizerStep`.
        rounds, seconds: of the slices. only: names of contenders. say: called with lines of progress.

    Returns:
        ``[{"name", "part", "peer", "step_time_ms": {"median", "ci95", "n"}, "ratio_to_sgd", "status", "reason",
        "info"}]``; ratios are medians, with 95 % intervals, of those within each round; above 1 it is slower.
    """
    if net.isdecimal() and (int(net) < 8 or (int(net) - 2) % 6):
        raise UsageError(f"layers={net}: a CIFAR ResNet has 6 n + 2 of them, such as 62")
    chosen = [n for n in CONTENDERS if n in {_BASE, *selected(CONTENDERS, only)}]
    rows = []
    for part in ("whole step", "update alone"):
        entrants = [_entrant(name, part, net, batch_size, side) for name in chosen]

        def tell(line: str, part: str = part) -> None:
            say(f"{part}: {line}")

        found = hold(entrants, rounds=rounds, seconds=seconds, say=tell)
        base = found[0]
        if base.failure is not None:
            raise GluontuneError(f"{part}: {_BASE} could not be measured: {base.failure}")
        for name, contender in zip(chosen, found):
            good = contender.failure is None and len(contender.rates) == len(base.rates)
            times = [1000 / rate for rate in contender.rates]
            ratio = stats.ratio_interval(times, [1000 / rate for rate in base.rates]) if good else None
            rows.append(
                {
                    "name": name,
                    "part": part,
                    "peer": contender.entrant.peer,
                    "step_time_ms": stats.interval(times) if good else None,
                    "ratio_to_sgd": ratio,
                    "status": "ok" if good else "failed",
                    "reason": "" if good else str(contender.failure),
                    "info": contender.info,
                }
            )
    return rows


def _entrant(name: str, part: str, net: str, batch_size: int, side: int) -> Entrant:
    peer, options = CONTENDERS[name]
    settings = {"net": net, "batch_size": batch_size, "side": side, "whole": part == "whole step"}
    return Entrant(name, peer, _TARGET, {**settings, "peer": peer, **options}, env=launch_settings().env)


def conclude(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether ours stay within the bar, over the whole step."""
    ours = {
        row["name"]: row["ratio_to_sgd"]
        for row in rows
        if row["part"] == "whole step"
        and row["peer"] == "gluontune"
        and row["name"] in ("lars", "lbsgd", "lbsgd, lars")
    }
    text = ", ".join(
        f"{name}: {ratio['median']:.2f} ({ratio['ci95'][0]:.2f}-{ratio['ci95'][1]:.2f})" if ratio else f"{name}: failed"
        for name, ratio in ours.items()
    )
    return {
        "holds": bool(ours) and all(ratio is not None and ratio["median"] <= BAR for ratio in ours.values()),
        "sentence": f"Time of a whole training step ÷ SGD's: {text}. Bar: {BAR}.",
    }
