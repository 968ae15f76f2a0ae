"""A job that cannot be exported, on PyTorch's engine: MXNet's process trains, and its steps are computed by PyTorch.

Own steps, metrics, several nets, Gluon datasets and plain Blocks are MXNet programs. They are followed as ``gluontune
run --backend torch`` follows a script (:mod:`gluontune.capture.on_torch`): after a proof, before the training begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gluontune.capture.on_torch import OnTorch
from gluontune.core.errors import UsageError
from gluontune.engines.mxnet.session import Session
from gluontune.recipe import Recipe
from gluontune.recipe.rules import listed_gpus
from gluontune.runtime import mxnet, usable_cores
from gluontune.runtime.pytorch import torch

_TRIED = 3  # steps: weights appear, the proof, and one that PyTorch computes


class FollowedSession(Session):
    """MXNet's session of one rank, whose arithmetic is PyTorch's.

    Args:
        why: what prevents an export. Others: as of :class:`gluontune.engines.base.Engine`.

    Raises:
        UsageError: by :meth:`build`: the proof of a step fails, or the recipe wants what only an exported net can do.
    """

    name = "torch"

    def __init__(self, recipe: Recipe, *given: Any, why: str):
        self._devices, gpus = recipe.devices, listed_gpus(recipe.devices)
        self._place = {"auto": "auto", "cpu": "cpu"}.get(recipe.devices, f"cuda:{gpus[0] if gpus else 0}")
        super().__init__(recipe.override(devices="cpu"), *given)
        self._why = why

    def build(self, opened: Callable[[], None] | None = None) -> None:
        recipe = self.recipe
        if self.world > 1 or recipe.dtype != "float32":
            raise self._refused("such a job trains on PyTorch's engine in one process, in float32")
        self.phase = "importing PyTorch"
        torch().set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or usable_cores()))
        self.phase = "importing mxnet"
        folder = os.path.dirname(os.path.abspath(recipe.job or ""))
        try:
            self._followed = OnTorch(mxnet(), folder, self.news.append, self._place)
        except UsageError as error:
            raise UsageError(f"recipe field devices={self._devices!r}: {error}") from error
        super().build(opened)
        self.news.clear()  # on MXNet's gradients
        self.steps(_TRIED)
        if self._followed.why_not:
            raise self._refused(self._followed.why_not)
        self.reset()
        draws = "; random numbers are PyTorch's own" if self._followed.draws else ""
        self.news.append(f"PyTorch computes MXNet's steps, proven on one ({self._followed.gaps}){draws}: {self._why}")

    def _refused(self, why: str) -> UsageError:
        return UsageError(f"recipe field backend='torch': {self._why}; {why}; use backend='mxnet'")

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "torch": torch().__version__}

    def close(self) -> None:
        super().close()
        if hasattr(self, "_followed"):
            self._followed.recorder.release()
