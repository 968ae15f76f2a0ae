"""Methods with a second set of weights beside the trained one; for MXNet's and PyTorch's arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

Arrays = Mapping[str, Any]
Put = Callable[[str, Any], None]


class Second(ABC):
    """A second set of weights, for validation and the saved net.

    Attributes:
        held: arrays by name. count: updates since the start.
    """

    #: Whether the set includes statistics that are not trained (BatchNorm's).
    of_all = True

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}
        self.count = 0

    def begin(self, live: Arrays) -> None:
        """Begin with copies of the trained weights.

        Args:
            live: arrays by name; PyTorch's detached.
        """
        self.held, self.count = {name: array * 1 for name, array in live.items()}, 0

    @abstractmethod
    def after_update(self, live: Arrays, put: Put) -> None:
        """Follow an update.

        Args:
            live: the trained weights. put: sets trained weights, by name and values.
        """

    def swap(self, live: Arrays, put: Put) -> None:
        """Exchange the two sets."""
        for name, held in self.held.items():
            trained = live[name] * 1
            put(name, held)
            self.held[name] = trained


class Ema(Second):
    """Exponential moving average of the weights, and of BatchNorm's statistics.

    Args:
        decay: share of the old average; (1 + t) / (10 + t) while that is smaller.
        every: updates between two steps of the average, whose decay is then decay^every.

    Source: Polyak and Juditsky, 1992; the rising decay of TensorFlow's ExponentialMovingAverage.

    >>> import numpy as np
    >>> average, live = Ema(0.5), {"w": np.array([1.0])}
    >>> average.begin(live)
    >>> live["w"][:] = 2.0
    >>> average.after_update(live, live.__setitem__)
    >>> round(float(average.held["w"][0]), 4)  # 1 · 2/11 + 2 · 9/11
    1.8182
    """

    def __init__(self, decay: float = 0.998, every: int = 1):
        super().__init__()
        self.decay, self.every = decay, every

    def after_update(self, live: Arrays, put: Put) -> None:
        self.count += 1
        if self.count % self.every:
            return
        done = self.count // self.every
        stays = min(self.decay**self.every, (1 + done) / (10 + done))
        for name, held in self.held.items():
            held *= stays
            held += live[name] * (1 - stays)


class Lookahead(Second):
    """Slow weights that go a share of the way of k updates; the trained ones continue from there.

    Args:
        k: updates between two steps of the slow weights. alpha: share of the way.

    Source: Zhang et al., 2019, algorithm 1; the inner optimizer keeps its states. Validation takes the slow weights.

    >>> import numpy as np
    >>> slow, live = Lookahead(k=2, alpha=0.5), {"w": np.array([0.0])}
    >>> slow.begin(live)
    >>> for value in (3.0, 4.0):
    ...     live["w"][:] = value
    ...     slow.after_update(live, live.__setitem__)
    >>> live["w"].tolist()
    [2.0]
    """

    of_all = False

    def __init__(self, k: int = 5, alpha: float = 0.5):
        super().__init__()
        self.k, self.alpha = k, alpha

    def after_update(self, live: Arrays, put: Put) -> None:
        self.count += 1
        if self.count % self.k:
            return
        for name, held in self.held.items():
            held += (live[name] - held) * self.alpha
            put(name, held * 1)


def make_second(chosen: Mapping[str, Mapping[str, Any]]) -> Second | None:
    """The second set of a recipe's methods of kind ``weights``, or None.

    >>> make_second({}) is None, make_second({"lookahead": {"k": 3, "alpha": 0.5}}).k
    (True, 3)
    """
    kinds: dict[str, type[Second]] = {"ema": Ema, "lookahead": Lookahead}
    return next((kinds[name](**params) for name, params in chosen.items()), None)
