"""The place of computation of a rank of MXNet's engine, and MXNet's random numbers.

The state of MXNet's generators cannot be read. So with checkpoints every step of a net that may draw from them begins
with generators seeded from (seed, rank, step); a resumed run then draws like an uninterrupted one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np

from gluontune.core.errors import GluontuneError
from gluontune.job.arrays import parts_of
from gluontune.parallel import horovod
from gluontune.parallel.shared import PATH_VARIABLE
from gluontune.parallel.summing import SharedExchange
from gluontune.recipe import Recipe
from gluontune.runtime import as_net_array, mxnet

Exchange = Optional[Union[horovod.Exchange, SharedExchange]]
_QUIET = ("mxnet.gluon.", "gluoncv.", "gluontune.")  # their blocks draw nothing, except with "drop" in the name


@dataclass(frozen=True)
class Context:
    """The place of computation of a rank.

    Args:
        mx: the library. ctxs: its contexts of this rank. rank, world: among the ranks of the run.
        exchange: sums the ranks' gradients; None for a kvstore, or for one rank.
    """

    mx: Any
    ctxs: list[Any]
    rank: int
    world: int
    exchange: Exchange

    @property
    def device(self) -> str:
        """``cpu`` or ``gpu``."""
        return str(self.ctxs[0].device_type)

    def seed(self, seed: int) -> None:
        """Reset the random streams of Python, numpy and MXNet."""
        random.seed(seed)
        np.random.seed(seed)
        self.mx.random.seed(seed)

    @staticmethod
    def state_dict() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The state of the random streams of Python and numpy."""
        kind, keys, position, has_gauss, cached = np.random.get_state()
        drawn = {"python": random.getstate(), "numpy": [kind, position, has_gauss, cached]}
        return {"random": drawn}, {"random/numpy": np.asarray(keys)}

    @staticmethod
    def load_state_dict(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the result of :meth:`state_dict`."""
        version, internal, gauss = header["random"]["python"]
        random.setstate((version, tuple(internal), gauss))
        kind, *rest = header["random"]["numpy"]
        np.random.set_state((kind, arrays["random/numpy"], *rest))

    def array(self, values: np.ndarray, dtype: Any = None) -> Any:
        """An MXNet array of the flavour of the job."""
        return as_net_array(self.mx.nd.array(values, dtype=values.dtype if dtype is None else dtype))

    def index(self, chosen: np.ndarray, place: int) -> Any:
        """Row numbers for ``nd.take`` on one context."""
        return self.mx.nd.array(chosen, dtype="int32", ctx=self.ctxs[place])

    def parts(self, batch: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """A batch cut along the first axis, a part for each context."""
        return parts_of(batch, self.ctxs)


def meet(recipe: Recipe, rank: int, world: int) -> Exchange:
    """The exchange that sums the ranks' gradients, or None; see :class:`Context`."""
    if recipe.engine == "horovod":
        return horovod.join(rank, world, recipe.batch_size_per_device)
    if recipe.engine == "shared-memory":
        return SharedExchange(shared_memory(recipe.engine), rank, world)
    return None


def shared_memory(engine: str) -> str:
    """The path of the shared memory of this engine's ranks."""
    path = os.environ.get(PATH_VARIABLE)
    if path is None:
        raise GluontuneError(f"engine {engine!r}: no shared memory; start it with gluontune launch --engine {engine}")
    return path


def parameters(net: Any) -> dict[str, Any]:
    """The parameters by their place in the net: Gluon's names are numbered on in each process."""
    return dict(sorted(net._collect_params_with_prefix().items()))


def may_draw(net: Any) -> bool:
    """Whether a forward pass of ``net`` may draw from MXNet's generators.

    Blocks of Gluon, GluonCV and gluontune do so only for dropout; other blocks are unknown.

    >>> nn = mxnet().gluon.nn
    >>> quiet, dropping = nn.HybridSequential(), nn.HybridSequential()
    >>> quiet.add(nn.Dense(2)); dropping.add(nn.Dense(2), nn.Dropout(0.5))
    >>> may_draw(quiet), may_draw(dropping)
    (False, True)
    """
    kind = type(net)
    if not kind.__module__.startswith(_QUIET) or "drop" in kind.__name__.lower():
        return True
    return any(may_draw(child) for child in net._children.values())


def seed_step(*key: int) -> None:
    """Seed Python's, numpy's and MXNet's generators for one step (about 2 ms, nearly all in MXNet)."""
    number = int(np.random.SeedSequence(key).generate_state(1)[0]) & 0x7FFFFFFF
    random.seed(number)
    np.random.seed(number)
    mxnet().random.seed(number)
