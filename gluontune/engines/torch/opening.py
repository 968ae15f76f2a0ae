"""Which session a job gets on PyTorch's engine: that of its exported net, or one that follows MXNet's program."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gluontune.engines.base import Engine
from gluontune.engines.torch.export import NotExported, exported_once
from gluontune.engines.torch.session import TorchSession
from gluontune.recipe import Recipe
from gluontune.runtime.pytorch import torch


def session_of(recipe: Recipe, rank: int = 0, world: int = 1, *more: Any) -> Engine:
    """The session of a recipe: of its exported net, or the followed one of a job that cannot be exported.

    Args:
        recipe, rank, world, more: as of :class:`gluontune.engines.base.Engine`.
    """
    if recipe.loader == "gluon":  # its process has mxnet anyway
        return _followed(recipe, rank, world, *more, why="Gluon's DataLoader loads")
    try:
        with ThreadPoolExecutor(1) as importing:  # both take seconds; the export is another process
            importing.submit(torch)
            job = exported_once(recipe, rank, world)
    except NotExported as error:
        return _followed(recipe, rank, world, *more, why=str(error))
    return TorchSession(recipe, rank, world, *more, job=job)


def _followed(recipe: Recipe, *given: Any, why: str) -> Engine:
    from gluontune.engines.torch.followed import FollowedSession  # it brings mxnet

    return FollowedSession(recipe, *given, why=why)
